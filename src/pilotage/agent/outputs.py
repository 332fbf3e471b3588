"""Taking the outputs of an attempt out of its folder: found by name, pattern or expression, hashed, and staged.

They are staged in the order of their names, each under the attempt's own key, and wait there for the one attempt that is
granted. What an attempt leaves half staged is removed again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.copying import copy_whole, move
from pilotage.agent.diagnosis import Failure, from_system
from pilotage.agent.expressions import UnboundedExpression, compile_expression
from pilotage.agent.names import check_name, check_output, names_below
from pilotage.agent.patterns import fixed_folder, matches

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pilotage.agent.hashing import KnownFiles
    from pilotage.agent.sight import Sight
    from pilotage.agent.workplace import Fetch

FILES_MAX = 100_000
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_CLOSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def make_output_folders(outputs: Sequence[Mapping[str, Any]], scratch: str) -> None:
    """Make the folders that outputs lie in, so that a command can write there at once; of a pattern, as far as it tells.

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
            message = f"the output {name or output.get('expression', '')!r} lies in {folder!r}, which is no folder"
            raise Failure("missing-output", message) from error
        except OSError as error:
            raise from_system(error, doing=f"making the folder {folder!r} of an output") from error


def gives_files(work: Mapping[str, Any]) -> bool:
    """Whether a package shall give any file at all."""
    kept = ("outputs",) if work.get("startup") else ("outputs", "stdout", "stderr")
    return any(binary.get(each) for binary in work.get("binaries", ()) for each in kept)


def find_outputs(work: Mapping[str, Any], scratch: str, inputs: Collection[str]) -> list[str]:
    """The names of the files that a package has made and shall give, in order. Raises `Failure` where one is missing.

    A pattern or an expression does not take inputs, unless one is an output by its name.
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
        raise Failure("missing-output", f"{len(found)} files match its outputs, and at most {FILES_MAX} can be taken")
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
        raise Failure("missing-output", f"the expression {expression!r} cannot be read: {error}") from error
    found = []
    for each in below:
        if prefix and each.startswith(prefix):
            if compiled.fullmatch(each[len(prefix) :]):
                found.append(each)
        elif compiled.fullmatch(each):
            found.append(_put(each, prefix, scratch) if prefix else each)
    # What an expression such as `.*` asks for is whatever there is, which may be nothing.
    if not found and not compiled.fullmatch(""):
        where = f" in {folder!r}" if folder else ""
        raise Failure("missing-output", f"no file{where} matches {expression!r}")
    return found


def _put(name: str, prefix: str, scratch: str) -> str:
    """Put a file into the folder that its output names; its name there."""
    check_name(prefix + name)
    target = os.path.join(scratch, prefix + name)
    if os.path.lexists(target):
        raise Failure("missing-output", f"two files would be {prefix + name!r}")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(os.path.join(scratch, name), target)
    return prefix + name


def _maker_of(name: str, work: Mapping[str, Any]) -> int | None:
    """Which binary of a package should have made a file that has a name."""
    for number, binary in enumerate(work.get("binaries", ())):
        streams = (binary.get("stdout"), binary.get("stderr"))
        if name in streams or any(each.get("name") == name for each in binary.get("outputs", ())):
            return number
    return None


class _Found(NamedTuple):
    """An output: where its content is, what the system says of that, and whether it is behind a link."""

    name: str
    path: str
    status: os.stat_result
    is_link: bool


class Outputs:
    """Stages the outputs of one attempt."""

    def __init__(self, *, ref: Mapping[str, Any], work: Mapping[str, Any], scratch: str, sight: Sight) -> None:
        """Say which attempt it is, where its files are, and what is seen of the folders of its job."""
        self._ref = ref
        self._work = work
        self._sight = sight
        self._staged: str = work["staged"]
        self._key = f"{ref['package']}-{ref['attempt']}"
        self._scratch = scratch
        self._input_inodes: Collection[int] = ()

    def stage(
        self, names: Sequence[str], known: KnownFiles, fetch: Fetch, *, input_inodes: Collection[int] = ()
    ) -> list[dict[str, Any]]:
        """Stage files in this order; the manifest. Raises `Failure`, and then nothing is left of it."""
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
            # What lies behind a link may be an output itself, so it is copied before anything is moved away.
            order = sorted(order, key=lambda number: not found[number].is_link)
        try:
            for number in order:
                self._put(found[number], number, fetch)
        except Failure:
            self._remove(len(found))
            raise
        return manifest

    @staticmethod
    def _described(found: _Found, known: KnownFiles) -> dict[str, Any]:
        try:
            sha256 = known.made(found.path, found.status)
        except OSError as error:
            raise Failure("missing-output", f"the output {found.name!r} cannot be read: {error}") from error
        return {"name": found.name, "size_bytes": found.status.st_size, "sha256": sha256}

    def _look_at(self, name: str) -> _Found:
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
                raise Failure("missing-output", f"the output {name!r} is a link to nothing") from error
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            raise Failure("missing-output", f"the output {name!r} is a folder, expected a file")
        if not stat.S_ISREG(mode):
            raise Failure("missing-output", f"the output {name!r} is no regular file")
        if not mode & stat.S_IRUSR:
            with contextlib.suppress(OSError):
                os.chmod(real, mode | stat.S_IRUSR)
        return _Found(name, real, status, real != path)

    def _put(self, found: _Found, number: int, fetch: Fetch) -> None:
        try:
            if not (self._sight.of(self._work).staged and self._put_here(found, number)):
                fetch.stage(self._ref, number, found.path)
        except OSError as error:
            raise from_system(error, doing=f"staging the output {found.name!r}") from error

    def _put_here(self, found: _Found, number: int) -> bool:
        """Put an output where the service takes it from; False where that is not to be seen any more, or closed to us."""
        target = f"{self._staged}/{self._key}-{number}"
        # An input that is passed on is the file in the tree: that one stays, and is not published over itself. What has
        # another name somewhere could be changed by that one later.
        is_shared = found.status.st_nlink > 1 or found.status.st_ino in self._input_inodes
        put = copy_whole if found.is_link or is_shared else move
        try:
            put(found.path, target)
        except OSError as error:
            if error.errno in _CLOSED:
                return False
            if error.errno not in _GONE:
                raise
            if not self._sight.look(self._work).staged:
                return False
            put(found.path, target)
        return True

    def _remove(self, count: int) -> None:
        for number in range(count):
            for end in ("", ".part"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._staged}/{self._key}-{number}{end}")
