"""Acts at one site in a thread of its own: carries out the engine's orders, and reports what it sees there.

A batch system that hangs delays no other site. Orders may be repeated, since they are known by their keys. A site that
accepts no more jobs is asked again after growing pauses, and its orders wait here.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import islice

from pilotage.engine.engine import Engine
from pilotage.model.errors import PilotageError
from pilotage.model.exchange.operations import CancelSubmitted, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import (
    AnyReport,
    Gone,
    Noticed,
    SiteNoticed,
    SiteSeen,
    SubmissionFailed,
    Submitted,
    Trouble,
)
from pilotage.ports import SiteAccess, SiteBusy, SiteUnreachable, SubmissionRefused
from pilotage.ports.sites import TellsScheduler

# The kind of trouble of a site that does not answer, from its own message; it determines the site's score.

_WORDS: tuple[tuple[Trouble, re.Pattern[str]], ...] = (
    # ssh and the batch systems repeat the kernel's messages; the second alternative of each is Slurm's own.
    ("connection-refused", re.compile(r"connection refused|connect failure", re.IGNORECASE)),
    ("connection-timed-out", re.compile(r"timed out|no answer within", re.IGNORECASE)),
)


def trouble_of(message: str) -> Trouble | None:
    """The kind of trouble in a message; None if it is another, or unknown."""
    return next((trouble for trouble, words in _WORDS if words.search(message)), None)


# Batch jobs with our key that the engine does not know: an earlier process should have cancelled them.

STRAY_SECONDS = 60.0
"""How long a batch job must be unknown before it is cancelled: one that just ended stays listed for a moment."""

Unknown = Callable[[Collection[str]], Collection[str]]
"""Returns those of some keys that the engine does not know."""


class UnknownBatchJobs:
    """Remembers since when each batch job has been unknown; one thread at a time."""

    def __init__(self, unknown: Unknown, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the function that knows the engine's keys."""
        self._unknown = unknown
        self._clock = clock
        self._since: dict[str, float] = {}

    def overdue(self, keys: Collection[str]) -> list[str]:
        """Those of the listed keys that must be cancelled."""
        now = self._clock()
        self._since = {key: self._since.get(key, now) for key in (self._unknown(keys) if keys else ())}
        return [key for key, since in self._since.items() if now >= since + STRAY_SECONDS]


def unknown_at(site: str, keys: Collection[str], engine: Engine) -> list[str]:
    """Those of some keys that the engine neither wants nor knows to be active at a site."""
    state = engine.state.sites.by_name.get(site)
    if state is None:
        return []
    known = (state.requests, state.bound, state.by_request, engine.state.abandoned.pilots_by_request)
    return [key for key in keys if not any(key in each for each in known)]


def all_known(_: Collection[str]) -> Collection[str]:
    """Treats every key as known."""
    return ()


# Limits how many site checks start at once, to bound their cost on this computer.
#
# A slow check costs little, it mostly waits: it counts only for a moment. So checks that hang do not delay sites known
# to be quick, and their number is limited by files and processes.

COUNTED_SECONDS = 1.0


class StartLimiter:
    """Gives out a limited number of turns; any thread may ask. It never blocks: a caller without a turn asks again."""

    def __init__(
        self,
        most: int,
        *,
        hanging_max: int,
        counted_seconds: float = COUNTED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the number of turns, how many more to give while these take long, and how long a turn counts."""
        self._most = most
        self._hanging_max = hanging_max
        self._counted_seconds = counted_seconds
        self._clock = clock
        self._guard = threading.Lock()
        self._taken: dict[int, float] = {}  # when each began, the latest last
        self._last = 0

    def take(self, *, is_known: bool) -> int | None:
        """Take a turn, to be given back; None if none is free. Slow ones do not delay a caller that `is_known` as quick."""
        with self._guard:
            now, counted = self._clock(), 0
            for since in reversed(self._taken.values()):
                if since + self._counted_seconds <= now or counted >= self._most:
                    break
                counted += 1
            if counted >= self._most or (not is_known and len(self._taken) >= self._most + self._hanging_max):
                return None
            self._last += 1
            self._taken[self._last] = now
            return self._last

    def give_back(self, turn: int) -> None:
        """End a turn."""
        with self._guard:
            del self._taken[turn]


log = logging.getLogger(__name__)

Submission = SubmitPilot | SubmitAttempt
AtSite = Submission | CancelSubmitted
Name = tuple[str, bool]
"""The key of an order, and whether it is a cancellation."""
Report = Callable[[AnyReport], None]
Expected = Callable[[], Collection[str]]
"""Returns the keys that the site accepted and that are not known to have ended."""

UNREACHABLE_SECONDS_MAX = 60.0
STOP_SECONDS = 2.0
REST_LOOKS = 6
"""A site without any of our batch jobs is checked this many times less often."""
TURN_SECONDS, DOUBTFUL_TURN_SECONDS = 0.2, 1.0
"""How soon a site asks again for its turn, and one that is not known to answer: there may be hundreds of those."""
BUSY_SECONDS, BUSY_SECONDS_MAX = 5.0, 300.0
TOGETHER_MAX = 100
"""The most pilots submitted, or batch jobs cancelled, by one call."""
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,14})", re.DOTALL)


class SiteWorker:
    """A thread that acts at one site and lists its batch jobs regularly."""

    def __init__(
        self,
        site: str,
        access: SiteAccess,
        *,
        report: Report,
        expected: Expected,
        unknown: Unknown = all_known,
        limiter: StartLimiter | None = None,
        unheard: Expected = tuple,
        last_report: SiteSeen | None = None,
        busy_seconds: float = BUSY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take where reports go, and what knows which keys should be there; nothing runs before `start`.

        Each check takes a turn of the `limiter`, if there is one. The `clock` measures submissions, and since when a
        key is `unknown`. `unheard` returns the expected keys that have not contacted the service. `last_report` is the last
        report of the site's former worker: if it was bad, the first successful check revokes it.
        """
        self._clock = clock
        self._site = site
        self._access = access
        self._report = report
        self._expected = expected
        self._limiter = limiter
        self._unheard = unheard
        self._contacted: set[str] = set()  # listed keys that have contacted the service
        self._noticed: tuple[Noticed, ...] = ()
        self._thread = threading.Thread(target=self._run, name=f"site {site}", daemon=True)
        self._change = threading.Condition()
        self._wanted: dict[Name, AtSite] = {}
        self._later: dict[str, Submission] = {}  # orders that the site had no room for, by key
        self._later_at = 0.0
        self._busy_seconds = self._first_busy_seconds = busy_seconds
        self._stopping = False
        self._answers: bool | None = None  # whether the site answered the last call
        self._full = False  # whether that was reported
        self._is_stale = last_report is not None and (not last_report.answers or bool(last_report.message))
        self._look_at = 0.0
        self._rests = False  # the site has none of our batch jobs, and should have none
        self._pause_seconds = access.look_seconds
        self._cancelled: set[str] = set()
        self._has_asked = False  # for the version of the batch system
        self.scheduler = ""  # the batch system and its version, once something was submitted
        self.left_behind = ""  # batch jobs that could not be cancelled when this ended, in words
        self._unknown_jobs = UnknownBatchJobs(unknown, clock=clock)

    def start(self) -> None:
        """Start; the first action is a listing."""
        self._thread.start()

    def want(self, *effects: AtSite) -> None:
        """Queue orders; one that is queued already keeps its place, however often it is repeated."""
        with self._change:
            for effect in effects:
                self._wanted.setdefault(_name(effect), effect)
            self._change.notify()

    def left(self) -> list[AtSite]:
        """The pending orders; cancellations without effect so far must be repeated."""
        with self._change:
            left = [*self._later.values(), *self._wanted.values()]
            return [*left, *(CancelSubmitted(site=self._site, key=key) for key in self._cancelled.copy())]

    def leave(self) -> None:
        """Begin to stop, without waiting."""
        with self._change:
            self._stopping = True
            self._change.notify()

    def stop(self, *, patience_seconds: float = STOP_SECONDS) -> None:
        """Stop; what runs at the site continues. A call that is not answered soon is interrupted."""
        self.leave()
        if self._thread.ident is not None:
            self._thread.join(patience_seconds)
        self._access.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                looked = time.monotonic() >= self._look_at and self._look_if_allowed()
                if looked:
                    self._take_back()
                    self._look_at = time.monotonic() + self._access.look_seconds * (REST_LOOKS if self._rests else 1)
                if looked or self._answers:  # orders do not wait for a turn if the site is known to answer
                    self._work()
                    self._note_answer(answers=True)
                    self._pause_seconds = self._access.look_seconds
            except SiteUnreachable as fault:
                self._failed(str(fault))
            except Exception as fault:  # an unexpected error must not end the worker
                log.exception("site %s", self._site)
                self._failed(f"{type(fault).__name__}: {fault}")
            with self._change:
                self._change.wait_for(self._wanted_now, timeout=max(0.0, self._next_at() - time.monotonic()))
        self._cancel_last()

    def _cancel_last(self) -> None:
        """Submit nothing more, but cancel what must not start after the service is gone."""
        wanted = [*self._later.values(), *self._wanted.values()]
        keys = [effect.key for effect in wanted if isinstance(effect, CancelSubmitted)]
        # Orders that still wait here were never submitted, as far as this process knows, so nothing of them is queued.
        never_submitted = {effect.key for effect in wanted if not isinstance(effect, CancelSubmitted)}
        left = len({*keys} - never_submitted)
        why = "" if self._answers else "the site does not answer"
        if keys and not why:
            try:
                self._access.cancel(*keys)  # including waiting orders: an earlier process may have submitted them
            except Exception as fault:  # noqa: BLE001 # it was broken off, or there is no way to the site
                why = str(fault) or type(fault).__name__
        if left and why:
            self.left_behind = left_behind_message(self._site, left, why)

    def _failed(self, message: str) -> None:
        if self._stopping:
            return  # it was interrupted
        self._note_answer(answers=False, message=message)
        self._pause_seconds = min(2 * self._pause_seconds, UNREACHABLE_SECONDS_MAX)
        self._look_at = time.monotonic() + self._pause_seconds

    def _next_at(self) -> float:
        return min(self._look_at, self._later_at) if self._later and self._answers else self._look_at

    def _wanted_now(self) -> bool:
        return self._stopping or (bool(self._wanted) and bool(self._answers))

    # --- orders ---

    def _work(self) -> None:
        if self._later and time.monotonic() >= self._later_at:
            with self._change:
                self._wanted = {**{_name(effect): effect for effect in self._later.values()}, **self._wanted}
            self._later.clear()
        if self._wanted and self._rests:
            self._rests, self._look_at = False, time.monotonic() + self._access.look_seconds
        while self._wanted and not self._stopping:
            together = self._together()
            self._do(together)
            with self._change:
                for effect in together:
                    del self._wanted[_name(effect)]

    def _together(self) -> list[AtSite]:
        """The next order, with those after it that the same call can carry out."""
        with self._change:
            wanted = list(islice(self._wanted.values(), TOGETHER_MAX))
        found = wanted[:1]
        for effect in wanted[1:]:
            if not _goes_with(found[-1], effect):
                break
            found.append(effect)
        return found

    def _do(self, together: Sequence[AtSite]) -> None:
        submissions = [effect for effect in together if not isinstance(effect, CancelSubmitted)]
        if not submissions:
            self._cancel([effect.key for effect in together])
        elif self._later:
            # Asking again does not make room for orders that wait, nor may others overtake them.
            self._later.update((effect.key, effect) for effect in submissions)
        else:
            self._submit(submissions)

    def _cancel(self, keys: Sequence[str]) -> None:
        waiting = [key for key in keys if self._later.pop(key, None) is not None]
        self._access.cancel(*keys)  # including waiting orders: an earlier process may have submitted them
        self._cancelled.update(keys)
        if waiting:
            self._look_at = 0.0  # so that its end is reported now

    def _submit(self, submissions: Sequence[Submission]) -> None:
        begun = self._clock()
        try:
            native_ids = self._submitted(submissions)
        except SubmissionRefused as refused:
            seconds = (self._clock() - begun) / len(submissions)
            reason, message = refused.reason, str(refused)
            for effect in submissions:
                self._report(
                    SubmissionFailed(site=self._site, key=effect.key, reason=reason, message=message, seconds=seconds)
                )
            return
        except SiteBusy as busy:
            self._put_off(submissions, str(busy))
            return
        self._busy_seconds = self._first_busy_seconds
        # The time of one call for many orders is divided among them.
        seconds = (self._clock() - begun) / max(1, len(native_ids))
        for effect, native_id in zip(submissions, native_ids, strict=False):
            self._report(Submitted(site=self._site, key=effect.key, native_id=native_id, seconds=seconds))
        if len(native_ids) < len(submissions):
            self._submit(submissions[len(native_ids) :])  # and learn why
        elif self._full:
            self._full = False
            self._report(SiteSeen(site=self._site, answers=True))
        if not self._has_asked and isinstance(self._access, TellsScheduler):  # once, of a site that is used
            self._has_asked = True
            with suppress(PilotageError):  # the version decides nothing
                self.scheduler = self._access.scheduler()

    def _submitted(self, submissions: Sequence[Submission]) -> Sequence[str]:
        first = submissions[0]
        if isinstance(first, SubmitAttempt):
            return [self._access.submit_attempt(first.key, ref=first.ref, demand=first.demand)]
        return self._access.submit_pilots(first.key, count=len(submissions))

    def _put_off(self, submissions: Sequence[Submission], message: str) -> None:
        self._later.update((effect.key, effect) for effect in submissions)
        self._later_at = time.monotonic() + self._busy_seconds
        self._busy_seconds = min(2 * self._busy_seconds, BUSY_SECONDS_MAX)
        if not self._full:
            self._full = True
            self._report(SiteSeen(site=self._site, answers=True, message=message))

    # --- listings ---

    def _look_if_allowed(self) -> bool:
        """List if few others do; whether it did."""
        if self._limiter is None:
            self._look()
            return True
        turn = self._limiter.take(is_known=bool(self._answers))
        if turn is None:
            self._look_at = time.monotonic() + (TURN_SECONDS if self._answers else DOUBTFUL_TURN_SECONDS)
            return False
        try:
            self._look()
        finally:
            self._limiter.give_back(turn)
        return True

    def _look(self) -> None:
        """Report what has ended, and what the engine expects there but is missing."""
        expected = self._expected()  # before the listing: keys added in between are not missed
        listed = self._access.listing(expected)
        for key, entry in listed.items():
            if entry.ended:
                self._report(Gone(site=self._site, key=key, reason=entry.reason or "ended", stderr=entry.stderr))
        for key in expected:
            if key not in listed:
                self._report(Gone(site=self._site, key=key, reason="vanished"))
        for key in [key for key in self._cancelled if key not in listed or listed[key].ended]:
            self._cancelled.discard(key)
            if key not in listed:  # a cancelled key that is not listed has ended
                self._report(Gone(site=self._site, key=key, reason="cancelled"))
        self._rests = not (expected or listed or self._cancelled)
        there = {key for key, entry in listed.items() if not entry.ended}
        self._notice(there.intersection(expected))
        self._cancel_unknown_jobs(there.difference(expected, self._cancelled))

    def _notice(self, there: set[str]) -> None:
        """Report batch jobs that do not start, or run without contacting the service; never those heard once."""
        self._contacted.intersection_update(there)
        unheard = set(self._unheard()).intersection(there) if there - self._contacted else set()
        self._contacted.update(there - unheard)
        if unheard or self._noticed:
            noticed = tuple(self._access.notice(sorted(unheard)))
            if noticed != self._noticed:
                self._noticed = noticed
                self._report(SiteNoticed(site=self._site, things=noticed))

    def _cancel_unknown_jobs(self, there: Collection[str]) -> None:
        """Cancel batch jobs that the engine does not know: an earlier process should have done it."""
        unknown_jobs = self._unknown_jobs.overdue(there)
        if unknown_jobs:
            log.warning("site %s: cancelled unknown jobs: %s", self._site, ", ".join(sorted(unknown_jobs)[:10]))
            self.want(*(CancelSubmitted(site=self._site, key=key) for key in unknown_jobs))

    def _take_back(self) -> None:
        """The site answers through this access, whatever was reported before."""
        if self._is_stale:
            self._is_stale, self._answers = False, True
            self._report(SiteSeen(site=self._site, answers=True))

    def _note_answer(self, *, answers: bool, message: str = "") -> None:
        if answers != self._answers:
            if self._answers is not None or not answers:
                trouble = None if answers else trouble_of(message)
                self._report(SiteSeen(site=self._site, answers=answers, message=message, trouble=trouble))
            self._answers = answers


def _name(effect: AtSite) -> Name:
    return effect.key, isinstance(effect, CancelSubmitted)


def _goes_with(before: AtSite, effect: AtSite) -> bool:
    """Whether one call can carry out both: cancellations, and pilots whose keys follow each other."""
    if isinstance(before, CancelSubmitted):
        return isinstance(effect, CancelSubmitted)
    if not isinstance(before, SubmitPilot) or not isinstance(effect, SubmitPilot):
        return False
    first, second = _NUMBERED.fullmatch(before.key), _NUMBERED.fullmatch(effect.key)
    if first is None or second is None or first.group(1) != second.group(1):
        return False
    return int(second.group(2)) == int(first.group(2)) + 1


def left_behind_message(site: str, count: int, why: str) -> str:
    """The message about batch jobs that could not be cancelled at a site."""
    things = "1 batch job is" if count == 1 else f"{count} batch jobs are"
    return f"site {site}: {things} not cancelled: {why}; the next service cancels what is left"
