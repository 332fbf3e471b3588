"""A site whose own agent submits there: what the engine wants is kept for it until it says what came of it.

The agent asks, and is answered when there is something to do, or after an interval. It may be gone for as long as it likes:
what it was told it is told again, by the same keys. When it was not heard for a while the site counts as silent, which says
nothing about its pilots.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from itertools import islice
from typing import Protocol

import msgspec

from pilotage.agent.link.connect import ends_at
from pilotage.model.errors import PilotageError
from pilotage.model.exchange.operations import CancelSubmitted
from pilotage.model.exchange.reports import AnyReport, Gone, SiteEffect, SiteHears, SiteNoticed, SiteSays, SiteSeen
from pilotage.model.sites.entry import SiteEntry
from pilotage.service.errors import NotRunning, Superseded, fail
from pilotage.service.sites.worker import Unknown, UnknownBatchJobs, behind, none_unknown, trouble_of

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
SILENT_SECONDS = 45.0
EFFECTS_MAX = 1000
REPORTS_MAX = 10_000
LOOK_SECONDS = 0.2
STARTED_ANEW = "it is started anew, as the entry of its site says now"
"""Why an agent is to leave that was started as an earlier entry said."""
NOT_YET = "it has not answered yet"
"""What is told of a site before anything was heard of it."""

Report = Callable[[AnyReport], None]
Expected = Callable[[], Collection[str]]
_encode = msgspec.json.Encoder().encode


class TendsAgent(Protocol):
    """Who sees that the agent of a site runs and has a way to us."""

    def start(self, *, heard_at: Callable[[], float], complain: Callable[[str], None]) -> None:
        """Begin; `heard_at` tells when the agent was last heard, by the clock that only goes on."""
        ...

    def stop(self) -> None:
        """End; the agent goes on."""
        ...

    def is_as_started(self, mark: str) -> bool:
        """Whether an agent that was started with a mark is as one would be that is started now."""
        ...


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a service deals with the agent of a site."""

    entry: SiteEntry
    prefix: str = "pilotage"
    interval_seconds: float = INTERVAL_SECONDS
    silent_seconds: float = SILENT_SECONDS
    make_token: Callable[[], str] | None = None  # for the pilots there
    outpost: TendsAgent | None = None  # where its user does not see to it
    clock: Callable[[], float] = time.monotonic


class _Waiting(msgspec.Struct):
    """An exchange that is not answered yet."""

    says: SiteSays
    answer: Future[bytes]
    due_at: float


class AgentSite:
    """The service's side of a site agent; any thread may call it."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        report: Report,
        expected: Expected,
        unknown: Unknown = none_unknown,
        unheard: Expected = tuple,
        told: SiteSeen | None = None,
    ) -> None:
        """Take who is told of what the agent reports, and who knows what should be there; nothing runs before `start`.

        `unheard` tells which of that has not spoken; `told` is what was last reported of the site by who acted there before.
        """
        self._settings = settings
        self._site = settings.entry.name
        self._report = report
        self._expected = expected
        self._unheard = unheard
        self._unknown_jobs = UnknownBatchJobs(unknown, clock=settings.clock)
        self._id = secrets.token_hex(8)
        self._change = threading.Condition()
        self._wanted: dict[tuple[str, bool], tuple[int, SiteEffect]] = {}  # by key, and whether it is a cancellation
        self._number = 0
        self._given, self._heard = 0, 0  # up to which number the agent was told, and said that it heard
        self._waiting: _Waiting | None = None
        self._heard_at = settings.clock()
        self._last_at = float("-inf")  # when it last spoke
        self._answers = told.answers if told is not None else None
        self._message = told.message if told is not None else ""  # what was said last of why things wait
        self._told = True  # whether the batch system answers, by the agent's last word
        self._missed = told is not None and told.message == NOT_YET  # there was no word from it, or none for too long
        self._token, self._token_until, self._token_made_at = "", 0.0, 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"site {self._site}", daemon=True)

    def start(self) -> None:
        """Begin to wait for the agent."""
        self._thread.start()
        if self._settings.outpost is not None:
            self._settings.outpost.start(heard_at=lambda: self._last_at, complain=self._complain)

    def stop(self) -> None:
        """End; the agent asks again until a service is back."""
        if self._settings.outpost is not None:
            self._settings.outpost.stop()
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def want(self, *effects: SiteEffect) -> None:
        """Have things done; what is wanted already stays in its place."""
        with self._change:
            for effect in effects:
                key = (effect.key, isinstance(effect, CancelSubmitted))
                if key not in self._wanted:
                    self._number += 1
                    self._wanted[key] = (self._number, effect)
                    self._change.notify_all()

    def left(self) -> list[SiteEffect]:
        """What is wanted, and of which nothing was heard yet."""
        with self._change:
            return [effect for _, effect in self._wanted.values()]

    def withdraw(self, *, patience_seconds: float) -> None:
        """Wait until the agent has heard all that is to be ended there, unless it is not heard itself, but not for long."""
        clock, silent_seconds = self._settings.clock, 2.0 * self._settings.interval_seconds
        until = clock() + patience_seconds
        with self._change:
            while (now := clock()) < until and not self._stopping and self._to_end(self._heard):
                if now - self._last_at > silent_seconds:
                    return
                self._change.wait(min(LOOK_SECONDS, until - now))

    @property
    def behind(self) -> str:
        """What is to be ended at the site and its agent was not told of, in words; empty where there is nothing."""
        with self._change:
            count = self._to_end(self._given)
        return behind(self._site, count, "its agent did not ask in time") if count else ""

    def _to_end(self, number: int) -> int:
        """How many are to be ended there that are wanted under a higher number; not what was never asked for there."""
        return sum(
            wanted > number
            and isinstance(effect, CancelSubmitted)
            and self._wanted.get((effect.key, False), (0,))[0] <= self._given
            for wanted, effect in self._wanted.values()
        )

    def exchange(self, says: SiteSays) -> Future[bytes]:
        """What the agent says; the answer, for the wire, when there is something to do or its interval is over."""
        answer: Future[bytes] = Future()
        for report in says.reports[:REPORTS_MAX]:
            self._hear(report)
        if self._missed:  # it is back, and does not know that it was missed
            self._missed = False
            self._seen(answers=self._told)
        with self._change:
            if self._stopping:
                answer.set_exception(_stopping())
                return answer
            before, now = self._waiting, self._settings.clock()
            if says.service == self._id:
                self._heard = max(self._heard, says.heard)
            self._heard_at = self._last_at = now
            leaves = not self._is_as_started(says)
            due_at = now if says.reports or leaves else now + self._settings.interval_seconds
            self._waiting = _Waiting(says, answer, due_at)
            self._change.notify_all()
        if before is not None:
            fail(before.answer, Superseded("a later exchange of this site's agent has come", subject=self._site))
        return answer

    def _complain(self, message: str) -> None:
        """There is no way to the agent, which may have none to us either."""
        with self._change:
            silent = self._settings.clock() - self._last_at >= self._settings.interval_seconds
        if silent:
            self._missed = True
            self._seen(answers=False, message=message)

    def _hear(self, report: AnyReport) -> None:
        if report.site != self._site:
            return  # an agent speaks for its own site alone
        if isinstance(report, SiteSeen):
            self._told, self._missed = report.answers, False
            self._seen(answers=report.answers, message=report.message)
            return
        if isinstance(report, SiteNoticed):
            self._report(report)
            return
        with self._change:
            self._wanted.pop((report.key, False), None)
            if isinstance(report, Gone):
                self._wanted.pop((report.key, True), None)
        self._report(report)

    def _seen(self, *, answers: bool, message: str = "") -> None:
        with self._change:
            before, self._answers = self._answers, answers
            turned = not answers if before is None else answers != before
            news = turned or message != self._message
            self._message = message
        if news:
            trouble = trouble_of(message) if turned and not answers else None
            self._report(SiteSeen(site=self._site, answers=answers, message=message, trouble=trouble))

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._change:
                if not self._is_due():
                    self._change.wait(self._patience())  # less where somebody comes meanwhile: it is asked anew
                if self._stopping:
                    break
                waiting = self._waiting if self._is_due() else None
                if waiting is not None:
                    self._waiting = None
                silent = self._settings.clock() - self._heard_at >= self._settings.silent_seconds
            if waiting is not None:
                self._answer(waiting)
            elif silent and (not self._missed or self._message == NOT_YET):
                self._missed = True
                self._seen(
                    answers=False,
                    message=f"the agent of the site was not heard for {self._settings.silent_seconds:g} s",
                )
        if self._waiting is not None:
            fail(self._waiting.answer, _stopping())

    def _is_due(self) -> bool:
        if self._stopping:
            return True
        waiting = self._waiting
        if waiting is None:
            return False
        heard = waiting.says.heard if waiting.says.service == self._id else 0
        first = islice(self._wanted.values(), EFFECTS_MAX)  # it is told no more at once, and the numbers rise
        return any(number > heard for number, _ in first) or self._settings.clock() >= waiting.due_at

    def _patience(self) -> float | None:
        """How long nothing needs to be done by itself; None: until somebody comes."""
        now = self._settings.clock()
        if self._waiting is not None:
            return max(0.0, self._waiting.due_at - now)
        if self._missed and self._message != NOT_YET:
            return None  # that is told already, and whoever is missed says so when it is back
        return max(0.1, self._heard_at + self._settings.silent_seconds - now)

    def _answer(self, waiting: _Waiting) -> None:
        if not waiting.answer.set_running_or_notify_cancel():
            return
        try:
            # What it reported is applied before what is asked here: both go through the engine in order.
            expected, unheard = tuple(self._expected()), tuple(self._unheard())
            # What nobody waits for: an earlier process was to have it ended, or could not.
            self.want(
                *(CancelSubmitted(site=self._site, key=key) for key in self._unknown_jobs.overdue(waiting.says.there))
            )
            told = self._hears(waiting.says, expected, unheard)
        except Exception as fault:  # whoever asked is told
            log.exception("site %s", self._site)
            waiting.answer.set_exception(fault if isinstance(fault, PilotageError) else _stopping())
        else:
            waiting.answer.set_result(_encode(told))
            if told.leave:
                self._last_at = float("-inf")  # so that the next one is started without waiting for its silence
            self._given = max(self._given, told.number)
        with self._change:
            self._heard_at = self._settings.clock()

    def _hears(self, says: SiteSays, expected: tuple[str, ...], unheard: tuple[str, ...]) -> SiteHears:
        with self._change:
            wanted = list(islice(self._wanted.values(), EFFECTS_MAX))
        return SiteHears(
            site=self._site,
            agent=says.agent,
            sequence=says.sequence,
            service=self._id,
            number=wanted[-1][0] if wanted else 0,
            effects=tuple(effect for _, effect in wanted),
            expected=expected,
            unheard=unheard,
            entry=self._settings.entry,
            prefix=self._settings.prefix,
            token=self._pilot_token(says.token_until),
            interval_seconds=self._settings.interval_seconds,
            leave="" if self._is_as_started(says) else STARTED_ANEW,
        )

    def _is_as_started(self, says: SiteSays) -> bool:
        outpost = self._settings.outpost
        return outpost is None or outpost.is_as_started(says.started_as)

    def _pilot_token(self, until: float) -> str:
        """A token for the pilots, where theirs ends before the one that they could have."""
        make = self._settings.make_token
        if make is None:
            return ""
        now = time.time()
        life_seconds = self._token_until - self._token_made_at
        if not self._token or now > self._token_made_at + life_seconds / 3.0:
            try:
                self._token, self._token_made_at = make(), now
            except PilotageError as fault:
                log.warning("site %s: no token for its pilots, which show that of its agent: %s", self._site, fault)
                return ""
            self._token_until = ends_at(self._token) or 0.0
        # Those whose token has half of its life before it keep it: the file is not written for nothing.
        return self._token if until < now + (self._token_until - self._token_made_at) / 2.0 else ""


def _stopping() -> NotRunning:
    return NotRunning("the service is stopping", next_step="ask again when it is back")
