"""The site agent: submits and cancels pilots from inside a cluster, under its user's account, as the service wants.

It polls the service, which answers when there is something to do; lists the batch system; and reports what it found.
All state is in the batch system and in a small file, so that the agent may end and start at any moment. Pilots do not
need it, unless they reach the service through its relay.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.batch import Answer, Unknown, dialects
from pilotage.agent.batch.pilot_job import PilotJobTemplate
from pilotage.agent.batch.submitter import Submitter, in_login_shell
from pilotage.agent.link.connect import TOKEN_FIELD, ends_at, read_token
from pilotage.agent.link.link import LinkBroken
from pilotage.agent.pilot.pilot import say
from pilotage.agent.site.cache import SiteCache
from pilotage.agent.site.reconcile import EARLIER_SECONDS, Reconciler, Reports, SiteSubmitters
from pilotage.agent.site.state_folder import ASKED, CACHE_FOLDER, SiteFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.batch import Call
    from pilotage.agent.link.connect import Credentials
    from pilotage.agent.link.download import Transfer
    from pilotage.agent.link.link import Answer as HttpAnswer
    from pilotage.agent.link.link import Link
    from pilotage.agent.silent_pilots import BatchJobNotice
    from pilotage.agent.site.state_folder import SiteRecords


# Running commands of the batch system on this computer, and finding out which batch systems are installed.

CALL_SECONDS = 50.0
"""Time limit of a command: one that hangs is reported within a minute."""
_NOT_FOUND = 127
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
# Looked up here: between fork and exec nothing may be imported.
_prctl: Any = getattr(ctypes.CDLL(None), "prctl", None)


def run_here(call: Call, *, seconds: float = CALL_SECONDS) -> Answer:
    """Run a command without a shell, with a time limit; `exit_status` is None if it did not end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
    try:
        process = subprocess.Popen(
            call.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "LC_ALL": "C"},
            start_new_session=True,
            # A submission that outlived this process could be queued after the next one has listed the batch system.
            preexec_fn=_die_with_us,  # noqa: PLW1509 # it makes one system call and takes no lock
        )
    except (FileNotFoundError, PermissionError) as error:
        return Answer(_NOT_FOUND, "", f"{call.argv[0]}: {error.strerror}")
    except OSError as error:
        return Answer(None, "", f"{call.argv[0]}: {error}")
    with process:
        try:
            outputs = process.communicate(call.stdin.encode("utf-8", "surrogateescape"), timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # with its children, which hold its output open
            process.communicate()
            return Answer(None, "", f"{call.argv[0]} did not end within {seconds:g} s")
    stdout, stderr = (text.decode("utf-8", "surrogateescape") for text in outputs)
    return Answer(process.returncode, stdout, stderr)


def _die_with_us() -> None:
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def schedulers_here(run: Callable[[Call], Answer] = run_here) -> dict[str, str]:
    """The installed batch systems with their versions; those tested on real systems first."""
    found = {}
    for name, kind in sorted(dialects().items(), key=lambda each: (each[1].experimental, each[0])):
        dialect = kind("pilotage")
        version = dialect.version(run(dialect.is_here())) if dialect.version_words else ""
        if version:
            found[name] = version
    return found


BACKOFF_SECONDS = (0.2, 10.0)
DENIED_SECONDS = 10.0
LATE_SECONDS = 30.0  # an answer may arrive so much later than the interval
COMPLAIN_SECONDS = 300.0
REST_LOOKS = 12
"""With no batch jobs present or wanted, the batch system is listed so many times less often."""
ASKED_SECONDS = 2.0
"""Least time between two listings for submissions in doubt, however often the service answers."""


class CannotDrive(Unknown):
    """The entry of the site names a batch system that this agent cannot drive."""


class SiteAgentSettings(NamedTuple):
    """Command-line settings of the site agent."""

    site: str
    version: str = "unknown"
    scheduler: str = "auto"
    settle_seconds: float = EARLIER_SECONDS
    deserted_seconds: float = 0.0  # it ends after so long without the service; 0: never
    started_as: str = ""  # identifies this start for the service that made it; empty: started by hand


class SiteAgent:
    """Runs in the main thread; `ask_to_leave` may be called from anywhere."""

    def __init__(
        self,
        settings: SiteAgentSettings,
        place: SiteFolder,
        memory: SiteRecords,
        *,
        connect: Callable[[], Link],
        credentials: Credentials,
        open_transfer: Callable[..., Transfer] | None = None,
        run: Callable[[Call], Answer] = run_here,
    ) -> None:
        self._settings = settings
        self._place = place
        self._memory = memory
        self._connect = connect
        self._credentials = credentials
        self._run = run
        self._work = Reconciler(memory, settle_seconds=settings.settle_seconds)
        self._reports = Reports(memory, settings.site)
        self._id = os.urandom(8).hex()
        self._sequence = 0
        self._service, self._last_number = "", 0
        self._interval_seconds = 10.0
        self._backoff_seconds = BACKOFF_SECONDS[0]
        self._complained: dict[str, float] = {}
        self._batch_state: tuple[bool, str] | None = None  # whether the batch system answered, and why not
        self._batch_state_reported: tuple[bool, str] | None = None
        self._noticed_reported: list[BatchJobNotice] = []
        self._submitter: SiteSubmitters | None = None
        self._submitter_for: tuple[str, str, tuple[str, ...]] = ("", "", ())
        self._scheduler = ""  # the batch system in use
        self._versions: dict[str, str] = {}  # of batch systems that have answered
        self._answered = False  # whether it ever answered
        self._found: str | None = None  # the batch systems installed instead, once looked for
        self._link: Link | None = None
        self._cache = SiteCache(settings.site, open_transfer, wake=self._rouse, say=say) if open_transfer else None
        self._is_roused = False  # there are reports of files, and the open exchange has none
        self._heard_at = time.monotonic()
        self._looked_at = -math.inf
        self._leaving = ""
        self._awake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> str:
        """Work until asked to leave; returns the reason."""
        while not self._leaving:
            answered = self._exchange()
            self._look()
            if answered:
                self._heard_at = time.monotonic()
            elif self._is_roused:
                self._is_roused = False
            elif 0.0 < self._settings.deserted_seconds <= time.monotonic() - self._heard_at:
                self.ask_to_leave("the service could not be reached for too long")
            else:
                self._pause(self._backoff_seconds)
                self._backoff_seconds = min(2.0 * self._backoff_seconds, BACKOFF_SECONDS[1])
        self._drop()
        if self._cache is not None:
            self._cache.stop()
        return self._leaving

    def ask_to_leave(self, reason: str) -> None:
        """End soon; pilots go on. May be called from a signal handler or another thread."""
        self._leaving = self._leaving or reason
        self._rouse()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake, b"!")

    # --- the batch system --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """List the batch system, and submit and cancel as wanted."""
        if self._leaving:
            return
        try:
            self._place.keep_agent()
            submitter = self._current_submitter()
            if submitter is None:
                return
            if self._is_due():
                self._work.look(submitter)
                self._looked_at, self._answered = time.monotonic(), True
            self._work.act(submitter)
        except Unknown as unknown:
            why = str(unknown) if isinstance(unknown, CannotDrive) else self._why_not(unknown)
            self._batch_state = (False, why)
            self._complain("site", f"the batch system does not answer: {why}")
        except OSError as error:
            self._batch_state = (False, f"the site agent cannot work: {error}")
            self._complain("disk", f"cannot work: {error}")
        else:
            self._batch_state = (True, self._work.message)

    def _is_due(self) -> bool:
        """Tell whether to list the batch system: not each time that the service answers."""
        memory = self._memory
        waits = any(record.state == ASKED for record in memory.records.values())
        pause_seconds = 0.5 * self._interval_seconds
        if not (memory.records or memory.effects or memory.expected):
            pause_seconds *= REST_LOOKS
        return time.monotonic() >= self._looked_at + (min(ASKED_SECONDS, pause_seconds) if waits else pause_seconds)

    def _current_submitter(self) -> SiteSubmitters | None:
        entry, prefix = self._memory.entry, self._memory.prefix
        if entry is None or not prefix:
            return None  # the service has not answered yet
        scheduler, setup = self._named_scheduler(str(entry.get("kind", ""))), tuple(entry.get("setup") or ())
        if self._submitter is None or self._submitter_for != (scheduler, prefix, setup):
            if scheduler != self._scheduler:
                say(f"the batch system is {scheduler}, by the entry of the site")
            self._scheduler = self._memory.scheduler = scheduler
            self._submitter_for = (scheduler, prefix, setup)
            self._answered, self._found = False, None
            self._looked_at = -math.inf  # submit nothing before a listing shows what an earlier process did
            self._submitter = SiteSubmitters(
                self._make_submitter(scheduler),
                memory=self._memory,
                others={name: partial(self._make_submitter, name) for name in dialects() if name != scheduler},
                say=lambda text: self._complain("former", text),
            )
        return self._submitter

    def _make_submitter(self, scheduler: str) -> Submitter:
        return Submitter(dialects()[scheduler](self._submitter_for[1]), self._runs(), self._job_template)

    def _named_scheduler(self, kind: str) -> str:
        """The batch system that the site's entry names; raises `CannotDrive`."""
        wanted = self._settings.scheduler
        if wanted not in ("auto", kind):
            raise CannotDrive(
                f"its entry says `kind: {kind}`, but its agent was started with --scheduler={wanted}:"
                " start it again without that option, or change the entry"
            )
        if kind not in dialects():
            known = ", ".join(dialects())
            raise CannotDrive(
                f"its entry says `kind: {kind}`, but its agent only knows {known}:"
                " start it again from the file that `pilotage site pack --output` writes"
            )
        return kind

    def _why_not(self, unknown: Unknown) -> str:
        """Why the agent cannot use the entry's batch system: another one may be installed, or none."""
        if not self._answered and self._found is None and self._submitter is not None:
            run, dialect = self._runs(), dialects()[self._scheduler]("pilotage")
            answer = run(dialect.is_here()) if dialect.version_words else Answer(None)
            is_here = answer.exit_status is None or bool(dialect.version(answer))  # a hanging command is installed, too
            self._found = "" if is_here else _named(schedulers_here(run))
        if self._answered or not self._found:
            return str(unknown)
        return f"its entry says `kind: {self._scheduler}`, but this computer has {self._found}: {unknown}"

    def _version_here(self) -> str:
        """The version of the batch system, once it has answered."""
        if self._answered and self._scheduler not in self._versions:
            dialect = dialects()[self._scheduler]("pilotage")
            self._versions[self._scheduler] = ""
            if dialect.version_words:
                with contextlib.suppress(Unknown):  # it decides nothing
                    self._versions[self._scheduler] = dialect.version(self._runs()(dialect.is_here()))
        return self._versions.get(self._scheduler, "")

    def _runs(self) -> Callable[[Call], Answer]:
        """The function that runs commands of the batch system, with the setup of the entry."""
        setup = self._submitter_for[2]
        return in_login_shell(self._run, setup) if setup else self._run

    def _job_template(self) -> PilotJobTemplate:
        return self._place.job_template(self._memory.entry or {})

    # --- the service ---------------------------------------------------------------------------------------------------

    def _exchange(self) -> bool:
        """Send the reports and wait for the answer; returns whether it arrived."""
        self._sequence += 1
        reports = self._reports.due()
        if self._batch_state is not None and self._batch_state != self._batch_state_reported:
            answers, message = self._batch_state
            reports.append(
                {"report": "seen", "site": self._settings.site, "answers": answers, "message": message[:2000]}
            )
        noticed = self._work.noticed
        if noticed != self._noticed_reported:
            things = [each._asdict() for each in noticed]
            reports.append({"report": "noticed", "site": self._settings.site, "things": things})
        if self._cache is not None:
            reports += self._cache.due()
        body = {
            "site": self._settings.site,
            "agent": self._id,
            "sequence": self._sequence,
            "service": self._service,
            "heard": self._last_number,
            "version": self._settings.version,
            "scheduler": self._scheduler,
            "scheduler_version": self._version_here(),
            "started_as": self._settings.started_as,
            "token_until": ends_at(read_token(self._place.pilot_token_file)) or 0.0,
            "reports": reports,
            "there": self._reports.unspoken_of(),
        }
        if self._cache is not None:
            body["cache"] = str(self._cache_folder())
        batch_state, service = self._batch_state, self._service
        try:
            answer = self._ask(json.dumps(body).encode(), may_rouse=not reports)
            if answer is None:
                return False
            if answer.status != 200:
                self._refused(answer)
                return False
            hears = json.loads(answer.body)
            if hears["agent"] != self._id or hears["sequence"] != self._sequence:
                raise LinkBroken("the answer is for another agent")
            self._hear(hears, answer)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._drop()
            self._forget_reports()
            self._complain("service", f"no answer from the service: {error}")
            return False
        # Another service may not have it, and gets it with the next message.
        self._batch_state_reported = batch_state if self._service == service else None
        self._noticed_reported = noticed if self._service == service else []
        return True

    def _forget_reports(self) -> None:
        """Report everything again."""
        self._reports.forget()
        if self._cache is not None:
            self._cache.forget()

    def _ask(self, body: bytes, *, may_rouse: bool) -> HttpAnswer | None:
        """Send one request; None if the agent is to leave, or to report at once.

        Retries once if an idle connection was closed.
        """
        for fresh in (False, True):
            if fresh:
                self._drop()
            rested = self._link is not None
            try:
                if self._link is None:
                    self._credentials.look_again()
                    self._link = self._connect()
                self._link.send("POST", "/agent/site", body, fields="Content-Type: application/json\r\n")
                return self._await(self._link, may_rouse=may_rouse)
            except OSError:
                if not rested:
                    raise
        return None

    def _await(self, link: Link, *, may_rouse: bool) -> HttpAnswer | None:
        until = time.monotonic() + self._interval_seconds + LATE_SECONDS
        poll = select.poll()
        poll.register(link.fileno(), select.POLLIN)
        poll.register(self._awake, select.POLLIN)
        while not self._leaving:
            left_seconds = until - time.monotonic()
            if left_seconds <= 0:
                raise LinkBroken("no answer in time")
            for descriptor, _ in poll.poll(left_seconds * 1000.0):
                if descriptor == link.fileno():
                    answer = link.receive()
                    if answer is not None:
                        if answer.fields.get(b"connection", b"").lower() == b"close":
                            self._drop()
                        return answer
                elif not self._leaving:
                    self._drain()
                    if may_rouse:  # an exchange with reports is answered at once
                        self._is_roused = True
                        self._drop()
                        return None
        return None

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._awake, 4096)

    def _cache_folder(self) -> Path:
        """The folder of the site for files that are brought there."""
        named = str((self._memory.entry or {}).get("cache") or "")
        return Path(os.path.expanduser(named)) if named else self._place.folder / CACHE_FOLDER

    def _hear(self, hears: dict[str, Any], answer: HttpAnswer) -> None:
        if self._complained.pop("service", None) is not None:
            say("connected to the service")
        if hears["service"] != self._service:
            self._forget_reports()  # another service, which may know less than the last
        self._service, self._last_number = str(hears["service"]), int(hears.get("number", 0))
        self._interval_seconds = float(hears.get("interval_seconds", 10.0))
        self._backoff_seconds = BACKOFF_SECONDS[0]
        self._credentials.renewed(answer.fields.get(TOKEN_FIELD, b"").decode("latin-1"))
        if hears.get("token"):
            self._place.keep_pilot_token(str(hears["token"]))
        self._memory.take_answer(hears)
        self._memory.save()
        if self._cache is not None:
            self._cache.want(self._memory.file_effects, self._cache_folder(), entry=self._memory.entry or {})
        if hears.get("leave"):
            self.ask_to_leave(str(hears["leave"]))

    def _refused(self, answer: HttpAnswer) -> None:
        message = f"HTTP {answer.status}: {answer.body[:300].decode('utf-8', 'replace')}"
        self._forget_reports()
        self._complain("service", f"the service rejects this agent's messages: {message}")
        if answer.status in (401, 403):
            self._credentials.look_again()
            self._backoff_seconds = max(self._backoff_seconds, DENIED_SECONDS)

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _pause(self, seconds: float) -> None:
        if self._leaving:
            return
        poll = select.poll()
        poll.register(self._awake, select.POLLIN)
        if poll.poll(seconds * 1000.0) and not self._leaving:
            self._drain()

    def _complain(self, about: str, text: str) -> None:
        now = time.monotonic()
        if now >= self._complained.get(about, -COMPLAIN_SECONDS) + COMPLAIN_SECONDS:
            self._complained[about] = now
            say(text)


def _named(schedulers: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in schedulers.items()) or "no batch system"
