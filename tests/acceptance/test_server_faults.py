"""What happens to a service must not happen to the book: kills, stops and full disks, with clients that go on sending."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.adapters.journals.postgres.journal import PostgresJournal
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.agent import Courier, Producer
from pilotage.book.query import parse
from pilotage.model.settings.settings import Settings
from pilotage.ports import FoundEvent, Journal
from pilotage.service.announcement import SERVICE_FILE, find_service
from pilotage.service.http.services import Services
from tests.engines.postgres import PostgresServer, free_port
from tests.kit import served_book as served
from tests.kit.served_book import TOKEN, WallClock, access_of, event, listening, nursery, served_book

KILLS = 60
KILL_AFTER_SECONDS_MAX = 0.08
RESTARTS = 4
PACKAGES = 400
ANSWER_SECONDS = 30
HEADERS = {"Authorization": f"Bearer {TOKEN}"}

Identity = tuple[str, str, int]


class Sender:
    """Sends its events in batches of random sizes, each again until it is acknowledged."""

    def __init__(self, events: list[dict[str, Any]], *, port: int, chance: random.Random) -> None:
        self.events = events
        self.acknowledged = 0
        self.position = 0
        self.moved = threading.Semaphore(0)
        self._port = port
        self._chance = chance

    @property
    def done(self) -> bool:
        return self.acknowledged == len(self.events)

    def send(self) -> None:
        """Send until everything is acknowledged, or the service or its journal is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
        try:
            while not self.done:
                batch = self.events[self.acknowledged :][: self._chance.randint(1, 60)]
                connection.request("POST", "/v1/events", json.dumps({"events": batch}), HEADERS)
                answer = connection.getresponse()
                receipt = json.loads(answer.read())
                if answer.status == 503:
                    return
                assert (answer.status, receipt["refused"]) == (200, []), receipt
                assert receipt["position"] >= self.position
                self.position = receipt["position"]
                self.acknowledged += len(batch)
                self.moved.release()
        except (OSError, http.client.HTTPException):
            return  # whether it was kept is not known: the next one sends it again
        finally:
            connection.close()


class SpoolSender:
    """The same through the spool of an agent and its courier."""

    def __init__(self, folder: Path, *, url: str) -> None:
        self.producer = Producer(url, source="agent", spool=folder, token=TOKEN, deliver=False, environment={})
        self.sent = {
            tuple(self.producer.log("Noted", {"text": f"note {n}"}, site="lyon")) for n in range(1, 2 * PACKAGES)
        }
        self.producer.sync()
        self._courier = Courier(self.producer.queue, token=lambda: TOKEN, batch_events=50)
        self.done = False

    def send(self) -> None:
        drained = self._courier.drain_once()
        self.done = not drained.problem and not drained.busy

    def close(self) -> None:
        self._courier.close()
        self.producer.close()


def history(job: str) -> list[dict[str, Any]]:
    """A job whose packages all come to a good end, told by one stream."""
    shape = {"items": PACKAGES, "templates": [{"lines": 1, "activities": ["reco"]}]}
    told: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("JobRegistered", {"owner": "ann", "name": job, "stages": [shape]}, {}),
        ("JobAccepted", {}, {}),
    ]
    for line in range(1, PACKAGES + 1):
        place = {"package": f"1.{line}.1", "attempt": 1}
        told.append(("AttemptCreated", {"site": "lyon", "lease_seconds": 60}, place))
        told.append(("AttemptFinished", {"exit_code": "SUCCESS"}, place))
        told.append(("CommitGranted", {}, place))
    return [event(n, kind, data, job=job, stream=job, **place) for n, (kind, data, place) in enumerate(told, 1)]


def stored(journal: Journal) -> Iterator[FoundEvent]:
    """Every event of a book."""
    after = 0
    while True:
        page = journal.find_events(parse("position>0"), after=after, limit=1000)
        yield from page.items
        if not page.more:
            return
        after = page.items[-1].row.position


@pytest.mark.slow
def test_no_kill_at_any_moment_loses_or_doubles_an_event(tmp_path: Path) -> None:
    chance = random.Random(20241115)
    port = free_port()
    senders = [Sender(history(f"job-{number}"), port=port, chance=chance) for number in (1, 2)]
    spooled = SpoolSender(tmp_path / "spool", url=f"http://127.0.0.1:{port}")
    everyone: list[Sender | SpoolSender] = [*senders, spooled]
    amid = 0
    with nursery(tmp_path, port=port) as services:
        for _ in range(KILLS):
            services.start()
            threads = [threading.Thread(target=each.send) for each in everyone]
            for each in threads:
                each.start()
            # Any moment is as good as any other: the first requests, the middle of a commit, a checkpoint, the idle end.
            threads[-1].join(chance.uniform(0, KILL_AFTER_SECONDS_MAX))
            amid += any(each.is_alive() for each in threads)
            services.kill()
            for each in threads:
                each.join(ANSWER_SECONDS)
            if all(each.done for each in senders):
                senders.append(Sender(history(f"job-{len(senders) + 1}"), port=port, chance=chance))
                everyone.append(senders[-1])
        services.start()
        for last in everyone:
            last.send()
            assert last.done
        services.terminate()
    spooled.close()
    assert amid, "a kill must come while somebody sends; how many do depends on the machine"
    expected: set[Any] = {("service", each["stream"], each["n"]) for sender in senders for each in sender.events}
    journal = SqliteJournal(tmp_path)
    try:
        found = [(each.source, each.stream, each.row.n) for each in stored(journal)]
        assert len(found) == len(set(found)), "an event was doubled"
        assert set(found) == expected | spooled.sent, "an event was lost"
        for number in range(1, len(senders) + 1):
            job = journal.job(f"job-{number}")
            assert job is not None
            assert (job.state, job.done, job.touched) == ("DONE", PACKAGES, PACKAGES)
    finally:
        journal.close()


def test_a_service_that_is_asked_to_stop_finishes_what_it_began_and_is_found_no_more(tmp_path: Path) -> None:
    with served_book(tmp_path) as book:
        announcement = find_service(tmp_path)
        assert announcement is not None
        assert announcement.url == book.url
        sender = Sender(history("job"), port=book.port, chance=random.Random(1))
        thread = threading.Thread(target=sender.send)
        thread.start()
        assert sender.moved.acquire(timeout=ANSWER_SECONDS)
        code, stderr = book.terminate()
        thread.join(ANSWER_SECONDS)
    assert (code, stderr) == (0, "")
    assert find_service(tmp_path) is None
    journal = SqliteJournal(tmp_path)
    try:
        assert journal.position() >= sender.acknowledged > 0
    finally:
        journal.close()


def test_a_second_service_on_one_folder_is_refused_and_a_dead_one_is_not_believed(tmp_path: Path) -> None:
    with served_book(tmp_path) as book:
        second = subprocess.run(
            [sys.executable, str(served.__file__), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode != 0
        assert "another process writes this book" in second.stderr
        assert book.url in second.stderr
        book.kill()
    assert (tmp_path / SERVICE_FILE).exists()
    assert find_service(tmp_path) is None
    with served_book(tmp_path) as book:
        again = find_service(tmp_path)
        assert again is not None
        assert again.url == book.url


def test_a_full_disk_keeps_what_was_acknowledged_and_takes_the_rest_when_there_is_room(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    services = Services(journal, access=access_of(), settings=Settings(), clock=WallClock())
    events = history("job")
    acknowledged = 0

    def post(connection: http.client.HTTPConnection, batch: list[dict[str, Any]]) -> int:
        connection.request("POST", "/v1/events", json.dumps({"events": batch}), HEADERS)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    try:
        with listening(services) as url:
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=ANSWER_SECONDS)
            pages = journal._writer.execute("PRAGMA page_count").fetchone()[0]
            journal._writer.execute(f"PRAGMA max_page_count = {pages + 8}")
            while (status := post(connection, events[acknowledged : acknowledged + 100])) == 200:
                acknowledged += 100
                assert acknowledged < len(events), "the disk never was full"
            assert status == 507
            assert journal.position() == acknowledged
            journal._writer.execute("PRAGMA max_page_count = 1000000")
            while acknowledged < len(events):
                assert post(connection, events[acknowledged : acknowledged + 100]) == 200
                acknowledged += 100
            connection.close()
        assert [each.row.n for each in stored(journal)] == [each["n"] for each in events]
    finally:
        journal.close()


def test_a_postgresql_that_restarts_in_mid_batch_loses_and_doubles_nothing(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    chance = random.Random(7)
    journal = PostgresJournal(postgres_url)
    services = Services(journal, access=access_of(), settings=Settings(), clock=WallClock())
    try:
        with listening(services) as url:
            port = int(url.rpartition(":")[2])
            senders = [Sender(history(f"job-{number}"), port=port, chance=chance) for number in (1, 2)]
            for _ in range(RESTARTS):
                threads = [threading.Thread(target=each.send) for each in senders]
                for each in threads:
                    each.start()
                assert senders[0].done or senders[0].moved.acquire(timeout=ANSWER_SECONDS)
                postgres_server.restart(immediate=True)
                for each in threads:
                    each.join(ANSWER_SECONDS)
            for sender in senders:
                while not sender.done:
                    sender.send()
        found = [(each.stream, each.row.n) for each in stored(journal)]
        assert len(found) == len(set(found)), "an event was doubled"
        assert set(found) == {(each["stream"], each["n"]) for sender in senders for each in sender.events}
    finally:
        journal.close()
