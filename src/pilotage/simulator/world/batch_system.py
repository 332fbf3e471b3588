"""The batch system of a site: queues, starts and lists batch jobs with our keys, and fails in its own ways.

Its records and what really runs may differ: a listing can miss a running job, and one job can run twice. The service hears
only the results of submissions and listings; a lost answer is not reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from pilotage.model.exchange.reports import AnyReport, Gone, SiteSeen, SubmissionFailed, Submitted
from pilotage.model.site import Site
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector
from pilotage.simulator.world.randomness import Dice, Distribution

UNREACHABLE_SECONDS = (30.0, 1800.0)
DOWN_SECONDS = (60.0, 3600.0)
BLACK_HOLE_SECONDS = (60.0, 1800.0)
SECOND_START_SECONDS = (0.0, 300.0)
BLACK_HOLE_REASONS = ("platform-failure", "command-not-found", "application-error", "disk-full")


class Process(Protocol):
    """A started process, as far as a batch system cares: it can be killed."""

    def kill(self) -> None:
        """End it at once."""
        ...


Launch = Callable[[str], Process]
"""Starts a process under the name of one instance of a job. At its end the process calls `BatchSystem.ended`."""


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
        "submitting",
    )

    def __init__(self, key: str, native_id: str, launch: Launch) -> None:
        self.key = key
        self.native_id = native_id
        self.launch = launch
        self.instances: dict[str, Process] = {}  # running processes, by name
        self.started = 0  # number of instances so far
        self.starting = False  # it will start once more
        self.submitting = False  # not accepted yet
        self.slips = False  # it will be forgotten as soon as it starts
        self.forgotten = False  # missing in listings, whatever it does
        self.over = False
        self.reason = ""  # how it ended


class BatchSystem:
    """One site's batch system. Its reports go to `report`."""

    def __init__(
        self,
        site: Site,
        *,
        schedule: Schedule,
        injector: FaultInjector,
        dice: Dice,
        queue: Distribution,
        report: Callable[[AnyReport], None],
        submission: Distribution | None = None,
        stuck_probability: float = 0.0,
        running_max: int = 1_000_000,
        queue_max: int = 1_000_000,
        poll_seconds: float = 30.0,
        nodes: Sequence[str] = (),
    ) -> None:
        """Take the site, the queue time, the limits of running and known jobs, and its nodes; `begin` starts it.

        It accepts one job after the other, each for the time of a `submission`; without it, all at once. Some get stuck in
        the queue, with `stuck_probability`.
        """
        self.site = site
        self._schedule = schedule
        self._injector = injector
        self._queue = queue
        self._numbers = dice.stream(f"batch/{site.name}")
        self._submission = submission
        self._submissions = dice.stream(f"submissions/{site.name}")
        self._free_at = -1.0  # when the last submission is accepted
        self._stuck_probability = stuck_probability
        self._stuck = dice.stream(f"stuck/{site.name}")
        self._report = report
        self._running_max = running_max
        self._queue_max = queue_max
        self._poll_seconds = poll_seconds
        self._nodes = tuple(nodes)
        self._places = dice.stream(f"nodes/{site.name}")
        self._jobs: dict[str, _Job] = {}
        self._owners: dict[str, _Job] = {}  # by name of the process
        self._ready: deque[_Job] = deque()  # has queued long enough, and waits for a free slot
        self._live = 0  # unfinished jobs
        self._running = 0
        self._unlisted: dict[str, _Job] = {}  # jobs with news for the next listing
        self._native_ids: list[str] = []
        self._unreachable_until = self._down_until = self._black_until = -1.0
        self._black_reason = ""
        self._unseen = False  # nothing has failed in the black hole yet

    # --- requests of the service -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start periodic listings."""
        self._schedule.after(self._poll_seconds, self._poll_again)

    def submit(self, key: str, launch: Launch) -> None:
        """Submit a job with our key, unless it exists. Without contact there is no answer, even if the submission succeeds."""
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
            self._unlisted[key] = job
        if reachable and not job.submitting:
            self._report(Submitted(site=self.site.name, key=key, native_id=job.native_id))

    def cancel(self, key: str) -> None:
        """Cancel a queued or running job; without contact this does nothing."""
        job = self._jobs.get(key)
        if job is None or not self.reachable:
            return
        if job.over:
            self._unlisted[key] = job  # the service does not know yet
        else:
            self._end(job, "cancelled")

    def node_for(self, named: Sequence[str]) -> str:
        """Choose a node: any, or a named one if the system supports that; without nodes, each job has its own."""
        nodes = self._nodes
        if named and self.site.places_nodes:
            nodes = tuple(node for node in nodes if any(fnmatchcase(node, name) for name in named))
        return self._places.choice(nodes) if nodes else ""

    def poll(self) -> None:
        """List the jobs, and report changes: submissions accepted without an answer, and jobs that are gone."""
        site = self.site.name
        if not self.reachable:
            self._report(SiteSeen(site=site, answers=False, message="down" if self.down else "no answer"))
            return
        self._report(SiteSeen(site=site, answers=True))
        if not self._unlisted:
            return
        unlisted, self._unlisted = self._unlisted, {}
        for key, job in unlisted.items():
            if job.over or job.forgotten:
                self._report(Gone(site=site, key=key, reason=job.reason or "not-listed"))
            elif not job.submitting:
                self._report(Submitted(site=site, key=key, native_id=job.native_id))

    def relist(self) -> None:
        """Report everything again with the next listing, for a service that has just started."""
        self._unlisted = dict(self._jobs)

    # --- reports of processes ----------------------------------------------------------------------------------------

    def ended(self, instance: str, reason: str = "ended") -> None:
        """A process ended, for any reason."""
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
        """The reason why every attempt fails here at present; empty if none."""
        if self._schedule.now >= self._black_until:
            return ""
        if self._unseen:
            self._unseen = False
            self._injector.had_effect("black_hole")
        return self._black_reason

    # --- faults ------------------------------------------------------------------------------------------------------

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
        """How many jobs are running."""
        return self._running

    @property
    def queued(self) -> int:
        """How many known jobs are not running."""
        return self._live - self._running

    def lose_contact(self, seconds: float) -> None:
        """Answer nothing for a time; queued and running jobs go on."""
        self._unreachable_until = max(self._unreachable_until, self._schedule.now + seconds)

    def become_black_hole(self, seconds: float, reason: str = "platform-failure") -> None:
        """Fail every attempt that starts here, for a time."""
        self._black_until, self._black_reason = self._schedule.now + seconds, reason

    def go_down(self, seconds: float, *, keeps_queue: bool = True) -> None:
        """Lose all running jobs, and start and answer nothing for a time; the queue may be lost as well."""
        self._down_until = max(self._down_until, self._schedule.now + seconds)
        for job in list(self._jobs.values()):
            if not job.over and (job.instances or job.starting or not keeps_queue):
                self._end(job, "site-down")
        self._schedule.at(self._down_until, self._start_ready)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _poll_again(self) -> None:
        self._schedule.after(self._poll_seconds, self._poll_again)
        if not self._injector.quiet:
            self._inject_faults()
        self.poll()

    def _inject_faults(self) -> None:
        injector = self._injector
        if injector.strikes("site_down"):
            seconds = injector.between("site_down", low=DOWN_SECONDS[0], high=DOWN_SECONDS[1])
            self.go_down(seconds, keeps_queue=self._numbers.random() < 0.5)
        if injector.strikes("batch_unreachable"):
            low, high = UNREACHABLE_SECONDS
            self.lose_contact(injector.between("batch_unreachable", low=low, high=high))
        if injector.strikes("black_hole"):
            seconds = injector.between("black_hole", low=BLACK_HOLE_SECONDS[0], high=BLACK_HOLE_SECONDS[1])
            self.become_black_hole(seconds, BLACK_HOLE_REASONS[int(self._numbers.random() * len(BLACK_HOLE_REASONS))])
            self._injector.had_no_effect("black_hole")  # until an attempt fails in it
            self._unseen = True

    def _take(self, key: str, launch: Launch) -> _Job:
        injector = self._injector
        native_id = str(1000 + len(self._native_ids))
        if self._native_ids and injector.strikes("batch_reuses_id"):
            native_id = self._native_ids[int(self._numbers.random() * len(self._native_ids))]
        self._native_ids.append(native_id)
        job = self._jobs[key] = _Job(key, native_id, launch)
        self._live += 1
        queue_seconds = self._accept(job) + self._queue.draw(self._numbers)
        if self._stuck_probability > 0.0 and self._stuck.random() < self._stuck_probability:
            return job
        if not injector.strikes("batch_forgets"):
            self._schedule.after(queue_seconds, self._get_ready, job)
        elif self._numbers.random() < 0.5:
            self._end(job, "not-listed")
        else:
            job.slips = True
            self._schedule.after(queue_seconds, self._get_ready, job)
        return job

    def _accept(self, job: _Job) -> float:
        """The time until a job is accepted: after those before it, and its own submission."""
        submission_seconds = 0.0 if self._submission is None else self._submission.draw(self._submissions)
        if submission_seconds <= 0.0:
            return 0.0
        now = self._schedule.now
        self._free_at = max(now, self._free_at) + submission_seconds
        job.submitting = True
        self._schedule.at(self._free_at, self._accepted, job)
        return self._free_at - now

    def _accepted(self, job: _Job) -> None:
        job.submitting = False
        if job.over:
            return
        if self.reachable:
            self._report(Submitted(site=self.site.name, key=job.key, native_id=job.native_id))
        else:
            self._unlisted[job.key] = job

    def _get_ready(self, job: _Job) -> None:
        if not job.over:
            self._ready.append(job)
            self._start_ready()

    def _start_ready(self) -> None:
        while self._ready and self._running < self._running_max and not self.down:
            job = self._ready.popleft()
            if job.over:
                if job.slips:
                    self._injector.had_no_effect("batch_forgets")
                continue
            if self._injector.strikes("batch_starts_twice"):
                low, high = SECOND_START_SECONDS
                job.starting = True
                self._schedule.after(
                    self._injector.between("batch_starts_twice", low=low, high=high), self._start_again, job
                )
            if job.slips:
                job.forgotten = True
                self._unlisted[job.key] = job
            self._start(job)

    def _start_again(self, job: _Job) -> None:
        if job.over:
            self._injector.had_no_effect("batch_starts_twice")
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
            self._unlisted[job.key] = job
