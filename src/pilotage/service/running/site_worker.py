"""One site at work: what the engine wants done there is done in a thread of its own, and what is seen there is reported.

A batch system that hangs holds up nobody else. Submissions and cancellations may come twice: they are known by their keys.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection

from pilotage.model.effects import CancelSubmitted, SubmitAttempt, SubmitPilot
from pilotage.model.reports import AnyReport, Gone, SiteSeen, SubmissionFailed, Submitted
from pilotage.ports import SiteAccess, SiteUnreachable, SubmissionRefused

log = logging.getLogger(__name__)

AtSite = SubmitPilot | SubmitAttempt | CancelSubmitted
Report = Callable[[AnyReport], None]
Expected = Callable[[], Collection[str]]
"""The keys of everything that the site once said it took, and that is not known to be over."""

POLL_SECONDS = 2.0
UNREACHABLE_SECONDS_MAX = 60.0


class SiteWorker:
    """A thread that acts at one site and looks around there from time to time."""

    def __init__(
        self,
        site: str,
        access: SiteAccess,
        *,
        report: Report,
        expected: Expected,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Take who is told of what is seen, and who knows what should be; nothing runs before `start`."""
        self._site = site
        self._access = access
        self._report = report
        self._expected = expected
        self._poll_seconds = poll_seconds
        self._thread = threading.Thread(target=self._run, name=f"site {site}", daemon=True)
        self._change = threading.Condition()
        self._wanted: deque[AtSite] = deque()
        self._stopping = False
        self._answers: bool | None = None  # whether the site did, when it was last asked
        self._pause_seconds = poll_seconds
        self._cancelled: set[str] = set()

    def start(self) -> None:
        """Begin; the first thing is a look around."""
        self._thread.start()

    def want(self, effect: AtSite) -> None:
        """Have something done, in order."""
        with self._change:
            self._wanted.append(effect)
            self._change.notify()

    def stop(self) -> None:
        """End; what runs at the site goes on."""
        with self._change:
            self._stopping = True
            self._change.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._access.close()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._look()
                self._work()
                self._seen(answers=True)
                self._pause_seconds = self._poll_seconds
            except SiteUnreachable as fault:
                self._seen(answers=False, message=str(fault))
                self._pause_seconds = min(2 * self._pause_seconds, UNREACHABLE_SECONDS_MAX)
            except Exception as fault:  # one surprise must not end the work of a site for ever
                log.exception("site %s", self._site)
                self._seen(answers=False, message=f"{type(fault).__name__}: {fault}")
                self._pause_seconds = min(2 * self._pause_seconds, UNREACHABLE_SECONDS_MAX)
            with self._change:
                wanted = self._wanted and self._answers
                if not wanted:
                    self._change.wait_for(lambda: self._stopping or self._wanted_now(), timeout=self._pause_seconds)

    def _wanted_now(self) -> bool:
        return bool(self._wanted) and bool(self._answers)

    def _work(self) -> None:
        while self._wanted and not self._stopping:
            self._do(self._wanted[0])
            self._wanted.popleft()

    def _do(self, effect: AtSite) -> None:
        if isinstance(effect, CancelSubmitted):
            self._access.cancel(effect.key)
            self._cancelled.add(effect.key)
            return
        try:
            native_id = self._submit(effect)
        except SubmissionRefused as refused:
            self._report(SubmissionFailed(site=self._site, key=effect.key, reason=refused.reason, message=str(refused)))
        else:
            self._report(Submitted(site=self._site, key=effect.key, native_id=native_id))

    def _submit(self, effect: SubmitPilot | SubmitAttempt) -> str:
        if isinstance(effect, SubmitPilot):
            return self._access.submit_pilot(effect.key)
        return self._access.submit_attempt(effect.key, ref=effect.ref, demand=effect.demand)

    def _look(self) -> None:
        """Report what has ended, and what the engine believes to be there and is not."""
        expected = self._expected()  # before the listing: what comes in between is not missed in it
        listed = self._access.listing()
        for key, seen in listed.items():
            if seen.ended:
                self._report(Gone(site=self._site, key=key, reason=seen.reason or "ended", stderr=seen.stderr))
        for key in expected:
            if key not in listed:
                self._report(Gone(site=self._site, key=key, reason="vanished"))
        for key in [key for key in self._cancelled if key not in listed or listed[key].ended]:
            self._cancelled.discard(key)
            if key not in listed:  # what is told to end and is not there has ended, whoever knew of it
                self._report(Gone(site=self._site, key=key, reason="cancelled"))

    def _seen(self, *, answers: bool, message: str = "") -> None:
        if answers != self._answers:
            if self._answers is not None or not answers:
                self._report(SiteSeen(site=self._site, answers=answers, message=message))
            self._answers = answers
