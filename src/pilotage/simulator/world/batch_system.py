"""The batch system of a site: it queues what is submitted under our key, starts it, lists it, and fails in its own ways.

What it knows of a job and what really runs are two things: a listing can miss what runs, and one job can run twice.
Whoever listens hears from submissions and listings alone; nobody is told of an answer that did not come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from pilotage.model.exchange.reports import AnyReport, Gone, SiteSeen, SubmissionFailed, Submitted
from pilotage.model.site import Site
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultBox
from pilotage.simulator.world.randomness import Dice, Distribution

UNREACHABLE_SECONDS = (30.0, 1800.0)
DOWN_SECONDS = (60.0, 3600.0)
BLACK_HOLE_SECONDS = (60.0, 1800.0)
SECOND_START_SECONDS = (0.0, 300.0)
BLACK_HOLE_REASONS = ("platform-failure", "command-not-found", "application-error", "disk-full")


class Process(Protocol):
    """What was started, as far as a batch system cares: it can be killed."""

    def kill(self) -> None:
        """End it without a word."""
        ...


Launch = Callable[[str], Process]
"""Starts a process under the name of one instance of a job. When it ends, it says so to `BatchSystem.ended`."""


class _Job:
    __slots__ = (
        "forgotten",
        "instances",
        "key",
        "launch",
        "native_id",
        "over",
        "reason",
        "slips",
        "started",
        "starting",
    )

    def __init__(self, key: str, native_id: str, launch: Launch) -> None:
        self.key = key
        self.native_id = native_id
        self.launch = launch
        self.instances: dict[str, Process] = {}  # what runs, by name
        self.started = 0  # instances, ever
        self.starting = False  # once more, later
        self.slips = False  # it will be forgotten as soon as it starts
        self.forgotten = False  # listings do not have it, whatever it does
        self.over = False
        self.reason = ""  # how it ended


class BatchSystem:
    """One site's batch system. Everything it says goes to `report`."""

    def __init__(
        self,
        site: Site,
        *,
        schedule: Schedule,
        box: FaultBox,
        dice: Dice,
        queue: Distribution,
        report: Callable[[AnyReport], None],
        running_max: int = 1_000_000,
        queue_max: int = 1_000_000,
        poll_seconds: float = 30.0,
        nodes: Sequence[str] = (),
    ) -> None:
        """Take the site, how long a job queues, how many jobs run and are known at once, and its nodes; `begin` starts it."""
        self.site = site
        self._schedule = schedule
        self._box = box
        self._queue = queue
        self._numbers = dice.stream(f"batch/{site.name}")
        self._report = report
        self._running_max = running_max
        self._queue_max = queue_max
        self._poll_seconds = poll_seconds
        self._nodes = tuple(nodes)
        self._places = dice.stream(f"nodes/{site.name}")
        self._jobs: dict[str, _Job] = {}
        self._owners: dict[str, _Job] = {}  # by the name of what runs
        self._ready: deque[_Job] = deque()  # has queued long enough, and waits for a free place
        self._live = 0  # jobs that are not over
        self._running = 0
        self._untold: dict[str, _Job] = {}  # the next listing shows something new about them
        self._native_ids: list[str] = []
        self._unreachable_until = self._down_until = self._black_until = -1.0
        self._black_reason = ""
        self._unseen = False  # nothing has fallen into the hole yet

    # --- what the service does ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Have it listed every so often from now on."""
        self._schedule.after(self._poll_seconds, self._poll_again)

    def submit(self, key: str, launch: Launch) -> None:
        """Submit a job under our key, or find that it is there. Out of contact nothing is answered, even if it gets in."""
        reachable = self.reachable
        if not reachable and (self.down or self._numbers.random() < 0.5):
            return
        job = self._jobs.get(key)
        if job is None:
            if self._live >= self._queue_max:
                if reachable:
                    message = f"{self._live} jobs are queued or running, which is the limit"
                    failed = SubmissionFailed(site=self.site.name, key=key, reason="queue-full", message=message)
                    self._report(failed)
                return
            job = self._take(key, launch)
        if job.over or job.forgotten or not reachable:
            self._untold[key] = job
        if reachable:
            self._report(Submitted(site=self.site.name, key=key, native_id=job.native_id))

    def cancel(self, key: str) -> None:
        """Take a job out, whether it queues or runs; out of contact this does nothing."""
        job = self._jobs.get(key)
        if job is None or not self.reachable:
            return
        if job.over:
            self._untold[key] = job  # whoever asks does not know
        else:
            self._end(job, "cancelled")

    def node_for(self, named: Sequence[str]) -> str:
        """Where something is started: on any node, or on one of those that are named if it takes that; none: on one of its own."""
        nodes = self._nodes
        if named and self.site.places_nodes:
            nodes = tuple(node for node in nodes if any(fnmatchcase(node, name) for name in named))
        return self._places.choice(nodes) if nodes else ""

    def poll(self) -> None:
        """List the jobs, and report what is new: those it took without an answer, and those that are gone."""
        site = self.site.name
        if not self.reachable:
            self._report(SiteSeen(site=site, answers=False, message="down" if self.down else "no answer"))
            return
        self._report(SiteSeen(site=site, answers=True))
        if not self._untold:
            return
        untold, self._untold = self._untold, {}
        for key, job in untold.items():
            if job.over or job.forgotten:
                self._report(Gone(site=site, key=key, reason=job.reason or "not-listed"))
            else:
                self._report(Submitted(site=site, key=key, native_id=job.native_id))

    def relist(self) -> None:
        """Tell everything again with the next listing, as somebody who has just started must hear it."""
        self._untold = dict(self._jobs)

    # --- what processes know -----------------------------------------------------------------------------------------

    def ended(self, instance: str, reason: str = "ended") -> None:
        """A process is gone, however that came."""
        job = self._owners.pop(instance, None)
        if job is None:
            return
        del job.instances[instance]
        if not job.instances:
            self._running -= 1
            if not job.starting and not job.over:
                self._end(job, reason)
        self._start_ready()

    def black_hole(self) -> str:
        """Why everything fails here at the moment; empty when it does not."""
        if self._schedule.now >= self._black_until:
            return ""
        if self._unseen:
            self._unseen = False
            self._box.took("black_hole")
        return self._black_reason

    # --- what befalls it ---------------------------------------------------------------------------------------------

    @property
    def down(self) -> bool:
        """Whether the whole site is down."""
        return self._schedule.now < self._down_until

    @property
    def reachable(self) -> bool:
        """Whether it answers."""
        return self._schedule.now >= max(self._unreachable_until, self._down_until)

    @property
    def running(self) -> int:
        """How many jobs run."""
        return self._running

    @property
    def queued(self) -> int:
        """How many jobs are known that do not run."""
        return self._live - self._running

    def lose_contact(self, seconds: float) -> None:
        """Answer nothing for a time; what is queued or runs goes on."""
        self._unreachable_until = max(self._unreachable_until, self._schedule.now + seconds)

    def turn_black(self, seconds: float, reason: str = "platform-failure") -> None:
        """Let everything that starts here fail at once for a time."""
        self._black_until, self._black_reason = self._schedule.now + seconds, reason

    def go_down(self, seconds: float, *, keeps_queue: bool = True) -> None:
        """Lose everything that runs, and start and answer nothing for a time; the queue may be lost as well."""
        self._down_until = max(self._down_until, self._schedule.now + seconds)
        for job in list(self._jobs.values()):
            if not job.over and (job.instances or job.starting or not keeps_queue):
                self._end(job, "site-down")
        self._schedule.at(self._down_until, self._start_ready)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _poll_again(self) -> None:
        self._schedule.after(self._poll_seconds, self._poll_again)
        if not self._box.quiet:
            self._suffer()
        self.poll()

    def _suffer(self) -> None:
        box = self._box
        if box.strikes("site_down"):
            seconds = box.between("site_down", low=DOWN_SECONDS[0], high=DOWN_SECONDS[1])
            self.go_down(seconds, keeps_queue=self._numbers.random() < 0.5)
        if box.strikes("batch_unreachable"):
            low, high = UNREACHABLE_SECONDS
            self.lose_contact(box.between("batch_unreachable", low=low, high=high))
        if box.strikes("black_hole"):
            seconds = box.between("black_hole", low=BLACK_HOLE_SECONDS[0], high=BLACK_HOLE_SECONDS[1])
            self.turn_black(seconds, BLACK_HOLE_REASONS[int(self._numbers.random() * len(BLACK_HOLE_REASONS))])
            self._box.missed("black_hole")  # until something falls into it
            self._unseen = True

    def _take(self, key: str, launch: Launch) -> _Job:
        box = self._box
        native_id = str(1000 + len(self._native_ids))
        if self._native_ids and box.strikes("batch_reuses_id"):
            native_id = self._native_ids[int(self._numbers.random() * len(self._native_ids))]
        self._native_ids.append(native_id)
        job = self._jobs[key] = _Job(key, native_id, launch)
        self._live += 1
        queue_seconds = self._queue.draw(self._numbers)
        if not box.strikes("batch_forgets"):
            self._schedule.after(queue_seconds, self._get_ready, job)
        elif self._numbers.random() < 0.5:
            self._end(job, "not-listed")
        else:
            job.slips = True
            self._schedule.after(queue_seconds, self._get_ready, job)
        return job

    def _get_ready(self, job: _Job) -> None:
        if not job.over:
            self._ready.append(job)
            self._start_ready()

    def _start_ready(self) -> None:
        while self._ready and self._running < self._running_max and not self.down:
            job = self._ready.popleft()
            if job.over:
                if job.slips:
                    self._box.missed("batch_forgets")
                continue
            if self._box.strikes("batch_starts_twice"):
                low, high = SECOND_START_SECONDS
                job.starting = True
                self._schedule.after(
                    self._box.between("batch_starts_twice", low=low, high=high), self._start_again, job
                )
            if job.slips:
                job.forgotten = True
                self._untold[job.key] = job
            self._start(job)

    def _start_again(self, job: _Job) -> None:
        if job.over:
            self._box.missed("batch_starts_twice")
            return
        job.starting = False
        self._start(job)

    def _start(self, job: _Job) -> None:
        job.started += 1
        instance = f"{job.key}.{job.started}"
        if not job.instances:
            self._running += 1
        self._owners[instance] = job
        job.instances[instance] = job.launch(instance)

    def _end(self, job: _Job, reason: str) -> None:
        job.over, job.reason = True, reason
        self._live -= 1
        for process in list(job.instances.values()):
            process.kill()
        if not job.forgotten:  # else listings have missed it for long
            self._untold[job.key] = job
