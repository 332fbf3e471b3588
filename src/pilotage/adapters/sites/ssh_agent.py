"""The agent of a site that is reached only over ssh from here: a way back to the service is kept open, and the agent is started.

One connection of ssh forwards a socket of the login node to that of the service, so that the agent there reaches it without
any port being open anywhere; it is opened again when it ends. The agent is started in the user's account over the same
connection, so on the same login node, when it was not heard for a while: it runs on by itself, and a second one ends at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from pilotage.adapters.sites.commands import Ssh
from pilotage.adapters.sites.install import Installation
from pilotage.agent.batch import Call, Unknown
from pilotage.agent.batch.submitter import in_login_shell
from pilotage.model.errors import PilotageError
from pilotage.model.sites.entry import SiteEntry

log = logging.getLogger(__name__)

AGAIN_SECONDS = (1.0, 60.0)
UNHEARD_SECONDS = 20.0
"""An agent that was not heard for so long is started, though perhaps in vain: one that lives is let alone."""
DESERTED_SECONDS = 900
"""An agent that reaches no service for so long ends: another login node may be ours by now."""
READY_SECONDS = 45.0
STOP_SECONDS = 5.0
_READY = b"pilotage-ready\n"

# In /tmp, which every login node has to itself: not every shared file system takes sockets. Nobody else may put one there.
_SOCKET = """\
umask 077
folder=/tmp/{prefix}-$(id -u)
mkdir -m 700 "$folder" 2>/dev/null
if [ -L "$folder" ] || [ ! -O "$folder" ]; then echo "$folder is somebody else's" >&2; exit 1; fi
chmod 700 "$folder" && rm -f "$folder/server.sock" && echo "here:$folder/server.sock"
"""
_START = """\
umask 077
cd {folder} || exit
{check} >/dev/null || exit
nohup setsid {command} >>site-agent.log 2>&1 </dev/null &
"""


class OutpostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to have an agent at a site."""

    entry: SiteEntry
    prefix: str
    socket: Path  # of the service
    token: Callable[[], str]  # for the agent
    unheard_seconds: float = UNHEARD_SECONDS
    options: tuple[str, ...] = ()  # of the agent, besides


class Outpost:
    """Keeps the way open and the agent there, from `start` to `stop`."""

    def __init__(self, settings: OutpostSettings, caller: Ssh) -> None:
        """Take the way there; nothing is called yet."""
        self._settings = settings
        self._caller = caller
        self._installation = Installation(
            caller,
            folder=settings.entry.folder,
            prefix=settings.prefix,
            ca_file=lambda: None,  # the socket of one's own is believed
            token=settings.token,
        )
        self._heard_at: Callable[[], float] = lambda: 0.0
        self._complain: Callable[[str], None] = lambda _: None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"outpost {settings.entry.name}", daemon=True)
        self._connection: subprocess.Popen[bytes] | None = None
        self._mark = ""  # of agents that are started as the entry says now; none before that is known
        self._complaint = ""  # what was last said of why there is no way
        self._guard = threading.Lock()

    def start(self, *, heard_at: Callable[[], float], complain: Callable[[str], None]) -> None:
        """Begin; `heard_at` tells when the agent was last heard, by the clock that only goes on."""
        self._heard_at = heard_at
        self._complain = complain
        self._thread.start()

    def stop(self) -> None:
        """Hang up; the agent goes on, and waits."""
        self._stopping.set()
        with self._guard:
            if self._connection is not None:
                _end(self._connection)
        if self._thread.ident is not None:
            self._thread.join()
        self._caller.close()

    def is_as_started(self, mark: str) -> bool:
        """Whether an agent that was started with a mark is as one would be that is started now."""
        return not mark or not self._mark or mark == self._mark

    def _run(self) -> None:
        again_seconds = AGAIN_SECONDS[0]
        while not self._stopping.is_set():
            opened_at = time.monotonic()
            try:
                self._hold()
            except (Unknown, OSError, PilotageError) as fault:
                self._failed(str(fault))
            except Exception as fault:  # one surprise must not end the way to a site for ever
                log.exception("site %s", self._settings.entry.name)
                self._failed(f"{type(fault).__name__}: {fault}")
            if time.monotonic() - opened_at > AGAIN_SECONDS[1]:
                again_seconds = AGAIN_SECONDS[0]  # it held for a while
            self._stopping.wait(again_seconds)
            again_seconds = min(2.0 * again_seconds, AGAIN_SECONDS[1])

    def _failed(self, message: str) -> None:
        if not self._stopping.is_set():
            if message != self._complaint:  # it is tried again every minute, perhaps for days
                self._complaint = message
                log.warning("site %s: %s", self._settings.entry.name, message)
            self._complain(message)

    def _hold(self) -> None:
        """Open the way and look after the agent as long as it stays open; raises where it does not open."""
        with tempfile.TemporaryFile() as said:
            connection = self._open(said.fileno())
            try:
                if self._is_ready(connection):
                    self._complaint = ""
                    self._look_after(connection)
            finally:
                _end(connection)
                with self._guard:
                    self._connection = None
            said.seek(0)
            text = " ".join(said.read(4000).decode("utf-8", "replace").split())
        if not self._stopping.is_set():
            raise Unknown(f"ssh {self._caller.host}: {text or 'the connection ended'}")

    def _open(self, said: int) -> subprocess.Popen[bytes]:
        # It ends with its input, so with us, however we end.
        words = self._caller.held(f"echo {_READY.decode().strip()}; exec cat >/dev/null")
        with self._guard:
            if self._stopping.is_set():
                raise OSError("the service is stopping")
            self._connection = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True
            )
            return self._connection

    def _is_ready(self, connection: subprocess.Popen[bytes]) -> bool:
        assert connection.stdout is not None
        watchdog = threading.Timer(READY_SECONDS, connection.kill)
        watchdog.start()
        try:
            return any(line == _READY for line in iter(connection.stdout.readline, b""))
        finally:
            watchdog.cancel()

    def _look_after(self, connection: subprocess.Popen[bytes]) -> None:
        folder = self._installation.ensure()
        self._mark = mark_of(self._settings.entry, self._installation.agent)
        socket = self._socket()
        self._caller.forward(there=socket, here=self._settings.socket)
        tried_at = float("-inf")
        while connection.poll() is None and not self._stopping.is_set():
            now = time.monotonic()
            if now - max(self._heard_at(), tried_at) >= self._settings.unheard_seconds:
                tried_at = now
                self._start(folder, socket)
            self._installation.refresh()
            self._stopping.wait(1.0)

    def _socket(self) -> str:
        """A place for a socket at the login node, which is ours alone."""
        answer = self._caller.run(Call(("sh",), _SOCKET.format(prefix=self._settings.prefix)))
        told = [line for line in answer.stdout.splitlines() if line.startswith("here:")]
        if answer.exit_status != 0 or not told:
            raise Unknown(f"no place for a socket: {' '.join(answer.stderr.split())}")
        return told[0].partition(":")[2]

    def _start(self, folder: str, socket: str) -> None:
        entry = self._settings.entry
        words = [entry.python, "-I", "-S", self._installation.agent, "site", f"--server=unix:{socket}"]
        words += [f"--site={entry.name}", f"--folder={folder}", f"--deserted={DESERTED_SECONDS}"]
        words += [f"--token-file={self._installation.token_file}"] if self._installation.token_file else []
        words += [f"--started-as={self._mark}", *self._settings.options]
        # What cannot even say its version, such as with a Python that is too old, says why here and not in a log far away.
        check = shlex.join([*words[:4], "--version"])
        script = _START.format(folder=shlex.quote(folder), check=check, command=shlex.join(words))
        log.info("site %s: starting its agent", entry.name)
        answer = in_login_shell(self._caller.run, entry.setup)(Call(("sh",), script))
        if answer.exit_status != 0:
            raise Unknown(f"the agent of the site cannot be started: {' '.join(answer.stderr.split())}")


def mark_of(entry: SiteEntry, agent: str) -> str:
    """What tells an agent that was started as its entry says from one that was started otherwise, or from another file."""
    told = [entry.kind, entry.address, entry.python, *entry.setup, agent]
    return hashlib.sha256("\0".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an ssh; nothing happens the second time."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
