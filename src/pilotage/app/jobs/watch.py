"""Watches a job until it is over: its progress, and its packages as they end.

If the service stops, it waits, or starts the service again if it may; nothing is reported twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from pilotage.app.service.session import JobGone
from pilotage.app.sites.entries import LOCAL
from pilotage.client import Server, ServerError, ServerRefused
from pilotage.client.jobs import Jobs
from pilotage.client.server import Parameters, path_of
from pilotage.model.answers import Progress
from pilotage.model.errors import PilotageError
from pilotage.model.exit_codes import ExitCode
from pilotage.model.states import FINAL_NAMES

PAUSE_SECONDS_MIN = 0.03
PAUSE_SECONDS_MAX = 0.5
GONE_SECONDS_MAX = 60.0
"""How long to wait for a service that does not answer; the job may continue unwatched."""
_PAUSE_GROWTH = 0.02  # a long-running job needs less frequent updates
_STUCK_LOOKS = 3
_EXIT_CODE_MAX = 255  # of a process
_PACKAGES_ASKED_FOR = 1000  # when a run is interrupted: enough to report where packages continue
_WAIT_SECONDS = 10.0
_ENDINGS = "type in (CommitGranted, Aborted, CancelAccepted)"

Result = TypeVar("Result")


Connect = Callable[[], Server]


class JobWatcher:
    """A job at a service, watched by one thread at a time."""

    def __init__(
        self,
        connect: Connect,
        job: str,
        *,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`connect` returns a connection, each time it is called; setting `stop` ends the watching soon."""
        self.job = job
        self._connect = connect
        self._stop = stop or threading.Event()
        self._clock = clock
        self._server: Server | None = None
        self._after = 0
        self._was_found = False

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def progress(self) -> Progress:
        """The present progress."""
        try:
            found = self.ask(lambda server: Jobs(server).progress(self.job))
        except ServerRefused as error:
            if error.code == "unknown_job" and self._was_found:
                raise JobGone(self.job) from error
            raise
        self._was_found = True
        return found

    def killed_for(self) -> str:
        """The message with which it was killed."""
        return self.ask(lambda server: Jobs(server).killed_for(self.job))

    def until_over(self) -> Iterator[Progress]:
        """Yield the progress until the job is over, nothing can move, or it is stopped; the last one is final."""
        begun = self._clock()
        stuck = 0
        while not self._stop.is_set():
            progress = self.progress()
            if is_over(progress):
                # The book is written before files are published; an answer after that waits for them. Then something
                # may be pending again, such as the end of a cancelled attempt.
                progress = self.progress()
                if is_over(progress):
                    yield progress
                    return
            yield progress
            # It may look stuck between two steps of the service.
            stuck = stuck + 1 if progress.stuck else 0
            if stuck >= _STUCK_LOOKS:
                return
            pause = PAUSE_SECONDS_MIN + _PAUSE_GROWTH * (self._clock() - begun)
            self._stop.wait(min(pause, PAUSE_SECONDS_MAX))

    def finished(self, *, wait_seconds: float = 0.0) -> list[str]:
        """The packages that ended since the last call, in the order of the book."""
        found: dict[str, None] = {}
        more = True
        while more:
            page = self._events(wait_seconds)
            found |= dict.fromkeys(event["package"] for event in page["events"] if event["package"])
            self._after, more, wait_seconds = page["after"], page["more"], 0.0
        if found:
            # The book is written before files are published and logs stored; an answer after that waits for them.
            self.progress()
        return list(found)

    def _events(self, wait_seconds: float) -> Any:
        asked: Parameters = {"query": _ENDINGS, "after": self._after, "limit": 1000, "wait_seconds": wait_seconds}
        return self.ask(lambda server: server.get(path_of("jobs", self.job, "events"), asked))

    def packages(self) -> Iterator[str]:
        """Each package as it ends, until the job is over."""
        over = False
        while not self._stop.is_set():
            # Read before the events: packages that end with the job are reported, too.
            progress = self.progress()
            over = is_over(progress) or bool(progress.stuck)
            yield from self.finished(wait_seconds=0.0 if over else _WAIT_SECONDS)
            if over:
                return

    def ask(self, question: Callable[[Server], Result]) -> Result:
        """Send a request, waiting while the service is away."""
        until: float | None = None
        pause = PAUSE_SECONDS_MIN
        while True:
            try:
                if self._server is None:
                    self._server = self._connect()
                return question(self._server)
            except ServerError as error:
                self.close()
                now = self._clock()
                until = now + GONE_SECONDS_MAX if until is None else until
                if not error.retryable or now >= until or self._stop.is_set():
                    raise
            self._stop.wait(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)


def is_over(progress: Progress) -> bool:
    """Whether a job has ended for good, and its files are published."""
    return progress.state in FINAL_NAMES and not progress.running and not progress.unpublished


def exit_code_of(progress: Progress) -> int:
    """The exit code of a command that watched a job; a package that ended the job may determine it."""
    if progress.held and not is_over(progress):
        return ExitCode.STOPPED
    if is_over(progress) and progress.result is not None and 0 <= progress.result <= _EXIT_CODE_MAX:
        return progress.result
    lost = progress.failed or progress.cancelled or progress.given_up or progress.unmade
    if is_over(progress) and not lost and progress.state in ("DONE", "CLEARED"):
        return ExitCode.COMPLETE
    return ExitCode.FAILED


def goes_on_elsewhere(server: Server, job: str) -> str:
    """How many packages of a job continue at other sites after this service has stopped; empty if none is known to."""
    found: Counter[str] = Counter()
    with suppress(PilotageError):  # a service that does not answer is stopped all the same
        asked: Parameters = {"query": f"job={job} and state in (SCHEDULED, RUNNING)", "limit": _PACKAGES_ASKED_FOR}
        for package in server.get(path_of("packages"), asked)["packages"]:
            if package["site"] not in (None, "", LOCAL):
                found[package["site"]] += 1
    counts = ", ".join(f"{count} at {site}" for site, count in sorted(found.items()))
    return f"packages running elsewhere continue, and their results are kept: {counts}" if counts else ""
