"""The service that runs jobs: the core with its journal, sites, files and agents.

The driver calls it in one thread; other callers get a future. Everything it holds about a job follows from the book and
can be loaded again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from pilotage.book.codec import Codec
from pilotage.book.rows.rows import StreamRow
from pilotage.engine.engine import Engine
from pilotage.language import Expansion
from pilotage.model.answers import CleanRequest, ObsoleteFiles
from pilotage.model.events.payloads import InputInPlace
from pilotage.model.exchange.exchange import (
    AgentMessage,
    AgentReply,
    Assignment,
    AttemptRef,
    ExchangeReply,
    LogText,
)
from pilotage.model.exchange.operations import (
    Accepted,
    AnyOperation,
    Clear,
    Drop,
    DropFiles,
    Effect,
    ExpandStage,
    FileEffect,
    Kill,
    LineFiles,
    Reschedule,
    Restart,
    Restore,
    SiteDeed,
)
from pilotage.model.exchange.reports import SiteAgentMessage
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site, executors_of
from pilotage.model.states import ClearedBy
from pilotage.ports import AttemptLogs, Clock, JobTree, Journal, ResultsIndex, SiteAccess
from pilotage.service.core import Core
from pilotage.service.errors import OperationRefused, Unpublished
from pilotage.service.jobs.active_jobs import ActiveJobs
from pilotage.service.jobs.agent_access import AgentAccess
from pilotage.service.jobs.clean import clean, removal_notes
from pilotage.service.jobs.driver import Driver
from pilotage.service.jobs.dropped_files import Disposals, Removals, granted_in, packages_of_line, unfinished_removals
from pilotage.service.jobs.late_stages import Expanded, Expander
from pilotage.service.jobs.output_claims import GrantedFiles, OutputClaims
from pilotage.service.jobs.publishing import CommitHandler, hold_for, is_over
from pilotage.service.jobs.refusals import KnownStores
from pilotage.service.jobs.resubmission import (
    earlier_runs,
    later_tags,
    lost,
    refuse_contested_outputs,
    releases,
    statuses_of,
    superseded_by,
    unfinished_jobs,
)
from pilotage.service.jobs.startup import Shutdown, snapshot_of, start_from
from pilotage.service.jobs.submission import Prepared, Submission, SubmissionAnswer, prepare, submit_message, unmade
from pilotage.service.journal.retention import Action, clear_job
from pilotage.service.journal.writer import Batch, Writer
from pilotage.service.messages import JobSealed, OperationRequest, Outbox, Reload
from pilotage.service.sites.agent_worker import AgentSettings
from pilotage.service.sites.config_watch import site_operation, sites_changed
from pilotage.service.sites.pool import SiteConnection, SiteWorkers, expected_at, first_report, has_activity, unheard_at
from pilotage.service.sites.worker import AtSite, unknown_at
from pilotage.service.transfers.file_orders import FileOrders, MakesTransfers
from pilotage.service.works.consumed import InputsInPlace, description, undescribed_inputs
from pilotage.service.works.kept_outputs import KeptOutputs
from pilotage.service.works.manifests import Manifest, Manifests
from pilotage.service.works.reuse import EarlierResult, adopt
from pilotage.service.works.site_files import NO_SITE, FilesAtSites
from pilotage.service.works.stale_results import StaleResults

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_encode = msgspec.json.Encoder().encode
_NOBODY = 0  # the token of operations that the service itself requests


class Runner:
    """Runs jobs, behind a few methods that any thread may call."""

    def __init__(
        self,
        *,
        journal: Journal,
        writer: Writer,
        clock: Clock,
        codec: Codec,
        sites: Sequence[Site],
        accesses: Mapping[str, SiteAccess],
        agent_sites: Mapping[str, AgentSettings] | None = None,
        tree: JobTree,
        index: ResultsIndex,
        logs: AttemptLogs,
        settings: EngineSettings,
        package_token: Callable[[AttemptRef], str] | None = None,
        variables: Sequence[str] = (),
        make_transfers: MakesTransfers | None = None,
        visible_seconds: float = 0.0,
        known_stores: KnownStores | None = None,
    ) -> None:
        """Put the parts together; nothing runs before `start`.

        `accesses` has an access to each site by name, except for the `agent_sites`, which have site agents.
        `package_token` makes the token of a running attempt. Agents report the environment `variables` of their nodes.
        """
        self._journal, self._writer = journal, writer
        self._clock, self._codec = clock, codec
        self._sites, self._known_stores = sites, known_stores
        self.tree, self.logs = tree, logs
        self._index, self._settings = index, settings
        self._package_token, self._variables = package_token, tuple(variables)
        self._manifests = Manifests(journal)
        self._jobs = ActiveJobs(journal, tree=tree, index=index)
        driver = self._driver = Driver(writer=writer, clock=clock, handler=self)
        self._inputs = InputsInPlace(tree, index, self._describe_inputs)
        self._removals = Removals(
            self._jobs, journal=journal, writer=writer, codec=codec, clock=clock, tree=tree, index=index, ask=driver.ask
        )
        self._disposals = Disposals(self._removals, lambda: self._file_orders.remove_leftovers(self._jobs.standing_of))
        self._commit_handler = CommitHandler(
            self._jobs, self._manifests, tree=tree, index=index, hold=lambda *held: self._request(hold_for(*held)), inputs=self._inputs,
            on_its_way=driver.on_its_way, yielding=driver.yielding, dispose=self._disposals.want, remake=self._request,
            compare=StaleResults(
                self._jobs.expansion_of, self._manifests, journal=journal, write=writer.submit, codec=codec, clock=clock
            ).note, release=self._disposals.release,
        )  # fmt: skip
        self._workers = SiteWorkers(
            {**accesses, **(agent_sites or {})},
            report=driver.receive,
            expected=lambda site: driver.ask(partial(expected_at, site)).result(),
            unknown=lambda site, keys: driver.ask(partial(unknown_at, site, keys)).result(),
            unheard=lambda site: driver.ask(partial(unheard_at, site)).result(),
        )
        self._file_orders: FileOrders = FileOrders(
            self._workers, make_transfers, report=driver.receive, outputs=self._jobs.owed_copies
        )
        self.transfers, self.ordered_fetch = self._file_orders.transfers, self._workers.ordered_fetch
        self.site_files = FilesAtSites(self._file_orders.cache_of, visible_seconds=visible_seconds, ask=driver.ask)
        self._shutdown = Shutdown(driver, self._workers)
        self.wind_down, self.change_files = self._shutdown.down, driver.change_files  # while agents are still answered
        self._expander = Expander(self, journal, stores=known_stores, ask=self._driver.ask, tell=self._driver.receive)
        self._submitter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="submitter")
        self._granted_files = GrantedFiles(journal, index)
        self._claims = OutputClaims(self._jobs, self._manifests, tree)
        self._removing: frozenset[str] = frozenset()  # jobs whose files are being removed
        access = AgentAccess(journal, self._jobs, self._manifests)
        self.reads, self.ran = access.reads, access.ran
        self._core: Core | None = None
        self.look_at_sites: Callable[[], None] | None = None  # whether the set of sites changed

    # --- for callers in any thread ---

    def start(self) -> None:
        """Resume from the book; returns when agents and users are answered."""
        self._driver.receive(*map(first_report, self._workers.names))  # before the first decision
        self._driver.start()
        if wanted := self._driver.ask(unfinished_removals).result():
            self._removing = frozenset(wanted)
            self._submitter.submit(self._finish_removals, wanted)
        self._driver.ask(self._disposals.resume).result()
        self._expander.start()
        self._workers.start()
        self._driver.receive(sites_changed(self._sites))  # the book records the sites, and which are gone

    def stop(self) -> None:
        """Shut down in order; what runs at the sites continues."""
        self._shutdown.down(patience_seconds=0.0)
        self._workers.stop()
        self._file_orders.stop()
        self._submitter.shutdown(wait=True, cancel_futures=True)
        self._disposals.stop()
        self._driver.stop()
        self._expander.stop()
        self._commit_handler.stop()
        self.tree.close()
        self._index.close()
        self.logs.close()

    @property
    def alive(self) -> bool:
        """Whether requests will be answered."""
        return self._driver.alive

    @property
    def broken(self) -> str:
        """Why no jobs run any more, though it was not stopped; empty while it works."""
        return self._driver.broken

    @property
    def left_behind(self) -> Sequence[str]:
        """The batch jobs that could not be cancelled at sites when it stopped, in words."""
        return self._workers.left_behind

    @property
    def sites(self) -> Sequence[Site]:
        """The sites it uses."""
        return self._sites

    def exchange(self, says: AgentMessage) -> Future[bytes]:
        """Process an agent's exchange; the encoded answer, once everything it depends on is durable."""
        return self._driver.exchange(says)

    def exchange_with_site(self, says: SiteAgentMessage) -> Future[bytes]:
        """Process a site agent's exchange; the encoded answer, which may take long. Raises `UnknownSite`."""
        return self._workers.exchange(says)

    def site_message(self, site: str) -> str:
        """The last error of a site that delays work there; empty if there is none."""
        return self._workers.last_error(site)

    def scheduler_at(self, site: str) -> str:
        """The batch system of a site and its version, such as `slurm 23.02.6`, as far as known."""
        return self._workers.scheduler(site)

    def change_sites(
        self,
        sites: Sequence[Site],
        connections: Mapping[str, SiteConnection],
        *,
        renewed: Collection[str] = (),
        formers: Mapping[str, SiteConnection] | None = None,
    ) -> None:
        """Set the sites, with new accesses to some; `release_sites` drops those that are gone.

        Earlier pilots of `renewed` sites are drained; `formers` are accesses to the former batch systems of some of
        them.
        """
        new = connections.keys() - self._workers.names  # reports about these go to the workers that know them
        for name in connections.keys() - new:
            self._workers.put(name, connections[name], former=(formers or {}).get(name))
        self._sites = sites
        self._driver.receive(sites_changed(sites, rewritten=connections, renewed=renewed), *map(first_report, new))
        for name in new:
            self._workers.put(name, connections[name])

    def release_sites(self) -> None:
        """Stop the workers of sites that are gone, once nothing is left there."""
        self._workers.release_formers()
        left = {*self._workers.names} - {site.name for site in self._sites}
        for name in left:
            if not self._workers.owes(name) and not self._driver.ask(partial(has_activity, name)).result():
                self._workers.remove(name)

    def operate_site(self, deed: SiteDeed, site: str, *, message: str = "") -> Future[Accepted]:
        """Request an operation on a site; fails with `OperationRefused`."""
        return self._driver.tell(site_operation(deed, site, message=message))

    def operate(self, operation: AnyOperation) -> Future[Accepted]:
        """Request an operation; fails with `OperationRefused`."""
        if isinstance(operation, Restart):
            return self._submitter.submit(self._restart, operation)
        if (
            isinstance(operation, Restore) and operation.job in self._removing
        ):  # so that none of its new files is removed
            return self._submitter.submit(lambda: self._driver.operate(operation).result())
        return self._driver.operate(operation)

    def drop(self, operation: Drop, *, by: str) -> Future[Accepted]:
        """Drop a line, and remove its files if requested; fails with `OperationRefused`."""
        if not operation.remove_files:
            return self._driver.operate(operation)
        return self._submitter.submit(self._drop, operation, by)

    def files_left(self, operation: Drop) -> LineFiles:
        """How many published files of a dropped line exist."""
        at_work = self._jobs.get(operation.job)
        line = packages_of_line(at_work, operation.stage, operation.line) if at_work is not None else ()
        granted = self._driver.ask(partial(granted_in, operation.job, [*line])).result()
        return self._removals.count(operation.job, granted)

    def ask(self, question: Callable[[Engine], Result]) -> Future[Result]:
        """Run a query on the engine; it must not change anything."""
        return self._driver.ask(question)

    @property
    def pending_effects(self) -> Future[None] | None:
        """Completes when the files of all grants durable now are published; None if they are."""
        return self._driver.pending_effects

    def unpublished(self, job: str) -> int:
        """How many grants of a job have no published files; only within an engine query."""
        return self._commit_handler.unpublished(job) + int(self._driver.on_its_way(job))

    def publishing_fault(self, job: str) -> Unpublished | None:
        """A result of a job that could not be published, and why; only within an engine query."""
        return self._commit_handler.fault(job)

    def inputs_pending(self, job: str) -> bool:
        """Whether checksums of the inputs of a finished job are still being worked out: its record must wait for them."""
        if self._inputs.is_pending(job) or self._inputs.is_followed(job):
            return self._inputs.is_pending(job)
        row, at_work = self._journal.job(job), self._jobs.get(job)
        if row is not None and at_work is not None:
            files = undescribed_inputs(self._journal, row, at_work.expansion, at_work.origin, self.tree)
            if files:
                self._inputs.read(job, at_work.folder, files)
                return True
        self._inputs.follow(job)
        return False

    def submit(self, submission: Submission) -> Future[SubmissionAnswer]:
        """Submit a job; fails with `DocumentError` or `OperationRefused`."""
        return self._submitter.submit(self._submit, submission)

    def clear(self, job: str, *, by: ClearedBy) -> Future[Accepted]:
        """Record that the outputs of a finished job were handed over; fails with `OperationRefused`."""
        return self._submitter.submit(self._clear, job, by)

    def clean(self, request: CleanRequest) -> Future[ObsoleteFiles]:
        """Find the files that a document no longer makes, and remove those requested; no job is submitted meanwhile."""
        return self._submitter.submit(self._clean, request)

    def note_retained(self, action: Action) -> None:
        """The book has cleared, sealed or purged a finished job: the engine may release it."""
        self._driver.receive(JobSealed(job=action.job))
        if action.deed == "purge":
            self.logs.forget(action.job)

    def _clear(self, job: str, by: ClearedBy) -> Accepted:
        if self._driver.ask(lambda engine: job in engine.state.jobs.by_id).result():
            return self._driver.operate(Clear(job=job, by=by)).result()
        return clear_job(job, by, journal=self._journal, writer=self._writer, codec=self._codec, clock=self._clock)

    def _clean(self, request: CleanRequest) -> ObsoleteFiles:
        def unfinished(engine: Engine) -> set[str]:
            return {
                job.id for job in engine.state.jobs.by_id.values() if not is_over(job)
            } | self._commit_handler.unpublished_jobs()

        def at_work(job: str) -> tuple[Expansion, Collection[str]] | None:
            found = self._jobs.get(job)
            return (found.expansion, found.origin.captured) if found is not None else None

        found = clean(
            request,
            journal=self._journal,
            tree=self.tree,
            index=self._index,
            learn=self._granted_files.learn,
            unfinished=self._driver.ask(unfinished).result(),
            at_work=at_work,
        )
        if notes := removal_notes(found, journal=self._journal, clock=self._clock):
            self._writer.submit(Batch(*self._codec.check_all(notes), own=True)).result()
        return found

    def _restart(self, operation: Restart) -> Accepted:
        """Restart something; a job that the engine released is loaded in the same step."""
        if not self._driver.ask(lambda engine: operation.job in engine.state.jobs.by_id).result():
            found = snapshot_of(self._journal, self._jobs, operation.job)
            if found is not None:
                before = [Reload(job=found[0], gone=found[1])]
                return self._driver.operate(operation, before=before).result()
        return self._driver.operate(operation).result()

    def _drop(self, operation: Drop, by: str) -> Accepted:
        """Drop a line, record the order to remove its files, and remove them."""
        job, at_work = operation.job, self._jobs.get(operation.job)
        line = packages_of_line(at_work, operation.stage, operation.line) if at_work is not None else {}
        fileless = tuple(package for package, makes in line.items() if not makes)
        fields = {name: getattr(operation, name) for name in Drop.__struct_fields__}
        self._removing = frozenset({job})
        try:
            accepted = self._driver.operate(DropFiles(**fields, by=by, fileless=fileless)).result()
            done = self._removals.finish(job, line)
        finally:
            self._removing = frozenset()
        granted = self._driver.ask(partial(granted_in, job, [*line])).result()
        read = [each for each in granted if each.ref.package not in fileless]
        return msgspec.structs.replace(accepted, files=self._removals.kept_for_readers(done, read))

    def _finish_removals(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Finish removals that an earlier service had been ordered to do."""
        try:
            for job, packages in wanted.items():
                self._removals.finish(job, packages)
        except Exception:
            log.exception("files of dropped lines could not be removed: the next start tries again")
        finally:
            self._removing = frozenset()

    def _describe_inputs(self, job: str, files: Sequence[InputInPlace]) -> None:
        """Write which inputs a job read in place; an event would unseal a sealed job."""
        row = self._journal.job(job)
        if row is not None and row.place == "live" and files:
            event = description(row, files, journal=self._journal, clock=self._clock)
            self._writer.submit(Batch(*self._codec.check_all([event]), own=True)).result()

    # --- submission, in a thread of its own ---

    def _prepared(self, submission: Submission) -> Prepared:
        return prepare(
            submission,
            journal=self._journal,
            tree=self.tree,
            index=self._index,
            owner=submission.owner,
            executors=executors_of(self._sites),
            contents=self.site_files.contents,
            stores=self._known_stores,
        )

    def _submit(self, submission: Submission) -> SubmissionAnswer:
        prepared = self._prepared(submission)
        if prepared.origin.unknown_executors and self.look_at_sites is not None:
            self.look_at_sites()  # so that a site added a moment ago is known
            prepared = self._prepared(submission)
        unpublished = self._driver.ask(lambda _: self._commit_handler.unpublished_jobs()).result()
        earlier = earlier_runs(self._journal, submission, prepared, unpublished=unpublished)
        if earlier.same:
            self._annotate(earlier.same, prepared)
            return self._go_on(earlier.same, prepared)
        count, adopted = prepared.expansion.wanted, len(prepared.adopted)
        there = adopted == count and not prepared.plan.late and not unmade(prepared)
        annotated = submission.annotations or submission.custom  # then a job is made that has them
        if submission.only_if_needed and there and not earlier.others and not annotated:
            return SubmissionAnswer(job="", packages=count, adopted=adopted)
        unfinished = self._driver.ask(unfinished_jobs).result() - {*earlier.others}
        beside = self._jobs.beside(prepared.origin.folder, unfinished)
        refuse_contested_outputs(prepared.expansion, prepared.origin.folder, beside)
        self._claims.contest(prepared.job, prepared.expansion, beside)
        self._jobs.bring(prepared.job, expansion=prepared.expansion, plan=prepared.plan, origin=prepared.origin)
        try:
            self._driver.submit(
                partial(submit_message, prepared, taken=self._journal.job(prepared.job) is not None)
            ).result()
        except BaseException:
            self._jobs.release(prepared.job)
            raise
        self._inputs.follow(prepared.job)
        for other, how in earlier.others.items():
            with suppress(OperationRefused):  # it is over by now
                self._driver.operate(Kill(job=other, message=superseded_by(prepared.job, how=how))).result()
        return SubmissionAnswer(
            job=prepared.job,
            packages=count,
            adopted=adopted,
            superseded=tuple(earlier.others),
            run_again=earlier.others,
            in_the_way=prepared.in_the_way,
        )

    def _annotate(self, job: str, prepared: Prepared) -> None:
        """Add the tags of a submission to the same job, which exists. Raises `SubmissionError`."""
        row = self._journal.job(job)
        if row is not None and (events := later_tags(row, prepared.registered, self._journal, now=self._clock.now())):
            self._writer.submit(Batch(*self._codec.check_all(events), own=True)).result()

    def _go_on(self, job: str, prepared: Prepared) -> SubmissionAnswer:
        """Resume the same job, which runs already or was stopped."""
        remade = self._remake(job)
        for release in releases(job, journal=self._journal, ask=self._driver.ask):
            with suppress(OperationRefused):  # it is not held
                self._driver.operate(release).result()
        return SubmissionAnswer(job=job, packages=prepared.expansion.wanted, resumed=True, remade=remade)

    def _remake(self, job: str) -> int:
        """Run again the packages of a job whose outputs are gone and needed; return how many."""
        at_work = self._jobs.get(job)
        if at_work is None:
            return 0
        statuses = self._driver.ask(partial(statuses_of, job)).result()
        staged = {package for package, _ in self.tree.staged(at_work.folder, job)}  # done, but not published yet
        count = 0
        gone = lost(at_work.expansion, statuses, folder=at_work.folder, tree=self.tree)
        for package in (each for each in gone if each not in staged):
            with suppress(OperationRefused):  # a running package reads the outputs, so they exist for it
                message = "its outputs are gone, and needed"
                self._driver.operate(Restart(job=job, package=package, message=message)).result()
                count += 1
        return count

    # --- for the driver, in its thread ---

    def begin(self, driver: Driver) -> Core:
        """Make a core from the book, after publishing granted files that were not published yet."""
        core = start_from(
            self._journal,
            self._jobs,
            sites=self._sites,
            settings=self._settings,
            codec=self._codec,
            now=self._clock.now(),
        )
        self._core = core
        self._claims.watch(core.engine)
        core.engine.state.output_keeper = KeptOutputs(self._jobs.get, self._manifests)
        mended = sum([self._commit_handler.recover(core.engine, job) for job in core.engine.state.jobs.by_id])
        if core.engine.state.jobs.by_id:
            unfinished = len(unfinished_jobs(core.engine))
            text = "resumed from the book: %d jobs, %d of them unfinished; published the files of %d granted packages"
            log.info(text, len(core.engine.state.jobs.by_id), unfinished, mended)
        return core

    def received_stream(self, pilot: str) -> StreamRow | None:
        """How far an agent's stream was received, from the book."""
        return self._journal.stream("agent", pilot)

    def written(self, outbox: Outbox, logs: Sequence[LogText]) -> None:
        """The events of a step are durable: publish granted results before anyone is told of them."""
        assert self._core is not None
        self._commit_handler.follow(self._core.engine, outbox.events)
        if logs:
            try:
                self.logs.put(logs)
            except Exception:  # whatever the fault: logs decide nothing
                log.exception("%d logs are lost", len(logs))

    def reply(self, reply: ExchangeReply) -> bytes:
        """Encode a reply to an agent, with the work orders of its new attempts."""
        early = [each for each in reply.assignments if self._commit_handler.holds_back(each)]
        if early:
            reply = self._without(reply, early)
        given = reply.assignments
        site = self._site_of(reply.pilot) if given else None
        files = self.site_files.at(site, self._core.engine) if self._core is not None else NO_SITE
        orders = self._jobs.work_orders(self._driver.yielding.among(given), self._manifests, site=site, files=files)
        work = self._jobs.reused(orders, given)
        tokens = tuple(map(mint, (each.ref for each in given))) if (mint := self._package_token) is not None else ()
        return _encode(AgentReply(reply=reply, work=tuple(work), variables=self._variables, tokens=tokens))

    def _without(self, reply: ExchangeReply, early: Sequence[Assignment]) -> ExchangeReply:
        """The reply without attempts whose inputs are not published yet: they did not fail, and come later."""
        for each in early:
            message = "its inputs are not published yet"
            again = Reschedule(job=each.ref.job, package=each.ref.package, message=message)
            self._driver.receive(OperationRequest(token=_NOBODY, operation=again))
        return msgspec.structs.replace(
            reply, assignments=tuple(each for each in reply.assignments if each not in early)
        )

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Hand effects to the threads that carry them out; all of a site together, so that it can combine them."""
        at_sites: dict[str, list[AtSite]] = {}
        for effect in effects:
            if isinstance(effect, ExpandStage):
                self._expander.want(effect)
            elif not isinstance(effect, FileEffect):
                at_sites.setdefault(effect.site, []).append(effect)
        for site, wanted in at_sites.items():
            self._workers.want(site, wanted)
        if files := [each for each in effects if isinstance(each, FileEffect)]:
            self._file_orders.want(files)

    def end(self) -> None:
        """The driver has ended."""

    def _site_of(self, pilot: str) -> Site | None:
        """The site of a pilot, which determines how software is started."""
        found = self._core.engine.state.pilots.by_name.get(pilot) if self._core is not None else None
        return found.site.site if found is not None else None

    def _request(self, operation: AnyOperation) -> None:
        self._driver.receive(OperationRequest(token=_NOBODY, operation=operation))

    def needed_contents(self) -> frozenset[str]:
        """The contents of the service's own store that jobs which run here name, by sha256."""
        return self._jobs.needed_contents()

    def expansion_of(self, job: str) -> Expansion | None:
        """The expansion of a job that runs here; None for any other."""
        return self._jobs.expansion_of(job)

    # --- for the expander ---

    def expansion(self, job: str) -> Expansion | None:
        """The present expansion of a job."""
        return at_work.expansion if (at_work := self._jobs.get(job)) is not None else None

    def offer_expansion(self, job: str, stage: int, expanded: Expanded) -> None:
        """Keep the new expansion of a job, for when the core accepts it."""
        self._jobs.offer_expansion(job, stage, expanded)

    def adopt(
        self, job: str, expansion: Expansion, *, granted: Mapping[int, Manifest], numbers: range
    ) -> Sequence[EarlierResult]:
        """The packages of a new stage that need not run."""
        if (at_work := self._jobs.get(job)) is None or at_work.origin.fresh:
            return ()
        return adopt(expansion, at_work.origin, tree=self.tree, index=self._index, granted=granted, numbers=numbers)
