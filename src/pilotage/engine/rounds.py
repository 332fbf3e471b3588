"""One round of binding among jobs: who gets no room leaves it, and with them all who ask for the same.

Thousands of jobs may wait for one slot that has become free. When it is taken, all of them are told at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.engine.engine_state import EngineState
from pilotage.engine.jobs import JobState, QueueClass
from pilotage.engine.selection.pools import Pool
from pilotage.engine.state.queues import any_below

Kind = tuple[int, str, float] | Pool
"""A shape, whose, and how long it is expected to take; of classes that not every site would do for, their sites."""


class Round:
    """The classes of a round, by job. Those that could displace what is reserved stay in it, whatever is full."""

    __slots__ = ("_alike", "_full", "_left", "_private", "_state", "waiting")

    def __init__(self, state: EngineState, queues: Sequence[QueueClass]) -> None:
        """Begin with all of them."""
        self._state = state
        self.waiting: dict[JobState, list[QueueClass]] = {}
        self._left = dict.fromkeys(queues)
        self._full: set[Kind] = set()
        self._private = any(site.site.users for site in state.sites.by_name.values())
        self._alike: dict[Kind, list[QueueClass]] = {}
        waiting, alike = self.waiting, self._alike
        for queue in queues:
            waiting.setdefault(queue.job, []).append(queue)
            if (kind := self._kind(queue)) is not None:
                alike.setdefault(kind, []).append(queue)

    def _kind(self, queue: QueueClass) -> Kind | None:
        """What a class asks for; None where it is alone with that."""
        if queue.prefer or queue.avoid or queue.unfit:
            return None
        if queue.narrow:
            return self._state.placement.pool(queue)
        # Where sites are everybody's, none has room for one who asks for the same.
        return (queue.shape, queue.job.owner if self._private else "", queue.asked.run_seconds)

    @property
    def goes_on(self) -> bool:
        """Whether anybody is left in it."""
        return bool(self._left)

    def own(self, job: JobState) -> list[QueueClass]:
        """The classes of a job that are left in it."""
        return [queue for queue in self.waiting[job] if queue in self._left]

    def leave(self, queue: QueueClass) -> None:
        """A class gets nothing."""
        self._left.pop(queue, None)

    def is_full(self, queue: QueueClass) -> bool:
        """Whether there is no room for what a class asks."""
        return self._kind(queue) in self._full

    def leave_all_full(self) -> None:
        """Whoever asks where every site has as much as it may leaves before anybody's turn comes."""
        openings = self._state.placement
        for alike in [each for each in self._alike.values() if openings.is_full(each[0])]:
            self.fill(alike[0])

    def fill(self, queue: QueueClass) -> None:
        """No site has room for what a class asks: nor has any for those that ask for the same."""
        kind, state, left = self._kind(queue), self._state, self._left
        if kind is None or kind in self._full:
            return
        self._full.add(kind)
        below: dict[int, bool] = {}  # by priority of the job: all of them have one shape
        for each in self._alike.get(kind, ()):
            if each not in left:
                continue
            shape, level, job = each.shape, each.level, each.job
            if level[0] not in below:
                below[level[0]] = any_below(state.queues.reserved_counts, shape, level[0])
            if below[level[0]] or (len(job.reservations) > 1 and any_below(job.reservations, shape, level)):
                continue
            del left[each]
            if each.narrow and each.ready and job.open:
                state.placement.stick(each)
