"""The door for site agents, over real sockets: whom it lets in, for which site, and what it does for relays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.model.exchange.reports import Gone, SiteAgentMessage
from pilotage.service.errors import NotRunning
from tests.kit.running_jobs import origin_of, running_services
from tests.kit.served_book import TOKEN, event, registered
from tests.unit.service.test_http_tokens import LIFE_SECONDS, REF, SUBJECT, House

PATH = "/agent/site"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with running_services(tmp_path) as (services, jobs):
        house = House(services, jobs, tmp_path)
        job = registered(1, "j")
        job["data"] |= {"definition": "ab" * 32, "lists": {"origin": origin_of(services.journal, tmp_path)}}
        house.log(job, event(2, "AttemptCreated", {"site": "local"}, **SUBJECT))
        try:
            yield house
        finally:
            house.stop()


def says(site: str = "lyon", reports_of: str = "") -> bytes:
    reports = (Gone(site=reports_of, key=f"{reports_of}-1", reason="ended"),) if reports_of else ()
    return msgspec.json.encode(SiteAgentMessage(site=site, agent="a", sequence=1, reports=reports))


def test_the_agent_of_a_site_is_heard_and_so_is_the_local_user(house: House) -> None:
    for token in (house.tokens.for_site_agent("lyon"), TOKEN):
        assert house.status("POST", PATH, says(reports_of="lyon"), token=token) == 200
    assert [each.site for each in house.jobs.heard_sites] == ["lyon", "lyon"]


def test_a_pilot_a_package_or_nobody_is_not(house: House) -> None:
    for token, code in (
        (house.tokens.for_pilot("lyon"), "forbidden"),
        (house.tokens.for_package(REF), "forbidden"),
        ("nonsense", "unauthenticated"),
    ):
        assert house.ask("POST", PATH, says(), token=token)[1] == code
    assert house.jobs.heard_sites == []


def test_an_agent_speaks_for_its_own_site_alone(house: House) -> None:
    token = house.tokens.for_site_agent("lyon")
    assert house.ask("POST", PATH, says("paris"), token=token)[:2] == (403, "forbidden")
    assert house.ask("POST", PATH, says("lyon", reports_of="paris"), token=token)[:2] == (403, "forbidden")
    assert house.jobs.heard_sites == []


def test_a_site_without_an_agent_of_its_own_is_told(house: House) -> None:
    assert house.ask("POST", PATH, says("paris"), token=TOKEN)[:2] == (404, "unknown_site")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"site": 1}', b"\xff"])
def test_what_is_no_exchange_is_refused(house: House, body: bytes) -> None:
    assert house.status("POST", PATH, body, token=TOKEN) == 400


def test_a_service_that_stops_is_asked_again(house: House) -> None:
    house.jobs.fault = NotRunning("the service is stopping")
    assert house.status("POST", PATH, says(), token=TOKEN) == 503


def test_the_token_of_an_agent_is_renewed_with_the_answer(house: House) -> None:
    token = house.tokens.for_site_agent("lyon")
    assert "pilotage-token" not in house.ask("POST", PATH, says(), token=token)[2]
    house.now += 0.8 * LIFE_SECONDS
    renewed = house.ask("POST", PATH, says(), token=token)[2]["pilotage-token"]
    house.now += 0.8 * LIFE_SECONDS
    assert house.status("POST", PATH, says(), token=renewed) == 200


def test_what_a_package_says_of_itself_comes_in_by_the_door_for_agents_too(house: House) -> None:
    told = event(7, "Tagged", {"name": "x", "value": "y"}, source="application", stream="s", job="j", package="1.2.1")
    body = msgspec.json.encode({"events": [told]})
    assert house.status("POST", "/agent/events", body, token=house.tokens.for_package(REF)) == 200
    assert house.ask("POST", "/agent/events", body, token=house.tokens.for_pilot("lyon"))[:2] == (403, "forbidden")
    assert house.ask("POST", "/agent/events", body, token="nonsense")[:2] == (401, "unauthenticated")
