"""What follows from a package's failures: restart it and how, give it up, hold its job, or park it.

The verdict is a function of the whole failure history of an epoch, in whatever order it is told: an engine that starts
from the book comes to the same decision. A package's own rules go first, in order. A rule with `times` has a budget of its
own, outside the common cap; one without keeps the budget of the failure's reason: the common cap, or the bound of a reason
that is outside it. When every rule for a failure has acted its `times`, the package is given up; failures that no rule
is for are left to the table in `engine/retry/rules.py`. A package that was given up stays so until a new epoch begins.
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
from pilotage.model.states import PILOT_WALL_OVER, AbortCause, ExitCodeGasw, LossReason, Reason

__all__ = ["RULES", "Failure", "RestartSettings", "Row", "Verdict", "dry_run", "failures_max", "signature", "verdict"]

VerdictAction = Literal["restart", "give-up", "hold-job", "park"]

_FACTOR = 2.0  # of memory and time, where nobody said another
_MEMORY_BYTES_MAX = 2**53 - 1  # whatever the factor of a rule: an event can carry no more
_WALL_SECONDS_MAX = 1e9

_PATH = re.compile(r"(?:/[^\s/:;,'\"()<>]+)+/(?=[^\s/:;,'\"()<>])")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\b(?=[a-fA-F-]{0,40}[0-9])[0-9a-fA-F-]{8,}\b|[0-9]+(?:[.,][0-9]+)*")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of the current epoch that failed or was lost, and what it had been given."""

    attempt: int
    site: str
    reason: str
    exit_status: int | None = None
    signal: int | None = None
    message: str = ""
    memory_bytes: int = 0  # 0: not known, so what was declared or granted before
    wall_seconds: float = 0.0  # its own limit; 0: likewise
    remaining_seconds: float | None = None  # what was left of the pilot's time when it got the attempt
    killed_pilot: bool = False
    with_pilot: bool = False  # it ended because its pilot, or its batch job, did


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. The fields after `cause` say how a restart differs, also one after a hold or a park was released."""

    action: VerdictAction
    rule: str  # what decided: a reason of the table, `retry.rules[0]`, or the name of a bound
    message: str
    cause: AbortCause | None = None  # of giving up
    delay_seconds: float = 0.0
    avoid: tuple[str, ...] = ()  # sites, sorted
    prefer: Literal["", "here"] = ""  # "here": the site of the latest attempt that failed, if it can be had
    memory_bytes: int = 0  # 0: as declared
    wall_seconds: float = 0.0  # 0: as declared
    more_wall_than: float = 0.0  # seconds; only where more than this is left; 0: anywhere
    counted: int = 0  # counted attempts so far


def verdict(failures: Sequence[Failure], *, retry: Retry, demand: Demand, settings: RestartSettings) -> Verdict:
    """What follows from the failures of an epoch, at least one, each of another attempt."""
    if not failures:
        raise ValueError("a verdict needs a failure; nothing follows from none")
    history = _History(retry=retry, demand=demand, settings=settings)
    found: Verdict | None = None
    for failure in sorted(failures, key=lambda failure: failure.attempt):
        found = history.after(failure)
        if found.action == "give-up":
            break
    assert found is not None
    return found


def signature(failure: Failure) -> str:
    """What makes two failures identical: reason, exit status, signal, and the message without what varies by itself.

    Numbers, addresses and the folders of paths are left out; the last part of a path stays, because it names what failed.
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
    """What would be done after the first, second … such failure, at so many sites in turn, or always at another one."""
    history = _History(retry=retry, demand=demand, settings=settings)
    found: list[Verdict] = []
    while len(found) < times and not (found and found[-1].action == "give-up"):
        number = len(found) + 1
        site = f"site-{(number - 1) % sites + 1 if sites else number}"
        failure = Failure(attempt=number, site=site, reason=reason, exit_status=exit_status, message=message)
        found.append(history.after(failure))
    return found


def failures_max(*, retry: Retry, settings: RestartSettings) -> int:
    """After so many failures at the latest, whatever they are, the verdict was no restart."""
    bounds = (
        retry.attempts_max or settings.attempts_max,
        settings.platform_failures_max,
        settings.missing_inputs_max,
        settings.preemptions_max,
    )
    # Each bound allows one restart less than it says; each rule with `times` as many as it says.
    return sum(max(0, bound - 1) for bound in bounds) + sum(rule.times or 0 for rule in retry.rules) + 1


class _History:
    """The failures so far, folded: what was used up, and how the next attempt has to differ."""

    def __init__(self, *, retry: Retry, demand: Demand, settings: RestartSettings) -> None:
        self._retry = retry
        self._demand = demand
        self._settings = settings
        self._attempts_max = retry.attempts_max or settings.attempts_max
        self._failures: list[Failure] = []
        self._by_default: list[Failure] = []  # those that the table answered
        self._used: Counter[str] = Counter()  # failures of each budget
        self._acted: Counter[int] = Counter()  # how often each of the package's rules decided
        self._counted = 0
        self._pilot_kills = 0
        self._rounds = 0  # how often every other site had been tried
        self._avoid: set[str] = set()
        self._memory_bytes = 0
        self._wall_seconds = 0.0
        self._more_wall_than = 0.0

    def after(self, failure: Failure) -> Verdict:
        """Take one more failure in, and say what follows."""
        self._failures.append(failure)
        found = self._judged(failure)
        self._pilot_kills += failure.killed_pilot
        # Above the package's own rules: what kills pilots harms other packages too.
        harmful = failure.killed_pilot and self._pilot_kills >= self._settings.pilot_kills_max
        if not harmful or found.action == "give-up":
            return found
        message = f"{_told(failure)}: {self._pilot_kills} pilots died under it; look at it before it is released"
        return msgspec.structs.replace(found, action="park", rule="pilot-kills", message=message)

    def _judged(self, failure: Failure) -> Verdict:
        """By the first of the package's rules that is for the failure and not used up, or by the table."""
        name, row = row_of(failure.reason)
        matching = [at for at, rule in enumerate(self._retry.rules) if _is_for(rule, failure)]
        for at in matching:
            rule = self._retry.rules[at]
            if rule.times is None or self._acted[at] < rule.times:
                self._acted[at] += 1
                return self._by_rule(failure, row, at)
        if matching:
            spent = f"retry.rules[{matching[-1]}]"
            return self._give_up(
                spent, "retries-exhausted", f"{_told(failure)}: its rules have acted as often as allowed"
            )
        return self._by_table(failure, name, row)

    def _by_rule(self, failure: Failure, row: Row, at: int) -> Verdict:
        """What a rule of the package says."""
        rule, name = self._retry.rules[at], f"retry.rules[{at}]"
        if rule.action == "hold-job":
            return self._verdict("hold-job", name, f"{_told(failure)}: the package's rules hold the job")
        if rule.times is None:
            self._draw(row)
        if rule.action == "give-up":
            return self._give_up(name, "permanent-failure", f"{_told(failure)}: the package's rules give up")
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
        """What the default row says."""
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
        """Count a failure against the common cap, or against the bound of a reason that is outside it."""
        if row.counted:
            self._counted += 1
        else:
            self._used[row.budget] += 1

    def _over_cap(self, failure: Failure, row: Row) -> Verdict | None:
        if not row.counted or self._counted < self._attempts_max:
            return None
        message = f"{_told(failure)}, after {self._counted} counted attempts of at most {self._attempts_max}"
        return self._give_up("attempts-max", "retries-exhausted", message)

    def _over_budget(self, failure: Failure, name: str, row: Row) -> Verdict | None:
        if not row.budget or row.doubles:
            return None
        used, allowed = self._used[row.budget], int(getattr(self._settings, row.budget))
        if row.budget == "application_errors_max":
            # Who says how often to try means it of what the program does, above all.
            allowed = max(allowed, self._retry.attempts_max or 0)
        if used < allowed:
            return None
        return self._give_up(name, row.cause, f"{_told(failure)}, number {used} of its kind of at most {allowed}")

    def _repeats(self, failure: Failure, row: Row) -> Verdict | None:
        """Whether the program itself is to blame: it failed identically at another site."""
        if row.budget != "application_errors_max":
            return None
        elsewhere = [one for one in self._by_default if one.site != failure.site and one.reason == failure.reason]
        mark = signature(failure) if elsewhere else ""
        for one in elsewhere:
            if signature(one) == mark:
                message = (
                    f"{_told(failure)}, and identically at {one.site}: it would fail anywhere; mend it, then restart it"
                )
                return self._give_up("repeats-identically", "permanent-failure", message)
        return None

    def _more_memory(
        self, failure: Failure, name: str, *, factor: float = _FACTOR, doublings: int | None = None
    ) -> Verdict:
        """Grant more memory; the table's own rule at most so many times twice what was declared."""
        declared = self._demand.memory_bytes
        had = failure.memory_bytes or max(self._memory_bytes, declared)
        granted = min(had * factor, _MEMORY_BYTES_MAX)
        if doublings is not None:
            base = declared or next((one.memory_bytes for one in self._failures if one.memory_bytes), 0)
            ceiling = base * 2**doublings
            if had >= ceiling if had else self._used["memory_doublings_max"] > doublings:
                message = f"{_told(failure)} with {_mebibytes(had)}: its memory was doubled as often as allowed"
                return self._give_up(name, "retries-exhausted", message)
            granted = min(granted, ceiling)
        if not had:
            # Nobody said how much it had, so there is nothing to multiply; a larger node may do.
            return self._restart(
                failure, name, "elsewhere", how="again elsewhere; declare its memory, so that it can be given more"
            )
        self._memory_bytes = max(self._memory_bytes, math.ceil(granted))
        memory = _mebibytes(max(self._memory_bytes, declared))
        return self._restart(failure, name, "more-memory", how=f"again with {memory} of memory")

    def _more_time(
        self, failure: Failure, name: str, *, factor: float = _FACTOR, doublings: int | None = None
    ) -> Verdict:
        """Raise the time limit; where there was none, ask for a place with so much more time left."""
        had = self._limit(failure)
        granted = min(had * factor, _WALL_SECONDS_MAX)
        if not had and failure.reason == "looping":
            message = f"{_told(failure)}: it has no time limit that could be raised, and would loop again"
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
                message = f"{_told(failure)} with a limit of {had:,.0f} s, which was doubled as often as allowed"
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
        """Restart with what is different this time."""
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
            elif self._retry.attempts_max:  # which is meant of a program that hangs now and then, too
                how = f"again, although its own limit of {had:,.0f} s ended it"
            else:
                message = f"{_told(failure)}: its own limit of {had:,.0f} s ended it, and would again"
                return self._give_up(name, "permanent-failure", f"{message}; declare a longer one, then restart it")
        found = self._verdict("restart", name, f"{_told(failure)}: {how}")
        return msgspec.structs.replace(found, delay_seconds=delay, prefer="here" if answer == "again" else "")

    def _go_elsewhere(self, site: str, *, pauses: bool) -> float:
        """Avoid one more site; the pause to make before the next attempt."""
        if site not in self._avoid:
            self._avoid |= {site} - {""}
            return 0.0
        # It came back to an avoided site, so there was no other: a new round begins.
        self._avoid = {site}
        self._rounds += 1
        return self._delay(self._rounds) if pauses else 0.0

    def _time_it_had(self, failure: Failure) -> float:
        """What ended it first: the pilot's end, or its own limit."""
        known = (failure.remaining_seconds, self._limit(failure) or None)
        return min((seconds for seconds in known if seconds is not None), default=0.0)

    def _delay(self, turn: int) -> float:
        """A pause that grows with each turn, up to a bound."""
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
    """Whether a rule of the package is for this failure."""
    if rule.reason:
        return rule.reason == failure.reason
    if rule.exit_code is not None:
        return rule.exit_code == failure.exit_status
    try:
        return bool(rule.pattern and compile_expression(rule.pattern).search(failure.message))
    except (
        UnboundedExpression
    ):  # documents that say so are refused now; a job that was taken before is not stopped by it
        return False


def _told(failure: Failure) -> str:
    return f"attempt {failure.attempt}: {failure.reason}" + (f" at {failure.site}" if failure.site else "")


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB" if size_bytes else "unknown memory"


# The failures of a package as the restart rules see them, made in one place: from events as they come, and from the
# book.

PILOT_KILLED: LossReason = "pilot-killed"
UNHEARD: LossReason = "unheard"
RESCHEDULED: LossReason = "rescheduled"
DROPPED: LossReason = "dropped"

INPUT_REASONS: frozenset[Reason] = frozenset({"missing-input", "input-checksum"})
"""Why an attempt fails that could not have its inputs: it is tried again at once when a package has made them anew."""

OUTRUN: LossReason = "outrun"
_NOBODYS_FAULT = (RESCHEDULED, DROPPED, OUTRUN)
_MESSAGE_MAX = 1000  # characters of an exit message that are remembered of each failure
_PLATFORM: Reason = "platform-failure"
_UNASKED: Reason = "preempted"


class End(Protocol):
    """How an attempt ended: the payload that says so, or what the book has of it."""

    @property
    def exit_code(self) -> str | None:
        """GASW's."""

    @property
    def exit_message(self) -> str | None:
        """What was said of it."""

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
    """The failure that an attempt is, which has told its end or is only believed to be over; None where it counts for nothing.

    `lost_reason` says why nobody waited for it, None that somebody did. What nobody waited for and was stopped is what it
    was before: a loss, or nobody's fault. An agent that stops what somebody waits for and gives no reason has taken the
    place away: that is counted as being preempted, which has a bound, or it could be done for ever.
    """
    told = end is not None and not (end.exit_code == ExitCodeGasw.EXECUTION_CANCELED and end.reason is None)
    killed_pilot = False
    if end is not None and told:
        reason: str = end.reason or "application-error"
    elif end is not None and lost_reason is None:
        reason = _UNASKED
    elif lost_reason in _NOBODYS_FAULT:
        return None
    else:
        lost = lost_reason or UNHEARD
        reason = _PLATFORM if lost in (UNHEARD, PILOT_KILLED) else lost
        killed_pilot = lost == PILOT_KILLED
    said = end if told else None
    return Failure(
        attempt=attempt,
        site=site,
        reason=reason,
        exit_status=said.exit_status if said is not None else None,
        signal=said.signal if said is not None else None,
        message=(said.exit_message or "")[:_MESSAGE_MAX] if said is not None else "",
        memory_bytes=demand.memory_bytes,
        wall_seconds=demand.wall_seconds,
        remaining_seconds=remaining_seconds,
        killed_pilot=killed_pilot,
        with_pilot=said is None or said.exit_message == PILOT_WALL_OVER,
    )


def lacked_input(failures: Mapping[int, Failure]) -> bool:
    """Whether the latest of the failures of a package, by attempt, was that an input was missing or damaged."""
    return bool(failures) and failures[max(failures)].reason in INPUT_REASONS
