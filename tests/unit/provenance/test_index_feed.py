"""A storage feeds indexes with the attributes that they want of the records that they want, from the beginning and incrementally."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.record_index.sqlite import SqliteRecordIndex
from pilotage.adapters.records.folder import FolderRecords
from pilotage.book.query import QueryError
from pilotage.model.events.payloads import AccessRule
from pilotage.model.records import RECORD_VERSION, Annotation, JobRecord, RecordNode, RecordPart
from pilotage.ports.record_index import RecordEntry, RecordIndex, UnknownAttribute
from pilotage.ports.records import DamagedPart
from pilotage.provenance.index import feed as feeds
from pilotage.provenance.index.attributes import (
    DEFAULT,
    FileFact,
    LifeLogFacts,
    attributes_of,
    chosen_attributes,
)
from pilotage.provenance.index.feed import (
    CheckedFeed,
    FeedBatch,
    FeedRegistration,
    StoreSource,
    bring_up_to_date,
    check_feed,
    facts_of,
    feed_batch,
)
from pilotage.provenance.index.query import parse
from pilotage.reading.access import ANY_OWNER, READ, Principal
from tests.kit.real_records import SPLIT, recorded_survey

CUSTOM = hashlib.sha256(b"{}").hexdigest()


def record_of(job: str, *, revision: int = 1, owner: str = "ada", state: str = "DONE", **more: object) -> JobRecord:
    made = JobRecord(
        version=RECORD_VERSION, job=job, revision=revision, owner=owner, name=job, state=state, made_at=300.0,
        submitted_at=100.0, ended_at=200.0,
    )  # fmt: skip
    return msgspec.structs.replace(made, **more)


def note(job: str, name: str, text: str, at: float = 400.0) -> Annotation:
    return Annotation(job=job, name=name, at=at, author="ada", text=text)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderRecords]:
    made = FolderRecords(tmp_path / "records")
    yield made
    made.close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RecordIndex]:
    made = SqliteRecordIndex(tmp_path / "index.sqlite", attributes=DEFAULT)
    yield made
    made.close()


def wanted(query: str = "", attributes: Sequence[str] = ()) -> CheckedFeed:
    return check_feed(FeedRegistration(name="one", query=query, attributes=tuple(attributes)))


def found(index: RecordIndex, query: str) -> list[str]:
    return sorted(each.job for each in index.find(parse(query, now=None), readable=None, limit=100).records)


# --- attributes ---


def test_a_record_has_the_attributes_of_its_job_its_tags_its_files_and_its_nodes() -> None:
    node = RecordNode(
        node="n1", site="lyon", system="Linux", cores=4, cpu_model="Xeon", software={"root": "6.30"}, environment={"LANG": "C"}
    )  # fmt: skip
    parts = (
        RecordPart(kind="definition", name="definition", sha256="d" * 64, size_bytes=1),
        RecordPart(kind="file", name="run.sh", sha256="e" * 64, size_bytes=1),
        RecordPart(kind="custom", name="figures.json", sha256=CUSTOM, size_bytes=2),
    )
    record = record_of("j1", tags={"group": "A", "kept": "1"}, sites=("bari", "lyon"), nodes=(node,), parts=parts)
    facts = LifeLogFacts(
        activities=("counting", ""), software=("gate@9", "gate"), packages=2, attempts=3, exit_codes=("SUCCESS", ""),
        consumed=(FileFact(name="in.dat"), FileFact(name="run.sh", sha256="e" * 64)),
        produced=(FileFact(name="out.dat", sha256="f" * 64),), script_values=(("fit.chi2", "1.5"), ("fit.chi2", "2")),
    )  # fmt: skip
    notes = [note("j1", "group", "C", at=2.0), note("j1", "group", "B", at=1.0)]
    upload = Annotation(job="j1", name="scan", at=5.0, author="ada", part=parts[2])
    assert attributes_of(record, [*notes, upload], facts) == {
        "activity": ("counting",),
        "attempts": (3.0,),
        "consumed": ("in.dat", "run.sh"),
        "consumed.sha256": ("e" * 64,),
        "custom": ("figures.json", "scan"),
        "custom.fit.chi2": ("1.5", "2"),
        "definition": ("d" * 64,),
        "ended": (200.0,),
        "exit_code": ("SUCCESS",),
        "job": ("j1",),
        "name": ("j1",),
        "node": ("n1",),
        "node.cores": (4.0,),
        "node.cpu_model": ("Xeon",),
        "node.software.root": ("6.30",),
        "node.system": ("Linux",),
        "node.variable.LANG": ("C",),
        "owner": ("ada",),
        "packages": (2.0,),
        "produced": ("out.dat",),
        "produced.sha256": ("f" * 64,),
        "recorded": (300.0,),
        "revision": (1.0,),
        "site": ("bari", "lyon"),
        "software": ("gate", "gate@9"),
        "state": ("DONE",),
        "submitted": (100.0,),
        "tag.group": ("C",),
        "tag.kept": ("1",),
    }


def test_of_a_tag_and_an_annotation_of_one_name_the_later_one_counts(store: FolderRecords) -> None:
    lines = [
        '{"format":1,"job":"j1"}',
        '{"event":{"type":"Tagged","time":1,"job":"j1","data":{"name":"group","value":"B"}},"received":450.0}',
        '{"event":{"type":"Tagged","time":1,"job":"j1","package":"1.1.1","data":{"name":"group","value":"B"}},"received":900.0}',
        '{"event":{"type":"Tagged","time":1,"job":"j1","data":{"name":"group","value":"A"}},"received":800.0}',
    ]
    log = "\n".join(lines).encode()
    [sha256] = store.add_parts([("life-log", log)])
    part = RecordPart(kind="life-log", name="events-1.jsonl", sha256=sha256, size_bytes=len(log))
    store.commit([record_of("j1", tags={"group": "B", "given": "1"}, parts=(part,))])
    for text, at, expected in (("earlier", 400.0, "B"), ("later", 500.0, "later")):
        store.annotate(note("j1", "group", text, at))
        [entry] = feed_batch(store, wanted(attributes=["tag"]), principal=None, after=0).entries
        assert entry.values["tag.group"] == (expected,)
    store.annotate(note("j1", "given", "2"))  # the first came with the submission
    [entry] = feed_batch(store, wanted(attributes=["tag"]), principal=None, after=0).entries
    assert entry.values["tag.given"] == ("2",)


def test_texts_that_no_database_stores_are_mended() -> None:
    record = record_of("j1", name="a\0b", tags={"x": "\ud800"})
    values = attributes_of(record, [], LifeLogFacts())
    assert (values["name"], values["tag.x"]) == (("ab",), ("?",))


def test_of_a_real_job_the_files_attempts_and_activities_are_known(tmp_path: Path) -> None:
    with recorded_survey(tmp_path) as (real, record):
        facts = facts_of(record, real.content)
        entry = feed_batch(real, wanted(), principal=None, after=0).entries[0]
    split = hashlib.sha256(SPLIT.encode()).hexdigest()
    assert FileFact(name="split.sh", sha256=split) in facts.consumed
    assert {"part-1.txt", "part-1.count"} <= {each.name for each in facts.produced}
    assert facts.packages == 5
    assert facts.attempts >= 5
    assert "counting" in facts.activities
    assert "SUCCESS" in facts.exit_codes
    assert entry.values["tag.group"] == ("B",)
    assert split in entry.values["consumed.sha256"]


def test_a_record_whose_life_log_cannot_be_read_is_found_by_what_it_says_itself(store: FolderRecords) -> None:
    store.commit([record_of("j1")])
    [entry] = feed_batch(store, wanted(), principal=None, after=0).entries
    assert entry.values["job"] == ("j1",)
    assert entry.values["packages"] == (0.0,)


# --- feeds ---


def test_only_attributes_and_records_that_an_index_wants_go_over_the_wire(store: FolderRecords) -> None:
    store.commit([record_of("j1", tags={"group": "A"}), record_of("j2", tags={"group": "B"})])
    batch = feed_batch(store, wanted("tag.group=B", ["state"]), principal=None, after=0)
    assert [(each.job, each.values) for each in batch.entries] == [("j2", {"job": ("j2",), "state": ("DONE",)})]
    assert (batch.position, batch.end, batch.restart) == (2, True, False)


def damage(store: FolderRecords, folder: Path, position: int) -> None:
    """Flip a byte of what was committed at a position."""
    [change] = store.changes(after=position - 1, limit=1)
    place = store._catalogue.place(bytes.fromhex(change.sha256))
    assert place is not None
    pack = folder / f"packs/{place.pack:06}.pack"
    whole = bytearray(pack.read_bytes())
    whole[place.offset + 70] ^= 1
    pack.write_bytes(whole)


def test_a_damaged_record_is_named_and_left_out_and_later_ones_are_fed(
    store: FolderRecords, index: RecordIndex, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for job in ("j1", "j2", "j3"):
        store.commit([record_of(job)])
    damage(store, tmp_path / "records", 2)
    store._packs._cache.clear()
    assert feed_batch(store, wanted(), principal=None, after=0).damaged == ("j2",)
    assert feed_batch(store, wanted(), principal=Principal(user="eve", scopes=frozenset({READ})), after=0).damaged == ()
    source = StoreSource(store, wanted())
    assert bring_up_to_date(index, "here", source) == 2
    assert found(index, "state=DONE") == ["j1", "j3"]
    assert "the record of job j2 in here is damaged" in caplog.text
    store.commit([record_of("j2")])  # from a copy
    assert bring_up_to_date(index, "here", source) == 1
    assert found(index, "state=DONE") == ["j1", "j2", "j3"]


def test_records_of_a_pack_that_was_lost_are_in_the_index_once_it_was_brought_back(
    index: RecordIndex, tmp_path: Path
) -> None:
    folder = tmp_path / "records"

    def fed() -> list[str]:
        with closing(FolderRecords(folder)) as store:
            bring_up_to_date(index, "here", StoreSource(store, wanted()))
            assert [each.position for each in store.changes(after=0, limit=9)] == sorted(
                {each.position for each in store.changes(after=0, limit=9)}
            )
        return found(index, "state=DONE")

    with closing(FolderRecords(folder)) as store:
        store.commit([record_of("j1")])
    (folder / "packs/000001.pack").rename(tmp_path / "aside")
    with closing(FolderRecords(folder)) as store:
        store.commit([record_of("j2")])
    assert fed() == ["j2"]
    (tmp_path / "aside").rename(folder / "packs/000001.pack")
    assert fed() == ["j1", "j2"]
    assert fed() == ["j1", "j2"]
    with closing(FolderRecords(folder)) as store:
        assert store.record("j1") == record_of("j1")
        assert list(store.check()) == []


def test_a_record_is_fed_without_its_annotations_where_one_is_damaged(
    store: FolderRecords, index: RecordIndex, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.commit([record_of("j1")])
    store.annotate(note("j1", "group", "B"))
    damage(store, tmp_path / "records", 2)
    store._packs._cache.clear()
    assert bring_up_to_date(index, "here", StoreSource(store, wanted())) == 1
    assert found(index, "state=DONE") == ["j1"]
    assert "annotations of job j1 are not indexed" in caplog.text


def test_a_fault_that_says_nothing_about_the_disk_leaves_no_record_out(
    store: FolderRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit([record_of("j1")])
    store._packs._cache.clear()

    def too_many(*_: object) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(store._packs, "expanded", too_many)
        with pytest.raises(DamagedPart, match="Too many open files"):
            feed_batch(store, wanted(), principal=None, after=0)
    assert len(feed_batch(store, wanted(), principal=None, after=0).entries) == 1


def test_an_index_learns_of_revisions_annotations_and_deletions(store: FolderRecords, index: RecordIndex) -> None:
    source = StoreSource(store, wanted())
    store.commit([record_of("j1", state="ABORTED"), record_of("j2")])
    assert bring_up_to_date(index, "here", source) == 2
    store.commit([record_of("j1", revision=2)])
    store.annotate(note("j2", "group", "B"))
    assert bring_up_to_date(index, "here", source) == 2
    assert bring_up_to_date(index, "here", source) == 0
    assert found(index, "state=ABORTED") == []
    assert found(index, "state=DONE") == ["j1", "j2"]
    assert found(index, "tag.group=B") == ["j2"]
    store.delete("j1", at=500.0, author="ada")
    bring_up_to_date(index, "here", source)
    assert found(index, "job exists") == ["j2"]


def test_a_record_that_the_query_no_longer_finds_leaves_the_index(store: FolderRecords, index: RecordIndex) -> None:
    source = StoreSource(store, wanted("tag.group=A"))
    store.commit([record_of("j1", tags={"group": "A"}), record_of("j2", tags={"group": "B"})])
    bring_up_to_date(index, "here", source)
    assert found(index, "job exists") == ["j1"]
    store.annotate(note("j1", "group", "B"))
    store.annotate(note("j2", "group", "A"))
    bring_up_to_date(index, "here", source)
    assert found(index, "job exists") == ["j2"]
    store.delete("j2", at=500.0, author="ada")
    store.commit([record_of("j2", tags={"group": "B"})])
    bring_up_to_date(index, "here", source)
    assert found(index, "job exists") == []


def test_a_feed_has_only_what_its_principal_may_read(store: FolderRecords) -> None:
    rules = (AccessRule(principal="emmy", rights=("read",)),)
    store.commit([record_of("j1"), record_of("j2", owner="emmy"), record_of("j3", access=rules)])
    emmy = Principal(user="emmy", scopes=frozenset({READ}))
    assert [each.job for each in feed_batch(store, wanted(), principal=emmy, after=0).entries] == ["j2", "j3"]
    store.commit([record_of("j3", revision=2)])
    [withdrawn] = feed_batch(store, wanted(), principal=emmy, after=3).entries
    assert (withdrawn.job, withdrawn.removed, withdrawn.values) == ("j3", True, {})
    everyone = Principal(user="root", scopes=frozenset({READ, ANY_OWNER}))
    assert len(feed_batch(store, wanted(), principal=everyone, after=0).entries) == 3


def test_batches_end_early_if_records_have_many_values(store: FolderRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "BATCH_VALUES_MAX", 25)
    store.commit([record_of(f"j{n}") for n in range(6)])
    after, sizes = 0, []
    while True:
        batch = feed_batch(store, wanted(), principal=None, after=after)
        sizes.append(len(batch.entries))
        after = batch.position
        if batch.end:
            break
    assert sum(sizes) == 6
    assert max(sizes) < 6


def test_a_storage_that_lost_records_is_read_again_from_its_beginning(
    store: FolderRecords, index: RecordIndex, tmp_path: Path
) -> None:
    store.commit([record_of("j1"), record_of("j2")])
    bring_up_to_date(index, "here", StoreSource(store, wanted()))
    other = FolderRecords(tmp_path / "restored")
    other.commit([record_of("j3")])
    bring_up_to_date(index, "here", StoreSource(other, wanted()))
    other.close()
    assert found(index, "job exists") == ["j3"]


def test_an_index_that_is_stopped_goes_on_where_it_was(store: FolderRecords, index: RecordIndex) -> None:
    store.commit([record_of(f"j{n}") for n in range(4)])
    asked: list[int] = []

    class Slow(StoreSource):
        def batch(self, *, after: int) -> FeedBatch:
            asked.append(after)
            return feed_batch(store, wanted(), principal=None, after=after, limit=2)

    bring_up_to_date(index, "here", Slow(store, wanted()), stopping=lambda: len(asked) == 1)
    assert index.position("here") == 2
    bring_up_to_date(index, "here", Slow(store, wanted()))
    assert asked == [0, 2, 4]
    assert len(found(index, "job exists")) == 4


@pytest.mark.parametrize("seed", range(4))
def test_an_index_rebuilt_is_the_index_that_was_fed_incrementally(
    store: FolderRecords, index: RecordIndex, tmp_path: Path, seed: int
) -> None:
    chance, revisions = random.Random(seed), dict[str, int]()
    feed = wanted(chance.choice(["", "tag.group=A", "state=DONE and tag.group!=B"]))
    for at in range(60):
        job = f"j{chance.randrange(8)}"
        match chance.choice(["record", "record", "note", "delete", "feed"]):
            case "record":
                revisions[job] = revisions.get(job, 0) + 1
                tags = {"group": chance.choice("AB")}
                state = chance.choice(["DONE", "ABORTED"])
                store.commit([record_of(job, revision=revisions[job], state=state, tags=tags)])
            case "note" if job in revisions:
                store.annotate(note(job, "group", chance.choice("AB"), at=float(at)))
            case "delete" if job in revisions:
                store.delete(job, at=float(at), author="ada")
                del revisions[job]
            case "feed":
                bring_up_to_date(index, "here", StoreSource(store, feed))
    bring_up_to_date(index, "here", StoreSource(store, feed))
    rebuilt = SqliteRecordIndex(tmp_path / "rebuilt.sqlite", attributes=DEFAULT)
    bring_up_to_date(rebuilt, "here", StoreSource(store, feed))
    assert list(rebuilt.contents()) == list(index.contents())
    assert {each.job for _, each in rebuilt.contents()} <= revisions.keys()
    rebuilt.close()


def test_entries_are_the_same_after_they_went_over_the_wire(store: FolderRecords) -> None:
    store.commit([record_of("j1", access=(AccessRule(principal="emmy", rights=("read",)),))])
    batch = feed_batch(store, wanted(), principal=None, after=0)
    assert msgspec.json.decode(msgspec.json.encode(batch), type=FeedBatch) == batch
    assert isinstance(batch.entries[0], RecordEntry)


def test_registrations_are_checked() -> None:
    with pytest.raises(UnknownAttribute, match="did you mean"):
        wanted(attributes=["sites"])
    with pytest.raises(QueryError, match="at each feed"):
        wanted("submitted within 2h")
    assert wanted().attributes == chosen_attributes()
