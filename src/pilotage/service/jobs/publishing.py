"""Publishes the files of durable grants in the order of the book, and again after a crash.

A grant stands whatever the disk says. A result that cannot be published holds its job, which says why; once the cause
is removed and the job is released, publishing continues.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import ClassVar

import msgspec

from pilotage.book.codec import Checked
from pilotage.engine.engine import Engine
from pilotage.engine.retry.policy import INPUT_REASONS
from pilotage.engine.state.jobs import JobState, template_of
from pilotage.language.named_files import consumed_by
from pilotage.language.text.locators import job_of
from pilotage.model.events import file_payloads, payloads
from pilotage.model.exchange.exchange import Assignment, AttemptRef, InputSource
from pilotage.model.exchange.operations import HoldResults, Remake
from pilotage.model.states import ADOPTED, ExitCodeGasw
from pilotage.ports import InTheWay, JobTree, MadeWork, MeasuredRun, ResultsIndex, RunKind, StoreError
from pilotage.service.errors import Unpublished
from pilotage.service.jobs.active_jobs import ActiveJob, ActiveJobs
from pilotage.service.jobs.dropped_files import ReleasedFile, RemovalOrder, released_by
from pilotage.service.process import ThreadYielding
from pilotage.service.works.consumed import InputsInPlace
from pilotage.service.works.manifests import Manifest, Manifests
from pilotage.service.works.reuse import Completer, is_complete
from pilotage.service.works.run_history import PENDING_MAX, measured_run, software_of

log = logging.getLogger(__name__)

Hold = Callable[[str, str], None]
"""Holds a job, with a message."""
WereConcurrent = Callable[[str, str], bool]
"""Whether the first of two jobs must not replace outputs of the second."""


def hold_for(job: str, message: str) -> HoldResults:
    """The operation that holds a job whose results cannot be published; also a finished one, which waits for it."""
    return HoldResults(job=job, message=message)


class Publisher:
    """Publishes granted results and discards others; for one thread."""

    def __init__(self, tree: JobTree, manifests: Manifests, *, hold: Hold, were_concurrent: WereConcurrent) -> None:
        """Take the tree, the manifests, how to hold a job, and which jobs must not replace each other's files."""
        self._tree = tree
        self._manifests = manifests
        self._hold = hold
        self._were_concurrent = were_concurrent
        self._waiting: dict[str, dict[AttemptRef, str]] = {}  # by job: unpublished results, and their folder
        self._faults: dict[str, Unpublished] = {}  # by job: the last of them

    def publish(self, folder: str, ref: AttemptRef, *, in_the_way: InTheWay = "refuse") -> None:
        """Publish the files of a granted attempt; if that fails, hold its job until it is released."""
        manifest = self._manifests.of(ref) or ()
        try:
            concurrent = partial(self._were_concurrent, ref.job)
            self._tree.publish(folder, ref, manifest, is_rival=concurrent, in_the_way=in_the_way)
        except StoreError as fault:
            self.postpone(folder, ref, fault)

    def postpone(self, folder: str, ref: AttemptRef, fault: StoreError) -> None:
        """Hold the job of an attempt whose files cannot be published now, until it is released."""
        log.warning("%s: %s", ref, fault)
        self._waiting.setdefault(ref.job, {})[ref] = folder
        message = f"the outputs of {ref.package} cannot be published: {fault.subject}: {fault.what}"
        self._faults[ref.job] = Unpublished(
            package=ref.package, attempt=ref.attempt, what=message, next_step=fault.next_step
        )
        self._hold(ref.job, message)

    def discard(self, folder: str, ref: AttemptRef) -> None:
        """Remove the staged files of an attempt whose result is not used."""
        manifest = self._manifests.of(ref)
        try:
            self._tree.discard(folder, ref, len(manifest or ()))
        except StoreError as fault:
            log.warning("%s: %s", ref, fault)  # they only take space: the next start tries again

    def discard_failed(self, folder: str, ref: AttemptRef) -> None:
        """Remove what an attempt staged before it failed; it has no manifest."""
        try:
            self._tree.discard(folder, ref, 0)
        except StoreError as fault:
            log.warning("%s: %s", ref, fault)

    def forget(self, folder: str, job: str, package: str) -> None:
        """The result of a package no longer counts: its waiting files are never published."""
        waiting = self._waiting.get(job, {})
        for ref in [ref for ref in waiting if ref.package == package]:
            del waiting[ref]
            self.discard(folder, ref)
        if job in self._waiting and not waiting:
            self.take_waiting(job)

    def waiting(self, job: str) -> int:
        """How many packages of a job are done but not published."""
        return len(self._waiting.get(job, ()))

    def has(self, ref: AttemptRef) -> bool:
        """Whether a granted result waits here to be published."""
        return ref in self._waiting.get(ref.job, ())

    def fault(self, job: str) -> Unpublished | None:
        """The last result of a job that could not be published, and why; None if all could."""
        found = self._faults.get(job)
        return msgspec.structs.replace(found, count=self.waiting(job)) if found is not None else None

    def jobs(self) -> set[str]:
        """The jobs with results that could not be published."""
        return {*self._waiting}

    def holds_back(self, assignment: Assignment) -> bool:
        """Whether an attempt would read files that wait here: other files may have their names."""
        if not self._waiting:
            return False
        job = assignment.ref.job
        waiting = self._waiting.get(job, ())
        return any(AttemptRef(job, source.package, source.attempt) in waiting for source in assignment.inputs)

    def take_waiting(self, job: str) -> list[AttemptRef]:
        """Remove and return the waiting results of a released job, to be tried again."""
        self._faults.pop(job, None)
        return list(self._waiting.pop(job, {}))


# Acts on committed events: publishes files, records results for reuse, releases finished jobs.
#
# A result is recorded as ours before it is published: a file that exists without being recorded would block the next
# run.


class CommitHandler:
    """Processes the events of each step in the order of the book; for one thread."""

    def __init__(
        self,
        jobs: ActiveJobs,
        manifests: Manifests,
        *,
        tree: JobTree,
        index: ResultsIndex,
        hold: Hold,
        inputs: InputsInPlace | None = None,
        on_its_way: Callable[[str], bool] = lambda _: False,
        yielding: ThreadYielding | None = None,
        dispose: Callable[[Sequence[RemovalOrder]], None] = lambda _: None,
        remake: Callable[[Remake], None] = lambda _: None,
        compare: Callable[[Engine, AttemptRef], None] = lambda *_: None,
        release: Callable[[Sequence[ReleasedFile]], None] = lambda _: None,
    ) -> None:
        """Take the jobs, their files, and how to hold a job whose files cannot be published.

        `inputs` is told of files that attempts read in place; `on_its_way` says whether the engine has decided events of a
        job that are not durable yet; `dispose` removes deletable outputs of attempts; `remake` has outputs made again that are
        gone; `compare` tells what was granted again from what was read before; `release` removes what owners released.
        """
        self._jobs = jobs
        self._manifests = manifests
        self._tree = tree
        self._index = index
        self._publisher = Publisher(tree, manifests, hold=hold, were_concurrent=jobs.were_concurrent)
        self._completer = Completer(tree, index, reading=inputs.reading if inputs is not None else None)
        self._inputs = inputs
        # By job and activity: successes and their seconds that are not recorded yet.
        self._spent: dict[str, dict[str, list[float]]] = {}
        self._measured: dict[str, dict[RunKind, deque[MeasuredRun]]] = {}  # by job: what is not recorded yet
        self._timed: dict[str, int] = {}  # by job: how many succeeded
        self._on_its_way = on_its_way
        self._yielding = yielding or ThreadYielding()
        self._dispose = dispose
        self._remake = remake
        self._compare = compare
        self._disposed: list[RemovalOrder] = []  # of the present step
        self._release = release
        self._released: dict[ReleasedFile, None] = {}  # of the present step
        self._lingering: dict[str, None] = {}  # jobs that are over in the engine, with events still to come

    def stop(self) -> None:
        """Stop background work, and record durations."""
        for job in list(self._spent):
            self._note_times(job)
        self._completer.stop()
        if self._inputs is not None:
            self._inputs.stop()

    def unpublished(self, job: str) -> int:
        """How many packages of a job are done but not published."""
        return self._publisher.waiting(job)

    def fault(self, job: str) -> Unpublished | None:
        """A result of a job that could not be published, and why; None if all could."""
        return self._publisher.fault(job)

    def unpublished_jobs(self) -> set[str]:
        """The jobs with results that could not be published."""
        return self._publisher.jobs()

    def holds_back(self, assignment: Assignment) -> bool:
        """Whether an attempt would read files that could not be published: it waits until they are."""
        return self._publisher.holds_back(assignment)

    def follow(self, engine: Engine, events: Sequence[Checked]) -> None:
        """Act on the events of a step."""
        granted: list[AttemptRef] = []
        adopted: set[AttemptRef] = set()
        taken_over: dict[str, list[payloads.OutputFile]] = {}  # by job
        touched, self._lingering = self._lingering, {}
        for one in events:
            data = one.data
            if isinstance(data, payloads.AttemptCreated):
                if data.site == ADOPTED:
                    adopted.add(_ref(one))  # the index has it
                continue
            kind = type(data)
            if kind is _GRANTED:
                granted.append(_ref(one))
            elif (handler := self._HANDLERS.get(kind)) is not None:
                handler(self, engine, one)
                if adopted and isinstance(data, payloads.AttemptFinished) and _ref(one) in adopted:
                    taken_over.setdefault(one.event.job or "", []).extend(data.manifest or ())
            if kind in _ENDS and one.event.job is not None:
                touched[one.event.job] = None
        self._claim(taken_over)
        self._note_released(engine, granted)
        self._grant(engine, granted, known=adopted)
        if self._disposed or self._released:
            self._remove()
        for job in touched:
            state, at_work = engine.state.jobs.by_id.get(job), self._jobs.get(job)
            if at_work is not None:
                self._index.used(at_work.folder, until_ns=time.time_ns())
            if state is not None and is_over(state):
                self._let_go(job)
                self._release(())  # files that it used

    def _remove(self) -> None:
        """Have the files removed that nobody needs any more, or that their owner released."""
        disposed, self._disposed = self._disposed, []
        released, self._released = [*self._released], {}
        if disposed:
            self._dispose(disposed)
        if released:
            self._release(released)

    def recover(self, engine: Engine, job: str) -> int:
        """Finish publishing the files of a job after a crash; return how many packages were published."""
        at_work = self._jobs.get(job)
        if at_work is None:
            return 0
        state = engine.state.jobs.by_id[job]
        granted = []
        for package, attempt in self._tree.staged(at_work.folder, job):
            number = at_work.number(package)
            ref = AttemptRef(job, package, attempt)
            if number is not None and state.granted[number] == attempt:
                granted.append(ref)
            elif number is None or state.is_final(number):
                self._publisher.discard(at_work.folder, ref)
        self._grant(engine, granted)
        if is_over(state):
            self._let_go(job)
        return len(granted)

    def _claim(self, taken_over: Mapping[str, Sequence[payloads.OutputFile]]) -> None:
        """Record adopted files as made by the adopting job as well: the earlier job must leave them alone."""
        for job, files in taken_over.items():
            if files and (at_work := self._jobs.get(job)) is not None:
                try:
                    self._index.claim(at_work.folder, job, files)
                except StoreError as fault:
                    log.warning("job %s adopted %d files, which could not be recorded: %s", job, len(files), fault)

    def _grant(self, engine: Engine, granted: Sequence[AttemptRef], *, known: Collection[AttemptRef] = ()) -> None:
        """Record results, then publish them."""
        each = self._yielding.among(granted)
        made = [found for ref in each if ref not in known and (found := self._made(engine, ref)) is not None]
        try:
            if made:
                self._index.keep(made)
        except StoreError as fault:
            for ref in granted:
                at_work = self._jobs.get(ref.job)
                if at_work is not None:
                    self._publisher.postpone(at_work.folder, ref, fault)
            return
        for ref in self._yielding.among(granted):
            at_work = self._jobs.get(ref.job)
            if at_work is not None:
                self._publisher.publish(at_work.folder, ref, in_the_way=at_work.in_the_way)
        for ref in granted:
            self._compare(engine, ref)
        self._completer.complete(each for each in made if not is_complete(each.fields))
        if self._inputs is not None:
            for result in made:
                self._inputs.read(result.ref.job, result.folder, result.placed)

    def _made(self, engine: Engine, ref: AttemptRef) -> MadeWork | None:
        at_work, state = self._jobs.get(ref.job), engine.state.jobs.by_id.get(ref.job)
        number = at_work.number_of(ref) if at_work is not None else None
        if at_work is None or state is None or number is None:
            return None
        if not at_work.knows(ref):  # an earlier service requested it
            inputs = tuple(
                InputSource(state.dotted(each), state.granted[each])
                for each in state.producers(number)
                if state.granted[each]
            )
            at_work.recompute_key(Assignment(ref=ref, inputs=inputs), self._manifests)
        made = at_work.made(ref, self._manifests.of(ref) or ())
        if (attempts := state.last_attempt[number]) > 1:
            at_work.forget_package(ref.package, attempts=attempts)
        return made

    def _let_go(self, job: str) -> None:
        """A job is over: drop everything held for it outside the book."""
        if self._on_its_way(job):
            self._lingering[job] = None  # the last of its files may not be published yet
            return
        at_work = self._jobs.get(job)
        if at_work is not None and not self._publisher.waiting(job):
            self._note_times(job)
            self._timed.pop(job, None)
            self._tree.forget(at_work.folder, job)
            self._jobs.release(job)
            if self._inputs is not None:
                self._inputs.forget(job)

    # --- by type of event ---

    def _on_finished(self, engine: Engine, one: Checked) -> None:
        data, ref = one.data, _ref(one)
        assert isinstance(data, payloads.AttemptFinished)
        at_work = self._jobs.get(ref.job)
        if at_work is None:
            return
        if self._inputs is not None and (brought := at_work.brought(ref)):
            self._inputs.know(ref.job, brought)
        if data.manifest is None or data.exit_code != ExitCodeGasw.SUCCESS:
            if self._inputs is not None:
                self._inputs.read(ref.job, at_work.folder, at_work.placed(ref))
            at_work.forget(ref)
            self._publisher.discard_failed(at_work.folder, ref)  # before another attempt is bound
            if data.reason in INPUT_REASONS:
                self._make_missing_again(engine, at_work, ref)
            return
        number = self._note_made(engine, at_work, ref, data.manifest)
        if number is not None:
            # On the standard platform: at a site of speed 2 it would have taken twice as long. Its pilot may have ended with it.
            speed = at_work.speed(ref)
            if speed is None:  # an earlier service assigned it
                pilot = engine.state.pilots.by_name.get(one.event.stream)
                speed = pilot.site.site.speed if pilot is not None else 1.0
            activity = template_of(engine.state.jobs.by_id[ref.job], number).activity
            self._note_run(at_work, ref, number, activity, data, speed=speed)

    def _make_missing_again(self, engine: Engine, at_work: ActiveJob, ref: AttemptRef) -> None:
        """Have files made again that a failed package reads and that are gone, whoever removed them.

        Only where the service misses them, too: one site that does not see the folder makes no work for others. A file with
        other content is somebody's, and is left to them.
        """
        state, number = engine.state.jobs.by_id.get(ref.job), at_work.number(ref.package)
        if state is None or number is None:
            return
        granted = {
            each: AttemptRef(ref.job, state.dotted(each), state.granted[each]) for each in state.producers(number)
        }
        made = {each: maker for each, maker in granted.items() if maker.attempt and not self._publisher.has(maker)}
        read = consumed_by(
            at_work.expansion,
            number,
            captured=(),
            granted=made,
            manifest_of=lambda each: self._manifests.of(made[each]),
        )
        makers = {each.name: each.producer for each in read if each.producer is not None}
        try:
            there = self._tree.look_up(at_work.folder, makers) if makers else {}
        except StoreError as fault:
            log.warning("%s lacked an input, and nobody can look for it: %s", ref, fault)  # it is tried again in time
            return
        missing: dict[int, str] = {}
        for name in makers.keys() - there.keys():
            missing[makers[name]] = min(name, missing.get(makers[name], name))
        for maker, name in sorted(missing.items()):
            message = f"{ref.package} needs {name}, which is gone"
            log.warning("%s: %s is made again: %s", ref.job, state.dotted(maker), message)
            self._remake(Remake(job=ref.job, package=state.dotted(maker), reader=ref.package, message=message))

    def _on_staged(self, engine: Engine, one: Checked) -> None:
        assert isinstance(one.data, payloads.OutputsStaged)
        ref = _ref(one)
        at_work = self._jobs.get(ref.job)
        if at_work is not None:
            self._note_made(engine, at_work, ref, one.data.manifest)

    def _note_made(self, engine: Engine, at_work: ActiveJob, ref: AttemptRef, manifest: Manifest) -> int | None:
        """Record the manifest of an attempt, unless it comes too late; return the number of its package, if known."""
        self._manifests.note(ref, manifest)
        state, number = engine.state.jobs.by_id.get(ref.job), at_work.number_of(ref)
        if state is None or number is None:
            return None
        if state.granted[number] != ref.attempt and state.is_final(number):  # too late, or another attempt was granted
            self._publisher.discard(at_work.folder, ref)
        return number

    def _note_run(
        self,
        at_work: ActiveJob,
        ref: AttemptRef,
        number: int,
        activity: str,
        data: payloads.AttemptFinished,
        *,
        speed: float,
    ) -> None:
        """Note what a package took; an adopted one did not run, so its time says nothing."""
        job, seconds = ref.job, [phase.seconds * speed for phase in data.phases if phase.phase == "application"]
        if not seconds:
            return
        times = self._spent.setdefault(job, {}).setdefault(activity, [0.0, 0.0])
        times[0] += 1
        times[1] += sum(seconds)
        expansion = at_work.expansion
        kind = RunKind(activity, software_of(expansion.definition, expansion.block(number).package))
        runs = self._measured.setdefault(job, {})
        if kind not in runs:
            runs[kind] = deque(maxlen=PENDING_MAX)
        runs[kind].append(measured_run(data, input_bytes=at_work.input_bytes(ref), speed=speed))
        count = self._timed[job] = self._timed.get(job, 0) + 1
        if not count & (count - 1):  # at growing intervals: plans made meanwhile have an estimate
            self._note_times(job)

    def _note_times(self, job: str) -> None:
        """Record how long packages of a job took."""
        spent, measured, at_work = self._spent.pop(job, {}), self._measured.pop(job, {}), self._jobs.get(job)
        if not spent or at_work is None:
            return
        times = {activity: (int(count), seconds) for activity, (count, seconds) in spent.items()}
        runs = {kind: tuple(each) for kind, each in measured.items()}
        try:
            self._index.note_times(at_work.folder, at_work.expansion.definition.job, times)
            self._index.note_runs(at_work.folder, at_work.expansion.definition.job, runs)
        except StoreError as fault:
            log.warning("the durations of %s could not be recorded: %s", job, fault)

    def _on_expanded(self, engine: Engine, one: Checked) -> None:
        assert isinstance(one.data, payloads.StageExpanded)
        self._jobs.accept_expansion(one.event.job or "", one.data.stage)

    def _on_given_up(self, engine: Engine, one: Checked) -> None:
        package, state = one.event.package, engine.state.jobs.by_id.get(one.event.job or "")
        if package is not None and state is not None and (at_work := self._jobs.get(state.id)) is not None:
            number = at_work.number(package)
            if number is not None:
                at_work.forget_package(package, attempts=state.last_attempt[number])

    def _on_restarted(self, engine: Engine, one: Checked) -> None:
        job, package = one.event.job or "", one.event.package
        at_work = self._jobs.get(job) if package is not None and self._publisher.waiting(job) else None
        if package is not None and at_work is not None:
            self._publisher.forget(at_work.folder, job, package)
            if (state := engine.state.jobs.by_id.get(job)) is not None and is_over(state):
                self._let_go(job)

    def _on_released(self, engine: Engine, one: Checked) -> None:
        job = one.event.job or ""
        if one.event.package is None and self._publisher.waiting(job):
            self._grant(engine, self._publisher.take_waiting(job))
            state = engine.state.jobs.by_id.get(job)
            if state is not None and is_over(state):
                self._let_go(job)

    def _on_disposed(self, engine: Engine, one: Checked) -> None:
        self._disposed.append(RemovalOrder(_ref(one), one.event.epoch, ""))

    def _note_released(self, engine: Engine, granted: Sequence[AttemptRef]) -> None:
        """Note the files in the trees of earlier jobs that granted packages release."""
        for ref in granted:
            state = engine.state.jobs.by_id.get(ref.job)
            if state is not None and state.plan.releases is not None:
                self._released.update(dict.fromkeys(released_by(state, ref.package)))

    def _on_retention(self, engine: Engine, one: Checked) -> None:
        assert isinstance(one.data, file_payloads.RetentionSet)
        files = (each for each in one.data.files if each.released and job_of(each.locator))
        self._released.update((ReleasedFile(each.locator, each.owner), None) for each in files)

    _HANDLERS: ClassVar[dict[type, Callable[[CommitHandler, Engine, Checked], None]]] = {
        payloads.AttemptFinished: _on_finished,
        payloads.OutputsStaged: _on_staged,
        payloads.StageExpanded: _on_expanded,
        payloads.Aborted: _on_given_up,
        payloads.CancelAccepted: _on_given_up,
        payloads.Released: _on_released,
        payloads.Restarted: _on_restarted,
        file_payloads.OutputsDisposed: _on_disposed,
        file_payloads.RetentionSet: _on_retention,
    }


_GRANTED = payloads.CommitGranted
_ENDS = frozenset({_GRANTED, payloads.Aborted, payloads.CancelAccepted, payloads.AttemptFinished})


def _ref(one: Checked) -> AttemptRef:
    event = one.event
    return AttemptRef(event.job or "", event.package or "", event.attempt or 0)


def is_over(job: JobState) -> bool:
    """Whether nothing more of a job will run unless requested."""
    ended = job.cancelled or job.aborted
    return (not job.unfinished and not job.late) or (ended and not any(work.attempts for work in job.work.values()))
