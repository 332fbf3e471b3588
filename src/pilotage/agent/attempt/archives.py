"""Unpacks archives of software, once for each pilot: tar files, compressed or not, and zip files.

An archive is not trusted: nothing of it may lie outside its folder, lead out of it, or be anything but a file, a folder
or a link. What it may take of the disk is bounded by its own size.
"""

from __future__ import annotations

import os
import posixpath
import stat
import tarfile
import threading
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, NamedTuple

from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.attempt.scratch import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES_MAX = 1_000_000
GROWTH_MAX, GROWTH_BYTES = 100, 1 << 30
"""An archive may unpack to so many times its size, and to so much in any case."""
_PIECE_BYTES = 1 << 20
_SYMBOLIC, _HARD = "symbolic", "hard"


class BadArchive(Exception):
    """An archive cannot be read, or contains what no archive of software may contain."""


class _Member(NamedTuple):
    name: str
    content: IO[bytes] | None  # None: a folder or a link
    executable: bool = False
    link: str = ""  # what kind of link it is
    target: str = ""


class UnpackedSoftware:
    """The unpacked archives of one pilot; safe for threads."""

    def __init__(self, root: str) -> None:
        """Take the folder for them; it is made with the first."""
        self.root = root
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def folder(self, archive: str, sha256: str) -> str:
        """The folder with the files of an archive, which has this checksum; unpacked once. Raises `Failure` or `OSError`."""
        with self._guard:
            lock = self._locks.setdefault(sha256, threading.Lock())
        folder = os.path.join(self.root, sha256)
        with lock:
            if not os.path.isdir(folder):
                draft = f"{folder}.part"
                remove_tree(draft)
                os.makedirs(draft, mode=0o700)
                try:
                    unpack(archive, draft)
                except BadArchive as error:
                    remove_tree(draft)
                    raise Failure("missing-input", f"an archive of software cannot be unpacked: {error}") from error
                except OSError:
                    remove_tree(draft)
                    raise
                os.rename(draft, folder)
        return folder


def unpack(archive: str, folder: str) -> None:
    """Unpack an archive into an empty folder; raises `BadArchive`, or `OSError` if it cannot be written."""
    left_bytes = GROWTH_BYTES + GROWTH_MAX * os.path.getsize(archive)
    links: list[_Member] = []
    try:
        for count, member in enumerate(_members(archive)):
            if count >= FILES_MAX:
                raise BadArchive(f"it has more than {FILES_MAX:,} files")
            path = _inside(folder, member.name)
            if member.link:
                links.append(member)  # made last, so that nothing is written through one
            elif member.content is None:
                os.makedirs(path, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                left_bytes -= _write(member, path, left_bytes)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise BadArchive(f"it is damaged, or of an unknown kind: {error}") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise BadArchive(f"two of its files have one name: {error.filename}") from error
    for member in links:
        _link(member, folder)


def _inside(folder: str, name: str) -> str:
    """The path of a name of an archive below the folder."""
    if not name or name.startswith("/") or "\0" in name or "\\" in name or ".." in name.split("/"):
        raise BadArchive(f"the name {name!r} leads out of its folder")
    return os.path.join(folder, posixpath.normpath(name))


def _write(member: _Member, path: str, left_bytes: int) -> int:
    """Write a file; returns its size."""
    assert member.content is not None
    size_bytes = 0
    mode = 0o555 if member.executable else 0o444
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode), "wb") as target:
        while True:
            piece = member.content.read(_PIECE_BYTES)
            if not piece:
                return size_bytes
            size_bytes += len(piece)
            if size_bytes > left_bytes:
                raise BadArchive("it unpacks to far more than its own size")
            target.write(piece)


def _link(member: _Member, folder: str) -> None:
    path = _inside(folder, member.name)
    if member.link == _HARD:
        target = _inside(folder, member.target)
        if not os.path.isfile(target) or os.path.islink(target):
            raise BadArchive(f"{member.name!r} is a link to {member.target!r}, which it does not have")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.link(target, path)
        return
    led = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.target))
    if member.target.startswith("/") or led == ".." or led.startswith("../") or "\0" in member.target:
        raise BadArchive(f"{member.name!r} is a link to {member.target!r}, out of its folder")
    parent = os.path.dirname(path)
    os.makedirs(parent, exist_ok=True)
    if os.path.realpath(parent) != os.path.realpath(folder) and not os.path.realpath(parent).startswith(
        f"{os.path.realpath(folder)}/"
    ):
        raise BadArchive(f"{member.name!r} lies behind a link")
    os.symlink(member.target, path)
    if not os.path.realpath(path).startswith(f"{os.path.realpath(folder)}/"):
        os.unlink(path)
        raise BadArchive(f"{member.name!r} is a link to {member.target!r}, out of its folder")


def _members(archive: str) -> Iterator[_Member]:
    return _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)


def _tar_members(archive: str) -> Iterator[_Member]:
    with tarfile.open(archive, "r:*") as opened:
        for each in opened:
            name = each.name.removeprefix("./")
            if each.isdir():
                if name not in (".", ""):
                    yield _Member(name, None)
            elif each.isreg():
                yield _Member(name, opened.extractfile(each), bool(each.mode & stat.S_IXUSR))
            elif each.issym() or each.islnk():
                yield _Member(name, None, link=_SYMBOLIC if each.issym() else _HARD, target=each.linkname)
            else:
                raise BadArchive(f"{name!r} is neither a file nor a folder nor a link")


def _zip_members(archive: str) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for each in opened.infolist():
            mode = each.external_attr >> 16
            if each.is_dir():
                yield _Member(each.filename.rstrip("/"), None)
            elif stat.S_ISLNK(mode):
                yield _Member(each.filename, None, link=_SYMBOLIC, target=opened.read(each).decode("utf-8", "replace"))
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with opened.open(each) as content:
                    yield _Member(each.filename, content, bool(mode & stat.S_IXUSR))
            else:
                raise BadArchive(f"{each.filename!r} is neither a file nor a folder nor a link")
