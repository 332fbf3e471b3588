"""Keys that are not stored: those of an attempt that was begun, ended and granted, with nothing else told of its package.

Most packages come to that, and are never told of again. Their keys are those of the three events at their positions: if
one is told of again, they are read back from there before anything is joined.
"""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.book.ledger import Ledger
from pilotage.book.registers import Register
from pilotage.book.rows import AttemptFacts, EventRow, PackageFacts, PackageRow, StoredKey, StreamRow
from pilotage.model.events import SOURCE_RANKS

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
