"""The key of what a package is asked for: what changes it, what does not, and what is said to have changed."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.stores.folder_tree import FolderTree
from pilotage.adapters.stores.results_index import SqliteResultsIndex
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.model.exchange.exchange import (
    AttemptRef,
    Work,
    WorkBinary,
    WorkContainer,
    WorkInput,
    WorkOutput,
    WorkScript,
)
from pilotage.ports import MadeWork
from pilotage.service.works.reuse import INPUTS_MAX, Completer, changed, completed, fields_of, is_complete, key_of

SHA = "ab" * 32
OTHER = "cd" * 32

BINARY = WorkBinary(argv=("go", "a b"), environment={"X": "1", "Y": "2"}, outputs=(WorkOutput(name="out"),))
WORK = Work(
    path="j/001/001/001",
    name="go-0",
    index=0,
    folder="/data",
    staged="/staged",
    inputs=(WorkInput(name="bin/go", sha256=SHA, executable=True), WorkInput(name="in", sha256=SHA)),
    binaries=(BINARY,),
    software="reco@p1",
)


def binary(**fields: object) -> Work:
    return replace(binaries=(msgspec.structs.replace(BINARY, **fields),))


def replace(**fields: object) -> Work:
    return msgspec.structs.replace(WORK, **fields)


def script(file: WorkInput) -> WorkScript:
    return WorkScript(argv=("check",), files=(file,))


def before_of(work: Work) -> Work:
    """The work that another is a change of: where that has a script of some content, one with the same words."""
    scripts = {name: getattr(work, name) for name in ("pre", "post")}
    files = {
        name: tuple(msgspec.structs.replace(file, sha256=SHA) for file in each.files)
        for name, each in scripts.items()
        if each is not None and each.files
    }
    return replace(**{name: msgspec.structs.replace(scripts[name], files=known) for name, known in files.items()})


@pytest.mark.parametrize(
    "work, field",
    [
        (binary(argv=("go", "a", "b")), "argv"),
        (binary(stdin="in"), "argv"),
        (binary(stdout="log"), "argv"),
        (replace(binaries=(BINARY, BINARY)), "argv"),
        (replace(startup=("start.sh",)), "argv"),
        (replace(pre=WorkScript(argv=("check",))), "argv"),
        (replace(post=WorkScript(argv=("check",))), "argv"),
        (replace(pre=script(WorkInput(name="check", sha256=OTHER, executable=True))), "software check"),
        (replace(post=script(WorkInput(name="check.py", sha256=OTHER))), "input check.py"),
        (replace(software="reco@p2"), "software reco@p2"),
        (replace(software=""), "software reco@p1"),
        (replace(container=WorkContainer(image="busybox")), "software busybox"),
        (replace(inputs=(WorkInput(name="bin/go", sha256=OTHER, executable=True), WORK.inputs[1])), "software bin/go"),
        (binary(environment={"X": "1", "Y": "3"}), "environment Y"),
        (binary(environment={"X": "1"}), "environment Y"),
        (binary(environment={}), "environment X, Y"),
        (binary(environment={"X": "2", "Y": "2", "Z": ""}), "environment X, Z"),
        (
            binary(environment={"X": "1", "Y": "2", **dict.fromkeys("abcdefg", "")}),
            "environment a, b, c, d, e and 2 more",
        ),
        (replace(inputs=(WORK.inputs[0], WorkInput(name="in", sha256=OTHER))), "input in"),
        (replace(inputs=(*WORK.inputs, WorkInput(name="more", sha256=SHA))), "input more"),
        (replace(inputs=WORK.inputs[:1]), "input in"),
        (binary(outputs=(WorkOutput(name="out", pattern=True),)), "outputs"),
        (binary(outputs=(WorkOutput(expression="out"),)), "outputs"),
    ],
)
def test_what_matters_changes_the_key_and_is_named(work: Work, field: str) -> None:
    before, now = fields_of(before_of(work)), fields_of(work)
    assert key_of(before) != key_of(now)
    assert changed(before, now) == field


def test_of_what_was_made_before_programs_were_told_apart_all_are_named_and_the_key_is_the_same() -> None:
    before = msgspec.structs.replace(fields_of(WORK), programs={})
    assert key_of(before) == key_of(fields_of(WORK))
    now = fields_of(replace(inputs=(WorkInput(name="bin/go", sha256=OTHER, executable=True), WORK.inputs[1])))
    assert changed(before, now) == "software reco@p1 or bin/go"


def test_of_what_was_made_before_variables_were_told_apart_none_is_named_and_the_key_is_the_same() -> None:
    before = msgspec.structs.replace(fields_of(WORK), variables={})
    assert key_of(before) == key_of(fields_of(WORK))
    assert changed(before, fields_of(binary(environment={"X": "2"}))) == "environment"


def test_where_there_were_no_variables_all_are_new() -> None:
    assert changed(fields_of(binary(environment={})), fields_of(WORK)) == "environment X, Y"


def test_a_variable_of_one_of_several_binaries_is_named() -> None:
    def both(value: str) -> Work:
        second = msgspec.structs.replace(BINARY, environment={"X": "1", "Z": value})
        return replace(binaries=(BINARY, second))

    assert changed(fields_of(both("a")), fields_of(both("b"))) == "environment Z"


@pytest.mark.parametrize(
    "work",
    [
        replace(path="k/002/001/001", name="other", index=7, folder="/elsewhere", staged="/x", keep_failed=True),
        replace(watched=("log",), stalled_after_seconds=5.0, kept="/kept"),
        replace(inputs=(WORK.inputs[1], WORK.inputs[0])),
        replace(inputs=(msgspec.structs.replace(WORK.inputs[0], content=True), WORK.inputs[1])),
        binary(environment={"Y": "2", "X": "1"}),
    ],
)
def test_what_does_not_matter_does_not_change_the_key(work: Work) -> None:
    assert key_of(fields_of(work)) == key_of(fields_of(WORK))
    assert changed(fields_of(WORK), fields_of(work)) == ""


def test_the_key_is_the_same_for_ever() -> None:
    assert key_of(fields_of(WORK)) == "cb690016366b8815b8471af8f7858fc463e7e5a30e862f306fb5950250664cbd"


def test_an_input_without_a_checksum_is_completed_from_its_file() -> None:
    fields = fields_of(replace(inputs=(WORK.inputs[0], WorkInput(name="in"))))
    assert not is_complete(fields)
    assert completed(fields, {"in": SHA}.get) == fields_of(WORK)
    assert completed(fields, lambda _: None) is None


def test_a_complete_one_asks_for_no_checksum() -> None:
    def never(name: str) -> str:
        raise AssertionError(name)

    assert completed(fields_of(WORK), never) == fields_of(WORK)


def test_very_many_inputs_are_one_field() -> None:
    def many(changed: str, *, known: bool = True) -> Work:
        names = [f"{number}.dat" for number in range(INPUTS_MAX + 1)]
        return replace(
            inputs=tuple(
                WorkInput(name=name, sha256=(OTHER if name == changed else SHA) if known else "") for name in names
            )
        )

    before, now = fields_of(many("")), fields_of(many("7.dat"))
    assert len(before.inputs) == 1
    assert key_of(before) != key_of(now)
    assert changed(before, now) == "input (one of 1,001)"
    later = completed(fields_of(many("", known=False)), lambda _: SHA)
    assert later == before


def made(folder: Path, number: int) -> MadeWork:
    fields = fields_of(replace(inputs=(WORK.inputs[0], WorkInput(name=f"in-{number}"))))
    return MadeWork(
        key=key_of(fields),
        fields=fields,
        folder=str(folder),
        document="j",
        ref=AttemptRef("job", f"1.{number}.1", 1),
        manifest=(),
    )


def expected(number: int, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    return key_of(fields_of(replace(inputs=(WORK.inputs[0], WorkInput(name=f"in-{number}", sha256=sha256)))))


@pytest.fixture
def index(tmp_path: Path) -> SqliteResultsIndex:
    """An index, which the test closes."""
    return SqliteResultsIndex(WorkDatabase(tmp_path / ".pilotage"))


def placed(tree: FolderTree, folder: Path, number: int) -> MadeWork:
    """What was made of an input as it is now."""
    work = made(folder, number)
    return msgspec.structs.replace(work, placed=tree.look_up(str(folder), list(work.fields.inputs)))


def test_what_was_made_of_an_input_that_is_another_by_now_is_not_kept(
    tmp_path: Path, index: SqliteResultsIndex
) -> None:
    tree = FolderTree(tmp_path / ".pilotage", index)
    (tmp_path / "in-1").write_bytes(b"one")
    work = placed(tree, tmp_path, 1)
    (tmp_path / "new").write_bytes(b"two")
    (tmp_path / "new").replace(tmp_path / "in-1")
    completer = Completer(tree, index)
    completer.complete([work])
    completer.settle()
    completer.stop()
    assert not index.find(str(tmp_path), [expected(1, b"one"), expected(1, b"two")])
    index.close()


def test_what_was_made_is_kept_once_the_checksums_of_its_inputs_are_known(
    tmp_path: Path, index: SqliteResultsIndex
) -> None:
    tree = FolderTree(tmp_path / ".pilotage", index)
    (tmp_path / "in-1").write_bytes(b"one")
    (tmp_path / "in-3").write_bytes(b"three")
    completer = Completer(tree, index)
    completer.complete([placed(tree, tmp_path, 1), made(tmp_path, 2)])  # the second has lost its input
    completer.complete([placed(tree, tmp_path, 3)])
    completer.settle()
    completer.stop()
    found = index.find(str(tmp_path), [expected(1, b"one"), expected(3, b"three")])
    assert {each.ref.package for each in found.values()} == {"1.1.1", "1.3.1"}
    assert not index.find(str(tmp_path), [made(tmp_path, 2).key])
    index.close()


def test_a_completer_that_had_nothing_to_do_ends_at_once(tmp_path: Path, index: SqliteResultsIndex) -> None:
    before = threading.active_count()
    completer = Completer(FolderTree(tmp_path, index), index)
    completer.complete([])
    completer.settle()
    completer.stop()
    assert threading.active_count() == before
    index.close()


def test_a_checksum_that_cannot_be_had_ends_nothing(
    tmp_path: Path, index: SqliteResultsIndex, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in-3").write_bytes(b"three")
    bad = msgspec.structs.replace(made(tmp_path, 1), fields=fields_of(replace(inputs=(WorkInput(name="../in"),))))
    tree = FolderTree(tmp_path / ".pilotage", index)
    completer = Completer(tree, index)
    completer.complete([bad, placed(tree, tmp_path, 3)])
    completer.settle()
    completer.stop()
    assert index.find(str(tmp_path), [expected(3, b"three")])
    assert "was not recorded" in caplog.text
    index.close()
