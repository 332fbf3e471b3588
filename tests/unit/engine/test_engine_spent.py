"""A package that may not be tried again, of which something still runs: that decides, and nothing is made beside it."""

from __future__ import annotations

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import Accepted, Refused, Replicate
from pilotage.model.jobs.definition import Retry
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import bag, kind, site

ONCE = kind(retry=Retry(attempts_max=1))


def two_beside_each_other(small: Small) -> tuple[Agent, Agent]:
    small.submit(bag(1, ONCE))
    one = small.pilot("a")
    assert isinstance(small.ask(Replicate(job=JOB, package="1.1.1")), Accepted)
    small.wait(1, one)
    two = small.pilot("b")
    assert (one.packages, two.packages) == (["1.1.1"], ["1.1.1"])
    return one, two


def test_no_replica_is_made_of_what_has_failed_as_often_as_it_may() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_beside_each_other(small)
        two.fail("1.1.1", "application-error")
        answer = small.ask(Replicate(job=JOB, package="1.1.1"))
        assert isinstance(answer, Refused)
        assert (answer.code, answer.subject) == ("spent", "1.1.1")
        assert "after 1 counted attempts of at most 1" in answer.message
        small.wait(30, one, two)
        assert small.created() == [("1.1.1", 1, "a"), ("1.1.1", 2, "b")]
        one.succeed("1.1.1")
        assert small.status("1.1.1") == "done"
        two.unread.clear()


def test_one_that_was_wanted_before_is_not_made_either_and_what_runs_is_not_given_up() -> None:
    with Small(site("a"), site("b"), site("c")) as small:
        one, two = two_beside_each_other(small)
        assert isinstance(small.ask(Replicate(job=JOB, package="1.1.1")), Accepted)
        two.fail("1.1.1", "application-error")
        assert small.told(payloads.Aborted, "1.1.1") == []
        assert small.status("1.1.1") == "live"
        three = small.agent("c-0.1", site="c", request="c-0")
        three.exchange()
        small.wait(30, one, two, three)
        assert three.packages == []
        one.fail("1.1.1", "application-error")
        assert len(small.told(payloads.Aborted, "1.1.1")) == 1
        two.unread.clear()
