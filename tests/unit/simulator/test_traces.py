"""Traces of others, and worlds that are fitted to them and to what a book knows."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from pilotage.app.simulation import trace_lines
from pilotage.model.errors import PilotageError
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import (
    ActivityWorld,
    Factors,
    Observed,
    PackagesWorld,
    SiteObserved,
    SiteWorld,
    Times,
    WorldFile,
)
from pilotage.simulator.runs.fitting import VALUES_MAX, TraceError, fit_jobs, fit_site, fit_trace, read_trace, times_of
from pilotage.simulator.world.randomness import Empirical, Keyed, distribution_of, mean_of

WORKLOAD = """; Version: 2.2
 1 0 10 100 1 -1 -1 1 7200 -1 1 1 1 -1 2 1 -1 -1
 2 5 20 200 1 -1 -1 1 7200 -1 1 1 1 -1 2 1 -1 -1
 3 6 30  50 1 -1 -1 1 7200 -1 0 1 1 -1 2 1 -1 -1
 4 7 99  -1 1 -1 -1 1 7200 -1 5 1 1 -1 2 1 -1 -1
 5 8 98  40 1 -1 -1 1 7200 -1 5 1 1 -1 2 1 -1 -1
"""
PILOTS = """experiment,session,pilot,t_submitted,t_active,t_final,final_state
a,s,p0,40,490,4090,CANCELED
a,s,p1,40,140,1940,FAILED
a,s,p2,40,,900,FAILED
a,s,p3,40,,900,CANCELED
"""
UNITS = """session,task,t_exec_start,t_exec_end,final_state,n_exec_attempts
s,u0,10,110,DONE,1
s,u1,10,40,DONE,2
s,u2,10,,FAILED,1
s,u3,,,CANCELED,0
"""
SESSIONS = """,P_LRMS_QUEUING,nunit_done,nunit_failed
s0,170.5,4,0
s1,,10,6
"""
FAILURES = """System,nodes,Prob Started,Prob Fixed
2,10,6/21/2005 10:00,6/21/2005 11:00
2,10,6/22/2005 10:00,6/22/2005 11:00
3,5,1/1/2004 00:00,1/1/2004 02:00
3,5,1/3/2004 00:00,1/3/2004 02:00
,,,
"""
AVAILABILITY = """# FTA Grid5000
0\tn1\t1\t0\t36000
0\tn1\t0\t36000\t40000
0\tn1\t1\t40000\t76000
1\tn2\t0\t0\t100
"""


def read(text: str) -> SiteObserved:
    return read_trace(text.splitlines(keepends=True), name="trace")


def test_a_workload_tells_of_queues_runs_and_failures() -> None:
    seen = read(WORKLOAD)
    assert seen.queue_seconds == [10.0, 20.0, 30.0]
    assert seen.run_seconds == [100.0, 200.0]
    assert (seen.attempts, seen.failures) == (3, {"platform-failure": 1})


def test_pilots_tell_how_long_they_queue_and_last() -> None:
    seen = read(PILOTS)
    assert seen.queue_seconds == [450.0, 100.0]
    assert (seen.pilots, seen.dead_pilots) == (4, 1)
    assert (seen.node_hours, seen.node_failures) == (1.5, 1)


def test_units_tell_how_long_they_run() -> None:
    seen = read(UNITS)
    assert seen.run_seconds == [100.0]
    assert (seen.attempts, seen.failures) == (4, {"platform-failure": 2})


def test_sessions_tell_of_queues_and_failures() -> None:
    seen = read(SESSIONS)
    assert (seen.queue_seconds, seen.attempts, seen.failures) == ([170.5], 20, {"platform-failure": 6})


def test_failures_are_counted_over_the_hours_of_all_nodes() -> None:
    seen = read(FAILURES)
    assert (seen.node_failures, seen.node_hours) == (4, 24 * 10 + 48 * 5)


def test_only_a_node_that_was_up_can_go_down() -> None:
    seen = read(AVAILABILITY)
    assert (seen.node_failures, seen.node_hours) == (1, 20.0)


@pytest.mark.parametrize("text", ["", "hello\n", "a,b\n1,2\n", "; only a comment\n"])
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match="not a trace of a known format"):
        read(text)


def test_a_line_that_cannot_be_read_is_named() -> None:
    with pytest.raises(TraceError, match="line 3"):
        read(WORKLOAD.replace("2 5 20 200", "2 5 xx 200"))
    with pytest.raises(TraceError, match="line 2"):
        read(PILOTS.replace("490", "soon"))


def test_packed_traces_are_unpacked(tmp_path: Path) -> None:
    for name, data in {
        "plain": WORKLOAD.encode(),
        "gz": gzip.compress(WORKLOAD.encode()),
        "xz": lzma.compress(WORKLOAD.encode()),
    }.items():
        (tmp_path / name).write_bytes(data)
        with trace_lines(str(tmp_path / name)) as lines:
            assert read_trace(lines, name=name) == read(WORKLOAD)
    (tmp_path / "torn").write_bytes(gzip.compress(WORKLOAD.encode())[:-12])
    with pytest.raises(PilotageError, match="cannot be read"), trace_lines(str(tmp_path / "torn")) as lines:
        read_trace(lines, name="torn")


def test_a_site_is_as_it_was_seen_and_stays_as_it_was_where_nobody_looked() -> None:
    before = SiteWorld(name="lyon", failure_probability=0.5, straggler_probability=0.3)
    after = fit_site(before, read(PILOTS))
    assert after.queue == Times(distribution="exponential", mean_seconds=275.0)
    assert (after.pilot_failure_probability, after.node_failures_per_hour) == (0.25, 0.6667)
    assert (after.failure_probability, after.straggler_probability) == (0.5, 0.3)


def test_many_times_become_a_hundred_with_the_same_mean() -> None:
    seconds = [Keyed(f"{number}").random() ** -0.5 for number in range(5_000)]
    fitted = times_of(seconds)
    assert len(fitted.values) == VALUES_MAX
    assert mean_of(distribution_of(fitted)) == pytest.approx(sum(seconds) / len(seconds), rel=1e-4)


def test_what_was_seen_is_drawn_each_as_often() -> None:
    values = (1.0, 2.0, 10.0)
    drawn = [Empirical(values).draw(Keyed(f"{number}")) for number in range(900)]
    assert set(drawn) == set(values)
    assert all(drawn.count(each) == pytest.approx(300, abs=60) for each in values)
    assert Empirical((3.0,)).draw(Keyed("x")) == 3.0


def test_a_trace_gives_run_times_to_packages_that_nothing_is_known_of() -> None:
    seen = SiteObserved(run_seconds=[10.0] * 6, queue_seconds=[1.0], attempts=6)
    world = fit_trace(WorldFile(), seen, sites=["lyon", "nice"])
    assert [each.name for each in world.sites] == ["lyon", "nice"]
    assert world.packages.run_time == Times(value_seconds=10.0)


def test_jobs_tell_how_fast_sites_are_and_how_long_activities_run() -> None:
    seen = Observed(
        sites={"lyon": SiteObserved(attempts=6), "nice": SiteObserved(attempts=8, failures={"preempted": 2})},
        run_seconds={"fit": {"lyon": [100.0] * 6, "nice": [400.0] * 6}},
        packages={"fit": 20},
        doomed={"fit": 5},
    )
    sites = [SiteEntry(name="lyon", kind="slurm"), SiteEntry(name="nice", kind="slurm")]
    world = fit_jobs(WorldFile(packages=PackagesWorld(activities=(ActivityWorld(name="draw"),))), seen, sites=sites)
    lyon, nice = world.sites
    assert lyon.speed is not None
    assert nice.speed is not None
    assert lyon.speed.value == pytest.approx(4 * (nice.speed.value or 0), rel=1e-3)
    assert (nice.failure_probability, nice.failure_reason) == (0.25, "preempted")
    fit = next(each for each in world.packages.activities if each.name == "fit")
    assert fit.run_time is not None
    # What ran at either site is the same work: it takes as long there as it took.
    standard = mean_of(distribution_of(fit.run_time))
    assert standard / (lyon.speed.value or 0) == pytest.approx(100, rel=0.01)
    assert standard / (nice.speed.value or 0) == pytest.approx(400, rel=0.01)
    assert fit.doomed_probability == 0.25
    assert any(each.name == "draw" for each in world.packages.activities)


def test_a_single_site_is_as_fast_as_its_entry_says() -> None:
    seen = Observed(
        sites={"lyon": SiteObserved(attempts=5)}, run_seconds={"fit": {"lyon": [10.0] * 5}}, packages={"fit": 5}
    )
    world = fit_jobs(WorldFile(), seen, sites=[SiteEntry(name="lyon", kind="slurm", speed=2.0)])
    assert world.sites[0].speed == Factors(value=2.0)
    assert world.packages.activities[0].run_time == Times(value_seconds=20.0)


@pytest.mark.parametrize(
    "path, queued, attempts, node_failures",
    [
        ("swf/CTC-SP2-1996-3.1-cln.first20000.swf.gz", 20_000, 20_000, 0),
        ("swf/LPC-EGEE-2004-1.2-cln.first20000.swf.gz", 19_845, 19_845, 0),
        ("pilots/aimes_osg_pilots.csv", 119, 0, 10),
        ("pilots/aimes_osg_tasks.csv", 0, 976, 0),
        ("pilots/aimes_osg_sessions.csv", 148, 52_493, 0),
        ("pilots/aimes_xsede_pilots.csv", 129, 0, 0),
        ("pilots/aimes_xsede_sessions.csv", 125, 123_956, 0),
        ("failures/LA-UR-05-7318-failure-data-1996-2005.csv.gz", 0, 0, 23_613),
        ("failures/grid5000_fta_event_trace.tsv.xz", 0, 0, 293_416),
    ],
)
def test_published_traces_are_read(
    reference_data: Path, path: str, queued: int, attempts: int, node_failures: int
) -> None:
    with trace_lines(str(reference_data / path)) as lines:
        seen = read_trace(lines, name=path)
    assert (len(seen.queue_seconds), seen.attempts, seen.node_failures) == (queued, attempts, node_failures)
