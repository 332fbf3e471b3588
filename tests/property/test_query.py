"""Queries of every shape are the same after writing and reading; hostile ones are refused and nothing else happens."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pilotage.book.query import (
    ATTRIBUTES,
    BOOK_OPERATORS,
    EXIT_CODES,
    SOURCES,
    STATES,
    Ago,
    Attribute,
    Condition,
    Cursor,
    CursorError,
    Kind,
    Operator,
    Query,
    QueryError,
    QueryTooBroad,
    Target,
    canonical,
    check_target,
    decode_cursor,
    default_indexed,
    encode_cursor,
    from_json,
    holds,
    matches,
    parse,
    resolve,
    served_by,
    to_json,
)
from tests.kit.reaching import share

YEAR_9999 = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    st.sampled_from(["and", "OR", "in", "all", "ago", "now", "", " ", "a..b", ".", "..", "'", '"', "\\", "\\n", "\n", "(", "a,b", "=", "\ud7ff", "\U0001f680", "é"]),
)  # fmt: skip
moments = st.one_of(
    st.floats(0, YEAR_9999),
    st.integers(0, 2**31),
    st.datetimes(datetime(1970, 1, 1), datetime(9998, 12, 31)).map(lambda moment: moment.isoformat()[:26] + "Z"),  # noqa: DTZ001
    st.just("now"),
    st.tuples(st.integers(0, 5000), st.sampled_from(["s", "m", "h", "d", ".125s", ".5h"])).map(lambda pair: f"{pair[0]}{pair[1]} ago"),
)  # fmt: skip
packages = st.tuples(*[st.integers(1, 999_999_999)] * 3).map(lambda parts: ".".join(map(str, parts)))
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.TEXT: texts,
    Kind.STATE: st.sampled_from([*STATES, "running", "Done"]),
    Kind.EXIT_CODE: st.sampled_from(EXIT_CODES),
    Kind.SOURCE: st.sampled_from(SOURCES),
    Kind.REASON: texts.filter(bool),
    Kind.TIME: moments,
    Kind.COUNT: st.one_of(st.integers(0, 9), st.integers(0, 2**63 - 1)),
    Kind.FLAG: st.one_of(st.booleans(), st.sampled_from(["yes", "NO", "true"])),
    Kind.JOB: st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,12}", fullmatch=True),
    Kind.PACKAGE: packages,
}
LISTS = (Operator.IN, Operator.NOT_IN)


def outcome(read: Callable[[Any], Query], value: object) -> Query | QueryError:
    """What comes of reading a query; any other exception is a failure of the test."""
    try:
        return read(value)
    except QueryError as error:
        return error


@st.composite
def written_conditions(draw: st.DrawFn, attributes: list[Attribute]) -> dict[str, object]:
    """A condition as a program may send it."""
    attribute = draw(st.sampled_from(attributes))
    operator = draw(st.sampled_from([each for each in BOOK_OPERATORS if attribute.kind.ordered or not each.orders]))
    sizes = (1, 4) if operator in LISTS else (2, 2) if operator is Operator.WITHIN else (1, 1)
    values = draw(st.lists(VALUES[attribute.kind], min_size=sizes[0], max_size=sizes[1]))
    name = f"tag.{draw(texts.filter(bool))}" if attribute.name == "tag" else attribute.name
    return {"attribute": name, "operator": str(operator), "values": values}


@st.composite
def queries(draw: st.DrawFn, target: Target | None = None) -> Query:
    """A checked query; what happens to be an empty range is thrown away."""
    attributes = [each for each in ATTRIBUTES.values() if target is None or target in each.targets]
    groups = st.lists(written_conditions(attributes), min_size=1, max_size=3).map(lambda group: {"any": group})
    written = {"all": draw(st.lists(groups, max_size=4))}
    query = outcome(from_json, written)
    if isinstance(query, QueryError):
        assume("this range is empty" not in query.what)
        raise query
    return query


@given(queries())
def test_canonical_text_reads_back_as_the_same_query(query: Query) -> None:
    text = canonical(query)
    assert parse(text) == query
    assert canonical(parse(text)) == text


@given(queries())
def test_json_reads_back_as_the_same_query(query: Query) -> None:
    assert from_json(json.loads(json.dumps(to_json(query)))) == query
    assert from_json(msgspec.json.decode(msgspec.json.encode(to_json(query)))) == query


@given(queries())
def test_values_keep_the_type_of_their_kind(query: Query) -> None:
    for condition in parse(canonical(query)).conditions:
        kind = condition.about.kind
        types = {Kind.TIME: float | Ago, Kind.COUNT: int, Kind.FLAG: bool}.get(kind, str)
        assert all(isinstance(value, types) for value in condition.values)


@given(queries(), st.floats(0, 10**10))
def test_a_resolved_query_has_no_relative_time_and_stays_as_it_is(query: Query, now: float) -> None:
    resolved = resolve(query, now=now)
    assert not any(isinstance(value, Ago) for condition in resolved.conditions for value in condition.values)
    assert resolve(resolved, now=now + 1) is resolved
    assert [len(clause) for clause in resolved.clauses] == [len(clause) for clause in query.clauses]


def survives(text: str) -> None:
    """Either a query, which then has a canonical form, or a query error that can be shown."""
    found = outcome(parse, text)
    if isinstance(found, Query):
        assert parse(canonical(found)) == found
        assert from_json(to_json(found)) == found
        return
    assert str(found).encode()
    assert 0 <= found.column <= len(text) + 1
    if found.column:
        line, caret = found.caret.split("\n")
        assert len(caret) <= len(line) + 1


TOKENS = ["and", "or", "not", "in", "within", "all", "ago", "now", "=", "!=", "<", ">=", "..", "(", ")", ",", "'", '"', "\\", "tag.", "tag",
          "state", "site", "submitted", "attempts", "package", "held", "job", "DONE", "lyon", "2h", "2024-05-01", "3", "1.2.1", "a/001/001/001",
          "yes", "'x y'", '"\\u0041"', "\0", "\ud800", "é", "\n", "=="]  # fmt: skip


@given(st.text(max_size=60))
@example("\0")
@example("\ud800")
@example("'" * 30)
@example("\\")
@example("site='\\")
@example("\u2028=\x85")
def test_any_text_is_a_query_or_a_query_error(text: str) -> None:
    survives(text)


PHRASES = ["site=lyon", "state in (DONE, RUNNING)", "attempts >= 3", "submitted within 2h ago .. now", "package=1.2.1",
           "not held=yes", "tag.x != 'x y'", "(site=a or site=b)", "job=j1"]  # fmt: skip
JOINED = [" and ", " or ", " and (", ") or ", " "]
words = st.lists(st.sampled_from(TOKENS), max_size=12)
spoken = st.one_of(
    st.tuples(words, st.sampled_from(["", " "])).map(lambda said: said[1].join(said[0])),
    # By chance alone words are hardly ever a query: most of these are, or nearly so.
    st.lists(st.tuples(st.sampled_from(PHRASES), st.sampled_from(JOINED)), min_size=1, max_size=4).map(
        lambda pairs: "".join(f"{phrase}{joined}" for phrase, joined in pairs[:-1]) + pairs[-1][0]
    ),
)


@given(spoken)
def test_any_sequence_of_words_is_a_query_or_a_query_error(text: str) -> None:
    survives(text)


@given(queries(), st.data())
def test_a_damaged_query_is_a_query_or_a_query_error(query: Query, data: st.DataObject) -> None:
    text = canonical(query)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    survives(text[:start] + data.draw(st.sampled_from(["", " ", *TOKENS])) + text[end:])


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(TOKENS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
        st.fixed_dictionaries({"all": inner}),
        st.fixed_dictionaries({"any": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"attribute": inner, "operator": inner, "values": inner}),
    ),
    max_leaves=12,
)
half_right = st.fixed_dictionaries({
    "attribute": st.one_of(st.sampled_from([*ATTRIBUTES, "tag.x"]), st.text(max_size=5)),
    "operator": st.sampled_from([str(operator) for operator in Operator]),
    "values": st.lists(st.one_of(anything, texts, moments), max_size=3),
})  # fmt: skip
any_json = st.one_of(
    anything,
    st.one_of(half_right, written_conditions([*ATTRIBUTES.values()])).map(
        lambda condition: {"all": [{"any": [condition]}]}
    ),
)


@given(any_json)
def test_any_json_is_a_query_or_a_query_error(value: object) -> None:
    found = outcome(from_json, value)
    if isinstance(found, Query):
        assert parse(canonical(found)) == found
    else:
        assert str(found).encode()


def row_of(draw: st.DrawFn, query: Query) -> dict[str, object]:
    """A row that has a good chance to match: each value is missing, of the query, near one, or any other of its kind."""
    row: dict[str, object] = {}
    tags: dict[str, object] = {}
    for condition in query.conditions:
        value: object = draw(st.sampled_from([None, *condition.values]))
        if isinstance(value, int | float) and not isinstance(value, bool):
            value += draw(st.sampled_from([0, 0, 1, -1]))
        if condition.attribute == "tag":
            tags[condition.tag] = value
        elif value is not None:
            row[condition.attribute] = value
    return row | {"tags": {name: value for name, value in tags.items() if value is not None}}


@st.composite
def matchings(draw: st.DrawFn) -> tuple[Query, dict[str, object]]:
    """A resolved query and a row."""
    query = resolve(draw(queries()), now=1e9)
    return query, row_of(draw, query)


@given(matchings())
def test_a_query_matches_as_its_parts_do(matching: tuple[Query, dict[str, object]]) -> None:
    query, row = matching
    expected = True
    for clause in query.clauses:
        expected = expected and matches(Query((clause,)), row)
        assert matches(Query((clause,)), row) == any(matches(Query(((condition,),)), row) for condition in clause)
    assert matches(query, row) == expected


@given(matchings())
def test_each_operator_has_its_opposite_and_its_spelling_in_others(
    matching: tuple[Query, dict[str, object]],
) -> None:
    query, row = matching
    opposites = {Operator.EQUAL: Operator.NOT_EQUAL, Operator.IN: Operator.NOT_IN}
    for condition in query.conditions:
        by = condition.operator

        def other(operator: Operator, *values: Any, condition: Condition = condition) -> bool:
            return holds(msgspec.structs.replace(condition, operator=operator, values=values), row)

        values = condition.values
        if by in opposites:
            assert holds(condition, row) != other(opposites[by], *values)
        if by is Operator.IN:
            assert holds(condition, row) == any(other(Operator.EQUAL, value) for value in values)
        if by is Operator.WITHIN:
            start, end = values
            assert holds(condition, row) == (other(Operator.GREATER_OR_EQUAL, start) and other(Operator.LESS, end))
        if by is Operator.LESS_OR_EQUAL:
            assert holds(condition, row) == (other(Operator.LESS, *values) or other(Operator.EQUAL, *values))
        if by is Operator.GREATER:
            present = row.get(condition.attribute) is not None
            assert holds(condition, row) == (present and not other(Operator.LESS_OR_EQUAL, *values))


@given(queries())
def test_a_missing_value_satisfies_only_denials(query: Query) -> None:
    for condition in resolve(query, now=1e9).conditions:
        assert holds(condition, {}) == condition.operator.denies


@st.composite
def served(draw: st.DrawFn) -> tuple[Query, Target, frozenset[str]]:
    """A query over a target, and what is indexed there."""
    target = draw(st.sampled_from(Target))
    query = draw(queries(target))
    names = draw(st.frozensets(st.sampled_from([*ATTRIBUTES, "tag.x"])))
    if draw(st.booleans()):  # an index for what is asked: by chance alone there is seldom one
        names |= {each.name for each in query.conditions}
    return query, target, names


def is_served(query: Query, target: Target, names: frozenset[str]) -> bool:
    try:
        served_by(query, target, names)
    except QueryTooBroad:
        return False
    return True


@given(served())
def test_the_chosen_clause_can_be_looked_up(case: tuple[Query, Target, frozenset[str]]) -> None:
    query, target, names = case
    assume(is_served(query, target, names))
    plan = served_by(query, target, names)
    if plan.clause is None:
        assert not query.clauses
        assert target is Target.JOBS
        return
    assert plan.clause in plan.serving
    for number in plan.serving:
        for condition in query.clauses[number]:
            assert {condition.attribute, condition.name} & (names | {"job", "position"})
            assert condition.operator not in (Operator.NOT_EQUAL, Operator.NOT_IN)
    assert set(plan.attributes) == {condition.name for condition in query.clauses[plan.clause]}


@st.composite
def served_and_more(draw: st.DrawFn) -> tuple[Query, Query, Target, frozenset[str]]:
    """The same, and another query over the same target."""
    query, target, names = draw(served())
    return query, draw(queries(target)), target, names


@given(served_and_more())
def test_more_indexes_and_more_clauses_never_hurt(case: tuple[Query, Query, Target, frozenset[str]]) -> None:
    query, more, target, names = case
    check_target(more, target)
    if query.clauses and is_served(query, target, names):
        assert is_served(query, target, names | default_indexed(target))
        assert is_served(Query(query.clauses + more.clauses), target, names)
    by_job = parse("job=j1").clauses
    assert is_served(Query(query.clauses + by_job), target, names)


keys = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    max_size=4,
).map(tuple)
cursors = st.builds(Cursor, key=keys, now=st.floats(0, 1e12))


@given(queries(), st.sampled_from(Target), cursors)
def test_a_cursor_comes_back_whole(query: Query, target: Target, cursor: Cursor) -> None:
    text = encode_cursor(query, target, cursor)
    found = decode_cursor(text, parse(canonical(query)), target)
    assert found == cursor
    assert [type(part) for part in found.key] == [type(part) for part in cursor.key]


@given(queries(), queries(), st.sampled_from(Target), st.sampled_from(Target), cursors)
def test_a_cursor_is_good_for_its_own_query_only(
    query: Query, other: Query, target: Target, elsewhere: Target, cursor: Cursor
) -> None:
    assume((query, target) != (other, elsewhere))
    with pytest.raises(CursorError, match="another query" if target is elsewhere else "belongs to a query over"):
        decode_cursor(encode_cursor(query, target, cursor), other, elsewhere)


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@given(cursors, st.data())
def test_a_damaged_cursor_is_refused(cursor: Cursor, data: st.DataObject) -> None:
    query = parse("site=a")
    text = encode_cursor(query, Target.PACKAGES, cursor)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    damaged = text[:start] + data.draw(st.one_of(st.text(ALPHABET, max_size=4), st.text(max_size=2))) + text[end:]
    assume(damaged != text)
    with pytest.raises(CursorError, match="damaged, or not a cursor"):
        decode_cursor(damaged, query, Target.PACKAGES)


@given(cursors, st.data())
def test_every_single_letter_of_a_cursor_counts(cursor: Cursor, data: st.DataObject) -> None:
    query = parse("site=a")
    text = encode_cursor(query, Target.PACKAGES, cursor)
    for place in {data.draw(st.integers(0, len(text) - 1)), len(text) - 1}:
        letter = ALPHABET[ALPHABET.index(text[place]) ^ data.draw(st.sampled_from([1, 2, 4, 8, 16, 32]))]
        with pytest.raises(CursorError, match="damaged, or not a cursor"):
            decode_cursor(text[:place] + letter + text[place + 1 :], query, Target.PACKAGES)


@given(st.one_of(st.text(max_size=40), st.from_regex(r"[A-Za-z0-9_-]{0,60}", fullmatch=True)))
@example("A" * 100_000)
@example("\ud800")
@example("\uff21" * 4)
def test_any_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(CursorError, match="damaged, or not a cursor"):
        decode_cursor(text, parse("site=a"), Target.JOBS)


def forged(body: bytes) -> str:
    """A text with a checksum as good as ours."""
    check = hashlib.blake2b(body, digest_size=6, person=b"cursor").digest()
    return base64.urlsafe_b64encode(check + body).decode().rstrip("=")


@given(st.one_of(st.binary(max_size=60), anything.map(lambda value: _packed([1, "jobs", b"x", 1.0, value]))))
@example(b"\x91" * 1000)
def test_a_forged_cursor_is_refused_whatever_it_holds(body: bytes) -> None:
    with pytest.raises(CursorError):
        decode_cursor(forged(body), parse("site=a"), Target.JOBS)


parts = st.one_of(st.text(max_size=8), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(max_size=3), st.none())
nows, forged_keys = st.one_of(st.floats(), anything), st.one_of(st.lists(parts, max_size=3), anything)


@given(nows, forged_keys)
@example(float("nan"), [])
@example(1.0, [float("inf")])
@example(1.0, [b"x"])
def test_a_forged_cursor_of_the_right_query_holds_a_key_or_is_refused(now: object, key: object) -> None:
    cursor = read_forged(now, key)
    if cursor is None:
        return
    assert all(isinstance(part, str | int | float) for part in cursor.key)
    assert all(math.isfinite(part) for part in (cursor.now, *cursor.key) if isinstance(part, float))


def read_forged(now: object, key: object) -> Cursor | None:
    """What is made of a cursor that somebody put together for the right query; None where it is refused."""
    query = parse("site=a")
    digest = hashlib.blake2b(canonical(query).encode(), digest_size=12).digest()
    try:
        return decode_cursor(forged(_packed([1, "jobs", digest, now, key])), query, Target.JOBS)
    except CursorError:
        return None


def test_enough_examples_reach_what_these_properties_are_about() -> None:
    def is_query(read: Callable[[Any], Query], value: object) -> bool:
        return isinstance(outcome(read, value), Query)

    def more_is_served(case: tuple[Query, Query, Target, frozenset[str]]) -> bool:
        query, more, target, names = case
        return bool(query.clauses and more.clauses) and is_served(query, target, names)

    assert share(spoken, lambda text: is_query(parse, text)) > 0.1
    assert share(any_json, lambda value: is_query(from_json, value)) > 0.1
    assert share(served_and_more(), more_is_served) > 0.1
    assert share(st.tuples(nows, forged_keys), lambda given: read_forged(*given) is not None) > 0.1


def _packed(value: object) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeError):
        return b""
