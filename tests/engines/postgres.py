"""A real PostgreSQL server in a folder of its own, for as long as its tests run."""

from __future__ import annotations

import os
import pwd
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.engines.errors import EngineError
from tests.engines.postgres_programs import postgres_programs
from tests.engines.watchdog import watch

USER = "pilotage"
# Below Linux's range for outgoing connections: nobody takes the port while the server is down for a test.
PORTS = range(20_000, 32_000)
STARTS_MAX = 5


class PostgresServer:
    """A server on loopback, with a password; `database()` makes a fresh database and tells its URL.

    Unless it is durable, it does not wait for the disk. It still keeps every commit when it crashes, and would lose some
    only if the machine did: enough for tests that kill the server, and much quicker.
    """

    def __init__(self, *, durable: bool = False) -> None:
        """Make the folder and start the server; `close` ends both."""
        self._programs = postgres_programs()
        self._durable = durable
        self._password = secrets.token_hex(16)
        # A short path of its own, not pytest's: a socket's name has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="pilotage-postgres-"))
        self._watchdog = watch(self.folder)
        try:
            self._initialise()
            self.port = self._first_start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server at once and remove its folder; nothing happens the second time."""
        self._watchdog.communicate()

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, with user and password, over TCP."""
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = "postgres") -> str:
        """The same database through the Unix socket."""
        return f"postgresql://{USER}:{self._password}@/{database}?host={self.folder}&port={self.port}"

    def database(self, *, template: str = "template1", encoding: str = "") -> str:
        """Make a fresh database, a copy of the template if one is named, and tell its URL."""
        name = f"test_{secrets.token_hex(6)}"
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        if encoding:
            made += sql.SQL(" ENCODING {} LOCALE 'C'").format(sql.Literal(encoding))
        self._execute(made)
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, and end whoever is still connected to it."""
        name = urlsplit(url).path.removeprefix("/")
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @property
    def is_running(self) -> bool:
        """Whether the server runs, by its own account."""
        return self._control("status").returncode == 0

    def start(self) -> None:
        """Start the server, on the port it had, and wait until it takes connections."""
        done = self._start(self.port)
        if done.returncode:
            raise EngineError(f"PostgreSQL did not start: {done.stdout}{done.stderr}\n{self.log()}")

    def stop(self, *, immediate: bool = False) -> None:
        """End every connection and the server; immediate is a crash, after which it must recover from its log."""
        done = self._control("stop", "-w", "-m", "immediate" if immediate else "fast")
        if done.returncode:
            raise EngineError(f"PostgreSQL did not stop: {done.stdout}{done.stderr}\n{self.log()}")

    def restart(self, *, immediate: bool = True) -> None:
        """Stop and start again: by default as after a crash."""
        self.stop(immediate=immediate)
        self.start()

    def ensure_running(self) -> None:
        """Start the server if a test left it down."""
        if not self.is_running:
            self.start()

    def log(self) -> str:
        """The end of what the server wrote."""
        file = self.folder / "log"
        return file.read_text("utf-8", errors="replace")[-4000:] if file.exists() else ""

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)

    def _initialise(self) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self._password)
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            for path in (self.folder, password_file):
                os.chown(path, account.pw_uid, account.pw_gid)
        done = self._run(
            "initdb", "-D", f"{self.folder}/data", "-U", USER, "-A", "scram-sha-256", f"--pwfile={password_file}",
            "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions",
        )  # fmt: skip
        if done.returncode:
            raise EngineError(f"initdb failed: {done.stdout}{done.stderr}")

    def _first_start(self) -> int:
        for _ in range(STARTS_MAX):
            port = free_port()
            done = self._start(port)
            if done.returncode == 0:
                return port
            if "Address already in use" not in self.log():
                break
        raise EngineError(f"PostgreSQL did not start: {self.log()}")

    def _start(self, port: int) -> subprocess.CompletedProcess[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
            "timezone": "UTC",
        }
        written = " ".join(f"-c {name}={value}" for name, value in options.items())
        return self._control("start", "-w", "-l", f"{self.folder}/log", "-o", written)

    def _control(self, action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run("pg_ctl", action, "-D", f"{self.folder}/data", *arguments)

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_as_owner(), str(self._programs / program), *arguments],
            cwd=self.folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def _as_owner() -> Sequence[str]:
    """PostgreSQL refuses to run as root: then it runs as the user that its package made."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv"):
        return ("setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups")
    return ("runuser", "-u", "postgres", "--")


def free_port() -> int:
    """A port of loopback that nothing listens on, and that nobody gets who does not ask for it."""
    for port in random.sample(PORTS, k=100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise EngineError(f"no free port between {PORTS.start} and {PORTS.stop}")
