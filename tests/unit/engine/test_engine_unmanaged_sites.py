"""A site that is in no file when an engine takes over: what runs there goes on, and what waits there is written off."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import CancelSubmitted, ProbeSite, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import Submitted
from pilotage.service.messages import SiteOperationRequest, SitesChanged
from tests.kit.small_engine import Small, differences
from tests.kit.small_plans import bag, site


def restart_without_a(small: Small) -> None:
    """Another process takes over, whose file of sites has all but `a`; it knows what the one before it knew."""
    before, whole = durable(small), small.sites
    small.sites = tuple(each for each in whole if each.name != "a")
    small.core = small.restarted()
    small.sites = whole
    assert differences(durable(small), before) == []
    small.engine.sanity_check()
    small.effects.clear()  # whatever was on its way went with the process


def without_a(small: Small) -> None:
    small.step(SitesChanged(sites=tuple(each for each in small.sites if each.name != "a")))


def with_a(small: Small) -> None:
    small.step(SitesChanged(sites=small.sites))


def durable(small: Small) -> dict[str, Any]:
    return {name: known for name, known in small.engine.durable_state().items() if name != "sites"}


def ended(small: Small) -> dict[str, str]:
    return {one.event.pilot or "": one.data.reason for one in small.book if isinstance(one.data, payloads.PilotEnded)}


def statuses(small: Small) -> dict[str, str]:
    return {row.site: row.status for row in small.journal.sites()}


def test_what_a_pilot_holds_at_a_missing_site_goes_on_and_is_granted_once() -> None:
    with Small(site("a", cores=2), site("b")) as small:
        with_a(small)
        small.submit(bag(3))
        pilot = small.pilot("a")
        held = pilot.packages
        assert len(held) == 2
        restart_without_a(small)
        without_a(small)
        assert statuses(small) == {"a": "removed", "b": "candidate"}
        pilot.succeed(held[0])
        assert (pilot.packages, pilot.left) == ([held[1]], False)  # it is given nothing more
        pilot.succeed(held[1])
        assert pilot.left
        assert small.told(payloads.AttemptLost, held[0]) == small.told(payloads.AttemptLost, held[1]) == []
        assert [len(small.told(payloads.CommitGranted, package)) for package in held] == [1, 1]
        small.finish()
        pilot.unread.clear()


def test_a_pilot_of_a_missing_site_leaves_and_with_it_ends_what_it_was_asked_for_by() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        restart_without_a(small)
        without_a(small)
        pilot.succeed("1.1.1")
        assert small.engine.state.pilots.requests
        pilot.say(payloads.PilotEnded(reason="left"))
        pilot.exchange()
        assert ended(small) == {pilot.name: "left", pilot.request: "site-removed"}
        assert not small.engine.state.pilots.requests
        without_a(small)
        assert [*small.engine.state.sites.by_name] == ["b"]  # nothing is left of it
        assert not small.engine.state.sites.unmanaged
        pilot.unread.clear()
        small.effects.clear()


def test_what_was_asked_for_at_a_missing_site_and_did_not_come_is_over_and_if_it_comes_it_leaves() -> None:
    with Small(site("a", pilots=2), site("b")) as small:
        small.submit(bag(2))
        here = small.pilot("a")
        [waits] = [each for each in small.take(SubmitPilot) if each.site == "a"]
        small.step(SiteOperationRequest(token=1, operation=ProbeSite(site="a")))
        small.answers.clear()
        probe = next(each.key for each in small.take(SubmitPilot) if "-probe-" in each.key)
        restart_without_a(small)
        without_a(small)
        assert ended(small) == {waits.key: "site-removed", probe: "site-removed"}
        assert "a" not in [each.site for each in small.take(SubmitPilot)]
        late = small.agent(f"{waits.key}.1", site="a", request=waits.key)
        late.exchange()
        assert late.left
        assert not late.held
        assert here.held
        small.wait(400, here)
        assert "a" not in [each.site for each in small.take(SubmitPilot)]
        late.unread.clear()
        here.unread.clear()
        small.effects.clear()


@pytest.mark.parametrize("seen", [True, False])
def test_what_waits_in_the_queue_of_a_missing_site_is_lost_and_tried_elsewhere(*, seen: bool) -> None:
    with Small(site("a", mode="bound", job_throttle=5.0), site("b", mode="bound", job_throttle=5.0)) as small:
        small.submit(bag(2))
        runs, waits = small.take(SubmitAttempt)
        agent = small.bound(runs)
        if seen:
            small.step(Submitted(site="a", key=waits.key, native_id="42"))
        restart_without_a(small)
        assert small.engine.state.log.effects == []  # nobody could submit it there
        without_a(small)
        assert len(small.told(payloads.AttemptLost, waits.ref.package)) == 1
        assert [(each.site, each.key) for each in small.take(CancelSubmitted)] == [("a", waits.key)]
        [again] = small.take(SubmitAttempt)
        assert (again.site, again.ref.package, again.ref.attempt) == ("b", waits.ref.package, 2)
        agent.succeed(runs.ref.package)
        small.bound(again).succeed(again.ref.package)
        assert small.standings() == {"done": ["1.1.1", "1.2.1"]}
        assert small.told(payloads.AttemptLost, runs.ref.package) == []
        small.take(CancelSubmitted)


def test_a_missing_site_that_comes_back_is_used_again_with_the_pilots_it_has() -> None:
    with Small(site("a", cores=2)) as small:
        with_a(small)
        small.submit(bag(4))
        pilot = small.pilot("a")
        restart_without_a(small)
        without_a(small)
        with_a(small)
        assert statuses(small) == {"a": "candidate"}
        assert not small.engine.state.sites.unmanaged
        while pilot.held:
            pilot.succeed(*pilot.packages)
        assert small.standings() == {"done": ["1.1.1", "1.2.1", "1.3.1", "1.4.1"]}
        assert not pilot.left
        pilot.unread.clear()
        small.effects.clear()


def test_a_second_restart_without_it_writes_nothing_twice_and_a_silent_pilot_there_is_given_up_in_the_end() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        restart_without_a(small)
        without_a(small)
        written = len(small.book)
        restart_without_a(small)
        without_a(small)
        assert len(small.book) == written
        small.wait(600)
        assert ended(small) == {pilot.name: "unheard", pilot.request: "site-removed"}
        small.effects.clear()
        small.finish(gone=[pilot.name])
        assert len(small.told(payloads.CommitGranted, "1.1.1")) == 1
        small.effects.clear()


def test_a_site_that_is_back_at_the_next_start_is_described_anew() -> None:
    with Small(site("a"), site("b")) as small:
        with_a(small)
        without_a(small)
        assert statuses(small)["a"] == "removed"
        small.core = small.restarted()
        with_a(small)
        assert statuses(small)["a"] == "candidate"
