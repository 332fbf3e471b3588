"""What the choice of sites is worth: five policies and the paper's freeze in seven worlds, for two kinds of jobs, with the same seeds.

Run with `python -m bench.selection`; `--write` puts the tables into docs/explanation/site-selection.md and the drawing beside
it. Nothing here is measured by a clock: the same version of pilotage prints the same figures on every machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.selection_report import Found, drawing, tables
from pilotage.language import plan_of, shapes_of
from pilotage.language.folder import MemoryFolder
from pilotage.language.load import load
from pilotage.model.events.payloads import JobRegistered
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import SiteMode
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import Change, Factors, PackagesWorld, SiteWorld, Spell, Times, WorldFile
from pilotage.simulator.runs.comparison import Summary, run_many, summary_of, with_policy
from pilotage.simulator.runs.run import Subject, usual_settings

SEEDS = 30
FREEZE = "any-failure"
VARIANTS = ("weighted-random", "best", "thompson", "uniform", "first", FREEZE)
"""The policies; and `weighted-random` where a site sleeps after any failure, as in Swift's paper."""
WORLDS = ("equal", "one slow", "black hole", "lying hole", "drifting", "outage", "faulty packages")
SETUPS: tuple[tuple[str, SiteMode], ...] = (
    ("bag", "pilots"),
    ("lines", "pilots"),
    ("bag", "bound"),
    ("lines", "bound"),
)
"""Each job, in each mode."""
SITES = ("one", "two", "three", "four", "five")
SLOTS, PILOTS = 2, 5  # ten packages at once at each site
FAULTY = 0.05  # of the packages fail wherever they run
PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "site-selection.md"
DRAWING = PAGE.with_suffix(".svg")

# The deciles' middles of what 119 pilots of the AIMES experiments waited on the Open Science Grid, in seconds.
QUEUE = Times(distribution="empirical", values=(135, 158, 174, 189, 207, 220, 230, 244, 270, 348))
PACKAGES = PackagesWorld(run_time=Times(distribution="uniform", low_seconds=60.0, high_seconds=600.0))

JOBS = {
    "bag": "  - each: {n: 1..400}\n    run: work {n}\n",
    "lines": "  - each: {n: 1..30}\n    lines:\n      - packages:\n"
    + "          - {binaries: [{run: 'work {n}'}]}\n" * 12,
}
"""A bag: more work than slots until the end. Lines: 30 packages at a time, for 50 slots, so there is always a choice."""


def worlds() -> dict[str, WorldFile]:
    """Each world has five sites; they are alike, but for the first in some."""
    minute = 60.0
    first = {
        "equal": SiteWorld(name="one", queue=QUEUE),
        "one slow": SiteWorld(name="one", queue=QUEUE, speed=Factors(value=0.25)),
        "black hole": SiteWorld(name="one", queue=QUEUE, black_holes=(Spell(),)),
        "lying hole": SiteWorld(name="one", queue=QUEUE, black_holes=(Spell(),), failure_reason="application-error"),
        "drifting": SiteWorld(
            name="one", queue=QUEUE, drift=(Change(after_seconds=20 * minute, speed=0.2, queue=5.0),)
        ),
        "outage": SiteWorld(
            name="one", queue=QUEUE, outages=(Spell(begins_seconds=20 * minute, lasts_seconds=40 * minute),)
        ),
    }
    others = tuple(SiteWorld(name=name, queue=QUEUE) for name in SITES[1:])
    told = {name: WorldFile(sites=(site, *others), packages=PACKAGES) for name, site in first.items()}
    faulty = msgspec.structs.replace(PACKAGES, doomed_probability=FAULTY)
    return {**told, "faulty packages": msgspec.structs.replace(told["equal"], packages=faulty)}


class Cell(NamedTuple):
    """One job in one world, in one mode, under one policy or setting."""

    world: str
    job: str
    mode: SiteMode
    variant: str


def cells() -> Iterator[Cell]:
    """All there are."""
    for job, mode in SETUPS:
        for world in WORLDS:
            for variant in VARIANTS:
                yield Cell(world, job, mode, variant)


def subject_of(cell: Cell) -> Subject:
    """What is simulated in a cell."""
    world = worlds()[cell.world]
    if cell.mode == "bound":
        bounded = (msgspec.structs.replace(site, running_max=SLOTS * PILOTS) for site in world.sites)
        world = msgspec.structs.replace(world, sites=tuple(bounded))
    slots, pilots = (SLOTS, PILOTS) if cell.mode == "pilots" else (1, 1)
    sites = tuple(SiteEntry(name=name, kind="slurm", mode=cell.mode, slots=slots, pilots_max=pilots) for name in SITES)
    text = f"pilotage: 1\njob: {cell.job}\nstages:\n{JOBS[cell.job]}"
    loaded = load(text.encode(), file="job.yaml", folder=MemoryFolder({})).job()
    registered = JobRegistered(owner="ada", name=cell.job, stages=shapes_of(loaded.expansion))
    return Subject(plan=plan_of(loaded.expansion), registered=registered, sites=sites, world=world)


def summary_in(cell: Cell, seeds: int) -> Summary:
    """What the runs of a cell came to."""
    subject = subject_of(cell)
    return summary_of(cell.variant, run_many(subject, settings_of(cell.variant, subject.world), runs=seeds))


def settings_of(variant: str, world: WorldFile) -> EngineSettings:
    """The usual settings with the policy, or with the freeze, of a variant."""
    settings = usual_settings(world)
    if variant != FREEZE:
        return with_policy(settings, variant)
    paper = msgspec.structs.replace(settings.selection, policy=VARIANTS[0], freeze_on=FREEZE)
    return msgspec.structs.replace(settings, selection=paper)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all cells, side by side where there are cores for it, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of each cell (default %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the tables and the drawing into the docs")
    asked = parser.parse_args(arguments)
    if asked.seeds < 1:
        parser.error("--seeds: at least 1")
    every = list(cells())
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = dict(zip(every, pool.map(summary_in, every, [asked.seeds] * len(every)), strict=True))
    told: Found = {(cell.world, cell.job, cell.mode, cell.variant): told_of for cell, told_of in found.items()}
    print(tables(told))
    if asked.write:
        before, begin, rest = PAGE.read_text().partition("<!-- figures -->\n")
        _, end, after = rest.partition("<!-- end of figures -->\n")
        PAGE.write_text(before + begin + tables(told) + end + after)
        DRAWING.write_text(drawing(told))


if __name__ == "__main__":
    main()
