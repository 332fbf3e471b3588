"""The supervisor of an agent: its parent, to which every orphan among its descendants comes, so that none is left over.

When the agent dies, the supervisor kills whatever the agent started; when the supervisor dies, the system tells the
agent, which ends everything and itself. What survives the sudden death of both is swept by the next pilot of the state
folder. The agent is a fork: one interpreter starts, and the lock of the spool and of the record belongs to both.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotage.agent.attempt.files import get_ready
from pilotage.agent.attempt.workplace import Workplace
from pilotage.agent.link.connect import Credentials, announced, connect
from pilotage.agent.pilot.exchange import Exchanger
from pilotage.agent.pilot.fetch import ServerFetch
from pilotage.agent.pilot.pilot import Pilot, say
from pilotage.agent.pilot.spool import Owner, claim, release
from pilotage.agent.pilot.takeover import (
    DeadPilot,
    clean_up,
    deliver,
    find_dead_pilots,
    has_results,
    own_credentials,
    release_lock,
)
from pilotage.agent.processes import (
    adopted,
    become_subreaper,
    die_with_parent,
    end_descendants,
    reap_adopted,
    started_at,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.link.link import Link
    from pilotage.agent.pilot.pilot import PilotSettings

FAILED = 1
UNDELIVERED = 3  # it ended by itself, and the service does not know everything
SLOT_FILES = 8  # that a slot has open at most: its folder, its logs, a token, and what leads to its command
OWN_FILES = 64
BATCH_SYSTEM_SECONDS = 45.0
"""So long it may take until it is known from its batch system how a batch job ended: it is looked at now and then."""


class Record:
    """The file in which a site keeps what it started; it is locked as long as this process or its agent lives."""

    def __init__(self, descriptor: int) -> None:
        """Take an open file, or -1: nobody wants to know."""
        self._descriptor = descriptor
        self._said: dict[str, Any] = {}
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)

    def say(self, **said: object) -> None:
        """Add to what the file says."""
        if self._descriptor < 0:
            return
        self._said.update(said)
        text = json.dumps(self._said).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))


def supervise(settings: PilotSettings, record: Record) -> int:
    """Run a pilot under a supervisor, which this process becomes; the exit status."""
    own = os.getpid()
    credentials = Credentials(settings.token_file, settings.own_token_file)
    record.say(pid=own, started=started_at(own), pilot=settings.pilot)
    lock = claim(settings.spool, Owner(settings.pilot, settings.site, settings.request))
    become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    agent = os.fork()
    if agent == 0:
        os._exit(_run_pilot(settings, record, credentials, supervisor=own))
    _pass_on_signals(agent, settings.grace_seconds)
    status = _wait(agent)
    end_descendants(own)
    _reap()
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, UNDELIVERED):
        return os.WEXITSTATUS(status)
    reason = "killed" if os.WIFSIGNALED(status) else "failed"
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
    say(f"the agent ended with {how}; what it ran is killed")
    record.say(ended=reason)
    left = DeadPilot(settings.pilot, settings.site, settings.request, lock)
    clean_up(left, scratch=settings.scratch.parent)
    deliver(left, spool=settings.spool, credentials=credentials, connect=_reaching(settings), reason=reason)
    return FAILED


def _pass_on_signals(agent: int, grace_seconds: float) -> None:
    def end(_number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, grace_seconds + 2.0)

    def end_now(_number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end_now)
    signal.signal(signal.SIGTERM, end)


def _wait(agent: int) -> int:
    """Reap whatever dies, until the agent does; its status."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            return status


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _connecting(settings: PilotSettings, credentials: Credentials) -> Callable[[], Link]:
    return lambda: credentials.connect(settings.server, **settings.reach)


def _reaching(settings: PilotSettings) -> Callable[[Credentials], Link]:
    return lambda shown: shown.connect(settings.server, **settings.reach)


# --- the agent -------------------------------------------------------------------------------------------------------


def _run_pilot(settings: PilotSettings, record: Record, credentials: Credentials, *, supervisor: int) -> int:
    """What the agent does, from its first moment to its last; its exit status."""
    try:
        return _pilot(settings, record, credentials, supervisor=supervisor)
    except BaseException:  # noqa: BLE001 # a forked process must not run on into what its parent does
        import traceback

        say(traceback.format_exc())
        return FAILED


def _pilot(settings: PilotSettings, record: Record, credentials: Credentials, *, supervisor: int) -> int:
    exchanger = Exchanger(settings, credentials)
    _obey_signals(exchanger, supervisor=supervisor)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != supervisor:
        return FAILED
    if adopted() is not None:
        become_subreaper()  # so that, should the supervisor die, orphans are still known as ours
    gc.freeze()  # what is there now stays: it is not looked through again, and its pages stay shared with the supervisor
    gc.set_threshold(20_000, 50, 50)
    gc.enable()
    have_files_for(settings.capacity.cores_hundredths // 100)
    connecting = _connecting(settings, credentials)
    told_by_service = announced(settings.announcement)
    scratch = settings.scratch
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    workplace = Workplace(
        scratch=str(scratch),
        pilot=settings.pilot,
        site=settings.site,
        node=settings.node,
        server=told_by_service.url or settings.server,
        ca_file=settings.ca_file or told_by_service.ca_file,
        spool=str(settings.spool / "applications"),
        keep=str(Path(settings.state) / "kept"),
        sole=True,
        connect=lambda token: connect(settings.server, token=token, **settings.reach),
        grace_seconds=min(5.0, 0.5 * settings.grace_seconds),  # what does not heed is killed, and that is told, in time
    )

    def look_after() -> None:
        get_ready()  # a second after the start: the first packages had better come first
        reap_adopted()
        workplace.left_events.look()

    fetch = ServerFetch(scratch / "content", connecting, is_over=lambda: pilot.closing)
    pilot = Pilot(settings, workplace=workplace, fetch=fetch, on_news=exchanger.on_news, on_slots=have_files_for)
    exchanger.look_after = look_after
    _take_over_dead(settings)
    told = exchanger.run(pilot)
    end_descendants(os.getpid())
    fetch.close()
    workplace.close()
    clean_up(DeadPilot(settings.pilot, "", "", -1), scratch=scratch.parent)
    if told:
        release(settings.spool, settings.pilot)
    record.say(ended=pilot.ended or "unheard")
    return 0 if told else UNDELIVERED


def have_files_for(slots: int) -> None:
    """May have open what so many slots need, as far as the system lets us; what they run inherits no more than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OWN_FILES + SLOT_FILES * slots
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _obey_signals(exchanger: Exchanger, *, supervisor: int) -> None:
    """Leave when told to, or when the supervisor is gone; the terminal is not ours."""

    def leave(_number: int, _frame: object) -> None:
        exchanger.ask_to_leave("terminated" if os.getppid() == supervisor else "supervisor-gone")

    signal.signal(signal.SIGTERM, leave)


def _take_over_dead(settings: PilotSettings) -> None:
    """End what dead pilots of the state folder left running, now; and tell what they could not, beside the work."""
    dead = find_dead_pilots(settings.spool)
    for each in dead:
        clean_up(each, scratch=settings.scratch.parent)

    def tell() -> None:
        # How a batch job ended its batch system knows, and here nobody does: it has the first word.
        if settings.in_batch_job and not any(has_results(each, spool=settings.spool) for each in dead):
            time.sleep(BATCH_SYSTEM_SECONDS)
        for each in dead:
            shown = own_credentials(each, spool=settings.spool, token_file=settings.token_file)
            if not deliver(each, spool=settings.spool, credentials=shown, connect=_reaching(settings)):
                say(f"what the dead pilot {each.pilot} left could not be told yet; the next one will")
            release_lock(each)

    if dead:
        threading.Thread(target=tell, name="takeover", daemon=True).start()
