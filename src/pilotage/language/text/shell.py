"""Putting values into a shell script so that each stays what it is, wherever it stands.

A script is read once, with a NUL for each gap. A value between words is quoted whole; inside double quotes, single quotes
or a here-document it is escaped for that place; inside `$(( ))` it must be a whole number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from pilotage.language.text.shell_documents import HereDocument, ends, joined_lines
from pilotage.language.text.shell_reading import GAP, RefusedGap, ScriptReader, Slot

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_NUMBER = re.compile(r"[+-]?[0-9]+|0[xX][0-9a-fA-F]+")
_NUMBER_MAX = 2**63 - 1


class ShellScript(msgspec.Struct, frozen=True, kw_only=True):
    """A script that was read: each gap in order, or why one of them (`at_fault`) cannot be filled."""

    text: str  # with a NUL for each gap
    slots: tuple[Slot, ...] = ()
    documents: tuple[HereDocument, ...] = ()  # those with gaps inside
    fault: str = ""
    at_fault: int = 0

    @property
    def takes_any_value(self) -> bool:
        """Whether every value can be quoted where it stands, so that none has to be looked at beforehand."""
        return not self.documents and all(slot.context != "arithmetic" for slot in self.slots)

    def fill(self, values: Sequence[tuple[str, ...]]) -> str:
        """The script with the values of each gap, one or a list; raises `UnfitValue` where one cannot stand there."""
        quoted = [
            " ".join([_quoted(value, slot, gap) for value in items])
            for gap, (slot, items) in enumerate(zip(self.slots, values, strict=True))
        ]
        for document in self.documents:
            _check_document(document, self.text, values, quoted)
        return _woven(self.text, quoted)


class UnfitValue(Exception):
    """A value that cannot stand in its gap."""

    def __init__(self, gap: int, reason: str) -> None:
        """Say which gap, and why."""
        super().__init__(reason)
        self.gap = gap
        self.reason = reason


def _woven(text: str, quoted: Sequence[str]) -> str:
    pieces = text.split(GAP)
    return "".join([part for pair in zip(pieces, (*quoted, ""), strict=True) for part in pair])


def _quoted(value: str, slot: Slot, gap: int) -> str:
    """A value as it must be written in a context to come out as itself."""
    if GAP in value:
        raise UnfitValue(gap, "it holds a NUL character, which no command can be given")
    context = slot.context
    if context == "word":
        if slot.plain and _PLAIN.fullmatch(value):
            return value
        return "'" + value.replace("'", "'\"'\"'") + "'"
    if context == "double":
        return re.sub(r'([\\"$`])', r"\\\1", value)
    if context == "single":
        return value.replace("'", "'\\''")
    if context == "document":
        return re.sub(r"([\\$`])", r"\\\1", value)
    if context == "arithmetic":
        return _number(value, gap)
    return re.sub(r"[\r\n]", " ", value) if context == "comment" else value


def _number(value: str, gap: int) -> str:
    """A whole number for `$(( ))`: in decimal, whatever zeros it begins with; a negative one in brackets."""
    if not _NUMBER.fullmatch(value):
        raise UnfitValue(gap, f"only a whole number can stand between $(( and )), and it is {value!r}")
    number = int(value, 16 if value[:2] in ("0x", "0X") else 10)
    if abs(number) > _NUMBER_MAX:
        raise UnfitValue(gap, f"{value} is too large for the arithmetic of a shell")
    return f"({number})" if number < 0 else str(number)


def _check_document(
    document: HereDocument, text: str, values: Sequence[tuple[str, ...]], quoted: Sequence[str]
) -> None:
    """Refuse values that would end a here-document, or lose tabs in it."""
    within = range(document.first_slot, document.first_slot + document.slots)
    body = text[document.start : document.end]
    lines = _woven(body, [quoted[gap] for gap in within]).split("\n")
    if body.endswith("\n"):
        lines.pop()
    joined = lines if document.literal else joined_lines(lines)
    if any(ends(line, document) for line in (*lines, *joined)):
        reason = f"it would end the here-document, whose end is the line {document.word!r}"
        raise UnfitValue(_culprit(within, values, document.word), f"{reason}: choose another end word")
    for gap in within if document.strips_tabs else ():
        if any(value.startswith("\t") or "\n\t" in value for value in values[gap]):
            raise UnfitValue(gap, "it holds a tab that the here-document would strip: write << in place of <<-")


def _culprit(within: range, values: Sequence[tuple[str, ...]], word: str) -> int:
    """The gap whose value most likely holds the end word."""
    return next((gap for gap in within if any(word in value for value in values[gap])), within[0])


def read_script(text: str) -> ShellScript:
    """Read a script that has a NUL for each gap."""
    if GAP not in text:
        return ShellScript(text=text)
    reader = ScriptReader(text, 0, len(text), ())
    try:
        reader.read()
    except RefusedGap as refused:
        at_fault = min(text[: refused.position].count(GAP), text.count(GAP) - 1)
        return ShellScript(text=text, fault=f"{{gap}} {refused.reason}", at_fault=at_fault)
    return ShellScript(text=text, slots=tuple(reader.slots), documents=tuple(reader.documents))
