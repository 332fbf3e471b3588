"""The query language: what each form means, and how each fault is told."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pilotage.book.query import (
    BOOK_OPERATORS,
    EVERYTHING,
    Ago,
    Condition,
    Operator,
    Query,
    QueryError,
    Target,
    canonical,
    check_target,
    from_json,
    parse,
    to_json,
)
from pilotage.model.errors import PilotageError

MAY_DAY = datetime(2024, 5, 1, tzinfo=UTC).timestamp()
DAY = 86_400.0


def only(text: str) -> Condition:
    """The one condition of a query."""
    ((condition,),) = parse(text).clauses
    return condition


def refusal(text: str, target: Target | None = None) -> QueryError:
    with pytest.raises(QueryError) as caught:
        parse(text, target=target)
    return caught.value


def refused_json(value: object) -> str:
    with pytest.raises(QueryError) as caught:
        from_json(value)
    return str(caught.value)


def in_json(attribute: object, operator: object, *values: object) -> object:
    return {"all": [{"any": [{"attribute": attribute, "operator": operator, "values": list(values)}]}]}


def test_the_query_of_the_manual_has_three_clauses() -> None:
    query = parse("state=RUNNING and site=lyon and tag.study=A12")
    assert query == Query((
        (Condition(attribute="state", operator=Operator.EQUAL, values=("RUNNING",)),),
        (Condition(attribute="site", operator=Operator.EQUAL, values=("lyon",)),),
        (Condition(attribute="tag", tag="study", operator=Operator.EQUAL, values=("A12",)),),
    ))  # fmt: skip


@pytest.mark.parametrize(
    "text, shape",
    [
        ("site=a", [1]),
        ("(site=a)", [1]),
        ("site=a or site=b or node=c", [3]),
        ("(site=a or site=b)", [2]),
        ("site=a and (site=b or node=c) and node=d", [1, 2, 1]),
        ("(site=a or site=b) AND (node=c OR node=d)", [2, 2]),
        ("all", []),
        (" ALL ", []),
    ],
)
def test_a_query_is_an_and_of_ors(text: str, shape: list[int]) -> None:
    assert [len(clause) for clause in parse(text).clauses] == shape


@pytest.mark.parametrize(
    "text, expected",
    [
        ("JOBID=J1", "job=J1"),
        ("Exit-Code=success", "exit_code=SUCCESS"),
        ("state = running", "state=RUNNING"),
        ("state NOT IN (done,Cleared)", "state not in (DONE, CLEARED)"),
        ("owner='O\\'Hara'", 'owner="O\'Hara"'),
        ('owner="a\\"b\\\\c\\n\\u00e9"', 'owner="a\\"b\\\\c\\né"'),
        ('owner="and"', 'owner="and"'),
        ("owner=a@b.example:/C+1", "owner=a@b.example:/C+1"),
        ("package=001/002/001", "package=1.2.1"),
        ("package=reco001/001/002/001", "name=reco001 and package=1.2.1"),
        ("held=TRUE and dropped=no", "held=yes and dropped=no"),
        ("attempts>=007", "attempts>=7"),
        ("attempts within 2..5", "attempts within 2..5"),
        ("submitted>2024-05-01", "submitted>2024-05-01T00:00:00Z"),
        ("submitted>2024-05-01T02:00+02:00", "submitted>2024-05-01T00:00:00Z"),
        ("submitted>'2024-05-01 00:00:00.25z'", "submitted>2024-05-01T00:00:00.250000Z"),
        ("submitted>1714521600", "submitted>2024-05-01T00:00:00Z"),
        ("submitted within 2024-05-01", "submitted within 2024-05-01T00:00:00Z..2024-05-02T00:00:00Z"),
        ("submitted within 120m", "submitted within 2h"),
        ("submitted within 7d ago..24h ago", "submitted within 1w ago..1d ago"),
        ("submitted within 2024-05-01..NOW", "submitted within 2024-05-01T00:00:00Z..now"),
        ("entered < 1.5h ago", "entered < 90m ago"),
        ("entered < 90.25s AGO", "entered < 90.25s ago"),
        ('tag."odd name"=1', 'tag."odd name"=1'),
        ("tag.a.b=1", "tag.a.b=1"),
        ("TAG.Case=1", "tag.Case=1"),
        ("type=AttemptFinished and source=AGENT", "type=AttemptFinished and source=agent"),
        ("site=a or site=b", "(site=a or site=b)"),
        ("site=a\n  and\tsite=b", "site=a and site=b"),
    ],
)
def test_many_ways_to_write_have_one_canonical_text(text: str, expected: str) -> None:
    query = parse(text)
    assert str(query) == canonical(query) == expected
    assert parse(expected) == query


@pytest.mark.parametrize(
    "text, values",
    [
        ("attempts=3", (3,)),
        ("held=yes", (True,)),
        ("submitted<2024-05-01", (MAY_DAY,)),
        ("submitted<2h ago", (Ago(7200.0),)),
        ("submitted within 2h", (Ago(7200.0), Ago(0.0))),
        ("submitted within 2024-05-01", (MAY_DAY, MAY_DAY + DAY)),
        ("site in (a, 'b c', 3)", ("a", "b c", "3")),
    ],
)
def test_values_have_the_type_of_their_attribute(text: str, values: tuple[object, ...]) -> None:
    found = only(text).values
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    "text, column, words",
    [
        ("", 0, "the query is empty"),
        (" \n ", 0, "write `all`"),
        ("stat=RUNNING", 1, "did you mean 'state'?"),
        ("jobsid=x", 1, "did you mean 'jobid'?"),
        ("zzzz=1", 1, "attributes: job, name"),
        ("state=RUNING", 7, "did you mean RUNNING?"),
        ("exit_code=EXECUTION_CANCELLED", 11, "did you mean EXECUTION_CANCELED?"),
        ("state=purple", 7, "one of SUBMITTED, WAITING"),
        ("state RUNNING", 7, "expected one of =, !="),
        ("state=DONE or site=x and node=y", 22, "mixed without parentheses"),
        ("state=DONE and site=x or node=y", 23, "alternatives in parentheses"),
        ("(state=DONE and site=x)", 13, "`and` inside parentheses"),
        ("((state=DONE))", 2, "nested parentheses"),
        ("(state=DONE or (site=x))", 16, "nested parentheses"),
        ("(site=a or site=b) or site=c", 23, "nested alternatives"),
        ("site=c or (site=a or site=b)", 11, "nested alternatives"),
        ("(state=DONE", 12, "the parenthesis is not closed"),
        ("state=DONE)", 11, "unmatched"),
        ("state=DONE site=x", 12, "need `and` or `or` between"),
        ("site=2h ago", 9, "need `and` or `or` between"),
        ("state=DONE and", 15, "missing attribute"),
        ("and", 1, "missing attribute"),
        ("all and site=x", 5, "all must stand alone"),
        ("site==lyon", 5, "did you mean =?"),
        ("site<>lyon", 5, "did you mean !=?"),
        ("site=", 6, "missing value"),
        ("site=and", 6, 'write "and"'),
        ("site in lyon", 9, "a list needs parentheses"),
        ("site in ()", 10, "missing value"),
        ("site in (a b)", 12, "the list is not closed"),
        ("site in (a,", 12, "missing value"),
        ("site not lyon", 10, "missing operator after 'site'"),
        ("site='lyon", 6, "the quote is not closed"),
        ("site='a\\q'", 8, "unknown escape"),
        ("site={x}", 6, "into quotes"),
        ("site=a\0", 7, "unexpected character"),
        ('site="a\0b"', 6, "without NUL"),
        ('site="\\u0000"', 6, "without NUL"),
        ('site="\\ud800"', 6, "lone surrogates"),
        ("site<lyon", 5, "only times and counts"),
        ("state within a..b", 7, "state has no order"),
        ("tag=x", 1, "a tag needs its name"),
        ("tag.''=x", 1, "a tag needs its name"),
        ("job=a/b", 5, "not a job id"),
        ("package=1.0.1", 9, "not a package"),
        ("package=000/001/001", 9, "not a package"),
        ("package!=reco/001/001/001", 10, "names a job too"),
        ("package=reco/001/001/001 or package=1.1.1", 9, "names a job too"),
        ("attempts=-1", 10, "not a count"),
        ("attempts=9223372036854775808", 10, "not a count"),
        ("attempts=٣", 10, "not a count"),
        ("attempts within 3", 10, "expected within START..END"),
        ("attempts within 3..3", 20, "this range is empty"),
        ("held=maybe", 6, "expected yes or no"),
        ("reason=''", 8, "not a reason"),
        ("submitted=2024-05-01", 11, "write submitted within 2024-05-01"),
        ("submitted>2h", 11, "write 2h ago"),
        ("submitted>2024-13-01", 11, "not a time"),
        ("submitted>1969-12-31", 11, "from 1970"),
        ("submitted within 9999-01-01", 18, "from 1970"),
        ("submitted within 2h ago", 11, "expected within START..END"),
        ("submitted within 0s", 18, "not a usable duration"),
        ("submitted within 1h ago..2h ago", 26, "this range is empty"),
        ("submitted within 2024-05-02..2024-05-01", 30, "this range is empty"),
        ("submitted within 999999999999w", 18, "not a usable duration"),
        ("source=robot", 8, "one of client, service"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_column_and_what_to_write(text: str, column: int, words: str) -> None:
    error = refusal(text)
    assert error.column == column
    assert words in str(error)


def test_a_fault_has_a_caret_below_its_column() -> None:
    error = refusal("state=DONE and sitte=lyon")
    assert str(error) == (
        "query, column 16: no such attribute: 'sitte'\n"
        "  state=DONE and sitte=lyon\n"
        "                 ^\n"
        "  did you mean 'site'?"
    )  # fmt: skip


def test_the_caret_of_a_long_query_stands_below_its_place() -> None:
    error = refusal("site=" + "a" * 300 + "\n! " + "b" * 300)
    line, caret = error.caret.splitlines()
    assert line[caret.index("^")] == "!"
    assert len(line) < 120


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "(" * 1_000_000,
        "site=" + "é" * 9000,
        "\ud800" * 6000,
        '"' * 20_000,
        " and ".join(["site=a"] * 65),
        "site=a or " * 64 + "site=a",
        f"site in ({','.join('a' * 1001)})",
        # As JSON or canonical text this would be six times as long.
        'owner="' + "\x01" * 3000 + '"',
    ],
    ids=["long", "deep", "wide", "surrogates", "quotes", "conditions", "alternatives", "values", "escapes"],
)
def test_what_is_too_large_is_refused_as_a_query_error(text: str) -> None:
    error = refusal(text)
    assert isinstance(error, PilotageError)
    assert len(str(error)) < 1000


def test_the_limits_themselves_are_allowed() -> None:
    assert len(parse(" and ".join(["site=a"] * 64)).clauses) == 64
    assert len(only(f"site in ({','.join('a' * 1000)})").values) == 1000
    assert len(only("site=" + "a" * (16 * 1024 - 5)).values) == 1


def test_a_path_counts_as_the_two_conditions_it_stands_for() -> None:
    error = refusal(" and ".join(["package=reco/001/001/001"] * 33))
    assert "too many conditions" in str(error)


def test_an_attribute_must_belong_to_the_target() -> None:
    assert "jobs have no 'site', which is an attribute of packages and events" in str(refusal("site=a", Target.JOBS))
    assert parse("site=a", target=Target.PACKAGES) == parse("site=a")
    with pytest.raises(QueryError, match=r"events have no 'tag\.x'"):
        check_target(parse("tag.x=1"), Target.EVENTS)
    check_target(parse("tag.x=1"), Target.JOBS)


def test_a_near_name_is_sought_among_those_of_the_target() -> None:
    assert "'dropped'" not in str(refusal("droped=yes", Target.JOBS))
    assert "'dropped'" in str(refusal("droped=yes", Target.PACKAGES))


def test_the_form_for_programs_says_the_same() -> None:
    query = parse("(tag.study=A12 or attempts>2) and submitted within 2h and held=yes")
    value = {
        "all": [
            {
                "any": [
                    {"attribute": "tag.study", "operator": "=", "values": ["A12"]},
                    {"attribute": "attempts", "operator": ">", "values": [2]},
                ]
            },
            {"any": [{"attribute": "submitted", "operator": "within", "values": ["2h ago", "now"]}]},
            {"any": [{"attribute": "held", "operator": "=", "values": [True]}]},
        ]
    }
    assert to_json(query) == value
    assert from_json(value) == query
    assert from_json({"all": []}) == EVERYTHING


def test_programs_may_give_short_ranges_numbers_and_paths() -> None:
    assert from_json(in_json("submitted", "within", "2h")) == parse("submitted within 2h")
    assert from_json(in_json("submitted", "<", MAY_DAY)) == parse("submitted<2024-05-01")
    assert from_json(in_json("attempts", "=", "3")) == parse("attempts=3")
    assert from_json(in_json("package", "=", "reco/001/002/001")) == parse("name=reco and package=1.2.1")
    assert from_json(in_json("tag.odd name", "=", "x")) == parse("tag.'odd name'=x")


@pytest.mark.parametrize(
    "value, words",
    [
        (None, "the whole: not an object"),
        ([], "not an object"),
        ({}, "all is missing"),
        ({"al": []}, "did you mean 'all'?"),
        ({"all": {}}, "all: not a list"),
        ({"all": [{"any": []}]}, "all[0].any: no alternative"),
        ({"all": [{"any": [{}]}]}, "attribute is missing"),
        ({"all": [{"any": [{"attribute": "site", "operator": "=", "value": ["a"]}]}]}, "did you mean 'values'?"),
        ({"all": [{1: 2}]}, "all[0]: unknown key"),
        (in_json("sit", "=", "a"), "all[0].any[0].attribute: no such attribute"),
        (in_json(3, "=", "a"), "not an attribute"),
        (in_json("site", "~", "a"), "all[0].any[0].operator: unknown operator"),
        (in_json("site", []), "unknown operator"),
        (in_json("site", "="), "the wrong number of values; expected one, got 0"),
        (in_json("site", "=", "a", "b"), "got 2"),
        (in_json("site", "in"), "an empty list"),
        (in_json("site", "=", 3), "all[0].any[0].values[0]: not a value for this attribute; expected text, got 3"),
        (in_json("site", "in", "a", ["b"]), "values[1]"),
        (in_json("attempts", "=", True), "not a count"),
        (in_json("attempts", "=", 3.0), "not a count"),
        (in_json("submitted", "<", float("nan")), "from 1970"),
        (in_json("submitted", "<", 10**400), "from 1970"),
        (in_json("submitted", "<", None), "not a time"),
        (in_json("attempts", "within", 1, 2, 3), "got 3 values"),
        (in_json("site", "in", *["a"] * 1001), "too many values"),
        (in_json("site", "=", "a" * 17_000), "too long"),
        ({"all": [{"any": [None]}] * 65}, "too many conditions"),
        (in_json("tag." + "n" * 257, "=", "a"), "at most 256"),
    ],
)
def test_a_fault_of_a_program_is_told_with_its_path(value: object, words: str) -> None:
    assert words in refused_json(value)


@pytest.mark.parametrize("operator", sorted(set(Operator) - set(BOOK_OPERATORS)))
def test_what_only_indexes_of_records_compare_is_no_query_of_the_book(operator: Operator) -> None:
    with pytest.raises(QueryError):
        parse(f"site {operator} lyon")
    with pytest.raises(QueryError, match="unknown operator"):
        from_json({"all": [{"any": [{"attribute": "site", "operator": str(operator), "values": ["lyon"]}]}]})
