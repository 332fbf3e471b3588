"""Histories of jobs that could have been: a small scheduler that acts at random, tells of it as events, and remembers
how things really stand. It shares no code with the book.

Everything is drawn from one `random.Random`: a seed repeats it, and fewer steps are the beginning of the same history.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.kit.standing import RANKS, Attempt, Job, Package, WireEvent, places

START = 1_700_000_000.0
SITES = ("lyon", "nikhef", "desy")
FAILURES = ("EXECUTION_FAILED", "ERROR_READ_GRID", "EXECUTION_STALLED", "UNDEFINED")
CAUSES = ("waited-too-long", "quota", "credential-expired", "retries-exhausted", "upstream")
SHA256 = "0f" * 32


class Scheduler:
    """Acts at random within the rules, with now and then a step that only a broken engine would take."""

    def __init__(self, chance: random.Random, *, jobs: int = 2, races: bool = True, reuses: bool = False) -> None:
        self.chance = chance
        self.events: list[WireEvent] = []
        self.jobs = [Job(f"job{number}") for number in range(1, jobs + 1)]
        self._races = races
        self._reuses = reuses
        self._clock = START
        self._counters: dict[tuple[str, str], int] = {}
        self._skews: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        self._engine = 1

    # --- telling ----------------------------------------------------------------------------------------------------

    def say(self, source: str, event_type: str, subject: dict[str, Any], **data: Any) -> WireEvent:
        """Tell of something: the next event of somebody's stream."""
        stream = self._stream(source, subject)
        self._clock += self.chance.choice((0.0, 0.0, 0.125, 0.5, 3.0, 40.0))
        skew = self._skews.setdefault(stream, self.chance.choice((0.0, 0.0, 0.0, 0.25, -900.0, 5_000.0)))
        self._counters[source, stream] = n = self._counters.get((source, stream), 0) + 1
        if self.chance.random() < 0.6:
            self._seen[stream] = len(self.events)
        event = {
            "source": source,
            "stream": stream,
            "n": n,
            "type": event_type,
            "time": self._clock + skew,
            "epoch": subject.get("epoch", 1),
            "seen": self._seen.setdefault(stream, 0),
            **{name: value for name, value in subject.items() if name != "epoch"},
            "data": data,
        }
        self.events.append(event)
        return event

    def _stream(self, source: str, subject: dict[str, Any]) -> str:
        if source == "service":
            return f"engine-{self._engine}"
        if source == "agent" and "attempt" in subject:
            return f"node{subject['attempt'] % 3}"
        return f"{source}-{self.chance.choice('ab')}"

    def _about(self, package: Package, attempt: Attempt | None = None, *, epoch: int | None = None) -> dict[str, Any]:
        package.heard = True
        subject: dict[str, Any] = {"job": package.job.name, "package": package.place, "epoch": package.epoch}
        if attempt is not None:
            subject |= {"attempt": attempt.number, "epoch": attempt.epoch}
        return subject | ({"epoch": epoch} if epoch is not None else {})

    def _any(self, *sources: str) -> str:
        return self.chance.choice(sources or tuple(RANKS))

    # --- acting -----------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> Scheduler:
        """Register the jobs, then act some times."""
        for job in self.jobs:
            self.register(job)
            if self.chance.random() < 0.7:
                self.accept(job)
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        """Act once; some acts come to nothing."""
        job = self.chance.choice(self.jobs)
        roll = self.chance.random()
        if roll < 0.62:
            self.act_on_attempt(self._some_package(job))
        elif roll < 0.84:
            self.act_on_package(self._some_package(job))
        elif roll < 0.95:
            self.act_on_job(job)
        else:
            self.act_elsewhere()

    def _some_package(self, job: Job) -> Package:
        known = sorted(job.packages)
        if not known or self.chance.random() < 0.05:
            return job.package(self.chance.choice(("1.1.1", "2.1.1", "7.1.2")))
        return job.packages[self.chance.choice(known[:3] if self.chance.random() < 0.8 else known)]

    def register(self, job: Job) -> None:
        """Register a job, or register it anew with another shape."""
        stages: list[dict[str, Any]] = [self._shape() for _ in range(self.chance.randint(0, 3))]
        for shape in stages:
            if self.chance.random() < 0.2:
                shape["late"] = True
        job.stages[: len(stages)] = stages
        self._know(job)
        tags = {"study": self.chance.choice("AB")} if self.chance.random() < 0.3 else {}
        self.say(
            self._any("client", "service"), "JobRegistered", {"job": job.name},
            owner=self.chance.choice(("ada", "bob")), name=f"n{len(self.events)}", stages=stages, tags=tags,
            lists={"runs": SHA256}, expander_version=self.chance.randint(0, 2),
        )  # fmt: skip

    def _shape(self) -> dict[str, Any]:
        templates = [
            {"lines": self.chance.randint(0, 2), "activities": ["sim", "reco"][: self.chance.randint(0, 2)]}
            for _ in range(self.chance.randint(0, 2))
        ]
        return {"items": self.chance.randint(0, 2), "templates": templates}

    def _know(self, job: Job) -> None:
        for stage, shape in enumerate(job.stages, 1):
            for place, _ in places(shape, stage):
                job.package(place)

    def accept(self, job: Job) -> None:
        """Accept a job."""
        job.accepted = True
        self.say(self._any("service", "client"), "JobAccepted", {"job": job.name})

    def act_on_job(self, job: Job) -> None:
        """Something about a whole job."""
        subject = {"job": job.name, "epoch": job.epoch}
        match self.chance.randint(0, 14):
            case 0 | 1:
                self.accept(job)
            case 2:
                self.say("service", "CancelAccepted", subject)
                job.killed = True
            case 3:
                self.say(
                    "service",
                    "Aborted",
                    subject,
                    cause=self.chance.choice(CAUSES),
                    message=self.chance.choice(("", "why")),
                )
                job.aborted = True
            case 4:
                self.say(self._any(), "Cleared", subject, by=self.chance.choice(("user", "timeout")))
                job.cleared = True
            case 5 | 6:
                job.epoch += self.chance.choice((1, 1, 2))
                job.killed = job.aborted = job.cleared = False
                self.say("service", "Restarted", {**subject, "epoch": job.epoch}, cause="by-hand")
            case 7:
                self._expand(job)
            case 8:
                self.register(job)
            case 9:
                self.say(self._any(), "OwnerSet", subject, owner=self.chance.choice(("ada", "bob")))
                self.say(self._any(), "AccessSet", subject, rules=[{"principal": "hep", "rights": ["read"]}])
            case 10:
                job.operation += 1
                self.say("service", self.chance.choice(("Held", "Released")), subject, operation=job.operation)
            case 11:
                self.say(self._any(), "Tagged", subject, name="study", value=self.chance.choice("ABC"))
            case 12 | 13:
                self.chance.choice((self._forecast, self._heal))(subject)
                self._stop(job, subject)
            case _:
                self._clear_earlier(job, subject)

    def _clear_earlier(self, job: Job, subject: dict[str, Any]) -> None:
        if job.epoch > 1:
            self.say(self._any(), "Cleared", {**subject, "epoch": job.epoch - 1}, by="timeout")

    def _forecast(self, subject: dict[str, Any]) -> None:
        if self.chance.random() < 0.3:
            self.say("service", "ForecastScored", subject, ended_at=5.0, outcome="done", forecasts=1)
            return
        at = float(self.chance.randint(0, 99))
        ends = {"low_at": at, "median_at": at + 1.0, "mean_at": at + 2.0, "high_at": at + 3.0}
        self.say("service", "ForecastMade", subject, packages=self.chance.randint(1, 9), **ends)

    def _heal(self, subject: dict[str, Any]) -> None:
        """What healing learned, with or without a decision before it."""
        if self.chance.random() < 0.5:
            late = {"kind": "blocked-activity", "subject": "sim", "degree": 0.5, "level": 2}
            self.say("service", "HealingDecided", subject, incidents=[late], drawn=1)
        medians = [{"phase": "application", "seconds": float(self.chance.randint(1, 99))}]
        known = {"activity": "sim", "count": self.chance.randint(1, 9), "medians": medians}
        self.say("service", "HealingLearned", subject, activities=[known], slot_seconds=100.5, healing_seconds=2.5)

    def _stop(self, job: Job, subject: dict[str, Any]) -> None:
        """Stop an activity, or open one again, whether it was stopped or not; or let its packages share batch jobs."""
        job.operation += 1
        about = {"activity": self.chance.choice(("sim", "né\nsim")), "operation": job.operation}
        roll = self.chance.random()
        if roll < 0.4:
            self.say("service", "ActivityStopped", subject, **about, failed_attempts=20, message="no such file")
        elif roll < 0.6:
            self.say("service", "ActivityGrouped", subject, **about, packages=self.chance.randint(1, 9))
        else:
            self.say("service", "ActivityReopened", subject, **about)

    def _expand(self, job: Job) -> None:
        late = [stage for stage, shape in enumerate(job.stages, 1) if shape.get("late")]
        stage = self.chance.choice(late) if late else 1
        shape = self._shape()
        self.say("service", "StageExpanded", {"job": job.name}, stage=stage, shape=shape)
        self.say("service", "InputsDescribed", {"job": job.name}, files=[{"name": "in.dat", "size_bytes": stage}])
        while len(job.stages) < stage:
            job.stages.append({"items": 0})
        job.stages[stage - 1] = shape
        self._know(job)

    def act_on_package(self, package: Package) -> None:
        """Something about a package."""
        acts: tuple[Callable[[Package], None], ...] = (
            self._register_package, self._bind, self._bind, self._unbind, self._hold, self._drop, self._tag,
            self._replicate, self._give_up, self._cancel, self._clear, self._restart, self._restart,
        )  # fmt: skip
        self.chance.choice(acts)(package)

    def _register_package(self, package: Package) -> None:
        data = {"activity": "extra"} if self.chance.random() < 0.6 else {}
        self.say(self._any(), "PackageRegistered", self._about(package), **data)

    def _bind(self, package: Package) -> None:
        if not package.over():
            self.say("service", "Bound", self._about(package), site=self.chance.choice(SITES))
            package.bound = package.moved = True

    def _unbind(self, package: Package) -> None:
        if package.bound:
            self.say("service", "Unbound", self._about(package))
            package.bound = False

    def _hold(self, package: Package) -> None:
        package.job.operation += 1
        number, held = package.job.operation, self.chance.random() < 0.5
        self.say("service", "Held" if held else "Released", self._about(package), operation=number)
        package.hold = (number, held)

    def _drop(self, package: Package) -> None:
        package.job.operation += 1
        number, dropped = package.job.operation, self.chance.random() < 0.6
        self.say("service", "Dropped" if dropped else "Restored", self._about(package), operation=number)
        package.drop = (number, dropped)

    def _replicate(self, package: Package) -> None:
        if package.here() and not package.over():
            package.replicas += 1
            self.say("service", "ReplicaWanted", self._about(package), replicas=package.replicas)

    def _tag(self, package: Package) -> None:
        attempt = self.chance.choice([None, *package.attempts.values()])
        name, value = self.chance.choice(("run", "study")), self.chance.choice(("1", "2", "3"))
        self.say(self._any(), "Tagged", self._about(package, attempt), name=name, value=value)
        if self.chance.random() < 0.2:
            self.say(self._any(), "Noted", self._about(package), text="worth a line")

    def _may_end(self, package: Package) -> bool:
        return not package.over() or (self._races and self.chance.random() < 0.15)

    def _give_up(self, package: Package) -> None:
        if self._may_end(package):
            self.say("service", "Aborted", self._about(package), cause=self.chance.choice(CAUSES))
            package.aborted = package.moved = True

    def _cancel(self, package: Package) -> None:
        if self._may_end(package):
            self.say("service", "CancelAccepted", self._about(package))
            package.cancelled = package.moved = True

    def _clear(self, package: Package) -> None:
        by = self.chance.choice(("user", "timeout"))
        if package.epoch > 1 and self.chance.random() < 0.5:
            # Said by somebody who has not heard of the new epoch yet.
            self.say(self._any(), "Cleared", self._about(package, epoch=package.epoch - 1), by=by)
        elif package.over() or self.chance.random() < 0.1:
            self.say(self._any(), "Cleared", self._about(package), by=by)
            package.cleared = package.moved = True

    def _restart(self, package: Package) -> None:
        if package.state() != "SUBMITTED":
            package.epoch += self.chance.choice((1, 1, 1, 3))
            package.bound = package.cancelled = package.aborted = package.cleared = False
            package.moved = True
            package.replicas = 0
            granted, package.granted = package.granted, []
            cause = self.chance.choice(("by-hand", "deep-resubmission", "remake"))
            if cause == "remake" and granted:
                made = self._about(package, package.attempts[granted[-1]])
                self.say("service", "RemovalOrdered", made, by="ada")
                self.say("service", "FilesRemoved", made, by="ada", removed=["out"])
            self.say("service", "Restarted", self._about(package), cause=cause)

    def act_on_attempt(self, package: Package) -> None:
        """A new try, or something about one."""
        known = list(package.attempts.values())
        if not known or self.chance.random() < 0.2:
            if not package.over():
                self._create(package)
            return
        lost = [each for each in package.here() if each.lost()]
        if lost and self.chance.random() < 0.3:
            self.chance.choice((self._recover, self._phase, self._finish))(package, self.chance.choice(lost))
            return
        staged = [each for each in package.here() if each.staged or each.exit_code() == "SUCCESS"]
        if staged and self.chance.random() < 0.3:
            self._grant(package, self.chance.choice(staged))
            return
        attempt = self.chance.choice(known)
        acts: tuple[Callable[[Package, Attempt], None], ...] = (
            self._queue, self._start, self._start, self._phase, self._suspect, self._recover, self._lose, self._stage,
            self._finish, self._finish, self._finish, self._grant, self._grant,
        )  # fmt: skip
        self.chance.choice(acts)(package, attempt)

    def _create(self, package: Package) -> None:
        leased = self.chance.random() < 0.4
        number = max(package.attempts, default=0) + 1
        first = package.attempts.get(1)
        if self._reuses and first is not None and first.epoch < package.epoch and self.chance.random() < 0.1:
            number = 1  # against the rule that numbers go on over all epochs
        attempt = Attempt(number, package.epoch, self.chance.choice(SITES), 3 if leased else 1)
        data: dict[str, Any] = {"site": attempt.site}
        if leased:
            data["lease_seconds"] = 60.0
        if self.chance.random() < 0.3:
            data["pilot"] = f"pilot{number}"
        if self.chance.random() < 0.2:
            data["replica"] = True
        if self.chance.random() < 0.2:
            data |= {"memory_bytes": 2**30 * number, "wall_seconds": 90.5, "remaining_seconds": 600.5}
        if self.chance.random() < 0.2:
            data["drop_revision"] = package.job.operation
        if self.chance.random() < 0.1:
            data["early"] = [{"package": "1.1.1", "attempt": number}]
        if not leased and number % 3 == 0:
            data["group"] = f"j:1.1.1:{number}"
        behind = [other for other in package.here() if other.exit_code() != "SUCCESS"]
        if behind and self.chance.random() < 0.5:
            replaced = self.chance.choice(behind)
            data["replaces"] = replaced.number
            replaced.level = 0
        package.attempts[number] = attempt
        package.bound, package.moved = False, True
        self.say("service", "AttemptCreated", self._about(package, attempt), **data)

    def _reporter(self) -> str:
        return self._any("agent", "agent", "agent", "site", "service")

    def _queue(self, package: Package, attempt: Attempt) -> None:
        if attempt.level == 1:
            attempt.level = 2
            self.say(self._any("site", "service"), "AttemptQueued", self._about(package, attempt), native_id="17")

    def _start(self, package: Package, attempt: Attempt) -> None:
        if attempt.level:
            attempt.level = 3
            node = f"node{attempt.number % 3}"
            self.say(self._reporter(), "AttemptStarted", self._about(package, attempt), node=node)

    def _phase(self, package: Package, attempt: Attempt) -> None:
        if attempt.level == 3:
            phase = self.chance.choice(("setup", "inputs", "application", "outputs"))
            self.say("agent", "PhaseEntered", self._about(package, attempt), phase=phase)

    def _suspect(self, package: Package, attempt: Attempt) -> None:
        if attempt.level == 3:
            said = self.say(self._any("service", "site"), "AttemptSuspected", self._about(package, attempt))
            attempt.doubts.append(said)

    def _recover(self, package: Package, attempt: Attempt) -> None:
        if attempt.level and attempt.doubt() in ("AttemptSuspected", "AttemptLost"):
            attempt.level = 3
            attempt.doubts.append(self.say("service", "AttemptRecovered", self._about(package, attempt)))

    def _lose(self, package: Package, attempt: Attempt) -> None:
        # One that never ran may be lost too: its batch system forgot it.
        if attempt.doubt() == "AttemptSuspected" or self.chance.random() < 0.4:
            reason = self.chance.choice(("platform-failure", "preempted"))
            said = self.say("service", "AttemptLost", self._about(package, attempt), reason=reason, message="silent")
            attempt.doubts.append(said)

    def _stage(self, package: Package, attempt: Attempt) -> None:
        if attempt.level == 3:
            attempt.staged = True
            manifest = [{"name": "out", "size_bytes": attempt.number, "sha256": SHA256}]
            self.say("agent", "OutputsStaged", self._about(package, attempt), manifest=manifest)

    def _finish(self, package: Package, attempt: Attempt) -> None:
        disputed = bool(attempt.ends) and attempt.exit_code() != "SUCCESS" and self.chance.random() < 0.3
        if attempt.ends and not disputed:
            return
        # One that was replaced while nobody heard of it may come back with its outputs.
        wins = self.chance.random() < {3: 0.6, 0: 0.2}.get(attempt.level, 0.0)
        code = "SUCCESS" if wins and not disputed else self.chance.choice(FAILURES)
        data: dict[str, Any] = {"exit_code": code, "exit_message": self.chance.choice(("", "said so"))}
        if code == "SUCCESS" and not attempt.staged:
            data["manifest"] = [{"name": "out", "size_bytes": 1, "sha256": SHA256}]
            data["phases"] = [{"phase": "application", "started_at": self._clock, "seconds": 2.5}]
        elif code != "SUCCESS":
            data |= {"reason": "out-of-memory", "exit_status": 137, "signal": 9, "node": "node9"}
        event = self.say(self._reporter(), "AttemptFinished", self._about(package, attempt), **data)
        attempt.ends.append(event)
        attempt.level = 3 if code == "SUCCESS" else 0

    def _grant(self, package: Package, attempt: Attempt) -> None:
        ready = attempt.staged or attempt.exit_code() == "SUCCESS"
        free = not package.over() or (self._races and self.chance.random() < 0.1)
        if ready and attempt.epoch == package.epoch and free and attempt.number not in package.granted:
            if self.chance.random() < 0.1:
                self._store(package, attempt)
            package.granted.append(attempt.number)
            self.say("service", "CommitGranted", self._about(package, attempt))
            if self.chance.random() < 0.1:
                self.say("service", "OutputsDisposed", self._about(package, attempt))
            if self.chance.random() < 0.1:
                made = {"name": "in.dat", "read_sha256": SHA256, "sha256": SHA256[::-1]}
                self.say("service", "InputsRemade", self._about(package), granted=attempt.number, files=[made])

    def _store(self, package: Package, attempt: Attempt) -> None:
        copy = {"name": "out", "locator": "s3://archive/out", "size_bytes": attempt.number, "sha256": SHA256}
        if self.chance.random() < 0.5:
            failed = [{"name": "out", "locator": "sftp://tape/out", "reason": "store-full"}]
            self.say("service", "OutputsStored", self._about(package, attempt), copies=[copy], failed=failed)
        self.say("service", "OutputsStored", self._about(package, attempt), copies=[copy, copy])

    def act_elsewhere(self) -> None:
        """Something about a pilot, a node, a site or the service itself."""
        site, pilot = self.chance.choice(SITES), f"pilot{self.chance.randint(1, 2)}"
        match self.chance.randint(0, 10):
            case 0:
                native = {"native_id": "17"} if self.chance.random() < 0.5 else {}
                slots = self.chance.randint(0, 4)
                self.say(self._any(), "PilotRequested", {"pilot": pilot}, site=site, slots=slots, **native)
            case 1:
                request = {"request": f"{pilot}.1"} if self.chance.random() < 0.5 else {}
                self.say("agent", "PilotStarted", {"pilot": pilot}, site=site, node="node1", slots=2, **request)
            case 2:
                self.say(self._any(), "PilotEnded", {"pilot": pilot}, reason="idle", stderr="bye")
            case 3:
                self.say(
                    "agent",
                    "NodeDescribed",
                    {"pilot": pilot},
                    node="node1",
                    cores=self.chance.randint(1, 64),
                    libc="glibc 2.36",
                )
            case 4:
                self.say(self._any(), "SiteDescribed", {"site": site}, kind="slurm", status=self.chance.choice("ab"))
            case 5:
                self._tell_of_a_site(site)
            case 6:
                self.say("service", "Noted", {}, text="the engine was restarted")
                self._engine += 1
                self._seen[f"engine-{self._engine}"] = len(self.events)
            case 7 | 8:
                self._tell_of_files(site)
            case 9:
                self.say("service", "IncidentsLearned", {}, learned=f"[{len(self.events)}]")
            case _:
                self.say(self._any(), "Noted", {"site": site}, text="power cut")

    def _tell_of_files(self, site: str) -> None:
        """Something about files in the cache of a site, in any order: the book takes the latest of each."""
        locators = self.chance.sample(("s3://store/a", "s3://store/b", "sftp://store/c d\n"), self.chance.randint(1, 3))
        key, size_bytes = f"fetch.{len(self.events)}.0", self.chance.randint(0, 99)
        files: list[dict[str, Any]] = [{"locator": each, "key": key} for each in locators]
        owner = self.chance.choice(("ada", "bob"))
        wish = self.chance.choice(("deletable", "retain-temporarily", "retain-indefinitely"))
        match self.chance.randint(0, 6):
            case 0:
                for each in files:
                    each |= {"name": f"ab/{len(self.events)}", "size_bytes": size_bytes, "wish": wish, "owner": owner}
                self.say("service", "FetchesOrdered", {"site": site}, files=files)
            case 1:
                for each in files:
                    each |= {"size_bytes": size_bytes, "sha256": SHA256, "version": f"v{size_bytes}"}
                self.say("service", "FilesFetched", {"site": site}, files=files)
            case 2:
                for each in files:
                    each |= {"reason": "store-unreachable", "message": "no route", "failures": size_bytes}
                self.say("service", "FetchesFailed", {"site": site}, files=files)
            case 3:
                for each in files:
                    each["cause"] = self.chance.choice(("deletable", "space", "stale"))
                self.say("service", "RemovalsOrdered", {"site": site}, files=files)
            case 4:
                self.say("service", "CachedFilesRemoved", {"site": site}, locators=locators)
            case _:
                change = self.chance.choice(
                    ({"wish": wish}, {"released": True}, {"pinned": True}, {"pinned": False}, {"stale": True})
                )
                said = [{"locator": each, "owner": owner, **change} for each in locators]
                self.say("service", "RetentionSet", {"site": site}, files=said)

    def _tell_of_a_site(self, site: str) -> None:
        score, learned = self.chance.uniform(-10, 10), self.chance.choice(("", "{}"))
        match self.chance.randint(0, 5):
            case 0:
                self.say("service", "SiteHibernated", {"site": site}, reason="black-hole", score=0.0, learned=learned)
            case 1:
                self.say("service", "SiteWoken", {"site": site}, reason="head-of-queue", score=score, learned=learned)
            case 2:
                status = self.chance.choice(("candidate", "hibernated"))
                self.say("service", "SiteStanding", {"site": site}, status=status, score=score, learned=learned)
            case 3:
                self.say("service", "SiteDrained", {"site": site}, kind="node", name="node1", message="3 in a row")
            case 4:
                starts, through = self.chance.randint(0, 99), self.chance.randint(0, 99)
                self.say("service", "SiteLatencies", {"site": site}, starts=starts, through=through, learned=learned)
            case _:
                passed = self.chance.random() < 0.5
                self.say("service", "SiteProbed", {"site": site}, passed=passed, seconds=self.chance.uniform(0, 90))
