"""Lines that are dropped and restored: consumers go without them, and nobody who has begun is surprised."""

from __future__ import annotations

from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import InputSource
from pilotage.model.exchange.operations import (
    Accepted,
    CancelSubmitted,
    Drop,
    DropFiles,
    ExpandStage,
    Kill,
    Refused,
    Reschedule,
    Restart,
    Restore,
    SubmitAttempt,
    SubmitPilot,
)
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import chain, grown, kind, plan, site, stage

MERGE = [("1.1.1", "2.1.1"), ("1.2.1", "2.1.1")]
DROP = Drop(job=JOB, stage=1, line=2)
FORCED = Drop(job=JOB, stage=1, line=2, force=True)
RESTORE = Restore(job=JOB, stage=1, line=2)


def refusal(answer: Accepted | Refused) -> tuple[str, str]:
    assert isinstance(answer, Refused), answer
    return answer.code, answer.subject


def test_a_dropped_line_is_not_waited_for_and_not_among_the_inputs() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        assert isinstance(small.ask(DROP), Accepted)
        assert small.status("1.2.1") == "dropped"
        pilot.exchange()
        pilot.succeed("1.1.1")
        assert pilot.packages == ["2.1.1"]
        assert pilot.held[pilot.ref("2.1.1")].inputs == (InputSource("1.1.1", 1),)


def test_dropping_a_line_that_runs_stops_it_and_grants_nothing_of_it() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        ref = pilot.ref("1.2.1")
        small.ask(DROP)
        reply = pilot.exchange()
        assert reply is not None
        assert reply.cancelled == (ref,)
        pilot.end(ref)
        pilot.exchange()
        assert small.status("1.2.1") == "dropped"
        assert small.told(payloads.CommitGranted, "1.2.1") == []


def test_what_a_line_made_before_it_was_dropped_is_not_taken() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        pilot.succeed("1.2.1")
        small.ask(Reschedule(job=JOB, package="2.1.1"))
        small.ask(FORCED)
        pilot.exchange()
        pilot.exchange()
        assert pilot.held[pilot.ref("2.1.1")].inputs == (InputSource("1.1.1", 1),)
        pilot.unread.clear()


def test_an_attempt_sees_its_inputs_as_they_were_dropped_when_it_was_created() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        pilot.end(pilot.ref("1.2.1"))
        small.step(pilot.message())  # the reply is lost
        pilot.unread.clear()
        pilot.held.clear()
        small.ask(FORCED)
        reply = pilot.exchange()
        assert reply is not None
        [assignment] = reply.assignments
        assert [each.package for each in assignment.inputs] == ["1.1.1", "1.2.1"]
        [created] = small.told(payloads.AttemptCreated, "2.1.1")
        assert b"drop_revision" not in bytes(created.data)
        small.ask(Reschedule(job=JOB, package="2.1.1"))
        pilot.exchange()
        pilot.exchange()
        later = pilot.held[pilot.ref("2.1.1")]
        assert (later.ref.attempt, [each.package for each in later.inputs]) == (2, ["1.1.1"])
        assert later.drop_revision > assignment.drop_revision
        pilot.unread.clear()


def test_restoring_before_a_consumer_has_begun_blocks_it_again() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        small.ask(DROP)
        pilot.end(pilot.ref("1.1.1"))
        pilot.exchange(leaving="full")  # takes nothing, so the consumer is only reserved
        assert small.status("2.1.1") == "reserved"
        assert isinstance(small.ask(RESTORE), Accepted)
        assert small.standings() == {"done": ["1.1.1"], "reserved": ["1.2.1"], "blocked": ["2.1.1"]}
        pilot.exchange()
        assert pilot.packages == ["1.2.1"]


def test_restoring_is_refused_by_name_once_a_consumer_holds_a_lease() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        small.ask(DROP)
        pilot.succeed("1.1.1")
        assert pilot.packages == ["2.1.1"]
        before = len(small.book)
        assert refusal(small.ask(RESTORE)) == ("consumer-started", "2.1.1")
        pilot.succeed("2.1.1")
        assert refusal(small.ask(RESTORE)) == ("consumer-started", "2.1.1")
        assert all(one.event.type != "Restored" for one in small.book[before:])


def test_restoring_is_refused_while_a_consumer_is_in_the_queue_of_a_batch_system() -> None:
    with Small(site("a", mode="bound"), site("b", mode="bound")) as small:
        small.submit(plan(stage(2), stage(1, kind("merge", executor="b")), edges=MERGE))
        first, second = small.take(SubmitAttempt)
        small.ask(DROP)
        assert small.take(CancelSubmitted) == [CancelSubmitted(site="a", key=second.key)]
        small.bound(first).succeed("1.1.1")
        [merge] = small.take(SubmitAttempt)
        assert merge.ref.package == "2.1.1"
        assert refusal(small.ask(RESTORE)) == ("consumer-started", "2.1.1")


def test_restoring_is_refused_once_a_late_stage_was_laid_out_without_the_line() -> None:
    made = plan(stage(2), None, late={2: ["1.1.1", "1.2.1"]})
    with Small(site()) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.ask(DROP)
        assert len(small.take(ExpandStage)) == 1
        small.grow(grown(made, late=2, lines=1, edges=[("1.1.1", "2.1.1")]), late=2)
        assert refusal(small.ask(RESTORE)) == ("stage-laid-out", "stage 2")
        pilot.exchange()
        pilot.unread.clear()


def test_restoring_while_a_late_stage_is_being_laid_out_makes_it_wait_again() -> None:
    made = plan(stage(2), None, late={2: ["1.1.1", "1.2.1"]})
    with Small(site()) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.ask(DROP)
        assert len(small.take(ExpandStage)) == 1
        assert isinstance(small.ask(RESTORE), Accepted)
        small.grow(grown(made, late=2, lines=1, edges=[("1.1.1", "2.1.1")]), late=2)
        assert small.told(payloads.StageExpanded) == []  # it was laid out without the line that is back
        pilot.exchange()
        pilot.exchange()
        pilot.unread.clear()
        pilot.succeed("1.2.1")
        assert len(small.take(ExpandStage)) == 1


def test_a_late_stage_is_not_laid_out_by_an_answer_to_an_earlier_question() -> None:
    made = plan(stage(2), None, late={2: ["1.1.1", "1.2.1"]})
    with Small(site()) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.ask(DROP)
        [first] = small.take(ExpandStage)
        small.ask(RESTORE)
        pilot.exchange()
        pilot.exchange()
        pilot.unread.clear()
        pilot.succeed("1.2.1")
        [second] = small.take(ExpandStage)
        small.grow(grown(made, late=2, lines=1), late=2, revision=first.revision)
        assert small.told(payloads.StageExpanded) == []
        small.grow(grown(made, late=2, lines=2), late=2, revision=second.revision)
        assert small.engine.state.jobs.by_id[JOB].count == 4
        pilot.exchange()
        pilot.unread.clear()


def test_dropping_a_dead_line_brings_back_those_who_were_given_up_because_of_it() -> None:
    edges = [*MERGE, ("2.1.1", "3.1.1")]
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), stage(), edges=edges))
        pilot = small.pilot()
        small.ask(Kill(job=JOB, package="1.2.1"))
        assert small.standings()["upstream"] == ["2.1.1", "3.1.1"]
        small.ask(DROP)
        assert small.standings()["blocked"] == ["2.1.1", "3.1.1"]
        pilot.exchange()
        pilot.succeed("1.1.1")
        pilot.succeed("2.1.1")
        pilot.succeed("3.1.1")
        assert small.standings()["done"] == ["1.1.1", "2.1.1", "3.1.1"]


def test_restoring_a_dead_line_gives_those_who_wait_for_it_up_again() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        small.ask(Kill(job=JOB, package="1.2.1"))
        small.ask(DROP)
        assert small.status("2.1.1") == "blocked"
        small.ask(RESTORE)
        assert small.status("2.1.1") == "upstream"
        small.ask(Restart(job=JOB, package="1.2.1"))
        pilot.exchange()
        pilot.succeed("1.1.1")
        pilot.succeed("1.2.1")
        assert pilot.packages == ["2.1.1"]


def test_a_restored_line_whose_producer_died_meanwhile_is_given_up() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        small.take(SubmitPilot)
        small.ask(Drop(job=JOB, stage=2, line=1))
        small.ask(Kill(job=JOB, package="1.2.1"))
        small.ask(Restore(job=JOB, stage=2, line=1))
        assert small.status("2.1.1") == "upstream"


def test_a_restored_line_that_waits_for_a_late_stage_whose_producer_died_meanwhile_is_aborted() -> None:
    made = plan(stage(2), None, stage(2, kind("merge")), late={2: ["1.1.1", "1.2.1"]}, waits={3: (2,)})
    with Small(site(cores=2)) as small:
        small.submit(made)
        small.take(SubmitPilot)
        small.ask(Drop(job=JOB, stage=3, line=1))
        small.ask(Kill(job=JOB, package="1.2.1"))
        assert small.status("3.2.1") == "upstream"
        small.ask(Restore(job=JOB, stage=3, line=1))
        assert small.status("3.1.1") == "upstream"


def test_dropping_a_whole_line_drops_each_of_its_packages() -> None:
    made = plan(stage(2, kind("first"), kind("second")), edges=[("1.1.1", "1.1.2"), ("1.2.1", "1.2.2")])
    with Small(site()) as small:
        small.submit(made)
        answer = small.ask(DROP)
        assert isinstance(answer, Accepted)
        assert small.standings()["dropped"] == ["1.2.1", "1.2.2"]
        operations = {
            bytes(event.data) for place in ("1.2.1", "1.2.2") for event in small.told(payloads.Dropped, place)
        }
        assert len(operations) == 1
        small.ask(RESTORE)
        assert "dropped" not in small.standings()
        small.take(SubmitPilot)


def test_a_line_may_be_restored_though_its_own_packages_have_begun() -> None:
    made = plan(stage(2, kind("first"), kind("second")), edges=[("1.1.1", "1.1.2"), ("1.2.1", "1.2.2")])
    with Small(site(cores=2)) as small:
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.2.1")
        assert "1.2.2" in pilot.packages
        small.ask(DROP)
        pilot.exchange()
        assert isinstance(small.ask(RESTORE), Accepted)
        pilot.exchange()
        assert "1.2.2" in pilot.packages
        pilot.succeed(*pilot.packages)
        pilot.unread.clear()
        assert small.status("1.2.2") == "done"


def test_dropping_twice_and_restoring_what_was_not_dropped_is_refused() -> None:
    with Small(site()) as small:
        small.submit(chain(lines=2))
        small.take(SubmitPilot)
        assert refusal(small.ask(RESTORE))[0] == "not-dropped"
        small.ask(DROP)
        assert refusal(small.ask(DROP))[0] == "dropped"
        assert refusal(small.ask(Drop(job=JOB, stage=1, line=3)))[0] == "unknown-line"
        small.ask(Kill(job=JOB))
        assert refusal(small.ask(RESTORE))[0] == "job-over"


# --- what others have read, and lines that are killed -----------------------------------------------------------------


def test_a_line_whose_files_were_read_is_dropped_only_by_force_and_whoever_read_them_is_named() -> None:
    small = Small(site(cores=2))
    small.submit(plan(stage(2), stage(), edges=MERGE))
    pilot = small.pilot()
    pilot.succeed("1.1.1", "1.2.1")
    assert pilot.packages == ["2.1.1"]
    answer = small.ask(DROP)
    assert refusal(answer) == ("files-read", "2.1.1")
    assert isinstance(answer, Refused)
    assert answer.message == "2.1.1 has read the outputs of 1.2.1, and its results stay"
    assert f"pilotage drop --force {JOB} 1.2" in answer.next_step
    assert small.told(payloads.Dropped, "1.2.1") == []
    assert isinstance(small.ask(FORCED), Accepted)
    answer = small.ask(RESTORE)
    assert refusal(answer) == ("consumer-started", "2.1.1")
    assert "without" not in str(answer), "it has read what the line made"


def test_a_line_whose_consumer_is_done_is_taken_back_in_as_the_refusal_says() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        small.ask(DROP)
        pilot.exchange()
        pilot.succeed("1.1.1")
        pilot.succeed("2.1.1")
        answer = small.ask(RESTORE)
        assert isinstance(answer, Refused)
        assert answer.next_step == "restart 2.1.1 and kill it, restore the line, then restart 2.1.1"
        again = Restart(job=JOB, package="2.1.1")
        for each in (again, Kill(job=JOB, package="2.1.1"), RESTORE, again):
            assert isinstance(small.ask(each), Accepted), each
        pilot.exchange()
        pilot.succeed("1.2.1")
        assert [each.package for each in pilot.held[pilot.ref("2.1.1")].inputs] == ["1.1.1", "1.2.1"]


def test_a_stage_that_was_laid_out_with_a_line_keeps_it_from_being_dropped() -> None:
    small = Small(site(cores=2))
    made = plan(stage(2), None, late={2: ["1.1.1", "1.2.1"]})
    small.submit(made)
    small.pilot().succeed("1.1.1", "1.2.1")
    small.grow(grown(made, late=2, lines=1, edges=[("1.1.1", "2.1.1")]), late=2)
    assert refusal(small.ask(DROP)) == ("files-read", "stage 2")


def test_a_line_is_killed_whole_and_what_waits_for_it_is_given_up() -> None:
    small = Small(site(cores=2))
    small.submit(
        plan(stage(2, kind(), kind()), stage(), edges=[("1.1.1", "1.1.2"), ("1.2.1", "1.2.2"), ("1.2.2", "2.1.1")])
    )
    pilot = small.pilot()
    pilot.succeed("1.2.1")
    assert isinstance(small.ask(Kill(job=JOB, stage=1, line=2, message="wrong field")), Accepted)
    assert [small.status(each) for each in ("1.2.1", "1.2.2", "2.1.1")] == ["done", "cancelled", "upstream"]
    assert small.status("1.1.1") == "live"
    assert refusal(small.ask(Kill(job=JOB, stage=1, line=2))) == ("line-over", "1.2")
    assert refusal(small.ask(Kill(job=JOB, stage=1, line=9))) == ("unknown-line", "1.9")


# --- files that are to be removed with their line -----------------------------------------------------------------------

REMOVING = Drop(job=JOB, stage=1, line=2, remove_files=True)


def ordered(small: Small) -> list[tuple[str | None, int | None]]:
    return [
        (one.event.package, one.event.attempt) for one in small.book if isinstance(one.data, payloads.RemovalOrdered)
    ]


def test_a_line_whose_files_are_removed_counts_no_longer_and_makes_them_anew_when_it_is_taken_back_in() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        pilot.succeed("1.2.1")
        assert isinstance(small.ask(REMOVING), Accepted)
        assert ordered(small) == [("1.2.1", 1)]
        assert small.status("1.2.1") == "dropped"
        assert isinstance(small.ask(RESTORE), Accepted)
        pilot.exchange()
        assert pilot.ref("1.2.1").attempt == 2
        pilot.succeed("1.1.1", "1.2.1")
        assert pilot.held[pilot.ref("2.1.1")].inputs == (InputSource("1.1.1", 1), InputSource("1.2.1", 2))


def test_what_somebody_is_reading_stays_and_goes_when_it_is_asked_for_again() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), edges=MERGE))
        pilot = small.pilot()
        pilot.succeed("1.1.1", "1.2.1")
        answer = small.ask(REMOVING)
        assert refusal(answer) == ("files-read", "2.1.1")
        assert isinstance(answer, Refused)
        assert f"pilotage drop --force --remove-files {JOB} 1.2" in answer.next_step
        assert isinstance(small.ask(Drop(job=JOB, stage=1, line=2, force=True, remove_files=True)), Accepted)
        assert (ordered(small), small.status("1.2.1")) == ([], "done")
        pilot.succeed("2.1.1")
        assert isinstance(small.ask(REMOVING), Accepted), "the line is dropped: its files can still go"
        assert ordered(small) == [("1.2.1", 1)]
        assert isinstance(small.ask(REMOVING), Accepted)
        assert len(ordered(small)) == 1


def test_nobody_of_the_line_comes_back_with_what_it_made_of_files_that_are_removed() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2, kind(), kind()), edges=[("1.1.1", "1.1.2"), ("1.2.1", "1.2.2")]))
        pilot = small.pilot()
        pilot.succeed("1.2.1")
        reading = pilot.ref("1.2.2")
        assert isinstance(small.ask(REMOVING), Accepted)
        small.ask(RESTORE)
        pilot.end(reading)
        pilot.exchange()
        pilot.exchange()
        assert small.told(payloads.CommitGranted, "1.2.2") == []
        pilot.succeed("1.2.1")
        assert pilot.ref("1.2.2").attempt == 2


def test_what_makes_no_files_stays_done() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2, kind(), kind()), edges=[("1.1.1", "1.1.2"), ("1.2.1", "1.2.2")]))
        pilot = small.pilot()
        pilot.succeed("1.2.1")
        pilot.succeed("1.2.2")
        removing = DropFiles(job=JOB, stage=1, line=2, remove_files=True, by="ann", fileless=("1.2.2",))
        assert isinstance(small.ask(removing), Accepted)
        assert ordered(small) == [("1.2.1", 1)]
        small.ask(RESTORE)
        pilot.exchange()
        pilot.succeed("1.2.1")
        assert small.status("1.2.2") == "done"
