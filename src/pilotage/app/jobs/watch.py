"""Following a job until it is over: how far it is, and its packages as they finish.

A service that goes away is waited for, or started again by whoever may; what was seen before is not told twice.
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
"""A service that does not answer for this long is given up; the job may go on without anybody who watches."""
_PAUSE_GROWTH = 0.02  # a job that has run for long may be looked at less often
_STUCK_LOOKS = 3
_EXIT_CODE_MAX = 255  # of a process
_PACKAGES_ASKED_FOR = 1000  # when a run is interrupted: enough to say where something goes on
_WAIT_SECONDS = 10.0
_ENDINGS = "type in (CommitGranted, Aborted, CancelAccepted)"

Told = TypeVar("Told")


Connect = Callable[[], Server]


class JobWatcher:
    """A job at a service, looked at again and again; one thread at a time."""

    def __init__(
        self,
        connect: Connect,
        job: str,
        *,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`connect` gives a connection, each time it is asked; `stop`, once set, ends the following soon."""
        self.job = job
        self._connect = connect
        self._stop = stop or threading.Event()
        self._clock = clock
        self._server: Server | None = None
        self._after = 0
        self._seen = False

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def progress(self) -> Progress:
        """How far it is now."""
        try:
            found = self.ask(lambda server: Jobs(server).progress(self.job))
        except ServerRefused as error:
            if error.code == "unknown_job" and self._seen:
                raise JobGone(self.job) from error
            raise
        self._seen = True
        return found

    def killed_for(self) -> str:
        """What was said when it was killed."""
        return self.ask(lambda server: Jobs(server).killed_for(self.job))

    def until_over(self) -> Iterator[Progress]:
        """How far it is, time and again, until it is over, nothing can move, or it is stopped; the last is the end."""
        begun = self._clock()
        stuck = 0
        while not self._stop.is_set():
            progress = self.progress()
            if is_over(progress):
                # The book is written before files get their names; whoever is asked after that has seen to them.
                # Something may be on its way once more then, such as the end of an attempt that was cancelled.
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
        """The packages that finished, well or not, since this was last asked, in the order of the book."""
        found: dict[str, None] = {}
        more = True
        while more:
            page = self._events(wait_seconds)
            found |= dict.fromkeys(event["package"] for event in page["events"] if event["package"])
            self._after, more, wait_seconds = page["after"], page["more"], 0.0
        if found:
            # The book is written before files get their names and logs are kept; who is asked after that has seen to them.
            self.progress()
        return list(found)

    def _events(self, wait_seconds: float) -> Any:
        asked: Parameters = {"query": _ENDINGS, "after": self._after, "limit": 1000, "wait_seconds": wait_seconds}
        return self.ask(lambda server: server.get(path_of("jobs", self.job, "events"), asked))

    def packages(self) -> Iterator[str]:
        """Each package as it finishes, until the job is over."""
        over = False
        while not self._stop.is_set():
            # Looked at before the events: what came with the end is told, too.
            progress = self.progress()
            over = is_over(progress) or bool(progress.stuck)
            yield from self.finished(wait_seconds=0.0 if over else _WAIT_SECONDS)
            if over:
                return

    def ask(self, question: Callable[[Server], Told]) -> Told:
        """An answer, waited for while the service is away."""
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
    """Whether nothing more will come of a job, and its files lie under their names."""
    return progress.state in FINAL_NAMES and not progress.running and not progress.unpublished


def exit_code_of(progress: Progress) -> int:
    """How a command ends that followed a job to here; a package that has ended the job may have its own say."""
    if progress.held and not is_over(progress):
        return ExitCode.STOPPED
    if is_over(progress) and progress.result is not None and 0 <= progress.result <= _EXIT_CODE_MAX:
        return progress.result
    lost = progress.failed or progress.cancelled or progress.given_up or progress.unmade
    if is_over(progress) and not lost and progress.state in ("DONE", "CLEARED"):
        return ExitCode.COMPLETE
    return ExitCode.FAILED


def goes_on_elsewhere(server: Server, job: str) -> str:
    """Say how many packages of a job go on at other sites after this service has stopped; empty if none is known to."""
    found: Counter[str] = Counter()
    with suppress(PilotageError):  # who does not answer is stopped all the same
        asked: Parameters = {"query": f"job={job} and state in (SCHEDULED, RUNNING)", "limit": _PACKAGES_ASKED_FOR}
        for package in server.get(path_of("packages"), asked)["packages"]:
            if package["site"] not in (None, "", LOCAL):
                found[package["site"]] += 1
    told = ", ".join(f"{count} at {site}" for site, count in sorted(found.items()))
    return f"what runs elsewhere goes on and is kept: {told}" if told else ""
