"""A pilot that runs and cannot speak is told of within a minute, in its own words, wherever somebody asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.process_batch import ProcessBatch, give_dialect
from tests.kit.real_runs import Place, place_in, wait_until

JOB = "pilotage: 1\njob: waits\nstages:\n  - {shell: echo > made, outputs: [made], executor: lyon}\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A service, and a site of processes whose pilots are told an address at which nobody answers."""
    batch, work = ProcessBatch(tmp_path / "batch"), tmp_path / "work"
    work.mkdir()
    give_dialect(work)
    (work / "pilotage.toml").write_text('[service]\naddress = "http://127.0.0.1:9"\n')
    entry = f"{{name: lyon, kind: procbatch, folder: {tmp_path / 'shared'}, python: {sys.executable}}}"
    (work / "sites.yaml").write_text(f"pilotage: 1\nsites:\n  - {entry}\n")
    with place_in(work, environment=batch.environment()) as found:
        found.run("serve", "--slots", "0", "--port", "0", "--background")
        yield found
    batch.end()


def test_a_pilot_that_runs_and_cannot_reach_the_service_is_told_of_in_its_own_words(place: Place) -> None:
    place.document(JOB)
    place.run("run", "--detach")

    def trouble() -> str:
        return str(place.told("status")["progress"].get("trouble", ""))

    wait_until(lambda: "without contacting the service" in trouble(), "the pilot is told of")
    assert "refused" in trouble()
    assert "without contacting the service" in place.run("status").stdout
    (site,) = place.told("site", "list")["sites"]
    assert "no answer from the service" in site["last_words"]
    listed = place.run("site", "list").stdout
    assert "lyon: a pilot runs at lyon without contacting the service" in listed
    assert "pilotage site test lyon" in listed
    shown: Any = place.told("site", "show", "lyon")
    assert [each["state"] for each in shown["noticed"]] == ["running"]
    assert "runs, unheard" in place.run("site", "show", "lyon").stdout
    assert "without contacting the service" in place.run("site", "explain", "lyon").stdout
    assert "without contacting the service" in place.run("explain", "1.1.1").stdout
