"""What the engine learns of the latencies of pilots, and that it still knows it after a restart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotage.book.codec import Checked
from pilotage.book.rows.rows import PilotRow, SiteRow
from pilotage.engine.past_pilots import ended_pilots
from pilotage.engine.restore import Snapshot, restore
from pilotage.forecast.history import LatencyHistory, Submitter
from pilotage.forecast.pilot_records import is_counted, learn_from, request_number, shape_of_pilots
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import CancelSubmitted, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import Gone, SubmissionFailed, Submitted
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.service.core import Core
from pilotage.service.messages import SitesChanged, Stopping
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag

LYON = Site(name="lyon", kind="slurm", capacity=Capacity(cores_hundredths=100), pilots_max=5, wall_seconds=7200.0)


def history(small: Small | Core, site: str = "lyon") -> LatencyHistory:
    return small.engine.state.latencies.at(site).history


def counted(small: Small, site: str = "lyon") -> dict[str, Any]:
    """The counts of all pilots of a site together."""
    (group,) = msgspec.json.decode(history(small, site).encoded())[0]
    faults, latencies, submissions, _, censored = group[4]
    return {
        "starts": sum(latencies[1::2]),
        "submissions": sum(submissions[1::2]),
        "withdrawn": sum(censored[1::2]),
        "faults": faults,
    }


def test_a_start_counts_from_the_request_and_its_submission_apart() -> None:
    with Small(LYON) as small:
        small.submit(bag(1))
        (asked,) = [each for each in small.effects if isinstance(each, SubmitPilot)]
        small.step(Submitted(site="lyon", key=asked.key, native_id="17"), after=40.0)
        small.now += 160.0
        pilot = small.pilot("lyon")
        assert counted(small) == {"starts": 1, "submissions": 1, "withdrawn": 0, "faults": 0}
        (group,) = msgspec.json.decode(history(small).encoded())[0]
        assert group[:3] == ["", shape_of_pilots(LYON), False]
        again = small.restarted()
        assert history(again).encoded() == history(small).encoded()
        pilot.succeed("1.1.1")


def test_an_end_before_any_contact_is_a_fault_and_a_refused_submission_too() -> None:
    with Small(LYON) as small:
        small.submit(bag(2))
        first, second = small.take(SubmitPilot)
        small.step(Gone(site="lyon", key=first.key, reason="failed"), after=30.0)
        small.step(SubmissionFailed(site="lyon", key=second.key, reason="refused", message="no"), after=1.0)
        assert counted(small)["faults"] == 2
        assert history(small.restarted()).encoded() == history(small).encoded()
        small.effects.clear()


def test_a_withdrawn_pilot_is_censored() -> None:
    with Small(LYON) as small:
        small.submit(bag(1))
        small.take(SubmitPilot)
        small.now += 500.0
        small.step(Stopping(token=1))
        small.answers.clear()
        small.take(CancelSubmitted)
        assert counted(small) == {"starts": 0, "submissions": 0, "withdrawn": 1, "faults": 0}
        assert history(small.restarted()).encoded() == history(small).encoded()


def test_the_batch_job_of_a_bound_attempt_counts_by_its_owner_and_what_it_asks_for() -> None:
    bound = msgspec.structs.replace(LYON, mode="bound")
    with Small(bound) as small:
        small.submit(bag(1), owner="ada")
        (asked,) = small.take(SubmitAttempt)
        small.step(Submitted(site="lyon", key=asked.key, native_id="17"), after=5.0)
        small.now += 95.0
        agent = small.bound(asked)
        (group,) = msgspec.json.decode(history(small).encoded())[0]
        assert group[0] == "ada"
        assert counted(small) == {"starts": 1, "submissions": 1, "withdrawn": 0, "faults": 0}
        agent.succeed("1.1.1")


def test_a_batch_job_of_a_bound_attempt_that_is_gone_is_a_fault() -> None:
    bound = msgspec.structs.replace(LYON, mode="bound")
    with Small(bound) as small:
        small.submit(bag(1), owner="ada")
        (asked,) = small.take(SubmitAttempt)
        small.step(Gone(site="lyon", key=asked.key, reason="failed"), after=5.0)
        assert counted(small)["faults"] == 1
        small.effects.clear()


def test_latencies_are_recorded_from_time_to_time_and_when_the_service_stops() -> None:
    with Small(LYON) as small:
        small.submit(bag(1))
        pilot = small.pilot("lyon")
        small.wait(899.0, pilot)
        assert small.told(payloads.SiteLatencies) == []
        small.wait(2.0, pilot)
        (event,) = small.told(payloads.SiteLatencies)
        record = msgspec.json.decode(event.data, type=payloads.SiteLatencies)
        assert (event.site, record.starts, record.unanswered) == ("lyon", 1, ())
        assert is_counted(pilot.request, site="lyon", through=record.through, unanswered=record.unanswered)
        small.wait(4000.0, pilot)
        assert len(small.told(payloads.SiteLatencies)) == 1, "nothing was new"
        pilot.succeed("1.1.1")
        small.submit(bag(3), job="k")
        small.take(SubmitPilot)
        small.step(Stopping(token=1))
        small.answers.clear()
        small.effects.clear()
        assert len(small.told(payloads.SiteLatencies)) == 2


def test_a_restarted_engine_continues_from_the_record_and_adds_the_pilots_after_it() -> None:
    with Small(LYON) as small:
        small.submit(bag(3))
        first = small.pilot("lyon")
        second, third = small.take(SubmitPilot)
        small.wait(901.0, first)
        record = msgspec.json.decode(small.told(payloads.SiteLatencies)[0].data, type=payloads.SiteLatencies)
        assert record.unanswered == tuple(request_number(each.key, site="lyon") for each in (second, third))
        small.effects.append(second)
        late = small.pilot("lyon")
        small.step(Gone(site="lyon", key=third.key, reason="failed"), after=1.0)
        assert counted(small) == {"starts": 2, "submissions": 0, "withdrawn": 0, "faults": 1}
        again = small.restarted()
        assert history(again).encoded() == history(small).encoded()
        outbox, written = again.step((), small.now), list[Checked]()
        while outbox.wake_at is not None and outbox.wake_at <= small.now + 901.0:
            outbox = again.step((), outbox.wake_at)
            written += outbox.events
        assert [one.data.starts for one in written if isinstance(one.data, payloads.SiteLatencies)] == [2]
        small.effects.clear()
        for agent in (first, late):
            agent.unread.clear()


def test_what_pilots_taught_stays_when_their_rows_have_left_the_book() -> None:
    with Small(LYON) as small:
        small.submit(bag(1))
        pilot = small.pilot("lyon")
        pilot.succeed("1.1.1")
        small.wait(901.0, pilot)
        rows = small.journal.sites()
        again = restore(Snapshot(sites=rows), sites=[LYON], settings=small.settings, now=small.now)
        assert again.state.latencies.at("lyon").history.encoded() == history(small).encoded()
        pilot.unread.clear()
        small.effects.clear()


def test_a_pilot_without_a_row_has_ended_for_certain() -> None:
    rows = [
        PilotRow(pilot="lyon-1", requested_at=1.0, ended_at=9.0, reason="ended"),
        PilotRow(pilot="lyon-1.1", request="lyon-1", started_at=2.0, ended_at=8.0, reason="unheard"),
        PilotRow(pilot="lyon-2.1", request="lyon-2", started_at=2.0, ended_at=8.0, reason="unheard"),
        PilotRow(pilot="lyon-3.1", request="lyon-3", started_at=2.0),
        PilotRow(pilot="lyon-4.1", request="lyon-4", started_at=2.0, ended_at=8.0, reason="idle"),
    ]
    gone = ended_pilots(rows)
    assert [name in gone for name in ("lyon-1.1", "lyon-2.1", "lyon-3.1", "lyon-4.1", "lyon-5.1")] == [
        True, False, False, True, True,
    ]  # fmt: skip


def test_of_several_pilots_of_one_request_the_first_with_a_right_clock_counts() -> None:
    rows = [
        PilotRow(pilot="lyon-1", site="lyon", requested_at=1000.0),
        PilotRow(pilot="lyon-1.1", site="lyon", request="lyon-1", started_at=1300.0),
        PilotRow(pilot="lyon-1.2", site="lyon", request="lyon-1", started_at=1200.0),
        PilotRow(pilot="lyon-1.3", site="lyon", request="lyon-1", started_at=3.0),
    ]
    made, expected = LatencyHistory(), LatencyHistory()
    assert learn_from(made, rows, site="lyon", shape="small") == 1
    expected.started(Submitter("", "small"), at=1200.0, latency_seconds=200.0)
    assert made.encoded() == expected.encoded()


def test_a_site_that_is_no_longer_configured_still_learns_from_its_rows() -> None:
    rows = [PilotRow(pilot="old-1", site="old", requested_at=1.0, ended_at=9.0, reason="failed")]
    snapshot = Snapshot(sites=[SiteRow(site="old", status="removed")], pilots=rows, next_n=7)
    engine = restore(snapshot, sites=[LYON], settings=EngineSettings(), now=1000.0)
    (one,) = [one for one in engine.decide(2000.0) if one.event.site == "old"]
    assert isinstance(one.data, payloads.SiteLatencies)
    assert one.data.through == one.event.n


def test_a_site_that_is_removed_and_comes_back_still_has_its_latencies() -> None:
    with Small(LYON) as small:
        small.submit(bag(1))
        pilot = small.pilot("lyon")
        pilot.succeed("1.1.1")
        small.step(SitesChanged(sites=()))
        pilot.exchange()
        assert pilot.left
        pilot.say(payloads.PilotEnded(reason="left"))
        pilot.exchange()
        small.step(Gone(site="lyon", key=pilot.request, reason="ended"))
        small.step(SitesChanged(sites=()))
        assert "lyon" not in small.engine.state.sites.by_name
        small.step(SitesChanged(sites=(LYON,)))
        assert counted(small)["starts"] == 1
        small.effects.clear()
        small.answers.clear()
        pilot.unread.clear()


def test_thirty_starts_make_a_latency_for_the_next_pilot() -> None:
    with Small(msgspec.structs.replace(LYON, pilots_max=31)) as small:
        state = small.engine.state
        site = state.sites.by_name["lyon"]
        small.submit(bag(31))
        for number in range(30):
            assert state.latencies.known(site, now=small.now) is None, number
            small.now += 1.0
            small.pilot("lyon").unread.clear()
        found = state.latencies.known(site, now=small.now)
        assert found is not None
        assert (found.basis, found.starts) == ("user and shape", 30)
        assert found.latency.at(3600.0) == pytest.approx(30 / 31, abs=0.05), "one is still queued"
        small.effects.clear()


@pytest.mark.parametrize(
    "key, number",
    [("lyon-17", 17), ("lyon-probe-4", 4), ("lyon-trial-5", 5), ("nancy-17", None), ("lyon-", None), ("lyon-x", None)],
)
def test_the_key_of_a_request_says_its_number(key: str, number: int | None) -> None:
    assert request_number(key, site="lyon") == number
