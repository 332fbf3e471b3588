"""Resources on the agent's side: the same kinds as the service has, and every kind counts wherever amounts are used."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest

from pilotage.agent.__main__ import _parser, _settings
from pilotage.agent.attempt.environment import OWN_NAMES, own_entries
from pilotage.agent.batch import BatchRequest, dialects
from pilotage.agent.batch.pilot_job import PilotJobTemplate
from pilotage.agent.pilot.backlog import HeldAttempt, SlotTable
from pilotage.agent.resources import KINDS, VARIABLES, Resources, pilot_options, resources_of, resources_of_entry
from pilotage.model import resources
from pilotage.model.sites.entry import SiteEntry

JOB_TEMPLATE = PilotJobTemplate(
    site="lyon", folder="/f", agent="/a.pyz", server="https://here:1", resources=Resources(400, 5, 6, 7)
)
EVERY_KIND = pytest.mark.parametrize("kind", Resources._fields)


def test_service_and_agent_have_the_same_kinds_and_the_same_defaults() -> None:
    assert Resources._fields == resources.NAMES == tuple(kind.name for kind in KINDS)
    assert Resources() == resources.amounts(resources.Demand()) == resources.amounts(resources.Capacity())
    assert {kind.name for kind in KINDS if kind.is_asked} <= {field.name for field in fields(BatchRequest)}


def test_what_an_agent_is_told_is_written_as_before() -> None:
    pilots, attempt = (
        JOB_TEMPLATE.pilots("lyon-1"),
        JOB_TEMPLATE.attempt("k", serves="j:1.1.1:1", demand={"scratch_bytes": 9}),
    )
    assert pilots.command[-6:-2] == ["--cores-hundredths=400", "--memory=5", "--gpus=6", "--scratch=7"]
    assert attempt.command[-4:] == ["--cores-hundredths=100", "--memory=0", "--gpus=0", "--serves=j:1.1.1:1"]
    assert (pilots.cores, pilots.memory_bytes, pilots.gpus) == (4, 5, 6)
    quiet = replace(JOB_TEMPLATE, resources=Resources(400)).pilots("lyon-1")
    assert quiet.command[-5:-2] == ["--cores-hundredths=400", "--memory=0", "--gpus=0"]
    assert (quiet.cores, quiet.memory_bytes, quiet.gpus) == (4, 0, 0)


@EVERY_KIND
def test_a_pilot_tells_the_service_what_it_was_told(kind: str, tmp_path: Path) -> None:
    told = Resources(400, 5, 6, 7)._replace(**{kind: 300})
    words = ["pilot", "--server=unix:none", f"--state={tmp_path}", "--request=a-1", "--site=a", *pilot_options(told)]
    assert _settings(_parser().parse_args(words)).capacity == told


@EVERY_KIND
def test_an_entry_says_of_every_kind_what_a_pilot_has(kind: str) -> None:
    (about,) = (each for each in resources.KINDS if each.name == kind)
    entry = msgspec.structs.replace(SiteEntry(name="a", kind="slurm"), **{about.entry: 7})
    there = 700 if kind == "cores_hundredths" else 7
    assert resources_of_entry(msgspec.structs.asdict(entry)) == Resources()._replace(**{kind: there})


def held(number: int, demand: dict[str, int]) -> HeldAttempt:
    return HeldAttempt({"ref": {"job": "J", "package": f"1.1.{number}", "attempt": 1}, "demand": demand}, {})


@EVERY_KIND
def test_what_an_attempt_takes_of_a_kind_another_waits_for(kind: str) -> None:
    slot_table = SlotTable(Resources(*[500] * len(Resources._fields)))
    first, second = held(1, {kind: 300}), held(2, {kind: 300})
    assert resources_of({kind: 300}) == first.resources == Resources()._replace(**{kind: 300})
    assert (slot_table.never_fits(first.resources), slot_table.never_fits(resources_of({kind: 501}))) == (False, True)
    slot_table.accept(first)
    slot_table.accept(second)
    assert slot_table.take() is first
    assert slot_table.take() is None
    slot_table.remove(first)
    assert slot_table.take() is second


def test_an_application_is_told_what_it_may_take() -> None:
    demand = {"cores_hundredths": 250, "memory_bytes": 5, "gpus": 6, "scratch_bytes": 7}
    assignment = {"ref": {"job": "j", "package": "1.1.1", "attempt": 1}, "demand": demand}
    entries = own_entries(assignment, {"path": "p", "index": 1, "folder": "/w"}, scratch="/s")
    assert [each.decode().partition("=")[0] for each in entries] == [*OWN_NAMES]
    assert {b"PILOTAGE_CORES=2.5", b"PILOTAGE_MEMORY_BYTES=5", b"PILOTAGE_GPUS=6"} <= {*entries}
    assert VARIABLES == ("CORES", "MEMORY_BYTES", "GPUS")


@pytest.mark.parametrize(
    "system, asked",
    [("slurm", "--gres=gpu:2"), ("gridengine", "gpu=2"), ("pbs", ":ngpus=2"), ("htcondor", "request_gpus = 2")],
)
def test_what_is_counted_is_asked_for_by_the_name_that_a_batch_system_has_for_it(system: str, asked: str) -> None:
    several, none = (dialects()[system]("p").submit(BatchRequest("a-1", ["true"], gpus=count)) for count in (2, 0))
    assert asked in f"{several.argv} {several.stdin}"
    assert "gpu" not in f"{none.argv} {none.stdin}"
