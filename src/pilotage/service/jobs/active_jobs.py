"""The jobs that are worked on, as they are laid out: enough to say how each package is run. Had from the book when asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from pilotage.language import Expansion
from pilotage.model.errors import PilotageError
from pilotage.model.events.events import parse_dotted
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Work, WorkInput, WorkScript
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.jobs.submission import Origin
from pilotage.model.site import Site
from pilotage.ports import InTheWay, JobTree, Journal, MadeWork, Mark, ResultsIndex, StoredFile, WorkFields
from pilotage.service.jobs.late_stages import Expanded
from pilotage.service.jobs.resubmission import were_concurrent
from pilotage.service.jobs.submission import recall
from pilotage.service.works.manifests import Manifest, Manifests
from pilotage.service.works.reuse import fields_of, is_complete, key_of, made_before, may_be_there, out_of_place
from pilotage.service.works.work_orders import compose, compose_every_way, ways_count

log = logging.getLogger(__name__)

_NUMBERS_MAX = 8192


class ActiveJob:
    """One job, laid out."""

    def __init__(
        self,
        job: str,
        *,
        expansion: Expansion,
        plan: JobPlan,
        origin: Origin,
        staged: str,
        kept: str,
        tree: JobTree,
    ) -> None:
        """Take what the definition and the lists give, where its outputs are staged, and where half of them are kept."""
        self.job = job
        self.expansion = expansion
        self.plan = plan
        self.origin = origin
        self.folder = origin.folder
        self.in_the_way: InTheWay = "set-aside" if origin.replace else "refuse"
        self.has_earlier = False  # some of what it makes may have been made before it
        self._numbers: dict[str, int] = {}  # of packages that were asked for lately
        self._staged = staged
        self._kept = kept
        self._asked: dict[AttemptRef, tuple[int, WorkFields, tuple[WorkInput, ...]]] = {}  # of attempts under way
        self._keys: dict[AttemptRef, str] = {}  # of those of them whose key was asked for
        self._placed: dict[AttemptRef, dict[str, StoredFile]] = {}  # their inputs whose checksums are not known
        self._tree = tree
        self._mark: Mark | None = None  # made for the first attempt
        self._looked_at: JobPlan | None = None  # as it was when `_by_site` was found out
        self._by_site = False

    def number(self, package: str) -> int | None:
        """The number of the package at a dotted place."""
        found = self._numbers.get(package)
        if found is None:
            place = parse_dotted(package)
            found = None if place is None else self.plan.number(place.stage, place.line, place.number)
            if found is not None:  # and stays so, also where the job grows
                if len(self._numbers) >= _NUMBERS_MAX:
                    self._numbers.clear()
                self._numbers[package] = found
        return found

    def number_of(self, ref: AttemptRef) -> int | None:
        """The number of the package of an attempt: of one that is under way it is remembered."""
        asked = self._asked.get(ref)
        return asked[0] if asked is not None else self.number(ref.package)

    def work(self, assignment: Assignment, manifests: Manifests, *, site: Site | None = None) -> Work:
        """How an attempt is run at a site; what it is asked for is remembered until it is over, the same for every site."""
        number = self.number(assignment.ref.package)
        if number is None:
            raise PilotageError("the job has no such package", subject=str(assignment.ref))
        numbers, granted = self._numbers, {}
        for source in assignment.inputs:
            found = numbers.get(source.package)
            if found is None:
                found = self.number(source.package)
            if found is not None:
                granted[found] = AttemptRef(self.job, source.package, source.attempt)
        if self._mark is None:
            self._mark = self._tree.mark(self.folder, self.job)

        def manifest_of(producer: int) -> Manifest | None:
            return manifests.of(granted[producer]) if producer in granted else None

        producers = sorted(granted)
        work = compose(
            self.expansion,
            number,
            assignment,
            self.origin,
            staged=self._staged,
            kept=self._kept,
            mark=self._mark,
            granted=producers,
            manifest_of=manifest_of,
            site=site,
        )
        asked = [work]
        if self._is_started_by_site() and ways_count(self.expansion, number) > 1:
            asked = compose_every_way(
                self.expansion, number, assignment, self.origin, granted=producers, manifest_of=manifest_of
            )
        if work.pre or work.post:
            asked = [self._with_scripts_of_now(each) for each in asked]
        fields = fields_of(*asked)
        self._asked[assignment.ref] = (number, fields, work.inputs)
        self._keys.pop(assignment.ref, None)
        if not is_complete(fields):
            unknown = [name for name, sha256 in fields.inputs.items() if not sha256]
            self._placed[assignment.ref] = self._tree.look_up(self.folder, unknown)
        return work

    def _is_started_by_site(self) -> bool:
        """Whether it depends on the site how any of its packages is started; nearly always it does not."""
        plan = self.plan
        if self._looked_at is not plan:
            self._looked_at, self._by_site = plan, any(each.starts for each in plan.templates)
        return self._by_site

    def _with_scripts_of_now(self, work: Work) -> Work:
        """The same with the scripts beside it as they are: they run in the folder, and not as they were captured."""

        def of_now(script: WorkScript | None) -> WorkScript | None:
            if script is None or not script.files:
                return script
            checksum = partial(self._tree.checksum, self.folder)
            files = [msgspec.structs.replace(each, sha256=checksum(each.name) or each.sha256) for each in script.files]
            return msgspec.structs.replace(script, files=tuple(files))

        return msgspec.structs.replace(work, pre=of_now(work.pre), post=of_now(work.post))

    def asked_again(self, assignment: Assignment, manifests: Manifests) -> None:
        """Work out what an attempt was asked for that a service has given out which is gone.

        Of inputs without a checksum nobody knows any more which files they were.
        """
        self.work(assignment, manifests)
        self._placed.pop(assignment.ref, None)

    def knows(self, ref: AttemptRef) -> bool:
        """Whether it is remembered what an attempt was asked for."""
        return ref in self._asked

    def reads(self, ref: AttemptRef) -> tuple[str, ...]:
        """The names of the files that an attempt reads, as far as it is remembered."""
        asked = self._asked.get(ref)
        return tuple(each.name for each in asked[2]) if asked is not None else ()

    def earlier_key(self, ref: AttemptRef) -> tuple[str, str] | None:
        """The folder and the key under which an earlier run may have made what an attempt is asked for."""
        asked = self._asked.get(ref) if self.has_earlier else None
        if asked is None or not is_complete(asked[1]):
            return None
        key = self._keys[ref] = key_of(asked[1])
        return self.folder, key

    def made(self, ref: AttemptRef, manifest: Manifest) -> MadeWork:
        """What a granted attempt made, for those who ask for the same later."""
        _, fields, _ = self._asked.pop(ref)
        placed = self._placed.pop(ref, {})
        return MadeWork(
            key=self._keys.pop(ref, "") or key_of(fields),
            fields=fields,
            folder=self.folder,
            document=self.expansion.definition.job,
            ref=ref,
            manifest=manifest,
            placed=placed,
        )

    def forget(self, ref: AttemptRef) -> None:
        """An attempt is over without a grant."""
        self._asked.pop(ref, None)
        self._keys.pop(ref, None)
        self._placed.pop(ref, None)

    def forget_package(self, package: str, *, attempts: int) -> None:
        """Nothing more comes of the attempts of a package, so many as there were: another has won, or it was given up."""
        for attempt in range(1, attempts + 1):
            self.forget(AttemptRef(self.job, package, attempt))


class ActiveJobs:
    """Every job that is worked on, by its id. Threads may ask at once."""

    def __init__(self, journal: Journal, *, tree: JobTree, index: ResultsIndex) -> None:
        """Have jobs from the book of a journal, their folders from a tree, and what was made before from an index."""
        self._journal = journal
        self._tree = tree
        self._index = index
        self._jobs: dict[str, ActiveJob] = {}
        self._offered: dict[tuple[str, int], Expanded] = {}
        self._guard = threading.RLock()
        self.on_let_go: Callable[[str], None] = lambda _: None

    def bring(self, job: str, *, expansion: Expansion, plan: JobPlan, origin: Origin) -> ActiveJob:
        """Take a job in that is about to be registered, or was recalled."""
        staged = self._tree.staged_folder(origin.folder, job)
        kept = self._tree.kept_folder(job)
        at_work = ActiveJob(
            job, expansion=expansion, plan=plan, origin=origin, staged=staged, kept=kept, tree=self._tree
        )
        at_work.has_earlier = may_be_there(expansion, origin, self._index)
        with self._guard:
            self._jobs[job] = at_work
        return at_work

    def get(self, job: str) -> ActiveJob | None:
        """A job; recalled from the book where it is not here. None where the book has no definition of it."""
        found = self._jobs.get(job)
        if found is not None:
            return found
        with self._guard:
            return self._jobs.get(job) or self._recall(job)

    def laid_out(self, job: str) -> Expansion | None:
        """The layout of a job that is here; no other is recalled for it."""
        found = self._jobs.get(job)
        return found.expansion if found is not None else None

    def reused(self, work: list[Work], assignments: Sequence[Assignment]) -> list[Work]:
        """The same work, with what an earlier run made of the very same inputs instead of how to make it again.

        What depends on nothing that its job makes was looked for when that came in.
        """
        keys = {
            earlier: number
            for number, assignment in enumerate(assignments)
            if assignment.inputs
            and assignment.ref.attempt == 1
            and (at_work := self.get(assignment.ref.job)) is not None
            and (earlier := at_work.earlier_key(assignment.ref)) is not None
        }
        for folder in {folder for folder, _ in keys}:
            found = self._index.find(folder, [key for where, key in keys if where == folder])
            if not found:
                continue
            faults = out_of_place(found.values(), folder, tree=self._tree, index=self._index)
            for key, made in found.items():
                if key not in faults:
                    number = keys[folder, key]
                    told = {"adopted": made.manifest, "message": made_before(made.ref)}
                    work[number] = msgspec.structs.replace(work[number], **told)
        return work

    def _recall(self, job: str) -> ActiveJob | None:
        row = self._journal.job(job)
        if row is None or row.definition is None or row.place == "purged":
            return None
        try:
            found = recall(self._journal, row)
            return self.bring(job, expansion=found.expansion, plan=found.plan, origin=found.origin)
        except PilotageError as fault:
            log.warning("job %s cannot be laid out again: %s", job, fault)
            return None

    def beside(self, folder: str, jobs: Collection[str]) -> list[tuple[str, Expansion]]:
        """Which of some jobs are of a folder, laid out."""
        found = ((job, self.get(job)) for job in sorted(jobs))
        return [(job, each.expansion) for job, each in found if each is not None and each.folder == folder]

    def were_concurrent(self, job: str, other: str) -> bool:
        """Whether a job must not replace what another has made."""
        return were_concurrent(self._journal, job, other)

    def release(self, job: str) -> None:
        """A job is over, or was not taken: it is had from the book should anybody ask."""
        with self._guard:
            self._jobs.pop(job, None)
            for key in [key for key in self._offered if key[0] == job]:
                del self._offered[key]
        self.on_let_go(job)

    def offer_growth(self, job: str, stage: int, expanded: Expanded) -> None:
        """A job with one more stage, which holds once the core has written so."""
        with self._guard:
            self._offered[job, stage] = expanded

    def take_growth(self, job: str, stage: int) -> None:
        """The stage was written: the job is laid out with it from now on."""
        with self._guard:
            expanded = self._offered.pop((job, stage), None)
            at_work = self._jobs.get(job)
            if at_work is not None and expanded is not None:
                at_work.expansion, at_work.plan = expanded.expansion, expanded.plan
            elif at_work is None or any(late.stage == stage for late in at_work.expansion.late):
                self._jobs.pop(job, None)  # recalled with everything when it is asked for
