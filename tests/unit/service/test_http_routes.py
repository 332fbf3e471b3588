"""The table of routes: which one a request finds, and that what the table says of a route holds."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from pilotage.service.http.route_table import API_ROUTES, ROUTES, RouteTable
from pilotage.service.http.routing import Parameter, Route


def found(method: str, path: str) -> tuple[str, dict[str, str]] | None:
    """The name of the route that a request finds, and what its path says."""
    told = RouteTable(ROUTES).find(method, path)
    return (told[0].operation_id, dict(told[1])) if told is not None else None


@pytest.mark.parametrize(
    "method, path, name, said",
    [
        ("GET", "/v1/jobs", "find_jobs", {}),
        ("POST", "/v1/jobs", "submit_job", {}),
        ("GET", "/v1/jobs/j/packages/1.1.1", "package", {"job": "j", "package": "1.1.1"}),
        ("GET", "/v1/jobs/no job/progress", "progress", {"job": "no job"}),
        ("POST", "/agent/exchange", "agent_exchange", {}),
        ("GET", "/agent/content/ab", "agent_content", {"sha256": "ab"}),
        ("PUT", "/agent/staged/j/1.1.1/1/0", "agent_stage", {"place": "j/1.1.1/1/0"}),
        ("GET", "/agent/exchange", "agent_nothing", {"place": "exchange"}),
        ("PUT", "/agent/content/ab", "agent_nothing", {"place": "content/ab"}),
    ],
)
def test_a_request_finds_the_route_that_fits_most_closely(
    method: str, path: str, name: str, said: dict[str, str]
) -> None:
    assert found(method, path) == (name, said)


@pytest.mark.parametrize(
    "request_line",
    ["PUT /v1/jobs", "GET /v1/jobs/", "GET //v1/jobs", "GET /v1/jobs//events", "GET /agent", "GET /schema"],
)
def test_what_is_in_no_route_or_in_an_odd_form_is_not_found(request_line: str) -> None:
    method, _, path = request_line.partition(" ")
    assert found(method, path) is None


def test_agents_are_answered_by_their_exchange_and_are_not_in_the_document_for_users() -> None:
    assert {each.answered_by for each in ROUTES if each.path.startswith("/agent/")} == {"agents"}
    assert "agents" not in {each.answered_by for each in API_ROUTES}


@pytest.mark.parametrize("route", API_ROUTES, ids=lambda route: route.operation_id)
def test_a_body_of_a_declared_type_is_read_by_the_framework(route: Route) -> None:
    hints = get_type_hints(route.handler, include_extras=True)
    places = {each.place for hint in hints.values() for each in get_args(hint) if isinstance(each, Parameter)}
    assert "body" not in places or route.answered_by == "framework"
