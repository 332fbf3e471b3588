"""Who acts at each site, while sites come, go and are reached in other ways."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import pytest

from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import CancelSubmitted, Kill, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import AnyReport, Gone, Noticed, SiteAgentMessage, SiteNoticed, SiteSeen, Submitted
from pilotage.model.resources import Demand
from pilotage.model.sites.entry import SiteEntry
from pilotage.ports import SeenAtSite, SiteBusy, SiteUnreachable
from pilotage.service.errors import UnknownSite
from pilotage.service.sites import worker
from pilotage.service.sites.agent_worker import NOT_YET, AgentSettings
from pilotage.service.sites.pool import (
    LOOKS_MAX,
    SiteConnection,
    SiteWorkers,
    expected_at,
    has_activity,
    split_connections,
)
from pilotage.service.sites.worker import unknown_at
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, site

WAIT_SECONDS = 60.0


class Batch:
    """A batch system that takes everything, and nothing once it is closed."""

    look_seconds = 0.01

    def __init__(self, *, silent: bool = False) -> None:
        self.closed = False
        self.silent = silent
        self.room = True
        self.noticed: list[Noticed] = []
        self.cancelled: queue.Queue[str] = queue.Queue()

    def submit_pilots(self, key: str, *, count: int = 1) -> list[str]:
        assert not self.closed
        if not self.room:
            raise SiteBusy("the queue is full")
        return [f"{key}+{offset}" for offset in range(count)]

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        return key

    def cancel(self, *keys: str) -> None:
        """Nothing is there."""
        for key in keys:
            self.cancelled.put(key)

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        if self.silent:
            raise SiteUnreachable("no route to host", subject="lyon")
        return {}

    def notice(self, unheard: Collection[str]) -> list[Noticed]:
        return self.noticed if unheard else []

    def close(self) -> None:
        self.closed = True


class Heard(queue.Queue[AnyReport]):
    """What is reported, but for that a site was not heard yet, and then was, as everyone is at first."""

    def __init__(self) -> None:
        super().__init__()
        self.unheard: set[str] = set()

    def take(self, report: AnyReport) -> None:
        if isinstance(report, SiteSeen) and report.message == NOT_YET:
            self.unheard.add(report.site)
            return
        at_first = report.site in self.unheard
        self.unheard.discard(report.site)
        if not at_first or report != SiteSeen(site=report.site, answers=True):
            self.put(report)


@contextmanager
def working(**connections: SiteConnection) -> Iterator[tuple[SiteWorkers, Heard]]:
    heard = Heard()
    workers = SiteWorkers(connections, report=heard.take, expected=lambda _: [])
    workers.start()
    try:
        yield workers, heard
    finally:
        workers.stop()


def news(heard: Heard) -> AnyReport:
    """What is reported next, but for that nothing is noticed at a site which is reached in another way."""
    while True:
        told = heard.get(timeout=WAIT_SECONDS)
        if told != SiteNoticed(site="lyon"):
            return told


def seen_of(heard: Heard) -> SiteSeen:
    told = news(heard)
    assert isinstance(told, SiteSeen)
    return told


def test_what_is_wanted_is_done_at_its_site_and_nowhere_else() -> None:
    with working(lyon=Batch(), farm=Batch()) as (workers, heard):
        workers.want("farm", [SubmitPilot(site="farm", key="farm-1")])
        workers.want("nowhere", [SubmitPilot(site="nowhere", key="nowhere-1")])
        told = heard.get(timeout=WAIT_SECONDS)
        assert isinstance(told, Submitted)
        assert (told.site, told.key, told.native_id) == ("farm", "farm-1", "farm-1+0")


def test_of_every_site_it_is_told_that_it_was_not_heard_until_it_answers() -> None:
    told: queue.Queue[AnyReport] = queue.Queue()
    agent = AgentSettings(entry=SiteEntry(name="oslo", kind="slurm", started_by="agent"))
    workers = SiteWorkers({"lyon": Batch()}, report=told.put, expected=lambda _: [])
    workers.start()
    try:
        seen = [told.get(timeout=WAIT_SECONDS) for _ in range(2)]
        not_yet = SiteSeen(site="lyon", answers=False, message=NOT_YET)
        assert seen == [not_yet, SiteSeen(site="lyon", answers=True)]
        workers.put("lyon", Batch())
        assert told.get(timeout=WAIT_SECONDS) == SiteNoticed(site="lyon")  # that it answers is known
        workers.put("oslo", agent)
        assert told.get(timeout=WAIT_SECONDS) == SiteSeen(site="oslo", answers=False, message=NOT_YET)
        workers.exchange(SiteAgentMessage(site="oslo", agent="a", sequence=1))
        assert told.get(timeout=WAIT_SECONDS) == SiteSeen(site="oslo", answers=True)
        workers.remove("lyon")
        workers.put("lyon", Batch())
        assert [told.get(timeout=WAIT_SECONDS) for _ in range(2)] == seen
    finally:
        workers.stop()


def test_another_way_takes_the_place_of_the_one_before_which_is_closed() -> None:
    first, second = Batch(), Batch()
    with working(lyon=first) as (workers, heard):
        workers.put("lyon", second)
        assert (first.closed, second.closed) == (True, False)
        workers.want("lyon", [SubmitPilot(site="lyon", key="lyon-1")])
        assert isinstance(news(heard), Submitted)
        workers.put("oslo", Batch())
        assert sorted(workers.names) == ["lyon", "oslo"]
        workers.remove("lyon")
        assert (second.closed, workers.names) == (True, ["oslo"])


def test_what_was_wanted_of_a_way_and_is_not_done_is_wanted_of_the_next() -> None:
    unreached, settings = Batch(silent=True), AgentSettings(entry=SiteEntry(name="lyon", kind="slurm"))
    with working(lyon=unreached) as (workers, heard):
        assert isinstance(heard.get(timeout=WAIT_SECONDS), SiteSeen)
        assert not workers.owes("lyon")
        workers.want("lyon", [CancelSubmitted(site="lyon", key="lyon-1"), SubmitPilot(site="lyon", key="lyon-2")])
        assert workers.owes("lyon")
        workers.put("lyon", settings)
        assert workers.owes("lyon")
        reached = Batch()
        workers.put("lyon", reached)
        assert reached.cancelled.get(timeout=WAIT_SECONDS) == "lyon-1"
        told = [news(heard) for _ in range(3)]
        assert SiteSeen(site="lyon", answers=True) in told
        assert {(type(each), each.key) for each in told if isinstance(each, (Submitted, Gone))} == {
            (Submitted, "lyon-2"),
            (Gone, "lyon-1"),
        }
        assert unreached.cancelled.empty()
        assert not workers.owes("lyon")


def test_what_a_site_said_last_is_kept_until_all_is_well() -> None:
    batch = Batch()
    batch.silent = True
    with working(lyon=batch) as (workers, heard):
        seen = heard.get(timeout=WAIT_SECONDS)
        assert isinstance(seen, SiteSeen)
        assert (seen.answers, "no route to host" in workers.last_error("lyon"), workers.last_error("oslo")) == (
            False,
            True,
            "",
        )
        batch.silent = False
        assert heard.get(timeout=WAIT_SECONDS) == SiteSeen(site="lyon", answers=True)
        assert workers.last_error("lyon") == ""


def test_a_site_that_was_silent_answers_when_another_way_to_it_does_and_what_it_said_is_forgotten() -> None:
    with working(lyon=Batch(silent=True)) as (workers, heard):
        assert not seen_of(heard).answers
        workers.put("lyon", Batch())
        assert seen_of(heard) == SiteSeen(site="lyon", answers=True)
        assert workers.last_error("lyon") == ""
        workers.put("lyon", Batch())
        workers.want("lyon", [SubmitPilot(site="lyon", key="lyon-1")])
        assert isinstance(news(heard), Submitted)  # nothing is said anew of one that answered before


def test_a_site_whose_agent_was_not_heard_answers_when_the_service_reaches_it_and_the_other_way_round() -> None:
    silent = AgentSettings(entry=SiteEntry(name="lyon", kind="slurm", started_by="agent"), silent_seconds=0.05)
    with working(lyon=silent) as (workers, heard):
        assert "not heard" in seen_of(heard).message
        workers.put("lyon", Batch())
        assert seen_of(heard) == SiteSeen(site="lyon", answers=True)
        workers.put("lyon", Batch(silent=True))
        assert not seen_of(heard).answers
        workers.put("lyon", AgentSettings(entry=silent.entry, interval_seconds=0.01))
        says = SiteAgentMessage(site="lyon", agent="a", sequence=1, reports=(SiteSeen(site="lyon", answers=True),))
        workers.exchange(says).result(WAIT_SECONDS)
        assert seen_of(heard) == SiteSeen(site="lyon", answers=True)
        assert workers.last_error("lyon") == ""


def test_a_site_that_was_full_is_not_called_so_by_another_way_before_that_says_so() -> None:
    full = Batch()
    full.room = False
    with working(lyon=full) as (workers, heard):
        workers.want("lyon", [SubmitPilot(site="lyon", key="lyon-1")])
        assert seen_of(heard) == SiteSeen(site="lyon", answers=True, message="the queue is full")
        workers.want("lyon", [CancelSubmitted(site="lyon", key="lyon-1")])
        assert isinstance(news(heard), Gone)
        workers.put("lyon", Batch())
        assert seen_of(heard) == SiteSeen(site="lyon", answers=True)
        assert workers.last_error("lyon") == ""


def test_the_agent_of_a_site_is_heard_where_there_is_one() -> None:
    settings = AgentSettings(entry=SiteEntry(name="far", kind="slurm", started_by="agent"), interval_seconds=0.01)
    with working(lyon=Batch(), far=settings) as (workers, _):
        workers.want("far", [SubmitPilot(site="far", key=f"far-{number}") for number in (1, 2)])
        told = workers.exchange(SiteAgentMessage(site="far", agent="a", sequence=1)).result(WAIT_SECONDS)
        assert (told.count(b"far-1"), told.count(b"far-2")) == (1, 1)
        for name in ("lyon", "oslo"):
            with pytest.raises(UnknownSite):
                workers.exchange(SiteAgentMessage(site=name, agent="a", sequence=1))


def test_ways_are_told_apart() -> None:
    batch, settings = Batch(), AgentSettings(entry=SiteEntry(name="far", kind="slurm"))
    assert split_connections({"lyon": batch, "far": settings}) == ({"lyon": batch}, {"far": settings})


def test_pilots_and_bound_attempts_are_expected_from_when_the_batch_system_took_them_until_they_are_over() -> None:
    with Small(site("a", mode="bound"), site("b")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        assert (expected_at("a", small.engine), has_activity("a", small.engine)) == ([], True)
        small.step(Submitted(site="a", key=effect.key, native_id="42"))
        assert expected_at("a", small.engine) == expected_at("a", small.restarted().engine) == [effect.key]
        agent = small.bound(effect)
        assert expected_at("a", small.engine) == [effect.key]
        agent.succeed("1.1.1")
        assert expected_at("a", small.engine) == []
        assert (expected_at("b", small.engine), has_activity("b", small.engine)) == ([], False)
        agent.unread.clear()


def test_what_the_engine_wants_is_known_from_when_it_asks_until_it_is_over_and_nothing_else_is() -> None:
    with Small(site("a", mode="bound"), site("b")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        assert unknown_at("a", [effect.key, "a-77"], small.engine) == ["a-77"]  # the site has not said that it took it
        assert unknown_at("b", [effect.key], small.engine) == [effect.key]
        assert unknown_at("nowhere", [effect.key], small.engine) == []  # nobody can tell
        small.step(Submitted(site="a", key=effect.key, native_id="42"))
        assert unknown_at("a", [effect.key], small.restarted().engine) == []
        small.ask(Kill(job="j"))
        assert small.take(CancelSubmitted) == [CancelSubmitted(site="a", key=effect.key)]
        assert unknown_at("a", [effect.key], small.restarted().engine) == [effect.key]


def test_a_pilot_is_expected_at_its_site() -> None:
    with Small(site("a")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitPilot)
        assert expected_at("a", small.engine) == []
        small.step(Submitted(site="a", key=effect.key, native_id="42"))
        assert expected_at("a", small.engine) == [effect.key]
        assert expected_at("nowhere", small.engine) == []


class Looked(Batch):
    """A batch system that is slow to look at; it counts how many such are looked at at once."""

    now = 0
    most = 0
    guard = threading.Lock()

    def __init__(self, hangs: threading.Event | None = None) -> None:
        super().__init__()
        self.looked = threading.Event()
        self._hangs = hangs

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        with Looked.guard:
            Looked.now += 1
            Looked.most = max(Looked.most, Looked.now)
        if self._hangs is not None:
            self._hangs.wait(WAIT_SECONDS)
        with Looked.guard:
            Looked.now -= 1
        self.looked.set()
        return {}

    def close(self) -> None:
        super().close()
        if self._hangs is not None:
            self._hangs.set()  # the call is broken off


def test_hundreds_of_sites_are_looked_at_a_few_at_once() -> None:
    Looked.now = Looked.most = 0
    sites = [Looked() for _ in range(300)]
    with working(**{f"s{number}": each for number, each in enumerate(sites)}):
        for each in sites:
            assert each.looked.wait(WAIT_SECONDS)
    assert 0 < Looked.most <= LOOKS_MAX


def test_sites_that_hang_hold_up_neither_the_others_nor_the_end() -> None:
    hanging = [Looked(threading.Event()) for _ in range(2 * LOOKS_MAX)]
    plain = Looked()
    connections = {f"s{number}": each for number, each in enumerate(hanging)}
    with working(**connections, plain=plain) as (workers, heard):
        assert plain.looked.wait(WAIT_SECONDS)
        for number in range(20):  # what is wanted does not wait for the next look
            workers.want("plain", [SubmitPilot(site="plain", key=f"plain-{number}")])
            assert isinstance(heard.get(timeout=WAIT_SECONDS), Submitted)
        begun = time.monotonic()
    assert time.monotonic() - begun < len(hanging) * worker.STOP_SECONDS / 4  # not one after the other


def test_what_could_not_be_withdrawn_is_told_but_for_what_was_never_submitted() -> None:
    with working(lyon=Batch(silent=True)) as (workers, heard):
        assert isinstance(heard.get(timeout=WAIT_SECONDS), SiteSeen)
        submitted = SubmitPilot(site="lyon", key="lyon-2")
        workers.want("lyon", [*(CancelSubmitted(site="lyon", key=f"lyon-{n}") for n in (1, 2, 3)), submitted])
    told = "site lyon: 2 batch jobs are not cancelled: the site does not answer; the next service cancels what is left"
    assert workers.left_behind == [told]


class Queue(Batch):
    """A batch system that has what was submitted to it, and nothing else."""

    def __init__(self, *there: str) -> None:
        super().__init__()
        self.there = {*there}

    def cancel(self, *keys: str) -> None:
        super().cancel(*keys)
        self.there.difference_update(keys)

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        return {key: SeenAtSite(native_id="1", ended=False) for key in self.there}


def test_what_was_submitted_to_another_batch_system_before_is_ended_there_and_not_missed_at_the_new_one() -> None:
    heard, expected = Heard(), ["lyon-1", "lyon-2"]
    workers = SiteWorkers({"lyon": Queue(*expected)}, report=heard.take, expected=lambda _: [*expected])
    former, current = Queue(*expected), Queue()
    workers.start()
    try:
        workers.put("lyon", current, former=former)
        expected.remove("lyon-1")  # it is withdrawn
        workers.want("lyon", [CancelSubmitted(site="lyon", key="lyon-1"), SubmitPilot(site="lyon", key="lyon-3")])
        assert former.cancelled.get(timeout=WAIT_SECONDS) == "lyon-1"
        told = [news(heard), news(heard)]
        assert {(type(each), each.key) for each in told if isinstance(each, (Submitted, Gone))} == {
            (Submitted, "lyon-3"),
            (Gone, "lyon-1"),
        }
        assert current.cancelled.empty()
        workers.release_formers()
        assert not former.closed  # a pilot of ours still runs there
        former.there.clear()
        assert news(heard) == Gone(site="lyon", key="lyon-2", reason="vanished")
        expected.remove("lyon-2")
        workers.release_formers()
        assert (former.closed, current.closed) == (True, False)
    finally:
        workers.stop()


def test_a_batch_system_of_before_that_does_not_answer_says_nothing_of_the_site() -> None:
    heard = Heard()
    workers = SiteWorkers({"lyon": Queue("lyon-1")}, report=heard.take, expected=lambda _: ["lyon-1"])
    former = Batch(silent=True)
    workers.start()
    workers.put("lyon", Batch(), former=former)
    workers.want("lyon", [CancelSubmitted(site="lyon", key="lyon-1"), SubmitPilot(site="lyon", key="lyon-2")])
    assert isinstance(news(heard), Submitted)
    assert workers.owes("lyon")
    workers.stop()
    told = "site lyon: 1 batch job is not cancelled: the site does not answer; the next service cancels what is left"
    assert (workers.left_behind, workers.last_error("lyon"), former.closed) == ([told], "", True)
