"""What a query means: which rows match, which index serves, where a page goes on, and the table of attributes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pilotage.book.query import (
    ATTRIBUTES,
    EVERYTHING,
    EXIT_CODES,
    STATES,
    Cursor,
    CursorError,
    QueryError,
    QueryTooBroad,
    Target,
    decode_cursor,
    default_indexed,
    encode_cursor,
    indexed_names,
    matches,
    parse,
    resolve,
    served_by,
)

MAY_DAY = datetime(2024, 5, 1, tzinfo=UTC).timestamp()

ROW: dict[str, object] = {
    "state": "RUNNING", "site": "lyon", "attempts": 2, "submitted": MAY_DAY, "held": False,
    "tags": {"study": "A12"}, "package": "1.2.1",
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "state=running and site=lyon and tag.study=A12",
        "site=bari or state=RUNNING",
        "site in (bari, lyon)",
        "site!=bari",
        "attempts<=2",
        "attempts>=2",
        "attempts within 2..3",
        "submitted within 2024-05-01",
        "held=no",
        "package=001/002/001",
        "node!=n1",
        "node not in (n1)",
        "tag.other!=A12",
        "all",
    ],
)
def test_a_row_matches(text: str) -> None:
    assert matches(resolve(parse(text), now=MAY_DAY), ROW)


@pytest.mark.parametrize(
    "text",
    [
        "state=running and site=bari",
        "(site=bari or site=rome) and state=RUNNING",
        "site=Lyon",
        "site not in (bari, lyon)",
        "attempts<2",
        "attempts>2",
        "attempts within 1..2",
        "submitted within 2024-04-30",
        "node=n1",
        "node in (n1)",
        "updated<now",
        "updated within 1h",
        "tag.other=A12",
    ],
)
def test_a_row_does_not_match(text: str) -> None:
    assert not matches(resolve(parse(text), now=MAY_DAY), ROW)


def test_a_row_with_none_has_the_value_missing_and_one_without_tags_has_none() -> None:
    assert not matches(parse("site=lyon"), {"site": None})
    assert matches(parse("site!=lyon"), {"site": None})
    assert matches(parse("tag.a!=1"), {})
    assert not matches(parse("attempts<5"), {"attempts": "2"})


def test_relative_times_move_with_the_clock_they_are_given() -> None:
    query = parse("submitted within 2h")
    assert resolve(query, now=MAY_DAY) == parse("submitted within 2024-04-30T22:00..2024-05-01T00:00")
    for age, expected in ((7200.5, False), (7200.0, True), (0.5, True), (0.0, False)):
        assert matches(resolve(query, now=MAY_DAY), {"submitted": MAY_DAY - age}) is expected
    assert resolve(parse("submitted<2h ago"), now=60.0) == parse("submitted<0")
    absolute = parse("site=a")
    assert resolve(absolute, now=1.0) is absolute


def test_an_unresolved_query_cannot_be_matched() -> None:
    with pytest.raises(QueryError, match="resolve"):
        matches(parse("submitted<now"), ROW)


@pytest.mark.parametrize(
    "text, target, attributes",
    [
        ("all", Target.JOBS, ()),
        ("state=RUNNING", Target.JOBS, ("state",)),
        ("node=n1 and state=RUNNING", Target.PACKAGES, ("state",)),
        ("state=RUNNING and site=lyon and tag.study=A12", Target.PACKAGES, ("tag.study",)),
        ("job=j1 and node=n1", Target.PACKAGES, ("job",)),
        ("state=DONE and job=j1", Target.PACKAGES, ("job",)),
        ("name=reco and package=1.2.1", Target.PACKAGES, ("name",)),
        ("(site=a or state=DONE)", Target.PACKAGES, ("site", "state")),
        ("(site=a or site in (b, c))", Target.PACKAGES, ("site",)),
        ("submitted within 1h", Target.JOBS, ("submitted",)),
        ("submitted within 1h and owner=a", Target.JOBS, ("owner",)),
        ("job=j1 and type=Tagged", Target.EVENTS, ("job",)),
        ("position>5", Target.EVENTS, ("position",)),
    ],
)
def test_an_index_serves(text: str, target: Target, attributes: tuple[str, ...]) -> None:
    assert served_by(parse(text), target).attributes == attributes


@pytest.mark.parametrize(
    "text, target, words",
    [
        ("all", Target.PACKAGES, "got no condition"),
        ("all", Target.EVENTS, "one of job, position, got no condition"),
        ("node=n1", Target.PACKAGES, "node, which is not indexed"),
        ("site!=a", Target.PACKAGES, "site !=, which no index serves"),
        ("job not in (a)", Target.PACKAGES, "job not in, which no index serves"),
        (
            "(site=a or node=n1)",
            Target.PACKAGES,
            "one of job, name, parent, tag.NAME, owner, site, state, submitted, got node",
        ),
        ("held=yes", Target.JOBS, "narrow it down"),
        ("type=SiteProbed", Target.EVENTS, "`job=ID and …`, or `position>N and …`"),
    ],
)
def test_a_query_that_no_index_serves_is_refused_and_says_what_would_help(
    text: str, target: Target, words: str
) -> None:
    with pytest.raises(QueryTooBroad) as caught:
        served_by(parse(text), target)
    assert words in str(caught.value)


def test_the_indexed_attributes_are_a_setting() -> None:
    indexed = indexed_names(["Node", "exit-code", "tag.study"])
    assert indexed == {"node", "exit_code", "tag.study"}
    assert served_by(parse("node=n1"), Target.PACKAGES, indexed).attributes == ("node",)
    assert served_by(parse("tag.study=1"), Target.PACKAGES, indexed).serving == (0,)
    assert served_by(parse("job=j"), Target.PACKAGES, frozenset()).clause == 0
    for text in ("state=DONE", "tag.other=1"):
        with pytest.raises(QueryTooBroad, match=r"one of job, tag\.study, node, exit_code"):
            served_by(parse(text), Target.PACKAGES, indexed)
    with pytest.raises(QueryError, match="did you mean 'node'"):
        indexed_names(["nod"])


def test_only_what_the_target_has_is_named_as_what_would_help() -> None:
    with pytest.raises(QueryTooBroad, match=r"one of job, tag\.study, got held"):
        served_by(parse("held=yes"), Target.JOBS, indexed_names(["node", "exit_code", "tag.study"]))


def test_values_are_looked_up_before_ranges() -> None:
    plan = served_by(parse("position>5 and type=Tagged"), Target.EVENTS, frozenset({"type"}))
    assert plan.attributes == ("type",)
    assert plan.serving == (0, 1)


def test_a_target_without_the_attribute_is_no_matter_of_indexes() -> None:
    with pytest.raises(QueryError, match="jobs have no 'node'"):
        served_by(parse("node=n1"), Target.JOBS, frozenset({"node"}))


def test_a_cursor_brings_back_where_the_page_ended() -> None:
    cursor = Cursor(key=("job-1", 17, 2.5), now=MAY_DAY)
    text = encode_cursor(parse("site=a"), Target.PACKAGES, cursor)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert decode_cursor(text, parse("(SITE = a)"), Target.PACKAGES) == cursor


@pytest.mark.parametrize(
    "query, target, words",
    [
        ("site=b", Target.PACKAGES, "another query"),
        ("site=a", Target.EVENTS, "over packages, not events"),
    ],
)
def test_a_cursor_of_another_query_is_refused(query: str, target: Target, words: str) -> None:
    text = encode_cursor(parse("site=a"), Target.PACKAGES, Cursor(key=("x",), now=0.0))
    with pytest.raises(CursorError, match=words):
        decode_cursor(text, parse(query), target)


@pytest.mark.parametrize("key", [(2**70,), ("\ud800",), ("x" * 3000,), (float("nan"),)])
def test_a_key_that_no_cursor_can_hold_is_refused(key: tuple[str | int | float, ...]) -> None:
    with pytest.raises(CursorError, match="this key does not fit into a cursor"):
        encode_cursor(EVERYTHING, Target.JOBS, Cursor(key=key, now=0.0))


def test_the_table_has_one_meaning_for_each_name() -> None:
    names = [name for each in ATTRIBUTES.values() for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))
    for each in ATTRIBUTES.values():
        assert set(each.indexed) <= set(each.targets), each.name
        assert each.description.endswith("."), each.name
    assert all("job" in default_indexed(target) for target in Target)
    assert len(STATES) == 9
    assert len(EXIT_CODES) == 10


def test_the_reference_page_has_every_attribute_with_its_kind_and_targets(root: Path) -> None:
    page = (root / "docs/reference/query.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z_.A-Z]+)` \| (.*) \|$", page, re.MULTILINE))
    assert set(rows) == {"tag.NAME" if name == "tag" else name for name in ATTRIBUTES}
    for each in ATTRIBUTES.values():
        aliases = ", ".join(f"`{alias}`" for alias in each.aliases)
        targets = ", ".join(f"**{target}**" if target in each.indexed else str(target) for target in each.targets)
        row = rows["tag.NAME" if each.name == "tag" else each.name]
        assert row == f"{aliases} | {each.kind} | {targets} | {each.description}"


def test_the_journals_index_by_default_what_the_language_promises() -> None:
    from pilotage.adapters.journals.queries import DEFAULT_INDEXED
    from pilotage.book.query import Target, default_indexed

    promised = default_indexed(Target.JOBS) | default_indexed(Target.PACKAGES)
    assert promised - {"job"} == DEFAULT_INDEXED


def test_the_reference_page_says_which_indexes_are_possible(root: Path) -> None:
    from pilotage.adapters.journals.queries import INDEXABLE

    page = (root / "docs/reference/query.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (jobs|packages) \| (.*) \|$", page, re.MULTILINE))
    for target, names in INDEXABLE.items():
        assert re.findall(r"`(\w+)`", rows.get(str(target), "")) == [name for name in ATTRIBUTES if name in names]
