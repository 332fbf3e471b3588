"""Work that waits for sites which sleep is tried again by itself: no history of theirs leaves it stuck."""

from __future__ import annotations

import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import SubmitPilot
from pilotage.model.exchange.reports import Gone, Submitted
from pilotage.model.jobs.plan import Template
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, site

HOUR = 3600.0


def pilots_asked_for(small: Small, seconds: float) -> list[SubmitPilot]:
    """What is submitted while so much time passes, and nobody answers."""
    found = []
    for _ in range(int(seconds / 60)):
        small.wait(60)
        found += small.take(SubmitPilot)
    return found


@pytest.mark.parametrize("executor", ["", "a"])
def test_after_dead_starts_nothing_is_submitted_for_an_hour_and_then_one(executor: str) -> None:
    with Small(site("a", pilots=4), dead_starts_max=2, dead_start_seconds=65.0) as small:
        small.submit(bag(9, Template(activity="run", executor=executor)))
        while not any(isinstance(one.data, payloads.SiteHibernated) for one in small.book):
            for wanted in small.take(SubmitPilot):
                small.step(Gone(site="a", key=wanted.key, reason="failed", stderr="python3: not found"))
            small.wait(10)
        small.take(SubmitPilot)
        small.effects.clear()
        assert pilots_asked_for(small, HOUR - 120) == []
        assert [wanted.site for wanted in pilots_asked_for(small, 240)][:1] == ["a"]
        [woken] = [one.data for one in small.book if isinstance(one.data, payloads.SiteWoken)]
        assert woken.reason == "no-candidate"
        small.effects.clear()


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_sites_that_slept_by_a_long_queue_are_asked_again_when_their_queue_was_emptied(names: tuple[str, ...]) -> None:
    with Small(*(site(name, pilots=1) for name in names)) as small:
        small.submit(bag(1))
        queued: list[SubmitPilot] = []
        for _ in range(100):
            for wanted in small.take(SubmitPilot):
                queued.append(wanted)
                small.step(Submitted(site=wanted.site, key=wanted.key, native_id=str(len(queued))))
            small.wait(60)
        assert any(isinstance(one.data, payloads.SiteHibernated) for one in small.book)
        for wanted in queued:
            small.step(Gone(site=wanted.site, key=wanted.key, reason="cancelled", stderr=""))
        assert pilots_asked_for(small, 2 * HOUR)
        small.effects.clear()
