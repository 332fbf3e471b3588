"""An engine that has nothing to do rests: what waits for long is not looked at all the time."""

from __future__ import annotations

from pilotage.model.effects import SubmitAttempt
from pilotage.model.reports import Submitted
from pilotage.service.messages import Input, Outbox
from tests.small_engine import Small
from tests.small_plans import bag, site

HOURS = 12


class Counting(Small):
    """Counts how often the core was woken."""

    steps = 0

    def step(self, *inbox: Input, after: float = 0.0) -> Outbox:
        self.steps += 1
        return super().step(*inbox, after=after)


def test_what_is_in_the_queue_of_a_site_that_is_at_work_wakes_nobody_every_second() -> None:
    with Counting(site(mode="bound", pilots=20), waiting_seconds_max=0.0) as small:
        small.submit(bag(20))
        first, *others = small.take(SubmitAttempt)
        assert others
        for number, effect in enumerate((first, *others), 1):
            small.step(Submitted(site=effect.site, key=effect.key, native_id=str(number)))
        running = small.bound(first)
        before = small.steps
        small.wait(HOURS * 3600.0, running)
        exchanges = HOURS * 3600.0 / small.settings.interval_seconds
        assert small.steps - before - exchanges < len(others) * HOURS * 2
