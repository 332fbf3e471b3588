"""Finds tabs that indent the lines of a block, where YAML wants spaces.

Tabs are fine inside quoted texts, block scalars, lists in brackets and mappings in braces; libyaml's events say where
those are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pilotage.language.text.tree import Mark, Report

_LED_BY_TAB = re.compile(r"( *)\t[ \t]*[^\s#]")
_SHOWN_MAX = 10


def lines_led_by_tab(lines: Sequence[str]) -> list[int]:
    """The numbers (from 1) of the lines whose indentation has a tab; blank lines and comments do not count."""
    return [number for number, line in enumerate(lines, 1) if _LED_BY_TAB.match(line)]


def refuse_tabs(text: str, candidates: Sequence[int], *, report: Report) -> bool:
    """Report those of the lines that stand in block context; True if that explains why the text cannot be parsed."""
    sheltered, known_to, failed_on = _shelters(text)
    wrong = [line for line in candidates if line <= known_to and line not in sheltered]
    if failed_on in candidates and failed_on not in wrong:
        wrong.append(failed_on)
    for number, line in enumerate(wrong[:_SHOWN_MAX]):
        found = _LED_BY_TAB.match(report.lines[line - 1])
        column = len(found[1]) + 1 if found else 1
        more = f"; {len(candidates)} lines have one" if number == 0 and len(candidates) > 1 else ""
        report.error(
            "tab",
            "a tab indents this line; YAML allows spaces only",
            Mark(line, column),
            hint=f"indent with spaces{more}",
        )
    return failed_on in wrong


def _shelters(text: str) -> tuple[set[int], int, int]:
    """The lines that begin inside a quoted text, block scalar or flow collection, and how far that is known.

    The third is the line where parsing failed because of a tab, or 0.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    sheltered: set[int] = set()
    flow_begins: list[int] = []
    known_to = 0
    try:
        while True:
            event = loader.get_event()
            if isinstance(event, yaml.StreamEndEvent):
                return sheltered, len(text), 0
            begin, end = event.start_mark, event.end_mark
            if isinstance(event, yaml.CollectionStartEvent):
                if event.flow_style or flow_begins:
                    flow_begins.append(begin.line)
            elif isinstance(event, yaml.CollectionEndEvent):
                if flow_begins:
                    sheltered.update(range(flow_begins.pop() + 2, end.line + 2))
            elif isinstance(event, yaml.ScalarEvent) and event.style:
                sheltered.update(range(begin.line + 2, end.line + (2 if end.column else 1)))
            if not flow_begins:
                known_to = end.line + (1 if end.column else 0)
    except yaml.MarkedYAMLError as error:
        return sheltered, known_to, _line_of_tab(error, text)
    except yaml.YAMLError:
        return sheltered, known_to, 0
    finally:
        loader.dispose()


def _line_of_tab(error: Any, text: str) -> int:
    problem, mark = error.problem or "", error.problem_mark
    if mark is None:
        return 0
    if "tab character" in problem or "mapping values are not allowed" in problem:
        return int(mark.line) + 1
    if "cannot start any token" in problem and text[mark.index : mark.index + 1] == "\t":
        return int(mark.line) + 1
    return 0
