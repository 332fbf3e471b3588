"""A finished package is stale exactly while what it read differs from what its producers were last granted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.model.events.events import parse_dotted
from pilotage.model.exchange.operations import Restart
from pilotage.reading.stale_results import remade_inputs
from tests.kit.earlier_work import Place, place
from tests.kit.small_service import SmallService

# The last line keeps the job open: it is never run.
DOCUMENT = """
pilotage: 1
job: chain
stages:
  - lines:
      - {run: make a, outputs: [a]}
      - {run: make b, outputs: [b]}
      - {run: wait, outputs: [c]}
  - lines:
      - {run: read a, inputs: [a], outputs: [d]}
      - {run: read a b, inputs: [a, b], outputs: [e]}
"""
MAKES = {"1.1.1": "a", "1.2.1": "b", "2.1.1": "d", "2.2.1": "e"}
READS = {"2.1.1": ("1.1.1",), "2.2.1": ("1.1.1", "1.2.1")}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SmallService]:
    with place(tmp_path) as here:
        made = SmallService(here)
        yield made
        made.aftermath.stop()


def stale(here: Place, service: SmallService, job: str, package: str) -> set[str]:
    """The inputs that the book says a finished package read with other contents."""
    row, state = here.journal.job(job), service.engine.state.jobs.by_id[job]
    at = parse_dotted(package)
    assert row is not None
    assert at is not None
    number = state.number((at.stage, at.line, at.number))
    assert number is not None
    return {each.name for each in remade_inputs(here.journal, row, at, granted=state.granted[number])}


@pytest.mark.parametrize("seed", range(20))
def test_a_package_is_stale_while_an_input_differs_from_what_it_read(service: SmallService, seed: int) -> None:
    dice, here = random.Random(seed), service.place
    job = service.submit(DOCUMENT).job
    present: dict[str, str] = {}  # the content that each package was last granted
    read: dict[str, dict[str, str]] = {}  # by reader: what it read of each producer

    def run(package: str, content: str) -> None:
        service.exchange()
        if package in READS:
            read[package] = {each: present[each] for each in READS[package]}
        service.succeed(package, {MAKES[package]: content})
        present[package] = content

    for package in MAKES:
        run(package, "x")
    for _ in range(12):
        package = dice.choice(list(MAKES))
        service.ask(Restart(job=job, package=package))
        run(package, dice.choice("xyz"))
        for reader in READS:
            expected = {MAKES[each] for each, content in read[reader].items() if content != present[each]}
            assert stale(here, service, job, reader) == expected, (package, reader)
