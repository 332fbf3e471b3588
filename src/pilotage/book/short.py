"""Short lives: packages of which nothing is told but that they were begun once, and that they ended well.

Most packages are so, and their row follows from their two or three events at a glance: each register is set once, nothing
competes for it, and there is only one state that it can be. So the row is made of them at once, without what all others
need: registers that are compared, facts that are added one by one, and a state that is settled from them. Whatever else is
told of a package, before, beside or after, goes that longer way, which comes to the same row. A property test holds the
two together.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.book.bins import NEVER
from pilotage.book.codec import Checked
from pilotage.book.intake import Fresh
from pilotage.book.ledger import PackageKey
from pilotage.book.registers import Register
from pilotage.book.rows import AttemptKeys, JobRow
from pilotage.book.settle import DONE, RUNNING
from pilotage.book.short_rows import ShortAttempt, ShortFacts, ShortRow
from pilotage.book.stage_work import StageWork
from pilotage.book.statistics import Observations
from pilotage.model.events import SOURCE_RANKS
from pilotage.model.outcomes import ExitCodeGasw
from pilotage.model.payloads import AttemptCreated, AttemptFinished, CommitGranted

_encode_into = msgspec.json.Encoder().encode_into
_SUCCESS = ExitCodeGasw.SUCCESS
_SUCCESS_NAME = _SUCCESS.value
# These run for most packages there are: names that need not be looked up, and as few steps as possible.
_CREATED, _PILOT, _FINISHED = Register.CREATED, Register.PILOT, Register.FINISHED
_STAGED, _NODE, _GRANTED = Register.STAGED, Register.NODE, Register.GRANTED


class ShortLives:
    """The packages of one batch whose life is short, as far as it has come."""

    __slots__ = ("_buffer", "_fresh", "_observations", "_position", "begun", "ended", "rows")

    def __init__(self, fresh: Sequence[Fresh], *, position: int, observations: Observations) -> None:
        """Look at fresh events, which are stored from behind a position on; without any, no life is taken for short."""
        self._fresh = fresh
        self._position = position + 1
        self._observations = observations
        self._buffer = bytearray(4096)
        self.rows: dict[PackageKey, ShortRow] = {}  # of packages that had none,
        self.ended: dict[PackageKey, ShortRow] = {}  # and of those that had one, since they were begun
        self.begun: dict[PackageKey, ShortFacts] = {}  # those of the first that have not ended yet

    def begin(self, key: PackageKey, told: Sequence[int], job: JobRow, stage: StageWork) -> bool:
        """Whether the events that `told` numbers are a short life, or its beginning, of a package without a row.

        If they are, it has a row now, and counts.
        """
        count = len(told)
        if not self._fresh or (count != 1 and count != 3):
            return False
        first = self._fresh[told[0]][0]
        attempt = _begun(first)
        activity = stage.shape.activity(key[2], key[3]) if attempt is not None else None
        number, created = first.event.attempt, first.event.time
        if attempt is None or activity is None or number is None:
            return False
        known = (job.submitted_at or NEVER, job.accepted_at or NEVER)
        position = self._position
        if count == 1:
            facts = ShortFacts(
                RUNNING, activity, attempt.site, None, number, None, 1, 1, created, created, None, created, created,
                known, {number: attempt}, [position + told[0]],
            )  # fmt: skip
            milestones = (known[0], known[1], created, NEVER, created, NEVER, NEVER, NEVER, NEVER)
            self.begun[key] = facts
        else:
            _, second, third = told
            ended = self._ended(attempt, number, second, third)
            if ended is None:
                return False
            positions = [position + told[0], position + second, position + third]
            facts = _done(ended, number, activity, known, created, positions)
            stage.lived += 1
            milestones = (known[0], known[1], created, NEVER, created, facts.entered_at, NEVER, NEVER, NEVER)
            _tell_of_end(job, ended)
        stage.begun += 1
        if facts.updated_at > job.updated_at:
            job.updated_at = facts.updated_at
        if job.started_at is None or created < job.started_at:
            job.started_at = created
        self.rows[key] = (*key, facts.state, attempt.site, self._written(facts))
        self._observations.add(milestones, attempt.site, activity, None)
        return True

    def end(self, key: PackageKey, before: ShortFacts, told: Sequence[int], job: JobRow, stage: StageWork) -> bool:
        """The same of the two events that end a short life, which has a row from its beginning."""
        known = before.counted_with
        if (
            not self._fresh
            or len(told) != 2
            or before.done_at is not None
            or known is None
            or known[0] != (job.submitted_at or NEVER)
            or known[1] != (job.accepted_at or NEVER)
        ):
            return False
        number, activity, created = before.attempt, before.activity, before.ready_at
        first, second = told
        ended = self._ended(before.attempts[number], number, first, second)
        if ended is None:
            return False
        position = self._position
        positions = [*before.positions, position + first, position + second]
        facts = _done(ended, number, activity, known, before.updated_at, positions)
        stage.ended += 1
        if facts.updated_at > job.updated_at:
            job.updated_at = facts.updated_at
        _tell_of_end(job, ended)
        self.ended[key] = (*key, DONE, ended.site, self._written(facts))
        submitted, accepted = known
        self._observations.add(
            (submitted, accepted, created, NEVER, created, facts.entered_at, NEVER, NEVER, NEVER),
            ended.site,
            activity,
            (submitted, accepted, created, NEVER, created, NEVER, NEVER, NEVER, NEVER),
        )
        return True

    def _written(self, facts: ShortFacts) -> str:
        """Facts as they are stored: written while they are at hand, and not looked at again."""
        _encode_into(facts, self._buffer)
        return self._buffer.decode()

    def _ended(self, begun: ShortAttempt, number: int, last: int, granted: int) -> ShortAttempt | None:
        """An attempt with its end and its grant; None where the two events are something else."""
        finished, grant = self._fresh[last][0], self._fresh[granted][0]
        data, event, grant_event = finished.data, finished.event, grant.event
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
        position, time, node = self._position + last, event.time, data.node
        keys = begun.keys.copy()
        keys[_FINISHED] = (1, event.seen, SOURCE_RANKS[event.source], event.n, event.stream)
        staged_at = staged_position = None
        if data.manifest is not None:
            keys[_STAGED], staged_at, staged_position = _FINISHED, time, position
        if node is not None:
            keys[_NODE] = _FINISHED
        keys[_GRANTED] = (1, grant_event.seen, SOURCE_RANKS[grant_event.source], grant_event.n, grant_event.stream)
        return ShortAttempt(
            begun.site, begun.pilot, node, begun.lease_seconds, begun.remaining_seconds, begun.created_at, staged_at,
            staged_position, time, position, grant_event.time, _SUCCESS_NAME, data.exit_status, data.peak_memory_bytes,
            data.peak_memory_below_bytes, data.cpu_seconds, data.cpu_user_seconds, data.cpu_system_seconds,
            data.read_bytes, data.written_bytes, keys,
        )  # fmt: skip


def _begun(one: Checked) -> ShortAttempt | None:
    """An attempt that begins with a lease and with nothing out of the ordinary."""
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
    ):
        return None
    keys: AttemptKeys = {_CREATED: (1, event.seen, SOURCE_RANKS[event.source], event.n, event.stream)}
    if data.pilot is not None:
        keys[_PILOT] = _CREATED
    return ShortAttempt(
        data.site, data.pilot, None, data.lease_seconds, data.remaining_seconds, event.time, keys=keys
    )  # fmt: skip


def _done(
    attempt: ShortAttempt,
    number: int,
    activity: str,
    known: tuple[float, float],
    updated_at: float,
    positions: list[int],
) -> ShortFacts:
    """The package of an attempt that ended; `updated_at` says when it was last heard of before that."""
    created, finished, granted = attempt.created_at, attempt.finished_at, attempt.granted_at
    assert finished is not None
    assert granted is not None
    if finished > updated_at:
        updated_at = finished
    if granted > updated_at:
        updated_at = granted
    return ShortFacts(
        DONE, activity, attempt.site, attempt.node, number, _SUCCESS_NAME, 1, 1, created, created, granted, granted,
        updated_at, known, {number: attempt}, positions,
    )  # fmt: skip


def _tell_of_end(job: JobRow, attempt: ShortAttempt) -> None:
    """When the job first ran, if that was by a clock that was behind, and when it last ended something."""
    finished, granted, started = attempt.finished_at, attempt.granted_at, job.started_at
    assert finished is not None
    assert granted is not None
    if started is None or finished < started or granted < started:
        job.started_at = min(finished, granted)
    if job.finished_at is None or granted > job.finished_at:
        job.finished_at = granted
