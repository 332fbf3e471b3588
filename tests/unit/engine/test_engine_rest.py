"""An engine that has nothing to do rests, and after months it knows no more than after a day."""

from __future__ import annotations

from pilotage.engine.state.queues import SHAPES_MIN
from pilotage.model.events.payloads import SiteStanding
from pilotage.model.exchange.operations import Clear, Hold, Kill, Release, SubmitAttempt
from pilotage.model.exchange.reports import Submitted
from pilotage.model.resources import Capacity
from pilotage.service.messages import Input, Outbox
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, kind, site

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


def test_what_jobs_that_are_gone_asked_for_is_counted_at_no_site_any_more() -> None:
    memory_bytes = 10**9
    with Small(site("a", capacity=Capacity(cores_hundredths=100, memory_bytes=memory_bytes)), site("b")) as small:
        small.watched = False
        small.submit(bag(2, kind(memory_bytes=memory_bytes)), job="lasting")
        pilot = small.pilot("a")
        small.ask(Hold(job="lasting"))
        for number in range(3 * SHAPES_MIN):
            small.submit(bag(1, kind(memory_bytes=number + 1)), job=f"job-{number}")
            small.ask(Kill(job=f"job-{number}"))
            small.ask(Clear(job=f"job-{number}", by="user"))
        engine = small.engine
        assert engine.state.jobs.by_id.keys() == {"lasting"}
        assert (
            max(
                len(engine.state.shapes.by_number),
                len(engine.state.shapes.by_demand),
                len(engine.state.queues.reserved_counts),
            )
            <= SHAPES_MIN
        )
        assert all(max(len(each.used), len(each.slots)) <= SHAPES_MIN for each in engine.state.sites.by_name.values())
        engine.sanity_check()
        small.ask(Release(job="lasting"))
        assert [ref.job for ref in pilot.held] == ["lasting"]
        small.finish()


def test_how_a_site_at_work_stands_is_written_down_more_and_more_seldom() -> None:
    with Small(site("a"), waiting_seconds_max=0.0) as small:
        small.watched = False
        turns = HOURS * 120
        small.submit(bag(turns + 1))
        pilot = small.pilot()
        for _ in range(turns):
            small.wait(30.0)
            pilot.succeed(*pilot.packages)
        written = [event.time for event in small.told(SiteStanding)]
        assert written[0] < small.book[0].event.time + 120.0
        assert len(written) < HOURS * 4 + 10
        small.finish()
