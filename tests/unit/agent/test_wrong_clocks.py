"""A clock that is proven wrong is believed and flagged, ahead or behind; what is only old is not."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from pilotage.agent import Producer
from pilotage.agent.service_clock import SERVICE_TIME_FIELD, TIME_FIELD, ServiceClock, both_clocks, clock_fields
from pilotage.book.query import parse
from pilotage.model.events.events import Event, is_doubtful, is_wrong
from pilotage.model.events.payloads import Noted
from pilotage.model.exchange.exchange import AgentMessage, AgentReply, Exchange, ExchangeReply
from pilotage.model.settings.settings import Settings
from pilotage.ports import Journal
from pilotage.service.http.services import Services
from pilotage.simulator.world.faults import Faults
from tests.kit.agent_service import AgentService, agent_service
from tests.kit.pilots import flying
from tests.kit.served_book import TOKEN, access_of, event, listening, registered, sqlite_journal
from tests.kit.simulated_site import SimulatedSite
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, site
from tests.unit.service.test_http_agents import Door, opened

HOUR = 3600.0
DAY = 24 * HOUR


# --- what is proven -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown, service_time, expected",
    [
        (1000.0, 0.0, False),
        (1300.0, 0.0, False),
        (1301.0, 0.0, True),  # it cannot have been sent after it came
        (1.0, 0.0, False),  # it may have been long on its way
        (700.0, 1000.0, False),
        (699.0, 1000.0, True),
        (699.0, 998.0, False),  # and after so much of the way it may be right
        (699.0, 1001.0, True),  # who counts has counted a little too fast
        (700.0, 1200.0, False),
        (1.0, 1301.0, False),  # our own clock was set back
    ],
)
def test_a_clock_is_wrong_where_nothing_else_can_be(shown: float, service_time: float, *, expected: bool) -> None:
    found = is_wrong(shown, service_time=service_time, received=1000.0, tolerance_seconds=300.0)
    assert found == expected


def test_who_has_not_heard_our_clock_and_is_late_is_doubted() -> None:
    assert is_doubtful(699.0, service_time=0.0, received=1000.0, tolerance_seconds=300.0)
    assert not is_doubtful(700.0, service_time=0.0, received=1000.0, tolerance_seconds=300.0)
    assert not is_doubtful(1.0, service_time=1.0, received=1000.0, tolerance_seconds=300.0)


def test_a_service_clock_goes_on_by_itself_and_is_never_ahead() -> None:
    clock = ServiceClock()
    assert clock.at_least() == 0.0
    for told in (None, "", "soon", b"nan", -1.0, "1e99", 10**400):
        clock.hear(told)
    assert clock.at_least() == 0.0
    before = time.monotonic()
    clock.hear("5000.5")
    first, here = both_clocks(clock)
    second = clock.at_least()
    assert 5000.5 <= first <= second <= 5000.5 + time.monotonic() - before
    assert abs(here - time.time()) < HOUR


def test_a_service_whose_time_does_not_get_through_is_told_nothing_of_clocks() -> None:
    clock = ServiceClock()
    assert set(clock_fields(clock)) == {TIME_FIELD, SERVICE_TIME_FIELD}
    clock.doubted()
    assert clock_fields(clock) == {}
    clock.hear("1000")  # by another answer
    assert float(clock_fields(clock)[SERVICE_TIME_FIELD]) >= 1000.0
    told = ServiceClock()
    told.hear("1000")
    told.doubted()
    assert float(clock_fields(told)[SERVICE_TIME_FIELD]) >= 1000.0


# --- over HTTP ------------------------------------------------------------------------------------------------------


class ClockOff:
    """A clock that runs ahead of that of this computer, or behind."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return time.time() + self.seconds


class Served:
    """A book over real HTTP, whose clock is off; who sends from here has one that is off the other way."""

    def __init__(self, url: str, journal: Journal) -> None:
        self.url = url
        self.journal = journal

    def flags(self) -> dict[str, list[bool]]:
        """Whether each event was flagged, by its stream."""
        found: dict[str, list[bool]] = {}
        for each in self.journal.find_events(parse("position > 0"), after=0, limit=100).items:
            found.setdefault(each.source, []).append(bool(each.row.skewed))
        return found


@contextmanager
def served(folder: Path, *, ahead_seconds: float) -> Iterator[Served]:
    with sqlite_journal(folder) as journal:
        services = Services(journal, access=access_of(), settings=Settings(), clock=ClockOff(ahead_seconds))
        with listening(services) as url:
            yield Served(url, journal)


def log(book: Served, spool: Path, *times: float | None) -> None:
    """Have a producer register a job, and say something at times by its own clock."""
    with Producer(book.url, source="client", spool=spool, token=TOKEN) as producer:
        data = registered(1, "j")["data"]
        producer.log("JobRegistered", data, job="j")
        for at in times:
            producer.log("Noted", {"text": "so"}, job="j", time=at)
            producer.flush()


def test_a_producer_an_hour_behind_is_flagged_from_its_first_event_on(tmp_path: Path) -> None:
    with served(tmp_path / "book", ahead_seconds=HOUR) as book:
        log(book, tmp_path / "spool", None, None)
        assert book.flags() == {"client": [True, True, True]}


def test_a_producer_whose_clock_is_right_is_not_flagged_however_old_what_it_tells_is(tmp_path: Path) -> None:
    with served(tmp_path / "book", ahead_seconds=0.0) as book:
        log(book, tmp_path / "spool", None, time.time() - DAY, 1.0)
        assert book.flags() == {"client": [False, False, False, False]}


def test_what_lay_in_a_spool_for_a_day_is_not_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with served(tmp_path / "book", ahead_seconds=0.0) as book:
        with Producer(book.url, source="client", spool=tmp_path / "spool", token=TOKEN, deliver=False) as yesterday:
            with monkeypatch.context() as patched:
                patched.setattr("pilotage.agent.delivery.producer.clock.time", lambda: now - DAY)
                yesterday.log("JobRegistered", registered(1, "j")["data"], job="j")
            yesterday.close(flush_seconds=0)
        log_again(book, tmp_path / "spool")
        assert book.flags() == {"client": [False, False]}


def log_again(book: Served, spool: Path) -> None:
    with Producer(book.url, source="client", spool=spool, token=TOKEN) as today:
        today.log("Noted", {"text": "so"}, job="j")
        today.flush()


def test_a_producer_that_is_ahead_is_flagged_with_what_it_wrote_long_ago(tmp_path: Path) -> None:
    with served(tmp_path / "book", ahead_seconds=-HOUR) as book:
        log(book, tmp_path / "spool", time.time() - DAY)
        assert book.flags() == {"client": [True, True]}


def test_who_says_nothing_of_its_clock_is_believed(tmp_path: Path) -> None:
    with served(tmp_path / "book", ahead_seconds=HOUR) as book:
        assert post(book, 1, {})[0] == 200
        assert post(book, 2, {TIME_FIELD: "5"})[0] == 200
        assert post(book, 3, {TIME_FIELD: "x", SERVICE_TIME_FIELD: "0"})[0] == 200
        assert book.flags() == {"service": [False, False, False]}


def test_who_has_not_heard_our_time_is_told_and_nothing_is_kept(tmp_path: Path) -> None:
    with served(tmp_path / "book", ahead_seconds=HOUR) as book:
        status, told = post(book, 1, {TIME_FIELD: str(time.time()), SERVICE_TIME_FIELD: "0"})
        assert status == 425
        assert abs(float(told) - time.time() - HOUR) < 100.0
        assert book.journal.position() == 0
        assert post(book, 1, {TIME_FIELD: str(time.time()), SERVICE_TIME_FIELD: told})[0] == 200
        assert post(book, 2, {TIME_FIELD: str(time.time() + HOUR), SERVICE_TIME_FIELD: told})[0] == 200
        assert book.flags() == {"service": [True, False]}


def post(book: Served, n: int, headers: dict[str, str]) -> tuple[int, str]:
    said = registered(n, "j") if n == 1 else event(n, "Noted", {"text": "so"}, job="j")
    connection = http.client.HTTPConnection(urlsplit(book.url).netloc, timeout=20.0)
    try:
        connection.request(
            "POST", "/v1/events", json.dumps({"events": [said]}), {"Authorization": f"Bearer {TOKEN}", **headers}
        )
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader(TIME_FIELD, "")
    finally:
        connection.close()


# --- agents ---------------------------------------------------------------------------------------------------------


class Late(AgentService):
    """A service whose clock is an hour ahead of that of the agent."""

    def _reply(self, says: AgentMessage) -> AgentReply:
        heard = super()._reply(says)
        reply = msgspec.structs.replace(heard.reply, time=time.time() + HOUR)
        return msgspec.structs.replace(heard, reply=reply)


def test_an_agent_says_what_both_clocks_show(tmp_path: Path) -> None:
    service = Late()
    service.listen(tmp_path / "agent.sock")
    try:
        with flying(service, tmp_path):
            service.wait_for(lambda: len(service.said) >= 2)
            first, second = (each.exchange for each in service.said[:2])
        assert first.service_time == 0.0
        assert abs(first.time - time.time()) < HOUR / 2
        assert second.is_skewed(received=time.time() + HOUR, tolerance_seconds=300.0)
        assert not first.is_skewed(received=time.time() + HOUR, tolerance_seconds=300.0)
        assert first.is_doubtful(received=time.time() + HOUR, tolerance_seconds=300.0)
    finally:
        service.stop()


def test_an_agent_whose_clock_is_right_says_so(tmp_path: Path) -> None:
    with agent_service(tmp_path / "agent.sock") as service, flying(service, tmp_path):
        service.wait_for(lambda: service.said)
        assert not service.said[0].exchange.is_skewed(received=time.time(), tolerance_seconds=30.0)
        assert not service.said[0].exchange.is_doubtful(received=time.time(), tolerance_seconds=30.0)


def test_the_door_tells_the_time_to_an_agent_that_may_be_behind_and_hears_it_then(tmp_path: Path) -> None:
    started = Event(source="agent", stream="p.1", n=1, type="PilotStarted", time=1.0, pilot="p.1")
    with opened(tmp_path) as door:
        first = Exchange(pilot="p.1", site="local", sequence=1, time=1.0, service_time=0.0, events=(started,))
        told = ask(door, first)
        assert (told.sequence, told.acknowledged, told.leave) == (1, 0, "")
        assert abs(told.time - time.time()) < 100.0
        assert door.jobs.heard == []
        ask(door, Exchange(pilot="p.1", site="local", sequence=2, time=1.0, service_time=told.time, events=(started,)))
        [heard] = door.jobs.heard
        assert heard.exchange.is_skewed(received=time.time(), tolerance_seconds=300.0)
        ask(door, Exchange(pilot="p.2", site="local", sequence=1, time=1.0, service_time=0.0))  # nothing to be flagged
        assert len(door.jobs.heard) == 2


def test_an_agent_that_never_says_what_it_was_told_is_heard_all_the_same(tmp_path: Path) -> None:
    started = Event(source="agent", stream="p.1", n=1, type="PilotStarted", time=1.0, pilot="p.1")
    with opened(tmp_path) as door:
        ask(door, Exchange(pilot="p.1", site="local", sequence=1, time=1.0, events=(started,)))
        assert len(door.jobs.heard) == 1


def ask(door: Door, exchange: Exchange) -> ExchangeReply:
    body = msgspec.json.encode(AgentMessage(exchange=exchange))
    status, _, answer = door.ask("POST", "/agent/exchange", body, token="of-an-agent")
    assert status == 200
    return msgspec.json.decode(answer, type=AgentReply).reply


@pytest.mark.parametrize("skew_seconds, flagged", [(0.0, False), (-HOUR, True), (HOUR, True), (-299.0, False)])
def test_the_core_says_whose_clocks_are_wrong_and_what_its_own_shows(skew_seconds: float, *, flagged: bool) -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        agent = small.pilot()
        agent.say(Noted(text="so"))
        outbox = small.step(agent.message(time=small.now + skew_seconds, service_time=small.now))
        assert outbox.skewed == ([("agent", agent.name)] if flagged else [])
        assert all(reply.time == small.now for reply in outbox.replies)
        assert outbox.replies
        small.finish()


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_simulated_agent_with_a_wrong_clock_is_found_out_by_its_second_exchange(seed: int) -> None:
    here = SimulatedSite(faults=Faults(clock_skewed=1.0), seed=seed)
    here.start()
    skew_seconds = here.spooled[0].time - here.schedule.now + here.now
    told = here.schedule.now
    reply = ExchangeReply(pilot=here.last.pilot, sequence=here.last.sequence, time=told, acknowledged=1)
    here.fleet.deliver([reply])
    here.run(30.0)
    assert here.last.service_time == told
    assert len(here.heard) > 1
    second = here.heard[1]
    sent = second.time - skew_seconds
    is_far = abs(skew_seconds) > 400.0
    assert second.is_skewed(received=sent + 0.1, tolerance_seconds=300.0) == is_far
