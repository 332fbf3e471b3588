"""Forecasts from what the book knows of the pilots of a site, where no service runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pilotage.client.finding import SERVICE_FILE
from pilotage.forecast.history import LatencyHistory, Submitter
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import PilotEnded, PilotRequested, PilotStarted, SiteDescribed, SiteLatencies
from tests.kit.command_line import in_an_empty_folder, refused, run
from tests.kit.events import START, Stream
from tests.kit.sqlite_books import keep, opened

ENGINE_STREAM = "engine"


class Site:
    """The events of a site at which pilots start a hundred seconds after their requests."""

    def __init__(self) -> None:
        self.engine = Stream("service", ENGINE_STREAM)
        self.events: list[Event] = [self.engine.event(SiteDescribed(kind="slurm"), site="lyon")]

    def pilots(self, count: int, *, latency_seconds: float = 100.0) -> None:
        for _ in range(count):
            key = f"lyon-{self.engine.n + 1}"
            agent = Stream("agent", f"{key}.1")
            self.events += [
                self.engine.event(PilotRequested(site="lyon"), pilot=key, time=START),
                self.engine.event(PilotRequested(site="lyon", native_id="1"), pilot=key, time=START + 10.0),
                agent.event(PilotStarted(site="lyon", request=key), pilot=f"{key}.1", time=START + latency_seconds),
                self.engine.event(PilotEnded(reason="ended"), pilot=key, time=START + latency_seconds + 9.0),
            ]

    def record(self, starts: int) -> None:
        """Record starts whose pilots have left the book."""
        history = LatencyHistory()
        for _ in range(starts):
            submitter = Submitter("", "nodes=1")
            history.started(submitter, at=START - 9000.0, latency_seconds=500.0, submission_seconds=5.0)
        learned = SiteLatencies(starts=starts, learned=history.encoded(), through=self.engine.n + 1)
        self.events.append(self.engine.event(learned, site="lyon"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    in_an_empty_folder(tmp_path, monkeypatch)
    return Site()


def kept(site: Site) -> None:
    state = Path(".pilotage")
    with opened(state) as journal:
        keep(journal, site.events)
    (state / SERVICE_FILE).write_text(json.dumps({"url": "http://127.0.0.1:7"}), "utf-8")


def told(*words: str) -> Any:
    result = run("forecast", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_pilots_in_the_book_are_the_latencies(site: Site) -> None:
    site.pilots(40)
    kept(site)
    found = told("pilots", "--site", "lyon", "-n", "10", "--at", "90,110")
    assert [each["mean"] for each in found["points"]] == pytest.approx([0.0, 10.0])
    assert (found["basis"], found["starts"], found["hour_of_week"]) == ("user and shape", 40, None)


def test_what_was_recorded_and_the_pilots_after_it_count_together(site: Site) -> None:
    site.pilots(20)  # which the record counts
    site.record(30)
    site.pilots(30)
    kept(site)
    found = told("pilots", "--site", "lyon", "-n", "10", "--at", "200")
    assert (found["starts"], found["points"][0]["mean"]) == (60, pytest.approx(5.0))


@pytest.mark.parametrize(
    "words",
    [
        ("makespan", "--work", "1000", "-n", "5"),
        ("makespan", "--work", "1000", "-n", "5", "--model", "full", "--sequential"),
        ("recommend", "--work", "1000", "--sequential"),
    ],
)
def test_every_command_takes_the_site_and_says_what_it_is_from(site: Site, words: tuple[str, ...]) -> None:
    site.pilots(30)
    kept(site)
    assert told(*words, "--site", "lyon")["basis"] == "user and shape"
    assert "30 starts like these" in run("forecast", *words, "--site", "lyon").stdout


def test_fewer_than_thirty_starts_are_refused_with_what_to_do(site: Site) -> None:
    site.pilots(29)
    kept(site)
    message = refused("forecast", "pilots", "--site", "lyon", "-n", "1", "--at", "1")
    assert "too few pilots have started there" in message
    assert "at least 30 starts" in message
    assert "29" in message
    assert "--latencies FILE" in message


def test_an_unknown_site_is_refused(site: Site) -> None:
    kept(site)
    assert "no such site" in refused("forecast", "pilots", "--site", "lion", "-n", "1", "--at", "1")


@pytest.mark.parametrize("words", [(), ("--latencies", "a.csv", "--site", "lyon")])
def test_latencies_come_from_one_place(site: Site, words: tuple[str, ...]) -> None:
    assert "--latencies FILE, or --site NAME" in refused("forecast", "pilots", *words, "-n", "1", "--at", "1")
