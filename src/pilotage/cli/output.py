"""Where words go: to standard output, to the reader beside it, or to files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

COLUMNS_DEFAULT = 100


def columns() -> int:
    """How wide a text may be: COLUMNS, or the terminal, or a usual width."""
    return max(20, shutil.get_terminal_size((COLUMNS_DEFAULT, 24)).columns)


def is_coloured() -> bool:
    """Whether the reader sees colours: a terminal, and nobody asked for none."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stderr.isatty()


def say_to_reader(text: str) -> None:
    """Print a line beside the output, on standard error."""
    # Nobody is left to be told when even this stream is closed.
    with contextlib.suppress(BrokenPipeError):
        click.echo(text, err=True, color=is_coloured())


def emit(pieces: Iterable[str], *, output: str = "-") -> None:
    """Write a text, piece by piece, to standard output for `-`, otherwise to a file."""
    if output == "-":
        _to_standard_output(pieces)
    else:
        write_files({output: pieces})


def _to_standard_output(pieces: Iterable[str]) -> None:
    stream = sys.stdout.buffer
    try:
        for piece in pieces:
            stream.write(_encoded(piece))
        stream.flush()
    except BrokenPipeError:
        _let_go()
    except OSError as error:
        raise _cannot_write("standard output", error) from None


def finish() -> int:
    """Flush standard output; the exit code to end with where that fails, otherwise 0."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go()
    except OSError as error:
        say_to_reader(f"error: standard output cannot be written: {_reason(error)}")
        _let_go()
        return 2
    return 0


def _let_go() -> None:
    """Send what is still to be flushed nowhere, as the reader of a pipe has enough (`| head`)."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def write_files(files: Mapping[str, Iterable[str]]) -> None:
    """Write files so that a failure leaves none of them half written, and those that were there as they were."""
    written: list[tuple[Path, Path]] = []
    name = ""
    try:
        for name, pieces in files.items():
            # A link stays a link: what it leads to is replaced.
            path = Path(os.path.realpath(name))
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                _write_in_place(path, pieces)
            else:
                written.append((_write_beside(path, pieces), path))
        for temporary, path in written:
            temporary.replace(path)
    except OSError as error:
        raise _cannot_write(name, error) from None
    finally:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)


def _write_in_place(path: Path, pieces: Iterable[str]) -> None:
    """Write to a device or a pipe, which cannot be replaced."""
    with path.open("wb") as file:
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


def _cannot_write(what: str, error: OSError) -> Exception:
    from pilotage.model.errors import PilotageError

    return PilotageError(f"cannot be written: {_reason(error)}", subject=what)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
