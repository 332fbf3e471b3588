"""A book that an older pilotage made is opened, keeps what it held, and takes what that one did not know of."""

from __future__ import annotations

from pilotage.book.rows import rows
from pilotage.model.events.payloads import SiteDescribed, SiteHibernated, SiteProbed
from tests.conformance.journal.harness import Harness, keeper
from tests.kit.events import Stream, a_short_job

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
    harness.set_schema_version(1)

    journal = harness.open()
    assert harness.schema_version() == 4
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
    harness.set_schema_version(2)

    harness.open()
    assert harness.schema_version() == 4
    assert harness.packages() == before
    assert harness.execute("SELECT count(hold_set_at) FROM packages") == [(0,)]
    assert harness.execute("SELECT job, package, attempt, site FROM attempts") == attempts
