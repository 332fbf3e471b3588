"""A book that an older pilotage made is opened, keeps what it held, and takes what that one did not know of."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pilotage.book.rows import rows
from pilotage.book.rows.activities import read_activities
from pilotage.book.rows.forecasts import JobForecast, read_forecast
from pilotage.book.rows.healing import JobHealing, read_healing
from pilotage.model.events.file_payloads import FetchesOrdered, OrderedFetch
from pilotage.model.events.healing_payloads import (
    ActivityPhases,
    ActivityStopped,
    HealingLearned,
    IncidentsLearned,
    PhaseMedian,
)
from pilotage.model.events.payloads import (
    ForecastMade,
    ForecastScored,
    PilotRequested,
    SiteDescribed,
    SiteHibernated,
    SiteLatencies,
    SiteProbed,
)
from pilotage.ports import Journal
from pilotage.service.journal.rebuild import check
from tests.conformance.journal.harness import (
    Harness,
    forget_version_eight,
    forget_version_five,
    forget_version_nine,
    forget_version_six,
    forget_version_ten,
    keeper,
)
from tests.kit.events import START, Stream, a_short_job

NOW = 10
SINCE_TWO = ("reason", "score", "since", "learned", "probed_at", "probe")


def test_a_book_of_version_one_learns_how_sites_stand(harness: Harness) -> None:
    journal = harness.open()
    stream = Stream(stream="service")
    described = stream.event(SiteDescribed(kind="slurm", status="candidate", message="as it was"), site="lyon")
    keeper(journal).take([*a_short_job("j1"), *a_short_job("j2"), described])
    journal.seal("j2")
    before = harness.packages()
    assert len(before) == 2
    harness.close()
    for column in SINCE_TWO:
        harness.execute(f"ALTER TABLE sites DROP COLUMN {column}")
    forget_version_five(harness)
    harness.set_schema_version(1)

    journal = harness.open()
    assert harness.schema_version() == NOW
    [site] = journal.sites()
    assert (site.site, site.kind, site.status, site.message) == ("lyon", "slurm", "candidate", "as it was")
    assert [getattr(site, name) for name in SINCE_TWO] == ["", None, None, "", None, ""]
    assert harness.packages() == before
    keeper(journal).take(
        [
            stream.event(SiteHibernated(reason="black-hole", message="it fails", score=0.0, learned="{}"), site="lyon"),
            stream.event(SiteProbed(passed=False, seconds=3.0, message="no pilot came"), site="lyon"),
        ]
    )
    [site] = harness.rows(rows.SiteRow)
    assert (site.status, site.reason, site.score, site.learned, site.probe) == (
        "hibernated",
        "black-hole",
        0.0,
        "{}",
        "no pilot came",
    )
    for name in ("j1", "j2"):
        job = journal.job(name)
        assert job is not None
        assert (job.state, len(journal.stages(job))) == ("DONE", 1)
    journal.seal("j1")
    journal.unseal(["j2"])
    assert [row.place for row in harness.rows(rows.JobRow) if row.job == "j1"] == ["sealed"]


def test_a_book_of_version_two_shows_what_is_known_today(harness: Harness) -> None:
    journal = harness.open()
    keeper(journal).take([*a_short_job("j1"), *a_short_job("j2")])
    journal.seal("j2")
    before, attempts = harness.packages(), harness.execute("SELECT job, package, attempt, site FROM attempts")
    assert attempts
    harness.close()
    for view in ("files", "phases", "attempts", "packages"):
        harness.execute(f"DROP VIEW {view}")
    harness.execute("CREATE VIEW packages AS SELECT 1 AS one")
    forget_version_five(harness)
    harness.set_schema_version(2)

    harness.open()
    assert harness.schema_version() == NOW
    assert harness.packages() == before
    assert harness.execute("SELECT count(hold_set_at) FROM packages") == [(0,)]
    assert harness.execute("SELECT job, package, attempt, site FROM attempts") == attempts


def test_a_pilot_that_version_four_wrote_is_as_sound_as_it_was(harness: Harness, scratches: Iterator[Journal]) -> None:
    journal, stream = harness.open(), Stream(stream="engine")
    requested = PilotRequested(site="lyon")
    again = msgspec.structs.replace(requested, native_id="17")
    keeper(journal).take(
        [stream.event(data, pilot="lyon-2", time=START + at) for at, data in ((0.0, requested), (7.0, again))]
    )
    [row] = harness.rows(rows.PilotRow)
    keys = rows.keys_of(row)
    row.keys = rows.packed({50: keys.pop(58), **{at: key for at, key in keys.items() if at != 50}})
    row.requested_at, row.submitted_at = START + 7.0, None
    with journal.transaction() as ledger:
        ledger.put_rows([row])
    assert check(journal, next(scratches)).first == []
    row.requested_at = START + 8.0
    with journal.transaction() as ledger:
        ledger.put_rows([row])
    [found] = check(journal, next(scratches)).first
    assert (found.table, found.what) == ("pilots", "differs in requested_at")


def test_a_book_of_version_four_learns_latencies(harness: Harness) -> None:
    journal = harness.open()
    stream = Stream(stream="engine")
    described = stream.event(SiteDescribed(kind="slurm"), site="lyon")
    keeper(journal).take([described, stream.event(PilotRequested(site="lyon", native_id="17"), pilot="lyon-2")])
    harness.close()
    forget_version_five(harness)
    harness.set_schema_version(4)

    journal = harness.open()
    assert harness.schema_version() == NOW
    [site], [pilot] = journal.sites(), harness.rows(rows.PilotRow)
    assert (site.latencies, pilot.native_id, pilot.submitted_at) == ("", "17", None)
    keeper(journal).take(
        [
            stream.event(SiteLatencies(starts=3, learned="{}", through=7), site="lyon"),
            stream.event(PilotRequested(site="lyon"), pilot="lyon-4", time=1000.0),
            stream.event(PilotRequested(site="lyon", native_id="18"), pilot="lyon-4", time=1007.0),
        ]
    )
    [site], [_, pilot] = journal.sites(), harness.rows(rows.PilotRow)
    assert msgspec.json.decode(site.latencies) == {"starts": 3, "learned": "{}", "through": 7}
    assert (pilot.native_id, pilot.requested_at, pilot.submitted_at) == ("18", 1000.0, 1007.0)


def test_a_book_of_version_five_learns_forecasts(harness: Harness) -> None:
    journal = harness.open()
    stream = Stream(stream="engine")
    keeper(journal).take([*a_short_job("j1"), *a_short_job("j2")])
    journal.seal("j2")
    harness.close()
    forget_version_six(harness)
    harness.set_schema_version(5)

    journal = harness.open()
    assert harness.schema_version() == NOW
    assert [row.forecast for row in harness.rows(rows.JobRow)] == ["", ""]
    made = ForecastMade(low_at=1.0, median_at=2.0, mean_at=2.5, high_at=3.0, packages=4)
    keeper(journal).take([stream.event(made, job="j1", time=START + 50.0)])
    known = journal.job("j1")
    assert known is not None
    assert read_forecast(known.forecast) == JobForecast(made_at=START + 50.0, made=made)
    scored = ForecastScored(ended_at=5.0, outcome="done", forecasts=1)
    keeper(journal).take([stream.event(scored, job="j1", time=START + 60.0)])
    known = journal.job("j1")
    assert known is not None
    assert known.forecast == ""
    journal.unseal(["j2"])


def test_a_book_of_version_seven_gets_a_table_of_cached_files(harness: Harness) -> None:
    journal = harness.open()
    keeper(journal).take([*a_short_job("j1"), *a_short_job("j2")])
    journal.seal("j2")
    before = harness.packages()
    harness.close()
    forget_version_eight(harness)
    harness.set_schema_version(7)

    journal = harness.open()
    assert harness.schema_version() == NOW
    assert harness.packages() == before
    stream = Stream(stream="service")
    ordered = OrderedFetch(locator="s3://store/a b", key="fetch.1.0", name="ab/ab", size_bytes=3, owner="ada")
    keeper(journal).take([stream.event(FetchesOrdered(files=(ordered,)), site="lyon")])
    [row] = journal.cached_files("lyon", after="", limit=10)
    assert (row.locator, row.state, row.expected_bytes) == ("s3://store/a b", "ordered", 3)
    assert journal.cached_files("lyon", after=row.digest, limit=10) == []
    assert journal.cached_files("prague", after="", limit=10) == []
    journal.unseal(["j2"])


def test_a_book_of_version_eight_learns_of_incidents(harness: Harness) -> None:
    journal = harness.open()
    keeper(journal).take([*a_short_job("j1"), *a_short_job("j2")])
    journal.seal("j2")
    harness.close()
    forget_version_nine(harness)
    harness.set_schema_version(8)

    journal = harness.open()
    assert harness.schema_version() == NOW
    assert [row.healing for row in harness.rows(rows.JobRow)] == ["", ""]
    assert journal.knowledge(rows.INCIDENTS) is None
    medians = (PhaseMedian(phase="application", seconds=9.5),)
    learned = HealingLearned(activities=(ActivityPhases(activity="sim", count=7, medians=medians),), slot_seconds=80.0)
    stream = Stream(stream="engine")
    keeper(journal).take(
        [
            stream.event(learned, job="j1", time=START + 50.0),
            stream.event(IncidentsLearned(learned="[1]"), time=START + 51.0),
        ]
    )
    known, incidents = journal.job("j1"), journal.knowledge(rows.INCIDENTS)
    assert known is not None
    assert read_healing(known.healing) == JobHealing(learned_at=START + 50.0, learned=learned)
    assert incidents is not None
    assert (incidents.at, incidents.learned) == (START + 51.0, "[1]")
    journal.unseal(["j2"])


def test_a_book_of_version_nine_learns_of_stopped_activities(harness: Harness) -> None:
    journal = harness.open()
    keeper(journal).take([*a_short_job("j1"), *a_short_job("j2")])
    journal.seal("j2")
    harness.close()
    forget_version_ten(harness)
    harness.set_schema_version(9)

    journal = harness.open()
    assert harness.schema_version() == NOW
    assert [row.activities for row in harness.rows(rows.JobRow)] == ["", ""]
    stop = ActivityStopped(activity="sim", operation=7, failed_attempts=20, failed_packages=9, message="no such file")
    keeper(journal).take([Stream(stream="engine").event(stop, job="j1", time=START + 50.0)])
    row = journal.job("j1")
    assert row is not None
    known = read_activities(row.activities)["sim"]
    assert (known.stopped, known.at, known.failed_attempts, known.message) == (True, START + 50.0, 20, "no such file")
    journal.unseal(["j2"])
