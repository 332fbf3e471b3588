"""Jobs as DAG files: what HTCondor would read, and that reading it back gives the same job."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.dagman import Losses, read_dagman, write_dagman
from pilotage.language.parsing.document import read_document
from pilotage.language.text.tree import Report

RECONSTRUCTION = """\
pilotage: 1
job: reco001
stages:
  - each: {raw: [raw-1.dat, raw-2.dat]}
    lines:
      - run: ./reco {raw}
        outputs: ["{raw.stem}.reco"]
  - each: {reco: {files: "*.reco"}}
    lines:
      - run: ./recoanalyze {reco}
        inputs: ["{reco}"]
        outputs: ["{reco.stem}.root"]
      - run: ./store {reco}
        inputs: ["{reco}"]
"""


def expanded(document: str, **files: str) -> Expansion:
    """Expand a document of our own language."""
    folder = MemoryFolder({name.replace("_", "."): text for name, text in files.items()})
    found, report = read_document(document.encode(), file="pilotage.yaml", folder=folder)
    assert report.errors == []
    assert found is not None
    expansion = expand(found.definition, RecordingLists(folder), report)
    assert report.errors == []
    assert expansion is not None
    return expansion


def exported(stage: str) -> tuple[dict[str, str], Losses]:
    """Export a job of one stage, written as lines of YAML."""
    body = "".join(f"    {line}\n" for line in stage.strip().split("\n"))
    return write_dagman(expanded(f"pilotage: 1\njob: j\nstages:\n  -\n{body}"))


def reimported(files: Mapping[str, str], job: str) -> Expansion:
    """Read an export back and expand it."""
    folder = MemoryFolder(files)
    definition, report, losses = read_dagman(files[f"{job}.dag"].encode(), file=f"{job}.dag", folder=folder)
    assert report.errors == []
    assert list(losses) == []
    assert definition is not None
    expansion = expand(definition, RecordingLists(folder), Report("x"))
    assert expansion is not None
    return expansion


def dag_lines(files: Mapping[str, str], job: str = "j") -> list[str]:
    """The lines of the DAG file without comments and variables."""
    return [line for line in files[f"{job}.dag"].splitlines() if not line.startswith(("#", "VARS"))]


def test_nodes_and_edges_are_written_as_the_seed_shows() -> None:
    files, _ = write_dagman(expanded(RECONSTRUCTION))
    assert dag_lines(files, "reco001") == [
        "JOB Stage1Line1Package1Reco reco.sub",
        "JOB Stage1Line2Package1Reco reco.sub",
        "JOB Stage2Line1Package1Recoanalyze recoanalyze.sub",
        "JOB Stage2Line2Package1Store store.sub",
        "JOB Stage2Line3Package1Recoanalyze recoanalyze.sub",
        "JOB Stage2Line4Package1Store store.sub",
        "PARENT Stage1Line1Package1Reco CHILD Stage2Line1Package1Recoanalyze Stage2Line2Package1Store",
        "PARENT Stage1Line2Package1Reco CHILD Stage2Line3Package1Recoanalyze Stage2Line4Package1Store",
    ]


def test_packages_of_one_kind_share_a_submit_file_and_differ_by_vars() -> None:
    files, _ = write_dagman(expanded(RECONSTRUCTION))
    assert set(files) == {"reco001.dag", "reco.sub", "recoanalyze.sub", "store.sub"}
    assert 'arguments = "$(package_arguments)"' in files["reco.sub"]
    assert 'VARS Stage1Line2Package1Reco package_arguments="raw-2.dat"' in files["reco001.dag"]


def test_an_export_reads_back_as_the_same_packages_with_the_same_files_and_edges() -> None:
    before = expanded(RECONSTRUCTION)
    after = reimported(write_dagman(before)[0], "reco001")
    for old, new in zip(before.packages(), after.packages(), strict=True):
        assert (old.path, old.name, old.activity) == (new.path, new.name, new.activity)
        assert [binary.argv for binary in old.binaries] == [binary.argv for binary in new.binaries]
        assert (sorted(old.needed), sorted(old.made)) == (sorted(new.needed), sorted(new.made))
    assert {(a, b) for a, b, _ in before.graph.edges()} == {(a, b) for a, b, _ in after.graph.edges()}


@pytest.mark.parametrize(
    "field, line",
    [
        ("retry: {attempts_max: 4}", "RETRY Stage1Line1Package1P 3"),
        (
            "retry: {attempts_max: 4, rules: [{exit_code: 9, action: give-up}]}",
            "RETRY Stage1Line1Package1P 3 UNLESS-EXIT 9",
        ),
        ("priority: -2", "PRIORITY Stage1Line1Package1P -2"),
        ("category: heavy", "CATEGORY Stage1Line1Package1P heavy"),
        ("abort_on: {exit_code: 3, result: 1}", "ABORT-DAG-ON Stage1Line1Package1P 3 RETURN 1"),
        ("scripts: {pre: {run: ./check a}}", "SCRIPT PRE Stage1Line1Package1P ./check a"),
        ("done: true", "JOB Stage1Line1Package1P p.sub DONE"),
        ("role: final", "FINAL Stage1Line1Package1P p.sub"),
    ],
)
def test_what_is_said_about_a_package_is_said_about_its_node(field: str, line: str) -> None:
    assert line in dag_lines(exported(f"run: ./p\n{field}")[0])


@pytest.mark.parametrize(
    "field, line",
    [
        ("cores: 4", "request_cpus = 4"),
        ("memory: 2 GiB", "request_memory = 2 GB"),
        ("scratch: 3 MiB", "request_disk = 3 MB"),
        ("gpus: 1", "request_gpus = 1"),
        ("wall_time: 1h", "allowed_execute_duration = 3600"),
        ("container: {image: a.sif}", "container_image = a.sif"),
        ("environment: {exported: {A: x y}}", "environment = \"'A=x y'\""),
        ("stdout: log", "output = $(package_output)"),
    ],
)
def test_what_a_package_needs_stands_in_its_submit_file(field: str, line: str) -> None:
    assert line in exported(f"run: ./p\n{field}")[0]["p.sub"].splitlines()


def test_a_program_on_the_search_path_is_started_by_env_and_comes_back_bare() -> None:
    files, _ = exported("run: python3 -V")
    assert "executable = /usr/bin/env" in files["python3.sub"]
    assert reimported(files, "j").package(0).binaries[0].argv == ("python3", "-V")


def test_a_script_of_several_lines_comes_back_whole() -> None:
    files, _ = exported('shell: |\n  for i in 1 2; do\n      echo "it\'s $i"\n  done\nname: p')
    argv = reimported(files, "j").package(0).binaries[0].argv
    assert argv == ("/bin/sh", "-c", 'for i in 1 2; do\n    echo "it\'s $i"\ndone\n')


def test_an_argument_of_several_lines_comes_back_whole() -> None:
    files, _ = exported('name: p\nrun: [./p, "a\\n\\n  b\'c"]')
    assert reimported(files, "j").package(0).binaries[0].argv == ("./p", "a\n\n  b'c")


def test_several_binaries_become_one_script_and_a_loss() -> None:
    files, losses = exported("name: p\nbinaries:\n  - run: ./a 'x y'\n    outputs: [o]\n  - run: ./b\n    stdin: o")
    script = next(text for path, text in files.items() if path.endswith(".sh"))
    assert script == "#!/bin/sh\nset -e\n./a 'x y'\n./b < o\n"
    assert [loss.keyword for loss in losses] == ["binaries"]


def test_a_second_final_package_becomes_a_job_that_waits_for_all_work() -> None:
    document = (
        "pilotage: 1\njob: j\nstages:\n  - lines:\n      - {run: ./a}\n      - {run: ./f, role: final}\n"
        "      - {run: ./g, role: final}\n"
    )
    files, losses = write_dagman(expanded(document))
    assert "PARENT Stage1Line1Package1A CHILD Stage1Line3Package1G" in dag_lines(files)
    assert [loss.keyword for loss in losses] == ["role"]


@pytest.mark.parametrize(
    "field, keyword",
    [
        ("platform: linux", "platform"),
        ("side_effects: true", "side_effects"),
        ("run_time: 1h", "run_time_seconds"),
        ("retry: {rules: [{reason: wall-time, action: more-time}]}", "retry"),
        ("cores: 0.5", "cores"),
        ("memory: 1000 B", "memory"),
        ("outputs: ['*.dat']", "outputs"),
        ("outputs: ['a,b']", "outputs"),
        ("outputs: [{name: a, replicas: 2}]", "replicas"),
        ("inputs: [{name: a, locator: 'https://host/b'}]", "locator"),
        ("inputs: [{name: a, locator: /b/a, acquisition: prefetch}]", "acquisition"),
        ("scripts: {pre: {run: [./check, 'a b']}}", "scripts"),
        ("category: two words", "category"),
    ],
)
def test_what_dagman_has_no_word_for_is_listed(field: str, keyword: str) -> None:
    assert [loss.keyword for loss in exported(f"run: ./p\n{field}")[1]] == [keyword]


def test_a_stage_whose_list_is_not_known_yet_is_listed() -> None:
    document = (
        "pilotage: 1\njob: j\nstages:\n  - run: ./a\n    outputs: ['*.x']\n"
        "  - each: {f: {files: '*.x'}}\n    run: ./b {f}\n    inputs: ['{f}']\n"
    )
    assert [loss.keyword for loss in write_dagman(expanded(document))[1]] == ["each", "outputs"]


LATE = """\
pilotage: 1
job: late
stages:
  - {run: ./split, outputs: ["part-*.dat"]}
  - name: work
    each: {part: part-*.dat}
    run: ./work {part}
    inputs: ["{part}"]
    outputs: ["done-{part.stem}.dat"]
  - {run: "./merge {inputs}", inputs: [done-*.dat]}
"""


def test_what_waits_for_a_late_stage_follows_those_before_it() -> None:
    files, losses = write_dagman(expanded(LATE))
    assert "PARENT Stage1Line1Package1Split CHILD Stage3Line1Package1Merge\n" in files["late.dag"]
    [reason] = [loss.reason for loss in losses if loss.keyword == "each"]
    assert "'work'" in reason
    assert "the exact order after it is lost" in reason


def test_a_final_node_has_no_parents_and_loses_nothing_by_it() -> None:
    body = "stages:\n  - {run: ./a, outputs: [x]}\n  - {run: ./f, inputs: [x], role: final}\n"
    files, losses = write_dagman(expanded(f"pilotage: 1\njob: j\n{body}"))
    assert "PARENT" not in files["j.dag"]
    assert list(losses) == []
    assert reimported(files, "j").graph.edge_count == 1


def test_the_edges_of_a_service_node_are_listed_as_lost() -> None:
    body = "stages:\n  - {run: ./a, outputs: [x]}\n  - {run: ./s, inputs: [x], role: service}\n"
    files, losses = write_dagman(expanded(f"pilotage: 1\njob: j\n{body}"))
    assert "PARENT" not in files["j.dag"]
    assert [loss.keyword for loss in losses] == ["role"]
