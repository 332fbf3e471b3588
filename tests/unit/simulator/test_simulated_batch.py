"""The batch system of a simulated site: how it queues, starts and lists, and each way in which it fails."""

from __future__ import annotations

import pytest

from pilotage.model.exchange.reports import AnyReport, Gone, SiteSeen, SubmissionFailed, Submitted
from pilotage.model.site import Site
from pilotage.simulator.world.batch_system import BatchSystem
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector, Faults
from pilotage.simulator.world.randomness import Dice, Distribution, Exponential, Fixed

NO_FAULTS, TEN_SECONDS = Faults(), Fixed(10.0)


class Started:
    """A process that the batch system started."""

    def __init__(self, name: str, farm: Farm) -> None:
        self.name = name
        self.farm = farm

    def kill(self) -> None:
        if self.farm.processes.pop(self.name, None) is not None:
            self.farm.killed.append(self.name)
            self.farm.batch.ended(self.name)


class Farm:
    """A batch system, what it started and what it said."""

    def __init__(
        self,
        *,
        running_max: int = 100,
        queue_max: int = 100,
        queue: Distribution = TEN_SECONDS,
        seed: int = 1,
        faults: Faults = NO_FAULTS,
        submission: Distribution | None = None,
        stuck_probability: float = 0.0,
    ) -> None:
        self.schedule = Schedule()
        self.injector = FaultInjector(faults, Dice(seed))
        self.said: list[AnyReport] = []
        self.processes: dict[str, Started] = {}
        self.started: list[tuple[float, str]] = []
        self.killed: list[str] = []
        self.batch = BatchSystem(
            Site(name="north"),
            schedule=self.schedule,
            injector=self.injector,
            dice=self.injector.dice,
            queue=queue,
            submission=submission,
            stuck_probability=stuck_probability,
            report=self.said.append,
            running_max=running_max,
            queue_max=queue_max,
        )

    def launch(self, name: str) -> Started:
        self.started.append((self.schedule.now, name))
        process = self.processes[name] = Started(name, self)
        return process

    def submit(self, *keys: str) -> None:
        for key in keys:
            self.batch.submit(key, self.launch)

    def run(self, seconds: float) -> None:
        self.schedule.run(until=self.schedule.now + seconds)

    def listed(self) -> list[AnyReport]:
        """What a listing says now, beside that it answers."""
        self.said.clear()
        self.batch.poll()
        assert self.said[0] == SiteSeen(site="north", answers=True)
        return self.said[1:]

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.started]


def gone(key: str, reason: str) -> Gone:
    return Gone(site="north", key=key, reason=reason)


def test_something_is_started_on_a_node_that_it_names_where_the_system_can_be_told() -> None:
    def nodes(named: tuple[str, ...], *, places_nodes: bool = True, there: tuple[str, ...] = ("n1", "n2")) -> set[str]:
        dice = Dice(1)
        batch = BatchSystem(
            Site(name="north", places_nodes=places_nodes),
            schedule=Schedule(),
            injector=FaultInjector(NO_FAULTS, dice),
            dice=dice,
            queue=TEN_SECONDS,
            report=lambda _: None,
            nodes=there,
        )
        return {batch.node_for(named) for _ in range(50)}

    assert nodes(()) == {"n1", "n2"}
    assert nodes(("n[2-9]", "m1")) == {"n2"}
    assert nodes(("n2",), places_nodes=False) == {"n1", "n2"}
    assert nodes((), there=()) == {""}


def test_a_job_is_answered_at_once_and_starts_after_it_has_queued() -> None:
    farm = Farm()
    farm.submit("a")
    assert farm.said == [Submitted(site="north", key="a", native_id="1000")]
    farm.run(9.0)
    assert (farm.names, farm.batch.queued) == ([], 1)
    farm.run(2.0)
    assert (farm.started, farm.batch.running, farm.batch.queued) == ([(10.0, "a.1")], 1, 0)
    assert farm.listed() == []


def test_a_key_that_is_known_is_answered_the_same_and_not_queued_again() -> None:
    farm = Farm()
    farm.submit("a", "a")
    farm.run(20.0)
    farm.submit("a")
    assert farm.said == [Submitted(site="north", key="a", native_id="1000")] * 3
    assert farm.names == ["a.1"]


def test_no_more_run_at_once_than_may() -> None:
    farm = Farm(running_max=2)
    farm.submit("a", "b", "c", "d")
    farm.run(20.0)
    assert farm.names == ["a.1", "b.1"]
    farm.processes["a.1"].kill()
    assert farm.names == ["a.1", "b.1", "c.1"]
    farm.batch.cancel("d")
    farm.processes["b.1"].kill()
    assert farm.names == ["a.1", "b.1", "c.1"]


def test_a_full_queue_refuses() -> None:
    farm = Farm(queue_max=1)
    farm.submit("a")
    farm.submit("b")
    assert [type(report) for report in farm.said] == [Submitted, SubmissionFailed]
    farm.run(20.0)
    farm.processes["a.1"].kill()
    farm.submit("b")
    assert farm.said[-1] == Submitted(site="north", key="b", native_id="1001")


def test_a_job_whose_process_is_gone_is_missed_by_the_next_listing_once() -> None:
    farm = Farm()
    farm.submit("a")
    farm.run(20.0)
    farm.processes["a.1"].kill()
    assert farm.listed() == [gone("a", "ended")]
    assert farm.listed() == []


def test_who_has_just_started_hears_everything_again() -> None:
    farm = Farm()
    farm.submit("a", "b")
    farm.run(20.0)
    farm.processes["a.1"].kill()
    farm.listed()
    farm.batch.relist()
    assert farm.listed() == [gone("a", "ended"), Submitted(site="north", key="b", native_id="1001")]


def test_a_key_that_is_over_is_not_started_again_and_told_to_be_gone_again() -> None:
    farm = Farm()
    farm.submit("a")
    farm.run(20.0)
    farm.processes["a.1"].kill()
    farm.listed()
    farm.submit("a")
    farm.run(20.0)
    assert farm.names == ["a.1"]
    assert farm.listed() == [gone("a", "ended")]


@pytest.mark.parametrize("seconds", [1.0, 20.0])
def test_a_cancelled_job_never_starts_or_is_killed(seconds: float) -> None:
    farm = Farm()
    farm.submit("a")
    farm.run(seconds)
    farm.batch.cancel("a")
    farm.batch.cancel("a")
    farm.batch.cancel("unknown")
    farm.run(100.0)
    assert farm.processes == {}
    assert farm.listed() == [gone("a", "cancelled")]
    assert (farm.batch.running, farm.batch.queued) == (0, 0)


def test_it_is_listed_every_so_often_once_it_has_begun() -> None:
    farm = Farm()
    farm.batch.begin()
    farm.run(95.0)
    assert farm.said == [SiteSeen(site="north", answers=True)] * 3


def test_out_of_contact_nothing_is_answered_and_submissions_may_be_lost() -> None:
    farm = Farm()
    farm.batch.lose_contact(60.0)
    keys = [f"k{number}" for number in range(40)]
    farm.submit(*keys)
    farm.batch.poll()
    assert farm.said == [SiteSeen(site="north", answers=False, message="no answer")]
    farm.run(61.0)
    assert 5 < len(farm.started) < 35  # some got in although nobody heard of it
    assert [f"{report.key}.1" for report in farm.listed() if isinstance(report, Submitted)] == farm.names
    farm.submit(*keys)
    farm.run(20.0)
    assert sorted(farm.names) == sorted(f"{key}.1" for key in keys)


def test_out_of_contact_what_runs_goes_on_and_cannot_be_cancelled() -> None:
    farm = Farm()
    farm.submit("a")
    farm.run(20.0)
    farm.batch.lose_contact(60.0)
    farm.batch.cancel("a")
    assert list(farm.processes) == ["a.1"]


def test_the_fault_of_contact_strikes_at_listings_and_passes() -> None:
    farm = Farm(faults=Faults(batch_unreachable=1.0))
    farm.batch.begin()
    farm.run(31.0)
    assert farm.said == [SiteSeen(site="north", answers=False, message="no answer")]
    farm.injector.stop()
    farm.run(3600.0)
    assert farm.said[-1] == SiteSeen(site="north", answers=True)


def test_a_forgotten_job_is_not_listed_whether_it_runs_or_never_starts() -> None:
    farm = Farm(faults=Faults(batch_forgets=1.0))
    keys = [f"k{number}" for number in range(40)]
    farm.submit(*keys)
    farm.run(20.0)
    running = [name.removesuffix(".1") for name in farm.processes]
    assert 5 < len(running) < 35
    found = farm.listed()
    assert sorted(report.key for report in found if isinstance(report, Gone)) == sorted(keys)
    for process in list(farm.processes.values()):
        process.kill()
    assert farm.listed() == []
    assert (farm.batch.running, farm.batch.queued) == (0, 0)


def test_a_native_id_can_be_given_twice() -> None:
    farm = Farm(faults=Faults(batch_reuses_id=1.0))
    farm.submit("a", "b")
    first, second = farm.said
    assert isinstance(first, Submitted)
    assert isinstance(second, Submitted)
    assert first.native_id == second.native_id
    farm.run(20.0)
    farm.batch.cancel("b")
    assert list(farm.processes) == ["a.1"]


def test_a_job_can_be_started_twice_and_ends_with_its_last_process() -> None:
    farm = Farm(faults=Faults(batch_starts_twice=1.0))
    farm.submit("a")
    farm.run(400.0)
    assert farm.names == ["a.1", "a.2"]
    assert farm.batch.running == 1
    farm.processes["a.1"].kill()
    assert farm.listed() == []
    farm.processes["a.2"].kill()
    assert farm.listed() == [gone("a", "ended")]


def test_a_second_start_can_come_after_the_first_process_is_gone_but_not_after_a_cancel() -> None:
    farm = Farm(faults=Faults(batch_starts_twice=1.0))
    farm.submit("a", "b")
    farm.run(10.0)
    farm.processes["a.1"].kill()
    farm.batch.cancel("b")
    assert farm.listed() == [gone("b", "cancelled")]
    farm.run(400.0)
    assert farm.names == ["a.1", "b.1", "a.2"]


def test_a_site_that_goes_down_loses_what_runs_and_comes_back() -> None:
    farm = Farm()
    farm.submit("a")
    farm.run(5.0)
    farm.submit("b")
    farm.run(6.0)
    farm.batch.go_down(100.0)
    farm.submit("c")
    assert farm.killed == ["a.1"]
    farm.run(50.0)
    farm.batch.poll()
    assert farm.said[-1] == SiteSeen(site="north", answers=False, message="down")
    assert farm.names == ["a.1"]
    farm.run(51.0)
    assert farm.names == ["a.1", "b.1"]
    assert farm.listed() == [gone("a", "site-down")]


def test_a_site_can_lose_its_queue_when_it_goes_down() -> None:
    farm = Farm()
    farm.submit("a")
    farm.batch.go_down(100.0, keeps_queue=False)
    farm.run(200.0)
    assert farm.names == []
    assert farm.listed() == [gone("a", "site-down")]


def test_a_black_hole_opens_and_closes() -> None:
    farm = Farm()
    assert farm.batch.black_hole() == ""
    farm.batch.become_black_hole(10.0, "disk-full")
    assert farm.batch.black_hole() == "disk-full"
    farm.run(10.0)
    assert farm.batch.black_hole() == ""


@pytest.mark.parametrize("kind", ["site_down", "black_hole"])
def test_faults_of_sites_strike_at_listings(kind: str) -> None:
    farm = Farm(faults=Faults(**{kind: 1.0}))
    farm.submit("a")
    farm.batch.begin()
    farm.run(31.0)
    assert farm.injector.tried[kind] == 1
    assert farm.injector.fired[kind] == (kind == "site_down")  # nothing has fallen into a hole yet
    assert farm.batch.down == (kind == "site_down")
    assert bool(farm.batch.black_hole()) == (kind == "black_hole")
    assert farm.injector.fired[kind] == 1
    assert bool(farm.processes) == (kind == "black_hole")


def test_the_same_seed_starts_the_same_jobs_at_the_same_times() -> None:
    def life(seed: int) -> object:
        kinds = ("batch_unreachable", "batch_forgets", "batch_reuses_id", "batch_starts_twice", "site_down")
        farm = Farm(seed=seed, queue=Exponential(60.0), running_max=3, faults=Faults(**dict.fromkeys(kinds, 0.1)))
        farm.batch.begin()
        for number in range(50):
            farm.submit(f"k{number}")
            farm.run(20.0)
            for process in list(farm.processes.values())[:1]:
                process.kill()
        return farm.started, farm.said, farm.killed

    assert life(1) == life(1)
    assert life(1) != life(2)


def test_jobs_are_accepted_one_after_the_other_and_queue_from_then_on() -> None:
    farm = Farm(submission=Fixed(4.0))
    farm.submit("a", "b", "c")
    assert farm.said == []
    farm.run(4.0)
    assert [each.key for each in farm.said if isinstance(each, Submitted)] == ["a"]
    farm.submit("b")  # asked again while it is being accepted
    farm.run(100.0)
    assert [each.key for each in farm.said if isinstance(each, Submitted)] == ["a", "b", "c"]
    assert [at for at, _ in farm.started] == [14.0, 18.0, 22.0]
    farm.submit("d")
    farm.run(50.0)
    assert farm.started[-1][0] == 104.0 + 14.0


def test_a_job_that_is_cancelled_before_it_is_accepted_never_starts() -> None:
    farm = Farm(submission=Fixed(4.0))
    farm.submit("a", "b")
    farm.batch.cancel("b")
    farm.run(100.0)
    assert farm.names == ["a.1"]
    assert Gone(site="north", key="b", reason="cancelled") in farm.listed()


def test_a_listing_knows_no_job_that_is_not_accepted_yet() -> None:
    farm = Farm(submission=Fixed(4.0))
    farm.submit("a")
    farm.batch.relist()
    assert farm.listed() == []
    farm.run(5.0)
    farm.batch.relist()
    assert [each.key for each in farm.listed() if isinstance(each, Submitted)] == ["a"]


def test_a_job_that_is_accepted_while_nothing_answers_is_told_by_a_later_listing() -> None:
    farm = Farm(submission=Fixed(4.0))
    farm.submit("a")
    farm.batch.lose_contact(60.0)
    farm.run(30.0)
    assert farm.said == []
    farm.run(31.0)
    assert [each.key for each in farm.listed() if isinstance(each, Submitted)] == ["a"]


def test_some_jobs_never_leave_the_queue() -> None:
    farm = Farm(stuck_probability=0.5, queue_max=1000, running_max=1000)
    farm.submit(*(f"k{number}" for number in range(400)))
    farm.run(1e6)
    assert 150 < len(farm.started) < 250
    farm.batch.cancel(next(key for key in (f"k{n}" for n in range(400)) if f"{key}.1" not in farm.names))
    assert [each.reason for each in farm.listed() if isinstance(each, Gone)] == ["cancelled"]
