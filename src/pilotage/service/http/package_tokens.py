"""Whether the token of a package is still good: as long as its attempt is not over, by what the book says."""

from __future__ import annotations

from pilotage.model.exchange import AttemptRef
from pilotage.service.access import Unauthenticated
from pilotage.service.http.services import Services
from pilotage.service.reading import package_place
from pilotage.service.tokens import why_ended
from pilotage.service.unknown import UnknownPackage


def refuse_ended(services: Services, ref: AttemptRef) -> None:
    """Raise `Unauthenticated` where the attempt that a token speaks for is over, or never was."""
    job = services.journal.job(ref.job)
    attempt = None
    if job is not None:
        try:
            facts = services.reading.package(job, package_place(ref.package)).facts
        except UnknownPackage:
            facts = None
        attempt = facts.attempts.get(ref.attempt) if facts is not None else None
    if why := why_ended(attempt, services.clock.now()):
        raise Unauthenticated(
            f"the token of a package ends with its attempt: {why}",
            subject=f"attempt {ref.attempt} of {ref.job}/{ref.package}",
        )
