"""When a package may start: its inputs are granted, nobody holds it, and the late stages it waits for are known."""

from __future__ import annotations

import msgspec

from pilotage.book.codec import Codec
from pilotage.engine.state.jobs import PackageStatus
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import InputSource
from pilotage.model.exchange.operations import (
    Accepted,
    CancelSubmitted,
    Drop,
    ExpandStage,
    Hold,
    HoldResults,
    Kill,
    Refused,
    Release,
    Restart,
)
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, chain, grown, kind, plan, site, stage


def test_a_consumer_starts_when_its_producer_is_granted() -> None:
    with Small(site()) as small:
        small.submit(chain())
        pilot = small.pilot()
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")
        assert pilot.packages == ["2.1.1"]
        assert pilot.held[pilot.ref("2.1.1")].inputs == (InputSource("1.1.1", 1),)
        order = [(one.event.type, one.event.package) for one in small.book[-3:]]
        assert order == [("AttemptFinished", "1.1.1"), ("CommitGranted", "1.1.1"), ("AttemptCreated", "2.1.1")]


def test_a_success_that_is_told_does_not_start_consumers_before_its_grant() -> None:
    with Small(site(cores=2)) as small:
        small.submit(chain())
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        pilot.say(payloads.OutputsStaged(manifest=()), ref)
        pilot.end(ref)
        engine = small.replayed()
        told, refused = Codec().check_all(pilot.unacknowledged)
        assert (len(told), refused) == (2, [])
        job = engine.state.jobs.by_id[JOB]
        for one in told:
            engine.apply(one)
            assert (job.waits.tolist(), job.status[1]) == ([0, 1], PackageStatus.BLOCKED)
        decided = [(one.event.type, one.event.package) for one in engine.decide(small.now)]
        assert decided[0] == ("CommitGranted", "1.1.1")
        assert (job.waits.tolist(), job.status[1]) == ([0, 0], PackageStatus.RESERVED)


def test_staged_outputs_free_the_slot_and_are_granted_before_the_attempt_has_ended() -> None:
    with Small(site()) as small:
        small.submit(chain(lines=1))
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        pilot.say(payloads.OutputsStaged(manifest=()), ref)
        pilot.exchange()
        assert small.status("1.1.1") == "done"
        assert "2.1.1" in pilot.packages
        pilot.end(ref)
        pilot.exchange()
        assert len(small.told(payloads.CommitGranted, "1.1.1")) == 1


def test_a_merge_waits_for_all_its_producers() -> None:
    edges = [(f"1.{line}.1", "2.1.1") for line in (1, 2, 3)]
    with Small(site(cores=3)) as small:
        small.submit(plan(stage(3), stage(), edges=edges))
        pilot = small.pilot()
        pilot.succeed("1.2.1")
        pilot.succeed("1.1.1")
        assert small.status("2.1.1") == "blocked"
        pilot.succeed("1.3.1")
        assert [each.package for each in pilot.held[pilot.ref("2.1.1")].inputs] == ["1.1.1", "1.2.1", "1.3.1"]


def test_a_failed_attempt_grants_nothing() -> None:
    with Small(site()) as small:
        small.submit(chain())
        pilot = small.pilot()
        pilot.fail("1.1.1", "platform-failure")
        assert pilot.packages == ["1.1.1"]
        assert small.told(payloads.CommitGranted, "1.1.1") == []
        assert small.status("2.1.1") == "blocked"


# --- hold and release -----------------------------------------------------------------------------------------------


def test_holding_a_job_gives_its_reservations_back_and_lets_what_runs_go_on() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(5))
        pilot = small.pilot()
        assert small.standings() == {
            "live": ["1.1.1", "1.2.1"],
            "reserved": ["1.3.1", "1.4.1"],
            "ready": ["1.5.1"],
        }
        assert isinstance(small.ask(Hold(job=JOB)), Accepted)
        assert small.standings() == {"live": ["1.1.1", "1.2.1"], "ready": ["1.3.1", "1.4.1", "1.5.1"]}
        assert small.reserved("a") == {}
        pilot.succeed("1.1.1")
        assert pilot.packages == ["1.2.1"]
        assert small.status("1.1.1") == "done"
        small.ask(Release(job=JOB))
        assert small.standings()["reserved"] == ["1.3.1", "1.4.1", "1.5.1"]
        pilot.exchange()
        assert len(pilot.packages) == 2


def test_what_is_over_is_not_held_unless_its_results_wait_for_their_names() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        small.pilot().succeed("1.1.1")
        before = len(small.book)
        refused = small.ask(Hold(job=JOB))
        assert isinstance(refused, Refused)
        assert (refused.code, refused.message) == ("job-over", f"every package of the job {JOB} is over")
        assert (len(small.book), small.engine.state.jobs.by_id[JOB].held) == (before, False)
        assert isinstance(small.ask(HoldResults(job=JOB, message="no room")), Accepted)
        assert isinstance(small.ask(Release(job=JOB)), Accepted)


def test_holding_a_package_gives_its_reservation_to_another() -> None:
    with Small(site()) as small:
        small.submit(bag(4))
        pilot = small.pilot()
        assert small.standings()["reserved"] == ["1.2.1", "1.3.1"]
        small.ask(Hold(job=JOB, package="1.2.1"))
        assert small.standings()["reserved"] == ["1.3.1", "1.4.1"]
        assert small.status("1.2.1") == "held"
        pilot.succeed("1.1.1")
        pilot.succeed("1.3.1")
        pilot.succeed("1.4.1")
        assert pilot.packages == []
        small.ask(Release(job=JOB, package="1.2.1"))
        reply = pilot.heard() or pilot.exchange()
        assert reply is not None
        assert pilot.packages == ["1.2.1"]


def test_a_package_that_is_held_while_it_runs_finishes_and_gets_no_other_attempt() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        small.ask(Hold(job=JOB, package="1.1.1"))
        small.ask(Hold(job=JOB, package="1.2.1"))
        pilot.succeed("1.1.1")
        pilot.fail("1.2.1", "platform-failure")
        assert small.standings() == {"done": ["1.1.1"], "held": ["1.2.1"]}
        assert len(small.created()) == 2


def test_a_consumer_that_is_held_before_its_inputs_are_there_stays_held() -> None:
    with Small(site()) as small:
        small.submit(chain())
        pilot = small.pilot()
        small.ask(Hold(job=JOB, package="2.1.1"))
        pilot.succeed("1.1.1")
        assert small.status("2.1.1") == "held"
        small.ask(Release(job=JOB, package="2.1.1"))
        pilot.exchange()
        assert pilot.packages == ["2.1.1"]


def test_a_job_whose_document_says_hold_starts_when_it_is_released() -> None:
    with Small(site()) as small:
        small.submit(bag(1, hold=True))
        assert small.effects == []
        small.ask(Release(job=JOB))
        small.wait(1)
        assert small.pilot().packages == ["1.1.1"]


def test_releasing_what_is_not_held_and_holding_what_is_over_is_refused() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        refusals = [
            small.ask(Release(job=JOB)),
            small.ask(Release(job=JOB, package="1.2.1")),
            small.ask(Hold(job=JOB, package="1.1.1")),
            small.ask(Hold(job=JOB, package="1.9.1")),
            small.ask(Hold(job="k")),
        ]
        assert all(isinstance(each, Refused) for each in refusals)
        codes = [each.code for each in refusals if isinstance(each, Refused)]
        assert codes == ["not-held", "not-held", "package-over", "unknown-package", "unknown-job"]


# --- late stages ----------------------------------------------------------------------------------------------------


def test_a_late_stage_is_asked_for_once_when_all_its_producers_are_granted() -> None:
    made = plan(stage(2), None, late={2: ["1.1.1", "1.2.1"]})
    with Small(site(cores=2)) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert small.take(ExpandStage) == []
        pilot.succeed("1.2.1")
        assert [each.stage for each in small.take(ExpandStage)] == [2]
        small.wait(60, pilot)
        assert small.take(ExpandStage) == []
        small.grow(grown(made, late=2, lines=2, edges=[("1.1.1", "2.1.1"), ("1.2.1", "2.2.1")]), late=2)
        pilot.exchange()
        assert pilot.packages == ["2.1.1", "2.2.1"]
        assert pilot.held[pilot.ref("2.2.1")].inputs == (InputSource("1.2.1", 1),)
        small.wait(300, pilot)


def test_a_late_stage_is_asked_for_again_when_nothing_is_heard_of_it_and_laid_out_once() -> None:
    made = plan(stage(), None, late={2: ["1.1.1"]})
    with Small(site(), submit_again_seconds=30.0) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert len(small.take(ExpandStage)) == 1
        small.wait(31, pilot)
        assert len(small.take(ExpandStage)) == 1
        after = grown(made, late=2)
        small.grow(after, late=2)
        small.grow(after, late=2)
        small.wait(100, pilot)
        assert len(small.told(payloads.StageExpanded)) == 1
        assert small.engine.state.jobs.by_id[JOB].count == 2
        assert pilot.packages == ["2.1.1"]
        pilot.heard()


def test_a_dropped_producer_is_not_waited_for_by_a_late_stage() -> None:
    made = plan(stage(2), None, late={2: ["1.1.1", "1.2.1"]})
    with Small(site()) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.ask(Drop(job=JOB, stage=1, line=2))
        assert [each.stage for each in small.take(ExpandStage)] == [2]
        pilot.exchange()
        assert pilot.packages == []


def test_a_late_stage_waits_for_the_late_stage_before_it() -> None:
    made = plan(stage(), None, None, late={2: ["1.1.1"]}, after_late={3: (2,)})
    with Small(site()) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert [each.stage for each in small.take(ExpandStage)] == [2]
        small.grow(grown(made, late=2), late=2)
        assert small.take(ExpandStage) == []
        pilot.exchange()
        pilot.succeed("2.1.1")
        assert [each.stage for each in small.take(ExpandStage)] == [3]


def test_a_late_stage_that_was_asked_for_is_not_asked_for_again_when_another_grows() -> None:
    made = plan(stage(2), None, None, late={2: ["1.1.1"], 3: ["1.2.1"]})
    with Small(site(cores=2)) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1", "1.2.1")
        assert [each.stage for each in small.take(ExpandStage)] == [2, 3]
        small.grow(grown(made, late=2), late=2)
        assert small.take(ExpandStage) == []
        pilot.exchange()


def test_a_late_stage_that_turns_out_empty_is_laid_out_and_over() -> None:
    made = plan(stage(), None, stage(1, kind("merge")), late={2: ["1.1.1"]}, waits={3: (2,)})
    with Small(site()) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert len(small.take(ExpandStage)) == 1
        assert small.status("3.1.1") == "blocked"
        small.grow(grown(made, late=2, lines=0), late=2)
        pilot.exchange()
        assert pilot.packages == ["3.1.1"]


def test_packages_that_wait_for_a_late_stage_wait_for_its_packages_once_it_is_known() -> None:
    made = plan(stage(), None, stage(1, kind("merge")), late={2: ["1.1.1"]}, waits={3: (2,)})
    with Small(site(cores=2)) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert len(small.take(ExpandStage)) == 1
        edges = [("1.1.1", "2.1.1"), ("1.1.1", "2.2.1"), ("2.1.1", "3.1.1"), ("2.2.1", "3.1.1")]
        small.grow(grown(made, late=2, lines=2, edges=edges), late=2)
        pilot.exchange()
        pilot.succeed("2.1.1")
        assert small.status("3.1.1") == "blocked"
        pilot.succeed("2.2.1")
        assert pilot.packages == ["3.1.1"]


def test_who_waits_for_a_late_stage_is_given_up_again_when_its_producer_dies_again() -> None:
    made = plan(stage(2), None, stage(1, kind("merge")), late={2: ["1.1.1", "1.2.1"]}, waits={3: (2,)})
    with Small(site(cores=2)) as small:
        small.submit(made)
        pilot = small.pilot()
        for _ in range(2):
            small.ask(Kill(job=JOB, package="1.1.1"))
            pilot.exchange()
            assert small.status("3.1.1") == "upstream"
            small.ask(Restart(job=JOB, package="1.1.1"))
            pilot.exchange()
            assert small.status("3.1.1") == "blocked"


def test_a_late_stage_with_a_dead_producer_takes_those_who_wait_for_it_and_the_job_along() -> None:
    made = plan(stage(2), None, stage(1, kind("merge")), late={2: ["1.1.1", "1.2.1"]}, waits={3: (2,)})
    with Small(site(cores=2)) as small:
        small.submit(made)
        pilot = small.pilot()
        small.ask(Kill(job=JOB, package="1.1.1"))
        pilot.exchange()
        assert small.status("3.1.1") == "upstream"
        [aborted] = small.told(payloads.Aborted, "3.1.1")
        assert msgspec.json.decode(aborted.data) == {
            "cause": "upstream",
            "message": "waits for 1.1.1",
            "upstream": "1.1.1",
        }
        assert small.told(payloads.Aborted) == []
        pilot.succeed("1.2.1")
        assert [msgspec.json.decode(event.data)["cause"] for event in small.told(payloads.Aborted)] == ["upstream"]
        assert small.engine.state.jobs.by_id[JOB].aborted
        assert small.take(ExpandStage) == []


def test_restarting_the_dead_producer_of_a_late_stage_brings_everything_back() -> None:
    made = plan(stage(2), None, stage(1, kind("merge")), late={2: ["1.1.1", "1.2.1"]}, waits={3: (2,)})
    with Small(site(cores=2)) as small:
        small.submit(made)
        pilot = small.pilot()
        small.ask(Kill(job=JOB, package="1.1.1"))
        pilot.exchange()
        pilot.succeed("1.2.1")
        assert small.engine.state.jobs.by_id[JOB].aborted
        assert isinstance(small.ask(Restart(job=JOB)), Accepted)
        assert not small.engine.state.jobs.by_id[JOB].aborted
        assert small.status("3.1.1") == "blocked"
        pilot.exchange()
        pilot.succeed("1.1.1")
        assert [each.stage for each in small.take(ExpandStage)] == [2]
        small.grow(grown(made, late=2, lines=0), late=2)
        pilot.exchange()
        assert pilot.packages == ["3.1.1"]


def test_dropping_the_dead_producer_of_a_late_stage_lets_the_others_make_it() -> None:
    made = plan(stage(2), None, stage(1, kind("merge")), late={2: ["1.1.1", "1.2.1"]}, waits={3: (2,)})
    with Small(site(cores=2)) as small:
        small.submit(made)
        pilot = small.pilot()
        small.ask(Kill(job=JOB, package="1.1.1"))
        pilot.exchange()
        assert small.status("3.1.1") == "upstream"
        small.ask(Drop(job=JOB, stage=1, line=1))
        assert small.status("3.1.1") == "blocked"
        pilot.succeed("1.2.1")
        assert [each.stage for each in small.take(ExpandStage)] == [2]


def test_a_killed_job_asks_for_no_stage_and_takes_none() -> None:
    made = plan(stage(), None, late={2: ["1.1.1"]})
    with Small(site(mode="bound")) as small:
        small.submit(made)
        small.ask(Kill(job=JOB))
        assert len(small.take(CancelSubmitted)) == 1
        small.effects.clear()
        small.grow(grown(made, late=2), late=2)
        assert small.told(payloads.StageExpanded) == []
        assert small.engine.state.jobs.by_id[JOB].count == 1
