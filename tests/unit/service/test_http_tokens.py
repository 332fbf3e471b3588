"""What the tokens of a site and of a package open over HTTP, and what stays shut to them."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.adapters.settings.tokens import StoredKeys
from pilotage.engine.state.sites import PilotRequest, PilotState
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import AgentMessage, AttemptRef, Exchange
from pilotage.model.exchange.reports import SiteAgentMessage
from pilotage.reading.access import EXCHANGE, Access, digest_of, local_principal
from pilotage.service.http.dispatcher import make_dispatcher
from pilotage.service.http.listener import Listener, bind
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import Batch
from pilotage.service.tokens import MARGIN_SECONDS, Tokens
from tests.kit.running_jobs import FakeJobs, origin_of, running_services
from tests.kit.served_book import TOKEN, event, registered

WAIT_SECONDS = 60.0
LIFE_SECONDS = 3000.0
REF = AttemptRef("j", "1.2.1", 3)
SUBJECT: dict[str, Any] = {"job": REF.job, "package": REF.package, "attempt": REF.attempt}


class House:
    """A service in a thread of this process, and what it gives tokens out with."""

    def __init__(self, services: Services, jobs: FakeJobs, folder: Path) -> None:
        self.services, self.jobs = services, jobs
        self.now = time.time()
        self.tokens = Tokens(StoredKeys(folder), user="ann", clock=lambda: self.now, pilot_seconds=LIFE_SECONDS)
        services.access = Access({digest_of(TOKEN): local_principal("ann")}, tokens=self.tokens)
        self.n = 0
        self.bound = bind("127.0.0.1", 0)
        dispatcher = make_dispatcher(services)
        started = threading.Event()
        self.listener = Listener(dispatcher, bound=self.bound, started=started.set, stopping=dispatcher.stop)
        self.thread = threading.Thread(target=self.listener.listen)
        self.thread.start()
        assert started.wait(WAIT_SECONDS)

    def stop(self) -> None:
        self.listener.should_exit = True
        self.thread.join(WAIT_SECONDS)
        self.bound.close()

    def connect(self) -> http.client.HTTPConnection:
        host, port = self.bound.getsockname()[:2]
        return http.client.HTTPConnection(host, port, timeout=WAIT_SECONDS)

    def ask(self, method: str, path: str, body: bytes | None = None, *, token: str) -> tuple[int, str, dict[str, str]]:
        """The status, the word for what is wrong, and the headers."""
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            content = answer.read()
            code = msgspec.json.decode(content)["error"]["code"] if answer.status in (401, 403, 404) else ""
            return answer.status, code, {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def status(self, method: str, path: str, body: bytes | None = None, *, token: str) -> int:
        return self.ask(method, path, body, token=token)[0]

    def token_of(self, pilot: str, *, site: str = "local") -> str:
        """The token that a pilot gets in answer to its first exchange, in which it shows that of its site."""
        given = self.tokens.principal(self.tokens.for_pilot(site))
        assert given is not None
        return self.tokens.pilot_token(given, pilot)

    def exchange(
        self,
        token: str,
        *,
        pilot: str = "p.1",
        site: str = "local",
        events: tuple[Event, ...] = (),
        ended_token: str = "",
    ) -> Any:
        said = AgentMessage(
            exchange=Exchange(pilot=pilot, site=site, sequence=1, events=events), ended_token=ended_token
        )
        return self.ask("POST", "/agent/exchange", msgspec.json.encode(said), token=token)

    def log(self, *events: dict[str, Any]) -> None:
        checked, refused, _ = self.services.codec.read_batch(msgspec.json.encode({"events": events}))
        assert not refused
        self.services.writer.submit(Batch(checked)).result(WAIT_SECONDS)

    def tag(self, token: str, *, source: str = "application", kind: str = "Tagged", **about: Any) -> tuple[int, str]:
        """Tag something; the status, and why it was refused."""
        self.n += 1
        data = {"name": "x", "value": "y"} if kind == "Tagged" else {"text": "x"} if kind == "Noted" else {}
        subject = {"job": "j", "package": "1.2.1", **about}
        told = event(self.n, kind, data, source=source, stream=f"application-{self.n}", **subject)
        body = msgspec.json.encode({"events": [told]})
        connection = self.connect()
        try:
            connection.request("POST", "/v1/events", body, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            content = msgspec.json.decode(answer.read())
            refused = content.get("refused") or [{"code": (content.get("error") or {}).get("code", "")}]
            return answer.status, refused[0]["code"]
        finally:
            connection.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with running_services(tmp_path) as (services, jobs):
        house = House(services, jobs, tmp_path)
        (tmp_path / "results").mkdir()
        (tmp_path / "results/in.txt").write_text("hello")
        job = registered(1, "j")
        job["data"] |= {"definition": "ab" * 32, "lists": {"origin": origin_of(services.journal, tmp_path / "results")}}
        house.log(job, event(2, "AttemptCreated", {"site": "local", "pilot": "p.1"}, **SUBJECT))
        try:
            yield house
        finally:
            house.stop()


# --- a site ---


def test_a_pilot_that_is_new_is_given_a_token_of_its_own_and_heard_with_that(house: House) -> None:
    site_token = house.tokens.for_pilot("local")
    house.exchange(site_token)  # an answer may be lost
    status, _, headers = house.exchange(site_token)
    assert (status, house.jobs.heard) == (200, [])
    own = house.tokens.principal(headers["pilotage-token"])
    assert own is not None
    assert (own.site, own.pilot, own.scopes) == ("local", "p.1", frozenset({EXCHANGE}))
    status, _, again = house.exchange(headers["pilotage-token"])
    assert (status, "pilotage-token" in again) == (200, False)
    assert len(house.jobs.heard) == 1


def test_no_pilot_speaks_for_another_of_its_site_once_that_has_spoken(house: House) -> None:
    engine = house.jobs.engine
    engine.state.pilots.by_name["p.1"] = PilotState(
        "p.1", engine.state.sites.by_name["local"], request="", heard_at=0.0
    )
    told = {"source": "agent", "stream": "p.7", "pilot": "p.7"}
    house.log(event(1, "PilotStarted", {"site": "local"}, **told), event(2, "PilotEnded", {"reason": "ended"}, **told))
    for name in ("p.1", "p.7"):  # one that lives, and one that has ended
        for token in (house.tokens.for_pilot("local"), house.token_of("p.2"), house.token_of(name, site="lyon")):
            assert house.exchange(token, pilot=name)[:2] == (403, "forbidden")
    assert house.jobs.heard == []
    for name in ("p.1", "p.7"):
        assert house.exchange(house.token_of(name), pilot=name)[0] == 200
        # It started them all, and settles what they left.
        assert house.exchange(house.tokens.for_site_agent("local"), pilot=name)[0] == 200
        assert house.exchange(house.tokens.for_site_agent("lyon"), pilot=name)[:2] == (403, "forbidden")


def test_no_pilot_introduces_itself_under_the_name_of_what_was_asked_for(house: House) -> None:
    engine = house.jobs.engine
    engine.state.pilots.requests["local-4"] = PilotRequest("local-4", engine.state.sites.by_name["local"])
    assert house.exchange(house.tokens.for_pilot("local"), pilot="local-4")[:2] == (403, "forbidden")


def test_no_exchange_has_a_number_that_makes_all_others_old(house: House) -> None:
    for sequence, status in ((2**62, 400), (2**53 - 1, 400), (2**40 + 7, 200)):
        said = AgentMessage(exchange=Exchange(pilot="p.1", site="local", sequence=sequence))
        assert house.status("POST", "/agent/exchange", msgspec.json.encode(said), token=house.token_of("p.1")) == status


def test_a_pilot_of_another_site_is_not(house: House) -> None:
    assert house.exchange(house.token_of("p.1", site="lyon"))[:2] == (403, "forbidden")
    assert house.exchange(house.token_of("p.1", site="lyon"), site="lyon")[0] == 200
    assert [each.exchange.site for each in house.jobs.heard] == ["lyon"]


def test_no_pilot_speaks_under_the_name_of_another_sites(house: House) -> None:
    engine = house.jobs.engine
    engine.state.pilots.by_name["p.1"] = PilotState(
        "p.1", engine.state.sites.by_name["local"], request="", heard_at=0.0
    )
    assert house.exchange(house.token_of("p.1", site="lyon"), site="lyon")[:2] == (403, "forbidden")
    assert house.exchange(house.token_of("p.1"))[0] == 200


def test_no_pilot_speaks_under_the_name_of_one_of_another_site_that_has_ended(house: House) -> None:
    told = {"source": "agent", "stream": "p.7", "pilot": "p.7"}
    house.log(event(1, "PilotStarted", {"site": "local"}, **told), event(2, "PilotEnded", {"reason": "ended"}, **told))
    assert house.exchange(house.token_of("p.7", site="lyon"), pilot="p.7", site="lyon")[:2] == (403, "forbidden")
    assert house.exchange(house.token_of("p.7"), pilot="p.7")[0] == 200


def test_no_pilot_is_the_one_that_was_asked_for_at_another_site(house: House) -> None:
    engine = house.jobs.engine
    engine.state.pilots.requests["local-4"] = PilotRequest("local-4", engine.state.sites.by_name["local"])
    for site, status in (("lyon", 403), ("local", 200)):
        data = msgspec.Raw(msgspec.json.encode({"site": site, "request": "local-4"}))
        started = Event(source="agent", stream=site, n=1, type="PilotStarted", time=1.0, pilot=site, data=data)
        assert house.exchange(house.token_of(site, site=site), pilot=site, site=site, events=(started,))[0] == status


def test_no_pilot_says_that_it_is_at_another_site(house: House) -> None:
    data = msgspec.Raw(msgspec.json.encode({"site": "local", "node": "n", "slots": 1}))
    started = Event(source="agent", stream="p.9", n=1, type="PilotStarted", time=1.0, pilot="p.9", data=data)
    lyon, local = house.token_of("p.9", site="lyon"), house.token_of("p.9")
    assert house.exchange(lyon, pilot="p.9", site="lyon", events=(started,))[:2] == (403, "forbidden")
    assert house.exchange(local, pilot="p.9", events=(started,))[0] == 200


def test_a_token_is_renewed_with_an_answer_in_its_last_third_and_refused_after_its_end(house: House) -> None:
    token = house.token_of("p.1")
    house.now += LIFE_SECONDS * 0.7
    status, _, headers = house.exchange(token)
    assert status == 200
    house.now += LIFE_SECONDS * 0.5
    assert house.exchange(token)[:2] == (401, "unauthenticated")
    assert house.exchange(headers["pilotage-token"])[0] == 200


def test_a_pilot_whose_own_token_has_ended_gets_another_with_one_of_its_site_that_lasts(house: House) -> None:
    engine = house.jobs.engine
    engine.state.pilots.by_name["p.1"] = PilotState(
        "p.1", engine.state.sites.by_name["local"], request="", heard_at=0.0
    )
    own, of_another, elsewhere = house.token_of("p.1"), house.token_of("p.2"), house.token_of("p.1", site="lyon")
    former = house.tokens.for_pilot("local")
    house.now += 2 * LIFE_SECONDS
    newer = house.tokens.for_pilot("local")
    for ended in ("", "nonsense", "a.b.c", newer, of_another, elsewhere):
        assert house.exchange(newer, ended_token=ended)[:2] == (403, "forbidden")
    assert house.exchange(former, ended_token=own)[:2] == (401, "unauthenticated")
    assert house.exchange(house.tokens.for_pilot("lyon"), site="lyon", ended_token=own)[:2] == (403, "forbidden")
    status, _, headers = house.exchange(newer, ended_token=own)
    assert (status, house.jobs.heard) == (200, [])
    assert house.exchange(headers["pilotage-token"])[0] == 200
    assert len(house.jobs.heard) == 1


def test_files_are_for_the_sites_that_run_something_of_the_job(house: House) -> None:
    path, token = "/agent/files/j?name=in.txt", house.token_of("p.1")
    assert house.ask("GET", path, token=token)[:2] == (403, "forbidden")
    engine = house.jobs.engine
    pilot = engine.state.pilots.by_name["p.1"] = PilotState(
        "p.1", engine.state.sites.by_name["local"], request="", heard_at=0.0
    )
    pilot.owed[REF] = 1
    assert house.status("GET", path, token=token) == 200
    for other in (house.token_of("p.1", site="lyon"), house.tokens.for_pilot("local")):
        assert house.ask("GET", path, token=other)[:2] == (403, "forbidden")
    assert house.status("GET", path, token=TOKEN) == 200


def test_a_site_has_no_file_that_nothing_reads_of_what_it_runs(house: House, tmp_path: Path) -> None:
    engine, token = house.jobs.engine, house.token_of("p.1")
    pilot = engine.state.pilots.by_name["p.1"] = PilotState(
        "p.1", engine.state.sites.by_name["local"], request="", heard_at=0.0
    )
    pilot.owed[REF] = 1
    (tmp_path / "results/lyon.token").write_text("secret")
    (tmp_path / "results/later.txt").touch()
    assert house.status("GET", "/agent/files/j?name=in.txt", token=token) == 200
    for name in ("lyon.token", "later.txt", "sites.yaml", ""):
        assert house.ask("GET", f"/agent/files/j?name={name}", token=token)[:2] == (403, "forbidden"), name
    house.jobs.inputs.add("later.txt")
    assert house.status("GET", "/agent/files/j?name=later.txt", token=token) == 200


def test_content_is_for_the_sites_that_run_something_of_a_job_that_brought_it_along(house: House) -> None:
    put = house.services.journal.put_content
    script, other, lists = (put(each) for each in (b"#!/bin/sh\n", b"of another job", b"[]"))
    job = registered(3, "k")
    job["data"] |= {"definition": "ab" * 32, "lists": {"origin": lists, "file-1": script}}
    house.log(job)
    engine = house.jobs.engine
    pilot = engine.state.pilots.by_name["p.1"] = PilotState(
        "p.1", engine.state.sites.by_name["local"], request="", heard_at=0.0
    )
    pilot.owed[REF] = 1
    local, lyon = house.token_of("p.1"), house.token_of("p.1", site="lyon")
    path = f"/agent/content/{script}"
    assert house.ask("GET", path, token=local)[:2] == (403, "forbidden")  # it runs another job
    pilot.owed[AttemptRef("k", "1.1.1", 1)] = 1
    assert house.status("GET", path, token=local) == 200
    assert house.ask("GET", path, token=lyon)[:2] == (403, "forbidden")
    for shut in (other, lists, "0" * 64, "x"):
        assert house.ask("GET", f"/agent/content/{shut}", token=local)[:2] == (403, "forbidden")
    assert house.status("GET", f"/agent/content/{other}", token=TOKEN) == 200
    both, one = (f'{{"sha256":["{script}"{more}]}}'.encode() for more in (f',"{other}"', ""))
    assert house.ask("POST", "/agent/contents", both, token=local)[:2] == (403, "forbidden")
    assert house.ask("POST", "/agent/contents", one, token=lyon)[:2] == (403, "forbidden")
    assert house.status("POST", "/agent/contents", one, token=local) == 200
    assert house.status("POST", "/agent/contents", both, token=TOKEN) == 200


def test_outputs_are_taken_from_the_pilot_that_has_their_attempt(house: House) -> None:
    path = "/agent/staged/j/1.2.1/3/0"
    for shut in (house.tokens.for_pilot("local"), house.tokens.for_pilot("lyon"), house.tokens.for_package(REF)):
        assert house.ask("PUT", path, b"x", token=shut)[:2] == (403, "forbidden")
    for other in (house.token_of("p.2"), house.token_of("p.1", site="lyon"), house.tokens.for_site_agent("lyon")):
        assert house.ask("PUT", path, b"x", token=other)[:2] == (404, "unknown_package")
    assert house.jobs.files.staged == []
    for own in (house.token_of("p.1"), house.tokens.for_site_agent("local")):
        assert house.status("PUT", path, b"x", token=own) == 204


def test_a_pilot_cannot_tell_a_job_of_others_from_one_that_is_not_there(house: House, tmp_path: Path) -> None:
    over = registered(3, "over")
    origin = origin_of(house.services.journal, tmp_path / "results")
    over["data"] |= {"definition": "ab" * 32, "lists": {"origin": origin}}
    created = event(4, "AttemptCreated", {"site": "local", "pilot": "p.1"}, **{**SUBJECT, "job": "over"})
    house.log(over, created, event(5, "Aborted", {"cause": "retries-exhausted"}, job="over"))
    token = house.token_of("p.2")
    told = set()
    for job in ("j", "over", "nowhere"):
        for place in ("1.2.1/3/0", "1.2.1/4/0", "9.9.9/3/0"):
            connection = house.connect()
            connection.request("PUT", f"/agent/staged/{job}/{place}", b"x", {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            attempt, package = place.split("/")[1], place.split("/")[0]
            text = answer.read().decode().replace(f"job {job} ", "job J ")
            told.add((answer.status, text.replace(f"attempt {attempt} of {package}", "attempt")))
            connection.close()
    ((status, _),) = told
    assert status == 404
    assert house.jobs.files.staged == []


ROUTES = Path(__file__).parents[3] / "docs/reference/exchange.md"


def test_nothing_changes_at_any_route_for_agents_with_a_token_that_is_not_meant_for_it(house: House) -> None:
    """Each route that the reference lists, as pilot p.1 of site local or the agent of lyon would use it, said by others."""
    engine = house.jobs.engine
    pilot = engine.state.pilots.by_name["p.1"] = PilotState(
        "p.1", engine.state.sites.by_name["local"], request="", heard_at=0.0
    )
    pilot.owed[REF] = 1
    script = house.services.journal.put_content(b"#!/bin/sh\n")
    tagged = event(1, "Tagged", {"name": "x", "value": "y"}, source="application", stream="application-1", **SUBJECT)
    exchange = AgentMessage(exchange=Exchange(pilot="p.1", site="local", sequence=1))
    routes: dict[str, tuple[str, bytes | None]] = {
        "POST /agent/exchange": ("", msgspec.json.encode(exchange)),
        "POST /agent/site": ("", msgspec.json.encode(SiteAgentMessage(site="lyon", agent="a", sequence=1))),
        "POST /agent/events": ("", msgspec.json.encode({"events": [tagged]})),
        "GET /agent/content": (f"/{script}", None),
        "POST /agent/contents": ("", msgspec.json.encode({"sha256": [script]})),
        "GET /agent/files": ("/j?name=in.txt", None),
        "GET /agent/transfers": ("/fetch.1.1", None),
        "GET /agent/cached": (f"/ab/{'ab' * 32}", None),
        "PUT /agent/staged": ("/j/1.2.1/3/0", b"x"),
    }
    assert set(routes) == set(re.findall(r"`((?:GET|PUT|POST) /agent/[a-z]+)", ROUTES.read_text(encoding="utf-8")))
    tokens, opens = house.tokens, {"POST /agent/site": ["agent of lyon"], "POST /agent/events": ["its package"]}
    shown = {
        "nobody's": "nonsense",
        "every pilot's of the site": tokens.for_pilot("local"),
        "another pilot's": house.token_of("p.2"),
        "another pilot's of another site": house.token_of("p.2", site="lyon"),
        "of its name at another site": house.token_of("p.1", site="lyon"),
        "agent of lyon": tokens.for_site_agent("lyon"),
        "its package": tokens.for_package(REF),
        "another package": tokens.for_package(AttemptRef("j", "1.1.1", 1)),
        "another job": tokens.for_package(AttemptRef("k", REF.package, REF.attempt)),
    }
    before = house.services.journal.position()
    for route, (more, body) in routes.items():
        method, path = route.split()
        for whose, token in shown.items():
            if whose in opens.get(route, ()):
                continue
            # Files are read with the token of any pilot of the site that runs something which reads them.
            may_read = (method == "GET" or route == "POST /agent/contents") and whose == "another pilot's"
            status = house.status(method, path + more, body, token=token)
            refused = status in (401, 403, 404) or (route == "POST /agent/events" and status in (200, 207, 422))
            assert refused or may_read, (route, whose, status)
    assert house.jobs.heard == []
    assert house.jobs.heard_sites == []
    assert house.jobs.files.staged == []
    assert house.services.journal.position() == before


SHUT = (
    "GET /v1/jobs",
    "GET /v1/jobs/j",
    "GET /v1/packages",
    "GET /v1/events",
    "GET /v1/jobs/j/events",
    "GET /v1/jobs/j/progress",
    "GET /v1/jobs/j/packages/1.2.1/logs",
    "GET /v1/jobs/j/outputs",
    "GET /v1/sites",
    "GET /v1/pilots",
    "GET /v1/nodes",
    "GET /v1/statistics",
    "POST /v1/jobs",
    "POST /v1/plan",
    "POST /v1/clean",
    "POST /v1/content",
    "POST /v1/jobs/j/clear",
)


def test_nothing_else_is_open_to_a_site_or_a_package(house: House) -> None:
    answers = set()
    for token in (house.tokens.for_site_agent("local"), house.tokens.for_package(REF)):
        for each in SHUT:
            method, path = each.split()
            body = b"{}" if method == "POST" else None
            answers.add((each, *house.ask(method, path, body, token=token)[:2]))
    assert answers == {(each, 403, "forbidden") for each in SHUT}


# --- a package ---


def test_a_package_tags_itself_and_notes_things(house: House) -> None:
    token = house.tokens.for_package(REF)
    assert house.status("GET", "/v1/position", token=token) == 200
    assert house.tag(token) == (200, "")
    assert house.tag(token, attempt=3) == (200, "")
    assert house.tag(token, kind="Noted") == (200, "")


def test_it_says_nothing_else_and_of_nobody_else(house: House) -> None:
    token = house.tokens.for_package(REF)
    for about in (
        {"package": "1.2.2"},
        {"job": "k"},
        {"attempt": 2},
        {"package": None},
        {"kind": "AttemptStarted", "attempt": 3},
        {"source": "client"},
        {"source": "service"},
    ):
        said: dict[str, Any] = about
        assert house.tag(token, **said) == (422, "forbidden"), about


def test_a_package_is_no_agent_and_an_agent_no_package(house: House) -> None:
    assert house.exchange(house.tokens.for_package(REF))[:2] == (403, "forbidden")
    assert house.tag(house.tokens.for_pilot("local")) == (403, "forbidden")


def test_the_token_of_an_attempt_that_never_was_or_is_long_over_is_refused(house: House) -> None:
    assert house.tag(house.tokens.for_package(AttemptRef("j", "1.2.1", 9)), attempt=9) == (401, "unauthenticated")
    assert house.tag(house.tokens.for_package(AttemptRef("k", "1.2.1", 1)), job="k") == (401, "unauthenticated")
    token, ended_at = house.tokens.for_package(REF), time.time() - MARGIN_SECONDS
    done = {"exit_code": "SUCCESS"}
    house.log(event(3, "AttemptFinished", done, source="agent", stream="p.1", **SUBJECT) | {"time": ended_at + 60.0})
    assert house.tag(token) == (200, "")
    lost = event(4, "AttemptFinished", done, source="agent", stream="p.1", job="j", package="1.1.1", attempt=1)
    house.log(
        event(5, "AttemptCreated", {"site": "local"}, job="j", package="1.1.1", attempt=1),
        lost | {"time": ended_at - 60.0},
    )
    other = house.tokens.for_package(AttemptRef("j", "1.1.1", 1))
    assert house.tag(other, package="1.1.1") == (401, "unauthenticated")
