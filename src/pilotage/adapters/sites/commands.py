"""Ways to run a command at a site: on this computer, or on another over the system's own `ssh`."""

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
from typing import IO, Protocol
from urllib.parse import urlsplit

from pilotage.adapters.closed_folders import make_closed
from pilotage.agent.batch import Answer, Call, Unknown
from pilotage.model.errors import PilotageError

CALL_SECONDS_MAX = 50.0
"""So long a command may take: where one hangs, that is told within a minute."""
CONNECT_SECONDS = 15
ALIVE_SECONDS, ALIVE_COUNT = 15, 3
PERSIST_SECONDS = 120  # how long a connection waits for the next command
ANSWER_BYTES_MAX = 64 << 20
MAY_WAIT = "what a shell there reads when it starts, such as ~/.bashrc, may wait for something"
_NOT_QUOTED = "\n!'\\"  # what not every shell leaves alone in single quotes
_SSH_FAILED = 255  # its own exit status, and not that of the command
_NOT_FOUND, _NOT_RUN = 127, 126
_SOCKET_PATH_MAX = 107
_SOCKET_NAME = 40 + 1 + 17  # what ssh makes of %C, and what it adds while it binds
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
# Locales are the user's own matter; only what is said to people must be what we can read.
_LOCALE = {"LC_MESSAGES": "C"}


class Caller(Protocol):
    """Runs commands at a site."""

    def run(self, call: Call) -> Answer:
        """Run a command to its end; raises `Unknown` where there is no way to the site."""
        ...

    def close(self) -> None:
        """Let go of what is held, and break off what is under way; any thread may."""
        ...


class UnderWay:
    """The command that runs now, for whoever has to break it off."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def began(self, process: subprocess.Popen[bytes]) -> None:
        """A command was started."""
        with self._guard:
            self._process = process
            if self._over:
                process.kill()

    def break_off(self) -> None:
        """End what runs, and what will be started."""
        with self._guard:
            self._over = True
            if self._process is not None:
                self._process.kill()  # nothing happens where it has ended


class Here:
    """Runs commands on this computer, each in a session of its own."""

    def __init__(
        self,
        *,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        seconds_max: float = CALL_SECONDS_MAX,
    ) -> None:
        """Take words that go before every command, and what is added to its environment."""
        self._within = tuple(within)
        self._environment = dict(environment or {})
        self._seconds_max = seconds_max
        self._under_way = UnderWay()

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
        """Break off what is under way."""
        self._under_way.break_off()


class BadAddress(PilotageError):
    """What is to be an address of a login node is none."""


class Ssh:
    """Runs commands on another computer; one connection is kept for some time and used by all of them.

    How one gets there, and who is believed to be there, is what the user's own configuration of ssh says.
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
        """Take `ssh://USER@HOST:PORT`, and the folder in which the socket of the connection is; nothing is opened yet."""
        self.host, user, port = parse_address(address)
        self._environment = {**_LOCALE, **(environment or {})}
        self._seconds_max = seconds_max
        self._under_way = UnderWay()
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
        """What goes before `-- HOST COMMAND`."""

    def run(self, call: Call) -> Answer:
        """Run a command to its end; what ssh itself says is raised as `Unknown`."""
        make_closed(Path(self._folder))
        told = [f"{name}={value}" for name, value in self._environment.items()]
        command = command_line(["env", *told, *call.argv])
        # A broken connection is noticed by ssh itself; ours is the last word.
        words = [*self.words, "--", self.host, command]
        answer = run_words(words, call.stdin, seconds_max=self._seconds_max, under_way=self._under_way)
        if answer.exit_status in (_SSH_FAILED, None):
            said = " ".join(answer.stderr.split())[-500:]
            silent = f"no answer within {self._seconds_max:g} s ({MAY_WAIT})"
            raise Unknown(f"ssh {self.host}: {said or silent}")
        return answer

    def held(self, command: str) -> list[str]:
        """The words of an ssh that holds the connection for all others as long as its command runs; one of before is closed."""
        make_closed(Path(self._folder))
        run_words([*self.words, "-O", "exit", "--", self.host], "", seconds_max=CONNECT_SECONDS)
        first = ("-o", "ControlMaster=yes", "-o", "ControlPersist=no")  # what is said first holds
        return [self.words[0], *first, *self.words[1:], "--", self.host, command]

    def forward(self, *, there: str, here: Path) -> None:
        """Have a socket there lead to one here as long as the connection is held; raises `Unknown`."""
        words = [*self.words, "-O", "forward", "-R", f"{there}:{here.absolute()}", "--", self.host]
        answer = run_words(words, "", seconds_max=CONNECT_SECONDS)
        if answer.exit_status != 0:
            said = " ".join(answer.stderr.split())[-500:]
            raise Unknown(f"ssh {self.host}: no socket could be forwarded: {said}")

    def close(self) -> None:
        """Break off what is under way, and close the connection, if there is one."""
        self._under_way.break_off()
        if Path(self._folder).is_dir():
            run_words([*self.words, "-O", "exit", "--", self.host], "", seconds_max=CONNECT_SECONDS)
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)


def command_line(words: Sequence[str]) -> str:
    """Some words as a command that the login shell of any account reads: to csh a line ends a quote, and ! is history."""
    plain = shlex.join(words)
    if not any(char in plain for char in "\n!"):
        return plain
    told = "".join(f"\\0{ord(char):03o}" if char in _NOT_QUOTED else char for char in f"exec {plain}")
    return f"sh -c 'eval \"$(printf %b \"$0\")\"' '{told}'"


def parse_address(address: str) -> tuple[str, str, int]:
    """The host, user and port of `ssh://USER@HOST:PORT`; nothing that ssh could take for an option. Raises `BadAddress`."""
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
    under_way: UnderWay | None = None,
) -> Answer:
    """Run a command here, in a session of its own, with an end in any case; a command that is not there has an answer, too.

    What it prints goes to files: a connection of ssh that stays open would hold a pipe.
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
                env=_environment(extra or {}),
                start_new_session=True,
            )
        except FileNotFoundError:
            return Answer(_NOT_FOUND, "", f"{words[0]}: command not found")
        except OSError as error:
            return Answer(_NOT_RUN, "", f"{words[0]}: {error.strerror or error}")
        status: int | None = None
        if under_way is not None:
            under_way.began(process)
        given.close()  # hundreds may hang, and each open file counts
        try:
            status = _ended(process, seconds_max)
        except subprocess.TimeoutExpired:
            pass  # an answer without a status says so
        finally:
            if status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Answer(None if status == -signal.SIGKILL else status, _read(out), _read(errors))


def _ended(process: subprocess.Popen[bytes], seconds_max: float) -> int:
    """The exit status of a process; raises `TimeoutExpired`. Where the system can, it is slept until then: `wait` looks again and again."""
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


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Ours without our own settings: batch systems hand it on to what they start."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_") and name != "LANGUAGE"}
    everything = own.pop("LC_ALL", "")
    if everything:
        own["LANG"] = own["LC_CTYPE"] = everything
    return {**own, **_LOCALE, **extra}
