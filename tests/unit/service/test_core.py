"""The core: exchanges that are lost, repeated, stale or malformed do no harm, and a long poll is answered in time."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.agent.pilot import takeover
from pilotage.model.events import payloads
from pilotage.model.events.events import JUMP_MAX
from pilotage.model.exchange.exchange import SEQUENCE_JUMP_MAX, SETTLING, AttemptRef
from pilotage.model.exchange.operations import Accepted, ExpandStage, Hold, Kill, Refused, SubmitPilot
from pilotage.model.exchange.reports import SiteSeen
from pilotage.service.messages import AdoptedPackage, ExpansionFailed, OperationRequest, Submit
from tests.kit.small_engine import JOB, START, Small
from tests.kit.small_plans import bag, chain, plan, registered_of, site, stage

INTERVAL = 10.0


# --- answers --------------------------------------------------------------------------------------------------------


def test_each_question_of_a_step_is_answered_under_its_token() -> None:
    with Small(site()) as small:
        made = bag(1)
        submit = Submit(token=31, job=JOB, registered=registered_of(made, owner="ada"), plan=made)
        outbox = small.step(
            submit,
            OperationRequest(token=32, operation=Hold(job=JOB)),
            OperationRequest(token=33, operation=Hold(job="k")),
        )
        assert [each.token for each in outbox.answers] == [31, 32, 33]
        accepted, held, refused = (each.outcome for each in outbox.answers)
        assert accepted == Accepted(operation=1, events=2)
        assert held == Accepted(operation=3, events=1)
        assert isinstance(refused, Refused)
        assert [one.event.type for one in outbox.events] == ["JobRegistered", "JobAccepted", "Held"]
        small.answers.clear()


def test_what_was_made_before_is_granted_with_the_submission_and_its_consumers_go_on() -> None:
    with Small(site(cores=2)) as small:
        made = chain(lines=2)
        manifest = (payloads.OutputFile(name="a", size_bytes=1, sha256="0" * 64),)
        adopted = [AdoptedPackage(package=0, manifest=manifest, message="made before")]
        small.step(Submit(token=1, job=JOB, registered=registered_of(made, owner="ada"), plan=made, adopted=adopted))
        small.answers.clear()
        assert small.status("1.1.1") == "done"
        [finished] = small.told(payloads.AttemptFinished, "1.1.1")
        assert msgspec.json.decode(finished.data)["exit_message"] == "made before"
        pilot = small.pilot()
        assert "1.1.1" not in pilot.packages
        while pilot.held:
            pilot.succeed(*pilot.packages)
        assert set(small.standings()) == {"done"}


def test_a_stage_that_cannot_be_laid_out_ends_its_job() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(1), None, late={2: ["1.1.1"]}))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        [asked] = small.take(ExpandStage)
        small.step(ExpansionFailed(job=JOB, stage=2, revision=asked.revision + 1, message="out of date"))
        assert not small.engine.state.jobs.by_id[JOB].aborted
        small.step(ExpansionFailed(job=JOB, stage=2, revision=asked.revision, message="two packages made x"))
        [aborted] = small.told(payloads.Aborted)
        assert "two packages made x" in msgspec.json.decode(aborted.data)["message"]


def test_the_decisions_of_the_engine_are_one_stream_without_gaps() -> None:
    with Small(site(cores=2)) as small:
        small.submit(chain(lines=2))
        pilot = small.pilot()
        while pilot.held:
            pilot.succeed(*pilot.packages)
        decided = [one.event for one in small.book if one.event.source == "service"]
        assert [event.n for event in decided] == list(range(1, len(decided) + 1))
        assert {event.stream for event in decided} == {"engine"}


def test_decisions_have_seen_what_was_written_before() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        before = small.journal.position()
        pilot = small.pilot()
        [created] = small.told(payloads.AttemptCreated, "1.1.1")
        assert created.seen == before
        reply = pilot.exchange(leaving="once")
        assert reply is not None
        assert reply.position == small.journal.position()


def test_a_clock_that_is_set_back_does_not_undo_anything() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        small.now = START - 500.0
        pilot.succeed("1.1.1")
        assert small.engine.state.clock.now == START
        assert small.told(payloads.CommitGranted, "1.1.1")[0].time == START - 500.0  # as the clock says it
        small.now = START


def test_an_empty_step_with_nothing_due_says_nothing() -> None:
    with Small(site()) as small:
        outbox = small.step()
        assert (outbox.events, outbox.replies, outbox.answers, outbox.effects, outbox.wake_at) == ([], [], [], [], None)
        small.step(SiteSeen(site="nowhere", answers=True))


# --- the long poll --------------------------------------------------------------------------------------------------


def test_an_exchange_with_nothing_to_answer_stays_open_for_one_interval() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert pilot.exchange() is None
        assert small.wake_at is not None
        assert small.wake_at <= small.now + INTERVAL
        small.step(after=INTERVAL - 0.5)
        assert pilot.heard() is None
        small.step(after=0.5)
        reply = pilot.heard()
        assert reply is not None
        assert (reply.sequence, reply.assignments, reply.interval_seconds) == (pilot.sequence, (), INTERVAL)


def test_an_open_exchange_is_answered_as_soon_as_there_is_work() -> None:
    with Small(site()) as small:
        small.submit(bag(1), job="first")
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert pilot.exchange() is None
        small.submit(bag(1), job="second")
        reply = pilot.heard()
        assert reply is not None
        assert [each.ref.job for each in reply.assignments] == ["second"]
        small.step(after=INTERVAL)
        assert pilot.heard() is None  # its poll was answered


def test_an_open_exchange_is_answered_as_soon_as_something_must_stop() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        assert pilot.exchange() is None
        small.ask(Kill(job=JOB))
        reply = pilot.heard()
        assert reply is not None
        assert reply.cancelled == (ref,)


def test_one_ready_package_wakes_one_waiter() -> None:
    with Small(site(pilots=3)) as small:
        small.submit(bag(3), job="first")
        pilots = [small.pilot() for _ in range(3)]
        for pilot in pilots:
            pilot.succeed("1.1.1" if "1.1.1" in pilot.packages else pilot.packages[0])
        assert [pilot.exchange() for pilot in pilots] == [None] * 3
        small.submit(bag(1), job="second")
        assert sum(len(pilot.unread) for pilot in pilots) == 1
        for pilot in pilots:
            pilot.unread.clear()


def test_events_are_acknowledged_at_once() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.say(payloads.PhaseEntered(phase="inputs"), pilot.ref("1.1.1"))
        reply = pilot.exchange()
        assert reply is not None
        assert reply.acknowledged == 2
        assert pilot.unacknowledged == []


def test_a_pilot_that_asks_anew_is_answered_once_for_its_newest_exchange() -> None:
    with Small(site()) as small:
        small.submit(bag(1), job="first")
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert pilot.exchange() is None
        assert pilot.exchange(after=4.0) is None
        small.step(after=6.0)
        assert pilot.heard() is None  # the time of the first, which nobody waits for any more
        small.step(after=4.0)
        reply = pilot.heard()
        assert reply is not None
        assert reply.sequence == pilot.sequence


def test_two_exchanges_of_a_pilot_in_one_step_get_one_answer_to_the_later() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        first = pilot.message()
        pilot.end(pilot.ref("1.2.1"))
        second = pilot.message()
        outbox = small.step(first, second)
        assert [reply.sequence for reply in outbox.replies] == [second.sequence]
        assert pilot.unacknowledged == []
        assert list(small.standings()) == ["done"]


# --- what gets lost -------------------------------------------------------------------------------------------------


def test_an_assignment_whose_reply_was_lost_is_sent_again() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        lost = dict(pilot.held)
        pilot.held.clear()
        reply = pilot.exchange()
        assert reply is not None
        assert {each.ref: each for each in reply.assignments} == lost
        assert len(small.created()) == 2
        assert pilot.exchange() is None  # it has them now


def test_what_a_pilot_holds_and_should_not_is_cancelled_again_and_again() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        stranger = AttemptRef("other", "1.1.1", 1)
        reply = pilot.exchange(held=(ref, stranger))
        assert reply is not None
        assert reply.cancelled == (stranger,)
        small.ask(Kill(job=JOB))
        for _ in range(2):
            reply = pilot.exchange(held=(ref,))
            assert reply is not None
            assert reply.cancelled == (ref,)


def test_events_that_are_sent_again_count_once() -> None:
    with Small(site()) as small:
        small.submit(chain())
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        events = tuple(pilot.unacknowledged)
        pilot.exchange()
        before = len(small.book)
        pilot.exchange(events=events)
        assert len(small.book) == before
        assert len(small.told(payloads.AttemptFinished, "1.1.1")) == 1
        assert len(small.told(payloads.CommitGranted, "1.1.1")) == 1


def test_a_stale_exchange_brings_its_events_and_nothing_else() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(3))
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        pilot.end(ref)
        stale = pilot.message()  # on its way for long
        held = (ref, pilot.ref("1.2.1"))
        assert pilot.exchange(events=(), held=held) is None
        heard_at = small.engine.state.pilots.by_name[pilot.name].heard_at
        outbox = small.step(msgspec.structs.replace(stale, leaving="old news", held=()), after=5.0)
        assert small.status("1.1.1") == "done"
        assert [reply.sequence for reply in outbox.replies] != [stale.sequence]
        assert small.engine.state.pilots.by_name[pilot.name].heard_at == heard_at
        assert small.engine.state.pilots.by_name[pilot.name].leaving == ""
        pilot.unread.clear()


def test_an_exchange_that_arrives_twice_does_no_harm() -> None:
    with Small(site(cores=2)) as small:
        small.submit(chain(lines=2))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        message = pilot.message()
        small.step(message)
        pilot.unread.clear()
        before, held = len(small.book), dict(pilot.held)
        outbox = small.step(message, message)
        assert (len(small.book), outbox.replies, pilot.held) == (before, [], held)


def test_an_exchange_whose_number_jumps_out_of_all_reach_makes_no_other_old() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(3))
        pilot = small.pilot()
        known = small.engine.state.pilots.by_name[pilot.name]
        last, heard_at = known.sequence, known.heard_at
        message = pilot.message()
        for far in (last + SEQUENCE_JUMP_MAX + 1, SETTLING - 1, SETTLING, SETTLING + 7):
            outbox = small.step(msgspec.structs.replace(message, sequence=far), after=1.0)
            assert ["far beyond" in reply.leave for reply in outbox.replies] == [True], far
        assert (known.sequence, known.heard_at) == (last, heard_at)
        small.step(msgspec.structs.replace(message, sequence=last + SEQUENCE_JUMP_MAX))
        assert known.sequence == last + SEQUENCE_JUMP_MAX
        pilot.unread.clear()


def test_who_settles_what_a_pilot_left_is_heard_beyond_all_that_the_pilot_said() -> None:
    assert SETTLING == takeover.SEQUENCE
    with Small(site(cores=2)) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        told = msgspec.structs.replace(pilot.message(), leaving="gone")
        for number in (0, takeover.BATCH_EVENTS):
            outbox = small.step(msgspec.structs.replace(told, sequence=SETTLING + number))
            assert ["far beyond" in reply.leave for reply in outbox.replies] == [False]
        assert small.status("1.1.1") == "done"
        pilot.unread.clear()


def test_a_gap_in_the_stream_is_not_acknowledged_over() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        pilot.end(pilot.ref("1.2.1"))
        first, second = pilot.unacknowledged
        reply = pilot.exchange(events=(second,))
        assert reply is not None
        assert reply.acknowledged == first.n - 1
        reply = pilot.exchange(events=(first,))
        assert reply is not None
        assert reply.acknowledged == second.n
        assert list(small.standings()) == ["done"]


def test_an_agent_whose_numbers_jump_out_of_all_reach_has_to_leave_and_its_stream_is_not_spoilt() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        pilot.end(pilot.ref("1.2.1"))
        good, last = pilot.unacknowledged
        reply = pilot.exchange(events=(msgspec.structs.replace(last, n=last.n + JUMP_MAX),))
        assert reply is not None
        assert (reply.acknowledged, "far beyond" in reply.leave) == (good.n - 1, True)
        assert small.status("1.2.1") == "live"
        reply = pilot.exchange(events=(good, last))
        assert reply is not None
        assert (reply.acknowledged, reply.leave) == (last.n, "")


# --- what cannot be read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        {"data": msgspec.Raw(b'{"exit_code":"NONSENSE"}')},
        {"data": msgspec.Raw(b"{")},
        {"type": "NoSuchEvent"},
        {"package": "one"},
        {"version": 99},
        {"time": float("nan")},
    ],
)
def test_a_malformed_event_is_refused_and_does_not_hold_back_those_behind_it(broken: dict[str, object]) -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        pilot.end(pilot.ref("1.2.1"))
        bad, good = pilot.unacknowledged
        pilot.unacknowledged = [msgspec.structs.replace(bad, **broken), good]
        reply = pilot.exchange()
        assert reply is not None
        assert reply.acknowledged == good.n
        assert len(small.refused) == 1
        small.refused.clear()
        assert small.status("1.2.1") == "done"
        assert small.status("1.1.1") == "live"


def test_events_about_jobs_and_packages_nobody_knows_are_kept_and_change_nothing() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        for ref in (AttemptRef("ghost", "1.1.1", 1), AttemptRef(JOB, "9.9.9", 1), AttemptRef(JOB, "1.1.1", 77)):
            pilot.say(payloads.PhaseEntered(phase="setup"), ref)
            pilot.say(payloads.AttemptFinished(exit_code="SUCCESS", manifest=()), ref)  # type: ignore[arg-type]
        pilot.exchange()
        assert pilot.unacknowledged == []
        assert small.status("1.1.1") == "live"


def test_an_exchange_of_a_pilot_that_never_said_it_started_is_told_to_leave() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        small.take(SubmitPilot)
        stranger = small.agent("stranger", site="a")
        stranger.unacknowledged.clear()
        reply = stranger.exchange()
        assert reply is not None
        assert (bool(reply.leave), reply.assignments) == (True, ())


def test_a_pilot_at_a_site_nobody_knows_is_told_to_leave() -> None:
    with Small(site()) as small:
        stranger = small.agent("stranger", site="elsewhere")
        reply = stranger.exchange()
        assert reply is not None
        assert reply.leave


def test_a_pilot_that_has_ended_is_told_to_leave_whatever_it_says() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        small.wait(200)
        small.take(SubmitPilot)
        for _ in range(2):
            reply = pilot.exchange()
            assert reply is not None
            assert reply.leave
            assert reply.assignments == ()


@pytest.mark.parametrize("package", ["not.a.place.at.all", "not.a.place", "1.1", "", "0.0.0", "1.1.1 "])
def test_a_reference_of_an_agent_that_cannot_be_read_does_no_harm(package: str) -> None:
    with Small(site(mode="bound")) as small:
        small.submit(bag(1, hold=True))
        agent = small.agent("odd.1", site="a", serves=AttemptRef(JOB, package, 1))
        reply = agent.exchange()
        assert reply is not None
        assert reply.leave
