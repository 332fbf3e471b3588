"""Reads JSON text into a tree.

JSON is YAML on paper, but libyaml refuses escaped surrogate pairs and keys over 1,024 characters, and the parser in pure
Python refuses tabs. A text that is JSON from end to end is therefore read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from pilotage.language.text.growth import TreeGrowth
from pilotage.language.text.tree import Mark, Scalar

# One sign or value; `lastindex` tells which it was. Possessive repeats keep nothing to go back to: a text with millions of
# escapes would cost gigabytes otherwise.
_TOKEN = re.compile(
    r"""
    [ \t\n\r]*
    (?:
        ( [{\[] )
      | ( [}\]] )
      | "( [^"\\\x00-\x1f]*+ )"
      | ( "[^"\\\x00-\x1f]*+ (?: \\ (?: ["\\/bfnrt] | u[0-9a-fA-F]{4} ) [^"\\\x00-\x1f]*+ )*+ " )
      | ( -? (?: 0 | [1-9][0-9]* ) (?: \.[0-9]+ )? (?: [eE] [-+]? [0-9]+ )? | true | false | null )
    )
    """,
    re.VERBOSE,
)
_OPENING, _CLOSING, _TEXT, _ESCAPED_TEXT, _BARE = range(1, 6)
_COMMA_OR_COLON = re.compile(r"[ \t\n\r]*([,:]?)")

# What must come next.
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _END = range(5)


def looks_like_json(text: str) -> bool:
    """Whether it is worth trying; a block document in YAML never begins like this."""
    return text.lstrip(" \t\r\n").startswith(("{", "[", '"'))


def feed_json(text: str, *, line_starts: Sequence[int], growth: TreeGrowth) -> bool:
    """Deliver the whole text to `growth`; False as soon as it turns out not to be JSON, and then `growth` is spoilt."""
    machine = _Machine(growth)
    position, line = 0, 0
    line_ends = [*line_starts[1:], len(text) + 1]
    while token := _TOKEN.match(text, position):
        kind = token.lastindex or 0
        begin = token.start(kind) - (1 if kind == _TEXT else 0)
        while line_ends[line] <= begin:
            line += 1
        mark = Mark(line + 1, begin - line_starts[line] + 1)
        sign, position = "", token.end()
        if kind != _OPENING and (separator := _COMMA_OR_COLON.match(text, position)):
            sign, position = separator[1], separator.end()
        if not machine.take(kind, token[kind], mark=mark, sign=sign):
            return False
        if not machine.opened:
            return not sign and position == len(text)
    return False


class _Machine:
    """Knows what must come next."""

    def __init__(self, growth: TreeGrowth) -> None:
        self.opened: list[str] = []
        self._growth = growth
        self._due = _VALUE

    def take(self, kind: int, value: str, *, mark: Mark, sign: str) -> bool:
        """Pass one token on, with the comma or colon after it; False if JSON does not allow it here."""
        if kind == _OPENING:
            if self._due > _VALUE_OR_END:
                return False
            self._growth.open("flow" if value == "{" else "list", mark)
            self.opened.append(value)
            self._due = _KEY_OR_END if value == "{" else _VALUE_OR_END
            return True
        if kind == _CLOSING:
            if self._due in (_VALUE, _KEY) or self.opened[-1] + value not in ("{}", "[]"):
                return False
            self._growth.close()
            self.opened.pop()
            return self._go_on(sign)
        if kind == _ESCAPED_TEXT:
            try:
                value = msgspec.json.decode(value, type=str)
            except msgspec.DecodeError:  # half a surrogate pair is no text; the YAML reader will say so
                return False
        if self._due in (_KEY, _KEY_OR_END):
            self._growth.scalar(Scalar(value, plain=False, mark=mark))
            self._due = _VALUE
            return kind != _BARE and sign == ":"
        if self._due == _END:
            return False
        self._growth.scalar(Scalar(value, plain=kind == _BARE, mark=mark))
        return self._go_on(sign)

    def _go_on(self, sign: str) -> bool:
        if sign == ",":
            self._due = _KEY if self.opened and self.opened[-1] == "{" else _VALUE
        else:
            self._due = _END
        return sign != ":"
