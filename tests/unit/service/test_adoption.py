"""Nothing is run twice for nothing: what need not be run again, and what must be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports import NotOurs, ResultsIndex
from pilotage.service.works.reuse import adopt, may_be_there
from tests.kit.earlier_work import Place, place

CHAIN = """
pilotage: 1
job: chain
stages:
  - each: {raw: "*.raw"}
    run: ./reco {raw}
    inputs: ["{raw}"]
    outputs: ["{raw.stem}.dat"]
  - run: merge {inputs}
    inputs: ["*.dat"]
    outputs: [all.root]
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A folder with a program and two raw files."""
    with place(tmp_path) as made:
        made.write(reco="#!/bin/sh\n", a_raw="A", b_raw="B")
        (tmp_path / "reco").chmod(0o755)
        yield made


def test_a_second_run_of_the_same_runs_nothing(here: Place) -> None:
    assert here.run(CHAIN) == ["reco-0", "reco-1", "merge"]
    prepared = here.prepare(CHAIN)
    assert [each.package for each in prepared.adopted] == ["1.1.1", "1.2.1", "2.1.1"]
    first = prepared.adopted[0]
    assert [file.name for file in first.manifest] == ["a.dat"]
    assert first.maker.package == "1.1.1"
    assert first.maker.job in first.message
    assert here.run(CHAIN) == []


def test_a_changed_input_runs_what_takes_it_and_what_follows(here: Place) -> None:
    here.run(CHAIN)
    here.write(b_raw="other")
    assert here.run(CHAIN) == ["reco-1", "merge"]
    assert here.run(CHAIN) == []


def test_an_input_that_is_too_large_to_be_captured_is_known_by_its_checksum(here: Place) -> None:
    (here.folder / "a.raw").write_bytes(b"x" * 100_000)
    assert "a.raw" not in here.prepare(CHAIN).origin.captured
    here.run(CHAIN)
    assert here.run(CHAIN) == []
    (here.folder / "a.raw").write_bytes(b"y" * 100_000)
    assert here.run(CHAIN) == ["reco-0", "merge"]


def test_a_changed_program_runs_everything_that_uses_it(here: Place) -> None:
    here.run(CHAIN)
    here.write(reco="#!/bin/bash\n")
    assert here.run(CHAIN) == ["reco-0", "reco-1", "merge"]


@pytest.mark.parametrize("which, words", [("pre", "./check a.raw"), ("post", "sh -e check b.raw")])
def test_a_changed_script_beside_a_package_runs_it_again(here: Place, which: str, words: str) -> None:
    text = CHAIN.replace("    run: ./reco", f"    scripts: {{{which}: {{run: {words.split()}}}}}\n    run: ./reco")
    here.write(check="#!/bin/sh\n")
    here.run(text)
    assert here.run(text) == []
    here.write(check="#!/bin/sh\nexit 0\n")
    assert here.run(text) == ["reco-0", "reco-1", "merge"]
    assert here.run(text) == []


@pytest.mark.parametrize(
    "before, after",
    [
        ("./reco {raw}", "./reco -v {raw}"),
        ("    run: ./reco", "    environment: {exported: {LEVEL: '3'}}\n    run: ./reco"),
        ("    run: ./reco", "    container: busybox\n    run: ./reco"),
    ],
)
def test_a_changed_command_environment_or_container_runs_again(here: Place, before: str, after: str) -> None:
    here.run(CHAIN)
    assert here.run(CHAIN.replace(before, after))[:2] == ["reco-0", "reco-1"]


def test_results_that_were_not_stored_are_made_again_when_they_are_to_be(here: Place) -> None:
    text = "pilotage: 1\njob: j\nstages:\n  - each: {i: 1..2}\n    run: make {i}\n    outputs: [{name: 'o-{i}'}]\n"
    here.run(text)
    stored = text.replace("'o-{i}'}", "'o-{i}', locator: '/far/o-{i}'}")
    assert here.run(stored) == ["make-0", "make-1"]
    assert here.run(stored) == []
    assert here.run(stored.replace("/far/", "/farther/")) == ["make-0", "make-1"]


def test_what_does_not_matter_changes_no_key(here: Place) -> None:
    here.run(CHAIN)
    other = CHAIN.replace("    run: ./reco", "    cores: 1\n    memory: 1 GiB\n    run_time: 2h\n    run: ./reco")
    assert here.run(other + "description: said otherwise\npriority: 3\n") == []


def test_a_file_that_is_gone_or_was_changed_is_made_again(here: Place) -> None:
    here.run(CHAIN)
    (here.folder / "a.dat").unlink()
    assert here.run(CHAIN) == ["reco-0", "merge"]
    dat = here.folder / "b.dat"
    stat = dat.stat()
    dat.write_bytes(b"z" * stat.st_size)
    os.utime(dat, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    with pytest.raises(NotOurs, match=r"b\.dat"):
        here.run(CHAIN)  # it is not ours any more
    dat.unlink()
    assert here.run(CHAIN) == ["reco-1", "merge"]


def test_a_file_that_was_only_touched_is_still_the_same(here: Place) -> None:
    here.run(CHAIN)
    os.utime(here.folder / "a.dat")
    os.utime(here.folder / "a.raw")
    assert here.run(CHAIN) == []


def test_a_failed_package_is_run_again_and_only_it(here: Place) -> None:
    assert here.run(CHAIN, failing=["reco-1"]) == ["reco-0"]
    assert here.run(CHAIN) == ["reco-1", "merge"]


def test_a_fresh_run_adopts_nothing_and_may_replace_what_is_ours(here: Place) -> None:
    here.run(CHAIN)
    assert here.run(CHAIN, fresh=True) == ["reco-0", "reco-1", "merge"]


def test_a_job_of_another_name_adopts_what_is_the_same(here: Place) -> None:
    here.run(CHAIN)
    assert here.run(CHAIN.replace("job: chain", "job: other")) == []


def test_one_more_input_of_a_merge_runs_the_merge(here: Place) -> None:
    here.run(CHAIN)
    here.write(c_raw="C")
    assert here.run(CHAIN) == ["reco-2", "merge"]


def test_what_patterns_made_is_adopted_with_all_its_files(here: Place) -> None:
    text = CHAIN.replace('outputs: ["{raw.stem}.dat"]', 'outputs: ["{raw.stem}-*.dat"]')
    here.run(text)
    assert sorted(path.name for path in here.folder.glob("*.dat")) == ["a-0.dat", "a-1.dat", "b-0.dat", "b-1.dat"]
    assert here.run(text) == []
    (here.folder / "a-1.dat").unlink()
    assert here.run(text) == ["reco-0", "merge"]


def test_a_package_without_outputs_is_not_run_twice(here: Place) -> None:
    text = "pilotage: 1\njob: j\nstages: [{run: send a.raw, inputs: [a.raw]}]\n"
    assert here.run(text) == ["send"]
    assert here.run(text) == []


def test_what_the_document_says_was_done_is_adopted_also_by_a_fresh_run(here: Place) -> None:
    text = """
pilotage: 1
job: j
stages:
  - lines: [{packages: [{done: true, binaries: [{run: make, outputs: [made.txt]}]}]}]
  - {run: use made.txt, inputs: [made.txt]}
"""
    here.write(made_txt="by hand")
    assert [each.package for each in here.prepare(text).adopted] == ["1.1.1"]
    assert [each.package for each in here.prepare(text, fresh=True).adopted] == ["1.1.1"]
    assert here.run(text) == ["use"]
    assert here.run(text) == []


def test_packages_behind_a_late_stage_wait_for_it(here: Place) -> None:
    text = """
pilotage: 1
job: late
stages:
  - {run: split, outputs: ["part-*"]}
  - {each: {part: "part-*"}, run: "work {part}", inputs: ["{part}"], outputs: ["done-{part}"]}
  - {run: "join {inputs}", inputs: ["done-*"], outputs: [joined]}
"""
    prepared = here.prepare(text)
    expansion, origin = prepared.expansion, prepared.origin
    assert expansion.late
    here.index.keep([])
    here.run(CHAIN)  # the folder is known now
    assert [each.package for each in adopt(expansion, origin, tree=here.tree, index=here.index)] == []


def test_where_nothing_was_made_nothing_is_looked_at(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "pilotage: 1\njob: j\nstages: [{each: {n: 1..100000}, run: 'work {n}', outputs: ['{n}.out']}]\n"
    prepared = here.prepare(text)
    monkeypatch.setattr(type(prepared.expansion), "block", None)
    assert adopt(prepared.expansion, prepared.origin, tree=here.tree, index=here.index) == []


def test_what_makes_no_file_is_looked_for_only_where_its_document_was_run(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.run(CHAIN)  # the folder is known now
    text = "pilotage: 1\njob: j\nstages: [{each: {n: 1..3}, run: 'send {n}'}]\n"
    mixed = text.replace("stages: [", "stages: [{run: make, outputs: [made]}, ")
    asked: list[int] = []
    real = type(here.index).find

    def counted(index: ResultsIndex, folder: str, keys: list[str]) -> object:
        asked.append(len(keys))
        return real(here.index, folder, keys)

    monkeypatch.setattr(type(here.index), "find", counted)
    assert here.prepare(text).adopted == ()
    assert asked == []
    assert here.prepare(mixed).adopted == ()
    assert asked == [1]
    assert len(here.run(text)) == 3
    assert len(here.prepare(text).adopted) == 3


def test_what_makes_files_is_looked_for_only_where_a_file_was_made(here: Place) -> None:
    here.run("pilotage: 1\njob: quiet\nstages:\n  - run: /bin/true\n")
    prepared = here.prepare(CHAIN)
    assert not may_be_there(prepared.expansion, prepared.origin, here.index)
    here.run(CHAIN)
    assert may_be_there(prepared.expansion, prepared.origin, here.index)


@pytest.mark.parametrize(
    "makes", ["outputs: [all.root]\n    scripts: {pre: {run: [x]}}", 'outputs: [{expression: ".*", folder: out}]']
)
def test_what_may_make_no_file_is_looked_for_wherever_something_was_made(here: Place, makes: str) -> None:
    here.run("pilotage: 1\njob: quiet\nstages:\n  - run: /bin/true\n")
    prepared = here.prepare(CHAIN.replace("outputs: [all.root]", makes))
    assert may_be_there(prepared.expansion, prepared.origin, here.index)


def test_many_packages_are_looked_for_together(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "pilotage: 1\njob: j\nstages: [{each: {n: 1..250}, run: 'work {n}', outputs: ['out/{n}']}]\n"
    assert len(here.run(text)) == 250
    asked: list[int] = []
    real = type(here.index).find

    def counted(index: ResultsIndex, folder: str, keys: list[str]) -> object:
        asked.append(len(keys))
        return real(here.index, folder, keys)

    monkeypatch.setattr(type(here.index), "find", counted)
    assert len(here.prepare(text).adopted) == 250
    assert asked == [250]


def test_a_job_that_has_grown_adopts_among_its_new_packages(here: Place) -> None:
    here.run(CHAIN)
    prepared = here.prepare(CHAIN)
    granted = {each.number: each.manifest for each in prepared.adopted if each.number < 2}
    (last,) = adopt(
        prepared.expansion,
        prepared.origin,
        tree=here.tree,
        index=here.index,
        granted=granted,
        numbers=range(2, 3),
    )
    assert (last.number, last.maker.package) == (2, "2.1.1")
    assert isinstance(last.maker, AttemptRef)


def dispose(here: Place, *names: str) -> None:
    """Remove files on purpose, as a service does."""
    index = here.index
    for name in names:
        file = next(iter(index.makers(str(here.folder), [name])[name]))
        index.note_disposed(str(here.folder), [file])
        (here.folder / name).unlink()


def test_what_was_deleted_on_purpose_is_not_made_again(here: Place) -> None:
    here.run(CHAIN)
    dispose(here, "a.dat", "b.dat")
    prepared = here.prepare(CHAIN)
    assert [each.package for each in prepared.adopted] == ["1.1.1", "1.2.1", "2.1.1"]
    assert here.run(CHAIN) == []


def test_what_was_deleted_on_purpose_is_made_again_for_a_package_that_needs_it(here: Place) -> None:
    here.run(CHAIN)
    dispose(here, "a.dat")
    (here.folder / "all.root").unlink()
    assert here.run(CHAIN) == ["reco-0", "merge"]
    assert here.run(CHAIN) == []
    (here.folder / "a.dat").unlink()  # by hand: not on purpose
    assert here.run(CHAIN)[:1] == ["reco-0"]


def test_all_that_leads_to_a_needed_file_is_made_again(here: Place) -> None:
    longer = (
        CHAIN
        + """  - run: publish all.root
    inputs: [all.root]
    outputs: [report.txt]
"""
    )
    here.run(longer)
    dispose(here, "a.dat", "b.dat", "all.root")
    assert here.run(longer) == []
    (here.folder / "report.txt").unlink()
    assert here.run(longer) == ["reco-0", "reco-1", "merge", "publish"]


def test_a_file_that_is_missing_beside_one_that_was_deleted_on_purpose_is_noticed(here: Place) -> None:
    two = """
pilotage: 1
job: two
stages:
  - {run: make, outputs: [small, large]}
"""
    here.run(two)
    dispose(here, "large")
    assert here.run(two) == []
    (here.folder / "small").unlink()
    assert not here.prepare(two).adopted


BROUGHT = """
pilotage: 1
job: brought
stages:
  - run: use in.dat
    inputs: [{name: in.dat, locator: "s3://bucket/in.dat"}]
    outputs: [out.dat]
"""


class Cached(msgspec.Struct, frozen=True):
    """A file in the cache of a site."""

    sha256: str
    name: str = "ab/ab"
    size_bytes: int = 3


def test_a_package_that_brings_a_file_is_adopted_if_its_content_is_known_and_the_same(here: Place) -> None:
    here.contents["s3://bucket/in.dat"] = Cached("a" * 64)
    assert here.run(BROUGHT) == ["use"]
    assert here.run(BROUGHT) == []
    here.contents["s3://bucket/in.dat"] = Cached("b" * 64)
    assert not here.prepare(BROUGHT).adopted
    here.contents.clear()
    assert not here.prepare(BROUGHT).adopted
