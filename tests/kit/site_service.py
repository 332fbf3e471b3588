"""A real service with sites, in a process of its own, and site agents beside it: what the tests of site agents share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.settings.tls import make_certificates
from pilotage.app.service.credentials import tokens_of
from pilotage.model.settings.settings import EngineSection, ServiceSettings, Settings
from pilotage.model.settings.stores import StoreSettings
from pilotage.model.sites.entry import SiteEntry
from tests.engines.postgres import free_port
from tests.kit.command_line import can_be_typed, typed

SECONDS_MAX = 90.0


class SiteService:
    """A service whose state is in a folder; it can be ended and started again."""

    def __init__(
        self,
        folder: Path,
        entries: Sequence[SiteEntry],
        *,
        slots: int = 0,
        secure: bool = False,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
        stores: Sequence[StoreSettings] = (),
    ) -> None:
        """Say which sites it has, whether it speaks TLS, and on what address; `within` goes before its commands.

        Nothing runs before `start`.
        """
        self.folder = folder
        self._host = host
        self._within = within
        self._stores = stores
        self.state = folder / ".pilotage"
        self.port = free_port()
        self._entries = entries
        self._slots = slots
        self._scheme = "https" if secure else "http"
        self.ca_file = self.state / "tls" / "ca.pem"
        if secure:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_certificates(self.state / "tls", ["localhost", host], now=time.time)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._host}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        about = {"host": self._host, "port": self.port, "slots": self._slots}
        lists = {"entries": msgspec.to_builtins(self._entries), "stores": msgspec.to_builtins(self._stores)}
        told = json.dumps(about | lists)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
        log = (self.folder / "service.out").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*self._within, sys.executable, "-m", "tests.kit.site_service", told],
                cwd=self.folder,
                env={**kept, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.stop(kill=True)
            raise AssertionError(self.log())

    def rewrite(self, *entries: SiteEntry) -> None:
        """Have other sites written down, for when it starts again."""
        self._entries = entries

    def stop(self, *, kill: bool = False) -> None:
        """End it in good order, or at once."""
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.communicate(timeout=SECONDS_MAX)
            self._process = None

    def log(self) -> str:
        """The end of what it said."""
        texts = [file.read_text("utf-8", "replace")[-4000:] for file in self.folder.glob("service.out")]
        return "\n".join(texts)

    def token_for(self, site: str) -> Path:
        """A file with a token for the agent of a site."""
        file = self.folder / f"token-{site}"
        file.touch(mode=0o600)
        file.write_text(tokens_of(self.state, Settings()).for_site_agent(site))
        return file

    def program(self, *words: str, code: int = 0) -> str:
        """Run the command line in the folder of the service; what it printed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
        environment = {**kept, "NO_COLOR": "1"}
        if not self._within and can_be_typed(words, environment):
            done = typed(words, folder=self.folder, environment=environment)
        else:
            done = subprocess.run(
                [*self._within, str(Path(sys.executable).with_name("pilotage")), *words],
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        assert done.returncode == code, (done.stdout, done.stderr, self.log())
        return done.stdout


class AgentProcess:
    """A site agent in a process of its own."""

    def __init__(self, words: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        """Say how it is called; nothing runs before `start`."""
        self.words = list(words)
        self._environment = dict(environment)
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self.words,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """End it in good order; its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(SECONDS_MAX)
        self.process = None
        return status

    def log(self) -> str:
        """What it said."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""


@contextmanager
def service_in(
    folder: Path,
    entries: Sequence[SiteEntry],
    *,
    slots: int = 0,
    secure: bool = False,
    host: str = "127.0.0.1",
    within: Sequence[str] = (),
    stores: Sequence[StoreSettings] = (),
) -> Iterator[SiteService]:
    """A service that runs as long as the block does."""
    folder.mkdir(parents=True, exist_ok=True)
    service = SiteService(folder, entries, slots=slots, secure=secure, host=host, within=within, stores=stores)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def _main(told: dict[str, Any]) -> int:
    from pilotage.app.service.serve import serve_jobs

    settings = Settings(
        service=ServiceSettings(host=told["host"], port=told["port"]),
        engine=EngineSection(interval_seconds=1.0, dead_start_seconds=1.0),
        stores=msgspec.convert(told["stores"], tuple[StoreSettings, ...]),
    )

    def started(_: object) -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    entries = msgspec.convert(told["entries"], tuple[SiteEntry, ...])
    serve_jobs(settings, started=started, slots=told["slots"], entries=entries)
    return 0


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
