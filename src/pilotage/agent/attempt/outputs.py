"""Takes the outputs of an attempt from its folder: finds them by name, pattern or expression, hashes and stages them.

They are staged in the order of their names, under the attempt's own key, until one attempt is granted. Outputs that an
attempt staged only in part are removed again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt.diagnosis import Failure, from_system
from pilotage.agent.attempt.files import (
    check_name,
    check_output,
    copy_sharing,
    copy_whole,
    fixed_folder,
    link_or_copy,
    make_parents,
    matches,
    move,
    names_below,
)
from pilotage.agent.attempt.scratch import remove_tree
from pilotage.agent.durable_files import replace_file
from pilotage.agent.expressions import UnboundedExpression, compile_expression

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pilotage.agent.attempt.files import FolderVisibility, KnownFiles
    from pilotage.agent.attempt.workplace import Fetch

FILES_MAX = 100_000
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_CLOSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def make_output_folders(outputs: Sequence[Mapping[str, Any]], scratch: str) -> None:
    """Make the folders of outputs, so that a command can write there; for a pattern, its literal prefix.

    Raises `Failure`.
    """
    for output in outputs:
        name = output.get("name", "")
        if name:
            if "/" not in name:
                continue
            folder = fixed_folder(name) if output.get("pattern") else os.path.dirname(name)
        else:
            folder = output.get("folder", "")
        if not folder:
            continue
        check_name(folder)
        try:
            os.makedirs(os.path.join(scratch, folder), exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            message = f"the output {name or output.get('expression', '')!r} is in {folder!r}, which is not a folder"
            raise Failure("missing-output", message) from error
        except OSError as error:
            raise from_system(error, doing=f"making the folder {folder!r} of an output") from error


def gives_files(work: Mapping[str, Any]) -> bool:
    """Tell whether a package has outputs."""
    kept = ("outputs",) if work.get("startup") else ("outputs", "stdout", "stderr")
    return any(binary.get(each) for binary in work.get("binaries", ()) for each in kept)


def find_outputs(work: Mapping[str, Any], scratch: str, inputs: Collection[str]) -> list[str]:
    """The names of the package's output files, in order. Raises `Failure` if one is missing.

    A pattern or an expression does not match inputs, unless an input is declared as an output by name.
    """
    found: set[str] = set()
    below: list[str] | None = None
    for number, binary in enumerate(work.get("binaries", ())):
        if not work.get("startup"):
            for stream in ("stdout", "stderr"):
                if binary.get(stream):
                    found.add(binary[stream])
        for output in binary.get("outputs", ()):
            name = output.get("name", "")
            if name and not output.get("pattern"):
                found.add(name)
                continue
            expression = output.get("expression", "")
            if below is None:
                taken = set(inputs)
                below = [each for each in names_below(scratch) if each not in taken]
            try:
                found.update(_matching(output, name, expression, below, scratch))
            except Failure as failure:
                failure.binary = number
                raise
    for name in found:
        check_output(name)
    if len(found) > FILES_MAX:
        raise Failure("missing-output", f"{len(found)} files match its outputs, but the limit is {FILES_MAX}")
    return sorted(found)


def _matching(
    output: Mapping[str, Any], pattern: str, expression: str, below: Sequence[str], scratch: str
) -> list[str]:
    if pattern:
        found = [each for each in below if matches(pattern, each)]
        if not found:
            raise Failure("missing-output", f"no file matches the output {pattern!r}")
        return found
    folder = output.get("folder", "").rstrip("/")
    prefix = f"{folder}/" if folder else ""
    try:
        compiled = compile_expression(expression)
    except (re.error, UnboundedExpression) as error:
        raise Failure("missing-output", f"the expression {expression!r} is invalid: {error}") from error
    found = []
    for each in below:
        if prefix and each.startswith(prefix):
            if compiled.fullmatch(each[len(prefix) :]):
                found.append(each)
        elif compiled.fullmatch(each):
            found.append(_put(each, prefix, scratch) if prefix else each)
    # An expression such as `.*` may match nothing.
    if not found and not compiled.fullmatch(""):
        where = f" in {folder!r}" if folder else ""
        raise Failure("missing-output", f"no file{where} matches {expression!r}")
    return found


def _put(name: str, prefix: str, scratch: str) -> str:
    """Move a file into the folder of its output; returns its new name."""
    check_name(prefix + name)
    target = os.path.join(scratch, prefix + name)
    if os.path.lexists(target):
        raise Failure("missing-output", f"two files would be named {prefix + name!r}")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(os.path.join(scratch, name), target)
    return prefix + name


def _maker_of(name: str, work: Mapping[str, Any]) -> int | None:
    """The number of the binary that should have made a file."""
    for number, binary in enumerate(work.get("binaries", ())):
        streams = (binary.get("stdout"), binary.get("stderr"))
        if name in streams or any(each.get("name") == name for each in binary.get("outputs", ())):
            return number
    return None


class _FoundOutput(NamedTuple):
    """An output: the path and stat of its content, and whether it is behind a link."""

    name: str
    path: str
    status: os.stat_result
    is_link: bool


class Outputs:
    """Stages the outputs of one attempt."""

    def __init__(
        self, *, ref: Mapping[str, Any], work: Mapping[str, Any], scratch: str, visibility: FolderVisibility
    ) -> None:
        self._ref = ref
        self._work = work
        self._visibility = visibility
        self._staged: str = work["staged"]
        self._key = f"{ref['package']}-{ref['attempt']}"
        self._scratch = scratch
        self._input_inodes: Collection[int] = ()

    @property
    def prefix(self) -> str:
        """The path of each staged output, without its number in the manifest."""
        return f"{self._staged}/{self._key}"

    def stage(
        self, names: Sequence[str], known: KnownFiles, fetch: Fetch, *, input_inodes: Collection[int] = ()
    ) -> list[dict[str, Any]]:
        """Stage files in this order; returns the manifest. Raises `Failure`, and then leaves nothing staged."""
        self._input_inodes = input_inodes
        found = []
        for name in names:
            try:
                found.append(self._look_at(name))
            except Failure as failure:
                failure.binary = _maker_of(name, self._work)
                raise
        manifest = [self._described(each, known) for each in found]
        order: Sequence[int] = range(len(found))
        if len(found) > 1:
            # The target of a link may be an output itself, so copy before anything is moved away.
            order = sorted(order, key=lambda number: not found[number].is_link)
        try:
            for number in order:
                self._put(found[number], number, fetch)
        except Failure:
            self._remove(len(found))
            raise
        return manifest

    @staticmethod
    def _described(found: _FoundOutput, known: KnownFiles) -> dict[str, Any]:
        try:
            sha256 = known.made(found.path, found.status)
        except OSError as error:
            raise Failure("missing-output", f"the output {found.name!r} cannot be read: {error}") from error
        return {"name": found.name, "size_bytes": found.status.st_size, "sha256": sha256}

    def _look_at(self, name: str) -> _FoundOutput:
        path = f"{self._scratch}/{name}"
        try:
            name.encode()
            status = os.lstat(path)
        except UnicodeEncodeError as error:
            raise Failure("missing-output", f"the name of the output {os.fsencode(name)!r} is not UTF-8") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Failure("missing-output", f"the output {name!r} is missing: the command did not make it") from error
        except OSError as error:
            raise Failure("missing-output", f"the output {name!r} cannot be read: {error}") from error
        real = os.path.realpath(path) if stat.S_ISLNK(status.st_mode) or "/" in name else path
        if real != path:
            if not real.startswith(f"{self._scratch}/"):
                raise Failure("missing-output", f"the output {name!r} is a link that leads out of the package's folder")
            try:
                status = os.stat(real)
            except OSError as error:
                raise Failure("missing-output", f"the output {name!r} is a broken link") from error
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            raise Failure("missing-output", f"the output {name!r} is a folder, expected a file")
        if not stat.S_ISREG(mode):
            raise Failure("missing-output", f"the output {name!r} is not a regular file")
        if not mode & stat.S_IRUSR:
            with contextlib.suppress(OSError):
                os.chmod(real, mode | stat.S_IRUSR)
        return _FoundOutput(name, real, status, real != path)

    def _put(self, found: _FoundOutput, number: int, fetch: Fetch) -> None:
        try:
            if not (self._visibility.of(self._work).staged and self._put_here(found, number)):
                fetch.stage(self._ref, number, found.path)
        except OSError as error:
            raise from_system(error, doing=f"staging the output {found.name!r}") from error

    def _put_here(self, found: _FoundOutput, number: int) -> bool:
        """Move an output to the staging folder; False if that is no longer visible, or not writable."""
        target = f"{self._staged}/{self._key}-{number}"
        # An input that is passed on is the file in the tree, which stays, and is not published over itself. A file with
        # another hard link could be changed through that later.
        is_shared = found.status.st_nlink > 1 or found.status.st_ino in self._input_inodes
        put = copy_whole if found.is_link or is_shared else move
        try:
            put(found.path, target)
        except OSError as error:
            if error.errno in _CLOSED:
                return False
            if error.errno not in _GONE:
                raise
            if not self._visibility.look(self._work).staged:
                return False
            put(found.path, target)
        return True

    def _remove(self, count: int) -> None:
        for number in range(count):
            for end in ("", ".part"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._staged}/{self._key}-{number}{end}")


# Outputs of finished binaries, kept until the package is done, so that a later attempt can resume after them.
#
# Each binary has a folder with its files, and a list of them with their stats. A file that cannot be reflinked is
# hard-linked, and a later binary may have written into it: it is used only if its stat is unchanged.

_LIST = "list.json"
_FILES = "files"


class KeptWork:
    """The kept work of one package, for the attempts of one epoch at one site."""

    def __init__(self, assignment: Mapping[str, Any], work: Mapping[str, Any], folder: str) -> None:
        ref = assignment["ref"]
        self._folder = os.path.join(folder, ref["package"])
        self._draft = f"{ref['attempt']}-{os.getpid()}"
        self._keys = _keys(assignment, work)

    def resume(self, scratch: str) -> int:
        """Restore the files of finished binaries into a folder; returns how many binaries to skip."""
        done = 0
        for key in self._keys[:-1]:
            if not self._take_up(os.path.join(self._folder, key), scratch):
                break
            done += 1
        return done

    def keep(self, number: int, scratch: str, *, without: Collection[str]) -> None:
        """Keep all files in the folder after a binary, except the inputs. If that fails, the binary runs again."""
        draft = os.path.join(self._folder, f"{self._draft}.draft")
        try:
            files = {}
            os.makedirs(os.path.join(draft, _FILES), exist_ok=True)
            for name in names_below(scratch):
                source, target = os.path.join(scratch, name), os.path.join(draft, _FILES, name)
                if name in without or not os.path.isfile(source) or os.path.islink(source):
                    continue
                make_parents(os.path.join(draft, _FILES), name)
                if not copy_sharing(source, target):
                    link_or_copy(source, target)
                files[name] = _described(target)
            with open(os.path.join(draft, _LIST), "w", encoding="utf-8") as written:
                json.dump(files, written)
            os.rename(draft, os.path.join(self._folder, self._keys[number]))
        except (OSError, ValueError):
            remove_tree(draft)

    def forget(self) -> None:
        """Remove the kept work."""
        remove_tree(self._folder)

    def _take_up(self, kept: str, scratch: str) -> bool:
        try:
            with open(os.path.join(kept, _LIST), encoding="utf-8") as written:
                files: dict[str, list[int]] = json.load(written)
            for name, described in files.items():
                check_name(name)
                if _described(os.path.join(kept, _FILES, name)) != described:
                    return False
            for name in files:
                source, target = os.path.join(kept, _FILES, name), os.path.join(scratch, name)
                make_parents(scratch, name)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(target)
                if not copy_sharing(source, target):
                    link_or_copy(source, target)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        except ValueError:
            return False
        return True


def _described(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _keys(assignment: Mapping[str, Any], work: Mapping[str, Any]) -> list[str]:
    """A key for the state after each binary, from the commands so far and the inputs."""
    import hashlib

    ref = assignment["ref"]
    digest = hashlib.sha256(_encoded([ref["job"], ref["package"], assignment.get("epoch", 1), work.get("container")]))
    digest.update(_encoded([assignment.get("inputs", ()), work.get("inputs", ())]))
    keys = []
    for number, binary in enumerate(work["binaries"]):
        digest.update(_encoded(binary))
        keys.append(f"{number + 1}-{digest.hexdigest()[:32]}")
    return keys


def _encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


# Outputs that others read while they grow: the agents of their readers copy them (`inputs`).

OLD_SECONDS = 7 * 86400.0
"""What a pilot that was killed said of its folder is removed by another one after so long."""


class ShownFolder:
    """Says at a site where the outputs of a running attempt grow, and what it made in the end."""

    def __init__(self, file: str, scratch: str) -> None:
        """Say it now. If that fails, nobody can read them early, which is no fault of the attempt."""
        self._file = os.path.expanduser(file)
        self._scratch = scratch
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._file), exist_ok=True)
            _remove_old(self._file)
            self._say({"folder": scratch, "inode": os.stat(scratch).st_ino})

    def _say(self, about: Mapping[str, Any]) -> None:
        replace_file(Path(self._file), json.dumps(about).encode())

    def finish(self, manifest: Sequence[Mapping[str, Any]], staged: str) -> None:
        """Its outputs are made, and staged as `staged`-NUMBER, in the order of the manifest."""
        made = {each["name"]: {**each, "path": f"{staged}-{number}"} for number, each in enumerate(manifest)}
        with contextlib.suppress(OSError):
            self._say({"made": made})

    def end(self) -> None:
        """It failed."""
        with contextlib.suppress(OSError):
            os.unlink(self._file)


def _remove_old(file: str) -> None:
    """Remove what other attempts said long ago."""
    folder, own = os.path.split(file)
    prefix, before = own.partition("-")[0] + "-", time.time() - OLD_SECONDS
    for name in os.listdir(folder):
        if name.startswith(prefix) and os.stat(f"{folder}/{name}").st_mtime < before:
            os.unlink(f"{folder}/{name}")
