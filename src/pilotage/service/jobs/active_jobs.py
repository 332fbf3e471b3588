"""The active jobs, expanded: enough to write the work order of each package. Loaded from the book on demand."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from pilotage.language import Expansion
from pilotage.language.file_plan import brought_files
from pilotage.model.errors import PilotageError
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.payloads import InputInPlace
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Work, WorkInput, WorkScript
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.jobs.submission import Origin
from pilotage.model.site import Site
from pilotage.ports import InTheWay, JobTree, Journal, MadeWork, Mark, ResultsIndex, StoredFile, WorkFields
from pilotage.service.jobs.late_stages import Expanded
from pilotage.service.jobs.resubmission import were_concurrent
from pilotage.service.jobs.submission import recall
from pilotage.service.transfers.leftover_copies import Standing
from pilotage.service.transfers.storing import OutputCopy
from pilotage.service.works.manifests import Manifest, Manifests
from pilotage.service.works.reuse import changed_outputs, fields_of, is_complete, key_of, made_before, may_be_there
from pilotage.service.works.site_files import NO_SITE, SiteFiles
from pilotage.service.works.stored_copies import contents_named, earlier_copies, owed_copies, standing_of
from pilotage.service.works.work_orders import compose, compose_every_way, ways_count

log = logging.getLogger(__name__)

_NUMBERS_MAX = 8192


class ActiveJob:
    """One expanded job."""

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
        """Take the job's expansion and plan, where its outputs are staged, and where partial ones are kept."""
        self.job = job
        self.expansion = expansion
        self.plan = plan
        self.origin = origin
        self.folder = origin.folder
        self.in_the_way: InTheWay = "set-aside" if origin.replace else "refuse"
        self.has_earlier = False  # some of its outputs may exist from earlier runs
        self._numbers: dict[str, int] = {}  # of recently requested packages
        self._staged = staged
        self._kept = kept
        # Of running attempts: number, fields and inputs of the package, and the speed of the site, if known.
        self._asked: dict[AttemptRef, tuple[int, WorkFields, tuple[WorkInput, ...], float | None]] = {}
        self._incomplete: set[AttemptRef] = set()  # of those: some of their inputs were not complete yet
        self._keys: dict[AttemptRef, str] = {}  # of those whose key was requested
        self._placed: dict[AttemptRef, dict[str, StoredFile]] = {}  # their inputs without known checksums
        self._tree = tree
        self._mark: Mark | None = None  # made for the first attempt
        self._looked_at: JobPlan | None = None  # as it was when `_by_site` was computed
        self._by_site = False
        self._named: tuple[Expansion | None, frozenset[str]] = (None, frozenset())  # contents, of this expansion

    def named_contents(self) -> frozenset[str]:
        """The contents of the service's own store that it names, by sha256."""
        if self._named[0] is not self.expansion:
            self._named = (self.expansion, contents_named(self.expansion))
        return self._named[1]

    def number(self, package: str) -> int | None:
        """The number of the package at a dotted place."""
        found = self._numbers.get(package)
        if found is None:
            place = parse_dotted(package)
            found = None if place is None else self.plan.number(place.stage, place.line, place.number)
            if found is not None:  # and does not change when the job grows
                if len(self._numbers) >= _NUMBERS_MAX:
                    self._numbers.clear()
                self._numbers[package] = found
        return found

    def number_of(self, ref: AttemptRef) -> int | None:
        """The number of an attempt's package; cached for running attempts."""
        asked = self._asked.get(ref)
        return asked[0] if asked is not None else self.number(ref.package)

    def work(
        self, assignment: Assignment, manifests: Manifests, *, site: Site | None = None, files: SiteFiles = NO_SITE
    ) -> Work:
        """The work order of an attempt at a site; its key, the same for every site, is remembered until it ends.

        `files` has the files that were brought to the site.
        """
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
            files=files,
        )
        asked = [work]
        if self._is_started_by_site() and ways_count(self.expansion, number) > 1:
            asked = compose_every_way(
                self.expansion, number, assignment, self.origin, granted=producers, manifest_of=manifest_of,
                site=site, files=files,
            )  # fmt: skip
        if work.pre or work.post:
            asked = [self._with_scripts_of_now(each) for each in asked]
        fields = fields_of(*asked)
        self._asked[assignment.ref] = (number, fields, work.inputs, site.speed if site is not None else None)
        self._keys.pop(assignment.ref, None)
        (self._incomplete.add if assignment.early else self._incomplete.discard)(assignment.ref)
        if not is_complete(fields):
            unknown = [name for name, sha256 in fields.inputs.items() if not sha256]
            self._placed[assignment.ref] = self._tree.look_up(self.folder, unknown)
        return work

    def _is_started_by_site(self) -> bool:
        """Whether the command of any package depends on the site; it nearly never does."""
        plan = self.plan
        if self._looked_at is not plan:
            self._looked_at, self._by_site = plan, any(each.starts for each in plan.templates)
        return self._by_site

    def _with_scripts_of_now(self, work: Work) -> Work:
        """The work order with the current contents of its scripts: they run in the folder, not as captured."""

        def of_now(script: WorkScript | None) -> WorkScript | None:
            if script is None or not script.files:
                return script
            checksum = partial(self._tree.checksum, self.folder)
            files = [msgspec.structs.replace(each, sha256=checksum(each.name) or each.sha256) for each in script.files]
            return msgspec.structs.replace(script, files=tuple(files))

        return msgspec.structs.replace(work, pre=of_now(work.pre), post=of_now(work.post))

    def recompute_key(self, assignment: Assignment, manifests: Manifests) -> None:
        """Recompute the key of an attempt that an earlier service assigned.

        Inputs without a checksum are no longer known.
        """
        self.work(assignment, manifests)
        self._placed.pop(assignment.ref, None)

    def knows(self, ref: AttemptRef) -> bool:
        """Whether the key of an attempt is known; that of one that started early is, once its inputs are complete."""
        return ref in self._asked and ref not in self._incomplete

    def reads(self, ref: AttemptRef) -> tuple[str, ...]:
        """The files that an attempt reads, as far as known."""
        asked = self._asked.get(ref)
        return tuple(each.name for each in asked[2]) if asked is not None else ()

    def brought(self, ref: AttemptRef) -> list[InputInPlace]:
        """The inputs of an attempt that came from the cache of its site; mostly none."""
        if self.plan.files is None:
            return []
        asked = self._asked.get(ref)
        cached = [each for each in asked[2] if each.cached] if asked is not None else ()
        if asked is None or not cached:
            return []
        locators = {each.name: each.locator for each in brought_files(self.expansion, asked[0])}
        return [
            InputInPlace(
                name=each.name, size_bytes=each.size_bytes, sha256=each.sha256, locator=locators.get(each.name, "")
            )
            for each in cached
        ]

    def brings_files(self, ref: AttemptRef) -> bool:
        """Whether an attempt reads files that were brought to its site."""
        asked = self._asked.get(ref)
        return asked is not None and any(each.cached for each in asked[2])

    def placed(self, ref: AttemptRef) -> dict[str, StoredFile]:
        """The inputs of an attempt without a known checksum, as they were when it was assigned."""
        return self._placed.get(ref, {})

    def speed(self, ref: AttemptRef) -> float | None:
        """The speed of the site where an attempt runs; None if unknown."""
        asked = self._asked.get(ref)
        return asked[3] if asked is not None else None

    def input_bytes(self, ref: AttemptRef) -> int | None:
        """The size of the inputs of a running attempt, without its programs; None if any is unknown."""
        asked = self._asked.get(ref)
        if asked is None:
            return None
        placed, total = self._placed.get(ref, {}), 0
        for each in asked[2]:
            if each.executable:
                continue
            if each.sha256 and each.size_bytes is not None:
                total += each.size_bytes
            elif each.name in placed:
                total += placed[each.name].size_bytes
            else:
                return None
        return total

    def earlier_key(self, ref: AttemptRef) -> tuple[str, str] | None:
        """The folder and the key under which an earlier run may have made the outputs of an attempt."""
        asked = self._asked.get(ref) if self.has_earlier else None
        if asked is None or ref in self._incomplete or not is_complete(asked[1]):
            return None
        key = self._keys[ref] = key_of(asked[1])
        return self.folder, key

    def made(self, ref: AttemptRef, manifest: Manifest) -> MadeWork:
        """The result of a granted attempt, for reuse by later runs."""
        _, fields, *_ = self._asked.pop(ref)
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
        """An attempt ended without a grant."""
        self._asked.pop(ref, None)
        self._incomplete.discard(ref)
        self._keys.pop(ref, None)
        self._placed.pop(ref, None)

    def forget_package(self, package: str, *, attempts: int) -> None:
        """The attempts of a package are no longer needed: another was granted, or the package was given up."""
        for attempt in range(1, attempts + 1):
            self.forget(AttemptRef(self.job, package, attempt))


class ActiveJobs:
    """All active jobs by id. Several threads may use it."""

    def __init__(self, journal: Journal, *, tree: JobTree, index: ResultsIndex) -> None:
        """Load jobs from a journal, their folders from a tree, and earlier results from an index."""
        self._journal = journal
        self._tree = tree
        self._index = index
        self._jobs: dict[str, ActiveJob] = {}
        self._offered: dict[tuple[str, int], Expanded] = {}
        self._guard = threading.RLock()
        self.on_let_go: Callable[[str], None] = lambda _: None

    def bring(self, job: str, *, expansion: Expansion, plan: JobPlan, origin: Origin) -> ActiveJob:
        """Add a job that is about to be registered, or was loaded."""
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
        """A job, loaded from the book if necessary; None if the book has no definition of it."""
        found = self._jobs.get(job)
        if found is not None:
            return found
        with self._guard:
            return self._jobs.get(job) or self._recall(job)

    def owed_copies(self, ref: AttemptRef, archives: Sequence[str]) -> list[OutputCopy]:
        """The copies of its outputs that an attempt owes to stores; `archives` are the URLs of the archive stores.

        Raises `PilotageError`. For threads of their own: it reads the book.
        """
        at_work, manifest = self.get(ref.job), Manifests(self._journal).of(ref)
        number = at_work.number(ref.package) if at_work is not None else None
        if at_work is None or number is None or manifest is None:
            raise PilotageError("nothing is known of its outputs", subject=f"{ref.job} {ref.package}")
        folder = at_work.folder

        def source(position: int) -> str:
            staged = self._tree.staged_file(folder, ref, position)
            # Outputs of an earlier run that were adopted, or that are published already, are in place.
            return staged if Path(staged).exists() else str(Path(folder, manifest[position].name))

        return owed_copies(
            ref,
            expansion=at_work.expansion,
            number=number,
            manifest=manifest,
            source=source,
            archives=archives,
            earlier=earlier_copies(self._journal, ref),
            owner=self._owner_of(ref.job),
        )

    def standing_of(self, ref: AttemptRef) -> Standing:
        """Whether an attempt was granted, may still be, or never will; unknown once its job was purged."""
        return standing_of(self._journal, ref)

    def _owner_of(self, job: str) -> str:
        row = self._journal.job(job)
        return row.owner if row is not None and row.owner is not None else ""

    def needed_contents(self) -> frozenset[str]:
        """The contents of the service's own store that active jobs name, by sha256."""
        with self._guard:
            active = list(self._jobs.values())
        return frozenset().union(*(each.named_contents() for each in active))

    def expansion_of(self, job: str) -> Expansion | None:
        """The expansion of an active job; does not load any."""
        found = self._jobs.get(job)
        return found.expansion if found is not None else None

    def work_orders(
        self, assignments: Iterable[Assignment], manifests: Manifests, *, site: Site | None, files: SiteFiles
    ) -> list[Work]:
        """The work orders of attempts at a site; one that cannot be written says why."""
        return [self._work_order(each, manifests, site, files) for each in assignments]

    def _work_order(self, assignment: Assignment, manifests: Manifests, site: Site | None, files: SiteFiles) -> Work:
        at_work = self.get(assignment.ref.job)
        if at_work is None:
            return Work(path="", name="", index=0, folder="", staged="", refused="the definition of its job is missing")
        try:
            return at_work.work(assignment, manifests, site=site, files=files)
        except PilotageError as fault:
            refused = str(fault)
        except Exception as fault:
            log.exception("the work order of %s cannot be written", assignment.ref)
            refused = f"{type(fault).__name__}: {fault}"
        return Work(path="", name="", index=0, folder=at_work.folder, staged="", refused=refused)

    def reused(self, work: list[Work], assignments: Sequence[Assignment]) -> list[Work]:
        """The work orders, replaced by earlier results where the inputs are the same.

        Packages without producers in their job were looked up when the job was submitted, unless files are brought to their
        site, whose contents may not have been known then.
        """
        keys = {
            earlier: number
            for number, assignment in enumerate(assignments)
            if assignment.ref.attempt == 1
            and (at_work := self.get(assignment.ref.job)) is not None
            and (assignment.inputs or at_work.brings_files(assignment.ref))
            and (earlier := at_work.earlier_key(assignment.ref)) is not None
        }
        for folder in {folder for folder, _ in keys}:
            found = self._index.find(folder, [key for where, key in keys if where == folder])
            if not found:
                continue
            faults = changed_outputs(found.values(), folder, tree=self._tree, index=self._index)
            for key, made in found.items():
                if key not in faults:
                    number = keys[folder, key]
                    changes = {"adopted": made.manifest, "message": made_before(made.ref)}
                    work[number] = msgspec.structs.replace(work[number], **changes)
        return work

    def _recall(self, job: str) -> ActiveJob | None:
        row = self._journal.job(job)
        if row is None or row.definition is None or row.place == "purged":
            return None
        try:
            found = recall(self._journal, row)
            return self.bring(job, expansion=found.expansion, plan=found.plan, origin=found.origin)
        except PilotageError as fault:
            log.warning("job %s cannot be expanded again: %s", job, fault)
            return None

    def beside(self, folder: str, jobs: Collection[str]) -> list[tuple[str, Expansion]]:
        """Those of the given jobs that use a folder, expanded."""
        found = ((job, self.get(job)) for job in sorted(jobs))
        return [(job, each.expansion) for job, each in found if each is not None and each.folder == folder]

    def were_concurrent(self, job: str, other: str) -> bool:
        """Whether a job must not replace another one's outputs."""
        return were_concurrent(self._journal, job, other)

    def release(self, job: str) -> None:
        """Drop a finished or rejected job; it is loaded from the book if needed again."""
        with self._guard:
            self._jobs.pop(job, None)
            for key in [key for key in self._offered if key[0] == job]:
                del self._offered[key]
        self.on_let_go(job)

    def offer_expansion(self, job: str, stage: int, expanded: Expanded) -> None:
        """Keep the expansion with one more stage until the core has written it."""
        with self._guard:
            self._offered[job, stage] = expanded

    def accept_expansion(self, job: str, stage: int) -> None:
        """The stage was written: use the expansion that includes it."""
        with self._guard:
            expanded = self._offered.pop((job, stage), None)
            at_work = self._jobs.get(job)
            if at_work is not None and expanded is not None:
                at_work.expansion, at_work.plan = expanded.expansion, expanded.plan
            elif at_work is None or any(late.stage == stage for late in at_work.expansion.late):
                self._jobs.pop(job, None)  # loaded with all stages when it is next needed
