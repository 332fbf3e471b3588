"""The agent of a site: in its user's account at the cluster, it submits and withdraws pilots as the service wants.

It asks the service, which answers when there is something to do; looks at the batch system; and says what it has seen. All
that counts is in the batch system and in a small file, so that it may end and begin at any moment. Pilots do not need it,
but for the way to the service where that leads through its relay.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.batch import Answer, Unknown, dialects
from pilotage.agent.batch.pilot_job import PilotJobTemplate
from pilotage.agent.batch.submitter import Submitter, in_login_shell
from pilotage.agent.link.connect import TOKEN_FIELD, ends_at, read_token
from pilotage.agent.link.link import LinkBroken
from pilotage.agent.pilot.pilot import say
from pilotage.agent.site.reconcile import EARLIER_SECONDS, Reports, SiteSubmitters, SiteWork
from pilotage.agent.site.state_folder import ASKED, SiteFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.batch import Call
    from pilotage.agent.link.connect import Credentials
    from pilotage.agent.link.link import Answer as HttpAnswer
    from pilotage.agent.link.link import Link
    from pilotage.agent.silent_pilots import Notice
    from pilotage.agent.site.state_folder import SiteRecords


# Commands of the batch system, run on this computer for the agent of a site, and what batch systems there are.

CALL_SECONDS = 50.0
"""So long a command may take: where one hangs, that is told within a minute."""
_NOT_FOUND = 127
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
# Looked up here: between fork and exec nothing may be imported.
_prctl: Any = getattr(ctypes.CDLL(None), "prctl", None)


def run_here(call: Call, *, seconds: float = CALL_SECONDS) -> Answer:
    """Run a command, without a shell and for a limited time; without an exit status where it did not end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
    try:
        process = subprocess.Popen(
            call.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "LC_ALL": "C"},
            start_new_session=True,
            # A submission that outlives who asked for it could come to something after it was looked for.
            preexec_fn=_die_with_us,  # noqa: PLW1509 # it makes one system call, and no lock is taken
        )
    except (FileNotFoundError, PermissionError) as error:
        return Answer(_NOT_FOUND, "", f"{call.argv[0]}: {error.strerror}")
    except OSError as error:
        return Answer(None, "", f"{call.argv[0]}: {error}")
    with process:
        try:
            said = process.communicate(call.stdin.encode("utf-8", "surrogateescape"), timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it started, which holds its output open
            process.communicate()
            return Answer(None, "", f"{call.argv[0]} did not end within {seconds:g} s")
    stdout, stderr = (text.decode("utf-8", "surrogateescape") for text in said)
    return Answer(process.returncode, stdout, stderr)


def _die_with_us() -> None:
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def schedulers_here(run: Callable[[Call], Answer] = run_here) -> dict[str, str]:
    """The batch systems whose commands are here, with their versions; those that were tried on real ones first."""
    found = {}
    for name, kind in sorted(dialects().items(), key=lambda each: (each[1].experimental, each[0])):
        dialect = kind("pilotage")
        version = dialect.version(run(dialect.is_here())) if dialect.version_words else ""
        if version:
            found[name] = version
    return found


BACKOFF_SECONDS = (0.2, 10.0)
DENIED_SECONDS = 10.0
LATE_SECONDS = 30.0  # so much longer than an interval an answer may take
COMPLAIN_SECONDS = 300.0
REST_LOOKS = 12
"""Where nothing of ours is and nothing should be, the batch system is asked so many times as seldom."""
ASKED_SECONDS = 2.0
"""So often it is looked for what may have been submitted: a batch system is not asked each time that the service speaks."""


class CannotDrive(Unknown):
    """The entry of the site names a batch system that this agent cannot drive."""


class SiteAgentSettings(NamedTuple):
    """What the agent of a site is told when it is started."""

    site: str
    version: str = "unknown"
    scheduler: str = "auto"
    settle_seconds: float = EARLIER_SECONDS
    deserted_seconds: float = 0.0  # without the service for so long it ends; 0: never
    started_as: str = ""  # what the service that started it knows this start by; none: somebody else did


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
        run: Callable[[Call], Answer] = run_here,
    ) -> None:
        """Take where it works, what it remembers, and how it reaches the service; nothing is done yet."""
        self._settings = settings
        self._place = place
        self._memory = memory
        self._connect = connect
        self._credentials = credentials
        self._run = run
        self._work = SiteWork(memory, settle_seconds=settings.settle_seconds)
        self._reports = Reports(memory, settings.site)
        self._id = os.urandom(8).hex()
        self._sequence = 0
        self._service, self._heard = "", 0
        self._interval_seconds = 10.0
        self._backoff_seconds = BACKOFF_SECONDS[0]
        self._complained: dict[str, float] = {}
        self._seen: tuple[bool, str] | None = None  # what the batch system was last found to be
        self._seen_said: tuple[bool, str] | None = None
        self._noticed_said: list[Notice] = []
        self._submitter: SiteSubmitters | None = None
        self._submitter_for: tuple[str, str, tuple[str, ...]] = ("", "", ())
        self._scheduler = ""  # what it drives
        self._answered = False  # whether that ever answered
        self._found: str | None = None  # what is here instead, where that was looked for
        self._link: Link | None = None
        self._heard_at = time.monotonic()
        self._looked_at = -math.inf
        self._leaving = ""
        self._awake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> str:
        """Work until it is asked to leave; why it left."""
        while not self._leaving:
            heard = self._exchange()
            self._look()
            if heard:
                self._heard_at = time.monotonic()
            elif 0.0 < self._settings.deserted_seconds <= time.monotonic() - self._heard_at:
                self.ask_to_leave("the service was not reached for too long")
            else:
                self._pause(self._backoff_seconds)
                self._backoff_seconds = min(2.0 * self._backoff_seconds, BACKOFF_SECONDS[1])
        self._drop()
        return self._leaving

    def ask_to_leave(self, reason: str) -> None:
        """From a signal handler or another thread: end soon. Pilots go on."""
        self._leaving = self._leaving or reason
        with contextlib.suppress(OSError):
            os.write(self._wake, b"!")

    # --- the batch system --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look around at the site, and do what is wanted there."""
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
            self._seen = (False, why)
            self._complain("site", f"the batch system does not answer: {why}")
        except OSError as error:
            self._seen = (False, f"the agent of the site cannot work: {error}")
            self._complain("disk", f"cannot work: {error}")
        else:
            self._seen = (True, self._work.message)

    def _is_due(self) -> bool:
        """Whether to look around: not each time that the service has something to say."""
        memory = self._memory
        waits = any(record.state == ASKED for record in memory.records.values())
        pause_seconds = 0.5 * self._interval_seconds
        if not (memory.records or memory.effects or memory.expected):
            pause_seconds *= REST_LOOKS
        return time.monotonic() >= self._looked_at + (min(ASKED_SECONDS, pause_seconds) if waits else pause_seconds)

    def _current_submitter(self) -> SiteSubmitters | None:
        entry, prefix = self._memory.entry, self._memory.prefix
        if entry is None or not prefix:
            return None  # the service was never heard
        scheduler, setup = self._named_scheduler(str(entry.get("kind", ""))), tuple(entry.get("setup") or ())
        if self._submitter is None or self._submitter_for != (scheduler, prefix, setup):
            if scheduler != self._scheduler:
                say(f"the batch system is {scheduler}, as the entry of the site says")
            self._scheduler = self._memory.scheduler = scheduler
            self._submitter_for = (scheduler, prefix, setup)
            self._answered, self._found = False, None
            self._looked_at = -math.inf  # nothing is done before it is known what an earlier process did
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
        """The batch system that the entry names; raises `CannotDrive`."""
        wanted = self._settings.scheduler
        if wanted not in ("auto", kind):
            raise CannotDrive(
                f"its entry says `kind: {kind}`, and its agent was started with --scheduler={wanted}:"
                " start it again without that, or change the entry"
            )
        if kind not in dialects():
            known = ", ".join(dialects())
            raise CannotDrive(
                f"its entry says `kind: {kind}`, and its agent has no such dialect, but {known}:"
                " start it again from the file that `pilotage site pack --output` writes"
            )
        return kind

    def _why_not(self, unknown: Unknown) -> str:
        """What keeps the agent from driving what its entry says: another system may be here instead, or none."""
        if not self._answered and self._found is None and self._submitter is not None:
            run, dialect = self._runs(), dialects()[self._scheduler]("pilotage")
            answer = run(dialect.is_here()) if dialect.version_words else Answer(None)
            is_here = answer.exit_status is None or bool(dialect.version(answer))  # it may hang, and be here
            self._found = "" if is_here else _named(schedulers_here(run))
        if self._answered or not self._found:
            return str(unknown)
        return f"its entry says `kind: {self._scheduler}`, and what is found here is {self._found}: {unknown}"

    def _runs(self) -> Callable[[Call], Answer]:
        """What runs commands of the batch system, as its entry says."""
        setup = self._submitter_for[2]
        return in_login_shell(self._run, setup) if setup else self._run

    def _job_template(self) -> PilotJobTemplate:
        return self._place.job_template(self._memory.entry or {})

    # --- the service ---------------------------------------------------------------------------------------------------

    def _exchange(self) -> bool:
        """Say what there is to say, and wait for the answer; whether it came."""
        self._sequence += 1
        reports = self._reports.due()
        if self._seen is not None and self._seen != self._seen_said:
            answers, message = self._seen
            reports.append(
                {"report": "seen", "site": self._settings.site, "answers": answers, "message": message[:2000]}
            )
        noticed = self._work.noticed
        if noticed != self._noticed_said:
            things = [each._asdict() for each in noticed]
            reports.append({"report": "noticed", "site": self._settings.site, "things": things})
        body = {
            "site": self._settings.site,
            "agent": self._id,
            "sequence": self._sequence,
            "service": self._service,
            "heard": self._heard,
            "version": self._settings.version,
            "scheduler": self._scheduler,
            "started_as": self._settings.started_as,
            "token_until": ends_at(read_token(self._place.pilot_token_file)) or 0.0,
            "reports": reports,
            "there": self._reports.unspoken_of(),
        }
        seen, service = self._seen, self._service
        try:
            answer = self._ask(json.dumps(body).encode())
            if answer is None:
                return False
            if answer.status != 200:
                self._refused(answer)
                return False
            hears = json.loads(answer.body)
            if hears["agent"] != self._id or hears["sequence"] != self._sequence:
                raise LinkBroken("it answers somebody else")
            self._hear(hears, answer)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._drop()
            self._reports.forget()
            self._complain("service", f"no answer from the service: {error}")
            return False
        # Another service may not have heard it, and is told with the next one.
        self._seen_said = seen if self._service == service else None
        self._noticed_said = noticed if self._service == service else []
        return True

    def _ask(self, body: bytes) -> HttpAnswer | None:
        """One request; None where the agent is to leave. A connection that rested and was closed says nothing."""
        for fresh in (False, True):
            if fresh:
                self._drop()
            rested = self._link is not None
            try:
                if self._link is None:
                    self._credentials.look_again()
                    self._link = self._connect()
                self._link.send("POST", "/agent/site", body, fields="Content-Type: application/json\r\n")
                return self._await(self._link)
            except OSError:
                if not rested:
                    raise
        return None

    def _await(self, link: Link) -> HttpAnswer | None:
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
        return None

    def _hear(self, hears: dict[str, Any], answer: HttpAnswer) -> None:
        if self._complained.pop("service", None) is not None:
            say("the service answers")
        if hears["service"] != self._service:
            self._reports.forget()  # another one, which may know less than the last
        self._service, self._heard = str(hears["service"]), int(hears.get("number", 0))
        self._interval_seconds = float(hears.get("interval_seconds", 10.0))
        self._backoff_seconds = BACKOFF_SECONDS[0]
        self._credentials.renewed(answer.fields.get(TOKEN_FIELD, b"").decode("latin-1"))
        if hears.get("token"):
            self._place.keep_pilot_token(str(hears["token"]))
        self._memory.told(hears)
        self._memory.save()
        if hears.get("leave"):
            self.ask_to_leave(str(hears["leave"]))

    def _refused(self, answer: HttpAnswer) -> None:
        told = f"HTTP {answer.status}: {answer.body[:300].decode('utf-8', 'replace')}"
        self._reports.forget()
        self._complain("service", f"the service does not take what this agent says: {told}")
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
        poll.poll(seconds * 1000.0)

    def _complain(self, about: str, text: str) -> None:
        now = time.monotonic()
        if now >= self._complained.get(about, -COMPLAIN_SECONDS) + COMPLAIN_SECONDS:
            self._complained[about] = now
            say(text)


def _named(schedulers: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in schedulers.items()) or "no batch system"
