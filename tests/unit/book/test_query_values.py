"""Values of queries: durations, times, texts, and where an error points to."""

from __future__ import annotations

import pytest

from pilotage.book.query.attributes import Kind
from pilotage.book.query.errors import QueryError, QueryPlace
from pilotage.book.query.values import (
    COUNT_MAX,
    TIME_MAX,
    Ago,
    is_date,
    is_duration,
    read_duration,
    read_package,
    read_value,
    write_duration,
    write_text,
    write_time,
    write_value,
)

_HERE = QueryPlace("a query", 2)


@pytest.mark.parametrize(
    "text, seconds, written",
    [
        ("1s", 1.0, "1s"), ("60s", 60.0, "1m"), ("90S", 90.0, "90s"), ("5m", 300.0, "5m"), ("90m", 5400.0, "90m"),
        ("2h", 7200.0, "2h"), ("24h", 86_400.0, "1d"), ("1d", 86_400.0, "1d"), ("7d", 604_800.0, "1w"), ("2w", 1_209_600.0, "2w"),
        ("0s", 0.0, "0s"), ("1.5h", 5400.0, "90m"), ("0.25s", 0.25, "0.25s"), ("1.001s", 1.001, "1.001s"),
        ("36600d", 36_600 * 86_400.0, "36600d"),
    ],
)  # fmt: skip
def test_a_duration_is_read_and_written_in_the_largest_whole_unit(text: str, seconds: float, written: str) -> None:
    assert read_duration(text) == seconds
    assert is_duration(text)
    assert write_duration(seconds) == written
    assert read_duration(written) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "1y", "-1h", "1.2345s", "36601d", "1 h"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert read_duration(text) is None


@pytest.mark.parametrize(
    "raw, value, written",
    [
        ("1970-01-02", 86_400.0, "1970-01-02T00:00:00Z"), ("1970-01-01T01:00", 3600.0, "1970-01-01T01:00:00Z"),
        ("1970-01-01t01:00:00+01:00", 0.0, "1970-01-01T00:00:00Z"), ("1970-01-01 00:00:01.5z", 1.5, "1970-01-01T00:00:01.500000Z"),
        ("12.25", 12.25, "1970-01-01T00:00:12.250000Z"), (7, 7.0, "1970-01-01T00:00:07Z"), (1.0000004, 1.0, "1970-01-01T00:00:01Z"),
        (TIME_MAX, TIME_MAX, "9999-01-01T00:00:00Z"), ("now", Ago(0.0), "now"), (" NOW ", Ago(0.0), "now"), ("2h ago", Ago(7200.0), "2h ago"),
        ("90s  AGO", Ago(90.0), "90s ago"), (0, 0.0, "1970-01-01T00:00:00Z"),
    ],
)  # fmt: skip
def test_a_time_is_read_and_written(raw: object, value: float | Ago, written: str) -> None:
    found = read_value(Kind.TIME, raw, _HERE)
    assert (found, type(found)) == (value, type(value))
    assert write_time(value) == write_value(Kind.TIME, value) == written


@pytest.mark.parametrize(
    "raw",
    [
        None,
        True,
        [],
        "soon",
        "1969-12-31",
        "2024-13-01",
        "9999-01-02",
        -1,
        TIME_MAX + 1,
        10**400,
        "x ago",
        "36601d ago",
    ],
)
def test_what_is_no_time_is_refused(raw: object) -> None:
    with pytest.raises(QueryError, match=r"not a time|a time outside the calendar"):
        read_value(Kind.TIME, raw, _HERE)


def test_a_duration_in_place_of_a_time_is_told_how_to_be_written() -> None:
    with pytest.raises(QueryError) as raised:
        read_value(Kind.TIME, "2h", _HERE)
    assert raised.value.next_step == "write 2h ago for a time, or within 2h for all since then"
    with pytest.raises(QueryError) as raised:
        read_value(Kind.TIME, "soon", _HERE)
    assert raised.value.next_step == ""


def test_a_day_is_a_time_without_an_hour() -> None:
    assert [is_date(raw) for raw in ("2024-05-01", " 2024-05-01 ", "2024-05-01T10:00", "now", 5)] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "raw, value", [("0", 0), (0, 0), (str(COUNT_MAX), COUNT_MAX), (COUNT_MAX, COUNT_MAX), ("007", 7)]
)
def test_a_count_is_a_whole_number(raw: object, value: int) -> None:
    assert read_value(Kind.COUNT, raw, _HERE) == value
    assert write_value(Kind.COUNT, value) == str(value)


@pytest.mark.parametrize("raw", [-1, COUNT_MAX + 1, str(COUNT_MAX + 1), True, 1.0, "1.0", "", "-1", None])
def test_what_is_no_count_is_refused(raw: object) -> None:
    with pytest.raises(QueryError, match="not a count"):
        read_value(Kind.COUNT, raw, _HERE)


@pytest.mark.parametrize(
    "raw, value", [("yes", True), ("TRUE", True), (True, True), ("no", False), ("false", False), (False, False)]
)
def test_a_flag_is_yes_or_no(raw: object, *, value: bool) -> None:
    assert read_value(Kind.FLAG, raw, _HERE) is value
    assert write_value(Kind.FLAG, value) == ("yes" if value else "no")


@pytest.mark.parametrize(
    "kind, raw",
    [
        (Kind.FLAG, "maybe"), (Kind.FLAG, 1), (Kind.TEXT, 5), (Kind.TEXT, "a\0"), (Kind.TEXT, "\ud800"), (Kind.TEXT, "a\udfff"),
        (Kind.REASON, ""), (Kind.REASON, "r" * 65), (Kind.JOB, "-j"), (Kind.JOB, 5), (Kind.PACKAGE, "x"), (Kind.PACKAGE, 5),
        (Kind.PACKAGE, "job/001/002/003"), (Kind.STATE, "RUNING"), (Kind.STATE, 5),
    ],
)  # fmt: skip
def test_what_is_no_value_of_its_kind_is_refused(kind: Kind, raw: object) -> None:
    with pytest.raises(QueryError) as raised:
        read_value(kind, raw, _HERE)
    assert raised.value.column == 3


def test_values_have_one_form() -> None:
    assert read_value(Kind.REASON, "r" * 64, _HERE) == "r" * 64
    assert read_value(Kind.REASON, "r", _HERE) == "r"
    assert read_value(Kind.TEXT, "\ud7ff\ue000", _HERE) == "\ud7ff\ue000"
    assert read_value(Kind.STATE, "running", _HERE) == "RUNNING"
    assert read_value(Kind.PACKAGE, "001/002/003", _HERE) == read_value(Kind.PACKAGE, "1.2.3", _HERE) == "1.2.3"
    with pytest.raises(QueryError) as raised:
        read_value(Kind.STATE, "RUNING", _HERE)
    assert raised.value.next_step == "did you mean RUNNING?"


@pytest.mark.parametrize("text", ["001/002", "0.1.1", "000/001/001", "001/000/001", "001/001/000", "1.2", ""])
def test_what_is_no_package_is_none(text: str) -> None:
    assert read_package(text) == ("", None)


def test_a_path_may_name_its_job() -> None:
    job, found = read_package("study/a/001/002/003")
    assert found is not None
    assert (job, found.dotted) == ("study/a", "1.2.3")


@pytest.mark.parametrize(
    "text, written",
    [
        ("plain", "plain"), ("a.b", "a.b"), ("a..b", '"a..b"'), ("and", '"and"'), ("Within", '"Within"'), ("", '""'), ("a b", '"a b"'),
        ('a"b\\c', '"a\\"b\\\\c"'), ("a\nb\tc\rd", '"a\\nb\\tc\\rd"'), ("\x01", '"\\u0001"'), ("ö", '"ö"'), ("\uffff", '"\\uffff"'),
        ("\U000e0001", '"\U000e0001"'), ("-a", '"-a"'), ("_a-b:c@d/e+f", "_a-b:c@d/e+f"),
    ],
)  # fmt: skip
def test_a_text_is_bare_where_it_can_be(text: str, written: str) -> None:
    assert write_text(text) == write_value(Kind.TEXT, text) == written


def test_an_error_points_to_its_place() -> None:
    error = QueryPlace("state = RUNING and x", 8).error(
        "no such state", expected="a state", got="RUNING", next_step="one\ntwo"
    )
    assert str(error) == (
        "query, column 9: no such state; expected a state, got RUNING\n"
        "  state = RUNING and x\n"
        "          ^\n"
        "  one\n"
        "  two"
    )  # fmt: skip
    assert str(QueryPlace().error("it is wrong")) == "query: it is wrong"
    assert str(QueryPlace(path="all[1]").error("it is wrong")) == "query, all[1]: it is wrong"
    assert QueryPlace().error("it is wrong").caret == ""


@pytest.mark.parametrize(
    "size, offset",
    [(size, offset) for size in (1, 30, 60, 200) for offset in (0, 1, 29, 59, 100, 199) if offset < size],
)
def test_the_caret_stands_below_its_character_however_long_the_query_is(size: int, offset: int) -> None:
    query = "".join(chr(0x4E00 + number) for number in range(size))
    line, below = QueryPlace(query, offset).error("wrong").caret.split("\n")
    assert below == " " * (len(below) - 1) + "^"
    assert line[len(below) - 1] == query[offset]
    assert line.strip("… ") in query
    assert line.startswith("… ") is (not line.startswith(query[0]))
    assert line.endswith(" …") is (not line.endswith(query[-1]))


def test_what_cannot_be_printed_takes_one_place_above_the_caret() -> None:
    assert QueryPlace("a\tb\x01c", 4).error("wrong").caret == "a b?c\n    ^"
