"""Restart rules to look at before anything fails: the default table, and what it and a document's own rules come to."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pilotage.engine.restart import RULES, RestartSettings, Row, Verdict, dry_run
from pilotage.language import Expansion, LoadedJob, plan_of
from pilotage.model.definition import Package, Retry
from pilotage.model.demand import Demand
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.events import parse_dotted
from pilotage.model.plan import Template

SETTINGS = RestartSettings()
UNTOLD_REASON = "application-error"
"""What a failure counts as of which only its exit code or its message is told."""

_DONE = {
    "again": "restarted as it was",
    "elsewhere": "restarted elsewhere",
    "later": "restarted later",
    "more-memory": "restarted with more memory",
    "more-time": "restarted with more time",
    "where-more-time": "restarted",
}
_SHOWN_PACKAGES = "packages are named 1.2.1, or by their path, or by their name"


class RuleLine(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the default table, in words; `setting` bounds it at `bound`."""

    reason: str
    action: str
    done: str
    changes: str
    counted: bool
    setting: str
    bound: int
    bounded: str
    why: str


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done with packages that have the same rules and ask for the same, after each failure of a kind."""

    activities: tuple[str, ...]  # none: any package without rules of its own
    attempts_max: int
    answers: tuple[Verdict, ...]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that might come, and how often."""

    reason: str = UNTOLD_REASON
    exit_code: int | None = None
    message: str = ""
    times: int = 5


def default_rules() -> list[RuleLine]:
    """The default table."""
    return [_line(reason, row) for reason, row in RULES.items()]


def _line(reason: str, row: Row) -> RuleLine:
    setting = row.budget or "attempts_max"
    bound = int(getattr(SETTINGS, setting))
    if not row.budget:
        bounded = f"given up at {bound} counted failures of any kind"
    elif row.doubles:
        bounded = f"doubled at most {bound} times, then given up"
    else:
        bounded = f"given up at {bound} failures of its kind"
    return RuleLine(
        reason=reason,
        action=row.answer,
        done=_DONE[row.answer],
        changes=row.changes,
        counted=row.counted,
        setting=setting,
        bound=bound,
        bounded=bounded,
        why=row.why,
    )


def grouped_rules() -> dict[RuleLine, list[str]]:
    """The default table with reasons that have the same rule together; the lines have no reason of their own."""
    alike: dict[RuleLine, list[str]] = {}
    for line in default_rules():
        alike.setdefault(msgspec.structs.replace(line, reason=""), []).append(line.reason)
    return alike


def rules_table() -> str:
    """The default table for the documentation."""
    lines = ["| reason | what is done | what changes | counted | bound | why |", "|---|---|---|---|---|---|"]
    for line, reasons in grouped_rules().items():
        names = ", ".join(f"`{reason}`" for reason in reasons)
        counted = "yes" if line.counted else "no"
        lines.append(f"| {names} | {line.done} | {line.changes} | {counted} | {line.bounded} | {line.why} |")
    return "\n".join(lines) + "\n"


def foresee(asked: Asked) -> Foreseen:
    """What would be done with a package that says nothing of its own."""
    _known(asked.reason, RULES)
    return _foreseen((), Retry(), Demand(), asked)


def foresee_document(loaded: LoadedJob, asked: Asked, *, package: str = "") -> list[Foreseen]:
    """What would be done with each kind of package of a document, or with the one that is named."""
    expansion = loaded.expansion
    templates = plan_of(expansion).templates
    chosen = [_position(expansion, package)] if package else list(range(len(templates)))
    _known(asked.reason, {*RULES, *_own_reasons(expansion.blocks[at].package for at in chosen)})
    alike: dict[tuple[Retry, Demand], list[str]] = {}
    for at in chosen:
        template: Template = templates[at]
        names = alike.setdefault((template.retry, template.demand), [])
        if template.activity not in names:
            names.append(template.activity)
    return [_foreseen(tuple(names), retry, demand, asked) for (retry, demand), names in alike.items()]


def _foreseen(activities: tuple[str, ...], retry: Retry, demand: Demand, asked: Asked) -> Foreseen:
    answers = dry_run(
        retry=retry,
        demand=demand,
        settings=SETTINGS,
        reason=asked.reason,
        times=asked.times,
        exit_status=asked.exit_code,
        message=asked.message,
    )
    cap = retry.attempts_max or SETTINGS.attempts_max
    return Foreseen(activities=activities, attempts_max=cap, answers=tuple(answers))


def _own_reasons(packages: Iterable[Package]) -> set[str]:
    """The reasons that failure patterns and rules of packages name."""
    found: set[str] = set()
    for package in packages:
        found.update(rule.reason for rule in package.retry.rules if rule.reason)
        found.update(pattern.reason for pattern in package.failure_patterns)
    return found


def _known(reason: str, reasons: Iterable[str]) -> None:
    known = set(reasons)
    if reason not in known:
        hint = did_you_mean(reason, known)
        raise PilotageError("no attempt fails for this reason", subject=repr(reason), next_step=hint)


def _position(expansion: Expansion, package: str) -> int:
    """Which block a package is of."""
    number = _number(expansion, package)
    if number is None:
        raise PilotageError(
            f"the job {expansion.definition.job} has no such package", subject=repr(package), next_step=_SHOWN_PACKAGES
        )
    return expansion.blocks.index(expansion.block(number))


def _number(expansion: Expansion, package: str) -> int | None:
    place = parse_dotted(package)
    if place is not None:
        return expansion.number(place.path(expansion.definition.job))
    found = expansion.number(package)
    if found is not None:
        return found
    return next((number for number in range(expansion.count) if expansion.name(number) == package), None)
