"""Shows retry rules before anything fails: the default table, and its outcome with the rules of a document."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pilotage.engine.retry.policy import RULES, Row, Verdict, dry_run, failures_max
from pilotage.engine.retry.rules import row_of
from pilotage.language import Expansion, LoadedJob, plan_of
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.events.events import parse_dotted
from pilotage.model.jobs.definition import Package, Retry
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Demand
from pilotage.model.settings.engine import RestartSettings
from pilotage.model.states import AbortCause

SETTINGS = RestartSettings()
DEFAULT_REASON = "application-error"
"""The reason assumed for a failure given only by exit code or message."""

_DONE = {
    "again": "restarted as it was",
    "elsewhere": "restarted elsewhere",
    "later": "restarted later",
    "more-memory": "restarted with more memory",
    "more-time": "restarted with more time",
    "where-more-time": "restarted",
}
_SHOWN_PACKAGES = "name a package by 1.2.1, its path, or its name"


class RuleLine(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the default table, in words; `setting` limits it to `bound`."""

    reason: str
    action: str
    done: str
    changes: str
    counted: bool
    setting: str
    bound: int
    bounded: str
    why: str


class OneSiteOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the same failures with only one site, until the package is given up."""

    attempts: int
    pause_seconds: float  # between attempts, in total
    cause: AbortCause | None


class RetryForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to packages with the same rules and demands after each failure of a kind."""

    activities: tuple[str, ...]  # none: any package without rules of its own
    attempts_max: int
    answers: tuple[Verdict, ...]
    bounded: str = ""  # what limits retries that the default table does not count
    alone: OneSiteOutcome | None = None  # if that differs, and the number of sites is not given


class FailureCase(msgspec.Struct, frozen=True, kw_only=True):
    """A possible failure, and how often it occurs."""

    reason: str = DEFAULT_REASON
    exit_code: int | None = None
    message: str = ""
    times: int = 5
    sites: int = 0  # each of so many fails in turn; 0: always another


def default_rules() -> list[RuleLine]:
    """The default table."""
    return [_line(reason, row) for reason, row in RULES.items()]


def _line(reason: str, row: Row) -> RuleLine:
    setting = row.budget or "attempts_max"
    return RuleLine(
        reason=reason,
        action=row.answer,
        done=_DONE[row.answer],
        changes=_changes(row),
        counted=row.counted,
        setting=setting,
        bound=int(getattr(SETTINGS, setting)),
        bounded=_bounded(row),
        why=row.why,
    )


def _bounded(row: Row) -> str:
    bound = int(getattr(SETTINGS, row.budget or "attempts_max"))
    if not row.budget:
        return f"given up at {bound} counted failures of any kind"
    return (
        f"doubled at most {bound} times, then given up" if row.doubles else f"given up at {bound} failures of its kind"
    )


def _changes(row: Row) -> str:
    first, longest = f"{SETTINGS.delay_seconds:,.0f} s", f"{SETTINGS.delay_seconds_max:,.0f} s"
    waits = f"{first}, then {SETTINGS.delay_growth:g} times as long each time, at most {longest}"
    if row.pauses:
        return f"{row.changes}; where there is no other, it waits {waits}"
    return f"{row.changes} {waits}" if row.answer == "later" else row.changes


def grouped_rules() -> dict[RuleLine, list[str]]:
    """The default table with reasons of the same rule together; these lines have no reason of their own."""
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


def forecast_retries(request: FailureCase) -> RetryForecast:
    """What happens to a package without rules of its own."""
    _known(request.reason, RULES)
    return _foreseen((), Retry(), Demand(), request)


def forecast_document(loaded: LoadedJob, request: FailureCase, *, package: str = "") -> list[RetryForecast]:
    """What happens to each kind of package in a document, or to the named one."""
    expansion = loaded.expansion
    templates = plan_of(expansion).templates
    chosen = [_position(expansion, package)] if package else list(range(len(templates)))
    _known(request.reason, {*RULES, *_own_reasons(expansion.blocks[at].package for at in chosen)})
    alike: dict[tuple[Retry, Demand], list[str]] = {}
    for at in chosen:
        template: Template = templates[at]
        names = alike.setdefault((template.retry, template.demand), [])
        if template.activity not in names:
            names.append(template.activity)
    return [_foreseen(tuple(names), retry, demand, request) for (retry, demand), names in alike.items()]


def _foreseen(activities: tuple[str, ...], retry: Retry, demand: Demand, request: FailureCase) -> RetryForecast:
    answers = _answers(retry, demand, request, times=request.times, sites=request.sites)
    name, row = row_of(answers[0].rule)
    is_default = name == answers[0].rule  # a rule of its own is not a reason
    return RetryForecast(
        activities=activities,
        attempts_max=retry.attempts_max or SETTINGS.attempts_max,
        answers=tuple(answers),
        bounded=_bounded(row) if is_default and not row.counted else "",
        alone=None if request.sites else _alone(retry, demand, request),
    )


def _answers(retry: Retry, demand: Demand, request: FailureCase, *, times: int, sites: int) -> list[Verdict]:
    return dry_run(
        retry=retry,
        demand=demand,
        settings=SETTINGS,
        reason=request.reason,
        times=times,
        sites=sites,
        exit_status=request.exit_code,
        message=request.message,
    )


def _alone(retry: Retry, demand: Demand, request: FailureCase) -> OneSiteOutcome | None:
    """The outcome at one site, unless it is the same at many, or there is no limit."""
    times = failures_max(retry=retry, settings=SETTINGS)
    many, one = (_answers(retry, demand, request, times=times, sites=sites) for sites in (0, 1))
    pause_seconds = sum(answer.delay_seconds for answer in one)
    same = len(one) == len(many) and pause_seconds == sum(answer.delay_seconds for answer in many)
    if same or one[-1].action != "give-up":
        return None
    return OneSiteOutcome(attempts=len(one), pause_seconds=pause_seconds, cause=one[-1].cause)


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
        raise PilotageError("there is no such failure reason", subject=repr(reason), next_step=hint)


def _position(expansion: Expansion, package: str) -> int:
    """The block of a package."""
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
