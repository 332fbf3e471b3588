"""What can go wrong, said so that the reader knows what to do next.

Every error of pilotage is a `PilotageError`. Only `cli` and `service` turn one into an exit code or an HTTP status.
A fault in a document is a `Problem`: a value with a place, collected with all the others before anything is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pilotage.model.exit_codes import ExitCode


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault or warning of a document, with its place; line and column count from 1, 0 means "the whole file"."""

    file: str
    line: int = 0
    column: int = 0
    code: str
    message: str
    hint: str = ""
    source: str = ""  # the text of the line, for the caret


class PilotageError(Exception):
    """The one base class: what failed, on which object, what was expected against what was there, and what to do next."""

    exit_code: int = ExitCode.BAD_INPUT
    retryable = False

    def __init__(self, what: str, *, subject: str = "", expected: str = "", got: str = "", next_step: str = "") -> None:
        """Keep each part apart, so that a terminal, a page and an API can each show them their own way."""
        super().__init__(what)
        self.what = what
        self.subject = subject
        self.expected = expected
        self.got = got
        self.next_step = next_step

    def __str__(self) -> str:
        """Say it in one or two lines of plain text."""
        text = f"{self.subject}: {self.what}" if self.subject else self.what
        if self.expected:
            text += f"; expected {self.expected}"
        if self.got:
            text += f", got {self.got}"
        if self.next_step:
            text += f"\n  {self.next_step}"
        return text


class DocumentError(PilotageError):
    """A document was refused: `problems` has every fault that was found, each with its place. Mend them and try again."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Carry the faults in the order of their places."""
        self.problems: tuple[Problem, ...] = tuple(sorted(problems, key=lambda p: (p.file, p.line, p.column, p.code)))
        count = len(self.problems)
        super().__init__(f"{count} error{'' if count == 1 else 's'} in the document")

    def __str__(self) -> str:
        """One line per fault: its place as far as it has one, what is wrong, and the hint."""
        lines = []
        for problem in self.problems:
            place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part)
            hint = f" ({problem.hint})" if problem.hint else ""
            lines.append(f"{place}: {problem.code}: {problem.message}{hint}")
        return "\n".join(lines)


def near_name(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known name that was most likely meant, or an empty string; `cutoff` is how alike they must be, from 0 to 1."""
    import difflib  # only a mistake needs it

    found = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=cutoff)
    return found[0] if found else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known name, or lists what there is when nothing is near."""
    names = sorted(set(known))
    near = near_name(name, names)
    if near:
        return f"did you mean {near!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"known here: {shown}"
