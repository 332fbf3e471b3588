"""Runs a site agent on a login node over ssh: starts it, and keeps open its connection to the service.

One ssh connection forwards a socket of the login node to the service's socket, so that the agent needs no open port; it
is reopened when it ends. The agent is started in the user's account over the same connection, thus on the same login
node, when it has been silent for a while: a running one goes on, and a second one ends at once.
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
"""An agent that was silent for so long is started again; a second one does no harm."""
DESERTED_SECONDS = 900
"""An agent without a service for so long ends: we may use another login node by now."""
READY_SECONDS = 45.0
STOP_SECONDS = 5.0
_READY = b"pilotage-ready\n"

# In /tmp, which is local to each login node: some shared file systems have no sockets. Only this user may write there.
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


class SshSiteAgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a site agent that is started over ssh."""

    entry: SiteEntry
    prefix: str
    socket: Path  # of the service
    token: Callable[[], str]  # for the agent
    unheard_seconds: float = UNHEARD_SECONDS
    options: tuple[str, ...] = ()  # further options of the agent


class SshSiteAgent:
    """Keeps the connection open and the agent running, from `start` to `stop`."""

    def __init__(self, settings: SshSiteAgentSettings, caller: Ssh) -> None:
        self._settings = settings
        self._caller = caller
        self._installation = Installation(
            caller,
            folder=settings.entry.folder,
            prefix=settings.prefix,
            ca_file=lambda: None,  # a socket of the same user needs no certificate
            token=settings.token,
        )
        self._heard_at: Callable[[], float] = lambda: 0.0
        self._complain: Callable[[str], None] = lambda _: None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"outpost {settings.entry.name}", daemon=True)
        self._connection: subprocess.Popen[bytes] | None = None
        self._mark = ""  # identifies agents started with the current entry; empty until known
        self._complaint = ""  # the last logged error
        self._guard = threading.Lock()

    def start(self, *, heard_at: Callable[[], float], complain: Callable[[str], None]) -> None:
        """Start the thread; `heard_at` returns when the agent last reported, by the monotonic clock."""
        self._heard_at = heard_at
        self._complain = complain
        self._thread.start()

    def stop(self) -> None:
        """Close the connection; the agent goes on, and waits."""
        self._stopping.set()
        with self._guard:
            if self._connection is not None:
                _end(self._connection)
        if self._thread.ident is not None:
            self._thread.join()
        self._caller.close()

    def is_as_started(self, mark: str) -> bool:
        """Tell whether an agent with this mark was started with the current entry and file."""
        return not mark or not self._mark or mark == self._mark

    def _run(self) -> None:
        again_seconds = AGAIN_SECONDS[0]
        while not self._stopping.is_set():
            opened_at = time.monotonic()
            try:
                self._hold()
            except (Unknown, OSError, PilotageError) as fault:
                self._failed(str(fault))
            except (
                Exception
            ) as fault:  # an unexpected error must not end the connection to a site for good; it is logged
                log.exception("site %s", self._settings.entry.name)
                self._failed(f"{type(fault).__name__}: {fault}")
            if time.monotonic() - opened_at > AGAIN_SECONDS[1]:
                again_seconds = AGAIN_SECONDS[0]  # the connection held for a while
            self._stopping.wait(again_seconds)
            again_seconds = min(2.0 * again_seconds, AGAIN_SECONDS[1])

    def _failed(self, message: str) -> None:
        if not self._stopping.is_set():
            if message != self._complaint:  # log once: it is retried every minute, perhaps for days
                self._complaint = message
                log.warning("site %s: %s", self._settings.entry.name, message)
            self._complain(message)

    def _hold(self) -> None:
        """Open the connection and supervise the agent while it lasts; raises an error if it does not open."""
        with tempfile.TemporaryFile() as errors:
            connection = self._open(errors.fileno())
            try:
                if self._is_ready(connection):
                    self._complaint = ""
                    self._look_after(connection)
            finally:
                _end(connection)
                with self._guard:
                    self._connection = None
            errors.seek(0)
            text = " ".join(errors.read(4000).decode("utf-8", "replace").split())
        if not self._stopping.is_set():
            raise Unknown(f"ssh {self._caller.host}: {text or 'the connection ended'}")

    def _open(self, stderr: int) -> subprocess.Popen[bytes]:
        # The remote command ends with its input, hence with this process, however that ends.
        words = self._caller.held(f"echo {_READY.decode().strip()}; exec cat >/dev/null")
        with self._guard:
            if self._stopping.is_set():
                raise OSError("the service is stopping")
            self._connection = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
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
        """A path for the socket on the login node, in a folder of this user alone."""
        answer = self._caller.run(Call(("sh",), _SOCKET.format(prefix=self._settings.prefix)))
        lines = [line for line in answer.stdout.splitlines() if line.startswith("here:")]
        if answer.exit_status != 0 or not lines:
            raise Unknown(f"cannot make a folder for the socket: {' '.join(answer.stderr.split())}")
        return lines[0].partition(":")[2]

    def _start(self, folder: str, socket: str) -> None:
        entry = self._settings.entry
        words = [entry.python, "-I", "-S", self._installation.agent, "site", f"--server=unix:{socket}"]
        words += [f"--site={entry.name}", f"--folder={folder}", f"--deserted={DESERTED_SECONDS}"]
        words += [f"--token-file={self._installation.token_file}"] if self._installation.token_file else []
        words += [f"--started-as={self._mark}", *self._settings.options]
        # Run `--version` first: an error such as a Python that is too old then appears here, not in a remote log.
        check = shlex.join([*words[:4], "--version"])
        script = _START.format(folder=shlex.quote(folder), check=check, command=shlex.join(words))
        log.info("site %s: starting its site agent", entry.name)
        answer = in_login_shell(self._caller.run, entry.setup)(Call(("sh",), script))
        if answer.exit_status != 0:
            raise Unknown(f"cannot start the site agent: {' '.join(answer.stderr.split())}")


def mark_of(entry: SiteEntry, agent: str) -> str:
    """Identifies the entry and the file that an agent was started with."""
    parts = [entry.kind, entry.address, entry.python, *entry.setup, agent]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an ssh process; a second call has no effect."""
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
