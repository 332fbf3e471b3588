"""The service's side of a site agent: what is wanted waits for it, and is repeated until something is heard of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from pilotage.model.exchange.operations import CancelSubmitted, FetchFile, RemoveFile, SubmitPilot
from pilotage.model.exchange.reports import (
    AnyReport,
    FileArrived,
    FileGone,
    FileNotFetched,
    Gone,
    Noticed,
    SiteAgentMessage,
    SiteAgentReply,
    SiteNoticed,
    SiteSeen,
    SubmissionFailed,
    Submitted,
)
from pilotage.model.sites.entry import SiteEntry
from pilotage.service.errors import NotRunning, Superseded
from pilotage.service.sites.agent_worker import (
    EFFECTS_MAX,
    FILE_EFFECTS_MAX,
    NOT_YET,
    TOO_OLD,
    AgentSettings,
    AgentSite,
)
from pilotage.service.sites.worker import STRAY_SECONDS
from tests.kit.pilots import wait_until

SECONDS = 10.0
LYON = "lyon"
_decode = msgspec.json.Decoder(SiteAgentReply).decode


class Tending:
    """Somebody who would start the agent."""

    def __init__(self) -> None:
        self.started = self.stopped = False
        self.complain: Any = None

    def start(self, *, heard_at: Any, complain: Any) -> None:
        self.started, self.heard_at, self.complain = True, heard_at, complain

    def stop(self) -> None:
        self.stopped = True

    def is_as_started(self, mark: str) -> bool:
        return mark in ("", "now")


class Watched:
    """Such a site, and what it reports."""

    def __init__(self, *, told: SiteSeen | None = None, **settings: Any) -> None:
        self.reports: list[AnyReport] = []
        self.expected: list[str] = []
        entry = SiteEntry(name=LYON, kind="slurm", started_by="agent")
        chosen = AgentSettings(entry=entry, prefix="p", **{"interval_seconds": 30.0, **settings})
        self.unknown: set[str] = set()
        self.site = AgentSite(
            chosen,
            report=self.reports.append,
            expected=lambda: self.expected,
            unknown=lambda keys: self.unknown & set(keys),
            unheard=lambda: self.expected[:1],
            last_report=told,
        )
        self.sequence = 0
        self.hears: SiteAgentReply | None = None

    def say(self, *reports: AnyReport, **said: Any) -> Future[bytes]:
        self.sequence += 1
        known = {} if self.hears is None else {"service": self.hears.service, "heard": self.hears.number}
        return self.site.exchange(
            SiteAgentMessage(
                **{"site": LYON, "agent": "a", "sequence": self.sequence, "reports": reports, **known, **said}
            )
        )

    def hear(self, answer: Future[bytes]) -> SiteAgentReply:
        self.hears = _decode(answer.result(SECONDS))
        return self.hears


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    made.site.start()
    yield made
    made.site.stop()


def submit(key: str) -> SubmitPilot:
    return SubmitPilot(site=LYON, key=key)


def test_an_agent_waits_until_something_is_wanted(watched: Watched) -> None:
    answer = watched.say()
    assert not answer.done()
    watched.expected = ["lyon-0"]
    watched.site.want(submit("lyon-1"))
    hears = watched.hear(answer)
    assert hears.effects == (submit("lyon-1"),)
    assert (hears.expected, hears.unheard) == (("lyon-0",), ("lyon-0",))
    assert (hears.sequence, hears.agent, hears.prefix, hears.interval_seconds) == (1, "a", "p", 30.0)
    assert hears.entry is not None
    assert hears.entry.kind == "slurm"


def test_an_agent_that_nothing_is_wanted_of_is_answered_after_an_interval_every_time() -> None:
    watched = Watched(interval_seconds=0.01, silent_seconds=3600.0)
    watched.site.start()
    try:
        for _ in range(3):
            assert watched.hear(watched.say()).effects == ()
    finally:
        watched.site.stop()


def test_what_is_wanted_is_repeated_until_something_is_heard_of_it_but_wakes_nobody_twice(watched: Watched) -> None:
    watched.site.want(submit("lyon-1"))
    watched.site.want(submit("lyon-2"))
    watched.hear(watched.say())
    waiting = watched.say()
    watched.site.want(submit("lyon-1"))  # the engine asks again
    assert not waiting.done()
    answer = watched.say(Submitted(site=LYON, key="lyon-1", native_id="7"))
    with pytest.raises(Superseded):
        waiting.result(SECONDS)
    assert watched.hear(answer).effects == (submit("lyon-2"),)
    assert watched.reports == [Submitted(site=LYON, key="lyon-1", native_id="7")]
    failed = SubmissionFailed(site=LYON, key="lyon-2", reason="bad-queue")
    assert watched.hear(watched.say(failed)).effects == ()


def test_a_cancellation_is_wanted_until_it_is_gone(watched: Watched) -> None:
    cancel = CancelSubmitted(site=LYON, key="lyon-1")
    watched.site.want(submit("lyon-1"))
    watched.site.want(cancel)
    assert watched.hear(watched.say()).effects == (submit("lyon-1"), cancel)
    assert watched.hear(watched.say(Submitted(site=LYON, key="lyon-1", native_id="7"))).effects == (cancel,)
    assert watched.hear(watched.say(Gone(site=LYON, key="lyon-1", reason="cancelled"))).effects == ()


def test_an_agent_that_has_all_that_fits_into_an_answer_waits_until_it_has_done_some_of_it(watched: Watched) -> None:
    effects = [submit(f"lyon-{number}") for number in range(EFFECTS_MAX + 1)]
    watched.site.want(*effects)
    assert watched.hear(watched.say()).effects == tuple(effects[:EFFECTS_MAX])
    with pytest.raises(TimeoutError):
        watched.say().result(0.2)  # nothing more will come, however long it is waited for
    answer = watched.say(Submitted(site=LYON, key="lyon-0", native_id="7"))
    assert watched.hear(answer).effects == tuple(effects[1:])


def test_what_is_there_and_nobody_has_known_for_a_while_is_to_be_ended() -> None:
    now = 100.0
    watched = Watched(interval_seconds=0.0, clock=lambda: now)
    watched.unknown = {"lyon-1"}
    watched.site.start()
    try:
        assert watched.hear(watched.say(there=("lyon-1", "lyon-2"))).effects == ()
        now += STRAY_SECONDS
        cancel = CancelSubmitted(site=LYON, key="lyon-1")
        assert watched.hear(watched.say(there=("lyon-1", "lyon-2"))).effects == (cancel,)
        assert watched.hear(watched.say()).effects == (cancel,)
        assert watched.hear(watched.say(Gone(site=LYON, key="lyon-1", reason="cancelled"))).effects == ()
    finally:
        watched.site.stop()


def test_an_agent_that_was_started_as_an_earlier_entry_said_is_told_to_leave_and_another_is_started() -> None:
    tending = Tending()
    watched = Watched(outpost=tending)
    watched.site.start()
    try:
        assert not watched.say(started_as="now").done()  # it waits, as usual
        assert not watched.say().done()  # so does one that somebody else started
        told = watched.hear(watched.say(started_as="before"))
        assert told.leave == "it is restarted, because the entry of its site has changed"
        wait_until(lambda: tending.heard_at() == float("-inf"))
    finally:
        watched.site.stop()


def test_an_agent_that_knows_another_service_is_told_everything(watched: Watched) -> None:
    watched.site.want(submit("lyon-1"))
    watched.hear(watched.say())
    assert watched.hear(watched.say(service="another", heard=1_000)).effects == (submit("lyon-1"),)


def test_nobody_speaks_for_another_site(watched: Watched) -> None:
    watched.hear(watched.say(Gone(site="paris", key="paris-1", reason="ended")))
    assert watched.reports == []


def test_a_silent_agent_is_told_of_once_and_again_when_it_speaks() -> None:
    watched = Watched(silent_seconds=0.05, interval_seconds=0.01)
    watched.site.start()
    try:
        wait_until(lambda: watched.reports)
        (seen,) = watched.reports
        assert isinstance(seen, SiteSeen)
        assert (seen.answers, "not heard" in seen.message) == (False, True)
        watched.hear(watched.say(SiteSeen(site=LYON, answers=True)))
        assert [each.answers for each in watched.reports if isinstance(each, SiteSeen)][:2] == [False, True]
    finally:
        watched.site.stop()


def test_an_agent_that_was_missed_without_knowing_it_is_believed_again_when_it_speaks() -> None:
    watched = Watched(silent_seconds=0.2, interval_seconds=0.01)
    watched.site.start()
    try:
        watched.hear(watched.say(SiteSeen(site=LYON, answers=True)))
        wait_until(lambda: watched.reports)
        watched.hear(watched.say())
        assert [each.answers for each in watched.reports if isinstance(each, SiteSeen)] == [False, True]
        watched.hear(watched.say(SiteSeen(site=LYON, answers=False, message="down")))
        watched.hear(watched.say())
        assert [each.answers for each in watched.reports if isinstance(each, SiteSeen)] == [False, True, False]
    finally:
        watched.site.stop()


def test_why_things_wait_is_told_once(watched: Watched) -> None:
    full = SiteSeen(site=LYON, answers=True, message="the batch system accepts no more now")
    for _ in range(3):
        watched.hear(watched.say(full))
    assert watched.reports == [full]
    watched.hear(watched.say(msgspec.structs.replace(full, message="another limit")))
    assert [each.message for each in watched.reports if isinstance(each, SiteSeen)][1:] == ["another limit"]
    watched.hear(watched.say(SiteSeen(site=LYON, answers=True)))
    assert watched.reports[2:] == [SiteSeen(site=LYON, answers=True)]  # nothing waits any more
    refused = SiteSeen(site=LYON, answers=False, message="sbatch: connect failure")
    for _ in range(2):
        watched.hear(watched.say(refused))
    assert watched.reports[3:] == [msgspec.structs.replace(refused, trouble="connection-refused")]


def test_an_agent_that_waits_when_the_service_stops_is_told_to_ask_again(watched: Watched) -> None:
    answer = watched.say()
    watched.site.stop()
    with pytest.raises(NotRunning):
        answer.result(SECONDS)
    with pytest.raises(NotRunning):
        watched.say().result(SECONDS)


def test_a_service_that_stops_waits_until_the_agent_has_heard_what_is_to_be_ended(watched: Watched) -> None:
    waiting = watched.say()
    watched.site.want(CancelSubmitted(site=LYON, key="lyon-1"))
    over = threading.Thread(target=lambda: watched.site.withdraw(patience_seconds=SECONDS))
    over.start()
    assert [effect.key for effect in watched.hear(waiting).effects] == ["lyon-1"]
    assert over.is_alive()  # it was told, and may not have heard it
    watched.say()
    over.join(SECONDS)
    assert (over.is_alive(), watched.site.left_behind) == (False, "")


def test_an_agent_that_is_not_heard_is_not_waited_for_and_what_it_was_not_told_is_said() -> None:
    now = [1000.0]
    watched = Watched(clock=lambda: now[0])
    watched.site.start()
    try:
        watched.say()
        now[0] += 61.0  # two intervals, and more
        watched.hear(watched.say(Gone(site=LYON, key="lyon-9", reason="ended")))
        now[0] += 61.0
        watched.site.want(*(CancelSubmitted(site=LYON, key=f"lyon-{n}") for n in (1, 2)))
        watched.site.withdraw(patience_seconds=SECONDS)  # by a clock that stands still: it would wait for ever
        assert watched.site.left_behind.startswith(
            "site lyon: 2 batch jobs are not cancelled: its agent did not poll in time"
        )
    finally:
        watched.site.stop()


def test_pilots_get_a_token_where_theirs_ends_sooner() -> None:
    made: list[int] = []

    def make() -> str:
        made.append(1)
        return "a.eyJleHAiOjQxMDI0NDQ4MDB9.c"  # it says that it ends in the year 2100

    watched = Watched(make_token=make, interval_seconds=0.0)
    watched.site.start()
    try:
        assert watched.hear(watched.say(token_until=0.0)).token.startswith("a.")
        assert watched.hear(watched.say(token_until=4102444800.0)).token == ""
        assert len(made) == 1
    finally:
        watched.site.stop()


def test_who_tends_the_agent_is_started_and_stopped_and_its_complaints_are_told() -> None:
    tending = Tending()
    watched = Watched(outpost=tending, interval_seconds=0.0)
    watched.site.start()
    try:
        assert tending.started
        assert tending.heard_at() == float("-inf")
        tending.complain("ssh login: no route to host")
        assert watched.reports == [SiteSeen(site=LYON, answers=False, message="ssh login: no route to host")]
        watched.hear(watched.say())
        assert tending.heard_at() > 0
    finally:
        watched.site.stop()
    assert tending.stopped


def test_any_number_of_threads_may_want_things(watched: Watched) -> None:
    def want(first: int) -> None:
        for number in range(first, first + 50):
            watched.site.want(submit(f"lyon-{number}"))

    threads = [threading.Thread(target=want, args=(first,)) for first in (0, 25, 100)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(watched.hear(watched.say()).effects) == 125


def test_what_the_agent_notices_is_passed_on(watched: Watched) -> None:
    noticed = SiteNoticed(
        site=LYON, things=(Noticed(key="lyon-1", state="held", words="QOSMaxWallDurationPerJobLimit"),)
    )
    watched.hear(watched.say(noticed))
    assert watched.reports == [noticed]


@pytest.mark.parametrize("told", [None, SiteSeen(site=LYON, answers=False, message=NOT_YET)])
def test_who_waits_for_a_silent_agent_is_not_woken_before_somebody_comes(told: SiteSeen | None) -> None:
    now: list[float] = [1000.0]
    waits: list[float | None] = []
    silent = Watched(clock=lambda: now[0], told=told)

    class Passing(threading.Condition):
        """Time passes as soon as somebody waits; the site is stopped when it waits for ever, or again and again."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            now[0] += timeout or 0.0
            silent.site._stopping = timeout is None or len(waits) > 10
            return False

    silent.site._change = Passing()
    silent.site._run()
    message = "the site agent was not heard for 45 s"
    assert [(each.answers, each.message) for each in silent.reports if isinstance(each, SiteSeen)] == [(False, message)]
    assert waits == [45.0, None]


# --- files for the cache of the site -----------------------------------------------------------------------------------

CACHE = "/home/farm/cache"


def fetch(key: str) -> FetchFile:
    return FetchFile(site=LYON, key=key, locator="s3://bucket/a", name=f"ab/{key}")


def test_orders_for_files_are_repeated_until_the_agent_has_told_of_them(watched: Watched) -> None:
    removal = RemoveFile(site=LYON, key="r-1", name="ab/old")
    watched.site.want(fetch("f-1"), fetch("f-2"), removal)
    assert watched.hear(watched.say(cache=CACHE)).effects == (fetch("f-1"), fetch("f-2"), removal)
    assert watched.site.cache == CACHE
    told = (
        FileArrived(site=LYON, key="f-1", size_bytes=1, sha256="0" * 64),
        FileNotFetched(site=LYON, key="f-2", reason="disk-full", message="full"),
        FileGone(site=LYON, key="r-1"),
    )
    assert watched.hear(watched.say(*told[:2], cache=CACHE)).effects == (removal,)
    assert watched.hear(watched.say(told[2], cache=CACHE)).effects == ()
    assert tuple(watched.reports) == told


def test_an_agent_of_an_earlier_release_gets_no_orders_for_files_and_that_is_told(watched: Watched) -> None:
    watched.site.want(fetch("f-1"), submit("lyon-1"), RemoveFile(site=LYON, key="r-1", name="ab/old"))
    assert watched.hear(watched.say()).effects == (submit("lyon-1"),)
    assert watched.reports == [FileNotFetched(site=LYON, key="f-1", reason="platform-failure", message=TOO_OLD)]
    later = watched.say()
    watched.site.want(fetch("f-2"), submit("lyon-2"))
    assert watched.hear(later).effects == (submit("lyon-1"), submit("lyon-2"))
    watched.site.want(fetch("f-3"))
    effects = watched.hear(watched.say(cache=CACHE)).effects  # it was started again from the present file
    assert [each.key for each in effects] == ["lyon-1", "r-1", "f-2", "lyon-2", "f-3"]


def test_many_files_do_not_keep_pilots_from_being_submitted(watched: Watched) -> None:
    files = [fetch(f"f-{number}") for number in range(EFFECTS_MAX + 10)]
    watched.site.want(*files)
    watched.site.want(submit("lyon-1"))
    effects = watched.hear(watched.say(cache=CACHE)).effects
    assert effects == (*files[:FILE_EFFECTS_MAX], submit("lyon-1"))
    waiting = watched.say(cache=CACHE)
    assert not waiting.done()
    arrived = FileArrived(site=LYON, key="f-0", size_bytes=1, sha256="0" * 64)
    effects = watched.hear(watched.say(arrived, cache=CACHE)).effects
    assert effects == (*files[1 : FILE_EFFECTS_MAX + 1], submit("lyon-1"))
