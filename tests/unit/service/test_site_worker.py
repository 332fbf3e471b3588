"""The worker of a site: what is wanted is done there in order, what is seen is reported, and a bad day ends nothing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import pytest

from pilotage.agent.batch import element_key
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import CancelSubmitted, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import AnyReport, Gone, Noticed, SiteNoticed, SiteSeen, SubmissionFailed, Submitted
from pilotage.model.resources import Demand
from pilotage.ports import SeenAtSite, SiteBusy, SiteUnreachable, SubmissionRefused
from pilotage.service.sites.worker import STRAY_SECONDS, AtSite, SiteWorker
from tests.kit.pilots import wait_until

Result = TypeVar("Result")
WAIT_SECONDS = 60.0
SUBMISSION_SECONDS = 6.0  # that each call takes, by the clock of the site
REF = AttemptRef("j", "1.1.1", 1)


def taken(key: str, *, together: int = 1) -> Submitted:
    """The site took something, by a call that took so many."""
    return Submitted(site="here", key=key, native_id=f"native-{key}", seconds=SUBMISSION_SECONDS / together)


class FakeSite:
    """A batch system that does as the test says, and tells what it was asked to do."""

    def __init__(self) -> None:
        self.did: queue.Queue[str] = queue.Queue()
        self.there: dict[str, SeenAtSite] = {}
        self.fault: Exception | None = None
        self.room: int | None = None  # how many more pilots it takes; none: any number
        self.looks = 0
        self.looked = threading.Condition()
        self.closed = False
        self.noticed: list[Noticed] = []
        self.asked_of: list[list[str]] = []
        self.now = 100.0

    @property
    def look_seconds(self) -> float:
        return 0.01

    def submit_pilots(self, key: str, *, count: int = 1) -> list[str]:
        taken = count if self.room is None else min(count, self.room)
        if not taken:
            raise SiteBusy("the queue is full")
        self.now += SUBMISSION_SECONDS
        self._do(f"pilot {key}" if count == 1 else f"{count} pilots from {key}")
        keys = [element_key(key, offset) or key for offset in range(taken)]
        self.there.update((each, SeenAtSite(native_id=f"native-{each}")) for each in keys)
        self.room = None if self.room is None else self.room - taken
        return [f"native-{each}" for each in keys]

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        self.now += SUBMISSION_SECONDS
        self._do(f"attempt {key} {ref.package}")
        return f"native-{key}"

    def cancel(self, *keys: str) -> None:
        self._do(f"cancel {' '.join(keys)}")

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
        if isinstance(self.fault, SiteUnreachable | RuntimeError):
            raise self.fault
        return dict(self.there)

    def notice(self, unheard: Collection[str]) -> list[Noticed]:
        self.asked_of.append(sorted(unheard))
        return [each for each in self.noticed if each.key in unheard]

    def close(self) -> None:
        self.closed = True

    def _do(self, what: str) -> None:
        if self.fault is not None:
            raise self.fault
        self.did.put(what)

    def look_twice(self) -> None:
        """Wait until it was looked at anew, from the beginning to the end."""
        with self.looked:
            enough = self.looks + 2
            assert self.looked.wait_for(lambda: self.looks >= enough, WAIT_SECONDS)


class Work:
    """A worker with its site, and what it reports."""

    def __init__(self) -> None:
        self.site = FakeSite()
        self.reports: queue.Queue[AnyReport] = queue.Queue()
        self.expected: set[str] = set()
        self.unknown: set[str] = set()
        self.unheard: set[str] = set()
        self.asked_unheard = 0
        self.worker = SiteWorker(
            "here",
            self.site,
            report=self.reports.put,
            expected=lambda: set(self.expected),
            unknown=lambda keys: self.unknown & set(keys),
            unheard=self.ask_unheard,
            busy_seconds=0.02,
            clock=lambda: self.site.now,
        )

    def ask_unheard(self) -> set[str]:
        self.asked_unheard += 1
        return set(self.unheard)

    def told(self) -> AnyReport:
        return self.reports.get(timeout=WAIT_SECONDS)


@contextmanager
def started() -> Iterator[Work]:
    work = Work()
    work.worker.start()
    try:
        yield work
    finally:
        work.worker.stop()


def test_what_is_wanted_is_done_in_order_and_its_native_id_reported() -> None:
    with started() as work:
        work.worker.want(SubmitPilot(site="here", key="a"))
        work.worker.want(SubmitAttempt(site="here", key="b", ref=REF, demand=Demand()))
        work.worker.want(CancelSubmitted(site="here", key="c"))
        assert [work.told(), work.told()] == [
            taken("a"),
            taken("b"),
        ]
        assert [work.site.did.get(timeout=WAIT_SECONDS) for _ in range(3)] == ["pilot a", "attempt b 1.1.1", "cancel c"]


class Telling(FakeSite):
    """A batch system that tells its version, or fails to."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = False
        self.told = 0

    def scheduler(self) -> str:
        self.told += 1
        if self.silent:
            raise SiteUnreachable("no answer")
        return "slurm 22.05.8"


@pytest.mark.parametrize("silent", [False, True])
def test_the_version_of_a_batch_system_is_asked_for_once_when_something_was_submitted(silent: bool) -> None:  # noqa: FBT001
    work = Work()
    site = Telling()
    site.silent = silent
    work.worker = SiteWorker("here", site, report=work.reports.put, expected=set, clock=lambda: site.now)
    work.worker.start()
    assert (site.told, work.worker.scheduler) == (0, "")
    for key in "ab":
        work.worker.want(SubmitPilot(site="here", key=key))
        assert work.told() == taken(key)
    work.worker.stop()
    assert (site.told, work.worker.scheduler) == (1, "" if silent else "slurm 22.05.8")


def test_what_the_site_does_not_take_is_told_with_its_reason_and_the_next_is_done() -> None:
    with started() as work:
        work.site.fault = SubmissionRefused("no such queue", reason="platform-failure")
        work.worker.want(SubmitPilot(site="here", key="a"))
        refused = work.told()
        assert isinstance(refused, SubmissionFailed)
        assert (refused.key, refused.reason, "no such queue" in refused.message) == ("a", "platform-failure", True)
        assert (refused.trouble, refused.seconds) == ("failed", SUBMISSION_SECONDS)
        work.site.fault = None
        work.worker.want(SubmitPilot(site="here", key="b"))
        assert work.told() == taken("b")


@pytest.mark.parametrize("fault", [SiteUnreachable("no route"), RuntimeError("surprise")])
def test_a_site_that_fails_is_told_once_and_what_was_wanted_is_done_when_it_answers(fault: Exception) -> None:
    with started() as work:
        work.site.fault = fault
        silent = work.told()
        assert isinstance(silent, SiteSeen)
        assert not silent.answers
        assert str(fault) in silent.message
        work.worker.want(SubmitPilot(site="here", key="a"))
        work.site.look_twice()
        assert work.reports.empty()
        assert work.site.did.empty()
        work.site.fault = None
        assert [work.told(), work.told()] == [
            taken("a"),
            SiteSeen(site="here", answers=True),
        ]


@pytest.mark.parametrize(
    "message, trouble",
    [
        ("ssh login: connect to host login port 22: Connection refused", "connection-refused"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "connection-refused"),
        ("ssh login: connect to host login port 22: Connection timed out", "connection-timed-out"),
        ("ssh login: no answer within 60 s", "connection-timed-out"),
        ("squeue: error: Socket timed out on send/recv operation", "connection-timed-out"),
        ("ssh login: Permission denied (publickey)", None),
    ],
)
def test_why_a_site_is_not_reached_is_told_with_it(message: str, trouble: str | None) -> None:
    with started() as work:
        work.site.fault = SiteUnreachable(message)
        assert work.told() == SiteSeen(site="here", answers=False, message=message, trouble=trouble)  # type: ignore[arg-type]


def test_what_is_asked_for_again_and_again_of_a_site_that_does_not_answer_waits_there_once() -> None:
    work = Work()
    for _ in range(100):
        work.worker.want(SubmitPilot(site="here", key="a"), CancelSubmitted(site="here", key="b"))
        work.worker.want(SubmitPilot(site="here", key="b"))
    assert [(type(each), each.key) for each in work.worker.left()] == [
        (SubmitPilot, "a"),
        (CancelSubmitted, "b"),
        (SubmitPilot, "b"),
    ]


def test_what_ended_and_what_is_missing_is_reported_gone() -> None:
    work = Work()
    work.site.there = {
        "ended": SeenAtSite(native_id="1", ended=True, reason="wall-time", stderr="last words"),
        "quiet": SeenAtSite(native_id="2", ended=True),
        "runs": SeenAtSite(native_id="3"),
    }
    work.expected = {"runs", "lost"}
    work.worker.start()
    found = {work.told() for _ in range(3)}
    work.worker.stop()
    assert found == {
        Gone(site="here", key="ended", reason="wall-time", stderr="last words"),
        Gone(site="here", key="quiet", reason="ended"),
        Gone(site="here", key="lost", reason="vanished"),
    }


def test_what_was_cancelled_is_gone_when_it_is_not_there_and_that_is_told_once() -> None:
    with started() as work:
        work.site.there = {"a": SeenAtSite(native_id="1")}
        work.worker.want(CancelSubmitted(site="here", key="a"))
        assert work.site.did.get(timeout=WAIT_SECONDS) == "cancel a"
        work.site.look_twice()
        assert work.reports.empty()
        work.site.there = {}
        assert work.told() == Gone(site="here", key="a", reason="cancelled")
        work.site.look_twice()
        assert work.reports.empty()


def test_what_nobody_has_known_for_a_while_is_ended_and_nothing_else() -> None:
    with started() as work:
        work.unknown = {"stray", "young"}
        work.site.there = {key: SeenAtSite(native_id=key) for key in ("stray", "ours")}
        work.site.look_twice()
        work.site.now += STRAY_SECONDS - 1.0
        work.site.there = {**work.site.there, "young": SeenAtSite(native_id="7")}
        work.site.look_twice()
        assert work.site.did.empty()
        work.site.now += 1.0
        assert work.site.did.get(timeout=WAIT_SECONDS) == "cancel stray"
        work.site.look_twice()
        assert work.site.did.empty()  # once
        work.unknown = set()  # it was on its way
        work.site.look_twice()
        work.site.now += STRAY_SECONDS
        work.site.look_twice()
        assert work.site.did.empty()


def test_stopped_it_lets_go_of_the_site_and_leaves_there_what_runs() -> None:
    with started() as work:
        work.worker.want(SubmitPilot(site="here", key="a"))
        work.told()
    assert work.site.closed
    assert list(work.site.there) == ["a"]
    unstarted = Work()
    unstarted.worker.stop()
    assert unstarted.site.closed


def test_pilots_whose_keys_follow_each_other_are_asked_for_by_one_call() -> None:
    work = Work()
    keys = ["here-8", "here-9", "here-10", "here-12", "there-13"]
    work.worker.want(*(SubmitPilot(site="here", key=key) for key in keys))
    work.worker.want(CancelSubmitted(site="here", key="x-1"), CancelSubmitted(site="here", key="y-7"))
    work.worker.start()
    told = [work.told() for _ in keys]
    work.worker.stop()
    assert told == [taken(key, together=3 if key in keys[:3] else 1) for key in keys]
    did = [work.site.did.get_nowait() for _ in range(work.site.did.qsize())]
    assert did == ["3 pilots from here-8", "pilot here-12", "pilot there-13", "cancel x-1 y-7"]


def test_no_call_asks_for_more_than_a_hundred_pilots_or_cancels_more() -> None:
    work = Work()
    keys = [f"here-{number}" for number in range(1, 251)]
    work.worker.want(*(SubmitPilot(site="here", key=key) for key in keys))
    work.worker.want(*(CancelSubmitted(site="here", key=f"x-{number}") for number in range(101)))
    work.worker.start()
    did = [work.site.did.get(timeout=WAIT_SECONDS)]
    while not did[-1].endswith(" x-100"):
        did.append(work.site.did.get(timeout=WAIT_SECONDS))
    work.worker.stop()
    assert did[:3] == ["100 pilots from here-1", "100 pilots from here-101", "50 pilots from here-201"]
    assert [len(each.split()) - 1 for each in did[3:]] == [100, 1]


def test_what_a_full_site_does_not_take_waits_here_and_that_is_told_once() -> None:
    with started() as work:
        work.site.room = 2
        work.worker.want(*(SubmitPilot(site="here", key=f"here-{number}") for number in range(1, 5)))
        assert [work.told() for _ in range(3)] == [
            taken("here-1", together=2),
            taken("here-2", together=2),
            SiteSeen(site="here", answers=True, message="the queue is full"),
        ]
        work.worker.want(SubmitPilot(site="here", key="here-3"))  # the engine asks again for what it heard nothing of
        work.site.look_twice()
        work.site.look_twice()
        assert work.reports.empty()
        work.site.room = None
        assert {work.told() for _ in range(3)} == {
            taken("here-3", together=2),
            taken("here-4", together=2),
            SiteSeen(site="here", answers=True),
        }
        work.site.look_twice()
        assert work.reports.empty()


def test_what_waits_for_room_can_be_cancelled_and_is_gone_then() -> None:
    with started() as work:
        work.site.room = 0
        work.worker.want(SubmitPilot(site="here", key="here-1"), SubmitPilot(site="here", key="here-2"))
        assert work.told() == SiteSeen(site="here", answers=True, message="the queue is full")
        work.worker.want(CancelSubmitted(site="here", key="here-1"))
        assert work.told() == Gone(site="here", key="here-1", reason="cancelled")
        work.site.room = None
        assert work.told() == taken("here-2")
        assert "here-1" not in work.site.there


def test_a_call_that_hangs_is_broken_off_when_the_worker_is_stopped_and_nothing_is_told_of_it() -> None:
    work = Work()
    closed, begun = threading.Event(), threading.Event()

    def hang(expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        begun.set()
        assert closed.wait(WAIT_SECONDS)
        raise SiteUnreachable("broken off")

    work.site.listing = hang  # type: ignore[method-assign]
    work.site.close = closed.set  # type: ignore[method-assign]
    work.worker.start()
    assert begun.wait(WAIT_SECONDS)
    work.worker.stop()
    assert work.reports.empty()


def stop_within_a_call(work: Work, *wanted: AtSite) -> None:
    """Stop the worker while the site takes an attempt, and these things wait behind that."""
    begun, gate = threading.Event(), threading.Event()

    def submit_slowly(key: str, *, ref: AttemptRef, demand: Demand) -> str:
        begun.set()
        assert gate.wait(WAIT_SECONDS)
        return "native"

    work.site.submit_attempt = submit_slowly  # type: ignore[method-assign]
    work.worker.want(SubmitAttempt(site="here", key="one", ref=REF, demand=Demand()))
    assert begun.wait(WAIT_SECONDS)
    work.worker.want(*wanted)
    stopper = threading.Thread(target=work.worker.stop)
    stopper.start()
    wait_until(lambda: work.worker._stopping)
    gate.set()
    stopper.join(WAIT_SECONDS)


def test_what_is_to_be_cancelled_is_cancelled_also_at_the_end_and_nothing_more_is_submitted() -> None:
    with started() as work:
        work.site.look_twice()
        stop_within_a_call(work, SubmitPilot(site="here", key="two"), CancelSubmitted(site="here", key="three"))
        assert work.site.did.get_nowait() == "cancel three"
        assert work.site.did.empty()


@pytest.mark.parametrize(
    "keys, told",
    [
        (["two"], ""),
        (["two", "three"], "site here: 1 batch job is not cancelled: no way; the next service cancels what is left"),
    ],
)
def test_what_was_never_submitted_is_not_left_behind_where_the_last_call_fails(keys: list[str], told: str) -> None:
    asked: list[str] = []

    def refuse(*keys: str) -> None:
        asked.extend(keys)
        raise SiteUnreachable("no way")

    with started() as work:
        work.site.look_twice()
        work.site.cancel = refuse  # type: ignore[method-assign]
        cancelled = [CancelSubmitted(site="here", key=key) for key in keys]
        stop_within_a_call(work, SubmitPilot(site="here", key="two"), *cancelled)
    assert asked == keys  # also what was not: an earlier process may have submitted it
    assert work.worker.left_behind == told


def test_a_site_where_nothing_is_is_looked_at_more_seldom_until_something_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("pilotage.service.sites.worker.time.monotonic", lambda: now[0])
    work, pauses = Work(), []

    class Passing(threading.Condition):
        """Time passes as soon as somebody waits; the third time something is wanted, and the sixth is the last."""

        def wait_for(self, predicate: Callable[[], Result], timeout: float | None = None) -> Result:
            pauses.append(round(timeout or 0.0, 9))
            now[0] += timeout or 0.0
            if len(pauses) == 3:
                work.worker.want(SubmitPilot(site="here", key="a"))
                work.expected.add("a")
            work.worker._stopping = len(pauses) == 6
            return predicate()

    work.worker._change = Passing(threading.RLock())
    work.worker._run()
    assert pauses == [0.06, 0.06, 0.06, 0.01, 0.01, 0.01]


def test_what_does_not_speak_is_told_when_it_is_noticed_and_when_it_is_not_any_more() -> None:
    with started() as work:
        work.site.there = {key: SeenAtSite(native_id=key) for key in ("a", "b", "c")}
        work.expected, work.unheard = {"a", "b"}, {"a", "c"}
        work.site.look_twice()
        assert work.site.asked_of[-1] == ["a"]  # b has spoken, and c is none of those that are waited for
        assert work.reports.empty()
        mute = Noticed(key="a", state="running", words="no answer from the service")
        work.site.noticed = [mute]
        assert work.told() == SiteNoticed(site="here", things=(mute,))
        work.site.look_twice()
        assert work.reports.empty()  # once
        work.unheard = set()
        assert work.told() == SiteNoticed(site="here")


def test_who_has_spoken_is_not_asked_for_again() -> None:
    with started() as work:
        work.site.there = {"a": SeenAtSite(native_id="1")}
        work.expected = {"a"}
        work.site.look_twice()
        asked = work.asked_unheard
        work.site.look_twice()
        assert (work.asked_unheard, work.site.asked_of) == (asked, [])
