"""How far a job is: counts from the book, and from the engine why nothing moves.

Clients that wait for a job ask this all the time, from its first second on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from pilotage.book.rows.rows import AttemptFacts, JobRow, PackageFacts, PilotRow, StageRow, StateHistogram
from pilotage.book.rows.shapes import shape_of
from pilotage.model.answers import (
    CARDS_MAX,
    STALE_MAX,
    UNDECLARED_MAX,
    FailureCard,
    FailureGroup,
    Progress,
    StageProgress,
    StaleResult,
    UndeclaredFiles,
    UnmadeTarget,
)
from pilotage.model.events.events import parse_dotted
from pilotage.model.states import ADOPTED, FINAL_NAMES, MADE_BEFORE, NOBODYS_FAULT, UNDECLARED, ExitCodeGasw
from pilotage.ports import StoreError
from pilotage.reading.access import Principal
from pilotage.reading.packages import ShownPackage
from pilotage.reading.view_builders import end_forecast, stopped_activities
from pilotage.service.errors import Unpublished
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.services import Services
from pilotage.service.transfers.moving_files import FilesMoving, files_moving

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine
    from pilotage.service.jobs.stall import JobStall


# Packages that are done but not published: found by their staged files where no service runs.

LOOKED_AT_MAX = 1_000
"""Staged attempts of a job that are examined."""


def staged_grants(services: Services, job: JobRow) -> dict[str, int]:
    """By package, the granted attempt whose files are still staged."""
    backend = services.backend
    folder = backend.folder_of(job) if backend is not None else None
    if backend is None or folder is None:
        return {}
    try:
        staged = backend.jobs.tree.staged(folder, job.job)
    except StoreError:
        return {}  # the folder is gone, so nothing in it waits to be published
    return {
        dotted: attempt for dotted, attempt in staged[:LOOKED_AT_MAX] if _is_granted(services, job, dotted, attempt)
    }


def _is_granted(services: Services, job: JobRow, dotted: str, attempt: int) -> bool:
    place = parse_dotted(dotted)
    facts = services.reader.package(job, place).facts if place is not None else None
    known = facts.attempts.get(attempt) if facts is not None and facts.state == "DONE" else None
    return known is not None and known.granted_at is not None


def unpublished_at_rest(services: Services, job: JobRow) -> Unpublished | None:
    """The first of these packages, in the form of the service; only the service knows why it was not published."""
    left = staged_grants(services, job)
    if not left:
        return None
    package, attempt = next(iter(left.items()))
    return Unpublished(
        package=package, attempt=attempt, what=f"the outputs of {package} are not published", count=len(left)
    )


def release_hint(fault: Unpublished, job: str) -> str:
    """What to do about it while a service runs."""
    return f"{fault.next_step or 'fix this'}; then: pilotage release {job}"


def retry_hint(job: str) -> str:
    """What to do about it while no service runs."""
    return f"a service tries again, and says what prevents it: pilotage attach {job}"


FAILURES_LOOKED_AT = 5_000
"""Failed packages that are examined one by one; further ones count with the largest group."""
NOT_PUBLISHED = "not-published"
"""The reason on the card of a package that is done but could not be published."""

NAMES_SHOWN = 3
PILOTS_LOOKED_AT = 1000
LINES_SHOWN = 3
STAGES_MAX = 1000
_DONE = "state in (DONE, CLEARED)"
_DONE_PACE = 80
"""Counting done packages examines all of them, so it is seldom repeated before the end of a job."""
_COUNTS_DONE = {
    "adopted": f"{_DONE} and (site={ADOPTED} or reason={MADE_BEFORE})",
    "healed": f"{_DONE} and attempts>1",
}
_RAN_AGAIN = "attempts>1"
_COUNTS_LIVE = {
    "retrying": "state in (SUBMITTED, WAITING, READY) and attempts>0",
    "retried": "state in (SCHEDULED, RUNNING) and attempts>1",
}
_NO_FAILURES = NOBODYS_FAULT | {"preempted"}
_STOPPED = ("wall-time", "out-of-memory", "looping")
_NO_FAILURE = (ExitCodeGasw.SUCCESS, ExitCodeGasw.EXECUTION_CANCELED)


async def job_progress(services: Services, principal: Principal, job: str) -> Progress:
    """Counts for each stage, failures by their cause, and, if nothing can move any more, why."""
    backend = services.backend
    progress = await services.ask(_by_the_counts, services, principal, job)
    if backend is None or not backend.jobs.alive:
        return await services.ask(_at_rest, services, principal, progress)

    transfers = backend.jobs.transfers
    under_way = transfers.under_way() if transfers is not None else []
    unreliable = transfers.unreliable.told() if transfers is not None else []

    def stand(engine: Engine) -> tuple[JobStall, int, Unpublished | None, FilesMoving]:
        from pilotage.service.jobs.stall import stall_of

        moving = files_moving(engine, job, under_way, unreliable)
        return stall_of(engine, job), backend.jobs.unpublished(job), backend.jobs.publishing_fault(job), moving

    # Ask the engine after the book: for a job that is over in the book, the engine knows whether its files are
    # published.
    stands, unpublished, fault, moving = await asyncio.wrap_future(backend.jobs.ask(stand))
    over = progress.state in FINAL_NAMES
    stuck, next_step = ("", "") if over else (stands.stuck, stands.next_step)
    failures = progress.failures
    if fault is not None:
        cure = release_hint(fault, job)
        failures = (_unpublished_group(progress, fault, next_step=cure), *failures)
        if over or stuck:  # it is held for this, and not over before its files are published
            stuck, next_step = fault.what, cure
    trouble = "" if over else await services.do(_no_room, services, principal, job)
    if not trouble:
        trouble = stands.trouble or moving.trouble
        if stands.troubled_site and not over:
            trouble += await _words_of(services, backend, stands.troubled_site)
    return msgspec.structs.replace(
        _with_running(progress, stands.running),
        failures=failures[:CARDS_MAX],
        slots=stands.slots,
        result=stands.result if over else None,
        unpublished=unpublished,
        stuck=stuck,
        next_step=next_step,
        trouble=record_trouble(services, job) if over else trouble,
        moving="" if over else moving.summary,
    )


def _no_room(services: Services, principal: Principal, job: str) -> str:
    """What prevents the book, or the results of a job, from being written."""
    assert services.backend is not None
    return services.trouble(services.backend.folder_of(services.reader.job(principal, job)) or "")


def record_trouble(services: Services, job: str) -> str:
    """Why the record of a job that is over cannot be made at present; empty if nothing is known to prevent it."""
    return services.records.trouble_of(job) if services.records is not None else ""


def _at_rest(services: Services, principal: Principal, progress: Progress) -> Progress:
    """Add what is known of a finished job that no service runs: whether its files are published."""
    if progress.state not in FINAL_NAMES:
        return progress
    progress = msgspec.structs.replace(progress, trouble=record_trouble(services, progress.job))
    fault = unpublished_at_rest(services, services.reader.job(principal, progress.job))
    if fault is None:
        return progress
    cure = retry_hint(progress.job)
    failures = (_unpublished_group(progress, fault, next_step=cure), *progress.failures)
    return msgspec.structs.replace(
        progress, failures=failures[:CARDS_MAX], unpublished=fault.count, stuck=fault.what, next_step=cure
    )


def _with_running(progress: Progress, running: Mapping[int, int] | None) -> Progress:
    """Subtract from the running packages those that only wait on their pilots for a free slot."""
    if running is None:
        return progress
    stages = tuple(
        msgspec.structs.replace(each, running=min(each.running, running.get(each.stage, 0))) for each in progress.stages
    )
    return msgspec.structs.replace(progress, running=min(progress.running, sum(running.values())), stages=stages)


def _unpublished_group(progress: Progress, fault: Unpublished, *, next_step: str) -> FailureGroup:
    """The group of packages that are done but not published."""
    place = parse_dotted(fault.package)
    card = FailureCard(
        package=fault.package,
        path=place.path(progress.name) if place is not None else "",
        attempt=fault.attempt,
        reason=NOT_PUBLISHED,
        exit_message=fault.what,
        next_step=next_step,
    )
    return FailureGroup(count=fault.count, card=card)


async def _words_of(services: Services, backend: JobBackend, site: str) -> str:
    """What a site reported, or else its last pilot printed, to follow the message about its trouble."""
    if message := backend.jobs.site_message(site):
        return f": {message}"
    words = await services.ask(_last_words, services, site)
    return f"; the last one printed: {words}" if words else ""


def _last_words(services: Services, site: str) -> str:
    """The last lines of the latest pilot of a site that ended and printed something; else empty."""

    def latest() -> list[PilotRow]:
        return services.journal.latest_pilots(site, limit=PILOTS_LOOKED_AT)

    rows = services.answer_cache.cached(f"pilots of {site}", services.journal.position(), latest)
    ended = [row for row in rows if row.ended_at is not None]
    last = max(ended, key=lambda row: row.ended_at or 0.0, default=None)
    lines = (last.stderr or "").strip().splitlines() if last is not None else []
    return " / ".join(lines[-LINES_SHOWN:])


def _by_the_counts(services: Services, principal: Principal, job: str) -> Progress:
    reader = services.reader
    position = reader.position(principal)
    row = reader.job(principal, job)
    stages, _ = reader.stages(row, after=0, limit=STAGES_MAX)
    counts = _counted(services, principal, row)
    stale = _stale(services, principal, row)
    return Progress(
        job=row.job,
        name=row.name,
        state=row.state,
        held=bool(row.held),
        packages=_total(row),
        done=row.done + row.cleared,
        running=row.running,
        failed=row.aborted,
        cancelled=row.cancelled,
        dropped=row.dropped,
        adopted=counts["adopted"],
        healed=counts["healed"],
        retrying=counts["retrying"] + counts["retried"],
        stages=tuple(map(_stage, stages)),
        failures=_failures(services, row) if row.aborted else (),
        undeclared=_undeclared(services, row),
        given_up=_given_up(row),
        stale=len(stale),
        stale_results=tuple(stale[:STALE_MAX]),
        targets=services.targets.of(row),
        stopped=tuple(stopped_activities(row)),
        unmade=_unmade(services, row),
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        finished_at=row.finished_at if row.state in FINAL_NAMES else None,
        now=services.clock.now(),
        position=position,
        forecast=end_forecast(row),
    )


def _given_up(row: JobRow) -> str:
    """Why a job was given up as a whole; one ended by the `abort_on` of a package has a result instead."""
    if row.aborted_at is None or row.cause == "abort-on":
        return ""
    return row.cause_message or row.cause or "given up"


def _unmade(services: Services, row: JobRow) -> tuple[UnmadeTarget, ...]:
    """The targets that a finished job has not made; none for a killed job."""
    if row.state not in FINAL_NAMES or row.state == "CANCELLED" or not services.targets.of(row):
        return ()
    mark = (row.epoch, row.state, row.heard_at)
    return services.answer_cache.cached(
        f"unmade {row.job}", mark, lambda: services.targets.unmade(row), phase=_end(row)
    )


def _total(row: StateHistogram) -> int:
    waiting = row.submitted + row.waiting + row.ready + row.scheduled
    return waiting + row.running + row.done + row.cleared + row.aborted + row.cancelled


def _stage(row: StageRow) -> StageProgress:
    names = [name for name, _ in shape_of(row.shape, stage=row.stage).activities()]
    more = f" + {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return StageProgress(
        stage=row.stage,
        name=" + ".join(names[:NAMES_SHOWN]) + more,
        late=bool(row.late),
        packages=_total(row),
        done=row.done + row.cleared,
        running=row.running,
        failed=row.aborted,
        cancelled=row.cancelled,
        dropped=row.dropped,
    )


def _counted(services: Services, principal: Principal, row: JobRow) -> dict[str, int]:
    """Counts that only the packages give; counted again when they may have changed, but seldom before the end."""
    if not row.touched:
        return dict.fromkeys((*_COUNTS_DONE, *_COUNTS_LIVE), 0)

    def count(texts: Mapping[str, str]) -> dict[str, int]:
        counted = services.reader.count_packages
        found = {name: counted(principal, text, job=row) for name, text in texts.items()}
        return {
            name: each - (_without_failures(services, row, texts[name]) if each and name != "adopted" else 0)
            for name, each in found.items()
        }

    marks = _marks(services, row)
    cached, phase = services.answer_cache.cached, _end(row)
    done = cached(f"done {row.job}", marks[0], lambda: count(_COUNTS_DONE), pace=_DONE_PACE, phase=phase)
    live = cached(f"live {row.job}", marks[1], lambda: count(_COUNTS_LIVE), phase=phase)
    return done | live


def _marks(services: Services, row: JobRow) -> tuple[object, object]:
    """Change marks for counts of the done and of the other packages of a job: a count holds while its mark stays.

    Read before counting: changes that become durable in between are counted the next time.
    """
    return services.marks(row.job) or ((row.heard_at, row.done, row.running, row.state),) * 2


def _undeclared(services: Services, row: JobRow) -> tuple[UndeclaredFiles, ...]:
    """Packages that left undeclared files behind, a few of each activity."""
    if not row.touched or row.definition is None:
        return ()

    def look() -> tuple[UndeclaredFiles, ...]:
        found: dict[tuple[int, str], ShownPackage] = {}
        for package in _looked_through(services, row, f"{_DONE} and reason={UNDECLARED}"):
            found.setdefault((package.place.stage, package.activity), package)
            if len(found) >= UNDECLARED_MAX:
                break
        return tuple(_left_behind(services, row, each) for each in found.values())

    return services.answer_cache.cached(
        f"undeclared {row.job}", _marks(services, row)[0], look, pace=_DONE_PACE, phase=_end(row)
    )


def _left_behind(services: Services, row: JobRow, package: ShownPackage) -> UndeclaredFiles:
    message, _, kept = ((package.facts.exit_message if package.facts is not None else "") or "").partition("\n")
    files = _files_named(kept)
    return UndeclaredFiles(
        package=package.place.dotted,
        activity=package.activity,
        words=services.package_names.of(row, package.place),
        message=message,
        keep=services.package_names.keeping(row, package.place, files) if files else "",
    )


def _stale(services: Services, principal: Principal, row: JobRow) -> list[StaleResult]:
    """The packages whose inputs were made again since: only where a package that was done ran again."""
    if not row.touched or not row.done + row.cleared:
        return []

    def look() -> list[StaleResult]:
        reader = services.reader
        if not reader.count_packages(principal, _RAN_AGAIN, job=row):
            return []
        return [
            StaleResult(
                package=place.dotted,
                words=services.package_names.of(row, place),
                files=tuple(each.name for each in data.files),
            )
            for place, data in reader.stale_results(row).items()
        ]

    # What makes one stale is an event about a package that is done.
    return services.answer_cache.cached(
        f"stale {row.job}", _marks(services, row)[0], look, pace=_DONE_PACE, phase=_end(row)
    )


def _files_named(line: str) -> list[str]:
    """The files that an agent names in the line that would keep them."""
    try:
        return msgspec.json.decode(line.partition(": ")[2], type=list[str])
    except msgspec.DecodeError:
        return []


def _without_failures(services: Services, row: JobRow, text: str) -> int:
    """How many of these packages were only stopped on request and restarted: none of them failed."""
    packages = _looked_through(services, row, text)
    return sum(
        found.facts is not None and not any(map(_has_failed, found.facts.attempts.values())) for found in packages
    )


def _has_failed(attempt: AttemptFacts) -> bool:
    if attempt.finished_at is not None:
        return attempt.exit_code not in _NO_FAILURE
    return attempt.lost_at is not None and attempt.lost_reason not in _NO_FAILURES


def _failures(services: Services, row: JobRow) -> tuple[FailureGroup, ...]:
    def group() -> tuple[FailureGroup, ...]:
        groups: dict[tuple[object, ...], tuple[int, ShownPackage]] = {}
        looked = 0
        for found in _looked_through(services, row, "state=ABORTED and dropped=false"):
            facts = found.facts
            kind = _kind(facts) if facts is not None else ("job",)
            count, first = groups.get(kind, (0, found))
            groups[kind] = (count + 1, found if _tells_more(found, than=first) else first)
            looked += 1
        # Packages that only waited for a failed one come last: the others are the cause.
        ordered = sorted(groups.items(), key=lambda each: (each[0][0] == "upstream", -each[1][0]))
        if ordered and row.aborted > looked:
            kind, (count, first) = ordered[0]
            ordered[0] = (kind, (count + row.aborted - looked, first))
        return tuple(
            FailureGroup(count=count, card=_with_words(services, row, first))
            for _, (count, first) in ordered[:CARDS_MAX]
        )

    mark = (row.epoch, row.aborted, row.state)
    return services.answer_cache.cached(f"failures {row.job}", mark, group, phase=_end(row))


def _tells_more(package: ShownPackage, *, than: ShownPackage) -> bool:
    """Whether a package is the better example: an attempt of it failed, and none of the other."""
    return _has_message(package) and not _has_message(than)


def _has_message(package: ShownPackage) -> bool:
    facts = package.facts
    return facts is not None and any(each.exit_message for each in facts.attempts.values())


def _end(row: JobRow) -> float | None:
    """When a job ended: counts made while it ran are replaced then, unless they still hold."""
    return row.finished_at if row.state in FINAL_NAMES else None


def _looked_through(services: Services, row: JobRow, text: str) -> Iterator[ShownPackage]:
    """The first packages of a job that match a query."""
    cursor, looked = None, 0
    while looked < FAILURES_LOOKED_AT:
        found = services.reader.packages_of(row, text, cursor=cursor, limit=1000)
        yield from found.items
        looked += len(found.items)
        cursor = found.next
        if cursor is None:
            return


def _kind(facts: PackageFacts) -> tuple[object, ...]:
    """Failures with the same key count as alike."""
    last = facts.attempts.get(facts.attempt or 0)
    if facts.cause == "activity-stopped":
        return facts.cause, facts.activity
    if facts.cause == "upstream" or last is None:
        return (facts.cause,)
    reason = last.reason or last.lost_reason
    # A package stopped from outside may end at once or only when killed; the cause is the same.
    ended = (last.exit_status, last.signal) if reason not in _STOPPED else ()
    return (facts.cause, reason, last.exit_code, *ended)


def _with_words(services: Services, row: JobRow, package: ShownPackage) -> FailureCard:
    return msgspec.structs.replace(card_of(row, package), words=services.package_names.of(row, package.place))


def card_of(job: JobRow, package: ShownPackage) -> FailureCard:
    """The card of one failed package, for its owner."""
    facts, dotted = package.facts, package.place.dotted
    if facts is None:
        return FailureCard(package=dotted, path=package.place.path(job.name), cause=job.cause or "")
    look = f"pilotage logs {job.job}/{dotted}" if facts.attempts else f"pilotage explain {job.job}/{dotted}"
    if facts.upstream:
        look = f"pilotage status {job.job}/{facts.upstream}"
    last = facts.attempts.get(facts.attempt or 0)
    card = FailureCard(
        package=dotted,
        path=package.place.path(job.name),
        attempt=facts.attempt,
        cause=facts.cause or "",
        again=facts.state not in FINAL_NAMES,
        exit_message=(facts.cause_message or "") if last is None else last.exit_message or facts.cause_message or "",
        next_step=look,
    )
    if last is None:
        return card
    return msgspec.structs.replace(
        card,
        reason=last.reason or last.lost_reason or "",
        exit_code=last.exit_code or "",
        exit_status=last.exit_status,
        signal=last.signal,
        peak_memory_bytes=last.peak_memory_bytes,
        peak_memory_below_bytes=last.peak_memory_below_bytes,
        site=last.site or "",
        node=last.node or "",
    )
