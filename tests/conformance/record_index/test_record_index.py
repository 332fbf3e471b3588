"""What every index of records keeps to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pilotage.adapters.record_index import statements
from pilotage.adapters.record_index.postgres import PostgresRecordIndex
from pilotage.adapters.record_index.sqlite import SqliteRecordIndex
from pilotage.book.query import CursorError
from pilotage.model.events.payloads import AccessRule
from pilotage.ports.record_index import (
    IndexedAttributes,
    OtherAttributes,
    RecordEntry,
    RecordIndex,
    RecordIndexError,
    Value,
)
from pilotage.provenance.index.attributes import DEFAULT
from pilotage.provenance.index.query import matches, parse
from pilotage.provenance.index.search import readable_by
from pilotage.reading.access import ANY_OWNER, READ, Principal

Reopen = Callable[..., RecordIndex]


def entry(job: str, position: int, *, revision: int = 1, owner: str = "ada", **values: Sequence[Value]) -> RecordEntry:
    """An entry; a double underscore in a name stands for a dot."""
    named = {name.replace("__", "."): tuple(each) for name, each in values.items()}
    submitted = float(named["submitted"][0]) if "submitted" in named else None
    return RecordEntry(
        job=job, position=position, revision=revision, owner=owner, name=job, state="DONE", submitted_at=submitted,
        values={"job": (job,), **named},
    )  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    opened: list[RecordIndex] = []
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""

    def again(*, attributes: IndexedAttributes = DEFAULT, rebuild: bool = False) -> RecordIndex:
        for each in opened:
            each.close()
        made: RecordIndex
        if url:
            made = PostgresRecordIndex(url, attributes=attributes, rebuild=rebuild)
        else:
            made = SqliteRecordIndex(tmp_path / "index.sqlite", attributes=attributes, rebuild=rebuild)
        opened[:] = [made]
        return made

    yield again
    for each in opened:
        each.close()


@pytest.fixture
def index(reopen: Reopen) -> RecordIndex:
    return reopen()


def found(index: RecordIndex, query: str, principal: Principal | None = None, *, limit: int = 1000) -> list[str]:
    """The jobs that a query finds, in order of their ids."""
    asked = parse(query, attributes=index.attributes, now=0.0)
    readable = None if principal is None else readable_by(principal)
    return sorted(each.job for each in index.find(asked, readable=readable, limit=limit).records)


def test_a_record_is_found_by_each_value_of_an_attribute_by_this_process_and_the_next(reopen: Reopen) -> None:
    index = reopen()
    index.take("one", [entry("j1", 1, site=["lyon", "bari"], tag__group=["B"]), entry("j2", 2, site=["lyon"])])
    for _ in range(2):
        assert found(index, "site=bari") == ["j1"]
        assert found(index, "site=lyon") == ["j1", "j2"]
        assert found(index, "tag.group=B and site=lyon") == ["j1"]
        assert found(index, "site=lyon and tag.group not exists") == ["j2"]
        assert found(index, "site=lyon and tag.group!=C") == ["j1", "j2"]
        assert found(index, "job=j2") == ["j2"]
        assert found(index, "tag.unheard=1") == []
        index = reopen()


def test_numbers_times_and_texts_are_compared_as_what_they_are(index: RecordIndex) -> None:
    index.take(
        "one",
        [
            entry("j1", 1, node__cores=[4.0], submitted=[1767225600.0], tag__dose=["2.5"], tag__visit=["2026-01-15"]),
            entry("j2", 2, node__cores=[64.0], submitted=[1772323200.0], tag__dose=["10"], tag__visit=["2026-03-01"]),
            entry("j3", 3, node__cores=[8.0, 32.0], tag__dose=["unknown"]),
        ],
    )
    assert found(index, "node.cores>4") == ["j2", "j3"]
    assert found(index, "node.cores=4") == ["j1"]
    assert found(index, "node.cores within 8..64") == ["j3"]
    assert found(index, "submitted within 2026-01") == ["j1"]  # from its first second on
    assert found(index, "submitted within 2026-01..2026-03") == ["j1", "j2"]
    assert found(index, "submitted>2026-01-01") == ["j2"]
    assert found(index, "tag.dose<10") == ["j1"]
    assert found(index, "tag.dose>=2.5") == ["j1", "j2"]
    assert found(index, "tag.dose=10") == ["j2"]
    assert found(index, "tag.visit within 2026-01") == ["j1"]


def test_long_and_strange_texts_are_found_whole_and_in_part(index: RecordIndex) -> None:
    long = "/data/" + "é" * 3000 + ".root"
    strange = "100% \\ _'\"; DROP?"
    index.take("one", [entry("j1", 1, produced=[long]), entry("j2", 2, produced=[strange]), entry("j3", 3)])
    assert found(index, f'produced="{long}"') == ["j1"]
    assert found(index, 'produced exists and produced~".root"') == ["j1"]
    assert found(index, 'produced="100% \\\\ _\'\\"; DROP?"') == ["j2"]
    assert found(index, 'produced exists and produced~"%"') == ["j2"]
    assert found(index, "produced exists and produced~ROOT") == []


def test_of_a_job_the_entry_with_the_highest_position_counts(index: RecordIndex) -> None:
    newest = entry("j1", 9, revision=2, site=["bari"])
    index.take("one", [newest])
    index.take("one", [entry("j1", 3, site=["lyon"]), newest])
    assert found(index, "site=lyon") == []
    assert list(index.contents()) == [("one", newest)]
    index.take("one", [RecordEntry(job="j1", position=12, removed=True)])
    index.take("one", [newest])
    assert found(index, "job=j1") == []
    assert list(index.contents()) == []
    index.take("one", [entry("j1", 13, site=["kyoto"])])
    assert found(index, "site=kyoto") == ["j1"]


def test_of_the_same_job_in_several_storages_the_newest_revision_is_found(index: RecordIndex) -> None:
    index.take("one", [entry("j1", 5, revision=1, site=["lyon"])], position=5)
    index.take("two", [entry("j1", 2, revision=2, site=["bari"])], position=2)
    assert found(index, "site=lyon") == []
    [one] = index.find(parse("site=bari", now=None), readable=None, limit=10).records
    assert (one.storage, one.revision) == ("two", 2)
    index.take("one", [entry("j1", 6, revision=2, site=["bari"])], position=6)
    assert found(index, "site=bari") == ["j1", "j1"]  # it lies in both
    assert index.storages() == {"one": 6, "two": 2}
    index.forget("two")
    assert index.storages() == {"one": 6}
    assert found(index, "site=bari") == ["j1"]


def test_the_position_of_a_storage_only_grows(reopen: Reopen) -> None:
    index = reopen()
    assert index.position("one") == 0
    index.take("one", [], position=7)
    index.take("one", [entry("j1", 3)], position=3)
    assert reopen().position("one") == 7


def test_only_what_the_asker_may_read_is_found(index: RecordIndex) -> None:
    shared = RecordEntry(
        job="j3", position=3, revision=1, owner="emmy", access=(AccessRule(principal="ada", rights=("modify",)),),
        values={"site": ("lyon",)},
    )  # fmt: skip
    grouped = RecordEntry(
        job="j4", position=4, revision=1, owner="emmy", access=(AccessRule(principal="group:physics", rights=("read",)),),
        values={"site": ("lyon",)},
    )  # fmt: skip
    others = [entry("j1", 1, owner="ada", site=["lyon"]), entry("j2", 2, owner="emmy", site=["lyon"])]
    index.take("one", [*others, shared, grouped])
    ada = Principal(user="ada", scopes=frozenset({READ}))
    assert found(index, "site=lyon", ada) == ["j1", "j3"]
    assert found(index, "site=lyon", Principal(user="lise", groups=frozenset({"physics"}))) == ["j4"]
    assert found(index, "site=lyon", Principal(user="lise")) == []
    assert found(index, "site=lyon", Principal(user="root", scopes=frozenset({ANY_OWNER}))) == ["j1", "j2", "j3", "j4"]
    assert found(index, "site=lyon", Principal(user="ada", scopes=frozenset({ANY_OWNER}), site="lyon")) == []


@pytest.mark.parametrize("few", [0, 4096])
@pytest.mark.parametrize(
    "query", ["site=lyon", "node.cores>1", "site=lyon and submitted within 2026-01", "site exists"]
)
def test_pages_have_every_record_once_the_latest_first(
    index: RecordIndex, monkeypatch: pytest.MonkeyPatch, query: str, few: int
) -> None:
    monkeypatch.setattr(statements, "FEW", few)
    every = [
        entry(
            f"j{n:03}", 500 - n, owner="ada" if n % 3 else "emmy", site=["lyon"], submitted=[1767225600.0 + n // 2],
            node__cores=[2.0, 2.0 + n // 2], tag__n=["5", "5.0"],
        )
        for n in range(1, 121)
    ]  # fmt: skip
    index.take("one", every)
    readable = readable_by(Principal(user="ada"))
    asked, seen, after = parse(query, now=None), list[str](), None
    while True:
        page = index.find(asked, readable=readable, limit=30, after=after)
        seen += [each.job for each in page.records]
        after = page.next
        if after is None:
            break
        assert len(page.records) == 30
    assert sorted(seen) == [f"j{n:03}" for n in range(1, 121) if n % 3]
    times = [int(job[1:]) // 2 for job in seen]
    assert times == sorted(times, reverse=True)


def test_a_record_with_two_texts_of_one_number_is_found_once(
    index: RecordIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "FEW", 0)
    index.take("one", [entry("j1", 1, tag__n=["5", "5.0", "4"]), entry("j2", 2, tag__n=["3"])])
    assert found(index, "tag.n>2") == ["j1", "j2"]


@pytest.mark.parametrize("cursor", ["", "x", "0/1.0/5", "9/1.0/5", "1..2/5", "--1/5", "1.0/99999999999999999999"])
def test_what_is_no_cursor_is_refused(index: RecordIndex, cursor: str) -> None:
    with pytest.raises(CursorError, match="cursor"):
        index.find(parse("site=lyon", now=None), readable=None, limit=5, after=cursor)


def test_attributes_that_the_index_does_not_keep_are_left_out(reopen: Reopen) -> None:
    index = reopen(attributes=IndexedAttributes(queryable=("job", "site", "tag.group"), indexed=("site",)))
    index.take("one", [entry("j1", 1, site=["lyon"], tag__group=["B"], tag__other=["1"], node__cores=[4.0])])
    [(_, kept)] = index.contents()
    assert kept.values == {"job": ("j1",), "site": ("lyon",), "tag.group": ("B",)}
    assert found(index, "site=lyon and tag.group=B") == ["j1"]


def test_an_index_for_other_attributes_is_refused_unless_it_is_made_anew(reopen: Reopen) -> None:
    index = reopen()
    index.take("one", [entry("j1", 1, site=["lyon"])], position=1)
    fewer = IndexedAttributes(queryable=("job", "site"), indexed=("site",))
    with pytest.raises(OtherAttributes, match="--rebuild"):
        reopen(attributes=fewer)
    index = reopen(attributes=fewer, rebuild=True)
    assert list(index.contents()) == []
    assert index.position("one") == 0
    index.take("one", [entry("j1", 1, site=["lyon"])], position=1)
    assert found(reopen(attributes=fewer), "site=lyon") == ["j1"]


def test_nothing_is_taken_of_a_batch_that_fails(index: RecordIndex) -> None:
    class Faulty(list[RecordEntry]):
        def __iter__(self) -> Iterator[RecordEntry]:
            yield entry("j1", 1, tag__new=["1"])
            raise RecordIndexError("no more")

    with pytest.raises(RecordIndexError, match="no more"):
        index.take("one", Faulty(), position=5)
    assert list(index.contents()) == []
    assert index.position("one") == 0
    index.take("one", [entry("j1", 1, tag__new=["1"])], position=5)
    assert found(index, "tag.new=1") == ["j1"]


VALUES: dict[str, list[Value]] = {
    "site": ["lyon", "bari", "a'b", "x" * 300],
    "tag.group": ["A", "B", "10", "9", "-1e3", "2026-01-05", "2026-02"],
    "node.cores": [0.0, -0.0, 4.0, 64.0, 1e300],
    "ended": [0.0, 1767225600.0, 1767225600.5, 1772323200.0],
}
CONDITIONS = [
    "site=lyon", "site!=lyon", "site in (lyon, bari)", "site not in (lyon)", "site exists", "site not exists", "site~y",
    'site="a\'b"', "site~xx", "tag.group=B", "tag.group<10", "tag.group<=9", "tag.group>-2000", "tag.group within 2026-01",
    "tag.group within 2026-01..2026-02", "tag.group~1", "tag.group not exists", "node.cores=0", "node.cores>=4",
    "node.cores<5e299", "node.cores!=4", "submitted within 2026-01..2026-02", "submitted>2026-01-01T00:00:00", "submitted exists",
    "submitted<=2026-01", "ended within 2026-01", "ended<2026-03", "ended>=2026-01", "tag.nothing!=1", "tag.nothing exists",
]  # fmt: skip


def random_entry(chance: random.Random, position: int) -> RecordEntry:
    job = f"j{chance.randrange(12)}"
    if chance.random() < 0.15:
        return RecordEntry(job=job, position=position, removed=True)
    values: dict[str, tuple[Value, ...]] = {
        name: tuple(chance.sample(known, chance.randrange(1, 3))) for name, known in VALUES.items() if chance.random() < 0.7
    }  # fmt: skip
    values["job"] = (job,)
    submitted_at = chance.choice([None, 5.0, 1767225600.0, 1767225600.5, 1772323200.0])
    if submitted_at is not None:
        values["submitted"] = (submitted_at,)
    return RecordEntry(
        job=job, position=position, revision=position, owner="ada", submitted_at=submitted_at, values=values
    )


def all_pages(index: RecordIndex, text: str, *, limit: int) -> list[str]:
    """What a query finds, page by page."""
    query, seen, after = parse(text, attributes=index.attributes, now=0.0), list[str](), None
    while True:
        page = index.find(query, readable=None, limit=limit, after=after)
        seen += [each.job for each in page.records]
        if page.next is None:
            return sorted(seen)
        after = page.next


def random_query(chance: random.Random) -> str:
    clauses = []
    for _ in range(chance.randrange(1, 4)):
        some = chance.sample(CONDITIONS, chance.choice([1, 1, 2]))
        clauses.append(f"({' or '.join(some)})" if len(some) > 1 else some[0])
    return " and ".join(clauses)


@pytest.mark.parametrize("seed", range(4))
def test_fed_in_any_order_and_repeatedly_an_index_has_the_same_content_and_finds_what_the_query_means(
    reopen: Reopen, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(statements, "FEW", 0)  # as if every clause had many records
    chance = random.Random(seed)
    entries = [random_entry(chance, position) for position in range(1, 41)]
    storages = {each.position: chance.choice(["one", "two"]) for each in entries}
    index = reopen()
    for each in entries:
        index.take(storages[each.position], [each], position=each.position)
    contents = list(index.contents())
    index = reopen(rebuild=True)
    shuffled = [*entries, *chance.sample(entries, 15)]
    chance.shuffle(shuffled)
    while shuffled:
        some = [shuffled.pop() for _ in range(min(len(shuffled), chance.randrange(1, 6)))]
        for storage in ("one", "two"):
            index.take(storage, [each for each in some if storages[each.position] == storage])
    assert list(index.contents()) == contents
    newest = {each.job: max(one.revision for _, one in contents if one.job == each.job) for _, each in contents}
    answers = 0
    for _ in range(40):
        text = random_query(chance)
        query = parse(text, now=0.0)
        expected = [
            each.job for _, each in contents if each.revision == newest[each.job] and matches(query, each.values)
        ]
        assert found(index, text) == sorted(expected), text
        assert all_pages(index, text, limit=2) == sorted(expected), text
        answers += len(expected)
    assert answers > 40
