"""Places files elsewhere: by a hard link, by a copy that shares blocks (reflink), or by a copy."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import os
import re
import shutil
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt.diagnosis import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_FICLONE = 0x40049409

# Errors of file systems without hard links, between two file systems, or with too many links to a file.
_NO_LINK = frozenset({
    errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL,
})  # fmt: skip

SIDECAR = ".pilotage"
"""End of the name of the file that says how far an input is that may grow."""


def link_or_copy(source: str, target: str) -> bool:
    """Hard-link a file, or copy it if that is impossible; returns whether it is a link."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        copy(source, target)
        return False
    return True


def link_at_all(source: str, target: str, *, symbolic: bool) -> bool:
    """Link a file, whatever file system it is on; a container, which does not see where a symbolic link leads, gets a copy."""
    try:
        os.link(source, target)
    except OSError:
        if not symbolic:
            copy(source, target)
            return False
        os.symlink(source, target)
    return True


def refresh(path: str) -> None:
    """Have a network file system ask its server again for a name and for the content of its file."""
    with contextlib.suppress(OSError):
        os.listdir(os.path.dirname(path))
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))


def copy(source: str, target: str) -> None:
    """Copy a file with its mode, as a reflink if possible. A failed copy leaves nothing."""
    try:
        if not copy_sharing(source, target):
            shutil.copyfile(source, target)
            os.chmod(target, os.stat(source).st_mode & 0o777 | 0o200)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(target)
        raise


def move(source: str, target: str) -> None:
    """Rename a file; between file systems copy it, and rename the copy when complete."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_whole(source, target)
        os.unlink(source)


def copy_whole(source: str, target: str) -> None:
    """Copy a file under a draft name, and rename it when complete."""
    part = f"{target}.part"
    copy(source, part)
    os.rename(part, target)


def copy_sharing(source: str, target: str) -> bool:
    """Copy a file as a reflink; returns whether the file system can. Leaves nothing if it cannot."""
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(writing, _FICLONE, reading)
            os.fchmod(writing, os.fstat(reading).st_mode & 0o777 | 0o200)
        except OSError:
            os.unlink(target)
            return False  # whatever the reason: the next way is tried, and reports what is wrong
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return True


# Names of files in a package's folder: relative, with `/`, and never outside it.

_OWN = (".pilotage", ".pilotage-staged")


def check_name(name: str) -> None:
    """Raise `Failure` if a name leads out of the folder: names from messages are not trusted."""
    if not name or name[0] == "/" or "\0" in name or (".." in name and ".." in name.split("/")):
        raise Failure("platform-failure", f"{name!r} is not a file name in the package's folder")


def check_output(name: str) -> None:
    """Raise `Failure` if a name is reserved for pilotage."""
    check_name(name)
    if name.startswith(_OWN) and name.partition("/")[0] in _OWN:
        raise Failure(
            "missing-output", f"the output name {name!r} is not allowed: {name.partition('/')[0]} is reserved"
        )


def make_parents(root: str, name: str) -> None:
    """Make the parent folders of a name. Raises `OSError`."""
    if "/" in name:
        os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)


def names_below(folder: str) -> Iterator[str]:
    """The names of all non-folders below a folder, without following links."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, prefix)) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue  # removed, or closed by its owner: an output in there will be reported as missing
        for name, is_folder in found:
            if is_folder:
                waiting.append(f"{prefix}{name}/")
            else:
                yield prefix + name


# File-name patterns of documents: `*` and `?` within one folder, `**` across folders, `[abc]`, `[!abc]`.
#
# The service matches the same patterns in the same way; this is a version for older Pythons. A name is matched in one
# pass that tracks all possible positions in the pattern, so the cost is at most the product of their lengths.

_SPECIAL = frozenset("*?[")
_ESCAPED = re.compile(r"\[([*?\[])\]")  # an escaped special character


class _Step(NamedTuple):
    """A position in a pattern: which characters lead on from it, and where it leads without one."""

    expression: re.Pattern[str] | None = None  # matches one consumed character
    stays: bool = False  # stays here after it: a star
    leads_on: tuple[int, ...] = ()  # offsets of positions reached without a character


def is_pattern(name: str) -> bool:
    """Tell whether a name is a pattern."""
    return not _SPECIAL.isdisjoint(name)


def fixed_folder(pattern: str) -> str:
    """The literal folder prefix of a pattern; empty: the package's folder."""
    folders = []
    for part in pattern.split("/")[:-1]:
        name = _ESCAPED.sub(r"\1", part)
        if is_pattern(_ESCAPED.sub("", part)):
            break
        folders.append(name)
    return "/".join(folders)


def matches(pattern: str, name: str) -> bool:
    """Tell whether a name matches a pattern."""
    if not is_pattern(pattern):
        return pattern == name
    steps = _steps(pattern)
    here = _with_what_follows({0}, steps)
    for character in name:
        reached = set()
        for place in here:
            step = steps[place] if place < len(steps) else _END
            if step.expression is not None and step.expression.fullmatch(character):
                reached.add(place if step.stays else place + 1)
        here = _with_what_follows(reached, steps)
        if not here:
            return False
    return len(steps) in here


def _with_what_follows(places: set[int], steps: tuple[_Step, ...]) -> set[int]:
    found, waiting = set(places), list(places)
    while waiting:
        place = waiting.pop()
        for distance in steps[place].leads_on if place < len(steps) else ():
            if place + distance not in found:
                found.add(place + distance)
                waiting.append(place + distance)
    return found


@lru_cache(maxsize=256)
def _steps(pattern: str) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    i = 0
    while i < len(pattern):
        if pattern.startswith("**", i):
            end = i
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            # `**/` also matches no folder at all, so its slash is part of it.
            folders = pattern.startswith("/", end)
            across = _Step(_ANY, stays=True, leads_on=(1,))
            steps += [_Step(leads_on=(1, 3)), across, _Step(re.compile("/"))] if folders else [across]
            i = end + 1 if folders else end
            continue
        token = _token_at(pattern, i)
        steps.append(_Step(_WITHIN, stays=True, leads_on=(1,)) if token == "*" else _Step(_one_character(token)))
        i += len(token)
    return tuple(steps)


def _token_at(pattern: str, start: int) -> str:
    """A complete set, else one character."""
    if pattern[start] == "[":
        end = pattern.find("]", start + 3 if pattern[start + 1 : start + 2] == "!" else start + 2)
        if end > 0:
            return pattern[start : end + 1]
    return pattern[start]


def _one_character(token: str) -> re.Pattern[str]:
    if token == "?":
        return _WITHIN
    if len(token) == 1:
        return re.compile(re.escape(token))
    negated = token.startswith("[!")
    members = _members(token[2:-1] if negated else token[1:-1])
    return re.compile(f"(?!/)[{'^' if negated else ''}{members}]", re.DOTALL)


def _members(inner: str) -> str:
    """The members of a set as a regular expression; `z-a` is three characters."""
    written = []
    i = 0
    while i < len(inner):
        last = inner[i + 2] if inner[i + 1 : i + 2] == "-" and i + 2 < len(inner) else ""
        if last and inner[i] <= last:
            written.append(f"{re.escape(inner[i])}-{re.escape(last)}")
            i += 3
        else:
            written.append(re.escape(inner[i]))
            i += 1
    return "".join(written)


_ANY = re.compile(".", re.DOTALL)
_WITHIN = re.compile("[^/]")
_END = _Step()


# Checksums of files, cached as long as a file's size, time and inode stay the same.

_PIECE_BYTES = 1024 * 1024
_TINY_BYTES = 256
_OWN_DIGESTS = ("_sha256", "_sha2")  # where Python has its own sha256: up to 3.11, and after it
_KNOWN_MAX = 100_000


def get_ready() -> None:
    """Load the library that hashes larger files, so that no package waits for it."""
    _digest_of_many()


def sha256_of(path: str, size_bytes: int = _PIECE_BYTES) -> str:
    """The sha256 of a file; a known size saves memory and a read past its end."""
    new_digest = _digest_of_tiny() if size_bytes <= _TINY_BYTES else _digest_of_many()
    piece_bytes = min(size_bytes + 1, _PIECE_BYTES)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        piece = os.read(descriptor, piece_bytes)
        digest = new_digest(piece)
        while len(piece) == piece_bytes or (piece and piece_bytes == _PIECE_BYTES):
            piece = os.read(descriptor, piece_bytes)
            digest.update(piece)
    finally:
        os.close(descriptor)
    sha256: str = digest.hexdigest()
    return sha256


class KnownFiles:
    """Checksums that a pilot has computed, by the file's stat."""

    def __init__(self) -> None:
        self._checksums: dict[tuple[int, int, int, int], str] = {}  # by device, inode, size and time
        self._digest: Any = None  # loaded at first use
        self._tiny_digest: Any = None

    def is_known(self, status: os.stat_result, sha256: str) -> bool:
        """Tell whether a file with this current `status` is known to have this sha256."""
        return self._checksums.get((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)) == sha256

    def sha256(self, path: str, status: os.stat_result) -> str:
        """The sha256 of a file with this current `status`, read only if unknown."""
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._checksums.get(key)
        if known is None:
            known = sha256_of(path, status.st_size)
            self._keep(key, known)
        return known

    def made(self, path: str, status: os.stat_result) -> str:
        """The sha256 of a file that a command has just made, always read.

        A command can set the time of its file, and a new file may reuse the inode of a removed one of the same size.
        """
        sha256 = sha256_of(path, status.st_size)
        self.keep(status, sha256)
        return sha256

    def keep_content(self, status: os.stat_result, content: bytes) -> str:
        """Cache the sha256 of a file's content that was just read, and return it."""
        if len(content) <= _TINY_BYTES:
            if self._tiny_digest is None:
                self._tiny_digest = _digest_of_tiny()
            sha256: str = self._tiny_digest(content).hexdigest()
        else:
            if self._digest is None:
                self._digest = _digest_of_many()
            sha256 = self._digest(content).hexdigest()
        self._keep((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), sha256)
        return sha256

    def keep(self, status: os.stat_result, sha256: str) -> None:
        """Cache a checksum known from elsewhere."""
        self._keep((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), sha256)

    def _keep(self, key: tuple[int, int, int, int], sha256: str) -> None:
        if len(self._checksums) >= _KNOWN_MAX:
            self._checksums.clear()  # files still in use are read once more
        self._checksums[key] = sha256


def _digest_of_tiny() -> Any:
    """A sha256 for a few bytes: OpenSSL's start-up takes longer than Python's own takes for all of them."""
    for name in _OWN_DIGESTS:
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(name).sha256
    return _digest_of_many()


def _digest_of_many() -> Any:
    import hashlib

    return hashlib.sha256


# Whether the folders of a job are visible here: those of the service itself, and not others at the same paths.
#
# The service puts a mark file into them, and each work repeats its content. A pilot that can read the mark uses the
# folder; any other fetches inputs from the service and uploads outputs. It checks again from time to time: a file system
# may be mounted, unmounted or replaced.

MARK_FILE = "mark"
MARK_BYTES_MAX = 1024
AGAIN_SECONDS = 30.0
REMEMBERED_MAX = 1024


class VisibleFolders(NamedTuple):
    """Which folders of a job are visible."""

    folder: bool  # the document's folder, with the files of the job
    staged: bool  # the folder for outputs


class _Looked(NamedTuple):
    mark: str
    until: float
    folders: VisibleFolders


class FolderVisibility:
    """Whether a pilot sees the folders of its jobs, cached for a while; safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked: dict[str, _Looked] = {}  # by output folder, which each job has its own of

    def of(self, work: Mapping[str, Any]) -> VisibleFolders:
        """Which folders of a work's job are visible, as of the last check."""
        looked = self._looked.get(work["staged"])
        if looked is not None and looked.mark == work.get("mark") and self._clock() < looked.until:
            return looked.folders
        return self.look(work)

    def shows(self, work: Mapping[str, Any]) -> bool:
        """Tell whether commands may use the document's folder; one that could not be marked is assumed to be the right one."""
        folder = work["folder"]
        if work.get("mark") and (work.get("folder_mark") or _is_below(work["staged"], folder)):
            return self.of(work).folder
        return os.path.isdir(folder)

    def look(self, work: Mapping[str, Any]) -> VisibleFolders:
        """Check now: a file was missing, or the last check is too old."""
        staged, folder, mark = work["staged"], work["folder"], work.get("mark", "")
        folders = NOTHING
        if mark:
            is_staged = _says(f"{staged}/{MARK_FILE}", mark)
            is_folder = is_staged
            if work.get("folder_mark"):
                is_folder = _says(f"{folder}/{work['folder_mark']}", mark)
            elif not _is_below(staged, folder):
                is_folder = False
            folders = VisibleFolders(is_folder, is_staged)
        if len(self._looked) >= REMEMBERED_MAX:
            self._looked.clear()
        self._looked[staged] = _Looked(mark, self._clock() + AGAIN_SECONDS, folders)
        return folders


NOTHING = VisibleFolders(folder=False, staged=False)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def _says(file: str, mark: str) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return mark.encode() in os.read(descriptor, MARK_BYTES_MAX).split(b"\n")
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return False


def check_content(
    each: Mapping[str, Any], path: str, status: os.stat_result, known: KnownFiles, *, again: bool = False
) -> None:
    """Raise `Failure` if a file has another size or content than the work order says."""
    wanted_bytes = each.get("size_bytes")
    if wanted_bytes is not None and status.st_size != wanted_bytes:
        raise Failure(
            "input-checksum", f"the input {each['name']!r} has {status.st_size} bytes, expected {wanted_bytes}"
        )
    wanted = each.get("sha256")
    if wanted:
        found = known.made(path, status) if again else known.sha256(path, status)
        if found != wanted:
            raise Failure("input-checksum", f"the input {each['name']!r} has sha256 {found}, expected {wanted}")
