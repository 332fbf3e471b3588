"""Runs commands at a site: on this computer, or on another with the system's own `ssh`."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Protocol
from urllib.parse import urlsplit

from pilotage.adapters.closed_folders import make_closed
from pilotage.agent.batch import Answer, Call, Unknown
from pilotage.model.errors import PilotageError

CALL_SECONDS_MAX = 50.0
"""Time limit of a command: one that hangs is reported within a minute."""
CONNECT_SECONDS = 15
ALIVE_SECONDS, ALIVE_COUNT = 15, 3
PERSIST_SECONDS = 120  # how long an idle connection stays open
ANSWER_BYTES_MAX = 64 << 20
MAY_WAIT = "a start-up file of the shell there, such as ~/.bashrc, may be waiting for input"
_NOT_QUOTED = "\n!'\\"  # characters that some shell interprets in single quotes
_SSH_FAILED = 255  # exit status of ssh itself, not of the command
_NOT_FOUND, _NOT_RUN = 127, 126
_SOCKET_PATH_MAX = 107
_SOCKET_NAME = 40 + 1 + 17  # length of ssh's %C, and of its suffix while binding
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
# The locale is the user's; only messages must be English.
_LOCALE = {"LC_MESSAGES": "C"}


class Caller(Protocol):
    """Runs commands at a site."""

    def run(self, call: Call) -> Answer:
        """Run a command to its end; raises `Unknown` if the site cannot be reached."""
        ...

    def close(self) -> None:
        """Close connections, and abort a running command; callable from any thread."""
        ...


class RunningCommand:
    """The running command, so that another thread can abort it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def began(self, process: subprocess.Popen[bytes]) -> None:
        """Note a started command."""
        with self._guard:
            self._process = process
            if self._over:
                process.kill()

    def break_off(self) -> None:
        """Kill the running command, and any that is started later."""
        with self._guard:
            self._over = True
            if self._process is not None:
                self._process.kill()  # no effect if it has ended


class LocalCaller:
    """Runs commands on this computer, each in a session of its own."""

    def __init__(
        self,
        *,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        seconds_max: float = CALL_SECONDS_MAX,
    ) -> None:
        """Take words to put before every command, and additions to its environment."""
        self._within = tuple(within)
        self._environment = dict(environment or {})
        self._seconds_max = seconds_max
        self._under_way = RunningCommand()

    def run(self, call: Call) -> Answer:
        """Run a command to its end."""
        words = [*self._within, *call.argv]
        return run_words(
            words,
            call.stdin,
            extra=self._environment,
            seconds_max=self._seconds_max,
            under_way=self._under_way,
        )

    def close(self) -> None:
        """Abort the running command."""
        self._under_way.break_off()


class BadAddress(PilotageError):
    """Not a valid address of a login node."""


class Ssh:
    """Runs commands on another computer over one shared connection, which stays open for some time.

    The user's own ssh configuration decides how to get there and which host keys to trust.
    """

    def __init__(
        self,
        address: str,
        *,
        state: Path,
        environment: Mapping[str, str] | None = None,
        configuration: str = "",
        seconds_max: float = CALL_SECONDS_MAX,
    ) -> None:
        """Take `ssh://USER@HOST:PORT`, and the folder for the connection's socket; connects at the first command."""
        self.host, user, port = parse_address(address)
        self._environment = {**_LOCALE, **(environment or {})}
        self._seconds_max = seconds_max
        self._under_way = RunningCommand()
        self._own: str | None = None
        folder = str(state.absolute() / "ssh")
        if len(os.fsencode(folder)) + 1 + _SOCKET_NAME > _SOCKET_PATH_MAX:
            folder = self._own = tempfile.mkdtemp(prefix="pilotage-ssh-")
        self._folder = folder
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": str(ALIVE_SECONDS),
            "ServerAliveCountMax": str(ALIVE_COUNT),
            "ControlMaster": "auto",
            "ControlPath": f'"{folder}/%C"',
            "ControlPersist": str(PERSIST_SECONDS),
        }
        self.words = [
            "ssh", "-T", "-x",
            *(["-F", configuration] if configuration else []),
            *(word for name, value in options.items() for word in ("-o", f"{name}={value}")),
            *(["-l", user] if user else []),
            *(["-p", str(port)] if port else []),
        ]  # fmt: skip
        """The words before `-- HOST COMMAND`."""

    def run(self, call: Call) -> Answer:
        """Run a command to its end; an error of ssh itself raises `Unknown`."""
        make_closed(Path(self._folder))
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        command = command_line(["env", *variables, *call.argv])
        # ssh itself notices a broken connection first; our limit comes last.
        words = [*self.words, "--", self.host, command]
        answer = run_words(words, call.stdin, seconds_max=self._seconds_max, under_way=self._under_way)
        if answer.exit_status in (_SSH_FAILED, None):
            errors = " ".join(answer.stderr.split())[-500:]
            silent = f"no answer within {self._seconds_max:g} s ({MAY_WAIT})"
            raise Unknown(f"ssh {self.host}: {errors or silent}")
        return answer

    def held(self, command: str) -> list[str]:
        """The words of an ssh that keeps the shared connection open while its command runs; closes an earlier one."""
        make_closed(Path(self._folder))
        run_words([*self.words, "-O", "exit", "--", self.host], "", seconds_max=CONNECT_SECONDS)
        first = ("-o", "ControlMaster=yes", "-o", "ControlPersist=no")  # ssh uses the first value of an option
        return [self.words[0], *first, *self.words[1:], "--", self.host, command]

    def forward(self, *, there: str, here: Path) -> None:
        """Forward a socket there to one here as long as the connection is open; raises `Unknown`."""
        words = [*self.words, "-O", "forward", "-R", f"{there}:{here.absolute()}", "--", self.host]
        answer = run_words(words, "", seconds_max=CONNECT_SECONDS)
        if answer.exit_status != 0:
            errors = " ".join(answer.stderr.split())[-500:]
            raise Unknown(f"ssh {self.host}: no socket could be forwarded: {errors}")

    def close(self) -> None:
        """Abort the running command, and close the connection, if there is one."""
        self._under_way.break_off()
        if Path(self._folder).is_dir():
            run_words([*self.words, "-O", "exit", "--", self.host], "", seconds_max=CONNECT_SECONDS)
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)


def command_line(words: Sequence[str]) -> str:
    """Quote words for any login shell: in csh a line break ends a quote, and ! is history."""
    plain = shlex.join(words)
    if not any(char in plain for char in "\n!"):
        return plain
    escaped = "".join(f"\\0{ord(char):03o}" if char in _NOT_QUOTED else char for char in f"exec {plain}")
    return f"sh -c 'eval \"$(printf %b \"$0\")\"' '{escaped}'"


def parse_address(address: str) -> tuple[str, str, int]:
    """Host, user and port of `ssh://USER@HOST:PORT`, none of which ssh could take for an option. Raises `BadAddress`."""
    try:
        parts = urlsplit(address)
        host, user, port = parts.hostname or "", parts.username or "", parts.port or 0
    except ValueError:
        host, user, port = "", "", 0
        parts = urlsplit("")
    if parts.scheme != "ssh" or not _HOST.fullmatch(host) or (user and not _USER.fullmatch(user)):
        raise BadAddress("not the address of a login node", expected="ssh://USER@HOST:PORT", got=address)
    return host, user, port


def run_words(
    words: Sequence[str],
    stdin: str,
    *,
    extra: Mapping[str, str] | None = None,
    seconds_max: float = CALL_SECONDS_MAX,
    under_way: RunningCommand | None = None,
) -> Answer:
    """Run a command here, in a session of its own, with a time limit; a missing command has an answer, too.

    Its output goes to files: a persistent ssh connection would keep a pipe open.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(stdin.encode("utf-8", "surrogateescape"))
        given.seek(0)
        try:
            process = subprocess.Popen(
                list(words),
                stdin=given,
                stdout=out,
                stderr=errors,
                env=command_environment(extra or {}),
                start_new_session=True,
            )
        except FileNotFoundError:
            return Answer(_NOT_FOUND, "", f"{words[0]}: command not found")
        except OSError as error:
            return Answer(_NOT_RUN, "", f"{words[0]}: {error.strerror or error}")
        status: int | None = None
        if under_way is not None:
            under_way.began(process)
        given.close()  # hundreds of commands may hang, and each open file counts
        try:
            status = _ended(process, seconds_max)
        except subprocess.TimeoutExpired:
            pass  # the answer has no exit status then
        finally:
            if status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Answer(None if status == -signal.SIGKILL else status, _read(out), _read(errors))


def _ended(process: subprocess.Popen[bytes], seconds_max: float) -> int:
    """The exit status of a process; raises `TimeoutExpired`. Sleeps on a pidfd if possible, since `wait` polls."""
    try:
        file = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # an old kernel, or another system
        return process.wait(seconds_max)
    try:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll(1000 * seconds_max)
    finally:
        os.close(file)
    return process.wait(0)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(ANSWER_BYTES_MAX).decode("utf-8", "surrogateescape")


def command_environment(extra: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Our environment without our own settings: batch systems pass it on to their jobs."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_") and name != "LANGUAGE"}
    everything = own.pop("LC_ALL", "")
    if everything:
        own["LANG"] = own["LC_CTYPE"] = everything
    return {**own, **_LOCALE, **extra}
