"""Short lives: packages of which nothing is told but that they were begun once, and that they ended well.

Most packages are so, and their row follows from their two or three events at a glance: each register is set once, nothing
competes for it, and there is only one state that it can be. So the row is made of them at once, without what all others
need: registers that are compared, facts that are added one by one, and a state that is settled from them. Whatever else is
told of a package, before, beside or after, goes that longer way, which comes to the same row. A property test holds the
two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern

import msgspec

from pilotage.book.codec import Checked
from pilotage.book.ledger import PackageKey
from pilotage.book.registers import Register
from pilotage.book.rows import AttemptKeys, StoredKey
from pilotage.book.settle import DONE, RUNNING
from pilotage.book.short_rows import Begun, ShortAttempt, ShortFacts, ShortRow
from pilotage.book.stage_work import StageWork
from pilotage.model.events import SOURCE_RANKS
from pilotage.model.outcomes import ExitCodeGasw
from pilotage.model.payloads import AttemptCreated, AttemptFinished, CommitGranted

_encode_into = msgspec.json.Encoder().encode_into
_SUCCESS = ExitCodeGasw.SUCCESS
_SUCCESS_NAME = _SUCCESS.value
# These run for most packages there are: names that need not be looked up, and as few steps as possible.
_CREATED, _PILOT = Register.CREATED, Register.PILOT


class ShortLives:
    """The packages of one batch whose life is short, as far as it has come."""

    __slots__ = ("_buffer", "_first", "_fresh", "begun", "ended", "rows")

    def __init__(self, fresh: Sequence[Checked], *, first: int) -> None:
        """Look at fresh events, which are stored from the position `first` on; without any, no life is taken for short."""
        self._fresh = fresh
        self._first = first
        self._buffer = bytearray(4096)
        self.rows: list[ShortRow] = []  # of packages that had none,
        self.ended: list[ShortRow] = []  # and of those that had one, since they were begun
        self.begun: dict[PackageKey, Begun] = {}  # those of the first that have not ended yet

    def begin(self, key: PackageKey, told: Sequence[int], stage: StageWork) -> bool:
        """Whether the events that `told` numbers are a short life, or its beginning, of a package without a row.

        If they are, it has a row now, and counts.
        """
        count = len(told)
        if not self._fresh or (count != 1 and count != 3):
            return False
        one = self._fresh[told[0]]
        event, data = one.event, one.data
        if (
            type(data) is not AttemptCreated
            or event.epoch != 1
            or not event.time  # which statistics take for a time that nobody knows
            or data.lease_seconds is None
            or data.replaces is not None
            or data.replica
            or data.memory_bytes is not None
            or data.wall_seconds is not None
            or data.drop_revision
        ):  # it does not begin with a lease, or with something out of the ordinary
            return False
        job_id, stage_number, line, place = key
        activity, number = stage.shape.activity(line, place), event.attempt
        if activity is None or number is None:
            return False
        created, position = event.time, self._first + told[0]
        # Of those that are remembered many have the same few names.
        site, pilot = intern(data.site), data.pilot
        if pilot is not None:
            pilot = intern(pilot)
        begun = Begun(
            number, site, activity, pilot, data.lease_seconds, data.remaining_seconds, created, position, stage.known
        )
        if count == 1:
            set_by: StoredKey = (1, event.seen, SOURCE_RANKS[event.source], event.n, event.stream)
            attempt = ShortAttempt(
                site, pilot, None, data.lease_seconds, data.remaining_seconds, created, keys=_keys(data, set_by)
            )  # fmt: skip
            facts: ShortFacts | None = ShortFacts(
                RUNNING, activity, site, None, number, None, 1, 1, created, created, None, created, created, stage.known_text,
                {number: attempt}, [position],
            )  # fmt: skip
            self.begun[key] = begun
        else:
            facts = self._ended(begun, told[1], told[2], stage)
        if facts is None:
            return False
        stage.began += 1
        lives = stage.lives
        lives.began.append(created)
        lives.began_in.append(lives.group(site, activity))
        _encode_into(facts, self._buffer)
        self.rows.append((job_id, stage_number, line, place, facts.state, site, self._buffer.decode()))
        return True

    def end(self, key: PackageKey, begun: Begun, told: Sequence[int], stage: StageWork) -> bool:
        """The same of the two events that end a short life, which has a row from its beginning."""
        if not self._fresh or len(told) != 2 or begun.counted_with != stage.known:
            return False
        facts = self._ended(begun, told[0], told[1], stage)
        if facts is None:
            return False
        _encode_into(facts, self._buffer)
        job_id, stage_number, line, place = key
        self.ended.append((job_id, stage_number, line, place, DONE, facts.site, self._buffer.decode()))
        return True

    def _ended(self, begun: Begun, last: int, granted: int, stage: StageWork) -> ShortFacts | None:
        """A package with the end and the grant of its attempt, which counts; None where the two are something else."""
        number = begun.attempt
        end, grant = self._fresh[last], self._fresh[granted]
        data, event, grant_event = end.data, end.event, grant.event
        if (
            type(data) is not AttemptFinished
            or type(grant.data) is not CommitGranted
            or event.attempt != number
            or grant_event.attempt != number
            or event.epoch != 1
            or grant_event.epoch != 1
            or data.exit_code is not _SUCCESS
            or data.exit_message
            or data.reason is not None
            or data.signal is not None
            or not grant_event.time
        ):
            return None
        position, node = self._first + last, data.node
        site, activity, created_at = begun.site, begun.activity, begun.created_at
        finished_at, granted_at = event.time, grant_event.time
        staged_at = staged_position = None
        if data.manifest is not None:
            staged_at, staged_position = finished_at, position
        attempt = ShortAttempt(  # whose keys are left out
            site, begun.pilot, node, begun.lease_seconds, begun.remaining_seconds, created_at, staged_at,
            staged_position, finished_at, position, granted_at, _SUCCESS_NAME, data.exit_status, data.peak_memory_bytes,
            data.peak_memory_below_bytes, data.cpu_seconds, data.cpu_user_seconds, data.cpu_system_seconds,
            data.read_bytes, data.written_bytes,
        )  # fmt: skip
        stage.granted += 1
        lives = stage.lives
        lives.granted_in.append(lives.group(site, activity))
        lives.finished.append(finished_at)
        lives.granted.append(granted_at)
        lives.granted_since.append(created_at)
        return ShortFacts(
            DONE, activity, site, node, number, _SUCCESS_NAME, 1, 1, created_at, created_at, granted_at, granted_at,
            max(created_at, finished_at, granted_at), stage.known_text, {number: attempt},
            [begun.position, position, self._first + granted],
        )  # fmt: skip


def _keys(created: AttemptCreated, key: StoredKey) -> AttemptKeys:
    """The registers that the beginning of an attempt sets."""
    return {_CREATED: key} if created.pilot is None else {_CREATED: key, _PILOT: _CREATED}
