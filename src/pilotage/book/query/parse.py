"""Parses the text of a query: words, quoted texts and signs, then conditions, alternatives and clauses.

There is no recursion: a query is an AND of ORs and never deeper, so hostile text can only be too long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

import msgspec

from pilotage.book.query.attributes import TAG_PREFIX, Kind, Target, find_attribute, name_hint
from pilotage.book.query.check import (
    Named,
    RawCondition,
    RawValue,
    check_query,
    check_sizes,
    too_long,
    too_many_conditions,
    too_many_values,
)
from pilotage.book.query.conditions import (
    CONDITIONS_MAX,
    EVERYTHING,
    EVERYTHING_WORD,
    LENGTH_BYTES_MAX,
    VALUES_MAX,
    Condition,
    Operator,
    Query,
)
from pilotage.book.query.errors import PackageByName, QueryPlace, shown
from pilotage.book.query.values import KEYWORDS, is_duration, plain_value
from pilotage.model.errors import did_you_mean

FORM = "conditions joined by `and`, alternatives in parentheses by `or`, as in state=DONE and (site=lyon or site=bari)"

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<word>(?:[\w:@/+%*~\#$&^-]|\.(?!\.))+)
      | (?P<sign><=|>=|!=|==|<>|\.\.|[=<>(),])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "'": "'"}
_SIGNS = {str(operator): operator for operator in Operator}
_MEANT = {"==": "=", "<>": "!="}
_SHORT = 200


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


def parse(text: str, *, target: Target | None = None, named: Named | None = None) -> Query:
    """Parse a query; with a target, its attributes must apply there. Raises `QueryError`.

    With `named`, packages may be given by name; it is called only for those.
    """
    if len(text) > LENGTH_BYTES_MAX or len(text.encode(errors="surrogatepass")) > LENGTH_BYTES_MAX:
        raise too_long(QueryPlace())
    try:
        return _parse_short(text, target) if len(text) <= _SHORT else _Parser(text, target).query()
    except PackageByName:
        if named is None:
            raise
        return _Parser(text, target, named).query()  # not cached: another caller may not see this job


@lru_cache(maxsize=256)  # watchers repeat the same query again and again
def _parse_short(text: str, target: Target | None) -> Query:
    return _Parser(text, target).query()


def _tokens(text: str) -> Iterator[_Token]:
    offset = 0
    while offset < len(text):
        found = _TOKEN.match(text, offset)
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


class _Parser:
    """Parses the tokens of one query from left to right."""

    def __init__(self, text: str, target: Target | None, named: Named | None = None) -> None:
        self._text = text
        self._target = target
        self._named = named
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._counts = {"conditions": 0, "values": 0}

    def query(self) -> Query:
        """Parse the whole text."""
        if self._next.kind == "end":
            hint = f"write `{EVERYTHING_WORD}` for everything"
            raise QueryPlace().error("the query is empty", expected=FORM, next_step=hint)
        if self._next.keyword == EVERYTHING_WORD:
            self._take()
            if self._next.kind != "end":
                self._refuse(f"{EVERYTHING_WORD} must stand alone", expected="the end")
            return EVERYTHING
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
        place = QueryPlace(self._text, 0)
        check_sizes(clauses, place=place)
        return check_query(clauses, target=self._target, place=place, named=self._named)

    def _clause(self) -> list[RawCondition]:
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

    def _condition(self) -> RawCondition:
        self._count("conditions")
        if self._is_sign("("):
            self._refuse("nested parentheses", expected=FORM)
        if self._next.kind != "word" or self._next.keyword:
            hint = name_hint("", self._target)
            raise self._place().error("missing attribute", expected="its name", got=str(self._next), next_step=hint)
        place = self._place()
        name = self._take().text
        if name.lower() == TAG_PREFIX and self._next.kind == "string":
            name += self._take().text
        operator_place = self._place()
        operator = self._operator(name)
        return RawCondition(
            attribute=name,
            operator=operator,
            values=self._values(operator, is_time=_is_time(name)),
            place=place,
            operator_place=operator_place,
        )

    def _operator(self, name: str) -> Operator:
        taken = self._next
        if taken.kind == "sign" and taken.text in _MEANT:
            raise self._place().error(f"unknown operator: {taken}", next_step=f"did you mean {_MEANT[taken.text]}?")
        text = taken.text if taken.kind == "sign" else taken.keyword
        if text == "not":
            self._take()
            text = f"not {self._next.keyword}"
        operator = _SIGNS.get(text)
        if operator is None:
            hint = "" if find_attribute(name) or name[:4].lower() == TAG_PREFIX else name_hint(name, self._target)
            expected = f"one of {', '.join(_SIGNS)}"
            what = f"missing operator after {shown(name)}"
            raise self._place().error(what, expected=expected, got=str(self._next), next_step=hint)
        self._take()
        return operator

    def _values(self, operator: Operator, *, is_time: bool) -> list[RawValue]:
        if operator in (Operator.IN, Operator.NOT_IN):
            return self._list(is_time=is_time)
        values = [self._value(is_time=is_time)]
        if operator is Operator.WITHIN and self._is_sign(".."):
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


def _is_time(name: str) -> bool:
    attribute = find_attribute(name)
    return attribute is not None and attribute.kind is Kind.TIME


# The JSON form of a query: `{"all": [{"any": [{"attribute", "operator", "values"}]}]}`, checked like the text.

_OPERATORS = {str(operator): operator for operator in Operator}


def to_json(query: Query) -> dict[str, object]:
    """The query as JSON values; times are texts, relative ones such as `2h ago`."""
    return {"all": [{"any": [_plain(condition) for condition in clause]} for clause in query.clauses]}


def _plain(condition: Condition) -> dict[str, object]:
    kind = condition.about.kind
    return {
        "attribute": condition.name,
        "operator": str(condition.operator),
        "values": [plain_value(kind, value) for value in condition.values],
    }


def from_json(value: object, *, target: Target | None = None) -> Query:
    """The query of JSON values; raises a `QueryError` with the path to the fault."""
    whole = QueryPlace(path="the whole")
    fields = _object(value, keys=("all",), place=whole)
    clauses: list[list[RawCondition]] = []
    for number, group in enumerate(_list(fields["all"], place=QueryPlace(path="all"), size_max=CONDITIONS_MAX)):
        path = f"all[{number}]"
        any_of = _object(group, keys=("any",), place=QueryPlace(path=path))["any"]
        place = QueryPlace(path=f"{path}.any")
        alternatives = _list(any_of, place=place, size_max=CONDITIONS_MAX)
        if not alternatives:
            raise place.error("no alternative", expected="at least one condition")
        clauses.append([_condition(each, f"{path}.any[{index}]") for index, each in enumerate(alternatives)])
    return check_query(clauses, target=target, place=whole)


def _condition(value: object, path: str) -> RawCondition:
    fields = _object(value, keys=("attribute", "operator", "values"), place=QueryPlace(path=path))
    attribute, operator = fields["attribute"], fields["operator"]
    place, operator_place = QueryPlace(path=f"{path}.attribute"), QueryPlace(path=f"{path}.operator")
    if not isinstance(attribute, str):
        raise place.error("not an attribute", expected="a name", got=shown(attribute))
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise operator_place.error("unknown operator", expected=f"one of {', '.join(_OPERATORS)}", got=shown(operator))
    values = _list(fields["values"], place=QueryPlace(path=f"{path}.values"), size_max=VALUES_MAX)
    return RawCondition(
        attribute=attribute,
        operator=_OPERATORS[operator],
        values=[RawValue(each, QueryPlace(path=f"{path}.values[{index}]")) for index, each in enumerate(values)],
        place=place,
        operator_place=operator_place,
    )


def _object(value: object, *, keys: tuple[str, ...], place: QueryPlace) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise place.error("not an object", expected=f"an object with {', '.join(keys)}", got=shown(value))
    for key in value:
        if key not in keys:
            raise place.error(f"unknown key: {shown(key)}", next_step=did_you_mean(str(key)[:40], keys))
    for key in keys:
        if key not in value:
            raise place.error(f"{key} is missing", expected=f"an object with {', '.join(keys)}")
    return value


def _list(value: object, *, place: QueryPlace, size_max: int) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise place.error("not a list", expected="a list", got=shown(value))
    if len(value) > size_max:
        raise too_many_values(place) if size_max == VALUES_MAX else too_many_conditions(place)
    return value
