"""`world.yaml`: what may be written, and where it is told what may not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.language.parsing.worlds import read_world, write_world
from pilotage.model.errors import Problem
from pilotage.model.sites.world import (
    ActivityWorld,
    Change,
    Factors,
    FaultBurst,
    PackagesWorld,
    SiteWorld,
    Spell,
    StoreWorld,
    Times,
    WorldFile,
)

SITES = ("lyon", "nice")


def read(text: str) -> WorldFile:
    found, report = read_world(text.encode(), file="world.yaml", sites=SITES)
    assert found is not None, report.errors
    return found


def faults(text: str) -> list[Problem]:
    found, report = read_world(text.encode(), file="world.yaml", sites=SITES)
    assert found is None
    assert all(each.line for each in report.errors)
    return report.errors


def places(text: str) -> list[tuple[str, int, int]]:
    return [(each.code, each.line, each.column) for each in faults(text)]


def test_a_time_alone_is_fixed_and_a_list_is_what_was_seen() -> None:
    world = read(
        "pilotage: 1\nsites:\n  - name: lyon\n    queue: 2 min\n    speed: [0.5, 1, 2]\n  - {name: nice, queue: [1, 2]}\n"
    )
    assert world.sites[0].queue == Times(value_seconds=120.0)
    assert world.sites[0].speed == Factors(distribution="empirical", values=(0.5, 1.0, 2.0))
    assert world.sites[1].queue == Times(distribution="empirical", values=(1.0, 2.0))


def test_everything_that_befalls_a_site_can_be_written() -> None:
    world = read(
        """pilotage: 1
sites:
  - name: lyon
    queue: {distribution: log-normal, median: 5 min, sigma: 1}
    running_max: 3
    failure_probability: 0.1
    failures_per_hour: 0.01
    failure_reason: preempted
    node_failures_per_hour: 0.002
    straggler_probability: 0.05
    straggler_factor: {distribution: uniform, low: 2, high: 4}
    stall_probability: 0.03
    stall_factor: 20
    outages: [{begins: 1h, lasts: 30 min}]
    outage_every: {distribution: weibull, scale: 7d, shape: 0.7}
    black_holes: [{begins: 2h}]
    drift: [{after: 1h, speed: 0.5, queue: 3, failure_probability: 0.3}]
packages:
  run_time: {distribution: exponential, mean: 10 min}
  setup: 5 s
  activities: [{name: fit, run_time: 90s, doomed_probability: 0.01}]
"""
    )
    site = world.sites[0]
    assert site.outages == (Spell(begins_seconds=3600.0, lasts_seconds=1800.0),)
    assert site.black_holes == (Spell(begins_seconds=7200.0),)
    assert site.drift == (Change(after_seconds=3600.0, speed=0.5, queue=3.0, failure_probability=0.3),)
    assert site.outage_every == Times(distribution="weibull", scale_seconds=7 * 86400.0, shape=0.7)
    assert (site.stall_probability, site.stall_factor) == (0.03, Factors(value=20.0))
    assert world.packages.setup == Times(value_seconds=5.0)
    assert world.packages.activities[0].run_time == Times(value_seconds=90.0)


def test_every_fault_is_told_at_once_each_at_its_place() -> None:
    text = """pilotage: 1
sites:
  - name: lyom
    queue: {distribution: exponential, median: 2 min}
    failure_probability: 1.5
  - name: nice
    queu: 3
packages:
  run_time: {distribution: gauss}
"""
    assert places(text) == [
        ("out-of-range", 5, 26),
        ("unknown-field", 7, 5),
        ("unknown-choice", 9, 28),
        ("unknown-site", 3, 11),
        ("missing-field", 4, 12),
        ("misplaced-field", 4, 48),
    ]
    assert "did you mean 'lyon'?" in [each.hint for each in faults(text)]


@pytest.mark.parametrize(
    "site, code",
    [
        ("name: lyon, queue: {distribution: uniform, low: 5, high: 3}", "out-of-range"),
        ("name: lyon, outage_every: 0", "out-of-range"),
        ("name: lyon, drift: [{after: 2h}, {after: 1h}]", "bad-order"),
        ("name: lyon, speed: 0", "out-of-range"),
        ("name: lyon, queue: -3", "wrong-type"),
        ("name: lyon, queue: []", "missing-field"),
        ("name: lyon, failure_reason: bad-luck", "unknown-choice"),
    ],
)
def test_what_makes_no_sense_is_refused(site: str, code: str) -> None:
    assert [each.code for each in faults(f"pilotage: 1\nsites:\n  - {{{site}}}\n")] == [code]


def test_a_site_or_an_activity_stands_there_once() -> None:
    twice = "pilotage: 1\nsites: [{name: lyon}, {name: lyon}]\n"
    assert [each.code for each in faults(twice)] == ["duplicate-name"]
    activities = "pilotage: 1\npackages:\n  activities: [{name: fit}, {name: fit}]\n"
    assert [each.code for each in faults(activities)] == ["duplicate-name"]


def test_a_file_begins_with_the_version_of_its_language() -> None:
    assert [each.code for each in faults("sites: []\n")] == ["unknown-version"]
    assert [each.code for each in faults("- 1\n")] == ["wrong-type"]


@pytest.mark.parametrize("record", [SiteWorld, PackagesWorld, Spell, FaultBurst, Change, Times])
def test_every_field_is_told_of(record: type) -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "simulate.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[a-z_]+", page[page.index("## The fields of a world") :]))
    assert [name for name in record.__struct_fields__ if name.removesuffix("_seconds") not in words] == []  # type: ignore[attr-defined]


_SECONDS = st.integers(0, 10**6).map(lambda number: number / 8)
_ABOVE = st.integers(1, 800).map(lambda number: number / 8)
_TIMES = st.one_of(
    st.builds(Times, value_seconds=_SECONDS),
    st.builds(Times, distribution=st.just("exponential"), mean_seconds=_SECONDS),
    st.builds(Times, distribution=st.just("log-normal"), median_seconds=_SECONDS, sigma=_ABOVE),
    st.builds(Times, distribution=st.just("weibull"), scale_seconds=_SECONDS, shape=_ABOVE),
    st.builds(Times, distribution=st.just("empirical"), values=st.lists(_SECONDS, min_size=1, max_size=4).map(tuple)),
)
_FACTORS = st.one_of(
    st.builds(Factors, value=_ABOVE),
    st.builds(Factors, distribution=st.just("empirical"), values=st.lists(_ABOVE, min_size=1, max_size=4).map(tuple)),
)
_SHARES = st.sampled_from([0.0, 0.25, 1.0])
_SITES = st.builds(
    SiteWorld,
    name=st.sampled_from(SITES),
    queue=_TIMES,
    speed=st.none() | _FACTORS,
    failure_probability=_SHARES,
    outages=st.lists(st.builds(Spell, begins_seconds=_SECONDS, lasts_seconds=st.none() | _SECONDS), max_size=2).map(
        tuple
    ),
    drift=st.lists(_SECONDS, max_size=3, unique=True).map(
        lambda times: tuple(Change(after_seconds=at, speed=0.5) for at in sorted(times))
    ),
)
_PACKAGES = st.builds(
    PackagesWorld,
    run_time=_TIMES,
    run_time_factor=_FACTORS,
    doomed_probability=_SHARES,
    activities=st.lists(st.builds(ActivityWorld, name=st.just("fit"), run_time=st.none() | _TIMES), max_size=1).map(
        tuple
    ),
)


@given(st.builds(WorldFile, sites=_SITES.map(lambda site: (site,)), packages=_PACKAGES))
def test_what_is_written_is_read_again(world: WorldFile) -> None:
    assert read(write_world(world)) == world


def test_submissions_stuck_jobs_and_bursts_of_faults_can_be_written() -> None:
    world = read(
        """pilotage: 1
sites:
  - name: lyon
    submission: 6 s
    queue: {distribution: log-normal, offset: 150 s, median: 387 s, sigma: 0.97}
    stuck_probability: 0.068
    fault_bursts: [{begins: 20 min, lasts: 10 min, probability: 0.6}, {begins: 2h}]
"""
    )
    site = world.sites[0]
    assert site.submission == Times(value_seconds=6.0)
    assert site.queue == Times(distribution="log-normal", offset_seconds=150.0, median_seconds=387.0, sigma=0.97)
    assert site.fault_bursts == (
        FaultBurst(begins_seconds=1200.0, lasts_seconds=600.0, probability=0.6),
        FaultBurst(begins_seconds=7200.0),
    )
    assert site.stuck_probability == 0.068
    assert read(write_world(world)) == world


def test_a_world_without_them_has_none() -> None:
    site = read("pilotage: 1\nsites: [{name: lyon}]\n").sites[0]
    assert (site.submission, site.fault_bursts, site.stuck_probability) == (Times(value_seconds=0.0), (), 0.0)


@pytest.mark.parametrize(
    "form", ["low: 1, high: 2, distribution: uniform", "value: 3", "distribution: empirical, values: [1]"]
)
def test_only_forms_without_a_least_time_have_an_offset(form: str) -> None:
    found = faults(f"pilotage: 1\nsites:\n  - {{name: lyon, queue: {{offset: 5, {form}}}}}\n")
    assert [each.code for each in found] == ["misplaced-field"]


def test_stores_and_the_transfers_of_a_site_can_be_written() -> None:
    world = read(
        """pilotage: 1
sites: [{name: lyon, bytes_per_second: 1e6}]
stores:
  - {url: "s3://data/", latency: 2 s, bytes_per_second: 5e6, failure_probability: 0.1, outages: [{begins: 1h, lasts: 10 min}]}
  - {url: "sftp://host/"}
"""
    )
    assert world.sites[0].bytes_per_second == 1e6
    assert world.stores == (
        StoreWorld(
            url="s3://data/",
            latency_seconds=2.0,
            bytes_per_second=5e6,
            failure_probability=0.1,
            outages=(Spell(begins_seconds=3600.0, lasts_seconds=600.0),),
        ),
        StoreWorld(url="sftp://host/"),
    )
    assert read(write_world(world)) == world


def test_two_stores_of_one_url_are_a_fault() -> None:
    assert places('pilotage: 1\nstores:\n  - {url: "s3:"}\n  - {url: "s3:"}\n') == [("duplicate-name", 4, 11)]
