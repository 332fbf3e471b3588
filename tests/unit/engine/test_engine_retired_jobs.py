"""What is over and cleared leaves the engine, as if the service had started anew; what comes back goes on where it was."""

from __future__ import annotations

import gc

import msgspec
import pytest

from pilotage.book.codec import Checked
from pilotage.engine.past_pilots import EndedPilots, ended_pilots
from pilotage.engine.restore import JobSnapshot
from pilotage.engine.state.jobs import JobState
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Payload
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import Accepted, Clear, Drop, ExpandStage, Kill, Refused, Restart
from pilotage.model.exchange.reports import Gone
from pilotage.model.states import ExitCodeGasw
from pilotage.service import core as core_module
from pilotage.service.messages import JobSealed, OperationRequest, Reload, Submit
from tests.kit.small_engine import JOB, Agent, Small, differences
from tests.kit.small_plans import bag, grown, kind, plan, registered_of, site, stage


def done(*, count: int = 2, side_effects: bool = False) -> tuple[Small, Agent]:
    """A job of which everything is done."""
    small = Small(site(cores=2))
    small.submit(bag(count, kind(side_effects=side_effects)))
    pilot = small.pilot()
    while pilot.held:
        pilot.succeed(*pilot.packages)
    return small, pilot


def same_after_a_restart(small: Small) -> bool:
    """Whether a service that starts from the book knows the same."""
    known = small.engine.durable_state()
    restarted, replayed = small.restarted().engine.durable_state(), small.replayed().durable_state()
    assert differences(restarted, known) == []
    assert differences(replayed, known) == []
    return True


def snapshot(small: Small, job: str = JOB) -> JobSnapshot:
    """A job as the book has it."""
    row = small.journal.job(job)
    assert row is not None
    finals, unfinished = small.journal.finals(row), small.journal.unfinished(row)
    return JobSnapshot(row=row, plan=small.plans[job][-1], finals=finals, unfinished=unfinished)


def told_by_client(small: Small, data: Payload, package: str) -> None:
    """What somebody else wrote into the book, and the engine heard of."""
    n = len(small.book) + 1
    event = Event(
        source="client", stream="c", n=n, type=type(data).__name__, time=small.now, job=JOB, package=package,
        seen=small.journal.position(), data=msgspec.Raw(msgspec.json.encode(data)),
    )  # fmt: skip
    found = small.core._codec.check(event)
    assert isinstance(found, Checked)
    small.book.append(found)
    small.journal.append([found], small.now)
    small.journal.sync()
    small.engine.apply(found)
    small.step()


def ended(small: Small) -> EndedPilots:
    """The pilots that have ended, as the book has them."""
    return ended_pilots(small.journal.pilots(after="", limit=1_000_000))


def test_a_cleared_job_is_known_no_longer() -> None:
    small, _ = done()
    assert isinstance(small.ask(Clear(job=JOB)), Accepted)
    assert JOB not in small.engine.state.jobs.by_id
    assert small.journal.live_jobs() == []
    assert same_after_a_restart(small)


def test_nothing_of_a_job_that_left_is_kept_in_memory() -> None:
    small = Small(site("a", cores=2), site("b", mode="bound", job_throttle=0.0))
    small.submit(bag(9, kind(executor="a")), job="leaving")
    pilot = small.pilot()
    while pilot.held:
        pilot.fail(pilot.packages[0], "preempted") if pilot.n < 5 else pilot.succeed(*pilot.packages)
    small.ask(Clear(job="leaving"))
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, JobState) and each.id == "leaving"] == []


@pytest.mark.parametrize("restarted", [False, True])
def test_the_id_of_a_cleared_job_stays_taken(restarted: bool) -> None:  # noqa: FBT001
    small, _ = done()
    small.ask(Clear(job=JOB))
    if restarted:
        small.restart()
    made = bag(1)
    taken = small.journal.job(JOB) is not None
    small.step(Submit(token=1, job=JOB, registered=registered_of(made, owner="ada"), plan=made, taken=taken))
    answer = small.answers.pop().outcome
    assert isinstance(answer, Refused)
    assert answer.code == "known-job"


def test_the_id_of_a_job_that_just_left_is_taken_before_the_book_can_say_so() -> None:
    small, _ = done()
    made = bag(1)
    again = Submit(token=2, job=JOB, registered=registered_of(made, owner="ada"), plan=made)
    small.step(OperationRequest(token=1, operation=Clear(job=JOB)))
    small.step(again)
    assert [type(each.outcome) for each in small.answers] == [Accepted, Refused]


@pytest.mark.parametrize("restarted", [False, True])
def test_late_words_about_a_cleared_job_are_noted(restarted: bool) -> None:  # noqa: FBT001
    small, pilot = done()
    small.ask(Clear(job=JOB))
    if restarted:
        small.restart()
    before = len(small.told(payloads.Noted))
    ended = payloads.AttemptFinished(exit_code=ExitCodeGasw.EXECUTION_FAILED)
    pilot.say(ended, AttemptRef(JOB, "1.1.1", 1))
    pilot.exchange()
    assert len(small.told(payloads.Noted)) == before + 1
    assert len(small.told(payloads.AttemptFinished, "1.1.1")) == 1
    assert same_after_a_restart(small)
    answer = small.ask(Restart(job=JOB, package="1.1.1"))
    assert isinstance(answer, Refused)
    assert answer.code == "unknown-job"


def test_what_is_not_over_is_not_cleared() -> None:
    small = Small(site())
    small.submit(bag(2))
    small.pilot()
    answer = small.ask(Clear(job=JOB))
    assert isinstance(answer, Refused)
    assert answer.code == "job-unfinished"


def test_a_killed_job_can_be_cleared_and_leaves() -> None:
    small = Small(site())
    small.submit(bag(3))
    pilot = small.pilot()
    small.ask(Kill(job=JOB))
    pilot.exchange()
    assert isinstance(small.ask(Clear(job=JOB)), Accepted)
    assert JOB not in small.engine.state.jobs.by_id
    assert same_after_a_restart(small)


@pytest.mark.parametrize("whole", [False, True])
def test_a_cleared_job_comes_back_from_the_book_and_is_restarted(whole: bool) -> None:  # noqa: FBT001
    small = Small(site())
    small.submit(bag(2))
    pilot = small.pilot()
    pilot.succeed("1.1.1")
    small.ask(Kill(job=JOB))
    pilot.exchange()
    small.ask(Clear(job=JOB))
    asked = Restart(job=JOB, package="" if whole else "1.2.1")
    small.step(Reload(job=snapshot(small), gone=ended(small)), OperationRequest(token=1, operation=asked))
    assert isinstance(small.answers.pop().outcome, Accepted)
    assert small.status("1.1.1") == "done"
    pilot.unread.clear()
    small.finish()
    assert small.status("1.2.1") == "done"
    assert same_after_a_restart(small)


def test_a_job_that_came_back_for_nothing_leaves_again() -> None:
    small, _ = done()
    small.ask(Clear(job=JOB))
    small.step(Reload(job=snapshot(small), gone=ended(small)), OperationRequest(token=1, operation=Restart(job=JOB)))
    answer = small.answers.pop().outcome
    assert isinstance(answer, Refused)
    assert answer.code == "nothing-failed"
    assert JOB not in small.engine.state.jobs.by_id


def test_a_job_that_was_put_away_leaves_if_it_is_over() -> None:
    small, _ = done()
    small.submit(bag(1), job="k")
    small.step(JobSealed(job=JOB), JobSealed(job="k"), JobSealed(job="unknown"))
    assert list(small.engine.state.jobs.by_id) == ["k"]


def test_a_job_whose_packages_were_all_cleared_leaves_with_the_last() -> None:
    small, _ = done()
    told_by_client(small, payloads.Cleared(by="user"), "1.1.1")
    assert same_after_a_restart(small)
    assert JOB in small.engine.state.jobs.by_id
    told_by_client(small, payloads.Cleared(by="user"), "1.2.1")
    assert JOB not in small.engine.state.jobs.by_id
    assert same_after_a_restart(small)


def test_a_job_whose_packages_were_all_cleared_but_a_dropped_one_leaves() -> None:
    small = Small(site(cores=2))
    small.submit(bag(3))
    pilot = small.pilot()
    small.ask(Drop(job=JOB, stage=1, line=3))
    pilot.exchange()
    pilot.succeed("1.1.1")
    pilot.succeed("1.2.1")
    told_by_client(small, payloads.Cleared(by="user"), "1.1.1")
    assert JOB in small.engine.state.jobs.by_id
    told_by_client(small, payloads.Cleared(by="user"), "1.2.1")
    assert JOB not in small.engine.state.jobs.by_id
    assert same_after_a_restart(small)


def test_a_package_that_was_cleared_before_it_was_done_is_over_also_after_a_restart() -> None:
    small = Small(site())
    small.submit(bag(2))
    small.pilot()
    told_by_client(small, payloads.Cleared(by="user"), "1.2.1")
    assert small.status("1.2.1") == "cancelled"
    assert same_after_a_restart(small)


def test_dropped_packages_and_late_stages_do_not_keep_a_cleared_job() -> None:
    made = plan(stage(2), None, late={2: ["1.1.1"]})
    small = Small(site(cores=2))
    small.submit(made)
    pilot = small.pilot()
    small.ask(Drop(job=JOB, stage=1, line=2))
    pilot.exchange()
    pilot.succeed("1.1.1")
    assert isinstance(small.ask(Clear(job=JOB)), Refused)
    small.take(ExpandStage)
    small.grow(grown(made, late=2), late=2)
    pilot.exchange()
    pilot.succeed("2.1.1")
    assert isinstance(small.ask(Clear(job=JOB)), Accepted)
    assert JOB not in small.engine.state.jobs.by_id
    assert same_after_a_restart(small)


def test_what_may_still_act_is_known_again_when_its_job_comes_back() -> None:
    small = Small(site(pilots=2))
    small.submit(bag(1, kind(side_effects=True)))
    pilot = small.pilot()
    small.ask(Kill(job=JOB))
    small.ask(Clear(job=JOB))
    assert (small.engine.state.abandoned.by_pilot, small.engine.state.abandoned.pilots_by_request) == ({}, {})
    small.step(Reload(job=snapshot(small), gone=ended(small)), OperationRequest(token=1, operation=Restart(job=JOB)))
    small.answers.clear()
    assert small.status("1.1.1") == "blocked"
    pilot.exchange()  # it is told that nobody waits
    pilot.exchange()  # it holds it no longer
    assert small.status("1.1.1") != "blocked"


def test_jobs_that_come_later_go_later_also_after_others_left() -> None:
    small, _ = done()
    small.submit(bag(1), job="k")
    small.ask(Clear(job=JOB))
    small.submit(bag(1), job="l")
    assert small.engine.state.jobs.by_id["k"].order < small.engine.state.jobs.by_id["l"].order


# --- agents -----------------------------------------------------------------------------------------------------------


def test_agents_that_ended_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "ENDED_MAX", 5)
    small = Small(site(pilots=1))
    small.submit(bag(40))
    first: Agent | None = None
    for _ in range(30):
        pilot = small.pilot()
        first = first or pilot
        pilot.succeed(pilot.packages[0])
        for ref in list(pilot.held):
            pilot.end(ref, reason="preempted")
        pilot.say(payloads.PilotEnded(reason="idle"))
        pilot.exchange(leaving="idle")
        small.step(Gone(site="a", key=pilot.request, reason="ended"), after=1.0)
        assert len(small.core._heard) + len(small.core._ended) <= 7
    assert first is not None
    assert not small.core.knows(first.name)


def test_what_an_agent_said_that_nobody_remembers_is_not_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "ENDED_MAX", 0)
    small, pilot = done()
    said = list(pilot.unacknowledged)
    pilot.say(payloads.PilotStarted(site="a"))
    again = pilot.message()
    pilot.say(payloads.PilotEnded(reason="idle"))
    pilot.exchange(leaving="idle")
    assert (said, small.core.knows(pilot.name)) == ([], False)
    [row] = [each for each in small.journal.streams("agent") if each.stream == pilot.name]
    small.core.recall(row)  # with no room for it, it is forgotten at once: the driver tells it just before
    monkeypatch.setattr(core_module, "ENDED_MAX", 1)
    small.core.recall(row)
    before = len(small.book)
    small.step(again)
    assert len(small.book) == before
    assert pilot.name not in small.engine.state.pilots.by_name


def test_names_that_nobody_has_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "ENDED_MAX", 5)
    small = Small(site())
    for number in range(50):
        agent = Agent(small, f"x{number}", site="a", request="")
        small.agents[agent.name] = agent
        small.step(agent.message())
        assert agent.left
    assert len(small.core._heard) + len(small.core._ended) == 5


def test_the_sites_for_what_nobody_asks_for_any_more_are_forgotten() -> None:
    with Small(site(cores=2), site("b")) as small:
        pools = small.engine.state.selection.sites._pools
        for job in ("a", "b", "c"):
            small.submit(bag(1, kind(locators=("file:///other/*" if job == "c" else "file:///same/*",))), job=job)
        pilot = small.pilot()
        while pilot.held:
            pilot.succeed(*pilot.packages)
        assert len(pools) == 2
        small.ask(Clear(job="a"))
        assert len(pools) == 2  # another job asks for the same
        small.ask(Clear(job="b"))
        [left] = pools.values()
        assert left.requirements.locators == ("file:///other/*",)
        assert small.engine.state.jobs.by_id["c"].template_classes[0][0].pool is left  # type: ignore[union-attr]
        small.submit(bag(1, kind(locators=("file:///same/*",))), job="d")
        pilot.exchange(after=1.0)
        pilot.succeed(*pilot.packages)
        assert small.status("1.1.1", job="d") == "done"
        small.ask(Clear(job="c"))
        small.ask(Clear(job="d"))
        assert not pools
        small.effects.clear()
        pilot.unread.clear()
