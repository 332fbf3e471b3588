"""Every route there is, in the order in which the OpenAPI document tells of them."""

from __future__ import annotations

from pilotage.service.http.routes.events import EVENT_ROUTES
from pilotage.service.http.routes.jobs import JOB_ROUTES, PROGRESS_ROUTES, explain
from pilotage.service.http.routes.operations import OPERATION_ROUTES, RUNNING_ROUTES
from pilotage.service.http.routes.outputs import OUTPUT_ROUTES
from pilotage.service.http.routes.sites import SITE_ROUTES
from pilotage.service.http.routes.subscriptions import SUBSCRIPTION_ROUTES
from pilotage.service.http.routes.system import SURROUNDING_ROUTES
from pilotage.service.http.routing import Route

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
