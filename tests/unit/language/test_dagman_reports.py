"""What the DAGMan reader and writer tell: limits, losses and their places, and nothing of files that are not theirs."""

from __future__ import annotations

import pytest

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.dagman import Losses, read_dagman, write_dagman
from pilotage.language.parsing.document import read_document
from pilotage.language.text.tree import Report
from pilotage.model.jobs.definition import Definition


def read(dag: str, files: dict[str, str]) -> tuple[Definition | None, Report, Losses]:
    """Read a DAG beside other files."""
    return read_dagman(dag.encode(), file="my.dag", folder=MemoryFolder(files))


def described(line: str) -> tuple[Definition | None, Report, Losses]:
    """Read a DAG of one node whose submit file has one line more than it needs."""
    return read("JOB A a.sub\n", {"a.sub": f"executable = ./p\n{line}\nqueue\n"})


def exported(document: str) -> tuple[dict[str, str], Losses]:
    """Export a document of our own language."""
    folder = MemoryFolder({"f": "content"})
    found, report = read_document(document.encode(), file="pilotage.yaml", folder=folder)
    assert report.errors == []
    assert found is not None
    return write_dagman(expansion_of(found.definition, folder))


def expansion_of(definition: Definition, folder: MemoryFolder) -> Expansion:
    """Expand a definition that has no faults."""
    report = Report("x")
    expansion = expand(definition, RecordingLists(folder), report)
    assert report.errors == []
    assert expansion is not None
    return expansion


def activities(definition: Definition | None) -> list[str]:
    """The activities that are written, in the order of the packages."""
    assert definition is not None
    return [package.activity for stage in definition.stages for line in stage.lines for package in line.packages]


class TestLimits:
    def test_macros_that_multiply_to_nothing_are_refused(self) -> None:
        levels = "".join(f"m{n} = " + f"$(m{n + 1})" * 10 + "\n" for n in range(8))
        _, report, _ = described(f"{levels}m8 =\narguments = $(m0)")
        assert [problem.code for problem in report.errors] == ["bad-macro"]

    def test_macros_that_refer_to_each_other_twice_are_refused(self) -> None:
        _, report, _ = described("a = $(b)$(b)\nb = $(a)$(a)\narguments = $(a)")
        assert {problem.code for problem in report.errors} == {"bad-macro"}

    def test_a_macro_that_is_used_often_keeps_its_value(self) -> None:
        definition, _, _ = described("x = v\narguments = $(x) $(X) $(x:d)")
        assert definition is not None
        assert definition.stages[0].lines[0].packages[0].binaries[0].run == ("./p", "v", "v", "v")

    def test_splices_that_double_in_each_file_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pilotage.language.formats.dagman.node_commands.SPLICED_MAX", 500)
        monkeypatch.setattr("pilotage.language.formats.dagman.assembly.SPLICED_MAX", 500)
        files = {f"{n}.dag": f"SPLICE A {n + 1}.dag\nSPLICE B {n + 1}.dag\n" for n in range(30)}
        files["30.dag"] = "JOB X a.sub\n"
        definition, report, _ = read(files["0.dag"], {**files, "a.sub": "executable = p\nqueue\n"})
        assert definition is None
        assert [problem.code for problem in report.errors] == ["dag-too-large"]


class TestLosses:
    @pytest.mark.parametrize(
        "name",
        ["ulog_execute_attrs", "primary_unix_group", "shell", "retry_request_memory", "docker_pull_policy"],
    )
    def test_a_submit_command_that_means_nothing_here_is_a_loss_and_no_misspelling(self, name: str) -> None:
        _, report, losses = described(f"{name} = x")
        assert [(loss.keyword, loss.line) for loss in losses] == [(name, 2)]
        assert report.warnings == []

    def test_a_command_of_a_family_is_listed_under_it(self) -> None:
        _, _, losses = described("ec2_tag_Owner = me")
        assert [loss.keyword for loss in losses] == ["ec2_…"]

    def test_an_unknown_command_is_a_loss_besides_the_warning(self) -> None:
        _, report, losses = described("exectuable = x")
        assert [(loss.file, loss.line, loss.keyword) for loss in losses] == [("a.sub", 2, "unknown submit command")]
        assert [problem.code for problem in report.warnings] == ["unused-variable"]

    def test_a_macro_that_only_a_lost_command_uses_is_used(self) -> None:
        _, report, losses = described("folder = logs\nlog = $(folder)/x")
        assert [loss.keyword for loss in losses] == ["log"]
        assert report.warnings == []

    def test_a_variable_that_no_submit_file_uses_is_a_loss(self) -> None:
        _, report, losses = read('JOB A a.sub\nVARS A other="x"\n', {"a.sub": "executable = p\nqueue\n"})
        assert [(loss.file, loss.line, loss.keyword) for loss in losses] == [("my.dag", 2, "VARS")]
        assert [(problem.file, problem.line) for problem in report.warnings] == [("my.dag", 2)]

    def test_a_variable_of_a_sub_dag_is_a_loss(self) -> None:
        _, _, losses = read('SUBDAG EXTERNAL S s.dag\nVARS S x="1"\n', {"s.dag": ""})
        assert [(loss.keyword, loss.line) for loss in losses] == [("VARS", 2)]

    def test_a_file_that_is_taken_and_made_is_listed_by_the_export(self) -> None:
        _, losses = exported("pilotage: 1\njob: j\nstages:\n  - {run: ./p, inputs: [f], stdout: f}\n")
        assert [loss.keyword for loss in losses] == ["outputs"]

    def test_what_one_binary_makes_for_the_next_is_no_input_of_the_node(self) -> None:
        body = "binaries: [{run: ./a, outputs: [o]}, {run: ./b, stdin: o}]"
        files, losses = exported(f"pilotage: 1\njob: j\nstages:\n  - {{name: p, {body}}}\n")
        assert "package_inputs" not in files["j.dag"]
        assert [loss.keyword for loss in losses] == ["binaries"]


class TestPlaces:
    def test_a_pre_skip_without_a_script_is_listed_at_its_own_line(self) -> None:
        _, _, losses = read("JOB A a.sub\n\nPRE_SKIP A 3\n", {"a.sub": "executable = p\nqueue\n"})
        assert [(loss.keyword, loss.line) for loss in losses] == [("PRE_SKIP", 3)]

    def test_an_undefined_macro_is_told_of_once_where_it_is_written(self) -> None:
        submit = "executable = p\n\n arguments = $(nobody) $(nobody)\nqueue\n"
        _, report, _ = read("JOB A a.sub\nJOB B a.sub\n", {"a.sub": submit})
        found = [(problem.code, problem.file, problem.line, problem.column) for problem in report.warnings]
        assert found == [("undefined-macro", "a.sub", 3, 2)]

    def test_a_node_in_the_wrong_case_is_offered_in_the_right_one(self) -> None:
        _, report, _ = read("JOB A a.sub\nJOB B a.sub\nPARENT A CHILD b\n", {"a.sub": "executable = p\n"})
        assert [problem.hint for problem in report.errors] == ["did you mean 'B'?"]


class TestActivities:
    def test_reading_an_export_adds_no_activity(self) -> None:
        dag = 'SUBDAG EXTERNAL S s.dag\nJOB A {\nexecutable = ./p\n}\nJOB B b.sub\nVARS B pilotage_activity="q"\n'
        files = {"s.dag": "", "b.sub": "executable = ./q\nqueue\n"}
        before, _, _ = read(dag, files)
        assert activities(before) == ["", "", "q"]
        assert before is not None
        written, _ = write_dagman(expansion_of(before, MemoryFolder(files)))
        after, _, losses = read(written["my.dag"], {**files, **written})
        assert activities(after) == activities(before)
        assert list(losses) == []

    def test_an_activity_that_only_the_stage_had_is_kept(self) -> None:
        written, _ = exported("pilotage: 1\njob: j\nstages:\n  - {name: inner, subjob: s.dag}\n")
        after, _, _ = read(written["j.dag"], {"s.dag": ""})
        assert activities(after) == ["inner"]


class TestForeignFiles:
    @pytest.mark.parametrize("path", ["/etc/secrets", "../secrets"])
    @pytest.mark.parametrize("dag", ["JOB A a.sub\nINCLUDE {}\n", "JOB A {}\n", "JOB A a.sub\nSPLICE S {}\n"])
    def test_no_word_of_a_file_elsewhere_is_repeated(self, dag: str, path: str) -> None:
        files = {path: "root:x:0:hunter2\n", "a.sub": "executable = p\nqueue\n"}
        _, report, _ = read(dag.format(path), files)
        problem = report.errors[0]
        assert (problem.file, problem.line) == (path, 1)
        assert "root" not in f"{problem.message}{problem.hint}{problem.source}"

    def test_a_file_below_the_folder_is_quoted(self) -> None:
        _, report, _ = read("INCLUDE sub/other\n", {"sub/other": "JBO A a.sub\n"})
        assert ["'JBO'" in problem.message for problem in report.errors] == [True]
