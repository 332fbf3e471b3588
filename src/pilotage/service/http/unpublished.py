"""Packages that are done and whose files are not under their names: told by what is still staged, where no service runs."""

from __future__ import annotations

from pilotage.book.rows import JobRow
from pilotage.model.events import parse_dotted
from pilotage.ports import StoreError
from pilotage.service.http.services import Services
from pilotage.service.running.publishing import Unpublished

LOOKED_AT_MAX = 1_000
"""Staged attempts of a job that are looked at."""


def left_unpublished(services: Services, job: JobRow) -> dict[str, int]:
    """By package, the attempt that was granted and whose files are still staged."""
    running = services.running
    folder = running.folder_of(job) if running is not None else None
    if running is None or folder is None:
        return {}
    try:
        staged = running.jobs.store.staged(folder, job.job)
    except StoreError:
        return {}  # its folder is gone: what is not there is not on its way either
    return {
        dotted: attempt for dotted, attempt in staged[:LOOKED_AT_MAX] if _is_granted(services, job, dotted, attempt)
    }


def _is_granted(services: Services, job: JobRow, dotted: str, attempt: int) -> bool:
    place = parse_dotted(dotted)
    facts = services.reading.package(job, place).facts if place is not None else None
    known = facts.attempts.get(attempt) if facts is not None and facts.state == "DONE" else None
    return known is not None and known.granted_at is not None


def fault_left(services: Services, job: JobRow) -> Unpublished | None:
    """The first of these packages, as a service tells of one; why its files got no names is known to services only."""
    left = left_unpublished(services, job)
    if not left:
        return None
    package, attempt = next(iter(left.items()))
    return Unpublished(
        package=package, attempt=attempt, what=f"what {package} made is not under its names", count=len(left)
    )


def cure_of(fault: Unpublished, job: str) -> str:
    """What to do about it where a service runs."""
    return f"{fault.next_step or 'mend that'}; then: pilotage release {job}"


def tried_by(job: str) -> str:
    """What to do about it where none does."""
    return f"a service tries again, and says what is in the way: pilotage attach {job}"
