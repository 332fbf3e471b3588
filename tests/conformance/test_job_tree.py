"""What every file tree promises: staged files become results by a grant, and nobody else's file is ever replaced."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.adapters.stores.folder_tree import FolderTree
from pilotage.adapters.stores.results_index import SqliteResultsIndex
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.agent.attempt.files import MARK_BYTES_MAX
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports import JobTree, MadeWork, NotOurs, StoreError, WorkFields

REF = AttemptRef("job-1", "1.2.3", 1)
LONG_AGO = 1_000_000_000


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The document's folder."""
    made = tmp_path / "document"
    made.mkdir()
    return made


@pytest.fixture
def index(here: Path) -> Iterator[SqliteResultsIndex]:
    """The index of a state folder beside the document."""
    made = SqliteResultsIndex(WorkDatabase(here / ".pilotage"))
    yield made
    made.close()


@pytest.fixture
def tree(here: Path, index: SqliteResultsIndex) -> JobTree:
    """A tree."""
    return FolderTree(here / ".pilotage", index)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def staged(tree: JobTree, here: Path, files: dict[str, bytes], ref: AttemptRef = REF) -> tuple[OutputFile, ...]:
    """Stage files as an agent does that sees the folder; their manifest."""
    folder = Path(tree.staged_folder(str(here), ref.job))
    for number, data in enumerate(files.values()):
        (folder / f"{ref.package}-{ref.attempt}-{number}").write_bytes(data)
    return tuple(OutputFile(name=name, size_bytes=len(data), sha256=sha(data)) for name, data in files.items())


def test_granted_files_are_published_under_their_names(tree: JobTree, here: Path) -> None:
    manifest = staged(tree, here, {"a.dat": b"one", "deep/er/b.dat": b"two"})
    tree.publish(str(here), REF, manifest)
    assert (here / "a.dat").read_bytes() == b"one"
    assert (here / "deep/er/b.dat").read_bytes() == b"two"
    assert tree.staged(str(here), REF.job) == []


def test_publishing_again_changes_nothing(tree: JobTree, here: Path) -> None:
    manifest = staged(tree, here, {"a.dat": b"one"})
    tree.publish(str(here), REF, manifest)
    before = (here / "a.dat").stat()
    tree.publish(str(here), REF, manifest)
    after = (here / "a.dat").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_publishing_goes_on_where_it_was_cut_off(tree: JobTree, here: Path) -> None:
    manifest = staged(tree, here, {"a.dat": b"one", "b.dat": b"two"})
    tree.publish(str(here), REF, manifest[:1])
    tree.publish(str(here), REF, manifest)
    assert (here / "b.dat").read_bytes() == b"two"


def test_a_file_of_somebody_else_is_never_replaced(tree: JobTree, here: Path) -> None:
    manifest = staged(tree, here, {"a.dat": b"ours"})
    (here / "a.dat").write_bytes(b"mine")
    with pytest.raises(NotOurs, match=r"a\.dat") as refused:
        tree.publish(str(here), REF, manifest)
    assert "move it away" in refused.value.next_step
    assert (here / "a.dat").read_bytes() == b"mine"
    (here / "a.dat").unlink()
    tree.publish(str(here), REF, manifest)
    assert (here / "a.dat").read_bytes() == b"ours"


def test_where_one_file_is_in_the_way_no_other_gets_its_name(tree: JobTree, here: Path) -> None:
    manifest = staged(tree, here, {"a.dat": b"one", "b.dat": b"two", "c.dat": b"three"})
    (here / "a.dat").write_bytes(b"one")  # equal, and its owner may move it away all the same
    (here / "c.dat").write_bytes(b"mine")
    with pytest.raises(NotOurs, match=r"c\.dat"):
        tree.publish(str(here), REF, manifest)
    assert not (here / "b.dat").exists()
    (here / "a.dat").unlink()
    (here / "c.dat").unlink()
    tree.publish(str(here), REF, manifest)
    assert [(here / name).read_bytes() for name in ("a.dat", "b.dat", "c.dat")] == [b"one", b"two", b"three"]


def test_a_file_with_the_same_content_is_taken_as_it_is(tree: JobTree, here: Path) -> None:
    manifest = staged(tree, here, {"a.dat": b"same"})
    (here / "a.dat").write_bytes(b"same")
    tree.publish(str(here), REF, manifest)
    assert tree.staged(str(here), REF.job) == []


def test_our_own_file_is_replaced_by_a_later_one(tree: JobTree, here: Path) -> None:
    tree.publish(str(here), REF, staged(tree, here, {"a.dat": b"one"}))
    again = AttemptRef(REF.job, REF.package, 2)
    tree.publish(str(here), again, staged(tree, here, {"a.dat": b"two"}, again))
    assert (here / "a.dat").read_bytes() == b"two"


def test_a_file_that_another_job_made_which_must_not_be_disturbed_is_not_replaced(
    tree: JobTree, here: Path, index: SqliteResultsIndex
) -> None:
    other = AttemptRef("job-2", "1.1.1", 1)
    asked: list[str] = []
    fields = WorkFields(argv="a", software="b", environment="c", outputs="d", inputs={})

    def publish(ref: AttemptRef, data: bytes, *, rival: bool) -> None:
        def is_rival(job: str) -> bool:
            asked.append(job)
            return rival

        manifest = staged(tree, here, {"a.dat": data}, ref)
        made = MadeWork(key=sha(data), fields=fields, folder=str(here), document="d", ref=ref, manifest=manifest)
        index.keep([made])
        tree.publish(str(here), ref, manifest, is_rival=is_rival)

    publish(REF, b"one", rival=True)
    with pytest.raises(NotOurs, match=r"job job-1, .* has made another file of this name"):
        publish(other, b"two", rival=True)
    assert (here / "a.dat").read_bytes() == b"one"
    publish(other, b"one", rival=True)  # the same content is in nobody's way
    assert asked == [REF.job]
    publish(other, b"two", rival=False)
    assert (here / "a.dat").read_bytes() == b"two"


def test_our_own_file_is_not_ours_any_more_when_somebody_changed_it(tree: JobTree, here: Path) -> None:
    tree.publish(str(here), REF, staged(tree, here, {"a.dat": b"one"}))
    (here / "a.dat").write_bytes(b"edited")
    again = AttemptRef(REF.job, REF.package, 2)
    manifest = staged(tree, here, {"a.dat": b"two"}, again)
    with pytest.raises(NotOurs):
        tree.publish(str(here), again, manifest)
    assert (here / "a.dat").read_bytes() == b"edited"


def test_what_the_index_kept_is_ours_for_a_store_that_starts_anew(here: Path, index: SqliteResultsIndex) -> None:
    manifest = (OutputFile(name="a.dat", size_bytes=3, sha256=sha(b"one")),)
    fields = WorkFields(argv="a", software="b", environment="c", outputs="d", inputs={})
    index.keep([MadeWork(key=sha(b"k"), fields=fields, folder=str(here), document="d", ref=REF, manifest=manifest)])
    (here / "a.dat").write_bytes(b"one")
    tree = FolderTree(here / ".pilotage", index)
    found = tree.look_up(str(here), ["a.dat"])
    assert tree.is_ours(str(here), list(found.values())) == {"a.dat": True}
    (here / "a.dat").write_bytes(b"two")
    found = tree.look_up(str(here), ["a.dat"])
    assert tree.is_ours(str(here), list(found.values())) == {"a.dat": False}


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/out", "", "a//b", "./a", ".pilotage/book", "a\0b"])
def test_a_name_that_leaves_the_tree_is_refused(tree: JobTree, here: Path, name: str) -> None:
    with pytest.raises(StoreError):
        tree.read(str(here), name, offset=0, size_bytes=1)
    with pytest.raises(StoreError):
        tree.checksum(str(here), name)
    with pytest.raises(StoreError):
        tree.remove(str(here), name, sha256=sha(b""))
    if name:
        manifest = (OutputFile(name=name, size_bytes=0, sha256=sha(b"")),)
        with pytest.raises(StoreError):
            tree.publish(str(here), REF, manifest)


def test_a_link_that_leads_out_of_the_tree_is_not_followed(tree: JobTree, here: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (here / "link").symlink_to(tmp_path / "elsewhere")
    manifest = staged(tree, here, {"link/sub/a.dat": b"one"})
    with pytest.raises(StoreError, match="leads out"):
        tree.publish(str(here), REF, manifest)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("link, leads_to", [("out", ".pilotage"), ("a/b", "../.pilotage"), ("out", "a/state")])
def test_a_link_that_leads_into_our_own_state_is_not_followed(here: Path, link: str, leads_to: str) -> None:
    (here / "a" / "state").mkdir(parents=True)
    state = here / leads_to.removeprefix("../")
    index = SqliteResultsIndex(WorkDatabase(state))
    tree = FolderTree(state, index)
    (here / link).symlink_to(leads_to)
    (state / "token").write_bytes(b"secret")
    for name in (f"{link}/token", f"{link}/new/file"):
        with pytest.raises(StoreError, match="the state of pilotage"):
            tree.publish(str(here), REF, staged(tree, here, {name: b"one"}))
    with pytest.raises(StoreError, match="the state of pilotage"):
        tree.remove(str(here), f"{link}/token", sha256=sha(b"secret"))
    with pytest.raises(StoreError, match="the state of pilotage"):
        tree.publish(str(here), REF, staged(tree, here, {f"{state.relative_to(here)}/token": b"one"}))
    assert (state / "token").read_bytes() == b"secret"
    assert not (state / "new").exists()
    index.close()


def test_a_link_within_the_tree_is_followed(tree: JobTree, here: Path) -> None:
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    tree.publish(str(here), REF, staged(tree, here, {"link/a.dat": b"one"}))
    assert (here / "real/a.dat").read_bytes() == b"one"


def test_a_link_to_nowhere_and_a_folder_are_in_the_way(tree: JobTree, here: Path) -> None:
    (here / "a.dat").symlink_to("nowhere")
    (here / "b.dat").mkdir()
    for name in ("a.dat", "b.dat"):
        with pytest.raises(NotOurs):
            tree.publish(str(here), REF, staged(tree, here, {name: b"one"}))
    assert set(tree.look_up(str(here), ["a.dat", "b.dat"])) == {"a.dat", "b.dat"}


def test_a_folder_that_cannot_be_written_is_told_with_what_to_do(
    tree: JobTree, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = staged(tree, here, {"a.dat": b"one"})

    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("os.rename", read_only)
    with pytest.raises(StoreError, match="Read-only") as told:
        tree.publish(str(here), REF, manifest)
    assert told.value.subject == str(here / "a.dat")
    assert "write" in told.value.next_step
    assert not told.value.retryable
    monkeypatch.undo()
    tree.publish(str(here), REF, manifest)


def test_a_full_disk_may_be_tried_again(tree: JobTree, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = staged(tree, here, {"a.dat": b"one"})

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.rename", full)
    with pytest.raises(StoreError) as told:
        tree.publish(str(here), REF, manifest)
    assert told.value.retryable


def test_where_a_rename_is_not_possible_the_file_is_copied(
    tree: JobTree, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = staged(tree, here, {"a.dat": b"one"})
    real = os.rename

    def across(source: str, target: str) -> None:
        if "staged" in source:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr("os.rename", across)
    tree.publish(str(here), REF, manifest)
    assert (here / "a.dat").read_bytes() == b"one"
    assert tree.staged(str(here), REF.job) == []
    assert sorted(entry.name for entry in here.iterdir()) == [".pilotage", "a.dat"]


def test_outputs_are_staged_on_the_file_system_of_the_results(
    here: Path, index: SqliteResultsIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    near = FolderTree(state, index)
    assert near.staged_folder(str(here), "job-1") == str(state / "staged/job-1")
    real = os.stat

    class Elsewhere:
        st_dev = -1

    monkeypatch.setattr("os.stat", lambda path: Elsewhere() if path == state else real(path))
    far = FolderTree(state, index)
    assert far.staged_folder(str(here), "job-1") == str(here / ".pilotage-staged/job-1")
    far.publish(str(here), REF, staged(far, here, {"a.dat": b"one"}))
    far.forget(str(here), "job-1")
    assert sorted(entry.name for entry in here.iterdir()) == [".pilotage", "a.dat"]


def test_the_folders_of_a_job_carry_a_mark_until_it_is_forgotten(tree: JobTree, here: Path) -> None:
    mark = tree.mark(str(here), REF.job)
    folder = Path(tree.staged_folder(str(here), REF.job))
    assert mark.in_folder == ""
    assert len(mark.text) >= 16
    assert (folder / "mark").read_text().splitlines() == [mark.text]
    assert tree.mark(str(here), REF.job) == mark
    assert tree.staged(str(here), REF.job) == []
    tree.forget(str(here), REF.job)
    assert not folder.exists()
    assert tree.mark(str(here), REF.job) == mark
    assert (folder / "mark").read_text().splitlines() == [mark.text]


def test_a_tree_is_marked_itself_where_outputs_are_staged_elsewhere(
    here: Path, index: SqliteResultsIndex, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    tree = FolderTree(tmp_path / "state", index)
    mark, other = tree.mark(str(here), REF.job), tree.mark(str(here), "job-2")
    assert mark.text in (tmp_path / "state/staged/job-1/mark").read_text()
    assert mark.text in (here / mark.in_folder).read_text()
    with pytest.raises(StoreError):
        tree.read(str(here), mark.in_folder, offset=0, size_bytes=1)
    tree.forget(str(here), REF.job)
    assert (here / other.in_folder).is_file()
    tree.forget(str(here), "job-2")
    assert sorted(entry.name for entry in here.iterdir()) == [".pilotage"]


def test_every_store_has_a_mark_of_its_own_and_leaves_those_before_it(
    tree: JobTree, here: Path, index: SqliteResultsIndex
) -> None:
    file = Path(tree.staged_folder(str(here), REF.job)) / "mark"
    texts = [tree.mark(str(here), REF.job).text]
    for _ in range(50):
        texts.append(FolderTree(here / ".pilotage", index).mark(str(here), REF.job).text)
        lines = file.read_text().splitlines()
        assert lines == texts[-len(lines) :]
        assert len(lines) >= min(len(texts), 10)
        assert file.stat().st_size <= MARK_BYTES_MAX
    assert len(set(texts)) == len(texts)
    assert [each.name for each in file.parent.iterdir()] == ["mark"]


def test_what_cannot_be_marked_is_not_said_to_be(
    tree: JobTree, here: Path, index: SqliteResultsIndex, tmp_path: Path
) -> None:
    Path(tree.staged_folder(str(here), REF.job), "mark").mkdir()
    assert tree.mark(str(here), REF.job).text == ""
    (tmp_path / "state").mkdir()
    (here / ".pilotage-staged").write_text("in the way")
    mark = FolderTree(tmp_path / "state", index).mark(str(here), REF.job)
    assert (bool(mark.text), mark.in_folder) == (True, "")


def test_a_staged_folder_that_somebody_removed_is_made_again(tree: JobTree, here: Path) -> None:
    shutil.rmtree(tree.staged_folder(str(here), REF.job))
    tree.write_staged(str(here), REF, number=0, offset=0, data=b"one")
    tree.publish(str(here), REF, (OutputFile(name="a", size_bytes=3, sha256=sha(b"one")),))
    assert (here / "a").read_bytes() == b"one"


def test_a_lost_staged_file_is_told(tree: JobTree, here: Path) -> None:
    manifest = staged(tree, here, {"a.dat": b"one"})
    tree.discard(str(here), REF, 1)
    with pytest.raises(StoreError, match="was removed before it was published"):
        tree.publish(str(here), REF, manifest)


def test_staged_attempts_are_listed_and_thrown_away(tree: JobTree, here: Path) -> None:
    other = AttemptRef(REF.job, "1.10.1", 12)
    staged(tree, here, {"a": b"", "b": b""})
    staged(tree, here, {"c": b""}, other)
    assert tree.staged(str(here), REF.job) == [("1.10.1", 12), ("1.2.3", 1)]
    tree.discard(str(here), REF, 2)
    assert tree.staged(str(here), REF.job) == [("1.10.1", 12)]
    tree.forget(str(here), REF.job)
    assert tree.staged(str(here), REF.job) == []


def test_what_a_killed_agent_staged_in_part_is_thrown_away_too(tree: JobTree, here: Path) -> None:
    staged(tree, here, {"a": b"", "b": b""})
    folder = Path(tree.staged_folder(str(here), REF.job))
    draft = folder / f"{REF.package}-{REF.attempt}-2.part"
    draft.write_bytes(b"half")
    tree.discard(str(here), REF, 0)
    assert not draft.exists()
    assert tree.staged(str(here), REF.job) == []
    draft.write_bytes(b"half")
    tree.forget(str(here), REF.job)
    assert not folder.exists()


def test_pieces_of_a_staged_file_may_come_in_any_order_and_twice(tree: JobTree, here: Path) -> None:
    for offset, data in ((3, b"def"), (0, b"abc"), (3, b"def")):
        tree.write_staged(str(here), REF, number=0, offset=offset, data=data)
    tree.publish(str(here), REF, (OutputFile(name="a", size_bytes=6, sha256=sha(b"abcdef")),))
    assert (here / "a").read_bytes() == b"abcdef"


@pytest.mark.parametrize(
    "ref", [AttemptRef("../x", "1.1.1", 1), AttemptRef("x", "../1", 1), AttemptRef("", "1.1.1", 1)]
)
def test_a_reference_that_is_none_stages_nothing(tree: JobTree, here: Path, ref: AttemptRef) -> None:
    with pytest.raises(StoreError):
        tree.write_staged(str(here), ref, number=0, offset=0, data=b"x")


def test_files_are_looked_up_one_by_one_and_by_their_folder(tree: JobTree, here: Path) -> None:
    (here / "many").mkdir()
    names = [f"many/{number}" for number in range(0, 100, 2)]
    for name in names:
        (here / name).write_bytes(name.encode())
    found = tree.look_up(str(here), [f"many/{number}" for number in range(100)] + ["many/1", "none/x"])
    assert sorted(found) == sorted(names)
    one = tree.look_up(str(here), ["many/2"])["many/2"]
    assert (one.size_bytes, one.inode) == (6, (here / "many/2").stat().st_ino)


def test_a_checksum_is_worked_out_once_until_the_file_changes(
    tree: JobTree, here: Path, index: SqliteResultsIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here / "in.dat"
    path.write_bytes(b"old")
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert tree.checksum(str(here), "in.dat") == sha(b"old")
    tree.close()
    anew = FolderTree(here / ".pilotage", index)
    monkeypatch.setattr("pilotage.adapters.stores.checksums.hashlib", None)
    assert anew.checksum(str(here), "in.dat") == sha(b"old")
    monkeypatch.undo()
    path.write_bytes(b"new")
    os.utime(path, (LONG_AGO, LONG_AGO + 1))
    assert anew.checksum(str(here), "in.dat") == sha(b"new")
    assert anew.checksum(str(here), "was removed before it was published") is None


def test_a_file_that_was_changed_a_moment_ago_is_read_again(tree: JobTree, here: Path) -> None:
    path = here / "in.dat"
    path.write_bytes(b"old")
    status = path.stat()
    assert tree.checksum(str(here), "in.dat") == sha(b"old")
    path.write_bytes(b"new")  # of the same length, and by a coarse clock at the same time
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert tree.checksum(str(here), "in.dat") == sha(b"new")


def test_a_piece_of_a_file_is_read(tree: JobTree, here: Path) -> None:
    (here / "a").write_bytes(b"0123456789")
    assert tree.read(str(here), "a", offset=3, size_bytes=4) == b"3456"
    assert tree.read(str(here), "a", offset=8, size_bytes=100) == b"89"
    with pytest.raises(StoreError):
        tree.read(str(here), "none", offset=0, size_bytes=1)


def test_a_file_is_removed_only_while_it_is_the_one_that_was_made(tree: JobTree, here: Path) -> None:
    (here / "a").write_bytes(b"one")
    assert not tree.remove(str(here), "a", sha256=sha(b"two"))
    assert tree.remove(str(here), "a", sha256=sha(b"one"))
    assert not (here / "a").exists()
    assert not tree.remove(str(here), "a", sha256=sha(b"one"))


def test_what_is_not_ours_is_set_aside_where_that_is_wanted_and_never_lost(tree: JobTree, here: Path) -> None:
    for content in (b"theirs", b"theirs, too"):
        (here / "a.dat").write_bytes(content)
        manifest = staged(tree, here, {"a.dat": b"ours"})
        with pytest.raises(NotOurs):
            tree.publish(str(here), REF, manifest)
        tree.check(str(here), manifest, in_the_way="set-aside")
        tree.publish(str(here), REF, manifest, in_the_way="set-aside")
        assert (here / "a.dat").read_bytes() == b"ours"
    assert (here / "a.dat.~1~").read_bytes() == b"theirs"
    assert (here / "a.dat.~2~").read_bytes() == b"theirs, too"


def test_what_was_set_aside_has_its_name_again_where_another_file_cannot_be_published(
    tree: JobTree, here: Path
) -> None:
    (here / "a.dat").write_bytes(b"theirs")
    (here / "folder").mkdir()
    manifest = staged(tree, here, {"a.dat": b"ours", "b.dat": b"ours"})
    Path(tree.staged_folder(str(here), REF.job), f"{REF.package}-{REF.attempt}-1").unlink()
    with pytest.raises(StoreError, match="was removed before it was published"):
        tree.publish(str(here), REF, manifest, in_the_way="set-aside")
    assert (here / "a.dat").read_bytes() == b"theirs"
    assert not (here / "a.dat.~1~").exists()
    assert tree.staged(str(here), REF.job) == [(REF.package, REF.attempt)]


def test_a_folder_in_the_way_is_set_aside_as_a_whole(tree: JobTree, here: Path) -> None:
    (here / "a.dat").mkdir()
    (here / "a.dat" / "inside").write_bytes(b"theirs")
    tree.publish(str(here), REF, staged(tree, here, {"a.dat": b"ours"}), in_the_way="set-aside")
    assert (here / "a.dat").read_bytes() == b"ours"
    assert (here / "a.dat.~1~" / "inside").read_bytes() == b"theirs"


def test_no_link_is_followed_to_what_is_removed_nor_removed_itself(tree: JobTree, here: Path) -> None:
    (here / "real").mkdir()
    (here / "real/a").write_bytes(b"one")
    (here / "folder").symlink_to("real")
    (here / "file").symlink_to("real/a")
    for name in ("folder/a", "file"):
        assert tree.is_linked(str(here), name)
        with pytest.raises(StoreError):
            tree.remove(str(here), name, sha256=sha(b"one"))
    assert not tree.is_linked(str(here), "real/a")
    assert not tree.is_linked(str(here), "none/at/all")
    assert (here / "file").is_symlink()
    assert (here / "real/a").exists()


def test_what_was_changed_while_its_time_was_set_back_is_not_removed(tree: JobTree, here: Path) -> None:
    file = here / "a"
    tree.publish(str(here), REF, staged(tree, here, {"a": b"one"}))
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not tree.remove(str(here), "a", sha256=sha(b"one"))
    assert file.read_bytes() == b"two"


def test_folders_that_are_left_empty_are_removed_and_no_others(tree: JobTree, here: Path) -> None:
    for folder in ("a/b/c", "d/e", "f"):
        (here / folder).mkdir(parents=True)
    (here / "d/kept").write_bytes(b"")
    (here / "link").symlink_to("f")
    names = ["a/b/c/1", "a/b/2", "d/e/3", "link/4", "none/5", "6"]
    assert tree.remove_empty(str(here), names) == ["a", "a/b", "a/b/c", "d/e"]
    assert {path.name for path in here.iterdir()} >= {"d", "f", "link"}
    assert (here / "d/kept").exists()


def test_staging_a_file_in_many_pieces_leaves_none_open(tree: JobTree, here: Path) -> None:
    tree.write_staged(str(here), REF, number=0, offset=0, data=b"x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for offset in range(1, 50):
        tree.write_staged(str(here), REF, number=0, offset=offset, data=b"x")
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 49
