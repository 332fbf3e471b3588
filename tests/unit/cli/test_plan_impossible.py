"""A plan without a service says what the service would: what no site can run is refused, and nothing is spent on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.command_line import in_an_empty_folder, refused, run

LARGE = """
pilotage: 1
job: large
stages:
  - name: think
    run: ./think
    memory: 900 TiB
"""
CLUSTER = """\
pilotage: 1
sites:
  - name: vast
    kind: slurm
    memory: 1000 TiB
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    (tmp_path / "think").write_text("#!/bin/sh\n")
    (tmp_path / "pilotage.yaml").write_text(LARGE)


def test_what_this_computer_cannot_give_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    told = refused("plan")
    assert "no site can run think: it asks for 900 TiB of memory and local has " in told
    assert "the nearest is local: ask for no more than it has, or name another site" in told
    assert sorted(tmp_path.iterdir()) == before


def test_for_programs_it_has_the_word_of_the_service() -> None:
    result = run("plan", "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (2, "unsatisfiable")


def test_a_site_that_is_written_down_can_run_it(tmp_path: Path) -> None:
    (tmp_path / "sites.yaml").write_text(CLUSTER)
    assert run("plan").stdout.startswith("large: 1 of 1 package would run\n")


def test_slots_that_are_named_are_what_this_computer_has(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text(LARGE.replace("memory: 900 TiB", "cores: 3"))
    assert "it asks for 3 cores and local has 2" in refused("plan", "--slots", "2")
    assert run("plan", "--slots", "3").exit_code == 0
