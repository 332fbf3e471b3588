"""Every route by every scope: what a token is good for, and that nothing is read, looked up or changed without it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pilotage.reading.access import (
    ANY_OWNER,
    DECIDE,
    EXCHANGE,
    OPERATE,
    OWN_PACKAGE,
    READ,
    SCOPES,
    SITE_AGENT,
    SITES,
    SUBMIT,
    SUBSCRIBE,
    WRITE,
    Principal,
)
from pilotage.service.http.dispatcher import make_dispatcher
from pilotage.service.http.route_table import ROUTES
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import Batch
from tests.kit.asked_app import ask
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.running_jobs import FakeJobs, origin_of, running_services
from tests.kit.served_book import access_of, event, registered

CHANGES: dict[str, set[str]] = {
    "POST /v1/events": {WRITE},
    "POST /v1/jobs": {SUBMIT},
    "POST /v1/plan": {SUBMIT},
    "POST /v1/clean": {SUBMIT, OPERATE},
    "POST /v1/content": {SUBMIT},
    "POST /v1/content/batch": {SUBMIT},
    "POST /v1/content/captured": {SUBMIT},
    "POST /v1/content/drop": {SUBMIT},
    "POST /v1/content/keep": {SUBMIT},
    "POST /v1/content/missing": {SUBMIT},
    "HEAD /v1/content/{sha256:str}": {SUBMIT},
    "PUT /v1/content/{sha256:str}": {SUBMIT},
    "POST /v1/folders/seen": {SUBMIT},
    "POST /v1/jobs/{job:str}/clear": {OPERATE},
    "POST /v1/jobs/{job:str}/purge": {OPERATE},
    "POST /v1/jobs/{job:str}/operations": {OPERATE},
    "POST /v1/operations": {READ, OPERATE},
    "POST /v1/subscriptions": {READ, SUBSCRIBE},
    "POST /v1/subscriptions/{subscription:str}/refresh": {READ, SUBSCRIBE},
    "PATCH /v1/subscriptions/{subscription:str}": {READ, SUBSCRIBE},
    "DELETE /v1/subscriptions/{subscription:str}": {READ, SUBSCRIBE},
    "GET /v1/subscriptions/{subscription:str}/notices": {READ, SUBSCRIBE},  # a number acknowledges
    "GET /v1/feeds": {READ, SUBSCRIBE},
    "POST /v1/feeds": {READ, SUBSCRIBE},
    "GET /v1/feeds/{name:str}": {READ, SUBSCRIBE},
    "DELETE /v1/feeds/{name:str}": {READ, SUBSCRIBE},
    "POST /v1/jobs/{job:str}/record": {READ, WRITE},
    "POST /v1/records/{job:str}/annotations": {READ, WRITE},
    "POST /v1/records/{job:str}/annotations/{name:str}": {READ, WRITE},
    "PUT /v1/records/{job:str}": {READ, WRITE},
    "PUT /v1/records/{job:str}/parts/{sha256:str}": {READ, WRITE},
    "DELETE /v1/records/{job:str}": {READ, OPERATE},
    "POST /v1/sites/{site:str}/hibernate": {SITES},
    "POST /v1/sites/{site:str}/wake": {SITES},
    "POST /v1/sites/{site:str}/probe": {SITES},
    "POST /v1/sites/{site:str}/try": {SITES},
    "POST /v1/files/pin": {READ, OPERATE},
    "POST /v1/files/unpin": {READ, OPERATE},
    "POST /v1/files/purge": {READ, OPERATE},
    "POST /agent/exchange": {EXCHANGE},
    "POST /agent/site": {SITE_AGENT},
    "POST /agent/events": {WRITE},
    "PUT /agent/staged/{place:path}": {EXCHANGE},
}
"""What each route needs that changes something."""

AGENTS_READ = {
    "GET /agent/content/{sha256:path}": {EXCHANGE},
    "POST /agent/contents": {EXCHANGE},
    "GET /agent/files/{job:path}": {EXCHANGE},
    "GET /agent/transfers/{key:path}": {SITE_AGENT},
    "GET /agent/cached/{name:path}": {EXCHANGE},
    "* /agent/{place:path}": {EXCHANGE},
}
ALL = frozenset(SCOPES) - {OWN_PACKAGE}
EXAMPLES = {
    "job": "j", "package": "1.1.1", "line": "1.1", "subscription": "none", "site": "local", "attempt": "1",
    "sha256": "0" * 64, "place": "j/1.1.1/1/0",
}  # fmt: skip
FOR_A_BODY = ("POST", "PATCH", "PUT")


def wanted() -> dict[str, set[str]]:
    """Every route with what it needs: those that are not in the table read, and need no more than that."""
    needs = {**CHANGES, **AGENTS_READ}
    names = [f"{route.method} {route.path}" for route in ROUTES if not route.is_open]
    return {name: needs.get(name, {READ}) for name in names}


class House:
    """A job of ann's in a service that remembers what was asked of it."""

    def __init__(self, services: Services, jobs: FakeJobs) -> None:
        self.services, self.jobs = services, jobs
        self.doors = [make_dispatcher(services), FrameworkAnswers(services)]

    def log(self, *events: dict[str, Any]) -> None:
        checked, refused, _ = self.services.codec.read_batch(msgspec.json.encode({"events": events}))
        assert not refused
        self.services.writer.submit(Batch(checked)).result(60.0)

    def answers(self, route: str, scopes: frozenset[str], body: bytes = b"{}") -> list[tuple[int, str]]:
        """How a token of ann's with these scopes is answered, plainly and by the framework: status and message."""
        self.services.access = access_of({"t": Principal(user="ann", scopes=scopes)})
        method, path = route.replace("*", "GET").split()
        path = re.sub(r"{(\w+):(str|path)}", lambda found: EXAMPLES.get(found[1], "stdout"), path)
        told = []
        for door in self.doors[: 1 if path.startswith("/agent/") else 2]:
            status, _, content = asyncio.run(
                ask(
                    door,
                    path,
                    body if method in FOR_A_BODY else b"",
                    method=method,
                    authorization="Bearer t",
                    **({"content_length": str(len(body))} if method in FOR_A_BODY else {}),
                )
            )
            told.append((status, content.decode()))
        return told

    def changed(self) -> Any:
        """What would differ if anything were done."""
        jobs = self.jobs
        kept = (
            jobs.submitted,
            jobs.operations,
            jobs.cleared,
            jobs.put_away,
            jobs.site_operations,
            jobs.heard,
            jobs.heard_sites,
        )
        return self.services.journal.position(), *(len(each) for each in kept), len(jobs.files.staged)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    tmp_path = tmp_path_factory.mktemp("house")
    with running_services(tmp_path) as (services, jobs):
        house = House(services, jobs)
        job = registered(1, "j")
        job["data"] |= {"definition": "ab" * 32, "lists": {"origin": origin_of(services.journal, tmp_path)}}
        services.start()
        try:
            house.log(job, event(2, "AttemptCreated", {"site": "local"}, job="j", package="1.1.1", attempt=1))
            yield house
        finally:
            services.stop()


def test_the_table_has_every_route_that_needs_more_than_to_read() -> None:
    assert {**CHANGES, **AGENTS_READ}.keys() <= wanted().keys()


def test_every_route_that_changes_something_names_a_scope_of_its_own() -> None:
    for route in ROUTES:
        name = f"{route.method} {route.path}"
        assert set(route.needs) == (set() if route.is_open else wanted()[name]), name
        assert route.is_open == (not route.needs), name
        if route.method != "GET":
            assert set(route.needs) - {READ}, f"{name} changes something, and to read is enough for it"


@pytest.mark.parametrize("route", sorted(wanted()))
def test_no_scope_opens_a_route_that_does_not_name_it(route: str, house: House) -> None:
    needs, before = wanted()[route], house.changed()
    for missing in sorted(needs):
        others = ALL - {missing}
        for scopes in (frozenset(), others, *(frozenset({each}) for each in sorted(others))):
            for status, message in house.answers(route, scopes, b"no body of any route"):
                assert (status, '"forbidden"' in message) == (403, True), (route, sorted(scopes), message)
        # With all but one it is that one which is asked for; and the body, which is nothing, was not looked at.
        assert all(missing in message for _, message in house.answers(route, others))
    assert house.changed() == before


@pytest.mark.parametrize("route", sorted(wanted()))
def test_the_scopes_that_a_route_names_are_enough(route: str, house: House) -> None:
    for status, message in house.answers(route, frozenset(wanted()[route])):
        assert status in (200, 201, 204, 304, 400, 404, 409, 422), (route, status, message)


def test_whoever_may_read_and_log_neither_clears_nor_purges(house: House) -> None:
    for deed in ("clear", "purge"):
        told = house.answers(f"POST /v1/jobs/j/{deed}", frozenset({READ, WRITE, DECIDE, ANY_OWNER}))
        assert [status for status, _ in told] == [403, 403]
        assert all(OPERATE in message for _, message in told)
    assert house.services.journal.job("j").cleared_at is None  # type: ignore[union-attr]


def test_a_job_that_one_may_not_know_of_is_answered_as_one_that_never_was(house: House) -> None:
    house.log(registered(3, "of-bob", owner="bob"), registered(4, "of-eve", owner="eve"))
    told: dict[str, list[tuple[int, str]]] = {}
    for job in ("of-bob", "of-eve", "nobodys"):
        for route in sorted(wanted()):
            if "{job:str}" in route:
                answers = house.answers(route.replace("{job:str}", job), ALL - {ANY_OWNER}, b'{"operation":"kill"}')
                told.setdefault(route, []).extend((status, text.replace(job, "JOB")) for status, text in answers)
    assert {route: set(each) for route, each in told.items()} == {route: {each[0]} for route, each in told.items()}
    uploads = {route for route in told if "/records/" in route and route.partition(" ")[0] in FOR_A_BODY}
    assert {each[0][0] for route, each in told.items() if route not in uploads} == {404}
    assert {each[0][0] for route, each in told.items() if route in uploads} == {
        400,
        404,
        409,
    }  # before any job is looked up
