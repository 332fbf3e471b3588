"""The agent in one file: the modules of `pilotage.agent`, and nothing else, in an archive that any Python can run.

Equal sources make equal files. Beside each module stands what this very version of Python compiled of it, which makes
the start three times quicker here; other versions do not take it, and read the module. A first package waits until this
file is made and read: what Python has compiled already is not compiled again, and here nothing is packed.
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
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that an archive can say
# Any Python must be able to read this one file, so that it says what is wrong instead of where a syntax is not known to it.
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
_MARSHAL_VERSION = 2  # later ones depend on how often a value is used elsewhere, and then equal sources differ


def build(file: Path, *, interpreter: str = "/usr/bin/env python3") -> Path:
    """Write the agent into a file, which appears whole; where the same is there already it is left alone."""
    return _build(file, digest(interpreter=interpreter), interpreter=interpreter)


def _build(file: Path, mark: str, *, interpreter: str = "/usr/bin/env python3") -> Path:
    if not _is_whole(file, mark.encode()):
        _write(file, archive(interpreter=interpreter))
    return file


def content_digest(file: Path) -> str:
    """The digest of what is in a file now; empty where there is none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def hold_to(file: Path, known: str) -> None:
    """See that the agent in a file is what was put there, and put it there again where it is not.

    Raises `OSError` where that cannot be made any more, since another version of pilotage was installed meanwhile.
    """
    if content_digest(file) == known:
        return
    content = archive()
    if hashlib.sha256(content).hexdigest() != known:
        raise OSError(f"{file} is not what was put there: start the service again, which makes it anew")
    log.warning("%s is not what was put there, and is put there again", file)
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
    """The agent in a state folder, under a name that says what is in it: whoever runs an earlier one keeps that.

    A Python that runs an archive reads further modules from it later, and must not find another one in its place.
    Earlier ones that nobody runs any more are removed.
    """
    mark = digest()
    file = _build(folder / f"agent-{VERSION}-{mark[:_NAMED_DIGITS]}.pyz", mark)
    others = [each for each in folder.glob("agent-*.pyz") if each != file]
    if others:
        running = _running()
        for each in others:
            if running is not None and not any(_runs(command, each) for command in running):
                with suppress(OSError):  # it takes room, and nothing else
                    each.unlink()
    return file


def _runs(command: str, file: Path) -> bool:
    """Whether a command names a file; one that is named by less than its whole path may be any of that name."""
    if file.name not in command:
        return False
    place = os.path.realpath(file)
    words = [word for word in command.split("\0") if word.endswith(file.name)]
    return any(not Path(word).is_absolute() or os.path.realpath(word) == place for word in words)


def _running() -> list[str] | None:
    """The commands of all processes of this system; None where it does not tell."""
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
    """The agent as the content of a file; it ends with its own checksum, and with what tells it from any other.

    `compression` is one of `zipfile`: what goes a long way is worth packing.
    """
    content = io.BytesIO()
    content.write(f"#!{interpreter}\n".encode())
    own = _own_modules()
    with zipfile.ZipFile(content, "a", compression=compression) as target:
        for name, source in sorted(_sources(own).items()):
            _add(target, name, source)
            # The first module of an archive is run from its source in any case.
            if name != "__main__.py":
                _add(target, f"{name}c", _compiled(name, source, own.get(name)))
        mark = digest(interpreter=interpreter).encode()
        target.comment = bytes(_DIGEST_BYTES) + mark
    body = content.getvalue()[: -2 * _DIGEST_BYTES]
    return body + hashlib.sha256(body).hexdigest().encode() + mark


def digest(*, interpreter: str = "/usr/bin/env python3") -> str:
    """What tells this agent from any other: its sources, and the Python that compiled them."""
    known = hashlib.sha256(importlib.util.MAGIC_NUMBER + interpreter.encode())
    for name, source in sorted(_sources(_own_modules()).items()):
        known.update(f"{name} {len(source)}\n".encode())
        known.update(source)
    return known.hexdigest()


def _is_whole(file: Path, mark: bytes) -> bool:
    """Whether a file is an agent of this mark, and as it was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return False
    body, known = content[: -2 * _DIGEST_BYTES], content[-2 * _DIGEST_BYTES : -_DIGEST_BYTES]
    return content.endswith(mark) and hashlib.sha256(body).hexdigest().encode() == known


def _own_modules() -> dict[str, Traversable]:
    """The modules of the package by their names in the archive."""
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
    """The sources of everything in the archive by name."""
    found = {"__main__.py": _MAIN.encode(), "pilotage/__init__.py": _front_door()}
    found |= {name: entry.read_bytes() for name, entry in own.items()}
    # Dialects that somebody added lie in folders of their own, which are part of the same package; whoever adds imports it.
    batch = sys.modules.get(DIALECTS)
    for further in batch.__path__[1:] if batch is not None else ():
        for file in sorted(Path(further).glob("*.py")):
            found.setdefault(f"pilotage/agent/batch/{file.name}", file.read_bytes())
    return found


def _front_door() -> bytes:
    return f'"""The agent of pilotage, in one file."""\n\n__version__ = "{VERSION}"\n'.encode()


def _compiled(name: str, source: bytes, entry: Traversable | None) -> bytes:
    """What this Python makes of a module, in a form that it believes without looking at the source again."""
    place = f"agent.pyz/{name}"
    if isinstance(entry, Path):
        code = _placed(_known_code(name, entry), place)
    else:
        code = compile(source, place, "exec", dont_inherit=True)
    flags = (0b01).to_bytes(4, "little")  # known by a checksum of the source, which nobody need check
    head = importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source)
    return head + marshal.dumps(code, _MARSHAL_VERSION)


def _known_code(name: str, file: Path) -> CodeType:
    """A module as Python itself would take it: from where it keeps what it has compiled, if that is of this source."""
    code = SourceFileLoader(name, str(file)).get_code(name)
    assert isinstance(code, CodeType)
    return code


def _placed(code: CodeType, place: str) -> CodeType:
    """The same code, with its functions, as if its source stood elsewhere: equal sources make equal files everywhere."""
    inner = tuple(_placed(each, place) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=place, co_consts=inner)


def _add(target: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, date_time=_TIME)
    entry.compress_type = target.compression
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # the same on every system
    target.writestr(entry, content)
