"""What an engine that starts must know of a package that is over, read from its facts without reading all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.registers import Register
from pilotage.book.rows.rows import AttemptFacts, EventRow, Keys, PackageFacts, PackageRow, StoredKey, StreamRow
from pilotage.model.events.events import SOURCE_RANKS
from pilotage.model.states import FINAL_NAMES

FINAL_ORDER: tuple[str, ...] = tuple(sorted(FINAL_NAMES))
"""The final states in a fixed order, for statements that name them."""
SURELY_OVER: tuple[str, ...] = ("CLEARED", "DONE")
"""The final states that a package is never in because its job is."""


class FinalPackage(NamedTuple):
    """A package that is over by facts of its own, not because its job is."""

    stage: int
    line: int
    number: int
    state: str
    epoch: int
    granted: int  # the attempt whose outputs are the package's; 0: none
    last_attempt: int  # the highest number that an attempt ever had, in any epoch; 0: none was made
    dropped: int  # the operation that dropped it; 0: it is not
    held: int
    cause: str | None  # why it was given up
    # Attempts that held a lease and told no end: number, site, pilot, why lost.
    unended: tuple[tuple[int, str, str, str], ...] = ()
    done_at: float = 0.0  # when it was granted


class _Brief(msgspec.Struct, gc=False):
    """Of an attempt, whether it may still be running somewhere."""

    site: str | None = None
    pilot: str | None = None
    lease_seconds: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    lost_reason: str | None = None


class _Known(msgspec.Struct, gc=False):
    """The few facts that are read."""

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
    """Whether a package is over by facts of its own; one that is not may only follow its job."""
    return not facts.done_at is facts.cancelled_at is facts.aborted_at is facts.cleared_at is None


def read_finals(found: Iterable[tuple[int, int, int, str, str]]) -> Iterator[FinalPackage]:
    """Final packages from stage, line, number, state, and the text of their facts; those that follow their job are left out."""
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
            known.done_at or 0.0,
        )  # fmt: skip


# Keys that are not stored: those of an attempt that was begun, ended and granted, with nothing else told of its
# package.
#
# Most packages come to that, and are never told of again. Their keys are those of the three events at their
# positions: if one is told of again, they are read back from there before anything is joined.

_OWN = {Register.CREATED, Register.FINISHED, Register.GRANTED}


def leave_out(facts: PackageFacts) -> None:
    """Leave the keys of such a package out; of any other nothing is changed."""
    attempt = _only_attempt(facts)
    # Three events, and three registers that none but an event of its own sets: each event has set one.
    if attempt is not None and {one for one, key in attempt.keys.items() if not isinstance(key, int)} == _OWN:
        attempt.keys = {}


def are_left_out(facts: PackageFacts) -> bool:
    """Whether the keys of a package are left out: what is known of an attempt has set a register."""
    attempt = _only_attempt(facts)
    return attempt is not None and not attempt.keys


def put_back(ledger: Ledger, rows: Iterable[PackageRow]) -> None:
    """Put the keys back that are left out of some rows."""
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
