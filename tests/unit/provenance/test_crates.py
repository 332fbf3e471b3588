"""A crate gives back the record it was made of; one that was damaged, or made to do harm, is refused as a whole."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.app.provenance import exports
from pilotage.model.records import Annotation, JobRecord, RecordPart, encoded_record
from pilotage.provenance.exports import crate_reader
from pilotage.provenance.exports.crate import METADATA, PARTS, RECORD
from pilotage.provenance.exports.crate_reader import BadCrate, read_crate
from tests.kit.small_records import CONTENT, MemoryCrate, crate_of, sha256, small_record

Small = tuple[JobRecord, dict[str, bytes]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return small_record(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def crate(small: Small) -> MemoryCrate:
    return crate_of(*small)


def graph_of(crate: MemoryCrate) -> dict[str, Any]:
    return {each["@id"]: each for each in json.loads(crate.files[METADATA])["@graph"]}


def read_whole(files: MemoryCrate) -> JobRecord:
    """The record of a crate, each part of which was read."""
    crated = read_crate(files)
    for part in crated.record.parts:
        assert sha256(crated.read_part(part.sha256)) == part.sha256
    return crated.record


def with_record(crate: MemoryCrate, content: bytes) -> MemoryCrate:
    """The crate with another record, whose digest is right."""
    changed = json.loads(crate.files[METADATA])
    entity = next(each for each in changed["@graph"] if each["@id"] == RECORD)
    entity["sha256"] = sha256(content)
    return MemoryCrate(crate.files | {RECORD: content, METADATA: json.dumps(changed).encode()})


def test_a_crate_gives_its_record_and_parts_back(small: Small, crate: MemoryCrate) -> None:
    record, contents = small
    crated = read_crate(crate)
    assert crated.record == record
    assert {part.sha256: crated.read_part(part.sha256) for part in record.parts} == contents
    with pytest.raises(BadCrate):
        crated.read_part(sha256(b"not of this record"))


def test_annotations_travel_with_the_crate(small: Small) -> None:
    record, contents = small
    part = RecordPart(kind="custom", name="notes", sha256=sha256(b"notes"), size_bytes=5)
    added = (
        Annotation(job=record.job, name="license", at=1.0, author="ada", text="CC-BY-4.0"),
        Annotation(job=record.job, name="notes", at=2.0, author="bob", part=part),
    )
    crate = crate_of(record, contents | {sha256(b"notes"): b"notes"}, added)
    assert graph_of(crate)["./"]["license"] == "CC-BY-4.0"
    crated = read_crate(crate)
    assert crated.annotations == added
    assert crated.read_part(sha256(b"notes")) == b"notes"
    foreign = msgspec.json.encode(msgspec.structs.replace(added[0], job="another"))
    with pytest.raises(BadCrate):
        read_crate(MemoryCrate(crate.files | {"record/annotations.jsonl": foreign}))


def test_contents_of_the_record_have_their_names_in_the_crate(small: Small, crate: MemoryCrate) -> None:
    graph = graph_of(crate)
    assert crate.files["files/1.dat"] == CONTENT
    assert crate.files["files/make.sh"] == b"echo $1 > $1.dat\n"
    # All three have one content, and the record has it: still each is a file of its own.
    results = [graph[f"#attempt-{package}-1"]["result"]["@id"] for package in ("1.1.1", "1.2.1", "2.1.1")]
    assert results == ["files/1.dat", "files/2.dat", "files/all.txt"]
    assert graph["#parameter-1.2.1-n"]["value"] == "2"
    assert graph["#formal-factor"]["additionalType"] == "Number"


def test_names_that_lead_out_of_the_crate_are_not_written(tmp_path: Path) -> None:
    crate = crate_of(*small_record(tmp_path, names=("../../outside", "/etc/outside", "a/../../b", "plain/inside")))
    written = {path for path in crate.files if path.startswith("files/")}
    assert written == {"files/1.dat", "files/2.dat", "files/all.txt", "files/make.sh", "files/plain/inside"}
    assert len([each for each in graph_of(crate) if "outside" in each]) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../record.json",
        "record/../../x",
        "file:///etc/passwd",
        "//host/x",
        "%2e%2e/x",
        "a\\..\\b",
        "record/%00",
        "",
    ],
)
def test_a_record_outside_of_the_crate_is_refused(crate: MemoryCrate, path: str) -> None:
    changed = json.loads(crate.files[METADATA])
    for entity in changed["@graph"]:
        if entity["@id"] == RECORD:
            entity["@id"] = path
    files = crate.files | {METADATA: json.dumps(changed).encode(), path: crate.files[RECORD]}
    with pytest.raises(BadCrate, match="leads out"):
        read_crate(MemoryCrate(files))


def test_every_changed_missing_or_longer_file_of_the_record_is_found(small: Small, crate: MemoryCrate) -> None:
    paths = [RECORD, *(f"{PARTS}{part.sha256}" for part in small[0].parts)]
    for path in paths:
        content = crate.files[path]
        flipped = bytes([content[0] ^ 1]) + content[1:]
        for wrong in (flipped, content[:-1], content + b"\n", None):
            files = {each: content for each, content in crate.files.items() if each != path}
            with pytest.raises(BadCrate):
                read_whole(MemoryCrate(files | ({path: wrong} if wrong is not None else {})))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: {**record, "version": 99},
        lambda record: {**record, "version": "one"},
        lambda record: {**record, "job": "../../escape"},
        lambda record: {**record, "job": "another-job"},
        lambda record: {**record, "revision": 0},
        lambda record: {**record, "owner": "mallory"},
        lambda record: {**record, "tags": {"group": "A"}},
        lambda record: {**record, "parts": []},
        lambda record: {**record, "parts": [{**each, "size_bytes": -1} for each in record["parts"]]},
        lambda record: {**record, "parts": [{**each, "size_bytes": 2**40} for each in record["parts"]]},
        lambda record: {**record, "parts": [{**each, "sha256": "../../x"} for each in record["parts"]]},
        lambda record: {**record, "parts": [each for each in record["parts"] if each["kind"] != "definition"]},
        lambda record: {**record, "parts": [each for each in record["parts"] if each["kind"] != "life-log"]},
        lambda record: [record],
        lambda record: None,
    ],
)
def test_a_record_that_says_what_is_not_so_is_refused(
    small: Small, crate: MemoryCrate, change: Callable[[dict[str, Any]], Any]
) -> None:
    changed = json.dumps(change(json.loads(encoded_record(small[0])))).encode()
    with pytest.raises(BadCrate):
        read_crate(with_record(crate, changed))


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"{}",
        b"[]",
        b'{"@graph":{}}',
        b'{"@graph":[{}]}',
        b"\xff\xfe",
        b'{"@graph":' + b"[" * 100_000,
        b'{"@graph":[1]}',
    ],
)
def test_metadata_of_nothing_is_refused(crate: MemoryCrate, metadata: bytes) -> None:
    with pytest.raises(BadCrate):
        read_crate(MemoryCrate(crate.files | {METADATA: metadata}))


def test_two_records_or_one_without_a_digest_are_refused(crate: MemoryCrate) -> None:
    whole = json.loads(crate.files[METADATA])
    entity = next(each for each in whole["@graph"] if each["@id"] == RECORD)
    again = {"@graph": [*whole["@graph"], entity]}
    without = {"@graph": [{**entity, "sha256": None}]}
    for wrong in (again, without):
        with pytest.raises(BadCrate):
            read_crate(MemoryCrate(crate.files | {METADATA: json.dumps(wrong).encode()}))


_leaves = st.none() | st.booleans() | st.integers(-5, 2**63) | st.floats(allow_nan=False) | st.text(max_size=5)
_values = st.recursive(
    _leaves, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=4), each, max_size=3)
)


@settings(max_examples=100)
@given(data=st.data())
def test_whatever_is_changed_in_the_files_it_is_the_same_record_or_none(
    small: Small, crate: MemoryCrate, data: st.DataObject
) -> None:
    files = dict(crate.files)
    name = data.draw(st.sampled_from([METADATA, RECORD, *(f"{PARTS}{part.sha256}" for part in small[0].parts)]))
    if data.draw(st.booleans()):
        content = bytearray(files[name])
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        files[name] = bytes(content)
    else:
        document = json.loads(files[RECORD])
        target: Any = document
        while True:
            keys = list(target) if isinstance(target, dict) else list(range(len(target)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(target[key], dict | list) or data.draw(st.booleans()):
                target[key] = data.draw(_values)
                break
            target = target[key]
        files = with_record(MemoryCrate(files), json.dumps(document).encode()).files
    try:
        found = read_whole(MemoryCrate(files))
    except BadCrate:
        return
    told = ("job", "owner", "name", "state", "tags", "submitted_at", "ended_at")
    assert {name: getattr(found, name) for name in told} == {name: getattr(small[0], name) for name in told}


# --- folders and archives as they come from others


def on_disk(crate: MemoryCrate, folder: Path) -> Path:
    for path, content in crate.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def zipped(crate: MemoryCrate, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in crate.files.items():
            archive.writestr(name, content)
    return path


def read_from(path: Path) -> JobRecord:
    with exports._crate_files(path) as files:
        return read_crate(files).record


def test_a_crate_is_read_from_a_folder_and_from_an_archive(small: Small, crate: MemoryCrate, tmp_path: Path) -> None:
    assert read_from(on_disk(crate, tmp_path / "crate")) == small[0]
    assert read_from(zipped(crate, tmp_path / "crate.zip")) == small[0]


@pytest.mark.parametrize("name", [METADATA, RECORD, "record", "record/parts"])
def test_no_link_of_a_folder_is_followed(crate: MemoryCrate, tmp_path: Path, name: str) -> None:
    folder = on_disk(crate, tmp_path / "crate")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadCrate):
        read_from(folder)


def test_what_is_no_plain_file_is_refused_without_waiting(crate: MemoryCrate, tmp_path: Path) -> None:
    folder = on_disk(crate, tmp_path / "crate")
    (folder / RECORD).unlink()
    os.mkfifo(folder / RECORD)
    assert stat.S_ISFIFO((folder / RECORD).stat().st_mode)
    with pytest.raises(BadCrate, match="no plain file"):
        read_from(folder)
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(BadCrate, match="neither a folder nor an archive"):
        read_from(tmp_path / "text")


def test_huge_files_are_refused_before_they_are_read(
    small: Small, crate: MemoryCrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = on_disk(crate, tmp_path / "crate")
    part = small[0].parts[0]
    os.truncate(folder / f"{PARTS}{part.sha256}", 2**40)  # sparse: it takes no space
    with pytest.raises(BadCrate, match="larger than it may be"):
        read_from(folder)
    bomb = MemoryCrate(crate.files | {f"{PARTS}{part.sha256}": b"\0" * 10_000_000})
    with pytest.raises(BadCrate, match="larger than it may be"):
        read_from(zipped(bomb, tmp_path / "bomb.zip"))
    monkeypatch.setattr(crate_reader, "RECORD_BYTES_MAX", 100)
    with pytest.raises(BadCrate, match="larger than it may be"):
        read_from(zipped(crate, tmp_path / "crate.zip"))


def test_a_forged_archive_is_refused(crate: MemoryCrate, tmp_path: Path) -> None:
    whole = zipped(crate, tmp_path / "crate.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr(METADATA, crate.files[METADATA])
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(METADATA, crate.files[METADATA])
    for name in ("cut.zip", "twice.zip"):
        with pytest.raises(BadCrate):
            read_from(tmp_path / name)


@settings(max_examples=40)
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_a_byte_that_changes_in_an_archive_gives_the_record_or_a_refusal(
    small: Small, crate: MemoryCrate, tmp_path_factory: pytest.TempPathFactory, at: float, byte: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.zip"
    content = bytearray(zipped(crate, path).read_bytes())
    content[int(at * len(content))] = byte
    path.write_bytes(content)
    with suppress(BadCrate):
        assert read_from(path) == small[0]
