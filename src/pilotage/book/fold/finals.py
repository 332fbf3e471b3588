"""The facts of ended packages that a starting engine needs, decoded without the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.registers import Register
from pilotage.book.rows.rows import AttemptFacts, EventRow, Keys, PackageFacts, PackageRow, StoredKey, StreamRow
from pilotage.model.events.events import SOURCE_RANKS
from pilotage.model.states import FINAL_NAMES, ExitCodeGasw

FINAL_ORDER: tuple[str, ...] = tuple(sorted(FINAL_NAMES))
"""The final states in a fixed order, for SQL."""
SURELY_OVER: tuple[str, ...] = ("CLEARED", "DONE")
"""The final states that a package never gets from its job."""


class FailedAttempt(NamedTuple):
    """An attempt that ended with a failure."""

    attempt: int
    site: str
    reason: str
    exit_status: int | None
    signal: int | None
    message: str
    began_at: float
    ended_at: float


class FinalPackage(NamedTuple):
    """A package that has ended by facts of its own, not because its job has."""

    stage: int
    line: int
    number: int
    state: str
    epoch: int
    granted: int  # the attempt whose outputs count; 0: none
    last_attempt: int  # the highest attempt number in any epoch; 0: none
    dropped: int  # the operation that dropped it; 0: it is not dropped
    held: int
    cause: str | None  # why it was aborted
    # Attempts that started and reported no end: number, site, pilot, why lost.
    unended: tuple[tuple[int, str, str, str], ...] = ()
    done_at: float = 0.0  # when it was granted
    disposed: bool = False  # the deletable outputs of its granted attempt were removed
    failures: tuple[FailedAttempt, ...] = ()  # of a package that was aborted, in its epoch until then


class _Brief(msgspec.Struct, gc=False):
    """The facts that tell whether an attempt may still be running, and why it failed."""

    site: str | None = None
    pilot: str | None = None
    lease_seconds: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    lost_reason: str | None = None
    disposed_at: float | None = None
    epoch: int = 1
    created_at: float | None = None
    exit_code: str | None = None
    exit_message: str | None = None
    exit_status: int | None = None
    signal: int | None = None
    reason: str | None = None
    early: dict[str, int] = {}


class _Known(msgspec.Struct, gc=False):
    """The decoded facts."""

    epoch: int = 1
    attempt: int | None = None
    done_at: float | None = None
    cancelled_at: float | None = None
    aborted_at: float | None = None
    cleared_at: float | None = None
    dropped: int = 0
    held: int = 0
    cause: str | None = None
    attempts: dict[int, _Brief] = {}
    keys: msgspec.Raw = msgspec.Raw(b"{}")


_decode = msgspec.json.Decoder(_Known).decode
_keys = msgspec.json.Decoder(Keys).decode


def is_over(facts: _Known | PackageFacts) -> bool:
    """Tell whether a package has ended by facts of its own; otherwise it follows its job."""
    return not facts.done_at is facts.cancelled_at is facts.aborted_at is facts.cleared_at is None


def read_finals(found: Iterable[tuple[int, int, int, str, str]]) -> Iterator[FinalPackage]:
    """Final packages from stage, line, number, state, and the text of their facts; without those that follow their job."""
    decode = _decode
    for stage, line, number, state, text in found:
        known = decode(text)
        if not is_over(known):
            continue
        attempts = known.attempts
        granted = known.attempt if known.done_at is not None else 0
        last = known.attempt if len(attempts) == 1 and known.attempt is not None else max(attempts, default=0)
        dropped = _keys(known.keys)[Register.DROP][0] if known.dropped else 0
        yield FinalPackage(
            stage, line, number, state, known.epoch, granted or 0, last, dropped, known.held, known.cause,
            tuple((at, each.site or "", each.pilot, each.lost_reason or "") for at, each in attempts.items() if each.finished_at is None
                  and each.pilot and (each.lease_seconds is not None or each.started_at is not None)),
            known.done_at or 0.0, granted in attempts and attempts[granted].disposed_at is not None,
            _failures(attempts, known.epoch, until=known.aborted_at) if known.aborted_at is not None else (),
        )  # fmt: skip


def _failures(
    attempts: Mapping[int, _Brief | AttemptFacts], epoch: int, *, until: float = math.inf
) -> tuple[FailedAttempt, ...]:
    return tuple(
        FailedAttempt(
            number, each.site or "", each.reason or "application-error", each.exit_status, each.signal,
            each.exit_message or "", each.started_at or each.created_at or 0.0, each.finished_at,
        )
        for number, each in attempts.items()
        if each.finished_at is not None and each.finished_at <= until and each.epoch == epoch and not each.early
        and each.exit_code != ExitCodeGasw.SUCCESS
        and (each.reason or each.exit_code != ExitCodeGasw.EXECUTION_CANCELED)
    )  # fmt: skip


def failed_attempts(facts: PackageFacts) -> tuple[FailedAttempt, ...]:
    """The failed attempts of a package in its epoch; not those that started early."""
    return _failures(facts.attempts, facts.epoch)


# Keys that are not stored: those of an attempt that was created, ended and granted, without other events of its package.
#
# Most packages end like this, without further events. Their keys are those of the three events at their positions: if
# another event arrives, they are read from there before the join.

_OWN = {Register.CREATED, Register.FINISHED, Register.GRANTED}


def leave_out(facts: PackageFacts) -> None:
    """Omit the keys of such a package; any other is unchanged."""
    attempt = _only_attempt(facts)
    # Three events, and three registers that only their own events set: each event has set one.
    if attempt is not None and {one for one, key in attempt.keys.items() if not isinstance(key, int)} == _OWN:
        attempt.keys = {}


def are_left_out(facts: PackageFacts) -> bool:
    """Tell whether the keys of a package are omitted: it has an attempt, but no keys."""
    attempt = _only_attempt(facts)
    return attempt is not None and not attempt.keys


def put_back(ledger: Ledger, rows: Iterable[PackageRow]) -> None:
    """Restore the omitted keys of some rows."""
    facts = [row.facts for row in rows if are_left_out(row.facts)]
    if not facts:
        return
    attempts = {position: _only_attempt(each) for each in facts for position in each.positions}
    events = list(ledger.rows_by_keys(EventRow, by=("position",), keys=[(position,) for position in attempts]))
    ids = {(event.stream_id,) for event in events}
    streams = {row.stream_id: row for row in ledger.rows_by_keys(StreamRow, by=("stream_id",), keys=ids)}
    for event in sorted(events, key=lambda event: event.position):
        stream, attempt = streams[event.stream_id], attempts[event.position]
        assert attempt is not None
        _put_back(attempt, event.type, (event.epoch, event.seen, SOURCE_RANKS[stream.source], event.n, stream.stream))


def _put_back(attempt: AttemptFacts, kind: str, key: StoredKey) -> None:
    keys = attempt.keys
    if kind == "AttemptCreated":
        keys[Register.CREATED] = key
        if attempt.pilot is not None:
            keys[Register.PILOT] = Register.CREATED
    elif kind == "AttemptFinished":
        keys[Register.FINISHED] = key
        if attempt.staged_position is not None:
            keys[Register.STAGED] = Register.FINISHED
        if attempt.node is not None:
            keys[Register.NODE] = Register.FINISHED
    elif kind == "CommitGranted":
        keys[Register.GRANTED] = key


def _only_attempt(facts: PackageFacts) -> AttemptFacts | None:
    if len(facts.positions) != 3 or len(facts.attempts) != 1:
        return None
    [attempt] = facts.attempts.values()
    return attempt if not attempt.reused else None
