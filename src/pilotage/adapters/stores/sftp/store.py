"""Files of computers that OpenSSH reaches, by `sftp://USER@HOST:PORT/PATH`; `/~/` stands for the home of the account.

How to get there, with which keys, and which hosts to trust, is the affair of ssh: its configuration, agents and
`known_hosts` hold. ssh reads keys anew for each connection, so that a renewed one is used at once.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from pilotage.adapters.sites.commands import BadAddress, parse_address
from pilotage.adapters.stores.contents import DRAFT, draft_name, open_source, refuse_changed, refuse_other, sha256_of
from pilotage.adapters.stores.sftp.protocol import (
    CREATE,
    READ,
    WRITE,
    Attributes,
    Entry,
    Fields,
    Kind,
    Wide,
    read_entries,
)
from pilotage.adapters.stores.sftp.session import Failed, KeyRefused, SftpSession, ssh_words
from pilotage.model.locators import BadLocator, Locator, locator_below, parse_locator, shown_locator
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import (
    AlreadyInStore,
    CredentialExpired,
    FileChanged,
    NotInStore,
    PresignedRequest,
    StoreFull,
    StoreObject,
    StoreUnreachable,
)

AHEAD = 24
"""Requests to read or write that are under way at once: enough for 6 MB between two answers."""
IDLE_SECONDS = 30.0
POSIX_RENAME, FSYNC, STATVFS = "posix-rename@openssh.com", "fsync@openssh.com", "statvfs@openssh.com"
_MODE = 0o644
_PERMISSIONS = 4  # the flag of attributes that are nothing but a mode
_HOME = "/~/"


class SftpStore:
    """Files behind `sftp` locators. Each call has a connection of its own; idle ones are used again for some time."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._idle: dict[str, list[tuple[float, SftpSession]]] = {}

    def stat(self, locator: str) -> StoreObject | None:
        """Look up a locator; None if there is no regular file."""
        parsed = _parsed(locator)
        with self._session(parsed) as session:
            return _look(session, locator, _path(parsed))

    def is_folder(self, locator: str) -> bool:
        """Whether it is a folder."""
        parsed = _parsed(locator)
        with self._session(parsed) as session:
            try:
                return stat.S_ISDIR(session.attributes(Kind.STAT, _path(parsed)).mode)
            except NotInStore:
                return False

    def read(self, locator: str, *, offset: int = 0, version: str = "") -> Iterator[bytes]:
        """The content from an offset on, with many requests under way."""
        parsed = _parsed(locator)
        with self._session(parsed) as session:
            handle = session.handle(Kind.OPEN, _path(parsed), READ, 0)
            began = session.attributes(Kind.FSTAT, handle)
            if not stat.S_ISREG(began.mode):
                raise NotInStore("not a file", subject=shown_locator(locator))
            if version and began.version != version:
                raise FileChanged("the file is another one than before", subject=shown_locator(locator))
            yield from _content(session, handle, start=offset, end=began.size_bytes, locator=locator)
            if session.attributes(Kind.FSTAT, handle).version != began.version:
                raise FileChanged("the file changed while it was read", subject=shown_locator(locator))
            session.call(Kind.CLOSE, handle)

    def checksum(self, locator: str, *, version: str = "") -> str:
        """The sha256 of a file; it is read for that."""
        return sha256_of(self.read(locator, version=version))

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """The files below a folder, sorted by locator; empty if the folder does not exist."""
        parsed = _parsed(prefix)
        root = _path(parsed).rstrip("/")
        found: list[StoreObject] = []
        with self._session(parsed) as session:
            folders = [""]
            while folders:
                below = folders.pop()
                for entry in _entries(session, f"{root}/{below}"):
                    name = f"{below}{entry.name}"
                    attributes = entry.attributes
                    if stat.S_ISLNK(attributes.mode):
                        with suppress(NotInStore):  # a link that leads nowhere
                            attributes = session.attributes(Kind.STAT, f"{root}/{name}")
                        if stat.S_ISDIR(attributes.mode):
                            continue  # it may lead above
                    if stat.S_ISDIR(attributes.mode):
                        folders.append(f"{name}/")
                    elif stat.S_ISREG(attributes.mode) and not entry.name.startswith(DRAFT):
                        found.append(_object(locator_below(prefix, name), attributes))
        return iter(sorted(found, key=lambda each: each.locator))

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        """Copy a file into the store; goes on with the draft of an earlier call that broke off."""
        parsed = _parsed(locator)
        path = _path(parsed)
        with open_source(source) as reading, self._session(parsed) as session:
            refuse_other(_look(session, locator, path), replaces, locator)
            draft = f"{path.rpartition('/')[0]}/{draft_name(source, locator)}"
            try:
                _send(session, reading, draft, locator=locator, sent=sent)
                _publish(session, draft, path, replaces=replaces, locator=locator)
            except StoreUnreachable:
                raise  # the draft stays for the next try
            except BaseException:
                with suppress(StoreError):
                    session.call(Kind.REMOVE, draft)
                raise
            found = _look(session, locator, path)
        if found is None:
            raise NotInStore("the file was removed at once", subject=shown_locator(locator))
        return found

    def delete(self, locator: str) -> bool:
        """Remove a file."""
        parsed = _parsed(locator)
        with self._session(parsed) as session:
            if _look(session, locator, _path(parsed)) is None:
                return False
            try:
                session.call(Kind.REMOVE, _path(parsed))
            except NotInStore:
                return False
        return True

    def presigned_get(self, locator: str, *, seconds: float) -> PresignedRequest | None:
        """SFTP has none."""
        return None

    def presigned_put(self, locator: str, *, seconds: float, content_type: str) -> PresignedRequest | None:
        """SFTP has none."""
        return None

    def close(self) -> None:
        """End idle connections."""
        with self._guard:
            idle, self._idle = self._idle, {}
        for sessions in idle.values():
            for _, session in sessions:
                session.close()

    @contextmanager
    def _session(self, locator: Locator) -> Iterator[SftpSession]:
        """A connection for one call; used again unless the call failed in a way that leaves answers under way."""
        session = self._take(locator.origin) or self._open(locator)
        usable = False
        try:
            yield session
            usable = True
        except (NotInStore, AlreadyInStore):
            usable = True
            raise
        finally:
            if usable and session.is_usable():
                with self._guard:
                    self._idle.setdefault(locator.origin, []).append((time.monotonic(), session))
            else:
                session.close()

    def _take(self, origin: str) -> SftpSession | None:
        """An idle connection that is still good; ends those that were idle for long."""
        oldest = time.monotonic() - IDLE_SECONDS
        with self._guard:
            idle = self._idle.get(origin, [])
            ended = [session for at, session in idle if at < oldest or not session.is_usable()]
            idle[:] = [each for each in idle if each[1] not in ended]
            found = idle.pop()[1] if idle else None
        for session in ended:
            session.close()
        return found

    def _open(self, locator: Locator) -> SftpSession:
        try:
            host, user, port = parse_address(f"ssh{locator.origin.removeprefix('sftp')}")
        except BadAddress as fault:
            raise StoreError(
                "not an address for ssh", subject=locator.origin, expected="sftp://USER@HOST/PATH"
            ) from fault
        words = ssh_words(
            host=host,
            user=user,
            port=port,
            identity_file=self._settings.identity_file,
            configuration=self._settings.ssh_config,
        )
        timeout_seconds = self._settings.timeout_seconds
        try:
            return SftpSession(words, timeout_seconds=timeout_seconds, subject=locator.origin)
        except KeyRefused:
            pass  # the key may have been renewed just now
        try:
            return SftpSession(words, timeout_seconds=timeout_seconds, subject=locator.origin)
        except KeyRefused as fault:
            raise CredentialExpired(
                fault.what, subject=fault.subject, next_step="renew the key, or let ssh know another one"
            ) from fault


def sftp_store(settings: StoreSettings) -> SftpStore:
    """The store of the scheme `sftp`."""
    return SftpStore(settings)


def _parsed(locator: str) -> Locator:
    try:
        parsed = parse_locator(locator)
    except BadLocator as fault:
        raise StoreError(fault.what, subject=fault.subject, expected="sftp://USER@HOST/PATH") from fault
    if parsed.scheme != "sftp" or not parsed.host:
        raise StoreError("not a file behind sftp", subject=shown_locator(locator), expected="sftp://USER@HOST/PATH")
    return parsed


def _path(locator: Locator) -> str:
    """The path for the server: one below `/~/` is relative, and thus in the home of the account."""
    if locator.path == _HOME.rstrip("/"):
        return "."
    return f"./{locator.path.removeprefix(_HOME)}" if locator.path.startswith(_HOME) else locator.path or "/"


def _object(locator: str, attributes: Attributes) -> StoreObject:
    return StoreObject(
        locator=locator,
        size_bytes=attributes.size_bytes,
        modified_at=float(attributes.modified_at),
        version=attributes.version,
    )


def _look(session: SftpSession, locator: str, path: str) -> StoreObject | None:
    try:
        attributes = session.attributes(Kind.STAT, path)
    except NotInStore:
        return None
    return _object(locator, attributes) if stat.S_ISREG(attributes.mode) else None


def _content(session: SftpSession, handle: bytes, *, start: int, end: int, locator: str) -> Iterator[bytes]:
    """The bytes of an open file between two offsets."""
    under_way: deque[tuple[int, int, int]] = deque()
    asked = start
    while asked < end or under_way:
        while asked < end and len(under_way) < AHEAD:
            size = min(session.read_bytes, end - asked)
            under_way.append((session.send(Kind.READ, handle, Wide(asked), size), asked, size))
            asked += size
        request, at, size = under_way.popleft()
        piece = session.data(request)
        if not piece or len(piece) > size:
            changed = session.attributes(Kind.FSTAT, handle).size_bytes != end
            kind = FileChanged if changed else StoreUnreachable
            raise kind("the content ended early", subject=shown_locator(locator))
        if len(piece) < size:  # a server may give less than was asked for
            rest = size - len(piece)
            again = session.send(Kind.READ, handle, Wide(at + len(piece)), rest)
            under_way.appendleft((again, at + len(piece), rest))
        yield piece


def _entries(session: SftpSession, path: str) -> Iterator[Entry]:
    try:
        handle = session.handle(Kind.OPENDIR, path)
    except NotInStore:
        return
    while (answer := session.call(Kind.READDIR, handle)).kind is Kind.NAME:
        yield from (entry for entry in read_entries(answer) if entry.name not in (".", ".."))
    session.call(Kind.CLOSE, handle)


def _send(session: SftpSession, reading: BinaryIO, draft: str, *, locator: str, sent: Callable[[int], None]) -> None:
    """Write a source to a draft, from where the draft ends; waits until it is on disk."""
    size_bytes = os.fstat(reading.fileno()).st_size
    # What was under way when an earlier call broke off may have left a hole.
    begun = _draft_bytes(session, draft, most=size_bytes) - AHEAD * session.write_bytes
    offset = max(0, begun)
    handle = _open_draft(session, draft)
    reading.seek(offset)
    if offset:
        sent(offset)
    under_way: deque[tuple[int, int]] = deque()
    try:
        while piece := reading.read(session.write_bytes):
            under_way.append((session.send(Kind.WRITE, handle, Wide(offset), piece), len(piece)))
            offset += len(piece)
            if len(under_way) >= AHEAD:
                _confirm(session, under_way, sent)
        while under_way:
            _confirm(session, under_way, sent)
        if FSYNC in session.extensions:
            session.call(Kind.EXTENDED, FSYNC, handle)
        there = session.attributes(Kind.FSTAT, handle).size_bytes
        session.call(Kind.CLOSE, handle)
    except Failed as fault:  # the server does not say that its disk is full
        raise _full(session, draft, locator) or fault from fault
    refuse_changed(reading, size_bytes=offset, locator=locator)
    if there != offset:
        raise StoreUnreachable(
            "the server did not keep all", subject=shown_locator(locator), expected=f"{offset} bytes", got=f"{there}"
        )


def _draft_bytes(session: SftpSession, draft: str, *, most: int) -> int:
    """The size of a draft; one that is too long is removed."""
    try:
        size_bytes = session.attributes(Kind.STAT, draft).size_bytes
    except NotInStore:
        return 0
    if size_bytes <= most:
        return size_bytes
    session.call(Kind.REMOVE, draft)
    return 0


def _open_draft(session: SftpSession, draft: str) -> bytes:
    opening = (draft, WRITE | CREATE, _PERMISSIONS, _MODE)
    try:
        return session.handle(Kind.OPEN, *opening)
    except NotInStore:
        _make_folders(session, draft.rpartition("/")[0])
        return session.handle(Kind.OPEN, *opening)


def _make_folders(session: SftpSession, path: str) -> None:
    try:
        _make_folder(session, path)
    except NotInStore:
        _make_folders(session, path.rpartition("/")[0])
        _make_folder(session, path)


def _make_folder(session: SftpSession, path: str) -> None:
    try:
        session.call(Kind.MKDIR, path, 0)
    except Failed:
        session.attributes(Kind.STAT, path)  # another session may have made it at the same time


def _confirm(session: SftpSession, under_way: deque[tuple[int, int]], sent: Callable[[int], None]) -> None:
    request, size = under_way.popleft()
    session.wait(request)
    sent(size)


def _publish(session: SftpSession, draft: str, path: str, *, replaces: str, locator: str) -> None:
    """Rename a draft to its name: without `replaces`, only if there is nothing of that name."""
    if replaces:
        refuse_other(_look(session, locator, path), replaces, locator)
        if POSIX_RENAME in session.extensions:
            session.call(Kind.EXTENDED, POSIX_RENAME, draft, path)
            return
        session.call(Kind.REMOVE, path)
    try:
        session.call(Kind.RENAME, draft, path)
    except Failed:
        refuse_other(_look(session, locator, path), "", locator)
        raise


def _full(session: SftpSession, path: str, locator: str) -> StoreFull | None:
    """An error if the file system of a path has no room left."""
    if STATVFS not in session.extensions:
        return None
    fields = Fields(session.call(Kind.EXTENDED, STATVFS, path).body)
    fragment_bytes = [fields.wide(), fields.wide()][1]
    available = [fields.wide(), fields.wide(), fields.wide()][2]
    if available * fragment_bytes > session.write_bytes:
        return None
    return StoreFull("the file system there is full", subject=shown_locator(locator))
