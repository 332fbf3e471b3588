"""How far a job is, over HTTP."""

from __future__ import annotations

from pilotage.model.progress import Progress
from pilotage.service.access import READ
from pilotage.service.http.parameters import JobPath
from pilotage.service.http.progress import how_far
from pilotage.service.http.routes import Ask, Book, get


@get(
    "/v1/jobs/{job:str}/progress",
    operation_id="progress",
    needs=(READ,),
    summary="How far a job is",
    tags=["running"],
    faults=(400, 401, 403, 404, 410, 503),
)
async def progress(request: Ask, services: Book, job: JobPath) -> Progress:
    """Counts for each stage, failures by their cause, and, where nothing can move any more, why."""
    return await how_far(services, request.user, job)


PROGRESS_ROUTES = (progress,)
