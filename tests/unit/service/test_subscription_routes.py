"""Subscriptions over HTTP, against a service that really listens: routes, long polls, streams, webhooks."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.adapters.notifiers.networks import LOOPBACK
from pilotage.adapters.notifiers.webhook import SIGNATURE_HEADER, WebhookNotifier, verify
from pilotage.model.settings.settings import Settings
from pilotage.reading.access import READ, SUBSCRIBE, Principal
from pilotage.service.http.services import Services
from pilotage.service.notifications.notifications import Notifications
from tests.kit.served_book import TOKEN, WallClock, access_of, event, listening, registered, sqlite_journal
from tests.kit.webhook_receiver import WebhookReceiver

OTHER = "the-token-of-somebody-else"


class Client:
    """Speaks to the service as programs do."""

    def __init__(self, url: str) -> None:
        self.address = url.removeprefix("http://")
        self._n = 0

    def ask(
        self, method: str, path: str, body: object = None, *, token: str = TOKEN, **headers: str
    ) -> tuple[int, Any]:
        connection = self.connect(method, path, body, token=token, **headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, msgspec.json.decode(text) if text else None

    def connect(
        self, method: str, path: str, body: object = None, *, token: str = TOKEN, **headers: str
    ) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        text = msgspec.json.encode(body) if body is not None else None
        connection.request(
            method, path, text, {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **sent}
        )
        return connection

    def subscribe(self, **asked: object) -> str:
        status, answer = self.ask("POST", "/v1/subscriptions", asked)
        assert status == 201, answer
        return str(answer["subscription"]["id"])

    def register(self, job: str = "j1") -> None:
        self.log(registered(self.next(), job), event(self.next(), "JobAccepted", job=job))

    def run(self, package: str, *, job: str = "j1") -> None:
        said = {"site": "lyon", "lease_seconds": 60.0}
        self.log(event(self.next(), "AttemptCreated", said, job=job, package=package, attempt=1))

    def log(self, *events: dict[str, Any]) -> None:
        status, answer = self.ask("POST", "/v1/events", {"events": list(events)})
        assert status == 200, answer

    def next(self) -> int:
        self._n += 1
        return self._n


@contextmanager
def a_service(folder: Path) -> Iterator[Services]:
    settings = Settings()
    with sqlite_journal(folder) as journal:
        clock = WallClock()
        notifications = Notifications(
            journal,
            clock=clock,
            settings=settings.notifications,
            base_url="http://book.example",
            notifiers={"webhook": WebhookNotifier(clock=clock, networks=LOOPBACK)},
            mailer=None,
            address_of=lambda owner: None,
        )
        somebody = Principal(user="bob", scopes=frozenset({READ, SUBSCRIBE}))
        known = {
            TOKEN: Principal(user="ann", scopes=frozenset({READ, SUBSCRIBE, "book.write", "book.decide"})),
            OTHER: somebody,
        }
        yield Services(journal, access=access_of(known), settings=settings, clock=clock, notifications=notifications)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with a_service(tmp_path) as services, listening(services) as url:
        yield Client(url)


def test_a_subscription_is_made_listed_refreshed_rebound_and_dropped(client: Client) -> None:
    status, made = client.ask(
        "POST", "/v1/subscriptions", {"query": "state=DONE and job=j1", "states": ["done"], "validity_seconds": 100}
    )
    assert status == 201
    assert len(made["secret"]) >= 32
    one = made["subscription"]
    assert one["query"] == "state=DONE and job=j1"
    assert (one["states"], one["attributes"], one["transport"]) == (["DONE"], [], "poll")
    assert one["expires_at"] - one["created_at"] == pytest.approx(100)
    path = f"/v1/subscriptions/{one['id']}"
    assert client.ask("GET", path) == (200, one)
    assert client.ask("GET", "/v1/subscriptions") == (200, {"subscriptions": [one]})
    status, longer = client.ask("POST", f"{path}/refresh", {"validity_seconds": 1e9})
    assert status == 200
    assert longer["expires_at"] > one["expires_at"] + 80_000
    status, bound = client.ask("PATCH", path, {"transport": "webhook", "address": "http://127.0.0.1:9/hook"})
    assert (status, bound["transport"], bound["address"]) == (200, "webhook", "http://127.0.0.1:9/hook")
    assert client.ask("GET", f"{path}/notices")[0] == 409
    assert client.ask("DELETE", path) == (204, None)
    assert client.ask("GET", path)[0] == 404
    assert client.ask("DELETE", path)[1]["error"]["code"] == "unknown_subscription"


@pytest.mark.parametrize(
    "asked, shown",
    [
        ({}, ([], ["state"])),
        ({"attributes": ["status", "host"]}, ([], ["state", "node"])),
        ({"attributes": ["host"]}, ([], ["node"])),
        ({"attributes": ["host"], "states": ["done"]}, (["DONE"], ["node"])),
    ],
)
def test_what_matters_is_shown_as_it_could_be_asked_for_again(
    client: Client, asked: dict[str, object], shown: tuple[list[str], list[str]]
) -> None:
    for body in (asked, {"states": shown[0], "attributes": shown[1]}):
        _, made = client.ask("POST", "/v1/subscriptions", body)
        assert (made["subscription"]["states"], made["subscription"]["attributes"]) == shown


def test_nobody_reaches_the_subscriptions_of_another(client: Client) -> None:
    name = client.subscribe()
    path = f"/v1/subscriptions/{name}"
    assert client.ask("GET", "/v1/subscriptions", token=OTHER) == (200, {"subscriptions": []})
    for method, where, body in (
        ("GET", path, None),
        ("DELETE", path, None),
        ("PATCH", path, {"transport": "poll"}),
        ("POST", f"{path}/refresh", {}),
        ("GET", f"{path}/notices", None),
    ):
        assert client.ask(method, where, body, token=OTHER)[0] == 404
        assert client.ask(method, where, body, token="wrong")[0] == 401
    assert client.ask("GET", path)[0] == 200


@pytest.mark.parametrize(
    "body, says",
    [
        ({"query": "state=="}, "bad_query"),
        ({"states": ["RUNING"]}, "bad_subscription"),
        ({"transport": "pigeon"}, "bad_subscription"),
        ({"transport": "webhook", "address": "http://user:pw@example.org/"}, "bad_address"),
        ({"transport": "mail", "address": "ann@example.org"}, "bad_subscription"),
        ({"quer": "x"}, "bad_parameter"),
        ({"validity_seconds": 0}, "bad_parameter"),
        ({"validity_seconds": "long"}, "bad_parameter"),
    ],
)
def test_what_cannot_be_subscribed_to_is_a_400_that_says_why(client: Client, body: object, says: str) -> None:
    status, answer = client.ask("POST", "/v1/subscriptions", body)
    assert (status, answer["error"]["code"]) == (400, says)
    assert "pw" not in str(answer)


def test_notices_are_polled_and_acknowledged(client: Client) -> None:
    path = f"/v1/subscriptions/{client.subscribe(query='job=j1')}/notices"
    client.register()
    assert client.ask("GET", path) == (200, {"notices": [], "after": "0.0", "more": False})
    client.run("1.1.1")
    client.run("1.2.1")
    status, first = client.ask("GET", f"{path}?limit=1")
    assert (status, first["more"], len(first["notices"])) == (200, True, 1)
    notice = first["notices"][0]
    assert notice["specversion"] == "1.0"
    assert (notice["subject"], notice["data"]["state"]) == ("jobs/j1/packages/1.1.1", "RUNNING")
    assert notice["source"].startswith("http://book.example/v1/subscriptions/")
    assert client.ask("GET", f"{path}?limit=1")[1] == first
    _, second = client.ask("GET", f"{path}?after={first['after']}")
    assert [each["data"]["package"] for each in second["notices"]] == ["1.2.1"]
    assert [each["data"]["package"] for each in client.ask("GET", path)[1]["notices"]] == ["1.2.1"]
    assert client.ask("GET", f"{path}?after={second['after']}")[1]["notices"] == []
    for wrong in ("after=x", "after=1", "limit=0", "limit=100000", "wait_seconds=-1", "afterr=1"):
        assert client.ask("GET", f"{path}?{wrong}")[0] == 400


def test_a_long_poll_is_answered_as_soon_as_there_is_something(client: Client) -> None:
    path = f"/v1/subscriptions/{client.subscribe()}/notices"
    client.register()
    waiting = client.connect("GET", f"{path}?wait_seconds=30")
    client.run("1.1.1")
    answer = msgspec.json.decode(waiting.getresponse().read())
    waiting.close()
    assert [each["data"]["package"] for each in answer["notices"]] == ["1.1.1"]


def read_events(answer: http.client.HTTPResponse, count: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    while len(found) < count:
        line = answer.readline().decode().rstrip("\n")
        if not line:
            if "data" in fields:
                found.append(fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    return found


def test_a_stream_tells_what_happens_and_continues_after_a_reconnect(client: Client) -> None:
    path = f"/v1/subscriptions/{client.subscribe()}/notices"
    client.register()
    client.run("1.1.1")
    connection = client.connect("GET", path, Accept="text/event-stream")
    stream = connection.getresponse()
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    (first,) = read_events(stream, 1)
    client.run("1.2.1")
    (second,) = read_events(stream, 1)
    connection.close()
    stream.close()
    assert first["event"] == "io.pilotage.package.state"
    assert [msgspec.json.decode(each["data"])["data"]["package"] for each in (first, second)] == ["1.1.1", "1.2.1"]
    client.run("1.1.2")
    again = client.connect("GET", path, Accept="text/event-stream", Last_Event_ID=first["id"])
    stream = again.getresponse()
    rest = read_events(stream, 2)
    again.close()
    stream.close()
    assert rest[0] == second
    assert msgspec.json.decode(rest[1]["data"])["data"]["package"] == "1.1.2"
    assert [each["data"]["package"] for each in client.ask("GET", path)[1]["notices"]] == ["1.2.1", "1.1.2"]
    assert client.ask("GET", path, Accept="text/event-stream", Last_Event_ID="nonsense")[0] == 400


def test_a_stream_ends_when_its_subscription_does(client: Client) -> None:
    path = f"/v1/subscriptions/{client.subscribe()}"
    connection = client.connect("GET", f"{path}/notices", Accept="text/event-stream")
    stream = connection.getresponse()
    stream.readline()
    assert client.ask("DELETE", path)[0] == 204
    assert stream.read().strip() == b""
    connection.close()
    stream.close()


def test_a_stream_of_a_subscription_that_does_not_exist_is_a_404(client: Client) -> None:
    assert client.ask("GET", "/v1/subscriptions/none/notices", Accept="text/event-stream")[0] == 404


def test_a_webhook_goes_out_by_itself_and_verifies(client: Client) -> None:
    with WebhookReceiver() as receiver:
        _, made = client.ask("POST", "/v1/subscriptions", {"transport": "webhook", "address": receiver.url})
        client.register()
        client.run("1.1.1")
        (post,) = receiver.wait_for(1)
        assert verify(made["secret"], post.body, post.headers[SIGNATURE_HEADER], now=WallClock().now())
        assert post.event["data"]["package"] == "1.1.1"


def test_the_service_stops_in_time_with_polls_and_streams_open(tmp_path: Path) -> None:
    with a_service(tmp_path) as services:
        with listening(services) as url:
            client = Client(url)
            path = f"/v1/subscriptions/{client.subscribe()}/notices"
            poll = client.connect("GET", f"{path}?wait_seconds=60")
            stream = client.connect("GET", path, Accept="text/event-stream")
            opened = stream.getresponse()
            opened.readline()
        assert msgspec.json.decode(poll.getresponse().read())["notices"] == []
        poll.close()
        stream.close()
        opened.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("deliver", "subscriptions"))]


def test_a_service_without_notifications_says_so(tmp_path: Path) -> None:
    with sqlite_journal(tmp_path) as journal:
        services = Services(journal, access=access_of(), settings=Settings(), clock=WallClock())
        with listening(services) as url:
            status, answer = Client(url).ask("GET", "/v1/subscriptions")
    assert (status, answer["error"]["message"]) == (400, "this service has no subscriptions")
