"""Every request to every route, answered as it was before: by status, headers and body.

`http_answers.json` holds the answers. After a change of them that is wanted, `python -m tests.unit.service.test_http_recorded`
records them anew; what differs is to be seen in the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.content_store import FolderContent
from pilotage.model.exchange.exchange import AgentMessage, AttemptRef, Exchange, LogText
from pilotage.model.exchange.reports import SiteAgentMessage
from pilotage.model.jobs.submission import RunPlan
from pilotage.model.settings.settings import NotificationSettings, Settings
from pilotage.ports import Journal
from pilotage.reading.access import OWN_PACKAGE, SCOPES, Principal, local_principal
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.dispatcher import make_dispatcher
from pilotage.service.http.route_table import API_ROUTES
from pilotage.service.http.services import Services
from pilotage.service.notifications.notifications import Notifications
from tests.kit.asked_app import ask
from tests.kit.running_jobs import FakeJobs
from tests.kit.served_book import TOKEN, WallClock, access_of, event, sqlite_journal
from tests.kit.service_clients import ServiceClient, a_bad_day

ANSWERS = Path(__file__).parent / "http_answers.json"
NOW = 1_750_000_000.0  # what is later is of this run; what the test itself says is earlier
VOLATILE = ("next", "secret", "origin", "version")
ALL = frozenset(SCOPES) - {OWN_PACKAGE}
PARTS = {
    "job": "j", "package": "1.2.1", "line": "1.2", "attempt": "1", "stream": "stdout", "site": "local",
    "sha256": hashlib.sha256(b"what a job brought along").hexdigest(),
}  # fmt: skip
CONTENT = b"what a job brought along"
SUBMISSION = b'{"definition":{},"lists":{},"folder":"/f"}'
BODIES: dict[str, bytes] = {
    "POST /v1/events": b'{"events":[]}',
    "POST /v1/jobs": SUBMISSION,
    "POST /v1/plan": SUBMISSION,
    "POST /v1/clean": b'{"submission":%b}' % SUBMISSION,
    "POST /v1/content": b"#!/bin/sh\n",
    "POST /v1/content/batch": hashlib.sha256(CONTENT).hexdigest().encode() + b" 24\n" + CONTENT,
    "POST /v1/content/captured": hashlib.sha256(CONTENT).hexdigest().encode() + b" 24\n" + CONTENT,
    "POST /v1/content/keep": b'{"sha256":["%b"]}' % hashlib.sha256(CONTENT).hexdigest().encode(),
    "POST /v1/content/drop": b'{"sha256":["%b"]}' % (b"0" * 64),
    "POST /v1/content/missing": b'{"sha256":["%b"]}' % (b"0" * 64),
    "POST /v1/folders/seen": b'{"folder":"/f","mark":".pilotage-seen-%b","text":"%b"}' % (b"0" * 32, b"1" * 32),
    "PUT /v1/content/{sha256:str}": CONTENT,
    "POST /v1/jobs/{job:str}/operations": b'{"operation":"hold"}',
    "POST /v1/operations": b'{"operation":"hold","where":"state=RUNNING and site=nowhere"}',
    "POST /v1/subscriptions": b'{"states":["DONE"]}',
    "POST /v1/subscriptions/{subscription:str}/refresh": b"{}",
    "PATCH /v1/subscriptions/{subscription:str}": b'{"transport":"poll"}',
    "POST /agent/exchange": msgspec.json.encode(AgentMessage(exchange=Exchange(pilot="p", site="local", sequence=1))),
    "POST /agent/site": msgspec.json.encode(SiteAgentMessage(site="lyon", agent="a", sequence=1)),
    "POST /agent/events": b'{"events":[]}',
    "POST /agent/contents": b'{"sha256":["%b"]}' % (b"0" * 64),
    "PUT /agent/staged/j/1.1.2/1/0": b"bytes",
}
AGENTS = {
    "POST /agent/exchange": "agent.exchange",
    "POST /agent/site": "agent.site",
    "POST /agent/events": "book.write",
    f"GET /agent/content/{hashlib.sha256(CONTENT).hexdigest()}": "agent.exchange",
    "POST /agent/contents": "agent.exchange",
    "GET /agent/files/j?name=in.txt": "agent.exchange",
    "PUT /agent/staged/j/1.1.2/1/0": "agent.exchange",
}
NOWHERE = [
    "GET /", "GET /v1", "GET /v1/jobs/", "GET //v1//jobs", "GET /v2/jobs", "GET /v1/jobs/no job", "GET /v1/jobs/\u00fc/events",
    "PUT /v1/jobs", "HEAD /v1/jobs", "OPTIONS /v1/jobs", "DELETE /v1/position", "POST /v1/jobs/j/progress", "POST /healthz",
    "GET /agent", "GET /agent/", "GET /agent/exchange", "PUT /agent/exchange", "POST /agent/content/x", "GET /agent/nothing",
    "GET /agent/content/x", "GET /agent/content/x/y", "GET /agent/files/none?name=a", "GET /agent/files/j?name=../a",
    "GET /agent/files/j", "PUT /agent/staged/j", "PUT /agent/staged/j/1.1/3/0", "PUT /agent/staged/j/1.2.1/3/0?offset=x",
    "GET /v1/jobs/j/packages?limit=1&limit=2", "GET /v1/jobs?query=%FF", "GET /v1/jobs?query=", "GET /v1/jobs?limit",
    "GET /v1/statistics?window=2h", "GET /v1/jobs/j/events?wait_seconds=61", "GET /healthz?x=1", "OPTIONS /agent/exchange",
    "GET /v1/subscriptions/none", "GET /v1/sites/nowhere", "GET /v1/jobs/j/packages/9.9.9", "GET /v1/jobs/none/progress",
    "PUT /agent/staged/j/1.2.1/3/0",
]  # fmt: skip
"""What is at no route, or at one in an odd form."""


class House:
    """A service with a job, its notifications and a stand-in for what runs jobs."""

    def __init__(self, services: Services, folder: Path) -> None:
        self.services, self.folder = services, folder
        self.door = make_dispatcher(services)
        self.subscription = "none"

    def ask(self, request: str, *, scopes: frozenset[str] | None, body: bytes = b"", **headers: str) -> list[Any]:
        """Status, headers and body, without what differs from run to run; no scopes at all is no token."""
        known = local_principal("ann") if scopes == ALL else Principal(user="ann", scopes=scopes or frozenset())
        self.services.access = access_of({TOKEN: known})
        method, _, target = request.partition(" ")
        path, _, query = target.partition("?")
        for name, part in {**PARTS, "subscription": self.subscription}.items():
            path = path.replace(f"{{{name}:str}}", part)
        if body and headers.pop("length", "") != "untold":
            headers = {"content_length": str(len(body)), **headers}
        token = "" if scopes is None else f"Bearer {TOKEN}"
        told = asyncio.run(
            ask(self.door, path, body, method=method, query=query, **{"authorization": token, **headers})
        )
        status, fields, content = told
        if status == 201 and path == "/v1/subscriptions":
            self.subscription = msgspec.json.decode(content)["subscription"]["id"]
        is_json = fields.get(b"content-type") == b"application/json"
        plain = msgspec.json.decode(content) if is_json and content else content.decode()
        shown = {name.decode(): self.text(value.decode()) for name, value in sorted(fields.items())}
        if is_json:
            shown["content-length"] = str(shown.get("content-length") == str(len(content)))
        return [status, shown, self.lasting(plain)]

    def lasting(self, value: Any) -> Any:
        """A value without what differs from run to run."""
        if isinstance(value, dict):
            return {
                name: "…" if name in VOLATILE and isinstance(part, str) else self.lasting(part)
                for name, part in value.items()
            }
        if isinstance(value, list):
            return [self.lasting(part) for part in value]
        if isinstance(value, float | int) and value > NOW:
            return "now"
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        text = text.replace(self.subscription, "SUBSCRIPTION") if self.subscription != "none" else text
        text = re.sub(r"\b1[789][0-9]{8}\.[0-9]+", lambda found: "now" if float(found[0]) > NOW else found[0], text)
        return text.replace(str(self.folder), "FOLDER")

    def answers(self) -> Iterator[tuple[str, list[Any]]]:
        """Each request, in words, and its answer."""
        needs = {f"{route.method} {route.path}": set(route.needs) for route in API_ROUTES}
        needs |= {request: {scope} for request, scope in AGENTS.items()}
        for request, scopes in needs.items():
            body = BODIES.get(request, b"")
            yield f"{request}, no token", self.ask(request, scopes=None, body=body)
            for scope in sorted(scopes):
                yield f"{request}, without {scope}", self.ask(request, scopes=ALL - {scope}, body=body)
            yield f"{request}, a parameter that is not known", self.ask(_asking(request, "x=1"), scopes=ALL, body=b"{")
            yield f"{request}, a bad parameter", self.ask(_asking(request, "limit=-1"), scopes=ALL, body=b"{")
            if not request.startswith(("GET", "HEAD")):
                yield f"{request}, a bad body", self.ask(request, scopes=ALL, body=b"{")
                yield f"{request}, a bad body of no length", self.ask(request, scopes=ALL, body=b"{", length="untold")
                if "/agent/" not in request or request.endswith("events"):
                    length = {"content_length": str(2**40)}
                    yield f"{request}, too long", self.ask(request, scopes=ALL, body=b"{", **length)
                    yield f"{request}, too long, no token", self.ask(request, scopes=None, body=b"{", **length)
        for request in NOWHERE:
            yield request, self.ask(request, scopes=ALL)
            yield f"{request}, no token", self.ask(request, scopes=None)
        yield "GET /v1/jobs, a bad host", self.ask("GET /v1/jobs", scopes=ALL, host="a b")
        yield "GET /v1/jobs, a bad host, no token", self.ask("GET /v1/jobs", scopes=None, host="a b")
        yield "GET /agent/files, a piece", self.ask("GET /agent/files/j?name=in.txt", scopes=ALL, range="bytes=1-2")
        yield "GET /agent/files, no piece", self.ask("GET /agent/files/j?name=in.txt", scopes=ALL, range="bytes=9-")
        yield "POST /v1/subscriptions", self.ask("POST /v1/subscriptions", scopes=ALL, body=b'{"states":["DONE"]}')
        for request in sorted(needs, key=lambda each: ("GET HEAD POST PUT PATCH DELETE".index(each.split()[0]), each)):
            yield f"{request}, good", self.ask(request, scopes=ALL, body=BODIES.get(request, b""))
        yield "GET /schema", [*self.ask("GET /schema", scopes=None)[:1]]


def _asking(request: str, parameter: str) -> str:
    return f"{request}{'&' if '?' in request else '?'}{parameter}"


@contextmanager
def house_in(folder: Path) -> Iterator[House]:
    """A house with a job that had a bad day."""
    jobs, clock = FakeJobs(), WallClock()

    def make(journal: Journal, **_: Any) -> JobBackend:
        return JobBackend(
            jobs,
            journal=journal,
            plan=lambda _: RunPlan(job="p", packages=1, would_run=1, there=0),
            content=FolderContent(folder / "state"),
        )

    with sqlite_journal(folder / "state") as journal:
        notifications = Notifications(
            journal,
            clock=clock,
            settings=NotificationSettings(),
            base_url="http://h",
            notifiers={},
            mailer=None,
            address_of=lambda owner: "",
        )
        services = Services(
            journal,
            access=access_of(),
            settings=Settings(),
            clock=clock,
            make_backend=make,
            notifications=notifications,
            open_records=partial(FolderRecords, folder / "records"),
        )
        services.start()
        try:
            service: Any = ServiceClient(None, services, jobs, folder)  # type: ignore[arg-type]
            a_bad_day(service)
            ref = AttemptRef("j", "1.2.1", 1)
            jobs.kept.kept = [LogText(ref=ref, stream="stdout", head="a\n", tail="ü\n", dropped_bytes=0, final=True)]
            service.log(event(12, "AttemptCreated", {"site": "local"}, job="j", package="1.1.2", attempt=1))
            journal.put_content(CONTENT)
            (folder / "in.txt").write_text("input")
            yield House(services, folder)
        finally:
            services.stop()


def recorded() -> dict[str, list[Any]]:
    answers: dict[str, list[Any]] = json.loads(ANSWERS.read_text())
    return answers


def test_every_answer_is_as_it_was(tmp_path: Path) -> None:
    with house_in(tmp_path) as house:
        told = dict(house.answers())
    known = recorded()
    assert told.keys() == known.keys()
    differing = {request: (known[request], told[request]) for request in known if known[request] != told[request]}
    if differing:
        pytest.fail(json.dumps(differing, indent=1, ensure_ascii=False), pytrace=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, house_in(Path(name)) as made:
        lines = (f"{json.dumps(request)}: {json.dumps(told)}" for request, told in made.answers())
        ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
