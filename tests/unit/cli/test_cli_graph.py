from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.cli import main

DOCUMENT = """pilotage: 1
job: three
stages:
  - each: {n: 1..2}
    run: ./make {n}
    outputs: [part-{n}.dat]
  - run: ./join {inputs}
    inputs: [part-*.dat]
    outputs: [whole.dat]
"""


def run(*arguments: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    assert "Traceback" not in result.output
    return result


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("pilotage.yaml").write_text(DOCUMENT)


# --- graph ------------------------------------------------------------------------------------------------------------


def test_text_is_the_default() -> None:
    assert run("graph").stdout.startswith("three: 3 packages in 2 stages, 2 edges\n")


def test_a_graph_is_drawn_from_standard_input() -> None:
    assert run("graph", "-", stdin=DOCUMENT).stdout == run("graph").stdout


def test_the_width_of_the_terminal_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "45")
    assert max(map(len, run("graph").stdout.splitlines())) <= 45


@pytest.mark.parametrize("word, beginning", [("text", "three: "), ("dot", "digraph "), ("json", "{"), ("svg", "<svg ")])
def test_each_format_is_printed_and_written(word: str, beginning: str) -> None:
    printed = run("graph", "--format", word)
    written = run("graph", "--format", word, "-o", "out")
    assert (printed.exit_code, written.exit_code, written.stdout) == (0, 0, "")
    assert printed.stdout.startswith(beginning)
    assert Path("out").read_text() == printed.stdout


def test_the_ending_of_the_output_says_the_format() -> None:
    run("graph", "-o", "graph.svg")
    run("graph", "-o", "graph.json")
    assert ET.fromstring(Path("graph.svg").read_text()).tag.endswith("svg")
    assert set(json.loads(Path("graph.json").read_text())) == {"packages", "edges"}


@pytest.mark.parametrize("name", ["graph.txt", "graph", "graph.TXT"])
def test_a_text_has_the_ending_of_a_text_or_none(name: str) -> None:
    assert run("graph", "-o", name).exit_code == 0
    assert Path(name).read_text().startswith("three: ")


@pytest.mark.parametrize("name", ["graph.png", "graph.yaml", "graph.svgz"])
def test_an_ending_that_no_drawing_has_is_refused(name: str) -> None:
    result = run("graph", "-o", name)
    assert (result.exit_code, Path(name).exists()) == (2, False)
    assert ".svg, .dot, .json" in result.stderr
    assert run("graph", "-o", name, "--format", "text").exit_code == 0


@pytest.mark.parametrize("command", [["graph"], ["convert", "--to", "yaml"], ["check"]])
def test_an_empty_name_is_not_the_document_of_the_folder(command: list[str]) -> None:
    result = run(*command, "")
    assert result.exit_code == 2
    assert "the name of the file is empty [missing-file]" in result.stderr


def test_an_empty_name_is_no_output() -> None:
    assert run("graph", "-o", "").stderr == "error: '': cannot be written: the name is empty\n"


def test_a_command_that_is_shown_can_be_given_to_a_shell() -> None:
    Path("my job.yaml").write_text(DOCUMENT + "variables: {unused: x}\n")
    assert run("graph", "my job.yaml").stderr == "1 warning; see it with: pilotage check 'my job.yaml'\n"


def test_a_said_format_wins_over_the_ending() -> None:
    run("graph", "--format", "dot", "-o", "graph.svg")
    assert Path("graph.svg").read_text().startswith("digraph")


def test_warnings_are_counted_beside_the_drawing() -> None:
    Path("pilotage.yaml").write_text(DOCUMENT + "variables: {unused: x}\n")
    result = run("graph")
    assert result.stderr == "1 warning; see it with: pilotage check pilotage.yaml\n"
    assert "warning" not in result.stdout


def test_a_document_with_errors_is_not_drawn() -> None:
    Path("pilotage.yaml").write_text("pilotage: 1\njob: x\nrunn: a\nnodes: many\n")
    result = run("graph", "-o", "out.svg")
    assert result.exit_code == 2
    assert result.stderr.count(": error: ") == 2
    assert not Path("out.svg").exists()


@pytest.mark.parametrize("output", ["absent/out.svg", ".", "/dev/full"])
def test_an_output_that_cannot_be_written_is_an_error(output: str) -> None:
    result = run("graph", "-o", output)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {output}: cannot be written: ")


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_else() -> None:
    Path("out.svg").write_text("old")
    Path("out.svg").chmod(0o640)
    run("graph", "-o", "out.svg")
    assert Path("out.svg").read_text().startswith("<svg")
    assert Path("out.svg").stat().st_mode & 0o777 == 0o640
    assert names(".") == ["out.svg", "pilotage.yaml"]


def test_a_new_file_may_be_read_as_any_new_file() -> None:
    Path("plain").touch()
    run("graph", "-o", "out.svg")
    assert Path("out.svg").stat().st_mode == Path("plain").stat().st_mode


def test_a_link_stays_a_link() -> None:
    Path("there").write_text("old")
    Path("here").symlink_to("there")
    run("graph", "-o", "here")
    assert Path("here").is_symlink()
    assert Path("there").read_text().startswith("three: ")


# --- convert ----------------------------------------------------------------------------------------------------------


def test_the_canonical_form_is_printed_and_stable() -> None:
    first = run("convert", "--to", "yaml")
    again = run("convert", "-", "--to", "yaml", stdin=first.stdout)
    assert first.exit_code == 0
    assert first.stdout == again.stdout
    assert first.stderr == ""


def test_a_conversion_without_losses_between_formats_says_so() -> None:
    assert run("convert", "--to", "dagman").stderr == "nothing was lost\n"


def test_a_dag_is_written_with_its_submit_files_beside_it() -> None:
    Path("out").mkdir()
    result = run("convert", "--to", "dagman", "-o", "out/three.dag")
    assert (result.exit_code, result.stdout) == (0, "")
    assert names("out") == ["join.sub", "make.sub", "three.dag"]
    assert "2 edges" in run("check", "out/three.dag").stdout


def test_a_dag_is_printed_with_the_names_of_its_files() -> None:
    heads = [line for line in run("convert", "--to", "dagman").stdout.splitlines() if line.startswith("==> ")]
    assert heads == ["==> three.dag <==", "==> make.sub <==", "==> join.sub <=="]


def test_a_wfformat_instance_is_written_and_read_again() -> None:
    assert run("convert", "--to", "wfformat", "-o", "three.json").exit_code == 0
    assert json.loads(Path("three.json").read_text())["schemaVersion"] == "1.5"
    assert "3 packages" in run("check", "three.json", "--from", "wfformat").stdout


def test_losses_are_reported_as_json() -> None:
    Path("pilotage.yaml").write_text(DOCUMENT + "owner: somebody\n")
    result = run("convert", "--to", "dagman", "--report", "lost.json")
    losses = json.loads(Path("lost.json").read_text())
    assert {tuple(loss) for loss in losses} == {("side", "file", "line", "keyword", "reason")}
    assert ("export", "owner") in [(loss["side"], loss["keyword"]) for loss in losses]
    assert result.stderr.endswith("owner\n")


def test_losses_are_summed_up_without_a_report() -> None:
    Path("pilotage.yaml").write_text(DOCUMENT + "owner: somebody\n")
    assert run("convert", "--to", "dagman").stderr == "1 thing was lost: owner; --report FILE lists them\n"


def test_an_empty_report_is_an_empty_list() -> None:
    run("convert", "--to", "yaml", "--report", "lost.json")
    assert json.loads(Path("lost.json").read_text()) == []


def test_a_format_to_write_must_be_said() -> None:
    result = run("convert")
    assert result.exit_code == 2
    assert "--to" in result.stderr


def test_a_failed_export_leaves_no_file_behind() -> None:
    Path("out").mkdir()
    Path("out/make.sub").mkdir()
    result = run("convert", "--to", "dagman", "-o", "out/three.dag")
    assert result.exit_code == 2
    assert names("out") == ["make.sub"]
