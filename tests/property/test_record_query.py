"""Queries of records are the same after writing and reading; hostile ones are refused and nothing else happens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pilotage.book.query import Operator, QueryError, QueryTooBroad
from pilotage.model.records import RecordNode
from pilotage.ports.record_index import (
    IndexedAttributes,
    IndexQuery,
    UnknownAttribute,
    calendar_span,
    number_of,
)
from pilotage.provenance.index.attributes import (
    ATTRIBUTES,
    DEFAULT,
    EITHER,
    FAMILIES,
    chosen_attributes,
)
from pilotage.provenance.index.query import matches, parse, require_index
from tests.kit.reaching import share

NOW = 1_790_000_000.0
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    st.sampled_from(["and", "OR", "in", "exists", "not", "~", "a~b", "now", "", " ", "..", "'", '"', "\\", "(", "5", "2026-01"]),
)  # fmt: skip
numbers = st.one_of(st.integers(-5, 10**12), st.floats(-1e9, 1e9)).map(repr)
times = st.one_of(
    st.integers(0, 2**31).map(str),
    st.tuples(st.integers(1970, 2100), st.integers(1, 12)).map(lambda pair: f"{pair[0]}-{pair[1]:02}"),
    st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)).map(lambda moment: moment.isoformat()[:26]),  # noqa: DTZ001
    st.sampled_from(["now", '"2h ago"', "2026-02-28"]),
)  # fmt: skip


def quoted(text: str) -> str:
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    return f'"{escaped}"'


@st.composite
def conditions(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from([*ATTRIBUTES, *EITHER, *FAMILIES, "tag."]))
    kind = ATTRIBUTES[name].kind if name in ATTRIBUTES else "text"
    if name in FAMILIES:
        name += quoted(draw(texts.filter(bool)))
    operator = draw(st.sampled_from(list(Operator)))
    if operator in (Operator.EXISTS, Operator.NOT_EXISTS):
        return f"{name} {operator}"
    values = {"text": texts.map(quoted), "number": numbers, "time": times}[kind]
    if operator.orders and kind == "text":
        values = st.one_of(numbers, times)
    if operator in (Operator.IN, Operator.NOT_IN):
        return f"{name} {operator} ({', '.join(draw(st.lists(values, min_size=1, max_size=3)))})"
    if operator is Operator.WITHIN:
        return f"{name} within {draw(values)}..{draw(values)}"
    return f"{name} {operator} {draw(values)}"


@st.composite
def written(draw: st.DrawFn) -> str:
    clauses = draw(st.lists(st.lists(conditions(), min_size=1, max_size=2), min_size=1, max_size=3))
    return " and ".join(f"({' or '.join(clause)})" if len(clause) > 1 else clause[0] for clause in clauses)


def outcome(text: str) -> IndexQuery | QueryError:
    """What comes of reading a query; any other exception is a failure of the test."""
    try:
        return parse(text, now=NOW)
    except QueryError as error:
        return error


@given(written())
def test_canonical_text_reads_back_as_the_same_query(text: str) -> None:
    query = outcome(text)
    assume(isinstance(query, IndexQuery))
    assert parse(str(query), now=None) == query
    assert str(parse(str(query), now=None)) == str(query)


def test_most_written_queries_are_queries() -> None:
    assert share(written(), lambda text: isinstance(outcome(text), IndexQuery)) > 0.3


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(
    ["and", "or", "not", "(", ")", "in", "within", "exists", "~", "=", "!=", "<", "..", ",", "tag.x", "site", "submitted", "node.cores",
     "2026-01", "5", '"a"', "'", "file", "2h", "ago", "now", "job"]
), max_size=12).map(" ".join)))  # fmt: skip
@example("file!=a or site=b")
@example("submitted within 9998-12..9999-01")
@example("tag." + "x" * 5000 + "=1")
@example("site in (" + ",".join("a" * 2000) + ")")
@example(" or ".join(["site=a"] * 100))
@example("\ud800=1")
@example('tag."\ud800"=1')
@example("tag.x<1e999")
def test_hostile_text_is_a_query_or_an_error_that_says_where(text: str) -> None:
    found = outcome(text)
    if isinstance(found, QueryError):
        assert str(found)
    else:
        matches(found, {})


@given(st.text(max_size=30), st.text(max_size=30))
def test_texts_that_are_numbers_or_dates_are_ordered_and_others_are_not(first: str, second: str) -> None:
    for text in (first, second, first + second):
        number = number_of(text)
        assert number is None or number == number  # not NaN
        assert (calendar_span(text) is None) or number is not None


@pytest.mark.parametrize(
    "text, start, end",
    [
        ("2026-01", 1767225600.0, 1769904000.0),
        ("2026-12", 1796083200.0, 1798761600.0),
        ("2026-01-31", 1769817600.0, 1769904000.0),
        ("2026-01-31T10:00", 1769853600.0, 1769853600.0),
        ("2026-01-31T10:00+02:00", 1769846400.0, 1769846400.0),
    ],
)
def test_months_and_days_have_a_start_and_an_end(text: str, start: float, end: float) -> None:
    assert calendar_span(text) == (start, end)


@pytest.mark.parametrize(
    "text", ["2026-13", "2026-02-30", "2026", "2026-1", "0000-01", "9999-12", "2026-01-01T25:00", ""]
)
def test_what_is_no_date_is_none(text: str) -> None:
    assert calendar_span(text) is None


def values_of(query: str) -> Sequence[Any]:
    [[condition]] = parse(query, now=NOW).clauses
    return str(condition.operator), condition.values


def test_a_range_of_days_or_months_has_all_of_its_last_one() -> None:
    assert values_of("submitted within 2026-01..2026-03") == values_of("submitted within 2026-01-01..2026-03-31")
    assert values_of("submitted within 2026-01") == values_of("submitted within 2026-01..2026-01")
    assert values_of("submitted within 2026-01..2026-02-01T00:00:00") == values_of("submitted within 2026-01")
    assert values_of("submitted>2026-01") == values_of("submitted>=2026-02")
    assert values_of("submitted<=2026-01") == values_of("submitted<2026-02")
    assert values_of("submitted within 1h") == ("within", (NOW - 3600, NOW))


@pytest.mark.parametrize(
    "query, words",
    [
        ("", "attributes of this index: job, name"),
        ("stat=DONE", "did you mean state?"),
        ("node.cpumodel=x", "did you mean node."),
        ("color=blue", "tag.NAME"),
        ("tag.x", "one of =, !=, <, <=, >, >=, in, not in, within, exists, not exists, ~"),
        ("tag.x==1", "did you mean =?"),
        ("submitted=2026-01", "write submitted within 2026-01"),
        ("submitted~2026", "submitted is a time"),
        ("site~\"\"", "write site exists"),
        ("node.cores=many", "not a number"),
        ("tag.dose<low", "not a number"),
        ("submitted within 2026-03..2026-01", "this range is empty"),
        ("submitted within 7", "within 2026-01"),
        ("(file!=a or site=b)", "joined by `and`"),
        ("site=a and site=b or site=c", "mixed without parentheses"),
    ],
)  # fmt: skip
def test_errors_teach(query: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(query, now=NOW)
    assert words in str(caught.value)


def test_an_index_names_what_it_has_and_what_it_can_be_asked_by() -> None:
    few = chosen_attributes(["site", "tag.group", "state"], ["site"])
    with pytest.raises(QueryError, match="this index does not have submitted") as caught:
        parse("submitted within 2026-01", attributes=few, now=NOW)
    assert "job, site, tag.group, state" in str(caught.value)
    for query in ("state=DONE", "site!=lyon", "site=lyon or state=DONE", "tag.group exists", "site~lyon"):
        with pytest.raises(QueryTooBroad, match="job, site"):
            require_index(parse(query, attributes=few, now=NOW), few)
    with pytest.raises(QueryTooBroad, match="site ~, which no index serves; state, which is not indexed"):
        require_index(parse("site~lyon and state=DONE", attributes=few, now=NOW), few)
    for query in ("site=lyon and state=DONE", "(site=lyon or job=j1) and tag.group~x", "site exists"):
        require_index(parse(query, attributes=few, now=NOW), few)


def test_relative_times_are_refused_where_there_is_no_now() -> None:
    with pytest.raises(QueryError, match="at each feed"):
        parse("submitted>2h ago", now=None)


def test_chosen_attributes_are_checked() -> None:
    assert chosen_attributes() == DEFAULT
    assert chosen_attributes(["tag.NAME", "Node.Software"]).queryable == ("job", "tag", "node.software")
    assert chosen_attributes(["tag", "revision"]).indexed == ("tag",)
    with pytest.raises(UnknownAttribute, match="did you mean 'site'"):
        chosen_attributes(["sites"])
    with pytest.raises(UnknownAttribute, match="must be queryable"):
        chosen_attributes(["site"], ["tag"])
    some = IndexedAttributes(queryable=("node", "node.software"), indexed=())
    assert [some.keeps(name) for name in ("node", "node.cores", "node.software.root")] == [True, False, True]


def test_every_plain_field_of_a_node_is_an_attribute() -> None:
    kinds = {name: each.kind for name, each in ATTRIBUTES.items() if name.startswith("node.")}
    assert {"node.system": "text", "node.cores": "number", "node.memory_bytes": "number"}.items() <= kinds.items()
    fields = {f"node.{name}" for name in RecordNode.__struct_fields__}
    assert kinds.keys() <= fields
