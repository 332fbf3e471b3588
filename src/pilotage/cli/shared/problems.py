"""Prints the problems of a document: position and message, the line with a caret below it, the hint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import click

from pilotage import app
from pilotage.cli.shared.output import columns, print_message, print_styled, printable
from pilotage.model.errors import Problem

Severity = Literal["error", "warning"]
SHOWN_MAX = 100
_COLOURS: dict[Severity, str] = {"error": "red", "warning": "yellow"}
_TAB = "    "
_INDENT = "  "


def show_problems(problems: Sequence[Problem], *, severity: Severity) -> None:
    """Print problems to standard error, at most `SHOWN_MAX` of them."""
    for problem in problems[:SHOWN_MAX]:
        print_styled("\n".join(problem_lines(problem, severity=severity, width=columns())))
    if len(problems) > SHOWN_MAX:
        print_message(f"… and {len(problems) - SHOWN_MAX:,} more {severity}s; check --json lists all of them")


def problem_lines(problem: Problem, *, severity: Severity, width: int) -> Iterable[str]:
    """The lines that show one problem."""
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    word = click.style(severity, fg=_COLOURS[severity], bold=True)
    message = _on_one_line(problem.message)
    yield f"{click.style(_on_one_line(place), bold=True)}: {word}: {message} [{problem.code}]"
    if problem.source.strip() and 1 <= problem.column <= len(problem.source) + 1:
        line, caret = source_window(problem.source, column=problem.column, width=width - len(_INDENT))
        yield f"{_INDENT}{line}"
        yield f"{_INDENT}{' ' * caret}{click.style('^', fg=_COLOURS[severity], bold=True)}"
    if problem.hint:
        yield f"{_INDENT}hint: {_on_one_line(problem.hint)}"


def source_window(source: str, *, column: int, width: int) -> tuple[str, int]:
    """The part of a line around a column that fits the width, and the number of cells before the caret.

    Tabs become spaces and control characters a mark, so that the caret is at the right place.
    """
    marked = [_TAB if c == "\t" else c if c.isprintable() else "\ufffd" for c in source.rstrip("\r\n")]
    before, after = marked[: column - 1], marked[column - 1 :]
    room = max(width, 10)
    if app.text_cells("".join(marked)) <= room:
        return "".join(marked).rstrip(), app.text_cells("".join(before))
    # Show a little more of the text before the problem than after it.
    left = _ending(before, max(room * 3 // 5, room - app.text_cells("".join(after)) - 1))
    right = _beginning(after, room - app.text_cells(left))
    return f"{left}{right}".rstrip(), app.text_cells(left)


def _ending(parts: list[str], room: int) -> str:
    if app.text_cells("".join(parts)) <= room:
        return "".join(parts)
    kept: list[str] = []
    used = 1
    for part in reversed(parts):
        used += app.text_cells(part)
        if used > room:
            break
        kept.append(part)
    return "…" + "".join(reversed(kept))


def _beginning(parts: list[str], room: int) -> str:
    if app.text_cells("".join(parts)) <= room:
        return "".join(parts)
    kept: list[str] = []
    used = 1
    for part in parts:
        used += app.text_cells(part)
        if used > room:
            break
        kept.append(part)
    return "".join(kept) + "…"


def _on_one_line(text: str) -> str:
    return printable(text.replace("\n", " "))
