"""The queue statement: how many jobs a submit description makes, and which values each of them gets."""

from __future__ import annotations

import posixpath
import re

import msgspec

from pilotage.language.dagman.lexer import SPACE, decode
from pilotage.language.dagman.paths import found_instead, located, told
from pilotage.language.folder import Folder
from pilotage.language.text.tree import Mark, Report

QUEUED_MAX = 1_000_000
_KEYWORD = re.compile(r"(?:^|(?<=[\s,]))(in|from|matching)(?=[\s(\[]|$)", re.IGNORECASE)
_COUNT = re.compile(r"([0-9]{1,9})(?=\s|$)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_SLICE = re.compile(r"\[\s*(-?[0-9]{0,9})\s*:?\s*(-?[0-9]{0,9})\s*:?\s*(-?[0-9]{0,9})\s*\]")
_MATCHING = re.compile(r"(files|dirs|any)\b\s*", re.IGNORECASE)


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """`count` jobs for each item; an item gives a value to each variable. Without a list there is one empty item."""

    count: int = 1
    variables: tuple[str, ...] = ()
    items: tuple[tuple[str, ...], ...] = ((),)


class QueueReader:
    """Understands queue statements; lists may come from files and patterns of a folder."""

    def __init__(self, folder: Folder, report: Report) -> None:
        """Read lists from a folder, and tell a report what is wrong."""
        self._folder = folder
        self._report = report

    def read(self, text: str, listed: tuple[str, ...] | None, *, directory: str, file: str, mark: Mark) -> Queue | None:
        """The queue of a statement whose macros are expanded; None with a fault in the report."""
        found = _KEYWORD.search(text)
        head = (text[: found.start()] if found else text).strip(SPACE)
        count = 1
        if (number := _COUNT.match(head)) is not None:
            count, head = int(number[1]), head[number.end() :].strip(SPACE)
        variables = tuple(name for name in re.split(r"[\s,]+", head) if name)
        wrong = next((name for name in variables if not _NAME.fullmatch(name)), None)
        if wrong is not None or (found is None and variables):
            self._report.error(
                "bad-queue",
                told(
                    "expected: queue [COUNT] [VARIABLES] [in LIST | from LINES | matching PATTERNS], "
                    f"found {text[:80]!r}",
                    self._report,
                    file=file,
                ),
                mark,
                file=file,
            )
            return None
        if found is None:
            return Queue(count=count)
        tail = text[found.end() :].strip(SPACE)
        part = _SLICE.match(tail)
        if part is not None:
            tail = tail[part.end() :].strip(SPACE)
        lines = self._items(found[1].lower(), tail, listed, directory=directory, file=file, mark=mark)
        if lines is None:
            return None
        if part is not None:
            if part[3] == "0":
                self._report.error("bad-queue", "expected a step other than 0 in the slice", mark, file=file)
                return None
            single = ":" not in part[0]
            numbers = [int(n) if n.lstrip("-") else None for n in part.groups()]
            lines = (
                [lines[numbers[0]]]
                if single and numbers[0] is not None and -len(lines) <= numbers[0] < len(lines)
                else lines[slice(*numbers)]
            )
        if not lines:
            self._report.error(
                "no-items", f"expected at least one item for 'queue {text[:80]}', found none", mark, file=file
            )
            return None
        names = variables or ("Item",)
        return Queue(count=count, variables=names, items=tuple(_split(line, len(names)) for line in lines))

    def _items(
        self, keyword: str, tail: str, listed: tuple[str, ...] | None, *, directory: str, file: str, mark: Mark
    ) -> list[str] | None:
        if keyword == "in":
            text = ", ".join(listed) if listed is not None else tail
            return [item for item in re.split(r"[\s,]+", text) if item]
        if keyword == "matching":
            return self._matching(tail, directory=directory, file=file, mark=mark)
        if listed is not None:
            return [line for line in listed if line]
        if not tail or tail.endswith("|"):
            self._report.error(
                "queue-command",
                f"expected a file or a list in parentheses after 'from', found a command: {tail!r}",
                mark,
                file=file,
                hint="write its lines into a file",
            )
            return None
        path = located(directory, tail)
        data = self._folder.read(path)
        if data is None:
            self._report.error(
                "missing-list-file",
                f"expected a file {path!r} with one item per line, found {found_instead(self._folder, path)}",
                mark,
                file=file,
            )
            return None
        content = decode(data, self._report, file=path)
        if content is None:
            return None
        lines = (line.strip(SPACE) for line in content.split("\n"))
        return [line for line in lines if line and not line.startswith("#")]

    def _matching(self, tail: str, *, directory: str, file: str, mark: Mark) -> list[str] | None:
        option = _MATCHING.match(tail)
        if option is not None:
            tail = tail[option.end() :]
            if option[1].lower() == "dirs":
                self._report.error(
                    "queue-folders",
                    "expected files after 'matching', found dirs: folders cannot be listed",
                    mark,
                    file=file,
                )
                return None
        found: list[str] = []
        prefix = f"{directory}/" if directory else ""
        for pattern in re.split(r"[\s,]+", tail.strip("()")):
            if pattern:
                names = self._folder.glob(posixpath.join(directory, pattern))
                found.extend(name.removeprefix(prefix) for name in names)
        return sorted(set(found))


def _split(line: str, count: int) -> tuple[str, ...]:
    """An item's values: one for each variable, the last one takes what is left."""
    values = []
    rest = line.strip(SPACE)
    for _ in range(count - 1):
        found = re.search(r"\s*,\s*|\s+", rest)
        if found is None:
            values.append(rest)
            rest = ""
        else:
            values.append(rest[: found.start()])
            rest = rest[found.end() :]
    return (*values, rest)
