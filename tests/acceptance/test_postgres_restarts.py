"""PostgreSQL restarts under a service, idle or at work: nothing is lost, and no two services write one book."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from pilotage.service.announcement import find_service, why_ended
from tests.engines.postgres import PostgresServer
from tests.kit.real_runs import Place, place_in, wait_until

JOB = """pilotage: 1
job: {name}
stages:
  - each: {{n: 1..{count}}}
    run: sh -c 'sleep {seconds}; echo {{n}} > {name}-{{n}}.txt'
    outputs: ["{name}-{{n}}.txt"]
"""
# Whoever goes on from the book waits for agents of the one before for some leases: short ones.
SETTINGS = """[journal]
url = "{url}"
[engine]
interval_seconds = 1.0
lease_intervals = 2
"""


@pytest.fixture
def places(tmp_path: Path, postgres_url: str) -> Iterator[list[Place]]:
    """Two folders whose services have one book."""
    with ExitStack() as stack:
        made = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "pilotage.toml").write_text(SETTINGS.format(url=postgres_url))
            made.append(stack.enter_context(place_in(tmp_path / name)))
        yield made


def serve(place: Place) -> None:
    place.run("serve", "--background", "--port", "0")


def health(place: Place) -> int:
    """What the service says of itself; 0 where nobody answers."""
    found = find_service(place.state)
    if found is None:
        return 0
    try:
        with urlopen(f"{found.url}/healthz", timeout=60) as answer:
            return int(answer.status)
    except HTTPError as fault:
        return fault.code
    except URLError:
        return 0


def states_of(place: Place) -> dict[str, str]:
    return {job["name"]: job["state"] for job in place.told("query", "--jobs", "all")["jobs"]}


def has_made(place: Place, count: int) -> bool:
    return len(list(place.folder.glob("load-*.txt"))) >= count


def run(place: Place, name: str, *, count: int = 3, seconds: float = 0.0) -> None:
    place.document(JOB.format(name=name, count=count, seconds=seconds))
    place.run("run")


def test_an_idle_service_keeps_its_book_when_the_server_restarts(
    places: list[Place], postgres_server: PostgresServer
) -> None:
    one, other = places
    serve(one)
    postgres_server.stop(immediate=True)
    wait_until(lambda: health(one) == 503, "the service to notice that its database is gone")
    postgres_server.start()
    wait_until(lambda: health(one) == 200, "the service to have its lock again")
    refused = other.run("serve", "--background", "--port", "0", code=2)
    assert "another process writes this book" in refused.stderr
    run(one, "after")
    assert states_of(one) == {"after": "DONE"}


def test_a_service_whose_book_was_taken_over_stops_and_says_what_to_do(
    places: list[Place], postgres_server: PostgresServer
) -> None:
    one, other = places
    serve(one)
    run(one, "before")
    found = find_service(one.state)
    assert found is not None
    os.kill(found.pid, signal.SIGSTOP)  # as on a computer that sleeps
    try:
        postgres_server.restart(immediate=True)
        serve(other)
        run(other, "meanwhile")
    finally:
        os.kill(found.pid, signal.SIGCONT)
    wait_until(lambda: find_service(one.state) is None, "the one that was overtaken to stop")
    reason = why_ended(one.state)
    assert "another process writes this book now" in reason
    assert "stop the other one, then start this one again" in reason
    assert health(other) == 200
    other.run("serve", "--stop")
    run(one, "again")
    assert states_of(one) == {"before": "DONE", "meanwhile": "DONE", "again": "DONE"}
    one.run("serve", "--stop")
    assert one.run("book", "check").stdout.endswith("sound\n")


def test_a_job_goes_through_restarts_of_the_server_and_loses_no_grant(
    places: list[Place], postgres_server: PostgresServer
) -> None:
    one, _ = places
    count = 60
    one.document(JOB.format(name="load", count=count, seconds=0.05))
    running = one.begin("run")
    for made in (5, 20, 35):
        wait_until(partial(has_made, one, made), f"{made} packages to be done")
        postgres_server.restart(immediate=made != 20)
    one.ended(running)
    assert states_of(one) == {"load": "DONE"}
    assert one.told("query", "state=RUNNING")["packages"] == []
    assert len(list(one.folder.glob("load-*.txt"))) == count
    one.run("serve", "--stop")
    assert one.run("book", "check").stdout.endswith("sound\n")
