"""The worker of a site with a site agent: keeps orders of the engine until the agent reports their outcome.

The agent polls, and is answered when there is something to do, or after an interval. It may be absent for any time:
orders are repeated under the same keys. An agent not heard for a while makes the site count as silent, which says
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
from pilotage.model.exchange.operations import CancelSubmitted, FetchFile, RemoveFile
from pilotage.model.exchange.reports import (
    AnyReport,
    FileNotFetched,
    Gone,
    SiteAgentMessage,
    SiteAgentReply,
    SiteEffect,
    SiteNoticed,
    SiteSeen,
)
from pilotage.model.sites.entry import SiteEntry
from pilotage.service.errors import NotRunning, Superseded, fail
from pilotage.service.sites.worker import Unknown, UnknownBatchJobs, all_known, left_behind_message, trouble_of

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
SILENT_SECONDS = 45.0
EFFECTS_MAX = 1000
FILE_EFFECTS_MAX = 100
"""Orders for files that an agent has at once, beside those for its batch system, which they must not delay."""
REPORTS_MAX = 10_000
LOOK_SECONDS = 0.2
STARTED_ANEW = "it is restarted, because the entry of its site has changed"
"""Why an agent must leave that was started from an earlier entry."""
TOO_OLD = (
    "the site agent there is of an earlier release, which brings no files: start it again from the file that"
    " `pilotage site pack --output` writes"
)
"""Why files are not brought to a site."""
NOT_YET = "it has not answered yet"
"""The message about a site before its first report."""

FileOrder = FetchFile | RemoveFile
Report = Callable[[AnyReport], None]
Expected = Callable[[], Collection[str]]
_encode = msgspec.json.Encoder().encode


class AgentSupervisor(Protocol):
    """Keeps the agent of a site running and connected."""

    def start(self, *, heard_at: Callable[[], float], complain: Callable[[str], None]) -> None:
        """Start; `heard_at` returns when the agent was last heard, by a monotonic clock."""
        ...

    def stop(self) -> None:
        """Stop; the agent keeps running."""
        ...

    def is_as_started(self, mark: str) -> bool:
        """Whether an agent started with a mark is the same as one started now."""
        ...


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the service treats the agent of a site."""

    entry: SiteEntry
    prefix: str = "pilotage"
    interval_seconds: float = INTERVAL_SECONDS
    silent_seconds: float = SILENT_SECONDS
    make_token: Callable[[], str] | None = None  # for the pilots there
    outpost: AgentSupervisor | None = None  # if its user does not keep it running
    clock: Callable[[], float] = time.monotonic


class _Waiting(msgspec.Struct):
    """An exchange that is not answered yet."""

    says: SiteAgentMessage
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
        unknown: Unknown = all_known,
        unheard: Expected = tuple,
        last_report: SiteSeen | None = None,
    ) -> None:
        """Take where reports go, and what knows which keys should be at the site; nothing runs before `start`.

        `unheard` returns the keys that have not contacted the service; `last_report` is the last report of the site's former
        worker.
        """
        self._settings = settings
        self._site = settings.entry.name
        self._report = report
        self._expected = expected
        self._unheard = unheard
        self._unknown_jobs = UnknownBatchJobs(unknown, clock=settings.clock)
        self._id = secrets.token_hex(8)
        self._change = threading.Condition()
        self.scheduler = ""  # the batch system and its version, as the agent last told them
        self._wanted: dict[tuple[str, bool], tuple[int, SiteEffect]] = {}  # by key, and whether it is a cancellation
        self.cache = ""  # the folder at the site that its agent brings files to, as it last told
        self._has_files = False  # whether it ever had orders for files
        self._number = 0
        self._given, self._acknowledged = 0, 0  # the last number sent to the agent, and the last one it acknowledged
        self._waiting: _Waiting | None = None
        self._heard_at = settings.clock()
        self._last_at = float("-inf")  # when it was last heard
        self._answers = last_report.answers if last_report is not None else None
        # the last message about what delays work
        self._message = last_report.message if last_report is not None else ""
        self._batch_answers = True  # whether the batch system answers, as the agent last reported
        # the agent has not been heard, or not for too long
        self._missed = last_report is not None and last_report.message == NOT_YET
        self._token, self._token_until, self._token_made_at = "", 0.0, 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"site {self._site}", daemon=True)

    def start(self) -> None:
        """Start waiting for the agent."""
        self._thread.start()
        if self._settings.outpost is not None:
            self._settings.outpost.start(heard_at=lambda: self._last_at, complain=self._complain)

    def stop(self) -> None:
        """Stop; the agent polls until a service is back."""
        if self._settings.outpost is not None:
            self._settings.outpost.stop()
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def want(self, *effects: SiteEffect) -> None:
        """Queue orders; one that is queued already keeps its place."""
        with self._change:
            for effect in effects:
                key = (effect.key, isinstance(effect, CancelSubmitted))
                if key not in self._wanted:
                    self._number += 1
                    self._has_files = self._has_files or isinstance(effect, FileOrder)
                    self._wanted[key] = (self._number, effect)
                    self._change.notify_all()

    def ordered_fetch(self, key: str) -> FetchFile | None:
        """The file that the agent is to bring to the site under a key; None if none is ordered."""
        with self._change:
            _, found = self._wanted.get((key, False), (0, None))
        return found if isinstance(found, FetchFile) else None

    def left(self) -> list[SiteEffect]:
        """The orders without an outcome."""
        with self._change:
            return [effect for _, effect in self._wanted.values()]

    def withdraw(self, *, patience_seconds: float) -> None:
        """Wait a short time until the agent has fetched all cancellations, unless it is silent."""
        clock, silent_seconds = self._settings.clock, 2.0 * self._settings.interval_seconds
        until = clock() + patience_seconds
        with self._change:
            while (now := clock()) < until and not self._stopping and self._to_end(self._acknowledged):
                if now - self._last_at > silent_seconds:
                    return
                self._change.wait(min(LOOK_SECONDS, until - now))

    @property
    def left_behind(self) -> str:
        """The batch jobs whose cancellation the agent has not fetched, in words; empty if there are none."""
        with self._change:
            count = self._to_end(self._given)
        return left_behind_message(self._site, count, "its agent did not poll in time") if count else ""

    def _to_end(self, number: int) -> int:
        """How many cancellations have a higher number; not counting those of jobs that were never submitted."""
        return sum(
            wanted > number
            and isinstance(effect, CancelSubmitted)
            and self._wanted.get((effect.key, False), (0,))[0] <= self._given
            for wanted, effect in self._wanted.values()
        )

    def exchange(self, says: SiteAgentMessage) -> Future[bytes]:
        """Process the agent's exchange; the encoded answer, when there is something to do or its interval is over."""
        answer: Future[bytes] = Future()
        self.scheduler = f"{says.scheduler} {says.scheduler_version}".strip()
        self.cache = says.cache
        for report in says.reports[:REPORTS_MAX]:
            self._hear(report)
        if not says.cache:
            self._refuse_files()
        if self._missed:  # it is back after being silent
            self._missed = False
            self._note_answer(answers=self._batch_answers)
        with self._change:
            if self._stopping:
                answer.set_exception(_stopping())
                return answer
            before, now = self._waiting, self._settings.clock()
            if says.service == self._id:
                self._acknowledged = max(self._acknowledged, says.heard)
            self._heard_at = self._last_at = now
            leaves = not self._is_as_started(says)
            due_at = now if says.reports or leaves else now + self._settings.interval_seconds
            self._waiting = _Waiting(says, answer, due_at)
            self._change.notify_all()
        if before is not None:
            fail(before.answer, Superseded("a later exchange of this site's agent has arrived", subject=self._site))
        return answer

    def _complain(self, message: str) -> None:
        """The agent cannot be reached, and may not reach us either."""
        with self._change:
            silent = self._settings.clock() - self._last_at >= self._settings.interval_seconds
        if silent:
            self._missed = True
            self._note_answer(answers=False, message=message)

    def _hear(self, report: AnyReport) -> None:
        if report.site != self._site:
            return  # an agent reports for its own site only
        if isinstance(report, SiteSeen):
            self._batch_answers, self._missed = report.answers, False
            self._note_answer(answers=report.answers, message=report.message)
            return
        if isinstance(report, SiteNoticed):
            self._report(report)
            return
        with self._change:
            self._wanted.pop((report.key, False), None)
            if isinstance(report, Gone):
                self._wanted.pop((report.key, True), None)
        self._report(report)

    def _refuse_files(self) -> None:
        """Report for an agent of an earlier release, which would not know such orders, that it brings no files."""
        with self._change:
            refused = [each for _, each in self._wanted.values() if isinstance(each, FetchFile)]
            for each in refused:
                del self._wanted[each.key, False]
        for each in refused:
            self._report(FileNotFetched(site=self._site, key=each.key, reason="platform-failure", message=TOO_OLD))

    def _note_answer(self, *, answers: bool, message: str = "") -> None:
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
                    self._change.wait(self._patience())  # or less, if an exchange arrives meanwhile: computed anew
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
                self._note_answer(
                    answers=False,
                    message=f"the site agent was not heard for {self._settings.silent_seconds:g} s",
                )
        if self._waiting is not None:
            fail(self._waiting.answer, _stopping())

    def _is_due(self) -> bool:
        if self._stopping:
            return True
        waiting = self._waiting
        if waiting is None:
            return False
        acknowledged = waiting.says.heard if waiting.says.service == self._id else 0
        due = any(number > acknowledged for number, _ in self._sendable(waiting.says))
        return due or self._settings.clock() >= waiting.due_at

    def _sendable(self, says: SiteAgentMessage) -> list[tuple[int, SiteEffect]]:
        """The orders that an agent has at once, in order."""
        if not self._wanted:
            return []
        files = [each for each in self._wanted.values() if isinstance(each[1], FileOrder)] if self._has_files else []
        if not files:
            return list(islice(self._wanted.values(), EFFECTS_MAX))
        others = (each for each in self._wanted.values() if not isinstance(each[1], FileOrder))
        sent = [*islice(others, EFFECTS_MAX), *(files[:FILE_EFFECTS_MAX] if says.cache else ())]
        return sorted(sent, key=lambda each: each[0])

    def _patience(self) -> float | None:
        """How long the thread may wait; None: until an exchange arrives."""
        now = self._settings.clock()
        if self._waiting is not None:
            return max(0.0, self._waiting.due_at - now)
        if self._missed and self._message != NOT_YET:
            return None  # the silence is reported already, and ends with an exchange
        return max(0.1, self._heard_at + self._settings.silent_seconds - now)

    def _answer(self, waiting: _Waiting) -> None:
        if not waiting.answer.set_running_or_notify_cancel():
            return
        try:
            # What it reported is processed before this query: both go through the engine in order.
            expected, unheard = tuple(self._expected()), tuple(self._unheard())
            # Batch jobs that the engine does not know: an earlier process should have cancelled them.
            self.want(
                *(CancelSubmitted(site=self._site, key=key) for key in self._unknown_jobs.overdue(waiting.says.there))
            )
            reply = self._hears(waiting.says, expected, unheard)
        except Exception as fault:  # the caller gets the error
            log.exception("site %s", self._site)
            waiting.answer.set_exception(fault if isinstance(fault, PilotageError) else _stopping())
        else:
            waiting.answer.set_result(_encode(reply))
            if reply.leave:
                self._last_at = float("-inf")  # so that the next agent starts without waiting for this one's silence
            self._given = max(self._given, reply.number)
        with self._change:
            self._heard_at = self._settings.clock()

    def _hears(self, says: SiteAgentMessage, expected: tuple[str, ...], unheard: tuple[str, ...]) -> SiteAgentReply:
        with self._change:
            wanted = self._sendable(says)
        return SiteAgentReply(
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

    def _is_as_started(self, says: SiteAgentMessage) -> bool:
        outpost = self._settings.outpost
        return outpost is None or outpost.is_as_started(says.started_as)

    def _pilot_token(self, until: float) -> str:
        """A new token for the pilots, if theirs expires before the one they could get."""
        make = self._settings.make_token
        if make is None:
            return ""
        now = time.time()
        life_seconds = self._token_until - self._token_made_at
        if not self._token or now > self._token_made_at + life_seconds / 3.0:
            try:
                self._token, self._token_made_at = make(), now
            except PilotageError as fault:
                log.warning("site %s: no token for its pilots, which use that of its agent: %s", self._site, fault)
                return ""
            self._token_until = ends_at(self._token) or 0.0
        # A token that is valid for half of its life or more is kept, to avoid writing the file.
        return self._token if until < now + (self._token_until - self._token_made_at) / 2.0 else ""


def _stopping() -> NotRunning:
    return NotRunning("the service is stopping", next_step="ask again when it is back")
