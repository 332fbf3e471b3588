"""The supervisor of an agent: its parent process, which adopts all orphaned descendants, so that none is left over.

When the agent dies, the supervisor kills everything that the agent started; when the supervisor dies, the system
signals the agent, which ends everything and itself. If both die at once, the next pilot of the state folder kills the
rest. The agent is a fork: only one interpreter starts, and the locks of the spool and of the record belong to both.
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
UNDELIVERED = 3  # the agent ended normally, with undelivered events
SLOT_FILES = 8  # open files per slot: its folder, its logs, a token, and the pipes to its command
OWN_FILES = 64
BATCH_SYSTEM_SECONDS = 45.0
"""The batch system is polled, so the end of a batch job may be known only after this time."""


class PilotRecord:
    """The file in which a site records what it started; locked as long as this process or its agent lives."""

    def __init__(self, descriptor: int) -> None:
        """Take an open file, or -1 for none."""
        self._descriptor = descriptor
        self._fields: dict[str, Any] = {}
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)

    def say(self, **fields: object) -> None:
        """Append fields to the record."""
        if self._descriptor < 0:
            return
        self._fields.update(fields)
        text = json.dumps(self._fields).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))


def supervise(settings: PilotSettings, record: PilotRecord) -> int:
    """Become the supervisor of a pilot; returns the exit status."""
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
    say(f"the agent ended with {how}; its processes are killed")
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
    """Reap all children until the agent ends; returns its wait status."""
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


def _run_pilot(settings: PilotSettings, record: PilotRecord, credentials: Credentials, *, supervisor: int) -> int:
    """Run the pilot in the forked agent; returns the exit status."""
    try:
        return _pilot(settings, record, credentials, supervisor=supervisor)
    except BaseException:  # noqa: BLE001 # a forked child must never return into its parent's code
        import traceback

        say(traceback.format_exc())
        return FAILED


def _pilot(settings: PilotSettings, record: PilotRecord, credentials: Credentials, *, supervisor: int) -> int:
    exchanger = Exchanger(settings, credentials)
    _obey_signals(exchanger, supervisor=supervisor)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != supervisor:
        return FAILED
    if adopted() is not None:
        become_subreaper()  # if the supervisor dies, orphans still come to us
    gc.freeze()  # never collect objects loaded so far: their pages stay shared with the supervisor
    gc.set_threshold(20_000, 50, 50)
    gc.enable()
    have_files_for(settings.capacity.cores_hundredths // 100)
    connecting = _connecting(settings, credentials)
    announcement = announced(settings.announcement)
    scratch = settings.scratch
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    workplace = Workplace(
        scratch=str(scratch),
        pilot=settings.pilot,
        site=settings.site,
        node=settings.node,
        server=announcement.url or settings.server,
        ca_file=settings.ca_file or announcement.ca_file,
        spool=str(settings.spool / "applications"),
        keep=str(Path(settings.state) / "kept"),
        sole=True,
        connect=lambda token: connect(settings.server, token=token, **settings.reach),
        grace_seconds=min(5.0, 0.5 * settings.grace_seconds),  # leaves time to kill and to report
    )

    def look_after() -> None:
        get_ready()  # a second after the start: the first packages go first
        reap_adopted()
        workplace.left_events.look()

    fetch = ServerFetch(scratch / "content", connecting, is_over=lambda: pilot.closing, checksums=workplace.known)
    pilot = Pilot(
        settings,
        workplace=workplace,
        fetch=fetch,
        on_news=exchanger.on_news,
        on_slots=have_files_for,
        damaged=workplace.damaged,
    )
    exchanger.look_after = look_after
    _take_over_dead(settings)
    delivered = exchanger.run(pilot)
    end_descendants(os.getpid())
    fetch.close()
    workplace.close()
    clean_up(DeadPilot(settings.pilot, "", "", -1), scratch=scratch.parent)
    if delivered:
        release(settings.spool, settings.pilot)
    record.say(ended=pilot.ended or "unheard")
    return 0 if delivered else UNDELIVERED


def have_files_for(slots: int) -> None:
    """Raise the limit of open files for so many slots, as far as the system allows; commands do not inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OWN_FILES + SLOT_FILES * slots
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _obey_signals(exchanger: Exchanger, *, supervisor: int) -> None:
    """Leave on a signal, or when the supervisor dies; ignore the terminal's signals."""

    def leave(_number: int, _frame: object) -> None:
        exchanger.ask_to_leave("terminated" if os.getppid() == supervisor else "supervisor-gone")

    signal.signal(signal.SIGTERM, leave)


def _take_over_dead(settings: PilotSettings) -> None:
    """Kill processes of dead pilots in the state folder now; deliver their events in the background."""
    dead = find_dead_pilots(settings.spool)
    for each in dead:
        clean_up(each, scratch=settings.scratch.parent)

    def tell() -> None:
        # The batch system knows how a batch job ended, and we do not: its report goes first.
        if settings.in_batch_job and not any(has_results(each, spool=settings.spool) for each in dead):
            time.sleep(BATCH_SYSTEM_SECONDS)
        for each in dead:
            shown = own_credentials(each, spool=settings.spool, token_file=settings.token_file)
            if not deliver(each, spool=settings.spool, credentials=shown, connect=_reaching(settings)):
                say(f"events of the dead pilot {each.pilot} could not be delivered; the next pilot tries again")
            release_lock(each)

    if dead:
        threading.Thread(target=tell, name="takeover", daemon=True).start()
