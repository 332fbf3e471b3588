"""Every route there is, in the order in which the OpenAPI document tells of them."""

from __future__ import annotations

from pilotage.service.http.events import EVENT_ROUTES
from pilotage.service.http.explaining import explain
from pilotage.service.http.jobs import JOB_ROUTES
from pilotage.service.http.operations import OPERATION_ROUTES
from pilotage.service.http.outputs import OUTPUT_ROUTES
from pilotage.service.http.progress_routes import PROGRESS_ROUTES
from pilotage.service.http.routes import Route
from pilotage.service.http.running_routes import RUNNING_ROUTES
from pilotage.service.http.sites import SITE_ROUTES
from pilotage.service.http.subscriptions import SUBSCRIPTION_ROUTES
from pilotage.service.http.surroundings import SURROUNDING_ROUTES

EVERY_ROUTE: tuple[Route, ...] = (
    *EVENT_ROUTES,
    *JOB_ROUTES,
    *RUNNING_ROUTES,
    *OPERATION_ROUTES,
    *PROGRESS_ROUTES,
    explain,
    *OUTPUT_ROUTES,
    *SUBSCRIPTION_ROUTES,
    *SITE_ROUTES,
    *SURROUNDING_ROUTES,
)
