"""What every content store does: uploads that go on, checksums, holders, folders of jobs, and what is removed when."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from pilotage.adapters.stores.content_store import FolderContent
from pilotage.model.jobs.submission import Captured
from pilotage.ports import ContentStore, StoreError, UploadConflict, WrongContent

DATA = b"some content, " * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> FolderContent:
    return FolderContent(tmp_path)


def sent(store: ContentStore, data: bytes = DATA, *, by: str = "ann") -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    store.append(sha256, data, by=by, offset=0, size_bytes=len(data))
    store.complete(sha256, by=by, size_bytes=len(data))
    return sha256


def test_an_upload_goes_on_where_it_ended(store: FolderContent, tmp_path: Path) -> None:
    assert store.append(SHA256, DATA[:5000], by="ann", offset=0, size_bytes=len(DATA)) == 5000
    assert store.received(SHA256, by="ann") == 5000
    later = FolderContent(tmp_path)  # after a restart of the service
    assert later.received(SHA256, by="ann") == 5000
    assert not later.is_held(SHA256, by="ann")
    assert later.append(SHA256, DATA[5000:], by="ann", offset=5000, size_bytes=len(DATA)) == len(DATA)
    later.complete(SHA256, by="ann", size_bytes=len(DATA))
    assert later.size(SHA256) == len(DATA)
    assert later.read(SHA256, offset=14, size_bytes=4) == b"some"
    assert later.received(SHA256, by="ann") == 0


def test_an_empty_file_is_content_too(store: FolderContent) -> None:
    assert store.size(sent(store, b"")) == 0


@pytest.mark.parametrize("offset", [0, 4999, 5001])
def test_a_piece_that_does_not_continue_the_upload_is_refused(store: FolderContent, offset: int) -> None:
    store.append(SHA256, DATA[:5000], by="ann", offset=0, size_bytes=len(DATA))
    with pytest.raises(UploadConflict, match="continue"):
        store.append(SHA256, b"x", by="ann", offset=offset, size_bytes=len(DATA))
    assert store.received(SHA256, by="ann") == 5000


def test_no_more_bytes_are_taken_than_the_file_has(store: FolderContent) -> None:
    with pytest.raises(UploadConflict):
        store.append(SHA256, DATA + b"x", by="ann", offset=0, size_bytes=len(DATA))


@pytest.mark.parametrize("restarts", [0, 1])
def test_content_with_another_checksum_is_removed(store: FolderContent, tmp_path: Path, restarts: int) -> None:
    wrong = DATA[:-1] + b"!"
    store.append(SHA256, wrong, by="ann", offset=0, size_bytes=len(DATA))
    store = FolderContent(tmp_path) if restarts else store
    with pytest.raises(WrongContent, match="another checksum"):
        store.complete(SHA256, by="ann", size_bytes=len(DATA))
    assert store.size(SHA256) is None
    assert store.received(SHA256, by="ann") == 0


def test_an_upload_that_is_too_short_is_removed(store: FolderContent) -> None:
    store.append(SHA256, DATA[:9], by="ann", offset=0, size_bytes=len(DATA))
    with pytest.raises(WrongContent):
        store.complete(SHA256, by="ann", size_bytes=len(DATA))


def test_nobody_gets_content_by_naming_its_checksum(store: FolderContent) -> None:
    sent(store, by="ann")
    assert store.missing([SHA256], by="ann") == []
    assert store.missing([SHA256], by="bob") == [SHA256]
    assert store.received(SHA256, by="bob") == 0
    sent(store, by="bob")
    assert store.missing([SHA256], by="bob") == []


def test_content_that_was_changed_has_to_be_sent_again(store: FolderContent, tmp_path: Path) -> None:
    sent(store)
    (file,) = (tmp_path / "content").glob(f"*/{SHA256}")
    file.chmod(0o600)
    with file.open("ab") as opened:
        opened.write(b"!")
    assert store.missing([SHA256], by="ann") == [SHA256]
    sent(store)
    assert store.missing([SHA256], by="ann") == []
    assert store.size(SHA256) == len(DATA)


def test_a_second_holder_heals_content_that_was_changed(store: FolderContent, tmp_path: Path) -> None:
    sent(store, by="ann")
    (file,) = (tmp_path / "content").glob(f"*/{SHA256}")
    file.chmod(0o600)
    file.write_bytes(b"!")
    sent(store, by="bob")
    assert store.read(SHA256, offset=0, size_bytes=len(DATA) + 1) == DATA


@pytest.mark.parametrize("name", ["", "..", "A" * 64, "0" * 63, "../" + "0" * 61])
def test_only_checksums_are_names(store: FolderContent, name: str) -> None:
    with pytest.raises(StoreError):
        store.size(name)
    with pytest.raises(StoreError):
        store.received(name, by="ann")


def test_inputs_are_linked_into_the_folder_of_a_job(store: FolderContent, tmp_path: Path) -> None:
    sent(store)
    names = ("a.dat", "in/ä b.dat", "in/new\nline")
    files = {name: Captured(sha256=SHA256, size_bytes=len(DATA), content=False) for name in names}
    files["run.sh"] = Captured(sha256=SHA256, size_bytes=len(DATA), content=False, executable=True)
    folder = Path(store.place("ab" * 16, files))
    assert store.folders() == [str(folder)]
    (content,) = (tmp_path / "content").glob(f"*/{SHA256}")
    for name in files:
        assert (folder / name).read_bytes() == DATA
    assert all((folder / name).samefile(content) for name in names)
    assert not os.access(content, os.X_OK) or os.geteuid() == 0
    assert (folder / "run.sh").stat().st_mode & 0o777 == 0o555
    before = {name: (folder / name).stat().st_ino for name in files}
    assert store.place("ab" * 16, files) == str(folder)
    assert {name: (folder / name).stat().st_ino for name in files} == before
    assert sorted(each.name for each in folder.iterdir()) == ["a.dat", "in", "run.sh"]


def test_an_input_that_was_changed_in_the_folder_is_placed_again(store: FolderContent) -> None:
    sent(store)
    files = {"run.sh": Captured(sha256=SHA256, size_bytes=len(DATA), content=False, executable=True)}
    folder = Path(store.place("ab" * 16, files))
    (folder / "run.sh").chmod(0o755)
    (folder / "run.sh").write_bytes(b"!" * len(DATA))
    (folder / "run.sh").chmod(0o555)
    store.place("ab" * 16, files)
    assert (folder / "run.sh").read_bytes() == DATA


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "", "a//b", "a\0b"])
def test_no_input_is_placed_outside_the_folder(store: FolderContent, name: str) -> None:
    sent(store)
    with pytest.raises(StoreError, match="file name"):
        store.place("ab" * 16, {name: Captured(sha256=SHA256, content=False)})


def test_an_input_that_was_not_sent_is_named(store: FolderContent) -> None:
    with pytest.raises(StoreError, match="was not sent"):
        store.place("ab" * 16, {"a.dat": Captured(sha256=SHA256, content=False)})


def test_content_stays_while_a_folder_uses_it_and_goes_some_time_later(store: FolderContent, tmp_path: Path) -> None:
    other = sent(store, b"no job uses this")
    store.append("0" * 64, b"unfinished", by="ann", offset=0, size_bytes=99)
    sent(store)
    folder = store.place("ab" * 16, {"a.dat": Captured(sha256=SHA256, content=False)})
    now = time.time()
    assert store.remove_unused(before=now - 1000) == 0
    assert store.remove_unused(before=now + 1000) == 2
    assert (store.size(other), store.received("0" * 64, by="ann"), store.size(SHA256)) == (None, 0, len(DATA))
    assert not store.remove_folder(folder, unless_since=now - 1000)
    assert store.remove_folder(folder, unless_since=now + 1000)
    assert store.folders() == []
    assert store.remove_unused(before=now + 1000) == 1
    assert store.size(SHA256) is None
    assert not [each for each in (tmp_path / "content").rglob("*") if each.is_file()]


def test_only_folders_of_jobs_are_removed(store: FolderContent, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(StoreError):
        store.remove_folder(str(tmp_path / "mine"), unless_since=time.time() + 1000)
    assert (tmp_path / "mine").exists()
