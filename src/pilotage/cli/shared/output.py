"""Writes output: to standard output, as messages to standard error, or to files that are replaced atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pilotage.cli.shared.streams import failure_of

COLUMNS_DEFAULT = 100
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/([0-9]{1,6})")
_WORDS = {"stdout": 1, "stderr": 2}


def columns() -> int:
    """The width for wrapped text: COLUMNS, or that of the terminal, or a default."""
    return max(20, shutil.get_terminal_size((COLUMNS_DEFAULT, 24)).columns)


def is_coloured() -> bool:
    """Whether standard error is a terminal and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stderr.isatty()


def printable(text: str) -> str:
    """A text without terminal control sequences: every unprintable character except newline becomes a mark."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def print_message(text: str) -> None:
    """Print a message to standard error, without terminal control sequences."""
    print_styled(printable(text))


def print_styled(text: str) -> None:
    """Print a message with colours to standard error; its other parts must be `printable` already."""
    click.echo(text, err=True, color=is_coloured())


def emit(pieces: Iterable[str], *, output: str = "-") -> None:
    """Write pieces of text to standard output for `-`, otherwise to a file."""
    if output == "-":
        _to_standard_output(pieces)
    else:
        write_files({output: pieces})


def _to_standard_output(pieces: Iterable[str]) -> None:
    stream = sys.stdout.buffer
    is_terminal = sys.stdout.isatty()
    for piece in pieces:
        stream.write(_encoded(_CONTROL_CHARACTERS.sub("\ufffd", piece) if is_terminal else piece))
        if failure_of(sys.stdout) is not None:
            return  # `finish` reports the failure; the rest need not be computed
    stream.flush()


def finish() -> int:
    """Flush standard output; return 0, or the exit code of a failure to write it."""
    sys.stdout.flush()
    failure = failure_of(sys.stdout)
    # A closed pipe (`| head`) is no failure.
    if failure is None or isinstance(failure, BrokenPipeError):
        return 0
    print_message(f"error: standard output: cannot be written: {reason(failure)}")
    return 2


def write_files(files: Mapping[str, Iterable[str]]) -> None:
    """Write files atomically: after a failure, existing files are unchanged and no partial file is left."""
    written: list[tuple[Path, Path]] = []
    name = ""
    try:
        for name, pieces in files.items():
            opened = _OPEN_ALREADY.fullmatch(name)
            if opened is not None:
                _write_in_place(os.dup(_WORDS.get(opened[1]) or int(opened[2])), pieces)
            elif not _is_replaceable(name):
                _write_in_place(name, pieces)
            else:
                # A symbolic link stays: the file that it points to is replaced.
                path = Path(os.path.realpath(name))
                written.append((_write_beside(path, pieces), path))
        for temporary, path in written:
            temporary.replace(path)
    except (OSError, ValueError) as error:
        raise _cannot_write(name, error) from None
    finally:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)


def _is_replaceable(name: str) -> bool:
    """Whether a name is a regular file or free; not resolved before, since /dev/stdout links to a pipe without a path."""
    if not name:
        raise FileNotFoundError(errno.ENOENT, "the name is empty")
    try:
        return stat.S_ISREG(os.stat(name).st_mode)  # noqa: PTH116 # Path.is_file hides the errors of a bad name
    except FileNotFoundError:
        return True


def _write_in_place(target: str | int, pieces: Iterable[str]) -> None:
    """Write to a device or a pipe, which cannot be replaced; its reader may stop before the end."""
    with contextlib.suppress(BrokenPipeError), open(target, "wb") as file:  # noqa: PTH123 # may be a descriptor
        file.writelines(map(_encoded, pieces))


def _write_beside(path: Path, pieces: Iterable[str]) -> Path:
    """Write a temporary file next to the one it will replace."""
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    temporary = Path(name)
    try:
        script = False
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                script = script or (not file.tell() and piece.startswith("#!"))
                file.write(_encoded(piece))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_mode_for(path) | (0o111 & ~_umask() if script else 0))
    except BaseException:  # also after Ctrl-C no temporary file is left
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _mode_for(path: Path) -> int:
    """The permissions of the replaced file, or those of a new file."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    return 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="backslashreplace")


def _cannot_write(what: str, error: OSError | ValueError) -> Exception:
    from pilotage.model.errors import PilotageError

    return PilotageError(f"cannot be written: {reason(error)}", subject=what or "''")


def reason(error: OSError | ValueError) -> str:
    """The reason of an error of the operating system, as part of a sentence."""
    message = error.strerror if isinstance(error, OSError) else None
    return (message or str(error)).lower()


# Numbers, times and tables as text: aligned, of equal width, without terminal control sequences.

GAP = "  "


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 file`, `2 binaries`."""
    many = noun if count == 1 else f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {many}"


def no_service(ended: str) -> str:
    """The message that the service of this folder does not run, with the reason if it stopped by itself."""
    return f"the service stopped by itself: {ended}; see its service.log" if ended else "no service runs here"


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:g} s"
    whole = round(seconds)
    parts: list[str] = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def one_line(value: object) -> str:
    """A value as text on one line; empty for None."""
    return "" if value is None else printable(str(value).replace("\n", " ").replace("\t", " "))


def fields_of(data: Mapping[str, Any]) -> str:
    """The fields of an event as `name=value`; values that are not text as JSON."""
    import json

    words = (
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for name, value in data.items()
        if name != "learned"  # hundreds of characters for programs; --json shows them
    )
    return one_line(" ".join(words))


def line_width() -> int | None:
    """The longest line that fits: the width of the terminal, or COLUMNS; None in a pipe, where nothing is cut."""
    return columns() if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else None


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str] = (), indent: str = "") -> Iterator[str]:
    """Lines of aligned cells; columns that are empty in all rows are left out, and long lines are cut."""
    cells = [[one_line(value) for value in row] for row in rows]
    wanted = [number for number in range(len(cells[0]) if cells else 0) if any(row[number] for row in cells)]
    if header and cells:
        cells.insert(0, list(header))
    widths = {number: max(text_width(row[number]) for row in cells) for number in wanted}
    width = line_width()
    for row in cells:
        line = indent + GAP.join(row[number] + " " * (widths[number] - text_width(row[number])) for number in wanted)
        yield f"{cut(line.rstrip(), width)}\n"


def cut(line: str, width: int | None) -> str:
    """Cut a line to a width, with `…` at the end."""
    if width is None or text_width(line) <= width:
        return line
    used = kept = 0
    while (used := used + text_width(line[kept])) < width:
        kept += 1
    return f"{line[:kept]}…"


def text_width(text: str) -> int:
    """The width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
