"""Why a package is where it is, over HTTP: reasons from the engine, and of what it does not run, what the book tells."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from pilotage.model.explanations import Explanation, Why, WhyCode
from pilotage.model.layout import PackageId
from pilotage.model.payloads import BinaryEnd
from pilotage.model.texts import words_of_failure
from pilotage.service.access import READ
from pilotage.service.http.parameters import JobPath, PackagePath
from pilotage.service.http.routes import Ask, Book, get
from pilotage.service.http.services import Services
from pilotage.service.http.unpublished import cure_of, left_unpublished, tried_by
from pilotage.service.http.viewing import binary_views, unheard
from pilotage.service.packages import ShownPackage
from pilotage.service.reading import package_place
from pilotage.service.running.publishing import Unpublished

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

_OVER: dict[str, tuple[WhyCode, str]] = {
    "DONE": ("done", "its outputs are there"),
    "CLEARED": ("done", "its outputs were handed over, or their time was over"),
    "ABORTED": ("aborted", "it was given up"),
    "CANCELLED": ("cancelled", "it was cancelled on request"),
}


@get(
    "/v1/jobs/{job:str}/packages/{package:str}/explain",
    operation_id="explain",
    needs=(READ,),
    summary="Why a package is where it is",
    tags=["running"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def explain(request: Ask, services: Book, job: JobPath, package: PackagePath) -> Explanation:
    """Every reason, the one that matters most first; of a job that is run elsewhere, what the book tells."""
    place = package_place(package)

    def look() -> ShownPackage:
        return services.reading.package(services.reading.job(request.user, job), place)

    found = await services.ask(look)
    running = services.running
    if running is not None and running.jobs.alive:

        def ask(engine: Engine) -> tuple[Explanation | None, Unpublished | None]:
            return engine.explain(job, place.dotted, found.facts), running.jobs.publishing_fault(job)

        told, fault = await asyncio.wrap_future(running.jobs.ask(ask))
        if told is not None:
            if fault is not None and fault.package == place.dotted:
                why = Why(code="job-held", message=fault.what, subject=job, next_step=cure_of(fault, job))
                told = msgspec.structs.replace(told, reasons=(why, *told.reasons))
            return await services.ask(_in_words, services, found, told)
    told = await services.ask(_by_the_book, services, found, place)
    return await services.ask(_in_words, services, found, told)


def _in_words(services: Services, found: ShownPackage, told: Explanation) -> Explanation:
    """The same with what the package is called, and the binaries of its last attempt that ended."""
    told = msgspec.structs.replace(told, words=services.wording.of(found.job, found.place))
    attempts = found.facts.attempts if found.facts is not None else {}
    last = max((number for number, attempt in attempts.items() if attempt.finished_position is not None), default=None)
    views = binary_views(services.reading.end_of(found, last)) if last is not None else []
    if not views:
        return told
    binaries = msgspec.convert(views, tuple[BinaryEnd, ...], from_attributes=True)
    return msgspec.structs.replace(told, ended=last, binaries=binaries)


def _by_the_book(services: Services, found: ShownPackage, place: PackageId) -> Explanation:
    facts = found.facts if found.facts is not None else unheard(found.job, found.activity)
    reasons: list[Why] = []
    if facts.state == "DONE" and place.dotted in left_unpublished(services, found.job):
        message, step = "it is done, and what it made is not under its names", tried_by(found.job.job)
        reasons.append(Why(code="done", message=message, since=facts.entered_at, next_step=step))
    elif facts.state in _OVER:
        code, message = _OVER[facts.state]
        message += f": {facts.cause}" if facts.cause else ""
        message += f" ({facts.cause_message})" if facts.cause_message else ""
        message += f"; it ran at {facts.site}" if code == "done" and facts.site else ""
        reasons.append(Why(code=code, message=message, subject=facts.upstream or "", since=facts.entered_at))
    else:
        message = "no engine of this service runs it: whoever logs its events knows more"
        reasons.append(Why(code="elsewhere", message=message, since=facts.entered_at))
    for number, attempt in sorted(facts.attempts.items()):
        if attempt.finished_at is not None and attempt.exit_code != "SUCCESS":
            said = words_of_failure(attempt.exit_message)
            message = f"attempt {number} failed at {attempt.site}: {attempt.reason or attempt.exit_code}{said}"
            reasons.append(Why(code="failed", message=message, subject=attempt.site or "", since=attempt.finished_at))
    return Explanation(
        job=found.job.job,
        package=place.dotted,
        epoch=facts.epoch,
        standing=facts.state.lower(),
        reasons=tuple(reasons),
    )
