"""What every store promises: files go there and back whole, and nothing is replaced unless its version is named."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotage.model.errors import PilotageError
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports import CHUNK_BYTES, AlreadyInStore, FileChanged, NotInStore, StoreError, StoreFull, StoreUnreachable
from tests.conformance.stores.places import Place, place_in
from tests.engines.sshd import SshServer

AWKWARD = (
    "a b.dat",
    "é → 日本.dat",
    "50%.dat",
    "a%20b.dat",
    "a#b?c&d=e+f;g.dat",
    "a\nb.dat",
    "~x'\"`$(y)*[z].dat",
    "-rf",
    ".hidden",
    "a\\b:c@d.dat",
)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_goes_there_and_comes_back(any_place: Place, source: Path) -> None:
    store = any_place.store
    locator = any_place.at("deep/down/a.dat", b"data")
    put = store.put(str(source), locator)
    assert (put.locator, put.size_bytes) == (locator, 4)
    assert store.stat(locator) == put
    assert put.version
    assert put.modified_at > 1e9
    assert put.sha256 in ("", sha256(b"data"))
    assert store.checksum(locator) == sha256(b"data")
    assert b"".join(store.read(locator, version=put.version)) == b"data"
    assert any_place.content() == {any_place.named("deep/down/a.dat", b"data"): b"data"}  # and no draft


def test_an_empty_file_is_a_file(any_place: Place, source: Path) -> None:
    source.write_bytes(b"")
    put = any_place.store.put(str(source), any_place.at("a.dat", b""))
    assert put.size_bytes == 0
    assert list(any_place.store.read(put.locator, version=put.version)) == []
    assert any_place.store.checksum(put.locator) == sha256(b"")


def test_a_read_goes_on_where_another_one_stopped(any_place: Place) -> None:
    content = os.urandom(3 * CHUNK_BYTES + 17)
    any_place.write("a.dat", content)
    found = any_place.store.stat(any_place.at("a.dat", content))
    assert found is not None
    for offset in (0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES, len(content) - 1, len(content)):
        pieces = list(any_place.store.read(found.locator, offset=offset, version=found.version))
        assert b"".join(pieces) == content[offset:]
        assert max(map(len, pieces), default=0) <= CHUNK_BYTES


def test_a_read_can_be_left(any_place: Place) -> None:
    any_place.write("a.dat", bytes(5 * CHUNK_BYTES))
    locator = any_place.at("a.dat", bytes(5 * CHUNK_BYTES))
    reading = any_place.store.read(locator)
    assert next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert any_place.store.checksum(locator) == sha256(bytes(5 * CHUNK_BYTES))


def test_what_is_not_there_is_said_to_be(any_place: Place) -> None:
    store, locator = any_place.store, any_place.at("a.dat")
    assert store.stat(locator) is None
    assert list(store.list(any_place.base)) == []
    assert store.delete(locator) is False
    with pytest.raises(NotInStore) as refused:
        store.checksum(locator)
    assert refused.value.reason == "not-in-store"
    with pytest.raises(NotInStore):
        list(store.read(locator))
    with pytest.raises(NotInStore):
        list(store.read(locator, offset=2, version="1"))


def test_a_folder_is_no_file(place: Place) -> None:
    place.write("deep/a.dat", b"data")
    assert place.store.stat(place.at("deep")) is None
    assert place.store.delete(place.at("deep")) is False
    with pytest.raises(StoreError):
        list(place.store.read(place.at("deep")))
    assert place.content() == {"deep/a.dat": b"data"}


def test_a_folder_is_known_as_one(place: Place) -> None:
    place.write("folder/a.dat", b"data")
    folder = place.at("folder")
    assert place.store.stat(folder) is None
    assert place.store.is_folder(folder)
    assert not place.store.is_folder(place.at("fold"))
    assert not place.store.is_folder(place.at("folder/a.dat"))


def test_nothing_is_replaced_in_silence(place: Place, source: Path) -> None:
    first = place.store.put(str(source), place.at("a.dat"))
    source.write_bytes(b"other")
    told: list[int] = []
    with pytest.raises(AlreadyInStore) as refused:
        place.store.put(str(source), place.at("a.dat"), sent=told.append)
    assert (refused.value.reason, told) == ("already-in-store", [])  # nothing is sent for that
    assert place.content() == {"a.dat": b"data"}
    with pytest.raises(AlreadyInStore):
        place.store.put(str(source), place.at("a.dat"), replaces=f"not {first.version}")
    assert place.content() == {"a.dat": b"data"}
    second = place.store.put(str(source), place.at("a.dat"), replaces=first.version)
    assert second.version != first.version
    assert place.content() == {"a.dat": b"other"}
    with pytest.raises(AlreadyInStore):
        place.store.put(str(source), place.at("b.dat"), replaces=first.version)  # which is not there at all
    assert place.content() == {"a.dat": b"other"}


def test_a_large_file_is_not_replaced_in_silence_either(place: Place, source: Path) -> None:
    source.write_bytes(os.urandom(20 << 20))
    first = place.store.put(str(source), place.at("a.dat"))
    assert place.store.checksum(place.at("a.dat")) == sha256(source.read_bytes())
    with pytest.raises(AlreadyInStore):
        place.store.put(str(source), place.at("a.dat"))
    with source.open("ab") as file:
        file.write(b"more")
    place.store.put(str(source), place.at("a.dat"), replaces=first.version)
    assert place.content() == {"a.dat": source.read_bytes()}


@pytest.mark.parametrize("megabytes", [3, 30])
@pytest.mark.parametrize("before", [b"", b"ours"])
def test_a_file_that_comes_while_another_is_sent_is_not_replaced(
    place: Place, source: Path, before: bytes, megabytes: int
) -> None:
    source.write_bytes(bytes(megabytes << 20))
    version = ""
    if before:
        place.write("a.dat", before)
        seen = place.store.stat(place.at("a.dat"))
        assert seen is not None
        version = seen.version
    come: list[int] = []

    def come_between(count: int) -> None:
        if not come:
            place.write("a.dat", b"somebody else's")
        come.append(count)

    with pytest.raises(AlreadyInStore):
        place.store.put(str(source), place.at("a.dat"), replaces=version, sent=come_between)
    assert come
    assert place.content() == {"a.dat": b"somebody else's"}


def test_a_file_that_changes_while_it_is_read_is_not_taken_for_whole(place: Place) -> None:
    content, later = bytes(24 << 20), os.urandom((24 << 20) + 1)
    place.write("a.dat", content)
    found = place.store.stat(place.at("a.dat"))
    assert found is not None
    reading = place.store.read(place.at("a.dat"), version=found.version)
    pieces = [next(reading)]
    place.write("a.dat", later)
    try:
        pieces.extend(reading)
    except (FileChanged, StoreUnreachable):
        return
    assert b"".join(pieces) == content  # a store that keeps what is being read


@pytest.mark.parametrize("place", ["folder", "sftp"], indirect=True)
def test_a_file_that_grows_while_it_is_read_is_noticed(place: Place, tmp_path: Path) -> None:
    place.write("a.dat", bytes(24 << 20))
    reading = place.store.read(place.at("a.dat"))
    pieces = [next(reading)]
    with (tmp_path / "there" / "a.dat").open("r+b") as file:
        file.seek(20 << 20)
        file.write(bytes(5 << 20))
    with pytest.raises(FileChanged):
        pieces.extend(reading)


def test_another_file_under_the_same_name_is_noticed(place: Place) -> None:
    place.write("a.dat", b"first" * CHUNK_BYTES)
    found = place.store.stat(place.at("a.dat"))
    assert found is not None
    place.write("a.dat", b"seconds" * CHUNK_BYTES)
    with pytest.raises(FileChanged) as refused:
        list(place.store.read(place.at("a.dat"), offset=CHUNK_BYTES, version=found.version))
    assert (refused.value.reason, refused.value.retryable) == ("file-changed", True)
    with pytest.raises(FileChanged):
        place.store.checksum(place.at("a.dat"), version=found.version)
    assert place.store.checksum(place.at("a.dat")) == sha256(b"seconds" * CHUNK_BYTES)


def test_files_that_go_to_a_new_folder_at_once_all_arrive(place: Place, source: Path) -> None:
    for attempt in range(5):
        locators = [place.at(f"new-{attempt}/deep/down/{number}.dat") for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            puts = list(threads.map(lambda locator: place.store.put(str(source), locator), locators))
        assert [each.locator for each in puts] == locators


def test_everything_below_a_folder_is_listed(place: Place, source: Path) -> None:
    for name in ("b/2.dat", "a.dat", "b/c/1.dat", "bc.dat"):
        place.store.put(str(source), place.at(name))
    listed = list(place.store.list(place.base))
    names = ("a.dat", "b/2.dat", "b/c/1.dat", "bc.dat")
    assert [each.locator for each in listed] == sorted(map(place.at, names))
    assert list(place.store.list(f"{place.base}/")) == listed
    assert [each for each in listed if each != place.store.stat(each.locator)] == []
    assert [each.locator for each in place.store.list(place.at("b"))] == [place.at("b/2.dat"), place.at("b/c/1.dat")]
    assert place.store.delete(place.at("b/2.dat")) is True
    assert place.store.delete(place.at("b/2.dat")) is False
    assert [each.locator for each in place.store.list(place.at("b"))] == [place.at("b/c/1.dat")]


def test_many_files_are_listed(place: Place) -> None:
    names = [f"{number:05}.dat" for number in range(1100)]
    for name in names:
        place.write(name, b"x")
    assert [each.locator for each in place.store.list(place.base)] == [place.at(name) for name in names]


@pytest.mark.parametrize("name", AWKWARD)
def test_any_name_is_the_name_of_one_file(place: Place, source: Path, name: str) -> None:
    source.write_bytes(name.encode())
    put = place.store.put(str(source), place.at(f"in {name}/{name}"))
    assert b"".join(place.store.read(put.locator, version=put.version)) == name.encode()
    assert [place.store.checksum(each.locator) for each in place.store.list(place.base)] == [sha256(name.encode())]
    assert [len(each.locator) for each in place.store.list(place.base)] >= [len(put.locator)]
    with pytest.raises(AlreadyInStore):
        place.store.put(str(source), put.locator)
    assert place.store.delete(put.locator) is True
    assert place.content() == {}


def test_what_was_sent_is_told_as_it_goes(any_place: Place, source: Path) -> None:
    source.write_bytes(bytes(3 * CHUNK_BYTES + 5))
    told: list[int] = []
    any_place.store.put(str(source), any_place.at("a.dat", source.read_bytes()), sent=told.append)
    assert sum(told) == 3 * CHUNK_BYTES + 5
    assert len(told) > 3


class Enough(PilotageError):
    """The caller has had enough."""


@pytest.mark.parametrize("megabytes", [3, 30])
def test_a_put_that_its_caller_ends_leaves_nothing(any_place: Place, source: Path, megabytes: int) -> None:
    source.write_bytes(bytes(megabytes << 20))

    def enough(_: int) -> None:
        raise Enough("enough")

    with pytest.raises(Enough):
        any_place.store.put(str(source), any_place.at("a.dat", bytes(megabytes << 20)), sent=enough)
    assert any_place.content() == {}
    assert any_place.store.put(str(source), any_place.at("a.dat", bytes(megabytes << 20))).size_bytes == megabytes << 20


def test_a_file_that_is_not_here_cannot_be_put(any_place: Place, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as refused:
        any_place.store.put(str(tmp_path / "nowhere"), any_place.at("a.dat"))
    assert "nowhere" in str(refused.value)
    assert any_place.content() == {}


def test_a_large_file_needs_no_more_memory_than_a_small_one(any_place: Place, source: Path) -> None:
    with source.open("wb") as file:
        file.truncate(200 << 20)
    locator = any_place.at("a.dat", source.read_bytes())
    tracemalloc.start()
    try:
        put = any_place.store.put(str(source), locator)
        length = sum(map(len, any_place.store.read(locator, version=put.version)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length == put.size_bytes == 200 << 20
    assert peak < 40 << 20


@pytest.mark.parametrize("locator", ["", "a.dat", "other://bucket/a", "file://elsewhere/a", "//a/../b", "/a\0b"])
def test_what_names_nothing_of_this_store_is_refused(any_place: Place, locator: str) -> None:
    with pytest.raises(StoreError):
        any_place.store.stat(locator)


def test_a_closed_store_opens_again(any_place: Place) -> None:
    any_place.write("a.dat", b"data")
    any_place.store.close()
    assert any_place.store.checksum(any_place.at("a.dat")) == sha256(b"data")
    any_place.store.close()


def test_a_store_without_presigned_requests_says_so(any_place: Place) -> None:
    if any_place.presigns:
        return
    assert any_place.store.presigned_get(any_place.at("a.dat"), seconds=60) is None
    assert any_place.store.presigned_put(any_place.at("a.dat"), seconds=60, content_type="application/x-root") is None


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of a few megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("privilege: nothing can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("kind", ["folder", "sftp"])
def test_a_store_without_room_says_so_and_keeps_nothing(
    small_folder: Path, source: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    settings, base = StoreSettings(), str(small_folder)
    if kind == "sftp":
        server: SshServer = request.getfixturevalue("ssh_server")
        settings = StoreSettings(ssh_config=str(server.configuration()))
        base = f"{server.address.replace('ssh:', 'sftp:')}{small_folder}"
    source.write_bytes(bytes(9 << 20))
    with place_in(small_folder, base, settings) as place:
        with pytest.raises(StoreFull) as refused:
            place.store.put(str(source), place.at("a.dat"))
        assert refused.value.reason == "store-full"
        assert place.content() == {}
        source.write_bytes(bytes(1 << 20))
        place.store.put(str(source), place.at("a.dat"))
