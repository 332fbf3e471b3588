"""Expands macros of submit descriptions: `$(name)`, `$(name:default)`, and functions.

Only names in the table are known: macros that only a running HTCondor knows stay as written, random functions take their
first choice, and each of these is recorded as a loss.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

import msgspec

LENGTH_MAX = 1_000_000
EXPANSIONS_MAX = 1_000_000
_DEPTH_MAX = 24
_OPENING = re.compile(r"\$(\$?)([A-Za-z_][A-Za-z0-9_]*)?\(")
_NAME = re.compile(r"[A-Za-z0-9_.+]+")
RUN_TIME_NAMES = {
    "cluster": "Cluster",
    "clusterid": "ClusterId",
    "dag_status": "DAG_STATUS",
    "dagmanjobid": "DAGManJobId",
    "day": "DAY",
    "failed_count": "FAILED_COUNT",
    "month": "MONTH",
    "node": "Node",
    "retry": "RETRY",
    "submit_file": "SUBMIT_FILE",
    "submit_time": "SUBMIT_TIME",
    "submitid": "SubmitId",
    "year": "YEAR",
}


class Notes(msgspec.Struct):
    """The side results of macro expansion: losses by keyword, undefined names, faults."""

    losses: dict[str, str] = {}
    undefined: dict[str, None] = {}
    used: set[str] = set()
    faults: list[str] = []


def expand(text: str, table: Mapping[str, str], notes: Notes) -> str:
    """The text with its macros replaced; names in the table are lower case."""
    if "$" not in text:
        return text
    return _Expansion(table, notes).expand(text, 0)


class _Expansion:
    def __init__(self, table: Mapping[str, str], notes: Notes) -> None:
        self._table = table
        self._notes = notes
        self._made = 0
        self._count = 0  # macros replaced, including those inside cached values
        self._known: dict[str, tuple[str, int]] = {}  # name → its value, and the number of macros replaced in it

    def expand(self, text: str, depth: int) -> str:
        if depth > _DEPTH_MAX:
            self._fault(f"macros refer to each other more than {_DEPTH_MAX} levels deep")
            return ""
        parts: list[str] = []
        at = 0
        while (found := _OPENING.search(text, at)) is not None and not self._is_too_much():
            end = _closing(text, found.end())
            if end < 0:
                break
            body = text[found.end() : end]
            parts.append(text[at : found.start()])
            written = text[found.start() : end + 1]
            if found[1]:
                self._notes.losses.setdefault("$$(…)", written)
                parts.append(written)
            elif found[2]:
                parts.append(self._function(found[2], body, written, depth))
            else:
                parts.append(self._macro(body, written, depth))
            self._made += len(parts[-1]) + len(parts[-2])
            self._count += 1
            at = end + 1
        parts.append(text[at:])
        result = "".join(parts)
        if self._count > EXPANSIONS_MAX:
            self._fault(f"macros expand to more than {EXPANSIONS_MAX} other macros")
            return ""
        if max(self._made, len(result)) > LENGTH_MAX:
            self._fault(f"macros expand to more than {LENGTH_MAX} characters")
            return ""
        return result

    def _is_too_much(self) -> bool:
        return self._made > LENGTH_MAX or self._count > EXPANSIONS_MAX

    def _fault(self, message: str) -> None:
        if message not in self._notes.faults:
            self._notes.faults.append(message)

    def _macro(self, body: str, written: str, depth: int) -> str:
        name, colon, default = body.partition(":")
        if not _NAME.fullmatch(name):
            return written
        if name.upper() == "DOLLAR":
            return "$"
        value = self._lookup(name, depth)
        if value is not None and (value or not colon):
            return value
        if colon:
            return self.expand(default, depth + 1)
        if name.lower() in RUN_TIME_NAMES:
            self._notes.losses.setdefault(f"$({RUN_TIME_NAMES[name.lower()]})", written)
            return written
        self._notes.undefined.setdefault(name)
        return ""

    def _lookup(self, name: str, depth: int) -> str | None:
        lower = name.lower()
        self._notes.used.add(lower)
        if lower in self._known:
            value, count = self._known[lower]
            self._count += count
            return value
        raw = self._table.get(lower)
        if raw is None:
            return None
        before = self._count
        value = self.expand(raw, depth + 1)
        self._known[lower] = (value, self._count - before)
        return value

    def _function(self, name: str, body: str, written: str, depth: int) -> str:
        upper = name.upper()
        arguments = [argument.strip() for argument in body.split(",")]
        if upper == "ENV":
            variable, colon, default = body.partition(":")
            self._notes.losses.setdefault("$ENV(…)", written)
            return self.expand(default, depth + 1) if colon else f"$ENV({variable})"
        if upper in ("RANDOM_CHOICE", "RANDOM_INTEGER"):
            self._notes.losses.setdefault("$RANDOM_…(…)", written)
            return self.expand(arguments[0], depth + 1)
        if upper == "CHOICE":
            return self._choice(arguments, written, depth)
        if upper[0] == "F" and not set(upper[1:]) - set("PDNXQAWUBF"):
            return self._file_part(upper[1:], arguments[0], written, depth)
        act = _FUNCTIONS.get(upper)
        if act is None:
            self._notes.losses.setdefault("$FUNCTION(…)", written)
            return written
        value = self._lookup(arguments[0], depth)
        result = act(value if value is not None else arguments[0], [self.expand(a, depth + 1) for a in arguments[1:]])
        if result is None:
            self._fault(f"{written} cannot be evaluated")
            return ""
        return result

    def _choice(self, arguments: list[str], written: str, depth: int) -> str:
        index = self._lookup(arguments[0], depth)
        if index is None:
            index = self.expand(arguments[0], depth + 1)
        items = arguments[1:]
        if len(items) == 1:
            listed = self._lookup(items[0], depth)
            items = [item.strip() for item in (listed or "").split(",")]
        if index.lower() in ("true", "false", "iswindows", "islinux"):
            index = "1" if index.lower() in ("true", "islinux") else "0"
        if items and not index.isdigit():
            self._notes.losses.setdefault("$CHOICE(…)", written)
            return self.expand(items[0], depth + 1)
        if not items or len(index) > 6 or int(index) >= len(items):
            self._fault(f"{written} has no such choice")
            return ""
        return self.expand(items[int(index)], depth + 1)

    def _file_part(self, options: str, name: str, written: str, depth: int) -> str:
        value = self._lookup(name, depth)
        value = (value if value is not None else name).strip().strip("\"'")
        if "F" in options:
            self._notes.losses.setdefault("$F…(…)", written)
        wanted = set(options) & set("PDNX")
        if wanted:
            head, slash, tail = value.rpartition("/")
            slash = "" if "B" in options else slash
            stem, suffix = posixpath.splitext(tail)
            value = ""
            if "D" in wanted:
                value += posixpath.basename(head) + slash
            elif "P" in wanted:
                value += head + slash
            if "N" in wanted:
                value += stem
            if "X" in wanted:
                value += suffix
        if "Q" in options:
            return f"'{value}'" if "A" in options else f'"{value}"'
        return value


def _closing(text: str, start: int) -> int:
    """The position of the parenthesis that closes the one before `start`, or -1."""
    depth = 1
    for at in range(start, len(text)):
        if text[at] == "(":
            depth += 1
        elif text[at] == ")":
            depth -= 1
            if not depth:
                return at
    return -1


def _integer(value: str, options: list[str]) -> str | None:
    form = options[0] if options else "%d"
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,15}(?:\.[0-9]*)?\s*", value) or not re.fullmatch(r"%0?[0-9]{0,2}d", form):
        return None
    return form % int(float(value))


def _real(value: str, _: list[str]) -> str | None:
    return value.strip() if re.fullmatch(r"\s*[+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?\s*", value) else None


def _substring(value: str, numbers: list[str]) -> str | None:
    if not 1 <= len(numbers) <= 2 or not all(re.fullmatch(r"-?[0-9]{1,9}", n) for n in numbers):
        return None
    start = int(numbers[0])
    if len(numbers) == 1:
        return value[start:]
    length = int(numbers[1])
    rest = value[start:]
    return rest[:length]


_FUNCTIONS: dict[str, Callable[[str, list[str]], str | None]] = {
    "BASENAME": lambda value, options: (
        posixpath.basename(value).removesuffix(options[0]) if options else posixpath.basename(value)
    ),
    "DIRNAME": lambda value, _: value[: value.rfind("/") + 1],
    "INT": _integer,
    "REAL": _real,
    "STRING": lambda value, _: value,
    "SUBSTR": _substring,
}
