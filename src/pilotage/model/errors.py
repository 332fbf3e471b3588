"""Errors of pilotage, written so that the reader knows what to do next.

Every error of pilotage is a `PilotageError`. Only `cli` and `service` turn one into an exit code or an HTTP status.
A fault in a document is a `Problem`: a value with a position, collected with all others before the document is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

import msgspec

from pilotage.model.exit_codes import ExitCode


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault or warning of a document, with its position; line and column count from 1, 0 means "the whole file"."""

    file: str
    line: int = 0
    column: int = 0
    code: str
    message: str
    hint: str = ""
    source: str = ""  # the text of the line, for the caret


class PilotageError(Exception):
    """The base class: what failed, on which object, what was expected, what was found, and what to do next."""

    exit_code: int = ExitCode.BAD_INPUT
    retryable = False

    def __init__(self, what: str, *, subject: str = "", expected: str = "", got: str = "", next_step: str = "") -> None:
        """Keep each part separate, so that a terminal, a page and an API can each format them."""
        super().__init__(what)
        self.what = what
        self.subject = subject
        self.expected = expected
        self.got = got
        self.next_step = next_step

    def __str__(self) -> str:
        """Format it as one or two lines of plain text."""
        text = f"{self.subject}: {self.what}" if self.subject else self.what
        if self.expected:
            text += f"; expected {self.expected}"
        if self.got:
            text += f", got {self.got}"
        if self.next_step:
            text += f"\n  {self.next_step}"
        return text

    def on_one_line(self) -> str:
        """The same on a single line, for tables and events."""
        return "; ".join(part.strip() for part in str(self).splitlines() if part.strip())


class DocumentError(PilotageError):
    """A document was refused: `problems` lists every fault with its position. Fix them and try again."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Store the faults in the order of their positions."""
        self.problems: tuple[Problem, ...] = tuple(sorted(problems, key=lambda p: (p.file, p.line, p.column, p.code)))
        count = len(self.problems)
        super().__init__(f"{count} error{'' if count == 1 else 's'} in the document")

    def __str__(self) -> str:
        """One line per fault: its position if known, what is wrong, and the hint."""
        lines = []
        for problem in self.problems:
            place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part)
            hint = f" ({problem.hint})" if problem.hint else ""
            lines.append(f"{place}: {problem.code}: {problem.message}{hint}")
        return "\n".join(lines)


def near_name(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known name that was most likely meant, or an empty string; `cutoff` is the similarity required, from 0 to 1."""
    import difflib  # only needed after a mistake

    found = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=cutoff)
    return found[0] if found else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or a list of known names if none is near."""
    names = sorted(set(known))
    near = near_name(name, names)
    if near:
        return f"did you mean {near!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"known here: {shown}"


# The dependencies of pilotage: those of every installation, and extras; a missing one is reported by name.
#
# Heavy dependencies are imported only where they are used, so a missing one shows late, or never.

PARTS: Mapping[str, str] = {
    "cryptography": "cryptography",
    "httptools": "httptools",
    "jwt": "PyJWT",
    "litestar": "litestar",
    "uvicorn": "uvicorn",
}
"""The modules that a service needs, with their distributions; every installation has them."""
EXTRAS: Mapping[str, frozenset[str]] = {
    "postgres": frozenset({"psycopg"}),
    "provenance": frozenset({"zstandard"}),
    "s3": frozenset({"obstore"}),
}
"""The modules of each extra of the distribution."""


class MissingPart(PilotageError):
    """A dependency of every installation is missing: install pilotage again, with `pip install`."""


class MissingExtra(PilotageError):
    """A part of pilotage is not installed: install it with `pip install 'pilotage[EXTRA]'`."""


def missing_parts() -> list[str]:
    """The required distributions that are not installed; nothing is imported for this."""
    return [distribution for module, distribution in PARTS.items() if not _is_there(module)]


def missing_extra(name: str) -> bool:
    """Whether an extra is not installed."""
    return not all(map(_is_there, EXTRAS[name]))


def refuse_missing_parts() -> None:
    """Raise `MissingPart` if a module that a service needs is missing."""
    missing = missing_parts()
    if missing:
        raise _missing(f"a service needs {' and '.join(missing)}, which {_verb(missing)} not installed", missing)


@contextmanager
def part(*, purpose: str) -> Iterator[None]:
    """Import modules of `PARTS` inside this block; `purpose` completes the message, such as "to serve the book"."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module not in PARTS:
            raise
        raise _missing(f"{PARTS[module]} is needed {purpose}: {error}", [PARTS[module]]) from error


@contextmanager
def extra(name: str, *, purpose: str) -> Iterator[None]:
    """Import modules of an extra inside this block; `purpose` completes the message, such as "to keep the book in PostgreSQL"."""
    try:
        yield
    except ImportError as error:
        # A module that is too old also raises with its name. psycopg without its library names none.
        if error.name is not None and error.name.partition(".")[0] not in EXTRAS[name]:
            raise
        raise MissingExtra(
            f"a part of pilotage that is not installed is needed {purpose}",
            got=str(error),
            next_step=f"install it: pip install 'pilotage[{name}]'",
        ) from error


def install_again(missing: list[str]) -> str:
    """The advice for missing distributions."""
    return f"install {'it' if len(missing) == 1 else 'them'}: pip install {' '.join(missing)}"


def _missing(message: str, missing: list[str]) -> MissingPart:
    return MissingPart(message, next_step=install_again(missing))


def _verb(missing: list[str]) -> str:
    return "is" if len(missing) == 1 else "are"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # half removed, or blocked
        return False
