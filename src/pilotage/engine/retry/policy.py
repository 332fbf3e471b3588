"""The verdict on a package's failures: restart it (and how), give it up, hold its job, or park it.

The verdict is a function of all failures of an epoch, in any order: an engine that starts from the book decides the same.
The package's own rules are tried first, in order. A rule with `times` has a budget of its own, outside the common cap; one
without uses the budget of the failure's reason: the common cap, or the limit of a reason outside it. Once every matching
rule has acted its `times`, the package is given up; failures without a matching rule go to the table in
`engine/retry/rules.py`. A package that was given up stays so until a new epoch begins.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from pilotage.agent.expressions import UnboundedExpression, compile_expression
from pilotage.engine.retry.rules import RULES, Remedy, Row, row_of
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.model.resources import Demand
from pilotage.model.settings.engine import RestartSettings
from pilotage.model.states import NOBODYS_FAULT, PILOT_WALL_OVER, AbortCause, ExitCodeGasw, LossReason, Reason

__all__ = ["RULES", "Failure", "RestartSettings", "Row", "Verdict", "dry_run", "failures_max", "signature", "verdict"]

VerdictAction = Literal["restart", "give-up", "hold-job", "park"]

_FACTOR = 2.0  # default for memory and time
_MEMORY_BYTES_MAX = 2**53 - 1  # for any factor of a rule: the largest value of an event
_WALL_SECONDS_MAX = 1e9

_PATH = re.compile(r"(?:/[^\s/:;,'\"()<>]+)+/(?=[^\s/:;,'\"()<>])")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\b(?=[a-fA-F-]{0,40}[0-9])[0-9a-fA-F-]{8,}\b|[0-9]+(?:[.,][0-9]+)*")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failed or lost attempt of the current epoch, and its resources."""

    attempt: int
    site: str
    reason: str
    exit_status: int | None = None
    signal: int | None = None
    message: str = ""
    memory_bytes: int = 0  # 0: unknown, so the declared or last raised value
    wall_seconds: float = 0.0  # its own limit; 0: likewise
    remaining_seconds: float | None = None  # remaining time of the pilot when the attempt was assigned
    killed_pilot: bool = False
    with_pilot: bool = False  # it ended because its pilot or batch job did


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. The fields after `cause` say how a restart differs, also a restart after a release."""

    action: VerdictAction
    rule: str  # what decided: a reason of the table, `retry.rules[0]`, or the name of a limit
    message: str
    cause: AbortCause | None = None  # why it is given up
    delay_seconds: float = 0.0
    avoid: tuple[str, ...] = ()  # sites, sorted
    prefer: Literal["", "here"] = ""  # "here": the site of the latest failed attempt, if possible
    memory_bytes: int = 0  # 0: as declared
    wall_seconds: float = 0.0  # 0: as declared
    more_wall_than: float = 0.0  # seconds; only where more than this is left; 0: anywhere
    counted: int = 0  # counted attempts so far


def verdict(failures: Sequence[Failure], *, retry: Retry, demand: Demand, settings: RestartSettings) -> Verdict:
    """The verdict on the failures of an epoch, at least one, each of a different attempt."""
    if not failures:
        raise ValueError("a verdict needs at least one failure")
    history = _History(retry=retry, demand=demand, settings=settings)
    found: Verdict | None = None
    for failure in sorted(failures, key=lambda failure: failure.attempt):
        found = history.after(failure)
        if found.action == "give-up":
            break
    assert found is not None
    return found


def signature(failure: Failure) -> str:
    """What two identical failures share: reason, exit status, signal, and the message without its variable parts.

    Numbers, addresses and folders of paths are removed; the last part of a path stays, because it names what failed.
    """
    text = _NUMBER.sub("#", _PATH.sub("…/", failure.message))
    status = "" if failure.exit_status is None else f" exit {failure.exit_status}"
    signal = "" if failure.signal is None else f" signal {failure.signal}"
    return f"{failure.reason}{status}{signal}: {' '.join(text.split())}"


def dry_run(
    *,
    retry: Retry,
    demand: Demand,
    settings: RestartSettings,
    reason: str,
    times: int,
    sites: int = 0,
    exit_status: int | None = None,
    message: str = "",
) -> list[Verdict]:
    """The verdicts after the first, second … such failure, at `sites` sites in turn, or at a new one each time."""
    history = _History(retry=retry, demand=demand, settings=settings)
    found: list[Verdict] = []
    while len(found) < times and not (found and found[-1].action == "give-up"):
        number = len(found) + 1
        site = f"site-{(number - 1) % sites + 1 if sites else number}"
        failure = Failure(attempt=number, site=site, reason=reason, exit_status=exit_status, message=message)
        found.append(history.after(failure))
    return found


def failures_max(*, retry: Retry, settings: RestartSettings) -> int:
    """After this many failures of any kind, the verdict is certainly no restart."""
    bounds = (
        retry.attempts_max or settings.attempts_max,
        settings.platform_failures_max,
        settings.missing_inputs_max,
        settings.preemptions_max,
    )
    # Each limit allows one restart less than it says; each rule with `times` as many as it says.
    return sum(max(0, bound - 1) for bound in bounds) + sum(rule.times or 0 for rule in retry.rules) + 1


class _History:
    """The failures so far, folded: budgets used, and how the next attempt must differ."""

    def __init__(self, *, retry: Retry, demand: Demand, settings: RestartSettings) -> None:
        self._retry = retry
        self._demand = demand
        self._settings = settings
        self._attempts_max = retry.attempts_max or settings.attempts_max
        self._failures: list[Failure] = []
        self._by_default: list[Failure] = []  # failures handled by the table
        self._used: Counter[str] = Counter()  # failures charged to each budget
        self._acted: Counter[int] = Counter()  # how often each rule of the package decided
        self._counted = 0
        self._pilot_kills = 0
        self._rounds = 0  # how often all other sites had been tried
        self._avoid: set[str] = set()
        self._memory_bytes = 0
        self._wall_seconds = 0.0
        self._more_wall_than = 0.0

    def after(self, failure: Failure) -> Verdict:
        """Add one more failure, and return the verdict."""
        self._failures.append(failure)
        found = self._judged(failure)
        self._pilot_kills += failure.killed_pilot
        # Before the package's own rules: a package that kills pilots harms other packages too.
        harmful = failure.killed_pilot and self._pilot_kills >= self._settings.pilot_kills_max
        if not harmful or found.action == "give-up":
            return found
        message = f"{_text(failure)}: {self._pilot_kills} pilots died while running it; check it before you release it"
        return msgspec.structs.replace(found, action="park", rule="pilot-kills", message=message)

    def _judged(self, failure: Failure) -> Verdict:
        """Judge by the first matching rule of the package with budget left, or by the table."""
        name, row = row_of(failure.reason)
        matching = [at for at, rule in enumerate(self._retry.rules) if _is_for(rule, failure)]
        for at in matching:
            rule = self._retry.rules[at]
            if rule.times is None or self._acted[at] < rule.times:
                self._acted[at] += 1
                return self._by_rule(failure, row, at)
        if matching:
            spent = f"retry.rules[{matching[-1]}]"
            return self._give_up(spent, "retries-exhausted", f"{_text(failure)}: its retry rules are used up")
        return self._by_table(failure, name, row)

    def _by_rule(self, failure: Failure, row: Row, at: int) -> Verdict:
        """The verdict of a rule of the package."""
        rule, name = self._retry.rules[at], f"retry.rules[{at}]"
        if rule.action == "hold-job":
            return self._verdict("hold-job", name, f"{_text(failure)}: a retry rule of the package holds the job")
        if rule.times is None:
            self._draw(row)
        if rule.action == "give-up":
            return self._give_up(name, "permanent-failure", f"{_text(failure)}: a retry rule of the package gives up")
        if rule.times is None:
            over = self._over_cap(failure, row) or (None if row.counted else self._over_budget(failure, name, row))
            if over is not None:
                return over
        if rule.action == "more-memory":
            return self._more_memory(failure, name, factor=rule.memory_factor or _FACTOR)
        if rule.action == "more-time":
            return self._more_time(failure, name, factor=rule.time_factor or _FACTOR)
        return self._restart(failure, name, rule.action, turn=self._acted[at], pauses=not row.counted)

    def _by_table(self, failure: Failure, name: str, row: Row) -> Verdict:
        """The verdict of the default row."""
        self._by_default.append(failure)
        self._draw(row)
        if row.counted:
            self._used[row.budget] += 1
        over = self._repeats(failure, row) or self._over_budget(failure, name, row) or self._over_cap(failure, row)
        if over is not None:
            return over
        if row.answer == "more-memory":
            return self._more_memory(failure, name, doublings=self._settings.memory_doublings_max)
        if row.answer == "more-time":
            return self._more_time(failure, name, doublings=self._settings.limit_doublings_max)
        return self._restart(failure, name, row.answer, turn=self._used[row.budget], pauses=not row.counted)

    def _draw(self, row: Row) -> None:
        """Charge a failure to the common cap, or to the limit of a reason outside it."""
        if row.counted:
            self._counted += 1
        else:
            self._used[row.budget] += 1

    def _over_cap(self, failure: Failure, row: Row) -> Verdict | None:
        if not row.counted or self._counted < self._attempts_max:
            return None
        message = f"{_text(failure)}, after {self._counted} counted attempts of at most {self._attempts_max}"
        return self._give_up("attempts-max", "retries-exhausted", message)

    def _over_budget(self, failure: Failure, name: str, row: Row) -> Verdict | None:
        if not row.budget or row.doubles:
            return None
        used, allowed = self._used[row.budget], int(getattr(self._settings, row.budget))
        if row.budget == "application_errors_max":
            # An explicit number of attempts is meant for program failures above all.
            allowed = max(allowed, self._retry.attempts_max or 0)
        if used < allowed:
            return None
        return self._give_up(name, row.cause, f"{_text(failure)}, failure {used} of its kind; the limit is {allowed}")

    def _repeats(self, failure: Failure, row: Row) -> Verdict | None:
        """Give up if the program itself is to blame: it failed identically at another site."""
        if row.budget != "application_errors_max":
            return None
        elsewhere = [one for one in self._by_default if one.site != failure.site and one.reason == failure.reason]
        mark = signature(failure) if elsewhere else ""
        for one in elsewhere:
            if signature(one) == mark:
                message = (
                    f"{_text(failure)}, and identically at {one.site}: it would fail anywhere; fix it, then restart it"
                )
                return self._give_up("repeats-identically", "permanent-failure", message)
        return None

    def _more_memory(
        self, failure: Failure, name: str, *, factor: float = _FACTOR, doublings: int | None = None
    ) -> Verdict:
        """Raise the memory; the table's own rule doubles it at most `doublings` times."""
        declared = self._demand.memory_bytes
        had = failure.memory_bytes or max(self._memory_bytes, declared)
        granted = min(had * factor, _MEMORY_BYTES_MAX)
        if doublings is not None:
            base = declared or next((one.memory_bytes for one in self._failures if one.memory_bytes), 0)
            ceiling = base * 2**doublings
            if had >= ceiling if had else self._used["memory_doublings_max"] > doublings:
                message = f"{_text(failure)} with {_mebibytes(had)}: its memory was doubled as often as allowed"
                return self._give_up(name, "retries-exhausted", message)
            granted = min(granted, ceiling)
        if not had:
            # The memory it had is unknown, so there is nothing to multiply; a larger node may do.
            return self._restart(
                failure, name, "elsewhere", how="again elsewhere; declare its memory, so that it can be given more"
            )
        self._memory_bytes = max(self._memory_bytes, math.ceil(granted))
        memory = _mebibytes(max(self._memory_bytes, declared))
        return self._restart(failure, name, "more-memory", how=f"again with {memory} of memory")

    def _more_time(
        self, failure: Failure, name: str, *, factor: float = _FACTOR, doublings: int | None = None
    ) -> Verdict:
        """Raise the time limit; without one, require a pilot with that much more time left."""
        had = self._limit(failure)
        granted = min(had * factor, _WALL_SECONDS_MAX)
        if not had and failure.reason == "looping":
            message = f"{_text(failure)}: it has no time limit to raise, and would hang again"
            return self._give_up(name, "permanent-failure", message)
        if not had:
            left = min((failure.remaining_seconds or 0.0) * factor, _WALL_SECONDS_MAX)
            self._more_wall_than = max(self._more_wall_than, left)
            return self._restart(failure, name, "where-more-time")
        if doublings is not None:
            base = self._demand.wall_seconds or next(
                (one.wall_seconds for one in self._failures if one.wall_seconds), had
            )
            ceiling = base * 2.0**doublings
            if had >= ceiling:
                message = f"{_text(failure)} with a limit of {had:,.0f} s, which was doubled as often as allowed"
                return self._give_up(name, "retries-exhausted", message)
            granted = min(had * factor, ceiling)
        self._wall_seconds = max(self._wall_seconds, granted)
        limit = max(self._wall_seconds, self._demand.wall_seconds)
        return self._restart(failure, name, "more-time", how=f"again with a time limit of {limit:,.0f} s")

    def _limit(self, failure: Failure) -> float:
        return failure.wall_seconds or max(self._wall_seconds, self._demand.wall_seconds)

    def _restart(
        self, failure: Failure, name: str, answer: Remedy, *, turn: int = 1, pauses: bool = False, how: str = ""
    ) -> Verdict:
        """Restart with the changes of this verdict."""
        delay, site = 0.0, failure.site
        if answer == "again":
            how = "again, at the same site if possible"
            self._avoid.discard(site)
        elif answer == "later":
            delay = self._delay(turn)
            how = f"again in {delay:,.0f} s"
        elif answer == "elsewhere":
            delay = self._go_elsewhere(site, pauses=pauses)
            how = how or (f"again in {delay:,.0f} s: every other site was tried" if delay else "again elsewhere")
        elif answer == "where-more-time":
            had = self._time_it_had(failure)
            if had != self._limit(failure) or not had or failure.with_pilot:
                self._more_wall_than = max(self._more_wall_than, had)
                how = f"again, only where more than {self._more_wall_than:,.0f} s are left"
            elif self._retry.attempts_max:  # it covers a program that hangs now and then, too
                how = f"again, although its own limit of {had:,.0f} s ended it"
            else:
                message = f"{_text(failure)}: its own limit of {had:,.0f} s ended it, and would again"
                return self._give_up(name, "permanent-failure", f"{message}; declare a longer one, then restart it")
        found = self._verdict("restart", name, f"{_text(failure)}: {how}")
        return msgspec.structs.replace(found, delay_seconds=delay, prefer="here" if answer == "again" else "")

    def _go_elsewhere(self, site: str, *, pauses: bool) -> float:
        """Avoid one more site; returns the pause before the next attempt."""
        if site not in self._avoid:
            self._avoid |= {site} - {""}
            return 0.0
        # It came back to an avoided site, so there was no other: start a new round.
        self._avoid = {site}
        self._rounds += 1
        return self._delay(self._rounds) if pauses else 0.0

    def _time_it_had(self, failure: Failure) -> float:
        """The time until its end: the pilot's end, or its own limit."""
        known = (failure.remaining_seconds, self._limit(failure) or None)
        return min((seconds for seconds in known if seconds is not None), default=0.0)

    def _delay(self, turn: int) -> float:
        """A pause that grows with each turn, up to a limit."""
        delay, longest = self._settings.delay_seconds, self._settings.delay_seconds_max
        for _ in range(turn - 1):
            if delay >= longest:
                break
            delay *= self._settings.delay_growth
        return min(delay, longest)

    def _give_up(self, rule: str, cause: AbortCause, message: str) -> Verdict:
        return msgspec.structs.replace(self._verdict("give-up", rule, message), cause=cause)

    def _verdict(self, action: VerdictAction, rule: str, message: str) -> Verdict:
        demand = self._demand
        return Verdict(
            action=action,
            rule=rule,
            message=message,
            avoid=tuple(sorted(self._avoid)),
            memory_bytes=self._memory_bytes if self._memory_bytes > demand.memory_bytes else 0,
            wall_seconds=self._wall_seconds if self._wall_seconds > demand.wall_seconds else 0.0,
            more_wall_than=self._more_wall_than,
            counted=self._counted,
        )


def _is_for(rule: RetryRule, failure: Failure) -> bool:
    """Whether a rule of the package matches this failure."""
    if rule.reason:
        return rule.reason == failure.reason
    if rule.exit_code is not None:
        return rule.exit_code == failure.exit_status
    try:
        return bool(rule.pattern and compile_expression(rule.pattern).search(failure.message))
    except UnboundedExpression:  # such documents are rejected now; a job accepted earlier goes on
        return False


def _text(failure: Failure) -> str:
    return f"attempt {failure.attempt}: {failure.reason}" + (f" at {failure.site}" if failure.site else "")


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB" if size_bytes else "unknown memory"


# Makes failures for the retry rules, in one place: from events as they arrive, and from the book.

PILOT_KILLED: LossReason = "pilot-killed"
UNHEARD: LossReason = "unheard"
RESCHEDULED: LossReason = "rescheduled"
DROPPED: LossReason = "dropped"

INPUT_REASONS: frozenset[Reason] = frozenset({"missing-input", "input-checksum"})
"""Reason of an attempt without its inputs: it is retried as soon as a package has made them again."""

OUTRUN: LossReason = "outrun"
HEALED: LossReason = "healed"
REGROUPED: LossReason = "regrouped"
FAILURE_MESSAGE_MAX = 1000
"""Characters of an exit message kept for each failure."""
_PLATFORM: Reason = "platform-failure"
_UNASKED: Reason = "preempted"


class End(Protocol):
    """How an attempt ended: the payload of the event, or the book's record of it."""

    @property
    def exit_code(self) -> str | None:
        """GASW's."""

    @property
    def exit_message(self) -> str | None:
        """The message for people."""

    @property
    def reason(self) -> str | None:
        """Ours."""

    @property
    def exit_status(self) -> int | None:
        """Of the process."""

    @property
    def signal(self) -> int | None:
        """That ended it."""


def failure_of(
    attempt: int,
    *,
    site: str,
    demand: Demand,
    remaining_seconds: float | None,
    lost_reason: str | None = None,
    end: End | None = None,
) -> Failure | None:
    """The failure of an attempt that reported its end or is believed to be over; None if it does not count.

    `lost_reason` says why it was given up, None that it was not. An attempt that was given up and then stopped stays what it
    was: a loss, or a blameless end. An agent that stops a wanted attempt without a reason has taken its slot away: that counts
    as preemption, which has a limit, or it could happen for ever.
    """
    is_reported = end is not None and not (end.exit_code == ExitCodeGasw.EXECUTION_CANCELED and end.reason is None)
    killed_pilot = False
    if end is not None and is_reported:
        reason: str = end.reason or "application-error"
    elif end is not None and lost_reason is None:
        reason = _UNASKED
    elif lost_reason in NOBODYS_FAULT:
        return None
    else:
        lost = lost_reason or UNHEARD
        reason = _PLATFORM if lost in (UNHEARD, PILOT_KILLED) else lost
        killed_pilot = lost == PILOT_KILLED
    report = end if is_reported else None
    return Failure(
        attempt=attempt,
        site=site,
        reason=reason,
        exit_status=report.exit_status if report is not None else None,
        signal=report.signal if report is not None else None,
        message=(report.exit_message or "")[:FAILURE_MESSAGE_MAX] if report is not None else "",
        memory_bytes=demand.memory_bytes,
        wall_seconds=demand.wall_seconds,
        remaining_seconds=remaining_seconds,
        killed_pilot=killed_pilot,
        with_pilot=report is None or report.exit_message == PILOT_WALL_OVER,
    )


def lacked_input(failures: Mapping[int, Failure]) -> bool:
    """Whether the latest failure of a package, by attempt, was a missing or damaged input."""
    return bool(failures) and failures[max(failures)].reason in INPUT_REASONS
