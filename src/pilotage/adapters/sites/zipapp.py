"""The agent in one file: a zip archive of `pilotage.agent` alone, which any Python can run.

Equal sources make equal files. The archive also has bytecode of this version of Python, which makes the agent start
three times faster here; other versions ignore it. The first package waits until this file is built and read, so modules
already compiled are not compiled again, and nothing is compressed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging
import marshal
import os
import sys
import zipfile
from contextlib import suppress
from importlib import resources
from importlib.machinery import SourceFileLoader
from importlib.resources.abc import Traversable
from pathlib import Path
from types import CodeType

from pilotage.model.version import VERSION

log = logging.getLogger(__name__)

PACKAGE = "pilotage.agent"
DIALECTS = "pilotage.agent.batch"
_NAMED_DIGITS = 12
_DIGEST_BYTES = 64  # of a sha256 in hexadecimal
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip archive
# Every Python must be able to parse this file, so that an old one prints an error instead of a syntax error.
_MAIN = """\
import sys

if sys.version_info < (3, 8):
    sys.exit(
        "pilotage-agent: Python 3.8 or newer is needed, this is %d.%d: %s" % (sys.version_info[:2] + (sys.executable,))
    )

from pilotage.agent.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
"""
_MARSHAL_VERSION = 2  # later versions depend on reference counts, so that equal sources would differ


def build(file: Path, *, interpreter: str = "/usr/bin/env python3") -> Path:
    """Write the agent to a file atomically, unless the file is up to date."""
    return _build(file, digest(interpreter=interpreter), interpreter=interpreter)


def _build(file: Path, mark: str, *, interpreter: str = "/usr/bin/env python3") -> Path:
    if not _is_whole(file, mark.encode()):
        _write(file, archive(interpreter=interpreter))
    return file


def content_digest(file: Path) -> str:
    """The digest of a file's content; empty if it does not exist."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def hold_to(file: Path, known: str) -> None:
    """Check that the agent's file is unchanged, and write it again if not.

    Raises `OSError` if that is impossible, because another version of pilotage was installed meanwhile.
    """
    if content_digest(file) == known:
        return
    content = archive()
    if hashlib.sha256(content).hexdigest() != known:
        raise OSError(f"{file} has changed since it was written: restart the service, which makes it anew")
    log.warning("%s has changed since it was written, and is written again", file)
    _write(file, content)


def _write(file: Path, content: bytes) -> None:
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.chmod(0o755)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def build_in(folder: Path) -> Path:
    """Write the agent to a state folder, under a name with its digest: running agents keep their own file.

    Python reads further modules from a running archive later, so the file must not be replaced. Earlier files that no
    process runs are removed.
    """
    mark = digest()
    file = _build(folder / f"agent-{VERSION}-{mark[:_NAMED_DIGITS]}.pyz", mark)
    others = [each for each in folder.glob("agent-*.pyz") if each != file]
    if others:
        running = _running()
        for each in others:
            if running is not None and not any(_runs(command, each) for command in running):
                with suppress(OSError):  # it only takes space
                    each.unlink()
    return file


def _runs(command: str, file: Path) -> bool:
    """Tell whether a command line names a file; a relative path may be any file of that name."""
    if file.name not in command:
        return False
    place = os.path.realpath(file)
    words = [word for word in command.split("\0") if word.endswith(file.name)]
    return any(not Path(word).is_absolute() or os.path.realpath(word) == place for word in words)


def _running() -> list[str] | None:
    """The command lines of all processes; None if the system does not show them."""
    found = []
    try:
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                with suppress(OSError):
                    found.append(Path(entry.path, "cmdline").read_bytes().decode("utf-8", "replace"))
    except OSError:
        return None
    return found


def archive(*, interpreter: str = "/usr/bin/env python3", compression: int = zipfile.ZIP_STORED) -> bytes:
    """The agent as the content of a file, which ends with its checksum and its digest.

    `compression` is one of `zipfile`, for an archive that is sent over a network.
    """
    content = io.BytesIO()
    content.write(f"#!{interpreter}\n".encode())
    own = _own_modules()
    with zipfile.ZipFile(content, "a", compression=compression) as target:
        for name, source in sorted(_sources(own).items()):
            _add(target, name, source)
            # `__main__` is always run from its source.
            if name != "__main__.py":
                _add(target, f"{name}c", _compiled(name, source, own.get(name)))
        mark = digest(interpreter=interpreter).encode()
        target.comment = bytes(_DIGEST_BYTES) + mark
    body = content.getvalue()[: -2 * _DIGEST_BYTES]
    return body + hashlib.sha256(body).hexdigest().encode() + mark


def digest(*, interpreter: str = "/usr/bin/env python3") -> str:
    """Identifies this agent: its sources, and the Python that compiled them."""
    known = hashlib.sha256(importlib.util.MAGIC_NUMBER + interpreter.encode())
    for name, source in sorted(_sources(_own_modules()).items()):
        known.update(f"{name} {len(source)}\n".encode())
        known.update(source)
    return known.hexdigest()


def _is_whole(file: Path, mark: bytes) -> bool:
    """Tell whether a file is a complete agent with this digest."""
    try:
        content = file.read_bytes()
    except OSError:
        return False
    body, known = content[: -2 * _DIGEST_BYTES], content[-2 * _DIGEST_BYTES : -_DIGEST_BYTES]
    return content.endswith(mark) and hashlib.sha256(body).hexdigest().encode() == known


def _own_modules() -> dict[str, Traversable]:
    """The package's modules by their names in the archive."""
    found: dict[str, Traversable] = {}
    waiting: list[tuple[str, Traversable]] = [("pilotage/agent", resources.files(PACKAGE))]
    while waiting:
        prefix, folder = waiting.pop()
        for entry in folder.iterdir():
            name = f"{prefix}/{entry.name}"
            if entry.is_dir() and entry.name != "__pycache__":
                waiting.append((name, entry))
            elif entry.name.endswith(".py"):
                found[name] = entry
    return found


def _sources(own: dict[str, Traversable]) -> dict[str, bytes]:
    """All sources in the archive by name."""
    found = {"__main__.py": _MAIN.encode(), "pilotage/__init__.py": _front_door()}
    found |= {name: entry.read_bytes() for name, entry in own.items()}
    # Added dialects are in folders of their own, which extend the same package; they are found by importing it.
    batch = sys.modules.get(DIALECTS)
    for further in batch.__path__[1:] if batch is not None else ():
        for file in sorted(Path(further).glob("*.py")):
            found.setdefault(f"pilotage/agent/batch/{file.name}", file.read_bytes())
    return found


def _front_door() -> bytes:
    return f'"""The agent of pilotage, in one file."""\n\n__version__ = "{VERSION}"\n'.encode()


def _compiled(name: str, source: bytes, entry: Traversable | None) -> bytes:
    """The bytecode of a module, in a form that Python uses without checking the source."""
    place = f"agent.pyz/{name}"
    if isinstance(entry, Path):
        code = _placed(_known_code(name, entry), place)
    else:
        code = compile(source, place, "exec", dont_inherit=True)
    flags = (0b01).to_bytes(4, "little")  # hash-based and unchecked: see PEP 552
    head = importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source)
    return head + marshal.dumps(code, _MARSHAL_VERSION)


def _known_code(name: str, file: Path) -> CodeType:
    """The code of a module as Python would load it: from its bytecode cache, if that is up to date."""
    code = SourceFileLoader(name, str(file)).get_code(name)
    assert isinstance(code, CodeType)
    return code


def _placed(code: CodeType, place: str) -> CodeType:
    """The same code with another file name, so that equal sources make equal files everywhere."""
    inner = tuple(_placed(each, place) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=place, co_consts=inner)


def _add(target: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, date_time=_TIME)
    entry.compress_type = target.compression
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # the same on every system
    target.writestr(entry, content)
