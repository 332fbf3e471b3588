"""Dialects of batch systems by other authors: checked, kept in the state folder, and found beside ours."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pilotage.adapters.closed_folders import make_closed
from pilotage.model.errors import PilotageError

DIALECTS_FOLDER = "dialects"
"""In the state folder: one module for each."""
SYNTAX = (3, 8)
CHECK_SECONDS_MAX = 60.0
DIALECT_BYTES_MAX = 1024 * 1024
_MODULE = re.compile(r"[a-z][a-z0-9_]{0,59}")
# The archive comes first on the path, and nothing of this computer after it.
_CHECK = """\
import sys
sys.path.insert(0, sys.argv[1])
from pilotage.agent.batch.registry import main
sys.exit(main(sys.argv[2]))
"""


class BadDialect(PilotageError):
    """A file cannot be packed: it is not Python for every node, has no dialect, or its dialect is faulty."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """What was packed: the dialects by name, their folder, and the archive."""

    dialects: tuple[str, ...]
    folder: str
    archive: str


def add_dialects(state: Path) -> None:
    """Add the dialects of a state folder to the known ones, and to the agent's archive, from now on."""
    folder = state / DIALECTS_FOLDER
    if folder.is_dir():
        _extend(folder)


def _extend(folder: Path) -> None:
    from pilotage.agent import batch

    if str(folder) not in batch.__path__:
        batch.__path__.append(str(folder))


def pack(files: Sequence[Path], *, state: Path, archive: Path | None = None) -> Packed:
    """Check dialects and put them into the agent's archive, for the services of a state folder.

    Raises `BadDialect`; then nothing has changed.
    """
    from pilotage.adapters.sites.zipapp import build_in

    add_dialects(state)
    named = {file: _names_in(file) for file in files}
    _refuse_known(named)
    folder = state / DIALECTS_FOLDER
    with tempfile.TemporaryDirectory(prefix="pilotage-pack-") as made:
        drafts = Path(made) / DIALECTS_FOLDER
        drafts.mkdir()
        for file in files:
            (drafts / file.name).write_bytes(file.read_bytes())
        content = _archive_with(drafts)
        draft = Path(made) / "agent.pyz"
        draft.write_bytes(content)
        for file, names in named.items():
            for name in names:
                _check(draft, name, file)
        make_closed(folder)
        for each in drafts.glob("*.py"):
            _put(folder / each.name, each.read_bytes(), mode=0o600)
        if archive is not None:
            _put(archive, content, mode=0o755)
    _extend(folder)
    target = archive if archive is not None else build_in(state)
    packed = tuple(name for found in named.values() for name in found)
    return Packed(dialects=packed, folder=str(folder), archive=str(target))


def _archive_with(folder: Path) -> bytes:
    """The agent's archive with the dialects of one more folder, whose files replace others of the same name."""
    from pilotage.adapters.sites.zipapp import archive
    from pilotage.agent import batch

    before = list(batch.__path__)
    batch.__path__.insert(1, str(folder))
    try:
        return archive()
    finally:
        batch.__path__[:] = before


def _names_in(file: Path) -> list[str]:
    """The names of the dialects that a file defines, by its text alone; raises `BadDialect`."""
    if not _MODULE.fullmatch(file.stem) or file.suffix != ".py":
        raise BadDialect("the file needs the name of a module", subject=str(file), expected="such as my_system.py")
    try:
        content = file.read_bytes()
        if len(content) > DIALECT_BYTES_MAX:
            raise BadDialect("this file is too large for a dialect", subject=str(file))
        tree = ast.parse(content, file.name, feature_version=SYNTAX)
    except (SyntaxError, ValueError) as error:
        place = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise BadDialect(
            f"this is not Python 3.8: {place}{getattr(error, 'msg', None) or error}", subject=str(file)
        ) from error
    except OSError as error:
        raise BadDialect("cannot be read", subject=str(file), got=error.strerror or str(error)) from error
    names = [name for node in tree.body if isinstance(node, ast.ClassDef) for name in _name_of(node)]
    if not names:
        raise BadDialect(
            "it defines no dialect",
            subject=str(file),
            expected='a class of Dialect with a line such as  name = "mysystem"',
        )
    return names


def _name_of(node: ast.ClassDef) -> list[str]:
    """The text assigned to `name` in a class."""
    found = []
    for line in node.body:
        targets = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        )
        value = getattr(line, "value", None)
        if any(isinstance(each, ast.Name) and each.id == "name" for each in targets) and isinstance(
            value, ast.Constant
        ):
            found += [value.value] if isinstance(value.value, str) and value.value else []
    return found


def _refuse_known(named: dict[Path, list[str]]) -> None:
    """Raise if a dialect, or its module, would replace one of our own."""
    from pilotage.agent import batch

    own = Path(batch.__path__[0])
    for file, names in named.items():
        if (own / file.name).exists():
            raise BadDialect("one of our own modules has this name", subject=file.name, next_step="choose another name")
        for name, kind in batch.dialects().items():
            if name in names and Path(sys.modules[kind.__module__].__file__ or "").parent == own:
                raise BadDialect("one of our own dialects has this name", subject=f"{file.name}: {name}")


def _check(archive: Path, name: str, file: Path) -> None:
    """Have a dialect import and check itself from the archive, isolated."""
    words = [sys.executable, "-I", "-S", "-c", _CHECK, str(archive), name]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=False, timeout=CHECK_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        raise BadDialect(
            f"its check did not end within {CHECK_SECONDS_MAX:g} s", subject=f"{file.name}: {name}"
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        # The last line of a traceback has the error.
        reported = lines[-1:] if lines and lines[0].startswith("Traceback") else lines
        raise BadDialect("\n  ".join(["it is not as a dialect should be:", *reported]), subject=f"{file.name}: {name}")


def _put(file: Path, content: bytes, *, mode: int) -> None:
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.chmod(mode)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
