"""The table of all routes, and the lookup of a request's route.

The table is data: each route says what it needs and what answers it. The dispatcher looks routes up here, the framework
registers those that it may have to answer, the OpenAPI document lists them in this order, and a test checks the scopes
of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pilotage.service.http.routes.agents import AGENT_ROUTES
from pilotage.service.http.routes.content import CONTENT_ROUTES
from pilotage.service.http.routes.events import EVENT_ROUTES
from pilotage.service.http.routes.files import FILE_ROUTES
from pilotage.service.http.routes.jobs import JOB_ROUTES, PROGRESS_ROUTES, explain
from pilotage.service.http.routes.operations import OPERATION_ROUTES, RUNNING_ROUTES
from pilotage.service.http.routes.outputs import OUTPUT_ROUTES
from pilotage.service.http.routes.record_feeds import FEED_ROUTES
from pilotage.service.http.routes.records import RECORD_ROUTES
from pilotage.service.http.routes.sites import SITE_ROUTES
from pilotage.service.http.routes.subscriptions import SUBSCRIPTION_ROUTES
from pilotage.service.http.routes.system import SURROUNDING_ROUTES
from pilotage.service.http.routes.transfers import TRANSFER_ROUTES
from pilotage.service.http.routing import Route

API_ROUTES: tuple[Route, ...] = (
    *EVENT_ROUTES,
    *JOB_ROUTES,
    *RUNNING_ROUTES,
    *OPERATION_ROUTES,
    *PROGRESS_ROUTES,
    explain,
    *OUTPUT_ROUTES,
    *CONTENT_ROUTES,
    *FEED_ROUTES,
    *RECORD_ROUTES,
    *SUBSCRIPTION_ROUTES,
    *SITE_ROUTES,
    *TRANSFER_ROUTES,
    *FILE_ROUTES,
    *SURROUNDING_ROUTES,
)
"""The routes for users, which the OpenAPI document lists."""

ROUTES: tuple[Route, ...] = (*AGENT_ROUTES, *API_ROUTES)
"""Every route."""

RouteMatch = tuple[Route, Mapping[str, str]]
_PATH = ":path}"


class RouteTable:
    """Finds the route of a request: by its whole path, else by its parts, else by its beginning."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """Take the routes; those with fewer parameters and a longer prefix are tried first."""
        self._fixed: dict[tuple[str, str], RouteMatch] = {}
        self._by_parts: dict[tuple[str, int], list[tuple[list[str], Route]]] = {}
        self._by_prefix: list[tuple[str, str, Route]] = []
        for route in sorted(routes, key=lambda each: each.path.count("{")):
            if "{" not in route.path:
                self._fixed[route.method, route.path] = (route, {})
            elif route.path.endswith(_PATH):
                prefix, _, name = route.path.removesuffix(_PATH).partition("{")
                self._by_prefix.append((prefix, name, route))
            else:
                template = route.path.split("/")
                self._by_parts.setdefault((route.method, len(template)), []).append((template, route))
        self._by_prefix.sort(key=lambda each: len(each[0]), reverse=True)

    def find(self, method: str, path: str) -> RouteMatch | None:
        """The route of a method and a path, and its path parameters; None if no route has exactly this form."""
        found = self._fixed.get((method, path))
        if found is not None:
            return found
        parts = path.split("/")
        for template, route in self._by_parts.get((method, len(parts)), ()):
            parameters = _matched(template, parts)
            if parameters is not None:
                return route, parameters
        for prefix, name, route in self._by_prefix:
            if path.startswith(prefix) and route.method in (method, "*"):
                return route, {name: path.removeprefix(prefix)}
        return None


def _matched(template: list[str], parts: list[str]) -> dict[str, str] | None:
    """The parameters of a path that matches a template."""
    parameters: dict[str, str] = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{"):
            if not part:
                return None
            parameters[wanted[1:-1].partition(":")[0]] = part
        elif wanted != part:
            return None
    return parameters
