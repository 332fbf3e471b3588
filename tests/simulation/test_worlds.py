"""Worlds by the hundred: the engine, the core and the book hold what they promise, whatever strikes.

A world that fails prints how to see it again. A world that found a bug once is kept in a file of its own, with all that
it depends on: it stays what it is when a seed makes another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pilotage.simulator.trials.definition import FILES_AFTER, STALLS_AFTER, World, make_world, packages_of_world
from pilotage.simulator.trials.shrink import read_world, stored
from pilotage.simulator.trials.trial import Result, fired_lines, line_of, simulate
from pilotage.simulator.world.faults import FILE_KINDS, KINDS
from pilotage.simulator.world.randomness import Exponential

WORLDS = 200
STALLED_WORLDS = 10
FILE_WORLDS = 50
CHUNKS = 4
FILE_CHUNKS = 2
FIRED_MIN = 20  # over all worlds, and something came of it: so each chunk has its share
FILE_FIRED_MIN = 5  # in each chunk

KEPT = Path(__file__).with_name("worlds")
KEPT_BYTES_MAX = 200_000
WORLDS_THAT_FOUND_BUGS: dict[str, str] = {
    "seed-17": "a late stage was laid out although a dropped producer had been restored in between",
    "seed-37": "a package restarted by hand waited for ever for a producer that had been given up",
    "seed-81": "packages that wait for a late stage were not given up when its producer began anew and died again",
    "seed-127": "a line was restored after a consumer had begun without it",
    "seed-135": "a package with side effects was rescheduled beside its running attempt",
    "seed-165": "the cap on failures was forgotten when a line was dropped and restored",
    "seed-209": "packages of a stage that grew late waited for ever for a producer that had been given up",
    "seed-240": "a package restarted by hand waited for ever for a late stage that could not be laid out",
    "seed-248": "a reservation of a replica that was released made room in its category",
    "seed-250": "a late copy of an old message told a service that had just started that something had stopped",
    "seed-300": "a package that had failed as often as it may got a replica",
    "seed-1015": "packages waited for ever for space at one site, though they could run at others",
    "seed-1103": "the wish of a second job of the same owner to keep a file was not recorded",
    "seed-1119": "packages waited for ever for space that files of packages took which could only run after them",
    "seed-1161": "a package with a silent attempt made room for another one at the limit of its owner",
    "seed-3697": "a lost reader whose input was made anew stayed counted in a queue that it had left",
}
"""What each of the files found, so that a later failure is understood sooner."""


def kept(name: str) -> World:
    file = KEPT / f"{name}.json"
    return read_world(file.read_bytes(), name=str(file))


def held(result: Result, *, again: str, found: str = "") -> None:
    """Fail, with all there is to say, where something did not hold; `again` is what shows it again."""
    if result.violation is not None:
        told = [line_of(result), result.violation.message, *result.last_events]
        told.append(f"see it again with: pilotage simulate {again}")
        told.append(f"keep it with: pilotage simulate {again} --save-world {KEPT.name}/NAME.json")
        if found:
            told.append(f"it found once that {found}")
        pytest.fail("\n".join(told), pytrace=False)


@pytest.mark.timeout(900)  # a minute of CPU: several on a busy computer
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_strikes_everything_holds_and_ends(chunk: int, tell: Callable[[str], None]) -> None:
    fired: Counter[str] = Counter()
    planned: Counter[str] = Counter()
    results = []
    for seed in range(1 + chunk, WORLDS + 1, CHUNKS):
        result = simulate(make_world(seed))
        held(result, again=f"--seed {seed}")
        fired.update(result.fired)
        planned.update(result.plans)
        results.append(result)
    told = ", ".join(fired_lines(results))
    tell(f"faults in {WORLDS // CHUNKS} worlds: {told}")
    rare = {kind: fired[kind] for kind in KINDS if kind not in FILE_KINDS and fired[kind] * CHUNKS < FIRED_MIN}
    assert not rare
    tell(f"pilots by forecast: {dict(planned)}")
    assert min(planned["plans"], planned["lowered"]) * CHUNKS >= FIRED_MIN


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", range(FILE_CHUNKS))
def test_files_come_once_stay_while_they_are_needed_and_outputs_are_stored(
    chunk: int, tell: Callable[[str], None]
) -> None:
    fired: Counter[str] = Counter()
    seeds = range(FILES_AFTER + 1, FILES_AFTER + 2 * FILE_WORLDS, 2)
    for seed in seeds[chunk::FILE_CHUNKS]:
        result = simulate(make_world(seed))
        held(result, again=f"--seed {seed}")
        fired.update(result.fired)
    struck = {kind: fired[kind] for kind in FILE_KINDS}
    tell(f"faults of files in {FILE_WORLDS // FILE_CHUNKS} worlds: {struck}")
    assert min(struck.values()) >= FILE_FIRED_MIN


@pytest.mark.timeout(900)
def test_attempts_that_stall_are_copied_within_all_limits() -> None:
    for seed in range(STALLS_AFTER + 1, STALLS_AFTER + 1 + STALLED_WORLDS):
        held(simulate(make_world(seed)), again=f"--seed {seed}")


def test_every_world_has_packages_and_sites_enough() -> None:
    worlds = [make_world(seed) for seed in range(1, WORLDS + 1)]
    assert min(map(packages_of_world, worlds)) >= 50
    assert min(len(world.sites) for world in worlds) >= 3
    assert {site.site.mode for world in worlds for site in world.sites} == {"pilots", "bound"}


def test_in_some_worlds_queued_pilots_are_withdrawn_by_forecast() -> None:
    results = [simulate(make_world(seed)) for seed in (78, 142, 189)]
    assert all(result.violation is None and result.plans["withdrawn"] for result in results)


def test_some_worlds_provision_by_forecast_and_know_starts_enough_for_it_or_nearly() -> None:
    worlds = [make_world(seed) for seed in range(1, WORLDS + 1)]
    forecasting = [world for world in worlds if world.settings.provisioning == "forecast"]
    assert WORLDS // 10 < len(forecasting) < WORLDS // 3
    known = [len(site.known_latencies) for world in forecasting for site in world.sites if site.site.mode == "pilots"]
    assert min(known) < 30 < max(known)
    assert not any(site.known_latencies for world in worlds if world not in forecasting for site in world.sites)


def test_some_worlds_have_packages_that_name_their_nodes_and_the_others_none() -> None:
    worlds = [make_world(seed) for seed in range(1, WORLDS + 1)]
    named = [world for world in worlds if any(site.nodes for site in world.sites)]
    assert WORLDS // 10 < len(named) < WORLDS // 3
    names = {
        world.seed: {name for job in world.jobs for each in job.templates for name in each.demand.node_restriction}
        for world in worlds
    }
    assert {seed for seed, found in names.items() if found} <= {world.seed for world in named}
    assert sum(map(bool, names.values())) > WORLDS // 10
    assert {site.site.places_nodes for world in named for site in world.sites} == {True, False}


@pytest.mark.parametrize("name", WORLDS_THAT_FOUND_BUGS)
def test_what_was_found_once_stays_mended(name: str) -> None:
    held(simulate(kept(name)), again=f"--world {KEPT / name}.json", found=WORLDS_THAT_FOUND_BUGS[name])


def test_every_world_that_is_kept_says_what_it_found_and_leaves_nothing_to_what_is_usual() -> None:
    files = sorted(KEPT.iterdir())
    assert [file.name for file in files] == sorted(f"{name}.json" for name in WORLDS_THAT_FOUND_BUGS)
    assert [file.name for file in files if file.read_bytes() != stored(kept(file.stem))] == []
    assert sum(file.stat().st_size for file in files) < KEPT_BYTES_MAX


@pytest.mark.parametrize("seed", range(301, 313))
def test_slow_submissions_and_bursts_of_failing_pilots_break_nothing(seed: int) -> None:
    world = make_world(seed)
    slow = tuple(
        replace(site, submission=Exponential(20.0), fault_bursts=((0.0, 300.0, 0.8), (1500.0, 600.0, 0.6)))
        for site in world.sites
    )
    held(simulate(replace(world, sites=slow)), again=f"--seed {seed}, with slow submissions and bursts of faults")
