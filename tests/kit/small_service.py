"""A service without threads, wires and agents: a core over a real book, its aftermath, and a folder of real files.

A test is the agent: it takes the assignments and says what became of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pilotage.book.codec import Codec
from pilotage.engine.engine import Engine
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import AttemptFinished, OutputFile, Payload, PhaseTimes, PilotStarted
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Exchange
from pilotage.model.exchange.operations import AnyOperation, Effect, SubmitPilot
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.model.states import ExitCodeGasw
from pilotage.service.jobs.active_jobs import ActiveJobs
from pilotage.service.jobs.publishing import CommitHandler
from pilotage.service.jobs.startup import start_from
from pilotage.service.jobs.submission import Prepared
from pilotage.service.journal.writer import Batch, BatchCommitter
from pilotage.service.messages import Input, OperationRequest, Outbox, Submit
from pilotage.service.works.manifests import Manifests
from pilotage.service.works.stale_results import StaleResults
from tests.kit.earlier_work import Place
from tests.kit.events import StandingClock

_encode = msgspec.json.Encoder().encode


class SmallService:
    """One service of a place; another one made later goes on from the book."""

    def __init__(self, place: Place, *, now: float = 1_000.0, speed: float = 1.0) -> None:
        self.place = place
        self.now = now
        self.held: list[tuple[str, str]] = []  # jobs that were to be held, and why
        self.effects: list[Effect] = []
        self.assigned: dict[str, Assignment] = {}  # by package
        self.manifests = Manifests(place.journal)
        self.jobs = ActiveJobs(place.journal, tree=place.tree, index=place.index)
        self._codec = Codec()
        self._committer = BatchCommitter(place.journal, clock=StandingClock(now), codec=self._codec)
        stale = StaleResults(
            self.jobs.expansion_of,
            self.manifests,
            journal=place.journal,
            write=lambda batch: self._committer.commit_together([batch])[0],
            codec=self._codec,
            clock=StandingClock(now),
        )
        self.aftermath = CommitHandler(
            self.jobs,
            self.manifests,
            tree=place.tree,
            index=place.index,
            hold=lambda job, message: self.held.append((job, message)),
            compare=stale.note,
        )
        self._site = site = Site(name="here", capacity=Capacity(cores_hundredths=1600), speed=speed)
        self._core = start_from(
            place.journal, self.jobs, sites=[site], settings=EngineSettings(), codec=self._codec, now=now
        )
        self._pilot = ""
        self._sequence = self._n = 0

    @property
    def engine(self) -> Engine:
        return self._core.engine

    def step(self, *inbox: Input, follow: bool = True) -> Outbox:
        """One step, which is written; without `follow` the service dies before anything comes of it."""
        outbox = self._core.step(list(inbox), self.now)
        if outbox.events:
            receipt = self._committer.commit_together([Batch(outbox.events, outbox.refused)])[0]
            self._core.written(receipt.position)
        if follow:
            self.aftermath.follow(self.engine, outbox.events)
        self.effects += outbox.effects
        for reply in outbox.replies:
            self.assigned |= {each.ref.package: each for each in reply.assignments}
        return outbox

    def submit(self, text: str, **more: Any) -> Prepared:
        """Have a document run, and a pilot of sixteen slots take what is ready."""
        prepared = self.place.prepare(text, **more)
        self.jobs.bring(prepared.job, expansion=prepared.expansion, plan=prepared.plan, origin=prepared.origin)
        self.step(Submit(token=1, job=prepared.job, registered=prepared.registered, plan=prepared.plan))
        wanted = next((each.key for each in self.effects if isinstance(each, SubmitPilot)), "")
        if wanted and not self._pilot:
            self._pilot = f"{wanted}.1"
            self.exchange((None, PilotStarted(site="here", request=wanted)))
        else:
            self.exchange()
        return prepared

    def ask(self, operation: AnyOperation) -> None:
        """Have an operation done."""
        self.step(OperationRequest(token=2, operation=operation))

    def exchange(self, *events: tuple[AttemptRef | None, Payload], follow: bool = True) -> None:
        """Let the pilot speak: what it holds is what was assigned to it; what it tells the end of, it lets go of."""
        told = []
        for ref, data in events:
            self._n += 1
            about: dict[str, Any] = {"pilot": self._pilot}
            if ref is not None:
                about = {"job": ref.job, "package": ref.package, "attempt": ref.attempt}
                if (ended := self.assigned.pop(ref.package, None)) is not None:
                    about["epoch"] = ended.epoch
            told.append(
                Event(
                    source="agent",
                    stream=self._pilot,
                    n=self._n,
                    type=type(data).__name__,
                    time=self.now,
                    data=msgspec.Raw(_encode(data)),
                    **about,
                )
            )
        self._sequence += 1
        self.step(
            Exchange(
                pilot=self._pilot,
                site="here",
                sequence=self._sequence,
                capacity=Capacity(cores_hundredths=1600),
                held=tuple(each.ref for each in self.assigned.values()),
                events=tuple(told),
            ),
            follow=follow,
        )

    def work(self, package: str) -> AttemptRef:
        """Write out how the attempt of a package is run, as it is for a reply."""
        assignment = self.assigned[package]
        at_work = self.jobs.get(assignment.ref.job)
        assert at_work is not None
        at_work.work(assignment, self.manifests, site=self._site)
        return assignment.ref

    def stage(self, ref: AttemptRef, files: Mapping[str, str]) -> tuple[OutputFile, ...]:
        """Put outputs where they wait for a grant."""
        found: list[OutputFile] = []
        for number, (name, text) in enumerate(sorted(files.items())):
            data = text.encode()
            self.place.tree.write_staged(str(self.place.folder), ref, number=number, offset=0, data=data)
            found.append(OutputFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
        return tuple(found)

    def succeed(
        self, package: str, files: Mapping[str, str], *, seconds: float = 4.0, follow: bool = True, **more: Any
    ) -> AttemptRef:
        """Run a package: these are its files; `more` are further fields of the end of its attempt."""
        ref = self.work(package)
        self.exchange((ref, finished(self.stage(ref, files), seconds=seconds, **more)), follow=follow)
        return ref

    def staged(self, job: str) -> Sequence[tuple[str, int]]:
        """What waits for a grant."""
        return self.place.tree.staged(str(self.place.folder), job)


def finished(manifest: tuple[OutputFile, ...], *, seconds: float = 4.0, **more: Any) -> AttemptFinished:
    """The word of an agent that an attempt succeeded."""
    phases = (PhaseTimes(phase="application", started_at=1.0, seconds=seconds),)
    told: dict[str, Any] = {"exit_code": ExitCodeGasw.SUCCESS, "manifest": manifest, "phases": phases}
    return AttemptFinished(**{**told, **more})
