"""Published histories of gLite L&B: the published states, in whatever order their events are read."""

from __future__ import annotations

import csv
import itertools
import random
from pathlib import Path

import pytest

from pilotage.book.ulm import Imported, read_ulm
from tests.kit.ulm import LoggedJob

SHUFFLES = 200
LOGS = (
    "perf_dag_avg_events.log",
    "perf_dag_avg_events.reg.log",
    "perf_simple_avg_events.log",
    "perf_simple_avg_events.reg.log",
)
RESULT_FIELDS = {"Done": "STATUS_CODE"}


@pytest.fixture(scope="module")
def published(reference_data: Path) -> dict[str, list[dict[str, str]]]:
    """The steps of each published sequence."""
    with (reference_data / "glite_lb/published_states.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    sequences = {name: list(steps) for name, steps in itertools.groupby(rows, key=lambda row: row["sequence"])}
    assert len(sequences) == 9
    return sequences


def logged(name: str, steps: list[dict[str, str]]) -> LoggedJob:
    job = LoggedJob(f"https://lb.example.org:9000/{name}")
    for step in steps:
        fields = {RESULT_FIELDS.get(step["event"], "RESULT"): step["result"]} if step["result"] else {}
        if step["exit_code"]:
            fields["EXIT_CODE"] = step["exit_code"]
        job.log(step["source"], step["event"], **fields)
    return job


def states(imported: Imported) -> dict[str, str]:
    return {job.id.rpartition("/")[2]: job.state for job in imported.jobs}


def test_every_published_prefix_gives_its_published_state(published: dict[str, list[dict[str, str]]]) -> None:
    checked = 0
    for name, steps in published.items():
        for count, step in enumerate(steps, 1):
            if step["state_after_sequence"]:
                imported = read_ulm(logged(name, steps[:count]).text(), file="published")
                assert (imported.faults, imported.warnings) == ((), ())
                assert states(imported) == {name: step["state_after_sequence"]}, f"{name}, step {step['step']}"
                checked += 1
    assert checked == 23


def test_shuffled_and_repeated_published_events_give_the_same_states(
    published: dict[str, list[dict[str, str]]],
) -> None:
    lines = [line for name, steps in published.items() for line in logged(name, steps).lines]
    expected = {name: steps[-1]["state_after_sequence"] for name, steps in published.items()}
    events = {name: len(steps) for name, steps in published.items()}
    chance = random.Random(2)
    for _ in range(SHUFFLES):
        mixed = lines + chance.sample(lines, 20)
        chance.shuffle(mixed)
        imported = read_ulm("\n".join(mixed), file="published")
        assert states(imported) == expected
        assert {job.id.rpartition("/")[2]: job.events for job in imported.jobs} == events


@pytest.mark.parametrize("log", LOGS)
def test_a_genuine_log_gives_one_state_whatever_the_order(reference_data: Path, log: str) -> None:
    lines = (reference_data / "glite_lb/ulm_events" / log).read_bytes().split(b"\n")
    expected = read_ulm(b"\n".join(lines), file=log)
    assert expected.faults == ()
    assert len(expected.jobs) == 1
    chance = random.Random(3)
    for _ in range(SHUFFLES):
        mixed = lines + chance.sample(lines, len(lines) // 3)
        chance.shuffle(mixed)
        assert read_ulm(b"\n".join(mixed), file=log).jobs == expected.jobs


def test_the_genuine_simple_job_was_matched_ran_and_was_cleared(reference_data: Path) -> None:
    text = (reference_data / "glite_lb/ulm_events/perf_simple_avg_events.log").read_bytes()
    (job,) = read_ulm(text, file="simple").jobs
    assert job.id == "https://devel15.cnaf.infn.it:9000/rReV1TpJ5oY0Z1_M4NBfHw"
    assert (job.state, job.events, job.resubmissions) == ("CLEARED", 20, 0)
    assert job.destination == "ce01.tier2.hep.manchester.ac.uk:2119/jobmanager-lcgpbs-cms"


def test_without_its_clear_and_its_end_the_genuine_job_runs(reference_data: Path) -> None:
    text = (reference_data / "glite_lb/ulm_events/perf_simple_avg_events.log").read_text("utf-8")
    lines = text.splitlines()
    assert states(read_ulm("\n".join(lines[:-1]), file="simple")) == {"rReV1TpJ5oY0Z1_M4NBfHw": "DONE"}
    assert states(read_ulm("\n".join(lines[:-2]), file="simple")) == {"rReV1TpJ5oY0Z1_M4NBfHw": "RUNNING"}


def test_the_unnamed_genuine_dag_is_called_what_its_description_says(reference_data: Path) -> None:
    for log, state, events in (
        ("perf_dag_avg_events.log", "DONE", 15),
        ("perf_dag_avg_events.reg.log", "SUBMITTED", 2),
    ):
        (job,) = read_ulm((reference_data / "glite_lb/ulm_events" / log).read_bytes(), file=log).jobs
        assert job.id == "https://tigerman.cnaf.infn.it:9000/JX5AeJ87sdfoyBsf1vId2A"
        assert (job.state, job.events) == (state, events)


def test_a_registration_in_two_genuine_logs_is_one_event(reference_data: Path) -> None:
    folder = reference_data / "glite_lb/ulm_events"
    for name, events in (("perf_dag_avg_events", 15), ("perf_simple_avg_events", 20)):
        both = (folder / f"{name}.reg.log").read_bytes() + b"\n" + (folder / f"{name}.log").read_bytes()
        assert [job.events for job in read_ulm(both, file=name).jobs] == [events]
