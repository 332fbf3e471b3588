"""Who writes the copy of records in a store: one folder at a time, as claims there say.

    writers/000007            the seventh folder that writes: its identity, and where it is, as JSON
    writers/000007.released   its service has stopped

A claim has the next number, and a name can be written once: of two folders that claim at the same moment one gets it. Whoever has
written looks for a later claim afterwards, and acknowledges nothing if there is one; whoever claims lists the segments
afterwards. So what is acknowledged was there when the next writer listed it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.model.locators import locator_below
from pilotage.model.texts import moment
from pilotage.ports.job_tree import StoreError
from pilotage.ports.records import RecordStoreError
from pilotage.ports.store import AlreadyInStore

if TYPE_CHECKING:
    from pilotage.ports.store import Store

log = logging.getLogger(__name__)

IDENTITY_FILE = "copy-writer"
"""In the folder of the records: by which it is known in the store."""
TAKE_OVER = (
    "stop that service; if it is gone for good, go to the folder that is to write: pilotage provenance take-over"
)
_CLAIM = re.compile(r"writers/([0-9]{6,12})")
_RELEASED = re.compile(r"writers/([0-9]{6,12})\.released")


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Which folder writes."""

    identity: str
    host: str = ""
    folder: str = ""
    since: float = 0.0

    @property
    def shown(self) -> str:
        """Where it is, for a message."""
        return f"{self.folder} on {self.host}, since {moment(self.since)}"


def identity_of(folder: Path) -> str:
    """The identity of a folder of records, made when it is first asked for; a copy of the folder has another one."""
    file = folder / IDENTITY_FILE
    with suppress(FileExistsError), file.open("x") as made:
        file.chmod(0o600)
        made.write(secrets.token_hex(16))
    return f"{file.read_text().strip()}-{file.stat().st_ino}"


class CopyWriters:
    """The claims in one store. Raises `StoreError` and `RecordStoreError`."""

    def __init__(self, store: Store, url: str) -> None:
        """Take a store, and the locator of the folder that has the copy."""
        self._store = store
        self._url = url
        self.number = 0
        """Of the claim that is held; 0: none."""

    def claim(self, folder: Path, *, takes_over: bool) -> None:
        """Write for a folder from now on. Raises `RecordStoreError` while another folder does, unless it is taken over."""
        own = Claim(
            identity=identity_of(folder), host=socket.gethostname(), folder=str(folder.absolute()), since=time.time()
        )
        claims, released = self._numbers()
        last = max(claims, default=0)
        holder = self._read(last) if last else own
        if last and holder.identity == own.identity:
            if last in released:
                self._store.delete(self._locator(f"{last:06}.released"))
            self.number = last
            self.refuse_displaced()
            return
        if last and last not in released and not takes_over:
            raise self._taken(holder)
        if not self._put(f"{last + 1:06}", msgspec.json.encode(own)):
            raise self._taken(self._read(last + 1))
        self.number = last + 1
        for each in sorted(claims):
            self._store.delete(self._locator(f"{each:06}"))
        for each in sorted(released):
            self._store.delete(self._locator(f"{each:06}.released"))

    def release(self) -> None:
        """Let another folder write; one that cannot be told stays locked until this one, or who takes over, goes on."""
        if not self.number:
            return
        try:
            claims, _ = self._numbers()
            if max(claims, default=0) == self.number:
                self._put(f"{self.number:06}.released", b"")
        except StoreError as fault:
            log.warning("the copy of the records stays claimed by this folder: %s", fault)
        self.number = 0

    def refuse_displaced(self) -> None:
        """Raise `RecordStoreError` if another folder writes by now."""
        claims, _ = self._numbers()
        last = max(claims, default=0)
        if last != self.number:
            raise (
                self._taken(self._read(last))
                if last
                else RecordStoreError(
                    "the claim of this folder to write there is gone",
                    subject=self._url,
                    next_step="start the service again",
                )
            )

    def _taken(self, holder: Claim) -> RecordStoreError:
        return RecordStoreError(
            f"another folder writes the copy of its records there: {holder.shown}",
            subject=self._url,
            next_step=TAKE_OVER,
        )

    def _numbers(self) -> tuple[set[int], set[int]]:
        """The numbers of all claims, and of those that were released."""
        claims, released = set[int](), set[int]()
        for each in self._store.list(self._locator("")):
            name = each.locator.removeprefix(f"{self._url}/")
            for pattern, found in ((_CLAIM, claims), (_RELEASED, released)):
                if (match := pattern.fullmatch(name)) is not None:
                    found.add(int(match[1]))
        return claims, released

    def _read(self, number: int) -> Claim:
        try:
            return msgspec.json.decode(b"".join(self._store.read(self._locator(f"{number:06}"))), type=Claim)
        except (StoreError, msgspec.DecodeError):  # replaced meanwhile, or damaged
            return Claim(identity="", folder="an unknown folder")

    def _put(self, name: str, content: bytes) -> bool:
        """Write a small file, unless its name is taken by another content; whether it is there."""
        locator = self._locator(name)
        with tempfile.NamedTemporaryFile(suffix=".claim") as draft:
            draft.write(content)
            draft.flush()
            with suppress(AlreadyInStore):
                self._store.put(draft.name, locator)
        return self._store.checksum(locator) == hashlib.sha256(content).hexdigest()

    def _locator(self, name: str) -> str:
        return locator_below(self._url, f"writers/{name}".rstrip("/"))
