"""A real OpenSSH server on loopback, with keys of its own, and folders of it mounted by sshfs."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tests.engines.debian import ensure_programs
from tests.engines.errors import EngineError
from tests.engines.postgres import free_port
from tests.kit.process_batch import signal_tree

START_SECONDS_MAX = 20.0
_LOOK_SECONDS = 0.02
_PAUSE = threading.Event()  # never set

_CONFIGURATION = """\
Port {port}
ListenAddress {host}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
AcceptEnv SLURM_CONF
"""
# Whose tests these are has files that a shell reads when it starts, and one that is killed meanwhile may leave a lock.
_OWN_HOME = "SetEnv HOME={home} PATH={path}\n"
_PATH = f"{sys.base_prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SshServer:
    """A server that lets a user in with a key; it ends with `close`."""

    def __init__(
        self, *, host: str = "127.0.0.1", user: str = "", folder: Path | None = None, within: Sequence[str] = ()
    ) -> None:
        """Make keys and start the server; for this user with an empty home, or `within` another place, with a folder there."""
        programs = ensure_programs(
            ["sshd", "ssh-keygen", "sshfs"], packages=["openssh-server", "openssh-client", "sshfs"]
        )
        self._sshfs = programs["sshfs"]
        self.folder = folder or Path(tempfile.mkdtemp(prefix="pilotage-sshd-"))
        self.host, self.user = host, user or getpass.getuser()
        self.port = free_port()
        for name in ("host", "user"):
            words = [programs["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(words, check=True, capture_output=True)
        told = _CONFIGURATION.format(host=host, port=self.port, folder=self.folder)
        if not user:
            home = self.folder / "home"
            home.mkdir()
            told += _OWN_HOME.format(home=home, path=_PATH)
        (self.folder / "sshd_config").write_text(told)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._words = [*within, programs["sshd"], "-D", "-e", "-f", str(self.folder / "sshd_config")]
        self.start()

    def __enter__(self) -> SshServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server, at the port that it had before."""
        with (self.folder / "log").open("wb") as said:
            # In the foreground: it is our child, and ends when it is told to.
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """Kill the server with all of its sessions."""
        signal_tree(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the server and remove its folder."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        """Where it is, as a URL."""
        return f"ssh://{self.user}@{self.host}:{self.port}"

    def configuration(self) -> Path:
        """A configuration for `ssh -F` with which it is reached, and known again."""
        known, file = self.folder / "known_hosts", self.folder / "ssh_config"
        known.write_text(f"[{self.host}]:{self.port} {(self.folder / 'host.pub').read_text()}")
        file.write_text(
            f"IdentityFile {self.folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {known}\n"
            "GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n"
        )
        return file

    @contextmanager
    def mounted(self, source: Path, target: Path, *, within: Sequence[str] = (), options: str = "") -> Iterator[None]:
        """A folder of the server mounted on another as long as the block runs; `within` goes before the command."""
        told = {
            "port": str(self.port),
            "IdentityFile": str(self.folder / "user"),
            "UserKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "no",
            "GlobalKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
        }
        written = ",".join([*(f"{name}={value}" for name, value in told.items()), *([options] if options else [])])
        where = f"{getpass.getuser()}@127.0.0.1:{source}"
        with (self.folder / "sshfs.log").open("wb") as said:
            process = subprocess.Popen(
                [*within, self._sshfs, "-f", "-o", written, where, str(target)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        try:
            until = time.monotonic() + START_SECONDS_MAX
            while subprocess.run([*within, "mountpoint", "-q", str(target)], check=False).returncode:
                if process.poll() is not None or time.monotonic() > until:
                    raise EngineError(f"sshfs did not mount: {(self.folder / 'sshfs.log').read_text()}")
                _PAUSE.wait(_LOOK_SECONDS)
            yield
        finally:
            process.terminate()  # it unmounts what it mounted
            process.wait()

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        while "Server listening" not in (self.folder / "log").read_text():
            if self._process.poll() is not None or time.monotonic() > until:
                raise EngineError(f"sshd did not start: {(self.folder / 'log').read_text()}")
            _PAUSE.wait(_LOOK_SECONDS)
