"""Jobs and packages over HTTP: pages, single ones, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from pilotage.book.rows.rows import JobRow
from pilotage.model.answers import Explanation, HealedStep, HealingHistory, Progress, Why, WhyCode
from pilotage.model.events.events import COUNTER_MAX
from pilotage.model.events.payloads import BinaryEnd
from pilotage.model.jobs.layout import PackageId
from pilotage.model.texts import words_of_failure
from pilotage.reading.access import READ
from pilotage.reading.packages import ShownPackage
from pilotage.reading.queries import package_place
from pilotage.reading.view_builders import (
    attempt_views,
    binary_views,
    job_view,
    line_view,
    outcome_positions,
    package_view,
    stage_view,
    unheard,
)
from pilotage.reading.views import (
    BinaryView,
    CountView,
    FileView,
    JobsPage,
    JobView,
    LineView,
    PackageCount,
    PackageDetail,
    PackagesPage,
    PackageView,
    StagesPage,
)
from pilotage.service.errors import Unpublished
from pilotage.service.http.progress import job_progress, release_hint, retry_hint, staged_grants
from pilotage.service.http.routing import (
    AfterStage,
    ApiRequest,
    CursorText,
    JobPath,
    Limit,
    LinePath,
    PackagePath,
    QueryText,
    Reply,
    ServicesArgument,
    get,
    in_header,
    in_query,
)
from pilotage.service.http.services import Services

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

IfNoneMatch = Annotated[str | None, in_header("If-None-Match", "The ETag of an answer that the client has.")]
Named = Annotated[str | None, in_query("Only the package of this name.", name="name", max_length=4096)]
BeforePosition = Annotated[
    int, in_query("The `before` of the page of later ones; 0 for the newest.", name="before", ge=0, le=COUNTER_MAX)
]
WithWords = Annotated[
    int, in_query("1 to include the name, the parameters and the command of each package.", name="words", ge=0, le=1)
]
WithBinaries = Annotated[
    int, in_query("1 to include the record of each binary of each package.", name="binaries", ge=0, le=1)
]
JOBS_IN_WORDS_MAX = 20
"""Jobs on one page whose packages are described: each may have to be expanded for it."""
OfJob = Annotated[str | None, in_query("Only packages of this job.", name="job")]


@get(
    "/v1/jobs",
    operation_id="find_jobs",
    needs=(READ,),
    summary="Find jobs",
    tags=["jobs"],
    faults=(400, 401, 403, 422, 503),
)
async def find_jobs(
    request: ApiRequest, services: ServicesArgument, text: QueryText = "", cursor: CursorText = None, limit: Limit = 0
) -> JobsPage:
    """Jobs that match a query, by id; those that you may not read are left out."""
    base_url = request.base_url()

    def answer() -> JobsPage:
        found = services.reader.jobs(request.user, text, cursor=cursor, limit=limit)
        jobs = [job_view(row, base_url=base_url, targets=services.targets.of(row)) for row in found.items]
        return JobsPage(jobs=jobs, next=found.next)

    return await services.ask(answer)


@get(
    "/v1/jobs/{job:str}",
    operation_id="job",
    needs=(READ,),
    summary="A job",
    tags=["jobs"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def one_job(
    request: ApiRequest, services: ServicesArgument, job: JobPath, if_none_match: IfNoneMatch = None
) -> Reply[JobView]:
    """A job as it is now. The ETag changes with every commit of the book; an unchanged job is answered by 304."""
    base_url = request.base_url()

    def answer() -> Reply[JobView]:
        # The position is read first: if the job changes in between, the answer is newer than its tag says.
        position = services.reader.position(request.user)
        row = services.reader.job(request.user, job)
        tag = f'"{position}-{row.place}"'
        if if_none_match is not None and tag in if_none_match:
            return Reply(status=304, headers={"ETag": tag})
        return Reply(body=job_view(row, base_url=base_url, targets=services.targets.of(row)), headers={"ETag": tag})

    return await services.ask(answer)


@get(
    "/v1/jobs/{job:str}/stages",
    operation_id="stages",
    needs=(READ,),
    summary="The stages of a job",
    tags=["jobs"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def stages(
    request: ApiRequest, services: ServicesArgument, job: JobPath, after: AfterStage = 0, limit: Limit = 0
) -> StagesPage:
    """Stages in order, each with its state and the histogram of its packages."""

    def answer() -> StagesPage:
        row = services.reader.job(request.user, job)
        rows, more = services.reader.stages(row, after=after, limit=limit)
        left_out = services.targets.stages_left_out(row)
        return StagesPage(stages=[stage_view(each, row, left_out=left_out) for each in rows], more=more)

    return await services.ask(answer)


@get(
    "/v1/jobs/{job:str}/lines/{line:str}",
    operation_id="one_line",
    needs=(READ,),
    summary="A line of a job",
    tags=["jobs"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def one_line(request: ApiRequest, services: ServicesArgument, job: JobPath, line: LinePath) -> LineView:
    """A line with its state and the histogram of its packages."""

    def answer() -> LineView:
        row = services.reader.job(request.user, job)
        (stage, number), counts = services.reader.line(row, line)
        return line_view(counts, row, stage=stage, line=number)

    return await services.ask(answer)


@get(
    "/v1/jobs/{job:str}/packages",
    operation_id="packages_of_job",
    needs=(READ,),
    summary="The packages of a job",
    tags=["packages"],
    faults=(400, 401, 403, 404, 410, 422, 503),
)
async def packages_of_job(
    request: ApiRequest,
    services: ServicesArgument,
    job: JobPath,
    text: QueryText = "",
    cursor: CursorText = None,
    limit: Limit = 0,
    name: Named = None,
    words: WithWords = 0,
    binaries: WithBinaries = 0,
) -> PackagesPage:
    """Packages by place, including those without events."""
    base_url = request.base_url()

    def answer() -> PackagesPage:
        row = services.reader.job(request.user, job)
        if name is not None:
            place = services.package_names.find(row, name)
            found = [services.reader.package(row, place)] if place is not None else []
            views = _views(services, found, words=words, binaries=binaries, base_url=base_url)
            return PackagesPage(packages=views, next=None)
        page = services.reader.packages_of(row, text, cursor=cursor, limit=limit)
        views = _views(services, page.items, words=words, binaries=binaries, base_url=base_url)
        return PackagesPage(packages=views, next=page.next)

    return await services.ask(answer)


@get(
    "/v1/jobs/{job:str}/packages/{package:str}",
    operation_id="package",
    needs=(READ,),
    summary="A package",
    tags=["packages"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def one_package(
    request: ApiRequest, services: ServicesArgument, job: JobPath, package: PackagePath
) -> PackageDetail:
    """A package with all its attempts, their phases and manifests."""
    base_url = request.base_url()

    def answer() -> PackageDetail:
        row = services.reader.job(request.user, job)
        return _detail(services, row, package_place(package), base_url=base_url)

    return await services.ask(answer)


def _views(
    services: Services, found: Sequence[ShownPackage], *, words: int, binaries: int, base_url: str
) -> list[PackageView]:
    """The views of packages, with descriptions and binaries on request."""
    jobs = dict.fromkeys(each.job.job for each in found) if words else {}
    spoken = set(list(jobs)[:JOBS_IN_WORDS_MAX])
    return [
        package_view(
            each.facts,
            each.job,
            each.place,
            activity=each.activity,
            base_url=base_url,
            words=services.package_names.of(each.job, each.place) if each.job.job in spoken else None,
            binaries=_binaries(services, each) if binaries else None,
        )
        for each in found
    ]


def _binaries(services: Services, package: ShownPackage) -> list[BinaryView]:
    attempt = package.facts.attempt if package.facts is not None else None
    return binary_views(services.reader.end_of(package, attempt)) if attempt is not None else []


def _detail(services: Services, job: JobRow, place: PackageId, *, base_url: str) -> PackageDetail:
    found = services.reader.package(job, place)
    events = services.reader.outcome_events(job, place, outcome_positions(found.facts)) if found.facts else ()
    return PackageDetail(
        package=_views(services, [found], words=1, binaries=1, base_url=base_url)[0],
        attempts=attempt_views(found.facts, events),
        inputs=_inputs(services, job, place),
        utc_offset=services.reader.utc_offset(found.facts),
        healed=list(services.reader.healed_steps(found)),
        stale=[each.name for each in services.reader.stale_inputs(found)],
    )


def _inputs(services: Services, job: JobRow, place: PackageId) -> list[FileView]:
    expansion = services.package_names.layout(job)
    if expansion is None:
        return []
    from pilotage.service.works.consumed import package_inputs  # few requests need it

    return package_inputs(services.journal, job, place, expansion)


@get(
    "/v1/packages",
    operation_id="find_packages",
    needs=(READ,),
    summary="Find packages of all jobs",
    tags=["packages"],
    faults=(400, 401, 403, 422, 503),
)
async def find_packages(
    request: ApiRequest,
    services: ServicesArgument,
    text: QueryText = "",
    cursor: CursorText = None,
    limit: Limit = 0,
    words: WithWords = 0,
    binaries: WithBinaries = 0,
) -> PackagesPage:
    """Packages that match a query, which must be narrow enough.

    With a clause `job=ID`, all of that job; else those with events, of jobs that are not sealed: `sealed_jobs` says how
    many were left out.
    """
    base_url = request.base_url()

    def answer() -> PackagesPage:
        found = services.reader.packages(request.user, text, cursor=cursor, limit=limit)
        return PackagesPage(
            packages=_views(services, found.items, words=words, binaries=binaries, base_url=base_url),
            next=found.next,
            sealed_jobs=services.reader.unsearched_jobs(text),
        )

    return await services.ask(answer)


@get(
    "/v1/counts/jobs",
    operation_id="count_jobs",
    needs=(READ,),
    summary="Count jobs",
    tags=["counts"],
    faults=(400, 401, 403, 422, 503),
)
async def count_jobs(request: ApiRequest, services: ServicesArgument, text: QueryText = "") -> CountView:
    """Count the jobs that match a query; only your own, unless the token is valid for everyone's."""
    return CountView(count=await services.ask(services.reader.count_jobs, request.user, text))


@get(
    "/v1/counts/packages",
    operation_id="count_packages",
    needs=(READ,),
    summary="Count packages",
    tags=["counts"],
    faults=(400, 401, 403, 404, 410, 422, 503),
)
async def count_packages(
    request: ApiRequest, services: ServicesArgument, text: QueryText = "", of_job: OfJob = None
) -> PackageCount:
    """Count the packages that match a query: all of a job, or those with events of your own jobs."""

    def answer() -> PackageCount:
        row = services.reader.job(request.user, of_job) if of_job is not None else None
        return PackageCount(
            count=services.reader.count_packages(request.user, text, job=row),
            sealed_jobs=services.reader.unsearched_jobs(text) if row is None else 0,
        )

    return await services.ask(answer)


JOB_ROUTES = (
    find_jobs, one_job, stages, one_line, packages_of_job, one_package, find_packages, count_jobs, count_packages,
)  # fmt: skip


# The progress of a job, over HTTP.


@get(
    "/v1/jobs/{job:str}/progress",
    operation_id="progress",
    needs=(READ,),
    summary="How far a job is",
    tags=["running"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def progress(request: ApiRequest, services: ServicesArgument, job: JobPath) -> Progress:
    """Counts for each stage, failures by their cause, and, if nothing can move any more, why."""
    return await job_progress(services, request.user, job)


@get(
    "/v1/jobs/{job:str}/healing",
    operation_id="healing",
    needs=(READ,),
    summary="What healing saw and did",
    tags=["running"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def healing(
    request: ApiRequest, services: ServicesArgument, job: JobPath, before: BeforePosition = 0, limit: Limit = 0
) -> HealingHistory:
    """The last decisions about the incidents of a job, the newest last; median times of phases; slot time that was wasted.

    Without a decision, `why` says why there is none.
    """
    settings = services.settings

    def answer() -> HealingHistory:
        return services.reader.healing(
            services.reader.job(request.user, job),
            healing=settings.engine.healing,
            settings=settings.healing,
            before=before,
            limit=limit,
        )

    return await services.ask(answer)


PROGRESS_ROUTES = (progress, healing)


# Why a package is in its state, over HTTP: reasons from the engine, or from the book for jobs that it does not run.

_STALE_SHOWN_MAX = 5
_STEPS_SHOWN_MAX = 5
_OVER: dict[str, tuple[WhyCode, str]] = {
    "DONE": ("done", "its outputs are there"),
    "CLEARED": ("done", "its outputs were handed over, or their retention time is over"),
    "ABORTED": ("aborted", "it was given up"),
    "CANCELLED": ("cancelled", "it was cancelled on request"),
}


@get(
    "/v1/jobs/{job:str}/packages/{package:str}/explain",
    operation_id="explain",
    needs=(READ,),
    summary="Why a package is in its state",
    tags=["running"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def explain(request: ApiRequest, services: ServicesArgument, job: JobPath, package: PackagePath) -> Explanation:
    """Every reason, the most important first; for a job that runs elsewhere, from the book only."""
    place = package_place(package)

    def look() -> ShownPackage:
        return services.reader.package(services.reader.job(request.user, job), place)

    found = await services.ask(look)
    backend = services.backend
    if backend is not None and backend.jobs.alive:

        def ask(engine: Engine) -> tuple[Explanation | None, Unpublished | None]:
            return engine.explain(job, place.dotted, found.facts), backend.jobs.publishing_fault(job)

        explanation, fault = await asyncio.wrap_future(backend.jobs.ask(ask))
        if explanation is not None:
            if fault is not None and fault.package == place.dotted:
                why = Why(code="job-held", message=fault.what, subject=job, next_step=release_hint(fault, job))
                explanation = msgspec.structs.replace(explanation, reasons=(why, *explanation.reasons))
            return await services.ask(_in_words, services, found, explanation)
    explanation = await services.ask(_by_the_book, services, found, place)
    return await services.ask(_in_words, services, found, explanation)


def _in_words(services: Services, found: ShownPackage, explanation: Explanation) -> Explanation:
    """Add the name of the package, its actual times, and the binaries of its last ended attempt."""
    explanation = msgspec.structs.replace(explanation, words=services.package_names.of(found.job, found.place))
    if stale := services.reader.stale_inputs(found):
        names = ", ".join(each.name for each in stale[:_STALE_SHOWN_MAX])
        more = f" and {len(stale) - _STALE_SHOWN_MAX:,} more" if len(stale) > _STALE_SHOWN_MAX else ""
        message = f"its results are stale: {names}{more} was made again with another content than it read"
        name = f"{found.job.job}/{explanation.package}"
        why = Why(code="stale", message=message, subject=name, next_step=f"pilotage retry --force {name}")
        explanation = msgspec.structs.replace(explanation, reasons=(*explanation.reasons, why))
    if moved := services.reader.copies_elsewhere(found):
        more = f" and {len(moved) - 1:,} more" if len(moved) > 1 else ""
        message = f"a copy of {moved[0].name} is at {moved[0].locator} instead of {moved[0].instead_of}{more}: {moved[0].message}"
        why = Why(code="stored-elsewhere", message=message, subject=moved[0].locator)
        explanation = msgspec.structs.replace(explanation, reasons=(*explanation.reasons, why))
    if healed := services.reader.healed_steps(found):
        reasons = (*explanation.reasons, *(_healed(step, found.job) for step in healed[-_STEPS_SHOWN_MAX:]))
        explanation = msgspec.structs.replace(explanation, reasons=reasons)
    facts = found.facts
    if facts is not None and facts.running_at is not None and (facts.state == "RUNNING" or facts.state in _OVER):
        ended_at = facts.done_at or facts.aborted_at or facts.cancelled_at
        explanation = msgspec.structs.replace(
            explanation,
            started_at=facts.running_at,
            ended_at=ended_at if facts.state in _OVER else None,
            utc_offset=services.reader.utc_offset(facts),
        )
    attempts = found.facts.attempts if found.facts is not None else {}
    last = max((number for number, attempt in attempts.items() if attempt.finished_position is not None), default=None)
    views = binary_views(services.reader.end_of(found, last)) if last is not None else []
    if not views:
        return explanation
    binaries = msgspec.convert(views, tuple[BinaryEnd, ...], from_attributes=True)
    return msgspec.structs.replace(explanation, ended=last, binaries=binaries)


def _healed(step: HealedStep, job: JobRow) -> Why:
    """What healing did to a package, as one of the reasons."""
    what = f"gave up attempt {step.attempt}" if step.attempt is not None else "wanted one more attempt"
    message = f"healing {what} (decision {step.decision}){f': {step.message}' if step.message else ''}"
    return Why(code="healed", message=message, since=step.at, next_step=f"pilotage healing {job.job}")


def _by_the_book(services: Services, found: ShownPackage, place: PackageId) -> Explanation:
    facts = found.facts if found.facts is not None else unheard(found.job, found.activity)
    reasons: list[Why] = []
    if facts.state == "DONE" and place.dotted in staged_grants(services, found.job):
        message, step = "it is done, but its outputs are not published", retry_hint(found.job.job)
        reasons.append(Why(code="done", message=message, since=facts.entered_at, next_step=step))
    elif facts.state in _OVER:
        code, message = _OVER[facts.state]
        message += f": {facts.cause}" if facts.cause else ""
        message += f" ({facts.cause_message})" if facts.cause_message else ""
        message += f"; it ran at {facts.site}" if code == "done" and facts.site else ""
        reasons.append(Why(code=code, message=message, subject=facts.upstream or "", since=facts.entered_at))
    else:
        message = "this service does not run it: ask the scheduler that logs its events"
        reasons.append(Why(code="elsewhere", message=message, since=facts.entered_at))
    for number, attempt in sorted(facts.attempts.items()):
        if attempt.finished_at is not None and attempt.exit_code != "SUCCESS":
            words = words_of_failure(attempt.exit_message)
            message = f"attempt {number} failed at {attempt.site}: {attempt.reason or attempt.exit_code}{words}"
            reasons.append(Why(code="failed", message=message, subject=attempt.site or "", since=attempt.finished_at))
    return Explanation(
        job=found.job.job,
        package=place.dotted,
        epoch=facts.epoch,
        standing=facts.state.lower(),
        reasons=tuple(reasons),
    )
