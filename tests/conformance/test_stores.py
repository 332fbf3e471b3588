"""What every file store promises: staged files become results by a grant, and nobody else's file is ever replaced."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.adapters.stores.folder import FolderStore
from pilotage.adapters.stores.work_index import SqliteWorkIndex
from pilotage.agent.attempt.files import MARK_BYTES_MAX
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports import FileStore, MadeWork, NotOurs, StoreError, WorkFields

REF = AttemptRef("job-1", "1.2.3", 1)
LONG_AGO = 1_000_000_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The document's folder."""
    made = tmp_path / "document"
    made.mkdir()
    return made


@pytest.fixture
def index(tree: Path) -> Iterator[SqliteWorkIndex]:
    """The index of a state folder beside the document."""
    made = SqliteWorkIndex(tree / ".pilotage")
    yield made
    made.close()


@pytest.fixture
def store(tree: Path, index: SqliteWorkIndex) -> FileStore:
    """A store."""
    return FolderStore(tree / ".pilotage", index)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def staged(store: FileStore, tree: Path, files: dict[str, bytes], ref: AttemptRef = REF) -> tuple[OutputFile, ...]:
    """Stage files as an agent does that sees the folder; their manifest."""
    folder = Path(store.staged_folder(str(tree), ref.job))
    for number, data in enumerate(files.values()):
        (folder / f"{ref.package}-{ref.attempt}-{number}").write_bytes(data)
    return tuple(OutputFile(name=name, size_bytes=len(data), sha256=sha(data)) for name, data in files.items())


def test_granted_files_are_published_under_their_names(store: FileStore, tree: Path) -> None:
    manifest = staged(store, tree, {"a.dat": b"one", "deep/er/b.dat": b"two"})
    store.publish(str(tree), REF, manifest)
    assert (tree / "a.dat").read_bytes() == b"one"
    assert (tree / "deep/er/b.dat").read_bytes() == b"two"
    assert store.staged(str(tree), REF.job) == []


def test_publishing_again_changes_nothing(store: FileStore, tree: Path) -> None:
    manifest = staged(store, tree, {"a.dat": b"one"})
    store.publish(str(tree), REF, manifest)
    before = (tree / "a.dat").stat()
    store.publish(str(tree), REF, manifest)
    after = (tree / "a.dat").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_publishing_goes_on_where_it_was_cut_off(store: FileStore, tree: Path) -> None:
    manifest = staged(store, tree, {"a.dat": b"one", "b.dat": b"two"})
    store.publish(str(tree), REF, manifest[:1])
    store.publish(str(tree), REF, manifest)
    assert (tree / "b.dat").read_bytes() == b"two"


def test_a_file_of_somebody_else_is_never_replaced(store: FileStore, tree: Path) -> None:
    manifest = staged(store, tree, {"a.dat": b"ours"})
    (tree / "a.dat").write_bytes(b"mine")
    with pytest.raises(NotOurs, match=r"a\.dat") as refused:
        store.publish(str(tree), REF, manifest)
    assert "move it away" in refused.value.next_step
    assert (tree / "a.dat").read_bytes() == b"mine"
    (tree / "a.dat").unlink()
    store.publish(str(tree), REF, manifest)
    assert (tree / "a.dat").read_bytes() == b"ours"


def test_where_one_file_is_in_the_way_no_other_gets_its_name(store: FileStore, tree: Path) -> None:
    manifest = staged(store, tree, {"a.dat": b"one", "b.dat": b"two", "c.dat": b"three"})
    (tree / "a.dat").write_bytes(b"one")  # equal, and its owner may move it away all the same
    (tree / "c.dat").write_bytes(b"mine")
    with pytest.raises(NotOurs, match=r"c\.dat"):
        store.publish(str(tree), REF, manifest)
    assert not (tree / "b.dat").exists()
    (tree / "a.dat").unlink()
    (tree / "c.dat").unlink()
    store.publish(str(tree), REF, manifest)
    assert [(tree / name).read_bytes() for name in ("a.dat", "b.dat", "c.dat")] == [b"one", b"two", b"three"]


def test_a_file_with_the_same_content_is_taken_as_it_is(store: FileStore, tree: Path) -> None:
    manifest = staged(store, tree, {"a.dat": b"same"})
    (tree / "a.dat").write_bytes(b"same")
    store.publish(str(tree), REF, manifest)
    assert store.staged(str(tree), REF.job) == []


def test_our_own_file_is_replaced_by_a_later_one(store: FileStore, tree: Path) -> None:
    store.publish(str(tree), REF, staged(store, tree, {"a.dat": b"one"}))
    again = AttemptRef(REF.job, REF.package, 2)
    store.publish(str(tree), again, staged(store, tree, {"a.dat": b"two"}, again))
    assert (tree / "a.dat").read_bytes() == b"two"


def test_a_file_that_another_job_made_which_must_not_be_disturbed_is_not_replaced(
    store: FileStore, tree: Path, index: SqliteWorkIndex
) -> None:
    other = AttemptRef("job-2", "1.1.1", 1)
    asked: list[str] = []
    fields = WorkFields(argv="a", software="b", environment="c", outputs="d", inputs={})

    def publish(ref: AttemptRef, data: bytes, *, rival: bool) -> None:
        def is_rival(job: str) -> bool:
            asked.append(job)
            return rival

        manifest = staged(store, tree, {"a.dat": data}, ref)
        made = MadeWork(key=sha(data), fields=fields, folder=str(tree), document="d", ref=ref, manifest=manifest)
        index.keep([made])
        store.publish(str(tree), ref, manifest, is_rival=is_rival)

    publish(REF, b"one", rival=True)
    with pytest.raises(NotOurs, match=r"the job job-1, .* has made another file of this name"):
        publish(other, b"two", rival=True)
    assert (tree / "a.dat").read_bytes() == b"one"
    publish(other, b"one", rival=True)  # the same content is in nobody's way
    assert asked == [REF.job]
    publish(other, b"two", rival=False)
    assert (tree / "a.dat").read_bytes() == b"two"


def test_our_own_file_is_not_ours_any_more_when_somebody_changed_it(store: FileStore, tree: Path) -> None:
    store.publish(str(tree), REF, staged(store, tree, {"a.dat": b"one"}))
    (tree / "a.dat").write_bytes(b"edited")
    again = AttemptRef(REF.job, REF.package, 2)
    manifest = staged(store, tree, {"a.dat": b"two"}, again)
    with pytest.raises(NotOurs):
        store.publish(str(tree), again, manifest)
    assert (tree / "a.dat").read_bytes() == b"edited"


def test_what_the_index_kept_is_ours_for_a_store_that_starts_anew(tree: Path, index: SqliteWorkIndex) -> None:
    manifest = (OutputFile(name="a.dat", size_bytes=3, sha256=sha(b"one")),)
    fields = WorkFields(argv="a", software="b", environment="c", outputs="d", inputs={})
    index.keep([MadeWork(key=sha(b"k"), fields=fields, folder=str(tree), document="d", ref=REF, manifest=manifest)])
    (tree / "a.dat").write_bytes(b"one")
    store = FolderStore(tree / ".pilotage", index)
    found = store.look_up(str(tree), ["a.dat"])
    assert store.is_ours(str(tree), list(found.values())) == {"a.dat": True}
    (tree / "a.dat").write_bytes(b"two")
    found = store.look_up(str(tree), ["a.dat"])
    assert store.is_ours(str(tree), list(found.values())) == {"a.dat": False}


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/out", "", "a//b", "./a", ".pilotage/book", "a\0b"])
def test_a_name_that_leaves_the_tree_is_refused(store: FileStore, tree: Path, name: str) -> None:
    with pytest.raises(StoreError):
        store.read(str(tree), name, offset=0, size_bytes=1)
    with pytest.raises(StoreError):
        store.checksum(str(tree), name)
    with pytest.raises(StoreError):
        store.remove(str(tree), name, sha256=sha(b""))
    if name:
        manifest = (OutputFile(name=name, size_bytes=0, sha256=sha(b"")),)
        with pytest.raises(StoreError):
            store.publish(str(tree), REF, manifest)


def test_a_link_that_leads_out_of_the_tree_is_not_followed(store: FileStore, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tree / "link").symlink_to(tmp_path / "elsewhere")
    manifest = staged(store, tree, {"link/sub/a.dat": b"one"})
    with pytest.raises(StoreError, match="leads out"):
        store.publish(str(tree), REF, manifest)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("link, leads_to", [("out", ".pilotage"), ("a/b", "../.pilotage"), ("out", "a/state")])
def test_a_link_that_leads_into_our_own_state_is_not_followed(tree: Path, link: str, leads_to: str) -> None:
    (tree / "a" / "state").mkdir(parents=True)
    state = tree / leads_to.removeprefix("../")
    index = SqliteWorkIndex(state)
    store = FolderStore(state, index)
    (tree / link).symlink_to(leads_to)
    (state / "token").write_bytes(b"secret")
    for name in (f"{link}/token", f"{link}/new/file"):
        with pytest.raises(StoreError, match="its own state"):
            store.publish(str(tree), REF, staged(store, tree, {name: b"one"}))
    with pytest.raises(StoreError, match="its own state"):
        store.remove(str(tree), f"{link}/token", sha256=sha(b"secret"))
    with pytest.raises(StoreError, match="its own state"):
        store.publish(str(tree), REF, staged(store, tree, {f"{state.relative_to(tree)}/token": b"one"}))
    assert (state / "token").read_bytes() == b"secret"
    assert not (state / "new").exists()
    index.close()


def test_a_link_within_the_tree_is_followed(store: FileStore, tree: Path) -> None:
    (tree / "real").mkdir()
    (tree / "link").symlink_to("real")
    store.publish(str(tree), REF, staged(store, tree, {"link/a.dat": b"one"}))
    assert (tree / "real/a.dat").read_bytes() == b"one"


def test_a_link_to_nowhere_and_a_folder_are_in_the_way(store: FileStore, tree: Path) -> None:
    (tree / "a.dat").symlink_to("nowhere")
    (tree / "b.dat").mkdir()
    for name in ("a.dat", "b.dat"):
        with pytest.raises(NotOurs):
            store.publish(str(tree), REF, staged(store, tree, {name: b"one"}))
    assert set(store.look_up(str(tree), ["a.dat", "b.dat"])) == {"a.dat", "b.dat"}


def test_a_folder_that_cannot_be_written_is_told_with_what_to_do(
    store: FileStore, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = staged(store, tree, {"a.dat": b"one"})

    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("os.rename", read_only)
    with pytest.raises(StoreError, match="Read-only") as told:
        store.publish(str(tree), REF, manifest)
    assert told.value.subject == str(tree / "a.dat")
    assert "write" in told.value.next_step
    assert not told.value.retryable
    monkeypatch.undo()
    store.publish(str(tree), REF, manifest)


def test_a_full_disk_may_be_tried_again(store: FileStore, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = staged(store, tree, {"a.dat": b"one"})

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.rename", full)
    with pytest.raises(StoreError) as told:
        store.publish(str(tree), REF, manifest)
    assert told.value.retryable


def test_where_a_rename_is_not_possible_the_file_is_copied(
    store: FileStore, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = staged(store, tree, {"a.dat": b"one"})
    real = os.rename

    def across(source: str, target: str) -> None:
        if "staged" in source:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr("os.rename", across)
    store.publish(str(tree), REF, manifest)
    assert (tree / "a.dat").read_bytes() == b"one"
    assert store.staged(str(tree), REF.job) == []
    assert sorted(entry.name for entry in tree.iterdir()) == [".pilotage", "a.dat"]


def test_outputs_are_staged_on_the_file_system_of_the_results(
    tree: Path, index: SqliteWorkIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    near = FolderStore(state, index)
    assert near.staged_folder(str(tree), "job-1") == str(state / "staged/job-1")
    real = os.stat

    class Elsewhere:
        st_dev = -1

    monkeypatch.setattr("os.stat", lambda path: Elsewhere() if path == state else real(path))
    far = FolderStore(state, index)
    assert far.staged_folder(str(tree), "job-1") == str(tree / ".pilotage-staged/job-1")
    far.publish(str(tree), REF, staged(far, tree, {"a.dat": b"one"}))
    far.forget(str(tree), "job-1")
    assert sorted(entry.name for entry in tree.iterdir()) == [".pilotage", "a.dat"]


def test_the_folders_of_a_job_carry_a_mark_until_it_is_forgotten(store: FileStore, tree: Path) -> None:
    mark = store.mark(str(tree), REF.job)
    folder = Path(store.staged_folder(str(tree), REF.job))
    assert mark.in_folder == ""
    assert len(mark.text) >= 16
    assert (folder / "mark").read_text().splitlines() == [mark.text]
    assert store.mark(str(tree), REF.job) == mark
    assert store.staged(str(tree), REF.job) == []
    store.forget(str(tree), REF.job)
    assert not folder.exists()
    assert store.mark(str(tree), REF.job) == mark
    assert (folder / "mark").read_text().splitlines() == [mark.text]


def test_a_tree_is_marked_itself_where_outputs_are_staged_elsewhere(
    tree: Path, index: SqliteWorkIndex, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    store = FolderStore(tmp_path / "state", index)
    mark, other = store.mark(str(tree), REF.job), store.mark(str(tree), "job-2")
    assert mark.text in (tmp_path / "state/staged/job-1/mark").read_text()
    assert mark.text in (tree / mark.in_folder).read_text()
    with pytest.raises(StoreError):
        store.read(str(tree), mark.in_folder, offset=0, size_bytes=1)
    store.forget(str(tree), REF.job)
    assert (tree / other.in_folder).is_file()
    store.forget(str(tree), "job-2")
    assert sorted(entry.name for entry in tree.iterdir()) == [".pilotage"]


def test_every_store_has_a_mark_of_its_own_and_leaves_those_before_it(
    store: FileStore, tree: Path, index: SqliteWorkIndex
) -> None:
    file = Path(store.staged_folder(str(tree), REF.job)) / "mark"
    texts = [store.mark(str(tree), REF.job).text]
    for _ in range(50):
        texts.append(FolderStore(tree / ".pilotage", index).mark(str(tree), REF.job).text)
        lines = file.read_text().splitlines()
        assert lines == texts[-len(lines) :]
        assert len(lines) >= min(len(texts), 10)
        assert file.stat().st_size <= MARK_BYTES_MAX
    assert len(set(texts)) == len(texts)
    assert [each.name for each in file.parent.iterdir()] == ["mark"]


def test_what_cannot_be_marked_is_not_said_to_be(
    store: FileStore, tree: Path, index: SqliteWorkIndex, tmp_path: Path
) -> None:
    Path(store.staged_folder(str(tree), REF.job), "mark").mkdir()
    assert store.mark(str(tree), REF.job).text == ""
    (tmp_path / "state").mkdir()
    (tree / ".pilotage-staged").write_text("in the way")
    mark = FolderStore(tmp_path / "state", index).mark(str(tree), REF.job)
    assert (bool(mark.text), mark.in_folder) == (True, "")


def test_a_staged_folder_that_somebody_removed_is_made_again(store: FileStore, tree: Path) -> None:
    shutil.rmtree(store.staged_folder(str(tree), REF.job))
    store.write_staged(str(tree), REF, number=0, offset=0, data=b"one")
    store.publish(str(tree), REF, (OutputFile(name="a", size_bytes=3, sha256=sha(b"one")),))
    assert (tree / "a").read_bytes() == b"one"


def test_a_lost_staged_file_is_told(store: FileStore, tree: Path) -> None:
    manifest = staged(store, tree, {"a.dat": b"one"})
    store.discard(str(tree), REF, 1)
    with pytest.raises(StoreError, match="gone"):
        store.publish(str(tree), REF, manifest)


def test_staged_attempts_are_listed_and_thrown_away(store: FileStore, tree: Path) -> None:
    other = AttemptRef(REF.job, "1.10.1", 12)
    staged(store, tree, {"a": b"", "b": b""})
    staged(store, tree, {"c": b""}, other)
    assert store.staged(str(tree), REF.job) == [("1.10.1", 12), ("1.2.3", 1)]
    store.discard(str(tree), REF, 2)
    assert store.staged(str(tree), REF.job) == [("1.10.1", 12)]
    store.forget(str(tree), REF.job)
    assert store.staged(str(tree), REF.job) == []


def test_pieces_of_a_staged_file_may_come_in_any_order_and_twice(store: FileStore, tree: Path) -> None:
    for offset, data in ((3, b"def"), (0, b"abc"), (3, b"def")):
        store.write_staged(str(tree), REF, number=0, offset=offset, data=data)
    store.publish(str(tree), REF, (OutputFile(name="a", size_bytes=6, sha256=sha(b"abcdef")),))
    assert (tree / "a").read_bytes() == b"abcdef"


@pytest.mark.parametrize(
    "ref", [AttemptRef("../x", "1.1.1", 1), AttemptRef("x", "../1", 1), AttemptRef("", "1.1.1", 1)]
)
def test_a_reference_that_is_none_stages_nothing(store: FileStore, tree: Path, ref: AttemptRef) -> None:
    with pytest.raises(StoreError):
        store.write_staged(str(tree), ref, number=0, offset=0, data=b"x")


def test_files_are_looked_up_one_by_one_and_by_their_folder(store: FileStore, tree: Path) -> None:
    (tree / "many").mkdir()
    names = [f"many/{number}" for number in range(0, 100, 2)]
    for name in names:
        (tree / name).write_bytes(name.encode())
    found = store.look_up(str(tree), [f"many/{number}" for number in range(100)] + ["many/1", "none/x"])
    assert sorted(found) == sorted(names)
    one = store.look_up(str(tree), ["many/2"])["many/2"]
    assert (one.size_bytes, one.inode) == (6, (tree / "many/2").stat().st_ino)


def test_a_checksum_is_worked_out_once_until_the_file_changes(
    store: FileStore, tree: Path, index: SqliteWorkIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree / "in.dat"
    path.write_bytes(b"old")
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert store.checksum(str(tree), "in.dat") == sha(b"old")
    store.close()
    anew = FolderStore(tree / ".pilotage", index)
    monkeypatch.setattr("pilotage.adapters.stores.checksums.hashlib", None)
    assert anew.checksum(str(tree), "in.dat") == sha(b"old")
    monkeypatch.undo()
    path.write_bytes(b"new")
    os.utime(path, (LONG_AGO, LONG_AGO + 1))
    assert anew.checksum(str(tree), "in.dat") == sha(b"new")
    assert anew.checksum(str(tree), "gone") is None


def test_a_file_that_was_changed_a_moment_ago_is_read_again(store: FileStore, tree: Path) -> None:
    path = tree / "in.dat"
    path.write_bytes(b"old")
    status = path.stat()
    assert store.checksum(str(tree), "in.dat") == sha(b"old")
    path.write_bytes(b"new")  # of the same length, and by a coarse clock at the same time
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.checksum(str(tree), "in.dat") == sha(b"new")


def test_a_piece_of_a_file_is_read(store: FileStore, tree: Path) -> None:
    (tree / "a").write_bytes(b"0123456789")
    assert store.read(str(tree), "a", offset=3, size_bytes=4) == b"3456"
    assert store.read(str(tree), "a", offset=8, size_bytes=100) == b"89"
    with pytest.raises(StoreError):
        store.read(str(tree), "none", offset=0, size_bytes=1)


def test_a_file_is_removed_only_while_it_is_the_one_that_was_made(store: FileStore, tree: Path) -> None:
    (tree / "a").write_bytes(b"one")
    assert not store.remove(str(tree), "a", sha256=sha(b"two"))
    assert store.remove(str(tree), "a", sha256=sha(b"one"))
    assert not (tree / "a").exists()
    assert not store.remove(str(tree), "a", sha256=sha(b"one"))


def test_what_is_not_ours_is_set_aside_where_that_is_wanted_and_never_lost(store: FileStore, tree: Path) -> None:
    for content in (b"theirs", b"theirs, too"):
        (tree / "a.dat").write_bytes(content)
        manifest = staged(store, tree, {"a.dat": b"ours"})
        with pytest.raises(NotOurs):
            store.publish(str(tree), REF, manifest)
        store.check(str(tree), manifest, in_the_way="set-aside")
        store.publish(str(tree), REF, manifest, in_the_way="set-aside")
        assert (tree / "a.dat").read_bytes() == b"ours"
    assert (tree / "a.dat.~1~").read_bytes() == b"theirs"
    assert (tree / "a.dat.~2~").read_bytes() == b"theirs, too"


def test_what_was_set_aside_has_its_name_again_where_another_file_cannot_be_published(
    store: FileStore, tree: Path
) -> None:
    (tree / "a.dat").write_bytes(b"theirs")
    (tree / "folder").mkdir()
    manifest = staged(store, tree, {"a.dat": b"ours", "b.dat": b"ours"})
    Path(store.staged_folder(str(tree), REF.job), f"{REF.package}-{REF.attempt}-1").unlink()
    with pytest.raises(StoreError, match="gone"):
        store.publish(str(tree), REF, manifest, in_the_way="set-aside")
    assert (tree / "a.dat").read_bytes() == b"theirs"
    assert not (tree / "a.dat.~1~").exists()
    assert store.staged(str(tree), REF.job) == [(REF.package, REF.attempt)]


def test_a_folder_in_the_way_is_set_aside_as_a_whole(store: FileStore, tree: Path) -> None:
    (tree / "a.dat").mkdir()
    (tree / "a.dat" / "inside").write_bytes(b"theirs")
    store.publish(str(tree), REF, staged(store, tree, {"a.dat": b"ours"}), in_the_way="set-aside")
    assert (tree / "a.dat").read_bytes() == b"ours"
    assert (tree / "a.dat.~1~" / "inside").read_bytes() == b"theirs"


def test_no_link_is_followed_to_what_is_removed_nor_removed_itself(store: FileStore, tree: Path) -> None:
    (tree / "real").mkdir()
    (tree / "real/a").write_bytes(b"one")
    (tree / "folder").symlink_to("real")
    (tree / "file").symlink_to("real/a")
    for name in ("folder/a", "file"):
        assert store.is_linked(str(tree), name)
        with pytest.raises(StoreError):
            store.remove(str(tree), name, sha256=sha(b"one"))
    assert not store.is_linked(str(tree), "real/a")
    assert not store.is_linked(str(tree), "none/at/all")
    assert (tree / "file").is_symlink()
    assert (tree / "real/a").exists()


def test_what_was_changed_while_its_time_was_set_back_is_not_removed(store: FileStore, tree: Path) -> None:
    file = tree / "a"
    store.publish(str(tree), REF, staged(store, tree, {"a": b"one"}))
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not store.remove(str(tree), "a", sha256=sha(b"one"))
    assert file.read_bytes() == b"two"


def test_folders_that_are_left_empty_are_removed_and_no_others(store: FileStore, tree: Path) -> None:
    for folder in ("a/b/c", "d/e", "f"):
        (tree / folder).mkdir(parents=True)
    (tree / "d/kept").write_bytes(b"")
    (tree / "link").symlink_to("f")
    names = ["a/b/c/1", "a/b/2", "d/e/3", "link/4", "none/5", "6"]
    assert store.remove_empty(str(tree), names) == ["a", "a/b", "a/b/c", "d/e"]
    assert {path.name for path in tree.iterdir()} >= {"d", "f", "link"}
    assert (tree / "d/kept").exists()
