"""Where words go: to standard output, to the reader beside it, or to files that appear whole or not at all."""

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
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/([0-9]{1,6})")
_WORDS = {"stdout": 1, "stderr": 2}


def columns() -> int:
    """How wide a text may be: COLUMNS, or the terminal, or a usual width."""
    return max(20, shutil.get_terminal_size((COLUMNS_DEFAULT, 24)).columns)


def is_coloured() -> bool:
    """Whether the reader sees colours: a terminal, and nobody asked for none."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stderr.isatty()


def shown(text: str) -> str:
    """A text that cannot steer a terminal: what is not printable becomes a mark; ends of lines stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def say_to_reader(text: str) -> None:
    """Print a line beside the output, on standard error; nothing in it can steer the terminal."""
    say_styled(shown(text))


def say_styled(text: str) -> None:
    """Print a line whose colours are ours and whose other parts are `shown` already."""
    click.echo(text, err=True, color=is_coloured())


def emit(pieces: Iterable[str], *, output: str = "-") -> None:
    """Write a text, piece by piece, to standard output for `-`, otherwise to a file."""
    if output == "-":
        _to_standard_output(pieces)
    else:
        write_files({output: pieces})


def _to_standard_output(pieces: Iterable[str]) -> None:
    stream = sys.stdout.buffer
    is_terminal = sys.stdout.isatty()
    for piece in pieces:
        stream.write(_encoded(_STEERING.sub("\ufffd", piece) if is_terminal else piece))
        if failure_of(sys.stdout) is not None:
            return  # `finish` says why; making the rest would be for nobody
    stream.flush()


def finish() -> int:
    """Flush standard output; the exit code to end with where it could not be written, otherwise 0."""
    sys.stdout.flush()
    failure = failure_of(sys.stdout)
    # The reader of a pipe who has enough (`| head`) is no failure.
    if failure is None or isinstance(failure, BrokenPipeError):
        return 0
    say_to_reader(f"error: standard output: cannot be written: {reason(failure)}")
    return 2


def write_files(files: Mapping[str, Iterable[str]]) -> None:
    """Write files so that a failure leaves none of them half written, and those that were there as they were."""
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
                # A link stays a link: what it leads to is replaced.
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
    """Whether a name is a file's or nobody's; asked of the name as given, since a link to a pipe leads nowhere."""
    if not name:
        raise FileNotFoundError(errno.ENOENT, "the name is empty")
    try:
        return stat.S_ISREG(os.stat(name).st_mode)  # noqa: PTH116 # a name with NUL or too long must fail here
    except FileNotFoundError:
        return True


def _write_in_place(target: str | int, pieces: Iterable[str]) -> None:
    """Write to a device or a pipe, which cannot be replaced; its reader may have enough before the end."""
    with contextlib.suppress(BrokenPipeError), open(target, "wb") as file:  # noqa: PTH123 # an open descriptor, too
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
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _mode_for(path: Path) -> int:
    """The permissions of the file that is replaced, or those any new file would get."""
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
    """Why the system refused something, as a part of a sentence."""
    said = error.strerror if isinstance(error, OSError) else None
    return (said or str(error)).lower()


# Numbers, times and tables as people read them: aligned, in one width, without anything that steers a terminal.

GAP = "  "


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 file`, `2 binaries`."""
    many = noun if count == 1 else f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {many}"


def no_service(ended: str) -> str:
    """That the service of this folder has ended, and why where it did so by itself."""
    return f"the service ended by itself: {ended}; its service.log says more" if ended else "no service runs here"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
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
    """A value of a cell: nothing for None, and on one line."""
    return "" if value is None else shown(str(value).replace("\n", " ").replace("\t", " "))


def fields_of(data: Mapping[str, Any]) -> str:
    """The fields of an event as `name=value`, what is not plain as JSON."""
    import json

    words = (
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for name, value in data.items()
        if name != "learned"  # hundreds of characters that only programs read: --json has them
    )
    return one_line(" ".join(words))


def room() -> int | None:
    """How wide a line may be: as wide as the terminal, or as COLUMNS says; None in a pipe, where nothing is cut."""
    return columns() if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else None


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str] = (), indent: str = "") -> Iterator[str]:
    """Lines of aligned cells; columns that are empty in every row are left out, and a line is cut where it must be."""
    cells = [[one_line(value) for value in row] for row in rows]
    wanted = [number for number in range(len(cells[0]) if cells else 0) if any(row[number] for row in cells)]
    if header and cells:
        cells.insert(0, list(header))
    widths = {number: max(text_width(row[number]) for row in cells) for number in wanted}
    width = room()
    for row in cells:
        line = indent + GAP.join(row[number] + " " * (widths[number] - text_width(row[number])) for number in wanted)
        yield f"{cut(line.rstrip(), width)}\n"


def cut(line: str, width: int | None) -> str:
    """A line that fits the width, with a mark where something is missing."""
    if width is None or text_width(line) <= width:
        return line
    used, kept = 1, 0
    for kept, character in enumerate(line):  # noqa: B007 # how far it came is what counts
        used += text_width(character)
        if used > width:
            break
    return f"{line[:kept]}…"


def text_width(text: str) -> int:
    """How many cells of a terminal a text fills."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
