"""Parses the text of a query into clauses: words, quoted texts and signs, then conditions and alternatives.

There is no recursion: a query is an AND of ORs and never deeper, so hostile text can only be too long. Which operators there are, and
which attributes, a `Grammar` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Generic, NoReturn, TypeVar

import msgspec

from pilotage.book.query.conditions import CONDITIONS_MAX, LENGTH_BYTES_MAX, VALUES_MAX
from pilotage.book.query.errors import QueryError, QueryPlace, shown
from pilotage.book.query.values import KEYWORDS, is_duration

FORM = "conditions joined by `and`, alternatives in parentheses by `or`, as in state=DONE and (site=lyon or site=bari)"

Op = TypeVar("Op", bound=StrEnum)

_TOKEN = r"""(?P<space>\s+)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<word>(?:[\w:@/+%*\#$&^{tilde}-]|\.(?!\.))+)
      | (?P<sign><=|>=|!=|==|<>|\.\.|[=<>(),~])"""
_WITH_TILDE = re.compile(_TOKEN.replace("{tilde}", "~"), re.VERBOSE | re.DOTALL)
_WITHOUT_TILDE = re.compile(_TOKEN.replace("{tilde}", ""), re.VERBOSE | re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "'": "'"}
_MEANT = {"==": "=", "<>": "!="}


class RawValue(msgspec.Struct, frozen=True):
    """A value as written, with its place; text of a query, or any JSON value."""

    value: object
    place: QueryPlace


class RawCondition(msgspec.Struct, Generic[Op], frozen=True, kw_only=True):
    """A condition as written; the attribute of a tag is `tag.NAME`."""

    attribute: str
    operator: Op
    values: Sequence[RawValue]
    place: QueryPlace
    operator_place: QueryPlace


class Grammar(msgspec.Struct, Generic[Op], frozen=True, kw_only=True):
    """What a query language adds to the form of queries: its operators, and what is known of attributes by name."""

    operators: Mapping[str, Op]  # by sign or words
    lists: Collection[Op]  # with a list of values in parentheses
    ranges: Collection[Op]  # with START..END, or one value
    alone: Collection[Op] = ()  # without a value
    prefixes: tuple[str, ...]  # of attributes whose name may end with a quoted text, such as `tag.`
    is_time: Callable[[str], bool]
    is_known: Callable[[str], bool]
    hint: Callable[[str], str]  # for an unknown name; the list of names for an empty one
    everything: str = ""  # the word for a query without conditions, if there is one


class _Token(msgspec.Struct, frozen=True):
    """A word, a quoted text, a sign, or the end; `keyword` is empty for a quoted text."""

    kind: str
    text: str
    offset: int

    @property
    def keyword(self) -> str:
        return self.text.lower() if self.kind == "word" and self.text.lower() in KEYWORDS else ""

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else shown(self.text)


def too_many_conditions(place: QueryPlace) -> QueryError:
    """The error for too many conditions."""
    hint = "write alternatives of one attribute as a list: site in (a, b, c)"
    return place.error("too many conditions", expected=f"at most {CONDITIONS_MAX}", next_step=hint)


def too_many_values(place: QueryPlace) -> QueryError:
    """The error for too many values."""
    return place.error("too many values", expected=f"at most {VALUES_MAX}", next_step="split it into several queries")


def too_long(place: QueryPlace) -> QueryError:
    """The error for a text that is too long."""
    return place.error(
        "the query is too long", expected=f"at most {LENGTH_BYTES_MAX} bytes", next_step="split it into several queries"
    )


def check_length(text: str) -> None:
    """Refuse a text that is too long."""
    if len(text) > LENGTH_BYTES_MAX or len(text.encode(errors="surrogatepass")) > LENGTH_BYTES_MAX:
        raise too_long(QueryPlace())


def _tokens(text: str, pattern: re.Pattern[str]) -> Iterator[_Token]:
    offset = 0
    while offset < len(text):
        found = pattern.match(text, offset)
        if found is None:
            what = f"unexpected character {shown(text[offset])}"
            hint = "put a value with such characters into quotes"
            if text[offset] in "\"'":
                what, hint = "the quote is not closed", f"end the text with {text[offset]}"
            raise QueryPlace(text, offset).error(what, next_step=hint)
        kind = found.lastgroup or ""
        if kind == "string":
            yield _Token(kind, _unescaped(text, found.start() + 1, found.end() - 1), offset)
        elif kind != "space":
            yield _Token(kind, found[0], offset)
        offset = found.end()
    yield _Token("end", "", len(text))


def _unescaped(text: str, start: int, end: int) -> str:
    def meaning(found: re.Match[str]) -> str:
        code = found[1]
        if len(code) == 5:
            return chr(int(code[1:], 16))
        if code not in _ESCAPES:
            place = QueryPlace(text, start + found.start())
            raise place.error(
                f"unknown escape: {shown(found[0])}", expected="\\\\, \\\", \\', \\n, \\r, \\t or \\uXXXX"
            )
        return _ESCAPES[code]

    return _ESCAPE.sub(meaning, text[start:end])


class ClauseParser(Generic[Op]):
    """Parses the tokens of one query from left to right."""

    def __init__(self, text: str, grammar: Grammar[Op]) -> None:
        """Take the text and the grammar."""
        self._text = text
        self._grammar = grammar
        self._tokens = _tokens(text, _WITHOUT_TILDE if "~" in grammar.operators else _WITH_TILDE)
        self._next = next(self._tokens)
        self._counts = {"conditions": 0, "values": 0}

    def clauses(self) -> list[list[RawCondition[Op]]]:
        """Parse the whole text; without conditions, everything is meant."""
        everything = self._grammar.everything
        if self._next.kind == "end":
            hint = f"write `{everything}` for everything" if everything else self._grammar.hint("")
            raise QueryPlace().error("the query is empty", expected=FORM, next_step=hint)
        if everything and self._next.keyword == everything:
            self._take()
            if self._next.kind != "end":
                self._refuse(f"{everything} must stand alone", expected="the end")
            return []
        clauses, joined = [self._clause()], ""
        while self._next.kind != "end":
            word = self._next.keyword
            if self._is_sign(")"):
                self._refuse("unmatched closing parenthesis", expected="and, or, or the end")
            if word not in ("and", "or"):
                self._refuse("two conditions need `and` or `or` between them", expected="and, or, or the end")
            if joined and word != joined:
                self._refuse("`and` and `or` are mixed without parentheses", expected=FORM)
            joined = word
            self._take()
            if joined == "or" and (self._is_sign("(") or self._text[: self._next.offset].lstrip()[:1] == "("):
                self._refuse("nested alternatives", expected=FORM)
            clauses.append(self._clause())
        if joined == "or":
            clauses = [[condition for clause in clauses for condition in clause]]
        return clauses

    def _clause(self) -> list[RawCondition[Op]]:
        if not self._is_sign("("):
            return [self._condition()]
        self._take()
        alternatives = [self._condition()]
        while not self._is_sign(")"):
            if self._next.keyword == "and":
                self._refuse("`and` inside parentheses", expected=FORM)
            if self._next.keyword != "or":
                self._refuse("the parenthesis is not closed", expected="or, or )")
            self._take()
            alternatives.append(self._condition())
        self._take()
        return alternatives

    def _condition(self) -> RawCondition[Op]:
        self._count("conditions")
        if self._is_sign("("):
            self._refuse("nested parentheses", expected=FORM)
        if self._next.kind != "word" or self._next.keyword:
            hint = self._grammar.hint("")
            raise self._place().error("missing attribute", expected="its name", got=str(self._next), next_step=hint)
        place = self._place()
        name = self._take().text
        if name.lower() in self._grammar.prefixes and self._next.kind == "string":
            name += self._take().text
        operator_place = self._place()
        operator = self._operator(name)
        return RawCondition(
            attribute=name,
            operator=operator,
            values=self._values(operator, is_time=self._grammar.is_time(name)),
            place=place,
            operator_place=operator_place,
        )

    def _operator(self, name: str) -> Op:
        taken, grammar = self._next, self._grammar
        if taken.kind == "sign" and taken.text in _MEANT:
            raise self._place().error(f"unknown operator: {taken}", next_step=f"did you mean {_MEANT[taken.text]}?")
        text = taken.text if taken.kind == "sign" else taken.text.lower() if taken.kind == "word" else ""
        if text == "not":
            self._take()
            text = f"not {self._next.text.lower() if self._next.kind == 'word' else ''}"
        operator = grammar.operators.get(text)
        if operator is None:
            hint = "" if grammar.is_known(name) else grammar.hint(name)
            expected = f"one of {', '.join(grammar.operators)}"
            what = f"missing operator after {shown(name)}"
            raise self._place().error(what, expected=expected, got=str(self._next), next_step=hint)
        self._take()
        return operator

    def _values(self, operator: Op, *, is_time: bool) -> list[RawValue]:
        if operator in self._grammar.alone:
            return []
        if operator in self._grammar.lists:
            return self._list(is_time=is_time)
        values = [self._value(is_time=is_time)]
        if operator in self._grammar.ranges and self._is_sign(".."):
            self._take()
            values.append(self._value(is_time=is_time))
        return values

    def _list(self, *, is_time: bool) -> list[RawValue]:
        if not self._is_sign("("):
            self._refuse("a list needs parentheses", expected="(a, b, c)")
        self._take()
        values = [self._value(is_time=is_time)]
        while not self._is_sign(")"):
            if not self._is_sign(","):
                self._refuse("the list is not closed", expected=", or )")
            self._take()
            values.append(self._value(is_time=is_time))
        self._take()
        return values

    def _value(self, *, is_time: bool) -> RawValue:
        self._count("values")
        taken = self._next
        if taken.kind not in ("word", "string"):
            self._refuse("missing value", expected="a word, a number or a quoted text")
        if taken.keyword:
            hint = f'write "{taken.text}" if it is a value'
            raise self._place().error(
                "missing value", expected="a value", got=f"the keyword {taken.text}", next_step=hint
            )
        place = self._place()
        value = self._take().text
        if is_time and is_duration(value) and self._next.kind == "word" and self._next.text.lower() == "ago":
            value = f"{value} {self._take().text}"
        return RawValue(value, place)

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        if self._counts["conditions"] > CONDITIONS_MAX:
            raise too_many_conditions(self._place())
        if self._counts["values"] > VALUES_MAX:
            raise too_many_values(self._place())

    def _is_sign(self, sign: str) -> bool:
        return self._next.kind == "sign" and self._next.text == sign

    def _take(self) -> _Token:
        taken = self._next
        self._next = next(self._tokens, taken)
        return taken

    def _place(self) -> QueryPlace:
        return QueryPlace(self._text, self._next.offset)

    def _refuse(self, what: str, *, expected: str) -> NoReturn:
        raise self._place().error(what, expected=expected, got=str(self._next))
