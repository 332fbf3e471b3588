"""What healing learned is kept with its job, and what it learned of all jobs with the service."""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.book.rows import rows
from pilotage.book.rows.healing import read_healing
from pilotage.model.events.healing_payloads import ActivityPhases, HealingLearned, IncidentsLearned
from pilotage.ports import Journal
from pilotage.service.journal.rebuild import check, rebuild
from tests.conformance.journal.harness import Harness, keeper
from tests.kit.events import START, Stream, a_short_job


def learned(count: int) -> HealingLearned:
    return HealingLearned(activities=(ActivityPhases(activity="sim\nné", count=count),), slot_seconds=float(count))


def told(journal: Journal) -> Stream:
    """A job, its knowledge, and that of the service, each told twice."""
    stream = Stream(stream="engine")
    keeper(journal).take(
        [
            *a_short_job("j1"),
            stream.event(learned(3), job="j1", time=START + 30.0),
            stream.event(learned(4), job="j1", time=START + 40.0),
            stream.event(IncidentsLearned(learned="[3]"), time=START + 30.0),
            stream.event(IncidentsLearned(learned='["\x00"]'), time=START + 40.0),
        ]
    )
    return stream


def count_known(journal: Journal, job: str = "j1") -> int:
    row = journal.job(job)
    known = read_healing(row.healing) if row is not None else None
    return known.learned.activities[0].count if known is not None else 0


def incidents(journal: Journal) -> tuple[float, str] | None:
    row = journal.knowledge(rows.INCIDENTS)
    return None if row is None else (row.at, row.learned)


def test_the_latest_stands_also_after_a_restart(harness: Harness) -> None:
    told(harness.open())
    journal = harness.reopen()
    assert count_known(journal) == 4
    assert incidents(journal) == (START + 40.0, '["\x00"]')
    assert journal.knowledge("nothing") is None


def test_what_was_learned_of_a_job_is_sealed_with_it_and_purged_with_it(harness: Harness) -> None:
    journal = harness.open()
    told(journal)
    journal.seal("j1")
    assert count_known(journal) == 4
    journal.unseal(["j1"])
    assert count_known(journal) == 4
    journal.seal("j1")
    journal.purge("j1", at=START + 99.0)
    row = journal.job("j1")
    assert row is not None
    assert (row.place, row.healing) == ("purged", "")
    assert incidents(journal) == (START + 40.0, '["\x00"]')


def test_a_dump_has_what_was_learned_of_its_job_and_not_of_others(
    harness: Harness, scratches: Iterator[Journal]
) -> None:
    journal, elsewhere = harness.open(), next(scratches)
    told(journal)
    elsewhere.load(list(journal.dump("j1")))
    assert count_known(elsewhere) == 4
    assert incidents(elsewhere) is None


def test_a_check_of_the_book_compares_what_was_learned_and_a_rebuild_corrects_it(
    harness: Harness, scratches: Iterator[Journal]
) -> None:
    journal = harness.open()
    stream = told(journal)
    assert check(journal, next(scratches)).sound
    harness.execute("UPDATE knowledge SET learned = '[]'")
    harness.execute("UPDATE jobs SET healing = ''")
    harness.close()
    journal = harness.open()
    assert check(journal, next(scratches)).counts == {"knowledge": 1, "jobs": 1}
    assert rebuild(journal, next(scratches)).counts == {"knowledge": 1, "jobs": 1}
    assert check(journal, next(scratches)).sound
    assert (count_known(journal), incidents(journal)) == (4, (START + 40.0, '["\x00"]'))
    keeper(journal).take([stream.event(IncidentsLearned(learned="[5]"), time=START + 50.0)])
    assert incidents(journal) == (START + 50.0, "[5]")
