"""Queue classes: packages that are interchangeable for scheduling wait in one queue."""

from __future__ import annotations

import msgspec

from pilotage.engine.engine_state import EngineState
from pilotage.engine.selection.candidates import How, SelectionSnapshot
from pilotage.engine.selection.filters import requirements_of
from pilotage.engine.state.jobs import ActivePackage, JobState, QueueClass
from pilotage.model.resources import Demand


def queue_of(state: EngineState, job: JobState, number: int) -> QueueClass:
    """The class of a ready or reserved package."""
    work = job.work.get(number)
    if work is not None and work.queue is not None:
        return work.queue
    queue = job.template_classes[job.last_attempt[number] > 0][job.kinds[number]]
    return queue if queue is not None else plain_queue_of(state, job, number)


def plain_queue_of(state: EngineState, job: JobState, number: int) -> QueueClass:
    """The class of a package without a history of its own."""
    template = job.kinds[number]
    restarts = job.last_attempt[number] > 0
    known = job.template_classes[restarts]
    queue = known[template]
    if queue is None:
        demand = job.plan.templates[template].demand
        queue = known[template] = _class(state, job, template, demand=demand, restarts=restarts)
    return queue


def class_for(state: EngineState, job: JobState, work: ActivePackage) -> QueueClass | None:
    """The class of a package with a history: resources after its failures, and sites to avoid."""
    template = job.kinds[work.number]
    if work.early is not None:
        return early_class(state, job, work.number, work.early.name)
    verdict = work.verdict
    avoid = tuple(
        sorted({attempt.site.name for attempt in work.attempts.values()} | set(verdict.avoid if verdict else ()))
    )
    if verdict is None and not avoid:
        return None
    demand = job.plan.templates[template].demand
    more_wall_than = 0.0
    prefer = ""
    if verdict is not None:
        if verdict.more_wall_than:
            requirements = requirements_of(job.owner, job.plan.templates[template], demand=demand)
            more_wall_than = state.placement.rounded_wall(verdict.more_wall_than, requirements)
        if verdict.prefer == "here":
            prefer = _latest_site(work)
            avoid = tuple(name for name in avoid if name != prefer)
        if verdict.memory_bytes or verdict.wall_seconds:
            demand = msgspec.structs.replace(
                demand,
                memory_bytes=verdict.memory_bytes or demand.memory_bytes,
                wall_seconds=verdict.wall_seconds or demand.wall_seconds,
            )
    return _class(
        state, job, template, demand=demand, avoid=avoid, more_wall_than=more_wall_than, prefer=prefer, restarts=True
    )


def early_class(state: EngineState, job: JobState, number: int, site: str) -> QueueClass:
    """The class of a package without a history that starts early at a site."""
    template = job.kinds[number]
    demand = job.plan.templates[template].demand
    return _class(state, job, template, demand=demand, beside=site, restarts=job.last_attempt[number] > 0)


def _latest_site(work: ActivePackage) -> str:
    """The site of the latest failed or lost attempt."""
    sites = {number: failure.site for number, failure in work.failures.items()}
    sites |= {number: attempt.site.name for number, attempt in work.attempts.items() if attempt.lost}
    return sites[max(sites)] if sites else ""


def _class(
    state: EngineState,
    job: JobState,
    template: int,
    *,
    demand: Demand,
    avoid: tuple[str, ...] = (),
    more_wall_than: float = 0.0,
    prefer: str = "",
    beside: str = "",
    restarts: bool,
) -> QueueClass:
    about = job.plan.templates[template]
    activity = about.activity if state.selection.samples else ""
    key = (
        demand,
        about.priority,
        about.run_seconds,
        about.executor,
        about.category,
        about.platform,
        about.job_type,
        about.data_handling,
        about.software,
        about.starts,
        about.work_bytes,
        about.input_bytes,
        about.output_bytes,
        about.locators,
        avoid,
        more_wall_than,
        prefer,
        beside,
        restarts,
        activity,
    )
    queue = job.classes.get(key)
    if queue is None:
        shape, estimate = state.shapes.number_of(demand), about.run_seconds
        queue = job.classes[key] = QueueClass(
            job,
            index=len(job.classes),
            demand=demand,
            shape=shape,
            priority=about.priority,
            run_seconds=about.run_seconds,
            kind=template,
            requirements=requirements_of(
                job.owner, about, demand=demand, more_wall_than=more_wall_than, run_seconds=estimate, beside=beside
            ),
            activity=activity,
            category=about.category,
            avoid=avoid,
            prefer=prefer,
            restarts=restarts,
        )
        queue.reservations = state.queues.reserved_counts.setdefault((shape, queue.level[0]), queue.reservations)
        queue.shared_reservations = job.reservations.setdefault((shape, queue.level), queue.shared_reservations)
    return queue


NOTE_SECONDS = 10.0
"""How old a snapshot may be: packages bound within this time found the sites in much the same state."""


def snapshot(state: EngineState, queue: QueueClass, how: How) -> SelectionSnapshot:
    """The current state of the sites for a class."""
    return SelectionSnapshot(
        state.placement.pool(queue),
        state.selection.sites.profiles,
        requirements=queue.requirements,
        at=state.clock.wall_time,
        until=state.clock.now + NOTE_SECONDS,
        how=how,
    )


def recent_snapshot(state: EngineState, queue: QueueClass, how: How) -> SelectionSnapshot | None:
    """A recent snapshot of the sites for a class; None if there is only one site."""
    note = queue.snapshots.get(how)
    if note is not None and state.clock.now < note.until:
        return note
    if len(state.selection.sites.by_name) < 2:
        return None
    note = queue.snapshots[how] = snapshot(state, queue, how)
    return note
