"""Checks the order: packages of higher priority go first, among jobs and within a job.

It checks what one pilot gets in one step of the service. Two packages with equal demands that both could have begun before
that step and were reserved for its site by then are equal to the pilot: the one of higher priority must come first. Packages
that were not available earlier, or that a limit or a quota held back, are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilotage.book.codec import Checked
from pilotage.model.events import payloads
from pilotage.simulator.checkers.records import JobTrace, PackageTrace, Record, Rules

PRIORITIES = "priorities"


class Order:
    """Checks the assignments of one step."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._quota = bool(rules.owner_running_max)  # it holds back jobs whose owner has enough running

    def on_decided(self, events: Sequence[Checked], reserved: Mapping[tuple[str, str], str] | None) -> None:
        """Check all decisions of a step, before any of them is durable."""
        if self._quota:
            return
        given: dict[str, list[PackageTrace]] = {}
        for checked in events:
            event, data = checked.event, checked.data
            if (
                isinstance(data, payloads.AttemptCreated)
                and data.pilot
                and data.memory_bytes is data.wall_seconds is None
            ):
                job = self._record.jobs.get(event.job or "")
                key = (event.job or "", event.package or "")
                waited = reserved is None or reserved.get(key) == data.site
                if job is not None and event.package is not None and waited:
                    given.setdefault(data.pilot, []).append(job.package(event.package))
        for pilot, packages in given.items():
            if len(packages) > 1:
                self._check(pilot, packages)

    def _check(self, pilot: str, packages: list[PackageTrace]) -> None:
        for position, later in enumerate(packages):
            if not _could_begin(later):
                continue
            for sooner in packages[:position]:
                if _asks_alike(sooner, later) and _goes_before(later, sooner):
                    message = f"{pilot} was given {sooner.subject} before it, which is of lower priority"
                    raise self._record.broken(PRIORITIES, message, later)


def _asks_alike(one: PackageTrace, other: PackageTrace) -> bool:
    mine, theirs = one.template, other.template
    return (
        mine is not None
        and theirs is not None
        and (mine.demand, mine.run_seconds, mine.executor) == (theirs.demand, theirs.run_seconds, theirs.executor)
    )


def _goes_before(one: PackageTrace, other: PackageTrace) -> bool:
    if one.job is other.job:
        return (
            one.template is not None and other.template is not None and one.template.priority > other.template.priority
        )
    return one.job.plan is not None and other.job.plan is not None and one.job.plan.priority > other.job.plan.priority


def _could_begin(package: PackageTrace) -> bool:
    """Whether a package waited for nothing but a slot, by the events before the step, and was never tried."""
    job, template = package.job, package.template
    if template is None or package.number is None or package.attempts or package.drops or package.epoch > 1:
        return False
    if not job.accepted or package.state or package.kept_back or package.held_operation >= 0 or job.held_operation >= 0:
        return False
    if job.plan is None or template.final or template.category in job.plan.limits:
        return False
    if template.demand.node_restriction or job.plan.late_waits:
        return False
    return all(_is_there(job, number) for number, _ in job.producers(package.number))


def _is_there(job: JobTrace, number: int) -> bool:
    producer = job.by_number.get(number)
    return producer is not None and bool(producer.granted)
