"""The tree of a job as a folder: outputs are staged beside it, and renamed into it when they are granted.

An existing file is replaced only if pilotage made it and it was not changed since.
"""
# Paths are strings here: making a Path costs more than its system call.
# ruff: noqa: PTH100, PTH103, PTH104, PTH106, PTH108, PTH116, PTH118, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from pilotage.adapters.stores.checksums import Checksums, stored
from pilotage.adapters.stores.marks import Marks, is_mark
from pilotage.adapters.stores.removal import remove_unchanged
from pilotage.model.events.events import JOB_ID, parse_dotted
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports.job_tree import InTheWay, Mark, NotOurs, Rival, StoredFile, StoreError
from pilotage.ports.results_index import ResultsIndex

# Moving files into place and back, by renames, which are atomic.


def move(source: str, target: str) -> None:
    """Rename; if that is impossible between two file systems, copy beside the target and rename the copy."""
    try:
        os.rename(source, target)
    except OSError as fault:
        if fault.errno != errno.EXDEV:
            raise
        import shutil  # rarely needed: only if the file systems differ after all

        beside = os.path.join(os.path.dirname(target), f".{os.path.basename(target)[:200]}.pilotage")
        shutil.copy2(source, beside)
        os.rename(beside, target)
        os.unlink(source)


def set_aside(path: str) -> str:
    """Rename a path to the first free name of `NAME.~1~`, `NAME.~2~`, …, like numbered backups; returns that name.

    A file is linked first, so that it is never without a name.
    """
    number = 1
    while True:
        aside = f"{path}.~{number}~"
        if not os.path.lexists(aside):
            try:
                os.link(path, aside, follow_symlinks=False)  # fails if another process has taken the name
            except FileExistsError:
                continue
            except OSError:  # a folder, or a file system without hard links
                os.rename(path, aside)
            return aside
        number += 1


def take_back(brought: Sequence[tuple[str, str]]) -> None:
    """Move files back to where they were staged, as far as possible: they are published again with the others."""
    for staged, target in brought:
        with suppress(OSError):  # then it stays under its final name, which was granted
            os.rename(target, staged)


STATE_FOLDER = ".pilotage"
FOLDERS = "folders"
"""Folder in the state folder for jobs whose inputs were sent: each has a folder of its own there."""
STAGED_BESIDE = ".pilotage-staged"
"""Folder for staged outputs if the state folder is on another file system than the results."""

IsRival = Callable[[str], bool]
"""Tells whether the files of a job must not be replaced."""
Learn = Callable[[str], bool]
"""Makes the index learn from the book which files of a folder are ours; returns whether it learned anything."""

log = logging.getLogger(__name__)

_DRAFT = ".part"
_STAGED = re.compile(r"([0-9]+\.[0-9]+\.[0-9]+)-([0-9]+)-([0-9]+)")
_STAGING = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_NOT_PLAIN = frozenset({"", ".", "..", STATE_FOLDER, STAGED_BESIDE})
_FEW = 16  # up to so many names of a directory are looked up one by one; for more, it is listed
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN})


class FolderTree:
    """A store for folders of this machine; safe for threads."""

    def __init__(self, state: Path, index: ResultsIndex, *, learn: Learn = lambda _: False) -> None:
        """Stage within `state` if that is on the file system of the results; the index knows which files are ours.

        `learn` asks the book about files unknown to the index, which can be lost, its newest part first.
        """
        self._state = state
        self._inside = f"{os.path.abspath(state)}/"
        self._sent = f"{self._inside}{FOLDERS}/"  # the folders of jobs whose inputs were sent
        self._checksums = Checksums(index)
        self._index = index
        self._learn = learn
        self._beginnings: dict[str, str] = {}  # folder → prefix of its paths; empty: in the state folder
        self._roots: dict[str, str] = {}  # folder → root of its staging folders
        self._paths: dict[tuple[str, str], str] = {}  # folder and job → staging folder
        self._made: set[str] = set()  # staging folders that exist
        self._marks = Marks(STAGED_BESIDE)

    # --- staged ---

    def staged_folder(self, folder: str, job: str) -> str:
        """The staging folder of a job; made if needed."""
        path = self._staged_path(folder, job)
        if path not in self._made:
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
            except OSError as fault:
                raise _store_error(fault, path, "cannot stage outputs") from fault
            self._made.add(path)
        return path

    def mark(self, folder: str, job: str) -> Mark:
        """Write the mark files by which agents recognise the folders of a job."""
        return self._marks.make(folder, job, staged=self.staged_folder(folder, job))

    def kept_folder(self, job: str) -> str:
        """The folder where agents keep outputs of finished binaries for a later attempt; not made here."""
        return os.path.join(self._state, "kept", job)

    def staged(self, folder: str, job: str) -> list[tuple[str, int]]:
        """The packages and attempts with staged files."""
        try:
            names = os.listdir(self._staged_path(folder, job))
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise _store_error(fault, folder, "cannot list staged outputs") from fault
        found = (_STAGED.fullmatch(name) for name in names)
        return sorted({(one[1], int(one[2])) for one in found if one is not None})

    def write_staged(self, folder: str, ref: AttemptRef, *, number: int, offset: int, data: bytes) -> None:
        """Write a piece of a staged file."""
        staged = self.staged_folder(folder, ref.job)
        path = self.staged_file(folder, ref, number)
        try:
            try:
                handle = os.open(path, _STAGING, 0o644)
            except FileNotFoundError:  # the folder was removed since it was made
                self._made.discard(staged)
                self.staged_folder(folder, ref.job)
                handle = os.open(path, _STAGING, 0o644)
            try:
                written = 0
                while written < len(data):
                    written += os.pwrite(handle, data[written:], offset + written)
            finally:
                os.close(handle)
        except OSError as fault:
            raise _store_error(fault, path, "cannot stage an output") from fault

    def discard(self, folder: str, ref: AttemptRef, count: int) -> None:
        """Remove the staged files of an attempt: the reported ones, and those staged before a report, also in part."""
        number = 0
        while True:
            path = self.staged_file(folder, ref, number)
            try:
                os.unlink(path)
            except FileNotFoundError:
                with suppress(FileNotFoundError):
                    os.unlink(f"{path}{_DRAFT}")  # its agent was killed while it copied the file
                if number >= count:
                    return
            except OSError as fault:
                raise _store_error(fault, path, "cannot remove a staged output") from fault
            number += 1

    def forget(self, folder: str, job: str) -> None:
        """Remove all staged and kept files of a job."""
        shutil.rmtree(self.kept_folder(job), ignore_errors=True)
        path = self._staged_path(folder, job)
        with suppress(OSError):
            for name in os.listdir(path):
                if _STAGED.fullmatch(name.removesuffix(_DRAFT)) or is_mark(name):
                    os.unlink(os.path.join(path, name))
            os.rmdir(path)
        self._made.discard(path)
        self._paths.pop((folder, job), None)
        if os.path.basename(os.path.dirname(path)) == STAGED_BESIDE:
            with suppress(OSError):
                os.rmdir(os.path.dirname(path))
        else:
            self._marks.remove(folder, job)

    def _staged_path(self, folder: str, job: str) -> str:
        path = self._paths.get((folder, job))
        if path is None:
            root = self._roots.get(folder)
            if root is None:
                root = self._roots[folder] = self._staging_root(folder)
            if JOB_ID.fullmatch(job) is None:
                raise StoreError("not a job id", subject=job[:80])
            path = self._paths[folder, job] = os.path.join(root, job)
        return path

    def _staging_root(self, folder: str) -> str:
        try:
            if os.stat(folder).st_dev == os.stat(self._state).st_dev:
                return os.path.join(self._state, "staged")
        except OSError as fault:
            raise _store_error(fault, folder, "cannot use the folder of the results") from fault
        return os.path.join(folder, STAGED_BESIDE)

    def staged_file(self, folder: str, ref: AttemptRef, number: int) -> str:
        """The path of a staged output."""
        if parse_dotted(ref.package) is None:
            raise StoreError("not a package number", subject=ref.package[:80])
        return f"{self._staged_path(folder, ref.job)}/{ref.package}-{ref.attempt}-{number}"

    # --- the tree ---

    def publish(
        self,
        folder: str,
        ref: AttemptRef,
        manifest: Sequence[OutputFile],
        *,
        is_rival: IsRival | None = None,
        in_the_way: InTheWay = "refuse",
    ) -> None:
        """Rename the staged files of a granted attempt to their final names: all of them, or none if one fails."""
        targets = self._targets(folder, manifest, is_rival, in_the_way)
        brought: list[tuple[str, str]] = []
        aside: list[tuple[str, str]] = []
        for number, (file, (target, there)) in enumerate(zip(manifest, targets, strict=True)):
            staged = self.staged_file(folder, ref, number)
            try:
                if there:
                    with suppress(FileNotFoundError):
                        os.unlink(staged)  # published before, or equal
                    continue
                if there is None and os.path.lexists(target):
                    aside.append((target, set_aside(target)))
                self._bring(folder, file, staged=staged, target=target)
            except (OSError, StoreError) as fault:
                take_back([*brought, *aside])
                if isinstance(fault, StoreError):
                    raise
                raise _store_error(fault, target, "cannot publish an output") from fault
            if there is None:
                brought.append((staged, target))
        for target, name in aside:
            log.info("%s was not made by pilotage, and is kept as %s", target, name)

    def check(
        self,
        folder: str,
        manifest: Sequence[OutputFile],
        *,
        is_rival: IsRival | None = None,
        in_the_way: InTheWay = "refuse",
    ) -> None:
        """Refuse files that could not be published now."""
        self._targets(folder, manifest, is_rival, in_the_way)

    def _targets(
        self, folder: str, manifest: Sequence[OutputFile], is_rival: IsRival | None, in_the_way: InTheWay
    ) -> list[tuple[str, bool | None]]:
        """The targets of outputs, each with the state of the existing file; refuses a file in the way."""
        targets: list[tuple[str, bool | None]] = []
        for file in manifest:
            target = self._target(folder, file.name)
            try:
                targets.append((target, self._in_place(folder, file, target=target, is_rival=is_rival)))
            except NotOurs as fault:
                if in_the_way == "refuse" or isinstance(fault, Rival):
                    raise
                targets.append((target, None))
            except OSError as fault:
                raise _store_error(fault, target, "cannot publish an output") from fault
        return targets

    def _in_place(self, folder: str, file: OutputFile, *, target: str, is_rival: IsRival | None) -> bool | None:
        """Compare a target with its output: True if equal, False if it may be replaced, None if it does not exist.

        Refuses a file that must stay.
        """
        there = stored(target, file.name)
        if there is None:
            return None
        if self._is(folder, there, file):
            return True
        if not self.is_ours(folder, [there])[file.name]:
            raise not_ours(target)
        if is_rival is not None:
            self._refuse_rival(folder, file.name, target, is_rival)
        return False

    def _bring(self, folder: str, file: OutputFile, *, staged: str, target: str) -> None:
        try:
            move(staged, target)
        except FileNotFoundError:
            if not os.path.lexists(staged):
                raise StoreError(
                    "a staged output was removed before it was published",
                    subject=target,
                    next_step="restart the package: its output is lost",
                ) from None
            os.makedirs(os.path.dirname(target), exist_ok=True)
            move(staged, target)
        now = stored(target, file.name)
        if now is not None:
            self._checksums.remember(folder, now, file.sha256, made=True)

    def _refuse_rival(self, folder: str, name: str, target: str, is_rival: IsRival) -> None:
        job = self._index.maker(folder, name, sha256=self.checksum(folder, name) or "")
        if job and is_rival(job):
            raise Rival(
                f"job {job}, which had not ended when this job was submitted, has made another file of this name",
                subject=target,
                next_step="move that file away if both are wanted, or remove it",
            )

    def _is(self, folder: str, there: StoredFile, file: OutputFile) -> bool:
        """Tell whether an existing file has the content of an output."""
        return there.size_bytes == file.size_bytes and self.checksum(folder, file.name) == file.sha256

    def is_ours(self, folder: str, files: Collection[StoredFile]) -> dict[str, bool]:
        """Which of these files pilotage made, as they are now."""
        self._checksums.flush()
        ours = self._known_as_ours(folder, files)
        others = [file for file in files if not ours[file.name]]
        if others and self._learn(folder):
            ours.update(self._known_as_ours(folder, others))
        return ours

    def _known_as_ours(self, folder: str, files: Collection[StoredFile]) -> dict[str, bool]:
        names = [file.name for file in files]
        made = self._index.makers(folder, names)
        known_files = self._index.known_files(folder, list(made))
        ours = dict.fromkeys(names, False)
        for file in files:
            contents = {each.sha256 for each in made.get(file.name, ()) if each.size_bytes == file.size_bytes}
            if contents:
                known = known_files.get(file.name)
                sha256 = known.sha256 if known and known.is_still(file) else self.checksum(folder, file.name)
                ours[file.name] = sha256 in contents
        return ours

    def look_up(self, folder: str, names: Collection[str]) -> dict[str, StoredFile]:
        """The existing files among some names; a directory with many of them is listed once."""
        by_parent: dict[str, list[str]] = {}
        for name in names:
            by_parent.setdefault(name.rpartition("/")[0], []).append(name)
        found: dict[str, StoredFile] = {}
        for parent, children in by_parent.items():
            there = children
            if len(children) > _FEW:
                listed = _listing(os.path.join(folder, parent))
                start = len(parent) + 1 if parent else 0
                there = [name for name in children if name[start:] in listed] if listed else []
            for name in there:
                one = stored(os.path.join(folder, name), name)
                if one is not None:
                    found[name] = one
        return found

    def checksum(self, folder: str, name: str) -> str | None:
        """The sha256 of a file of a tree, cached as long as its size, time and inode stay the same."""
        try:
            return self._checksums.of(folder, name, self._below(folder, name))
        except OSError as fault:
            raise _store_error(fault, os.path.join(folder, name), "cannot read a file") from fault

    def read(self, folder: str, name: str, *, offset: int, size_bytes: int) -> bytes:
        """Read a piece of a file of a tree."""
        path = self._below(folder, name)
        try:
            with open(path, "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise StoreError("not a regular file", subject=path)
                return os.pread(file.fileno(), size_bytes, offset)
        except OSError as fault:
            raise _store_error(fault, path, "cannot read a file") from fault

    def is_linked(self, folder: str, name: str) -> bool:
        """Tell whether a file of a tree is a link, or behind a folder that is one."""
        self._below(folder, name)
        path = folder
        for part in name.split("/"):
            path = os.path.join(path, part)
            try:
                if stat.S_ISLNK(os.lstat(path).st_mode):
                    return True
            except OSError:
                return False  # it does not exist, so nothing below it does
        return False

    def remove(self, folder: str, name: str, *, sha256: str) -> bool:
        """Remove a file of a tree if it is unchanged since it was made; reads it if the cache is not certain."""
        path = self._target(folder, name)

        def is_known(file: StoredFile) -> bool:
            return self._checksums.is_certainly(folder, file, sha256)

        try:
            return remove_unchanged(folder, name, sha256=sha256, is_known=is_known)
        except FileNotFoundError:
            return False
        except OSError as fault:
            raise _store_error(fault, path, "cannot remove a file") from fault

    def remove_empty(self, folder: str, names: Collection[str]) -> list[str]:
        """Remove the empty parent folders of some names, innermost first."""
        found = {parent for name in names for parent in _parents(name)}
        removed: list[str] = []
        for parent in sorted(found, key=lambda each: (-each.count("/"), each)):
            if self.is_linked(folder, parent):
                continue
            with suppress(OSError):  # not empty, or not permitted
                os.rmdir(self._target(folder, parent))
                removed.append(parent)
        return sorted(removed)

    def close(self) -> None:
        """Write cached checksums to the index."""
        self._checksums.flush()

    def _below(self, folder: str, name: str) -> str:
        """The path of a name, which must stay inside the folder."""
        if "/" not in name and name not in _NOT_PLAIN and "\0" not in name:
            beginning = self._beginnings.get(folder)
            if beginning is None:
                beginning = os.path.join(folder, "")
                beginning = self._beginnings[folder] = "" if self._is_reserved(beginning) else beginning
            if beginning:
                return beginning + name
        parts = name.split("/")
        if not name or "\0" in name or "" in parts or "." in parts or ".." in parts:
            raise StoreError("not a file name in the job's tree", subject=name[:200])
        path = os.path.join(folder, name)
        if parts[0] in (STATE_FOLDER, STAGED_BESIDE) or self._is_reserved(path):
            raise StoreError("this name is reserved for the state of pilotage", subject=name[:200])
        return path

    def _is_reserved(self, path: str) -> bool:
        """Whether a path is in the state folder, and not in the folder of a job there."""
        return path.startswith(self._inside) and not path.startswith(self._sent)

    def _target(self, folder: str, name: str) -> str:
        """The path of a name to write, which must stay inside the folder, also through links."""
        path = self._below(folder, name)
        if "/" not in name:
            return path
        parent = folder
        for part in name.split("/")[:-1]:
            parent = os.path.join(parent, part)
            try:
                if not stat.S_ISLNK(os.lstat(parent).st_mode):
                    continue
            except OSError:
                break  # it does not exist yet, so nothing below it does
            root = os.path.realpath(folder)
            if not os.path.realpath(parent).startswith(f"{root}/"):
                raise StoreError(
                    "a link leads out of the folder of the results",
                    subject=parent,
                    next_step="make it a folder, or run the document where the link leads to",
                )
            led = f"{os.path.realpath(os.path.dirname(path))}/"
            own = [os.path.join(root, STATE_FOLDER), os.path.join(root, STAGED_BESIDE)]
            if not f"{folder}/".startswith(self._sent):
                own.append(os.path.realpath(self._state))
            if led.startswith(tuple(f"{each}/" for each in own)):
                raise StoreError(
                    "a link leads to the state of pilotage",
                    subject=parent,
                    next_step="make it a folder, or give the output another name",
                )
        return path


def not_ours(path: str) -> NotOurs:
    """The error for a file in the way."""
    return NotOurs(
        "this file exists, and pilotage did not make it, or it was changed since",
        subject=path,
        next_step="move it away, or give the output another name; or run again with --replace, which keeps it beside the output",
    )


def _parents(name: str) -> list[str]:
    """The parent folders of a name."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _listing(path: str) -> set[str]:
    try:
        return set(os.listdir(path))
    except OSError:
        return set()


def _store_error(fault: OSError, path: str | Path, what: str) -> StoreError:
    """Turn an `OSError` into an error of the store."""
    next_step = ""
    if fault.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        next_step = (
            "let this user write there, or run a copy of the document in a folder of your own; `ls -ld` shows who may"
        )
    elif fault.errno in (errno.ENOSPC, errno.EDQUOT):
        next_step = "free space on that disk"
    elif fault.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
        next_step = "move away the file in its place"
    error = StoreError(f"{what}: {os.strerror(fault.errno or 0)}", subject=str(path), next_step=next_step)
    error.retryable = fault.errno in _PASSING
    return error
