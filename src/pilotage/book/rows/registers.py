"""Registers: each holds the value of the event with the greatest key that set it, whatever the order of arrival."""

from __future__ import annotations

from pilotage.book.rows.rows import AttemptFacts, AttemptKeys, Keys, StoredKey


class Register:
    """The registers of all rows, by their stored numbers."""

    # of an attempt
    CREATED = 1
    QUEUED = 2
    STARTED = 3
    SUSPECTED = 4  # or recovered, or lost: the latest of the three counts
    PHASE = 5
    STAGED = 6
    FINISHED = 7
    GRANTED = 8
    NODE = 9
    PILOT = 10
    STORED = 11
    DISPOSED = 12
    # of a job or a package
    REGISTERED = 20
    ACCEPTED = 21
    BOUND = 22
    CANCELLED = 23
    ABORTED = 24
    CLEARED = 25
    OPENED = 26
    HOLD = 27
    DROP = 28
    OWNER = 29
    ACCESS = 30
    REPLICAS = 31
    FORECAST = 32  # or the outcome: the latest of the two counts
    HEALING = 34
    # of a stage
    SHAPE = 40
    # of a pilot, a node or a site
    REQUESTED = 50
    SPOKE = 51
    ENDED = 52
    DESCRIBED = 53
    STANDING = 54
    STATUS = 55
    PROBED = 56
    LATENCIES = 57
    SUBMITTED = 58
    # of a cached file
    ORDERED = 60
    CONTENT = 61
    FAULT = 62
    REMOVAL = 63
    REMOVED = 64
    STALE = 65
    # of the knowledge of the service
    LEARNED = 70


def takes(keys: Keys, register: int, key: StoredKey) -> bool:
    """Tell whether an event sets a register; if so, store its key."""
    before = keys.get(register)
    if before is None or before < key:
        keys[register] = key
        return True
    return False


def holds(keys: AttemptKeys, register: int, key: StoredKey) -> bool:
    """Like `takes`, for an attempt, where a register may refer to another one that the same event set."""
    before = keys.get(register)
    if before is None:
        keys[register] = key
        return True
    if isinstance(before, int):
        before = _key(keys, before)
    if before >= key:
        return False
    for other, first in keys.items():
        if first == register:
            keys[other] = before  # that register keeps the earlier event
    keys[register] = key
    return True


def holds_too(keys: AttemptKeys, register: int, key: StoredKey, *, first: int) -> bool:
    """Tell whether an event sets a register besides its `first`. If it set both, the key is stored once."""
    before = keys.get(register)
    if before is not None and (_key(keys, before) if isinstance(before, int) else before) >= key:
        return False
    keys[register] = first if keys.get(first) is key else key
    return True


def _key(keys: AttemptKeys, register: int) -> StoredKey:
    found = keys[register]
    assert not isinstance(found, int)  # a first register has a key of its own
    return found


def created_by(attempt: AttemptFacts) -> StoredKey | None:
    """The key of the event that created an attempt, if known."""
    return _key(attempt.keys, Register.CREATED) if Register.CREATED in attempt.keys else None
