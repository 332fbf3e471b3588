"""The ledger: every table takes rows in and gives them back as they were, whatever they hold."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.book.codec import Checked
from pilotage.book.rows import rows
from pilotage.book.rows.ledger import Changes, EventLookup, PlainEvents
from pilotage.book.rows.rows import AttemptFacts, PackageFacts, PackageRow
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Noted
from pilotage.ports import Journal
from tests.conformance.journal.harness import Harness
from tests.kit.events import AWKWARD

LARGEST = 2**53 - 1
TIMES = (0.0, 0.1, 1_700_000_000.123456, math.nextafter(2.0, 3.0), 5e-324, 253_402_300_799.999)
KEYS = rows.packed({1: (1, LARGEST, 4, LARGEST, "a stream"), 255: (2, 0, 0, 1, "")})
LONG = "long é " * 9000


def job_row(job_id: int, text: str, time: float) -> rows.JobRow:
    """A job every column of which holds something."""
    tags = msgspec.json.encode({"tag": [text, [1, 2, 3, 4, text]]}).decode()
    return rows.JobRow(
        job_id=job_id, job=f"job-{job_id}", name=text[:256], owner=text[:256], parent=text[:256], state="RUNNING",
        epoch=LARGEST, place="live", stages=LARGEST, late=1, held=1, failed=LARGEST, definition=text,
        expander_version=LARGEST, lists=tags, growth="[3, 1]", access="[]", tags=tags, submitted_at=time,
        accepted_at=time, started_at=time, finished_at=time, cancelled_at=time, aborted_at=time, cause=text,
        cleared_at=time, cleared_by=text, opened_at=time, entered_at=time, updated_at=time, purged_at=time, keys=KEYS,
        expected=LARGEST, touched=-1, submitted=1, waiting=2, ready=3, scheduled=4, running=5, done=6, aborted=7,
        cancelled=8, cleared=9, dropped=10, started=11, succeeded=12,
    )  # fmt: skip


def full_facts(text: str, time: float) -> PackageFacts:
    """Facts every one of which is there."""
    attempt = AttemptFacts(
        epoch=LARGEST, site=text, pilot=text, node=text, native_id=text, lease_seconds=time, replaces=1,
        replica=1, memory_bytes=LARGEST, wall_seconds=time, drop_revision=LARGEST, created_at=time, queued_at=time, started_at=time,
        suspected_at=time, recovered_at=time, lost_at=time, lost_reason=text, phase="setup", phase_at=time, staged_at=time,
        staged_position=LARGEST, finished_at=time, finished_position=1, granted_at=time, exit_code="SUCCESS",
        exit_message=text, reason=text, exit_status=-(2**63), signal=2**64, peak_memory_bytes=LARGEST, cpu_seconds=time,
        keys={1: (1, 2, 3, LARGEST, text)},
    )  # fmt: skip
    return PackageFacts(
        state="DONE", epoch=LARGEST, activity=text, site=text, node=text, attempt=1, exit_code="SUCCESS",
        exit_message=text, reason=text, cause=text, cleared_by=text, held=1, dropped=1, replicas=9, started=1, conflict=1, shaped=1,
        inferred=text, bound_site=text, registered_at=time, opened_at=time, hold_set_at=time, bound_at=time, cancelled_at=time,
        aborted_at=time, cleared_at=time, ready_at=time, scheduled_at=time, running_at=time, done_at=time,
        entered_at=time, updated_at=time, tags={"a": (text, (1, 2, 3, 4, text))},
        attempts={1: attempt, 999_999_999: AttemptFacts()}, positions=[1, LARGEST], keys={20: (1, 0, 4, 1, text)},
    )  # fmt: skip


def every_row(text: str, time: float) -> Changes:
    """One row for each table, and one with as little as may be."""
    json = msgspec.json.encode({"text": text, "n": 2**70, "x": 1e300}).decode()
    event = rows.EventRow(
        position=LARGEST, stream_id=1, n=LARGEST, type="Noted", version=1, time=time, received=time, skewed=1,
        epoch=LARGEST, seen=LARGEST, job_id=1, stage=0, line=0, number=0, attempt=0, pilot=None, site=None, data=json,
    )  # fmt: skip
    return Changes(
        events=[msgspec.structs.astuple(event)],
        streams=[
            rows.StreamRow(stream_id=1, source="agent", stream="s1", watermark=LARGEST, ahead=f"[[1,{LARGEST}]]"),
            rows.StreamRow(stream_id=LARGEST, source="agent", stream="s2"),
        ],
        jobs=[job_row(1, text, time), rows.JobRow(job_id=2, job="j2")],
        stages=[rows.StageRow(job_id=1, stage=1, late=1, shape=json, keys=KEYS), rows.StageRow(job_id=1, stage=2)],
        packages=[PackageRow(1, 1, 1, 1, full_facts(text, time)), PackageRow(1, 1, 999_999_999, 2, PackageFacts())],
        pilots=[
            rows.PilotRow(
                pilot="p1", site=text, node=text, native_id=text, slots=LARGEST, requested_at=time, started_at=time,
                ended_at=time, reason=text, stderr=text, updated_at=time, keys=KEYS,
            ),
            rows.PilotRow(pilot="p2"),
        ],
        nodes=[
            rows.NodeRow(
                node="n1", site=text, cores=1, memory_bytes=LARGEST, system=text, software=json, environment=json,
                updated_at=time, keys=KEYS,
            ),
            rows.NodeRow(node="n2"),
        ],
        sites=[
            rows.SiteRow(site="s1", kind=text, status=text, message=text, updated_at=time, keys=KEYS),
            rows.SiteRow(site="s2"),
        ],
        tags=[rows.TagRow(job_id=1, stage=0, line=0, number=0, name="t", value=text)],
        parked=[rows.ParkedRow(job="j9", stream_id=1, n=LARGEST - 1, received=time, event=json)],
        statistics=[
            rows.StatisticRow(width_seconds=10, slice=LARGEST, site=text[:128], activity=text[:256], sketch=bytes(range(256)))
        ],
    )  # fmt: skip


def loaded(journal: Journal, written: Changes) -> dict[str, Any]:
    """What the ledger finds again by the keys of what was written."""
    (statistic,) = written.statistics
    with journal.transaction() as ledger:
        found: dict[str, Any] = {
            "streams": list(ledger.streams([("agent", "s1"), ("agent", "s2"), ("client", "s1")])),
            "jobs": list(ledger.jobs(["job-1", "j2", "nobody"])),
            "stages": list(ledger.stages([(1, 1), (1, 2), (2, 1)])),
            "packages": list(ledger.packages([(1, 1, 1, 1), (1, 1, 999_999_999, 2), (1, 2, 1, 1)])),
            "pilots": list(ledger.pilots(["p1", "p2", "p3"])),
            "nodes": list(ledger.nodes(["n1", "n2", "n3"])),
            "sites": list(ledger.sites(["s1", "s2", "s3"])),
            "parked": ledger.parked("j9") + ledger.parked("j2"),
            "statistics": list(ledger.statistics([(10, LARGEST, statistic.site, statistic.activity), (10, 1, "", "")])),
        }
        found["events"] = [
            msgspec.structs.astuple(row)
            for row in ledger.stored([EventLookup(1, LARGEST, None)])
            if isinstance(row, rows.EventRow)
        ]
    return found


def same(found: dict[str, Any], written: Changes) -> None:
    for name, several in found.items():
        assert sorted(several, key=repr) == sorted(getattr(written, name), key=repr), name


@pytest.mark.parametrize("time", TIMES)
def test_times_come_back_to_the_last_bit(journal: Journal, time: float) -> None:
    written = every_row("text", time)
    with journal.transaction() as ledger:
        ledger.write(written)
    same(loaded(journal, written), written)


@pytest.mark.parametrize("text", [*AWKWARD, LONG], ids=range(len(AWKWARD) + 1))
def test_any_text_comes_back_as_it_was(harness: Harness, journal: Journal, text: str) -> None:
    written = every_row(text, 0.1)
    with journal.transaction() as ledger:
        ledger.write(written)
    same(loaded(journal, written), written)
    assert harness.rows(rows.TagRow) == written.tags


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40), json=st.text(max_size=40), time=st.floats(min_value=0, max_value=2.5e11))
def test_whatever_text_and_time_come_back(journal: Journal, text: str, json: str, time: float) -> None:
    written = every_row(text, time)
    written.parked[0].event = msgspec.json.encode([json, "\\u0000", "\\" + json]).decode()
    with journal.transaction() as ledger:
        # The same keys again and again: events and parked events alone are never replaced.
        ledger.write(
            Changes(**{name: value for name, value in _fields(written).items() if name not in ("events", "parked")})
        )
    again = loaded(journal, written)
    again.pop("events"), again.pop("parked")
    same(again, written)


def _fields(changes: Changes) -> dict[str, Any]:
    return {name: getattr(changes, name) for name in Changes.__struct_fields__}


def test_a_row_takes_the_place_of_the_one_with_its_key(harness: Harness, journal: Journal) -> None:
    before, after = every_row("before", 1.0), every_row("after", 2.0)
    after.events, after.parked = [], []
    before.statistics[0].site = after.statistics[0].site
    before.statistics[0].activity = after.statistics[0].activity
    for written in (before, after):
        with journal.transaction() as ledger:
            ledger.write(written)
    found = loaded(journal, after)
    assert found.pop("events")
    assert found.pop("parked")
    same(found, after)
    assert len(harness.rows(rows.JobRow)) == 2


def test_more_rows_than_fit_into_one_statement_are_found_by_their_keys(journal: Journal) -> None:
    packages = [
        PackageRow(1, 1, line, number, PackageFacts(state="WAITING")) for line in range(1, 701) for number in (1, 2)
    ]
    streams = [rows.StreamRow(stream_id=number, source="agent", stream=f"s{number}") for number in range(1, 1001)]
    with journal.transaction() as ledger:
        ledger.write(Changes(packages=packages, streams=streams))
    with journal.transaction() as ledger:
        keys = [(1, 1, line, number) for line in range(1, 701) for number in (1, 2, 3)]
        assert sorted(ledger.packages(keys), key=_place) == packages
        assert len(list(ledger.streams([("agent", f"s{number}") for number in range(2000)]))) == 1000
        assert len(ledger.packages_of(1, stage=1)) == 1400
        assert ledger.packages_of(1, stage=2) == []
        assert list(ledger.packages([])) == []


def noted(n: int) -> Checked:
    data = msgspec.Raw(f'{{"text":"{n}"}}'.encode())
    event = Event(source="agent", stream="s", n=n, type="Noted", time=1.5, job="j", seen=7, attempt=3, data=data)
    return Checked(0, event, "attempt", (1, n, 1), Noted(text=str(n)))


def test_usual_and_unusual_events_of_a_batch_are_all_stored_as_they_are(harness: Harness, journal: Journal) -> None:
    fresh = [noted(position) for position in range(1, 251)]  # two statements of many rows, and some rows alone
    odd = (30, 1, 30, "Noted", 1, 1.5, 2.5, 1, 2, 7, 1, 1, 30, 1, 3, None, None, '{"text":"30"}')
    streams = [rows.StreamRow(stream_id=1, source="agent", stream="s")]
    plain = PlainEvents(fresh, first=1, but={30}, stream_ids={"agent": {"s": 1}}, job_ids={"j": 1})
    changes = Changes(received=2.5, streams=streams, events=[odd], plain_events=plain)
    with journal.transaction() as ledger:
        ledger.write(changes)
        assert ledger.position() == 250
    found = sorted(harness.rows(rows.EventRow), key=lambda row: row.position)
    assert [msgspec.structs.astuple(row) for row in found] == changes.all_events()
    assert [row.position for row in found] == list(range(1, 251))
    usual = {(row.version, row.skewed, row.epoch, row.pilot, row.site) for row in found if row.position != 30}
    assert usual == {(1, 0, 1, None, None)}
    assert {row.received for row in found} == {2.5}
    assert (found[29].skewed, found[29].epoch) == (1, 2)


@pytest.mark.parametrize("remembered", [False, True])
def test_a_package_that_changes_is_stored_with_its_state_and_site(harness: Harness, *, remembered: bool) -> None:
    steps = [
        ("WAITING", None, "a"),
        ("WAITING", None, "b"),
        ("READY", None, "b"),
        ("READY", "lyon", "c"),
        ("DONE", "prague", "d"),
    ]
    journal = harness.open()
    for state, site, reason in steps:
        with journal.transaction() as ledger:
            found = list(ledger.packages([(1, 1, 1, 1)]))
            row = found[0] if found else PackageRow(1, 1, 1, 1, PackageFacts())
            row.facts.state, row.facts.site, row.facts.reason = state, site, reason
            ledger.write(Changes(packages=[row]))
        assert harness.execute("SELECT state, site, facts ->> 'reason' FROM package_facts") == [(state, site, reason)]
        if not remembered:
            journal = harness.reopen()


def _place(row: PackageRow) -> tuple[int, int, int, int]:
    return row.job_id, row.stage, row.line, row.number


def test_stages_of_a_job_are_its_own(journal: Journal) -> None:
    stages = [rows.StageRow(job_id=job_id, stage=stage) for job_id in (1, 2) for stage in (1, 2, 3)]
    with journal.transaction() as ledger:
        ledger.write(Changes(stages=stages))
        assert sorted(ledger.stages_of(2), key=lambda row: row.stage) == stages[3:]
        assert ledger.stages_of(3) == []


def test_idle_packages_are_those_that_a_word_about_the_job_still_moves(journal: Journal) -> None:
    facts = {
        1: PackageFacts(state="WAITING"),
        2: PackageFacts(state="READY", bound_at=1.0),
        3: PackageFacts(state="SUBMITTED"),
        4: PackageFacts(state="RUNNING"),
        5: PackageFacts(state="SCHEDULED"),
        6: PackageFacts(state="DONE"),
        7: PackageFacts(state="CLEARED"),
        8: PackageFacts(state="CANCELLED", cancelled_at=0.0),
        9: PackageFacts(state="ABORTED", aborted_at=1.0),
        10: PackageFacts(state="CANCELLED"),  # with its job, which may be restarted
    }
    packages = [PackageRow(1, 1, line, 1, each) for line, each in facts.items()]
    packages.append(PackageRow(2, 1, 1, 1, PackageFacts(state="WAITING")))
    with journal.transaction() as ledger:
        ledger.write(Changes(packages=packages))
        assert sorted(row.line for row in ledger.idle_packages(1)) == [1, 2, 3, 10]


def test_old_statistics_are_forgotten_when_new_ones_come(harness: Harness, journal: Journal) -> None:
    now = 1_700_000_000.0
    for slice_ in (1, 170_000_000):
        written = [rows.StatisticRow(width_seconds=10, slice=slice_, site="", activity="", sketch=b"s")]
        with journal.transaction() as ledger:
            ledger.write(Changes(received=now, statistics=written))
    assert [row.slice for row in harness.rows(rows.StatisticRow)] == [170_000_000]
