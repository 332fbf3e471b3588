"""What a package made is made anew: whoever reads it is in the way, whoever was lost cannot come back and win."""

from __future__ import annotations

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import Accepted, Drop, Hold, Kill, Refused, Release, Remake, Restart
from tests.kit.small_engine import JOB, Agent, Small, differences
from tests.kit.small_plans import chain, plan, site, stage

LEASE = 60.0
REMAKE = Restart(job=JOB, package="1.1.1")


def lost_reader(small: Small) -> tuple[Agent, Agent]:
    """2.1.1 was lost with its pilot, and waits for an input that is missing; the pilot that tried it then is the second."""
    small.submit(chain(stages=2))
    one = small.pilot("a")
    one.succeed("1.1.1")
    assert one.packages == ["2.1.1"]
    two = small.agent("b-0.1", site="b", request="b-0")
    two.exchange()
    small.wait(3 * LEASE + 1, two)
    two.unread.clear()
    two.fail("2.1.1", "missing-input")
    two.unread.clear()
    return one, two


def test_what_only_a_lost_attempt_read_can_be_made_anew_as_explain_says() -> None:
    with Small(site("a"), site("b")) as small:
        _, two = lost_reader(small)
        assert "restart 1.1.1, if its outputs are lost" in [why.next_step for why in small.explain("2.1.1").reasons]
        assert isinstance(small.ask(REMAKE), Accepted)
        assert small.status("2.1.1") == "blocked"
        two.exchange()
        two.succeed("1.1.1")
        two.succeed("2.1.1")
        assert list(small.standings()) == ["done"]


def test_a_lost_attempt_that_comes_back_after_its_input_is_made_anew_cannot_win() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = lost_reader(small)
        small.ask(REMAKE)
        [fenced] = small.told(payloads.Restarted, "2.1.1")
        assert fenced.epoch == 2
        one.end(one.ref("2.1.1"))
        one.exchange()
        one.unread.clear()
        assert small.told(payloads.CommitGranted, "2.1.1") == []
        assert small.status("2.1.1") == "blocked"
        two.exchange()
        two.succeed("1.1.1")
        two.succeed("2.1.1")
        assert [event.epoch for event in small.told(payloads.CommitGranted, "2.1.1")] == [2]


def test_a_lost_reader_that_waits_for_a_place_leaves_its_queue_when_its_input_is_made_anew() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(chain(stages=2))
        one = small.pilot("a")
        one.succeed("1.1.1")
        small.ask(Hold(job=JOB))
        small.wait(3 * LEASE + 1)  # its queue is now one of those that avoid a site
        small.effects.clear()
        assert small.status("2.1.1") == "ready"
        assert isinstance(small.ask(REMAKE), Accepted)
        small.effects.clear()
        assert small.status("2.1.1") == "blocked"
        small.ask(Release(job=JOB))
        small.effects.clear()
        two = small.agent("b-0.1", site="b", request="b-0")
        two.exchange()
        two.succeed("1.1.1")
        two.succeed("2.1.1")
        assert list(small.standings()) == ["done"]


def test_one_that_is_only_suspected_still_reads() -> None:
    with Small(site("a")) as small:
        small.submit(chain(stages=2))
        one = small.pilot("a")
        one.succeed("1.1.1")
        small.wait(LEASE + 1)
        small.effects.clear()
        assert [why.code for why in small.explain("2.1.1").reasons if why.code == "suspect"] == ["suspect"]
        before = len(small.book)
        answer = small.ask(REMAKE)
        assert isinstance(answer, Refused)
        assert (answer.code, answer.subject) == ("consumer-started", "2.1.1")
        assert len(small.book) == before


def test_a_dropped_reader_stays_dropped_when_its_input_is_made_anew() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = lost_reader(small)
        small.ask(Drop(job=JOB, stage=2, line=1))
        assert isinstance(small.ask(REMAKE), Accepted)
        assert small.status("2.1.1") == "dropped"
        two.exchange()
        two.succeed("1.1.1")
        one.end(one.ref("2.1.1"))
        one.exchange()
        one.unread.clear()
        assert small.standings() == {"done": ["1.1.1"], "dropped": ["2.1.1"]}


def test_readers_of_what_was_never_made_keep_their_epoch() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(), stage(), edges=[("1.1.1", "2.1.1")]))
        small.pilot()
        small.ask(Kill(job=JOB, package="1.1.1"))
        assert isinstance(small.ask(REMAKE), Accepted)
        causes = [event.data for event in small.told(payloads.Restarted, "2.1.1")]
        assert all(b"remake" not in bytes(each) for each in causes)


# --- outputs that are gone ------------------------------------------------------------------------------------------


MISSED = Remake(job=JOB, package="1.1.1", reader="2.1.1", message="2.1.1 needs out.dat, which is gone")


def test_what_a_reader_missed_is_made_again_and_the_reader_goes_on_at_once() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(1), edges=[("1.1.1", "2.1.1"), ("1.2.1", "2.1.1")]))
        pilot = small.pilot()
        pilot.succeed("1.1.1", "1.2.1")
        pilot.unread.clear()
        pilot.fail("2.1.1", "missing-input")
        assert small.status("2.1.1") == "delayed"
        assert isinstance(small.ask(MISSED), Accepted)
        [remade] = small.told(payloads.Restarted, "1.1.1")
        assert (remade.package, remade.epoch) == ("1.1.1", 2)
        assert b'"remake"' in bytes(remade.data)
        assert small.status("1.2.1") == "done"
        before = small.engine.durable_state()
        small.restart()
        assert differences(before, small.engine.durable_state()) == []
        pilot.unread.clear()
        pilot.exchange()
        pilot.succeed("1.1.1")
        assert pilot.packages == ["2.1.1"], "it does not wait for its delay"
        pilot.succeed("2.1.1")
        assert list(small.standings()) == ["done"]


def test_nothing_is_made_again_without_a_reader_that_waits_for_it() -> None:
    with Small(site()) as small:
        small.submit(chain(stages=2))
        pilot = small.pilot()
        refused = small.ask(MISSED)
        assert isinstance(refused, Refused)
        assert refused.code == "package-unfinished"
        pilot.succeed("1.1.1")
        pilot.unread.clear()
        refused = small.ask(MISSED)
        assert isinstance(refused, Refused)
        assert refused.code == "not-running"
        pilot.fail("2.1.1", "missing-input")
        small.ask(Kill(job=JOB))
        refused = small.ask(MISSED)
        assert isinstance(refused, Refused)
        assert refused.code == "job-over"
        assert small.told(payloads.Restarted, "1.1.1") == []
        small.effects.clear()
        pilot.unread.clear()


def test_what_is_lost_again_and_again_is_not_made_for_ever() -> None:
    with Small(site()) as small:
        small.submit(chain(stages=2))
        pilot = small.pilot()
        made = 0
        while small.status("2.1.1") != "aborted":
            pilot.unread.clear()
            if "1.1.1" in pilot.packages:
                made += 1
                pilot.succeed("1.1.1")
            pilot.unread.clear()
            pilot.fail("2.1.1", "missing-input")
            small.ask(MISSED)
            pilot.exchange()
        limit = small.engine.state.settings.restart.missing_inputs_max
        assert made == limit
        assert small.status("1.1.1") == "done"
        small.effects.clear()
        pilot.unread.clear()
