"""The folder of a service at a site, on the file system that its nodes share: the agent in one file, tokens, and what runs there.

FOLDER/
  agent-VERSION-DIGEST.pyz  what pilots are started with
  ca.pem, tokens/         closed to others
  state/, output/         of the pilots
  relay/                  where nodes without a network speak to the relay
  address.json            what pilots ask, for those that were started when that was another address
  site-agent.json, .lock, .log
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotage.agent.batch.berth import OUTPUT_FOLDER, STATE_FOLDER, Berth
from pilotage.agent.files import FILE_MODE, FOLDER_MODE

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY_FILE = "site-agent.json"
RELAY_FOLDER = "relay"
ADDRESS_FILE = "address.json"
KEEP_SECONDS = 86_400.0
_NAMED_DIGITS = 12


class SitePlace:
    """Where the agent of a site works."""

    def __init__(self, folder: Path, *, site: str, version: str, token_file: str = "", ca_file: str = "") -> None:
        """Name the folder; nothing is made yet."""
        self.folder = folder
        self.site = site
        self.server = ""  # what pilots are told to ask
        self._version = version
        self._given_token_file = token_file
        self._given_ca_file = ca_file
        self.pilot_token_file = str(folder / "tokens" / site)
        self.own_token_file = folder / "tokens" / f"{site}.site-agent"
        self.agent_file: Path | None = None  # known once it is installed, as its digest is
        self._agent_sha256 = ""
        self._kept_at = 0.0
        self.ca_file = folder / "ca.pem"
        self.relay_folder = folder / RELAY_FOLDER
        self._announcement = ""  # its path, once it is written

    def make(self) -> None:
        """Make what is missing; raises `OSError`."""
        for each in ("", OUTPUT_FOLDER, STATE_FOLDER, "tokens"):
            (self.folder / each).mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)

    def install(self, agent: Path) -> None:
        """Put the agent and the authority of the service's certificate where nodes find them; raises `OSError`.

        What lies in the folder already is taken as it is: who put it there named it by what is in it.
        """
        content = agent.read_bytes()
        self._agent_sha256 = hashlib.sha256(content).hexdigest()
        if agent.resolve().parent == self.folder.resolve():
            self.agent_file = agent
        else:
            self.agent_file = self.folder / f"agent-{self._version}-{self._agent_sha256[:_NAMED_DIGITS]}.pyz"
            _put(self.agent_file, content, mode=0o700)
        self.keep_agent()
        if self._given_ca_file:
            _put(self.ca_file, Path(self._given_ca_file).read_bytes(), mode=FILE_MODE)

    def keep_agent(self) -> None:
        """Have the agent be new, once a day: a service removes old ones by their age. Raises `OSError` where it is gone."""
        now = time.time()
        if self.agent_file is not None and not self._kept_at <= now < self._kept_at + KEEP_SECONDS:
            os.utime(self.agent_file)
            self._kept_at = now

    def keep_pilot_token(self, token: str) -> None:
        """Put a token where pilots read it; raises `OSError`."""
        _put(Path(self.pilot_token_file), token.encode("ascii") + b"\n", mode=FILE_MODE)

    def announce(self) -> None:
        """Tell pilots, those that live among them, what to ask from now on; raises `OSError`."""
        file = self.folder / ADDRESS_FILE
        said = {"url": self.server, "ca_file": self._told_ca_file}
        _put(file, json.dumps(said).encode() + b"\n", mode=FILE_MODE)
        self._announcement = str(file)

    @property
    def _told_ca_file(self) -> str:
        """Whom pilots believe: nobody else, where they ask the service itself."""
        return str(self.ca_file) if self.server.startswith("https:") and self._given_ca_file else ""

    def berth(self, entry: Mapping[str, Any]) -> Berth:
        """How agents are started, by the entry of the site as it is told in JSON."""
        token_file = self.pilot_token_file if os.path.exists(self.pilot_token_file) else self._given_token_file
        return Berth(
            site=self.site,
            folder=str(self.folder),
            agent=str(self.agent_file or ""),
            agent_sha256=self._agent_sha256,
            server=self.server,
            token_file=os.path.abspath(token_file) if token_file else "",
            ca_file=self._told_ca_file,
            announcement=self._announcement,
            python=str(entry.get("python") or "python3"),
            setup=tuple(entry.get("setup") or ()),
            slots=int(entry.get("slots") or 1),
            memory_bytes=int(entry.get("memory_bytes") or 0),
            gpus=int(entry.get("gpus") or 0),
            scratch_bytes=int(entry.get("scratch_bytes") or 0),
            wall_seconds=float(entry.get("wall_time_seconds") or 0.0),
            idle_seconds=float(entry.get("idle_seconds", 300.0)),
            queue=str(entry.get("queue") or ""),
            account=str(entry.get("account") or ""),
            parallel=str(entry.get("parallel_environment") or ""),
            directives=tuple(entry.get("directives") or ()),
        )


def _put(file: Path, content: bytes, *, mode: int) -> None:
    """Put a file in its place as a whole, unless the same is there."""
    with contextlib.suppress(OSError):
        if hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(content).digest():
            return
    draft = file.with_name(f".{file.name}-{os.urandom(6).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as target:
            target.write(content)
            target.flush()
            os.fsync(descriptor)
        draft.replace(file)
    except OSError:
        draft.unlink()
        raise
