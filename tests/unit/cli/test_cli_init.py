from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from pilotage.cli import main
from pilotage.cli.documents.init import document_text, job_name, list_of_commands
from pilotage.language import MemoryFolder, load


def run(*arguments: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    assert "Traceback" not in result.output
    return result


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    monkeypatch.chdir(folder)


def commands() -> list[tuple[str, ...]]:
    """What the packages of the written document would start."""
    loaded = load(Path("pilotage.yaml").read_bytes(), file="pilotage.yaml", folder=MemoryFolder(["a.csv", "b.csv"]))
    assert loaded.expansion is not None, loaded.report.errors
    return [binary.argv for package in loaded.expansion.packages() for binary in package.binaries]


def test_commands_run_side_by_side() -> None:
    assert run("init", "./a 1", "./b '2 3'").exit_code == 0
    assert commands() == [("./a", "1"), ("./b", "2 3")]
    assert run("check").exit_code == 0


def test_a_command_for_a_shell_gets_one() -> None:
    run("init", "sort x | uniq > y")
    assert commands() == [("/bin/sh", "-c", "sort x | uniq > y")]


def test_braces_of_a_command_are_its_own() -> None:
    run("init", "echo {a} {{b}}", "awk '{print $1}' x")
    assert commands() == [("echo", "{a}", "{{b}}"), ("awk", "{print $1}", "x")]


def test_commands_come_from_a_file() -> None:
    Path("list.txt").write_text("# what to do\n./a\n\n  ./b\n")
    assert run("init", "--commands", "list.txt").exit_code == 0
    assert commands() == [("./a",), ("./b",)]


def test_commands_come_from_standard_input() -> None:
    assert run("init", "--commands", "-", stdin="./a\n./b\n").exit_code == 0
    assert commands() == [("./a",), ("./b",)]


def test_a_list_without_commands_is_refused() -> None:
    result = run("init", "--commands", "-", stdin="# nothing\n")
    assert (result.exit_code, Path("pilotage.yaml").exists()) == (2, False)


def test_two_questions_give_a_sweep() -> None:
    result = run("init", stdin="./simulate --seed {seed}\n1..3\n")
    assert result.exit_code == 0
    assert "Which command should run: " in result.stderr
    assert "For which items: 1..100, " in result.stderr
    assert "seed: 1..3" in Path("pilotage.yaml").read_text()
    assert commands() == [("./simulate", "--seed", str(seed)) for seed in (1, 2, 3)]


def test_what_is_repeated_over_is_added_to_a_command_without_a_place_for_it() -> None:
    run("init", stdin="wc -l\na,b c\n")
    assert commands() == [("wc", "-l", "a"), ("wc", "-l", "b c")]


def test_files_that_are_repeated_over_become_inputs() -> None:
    Path("a.csv").touch()
    Path("b.csv").touch()
    run("init", stdin="wc {table}\n*.csv\n")
    assert "inputs: [" in Path("pilotage.yaml").read_text()
    assert commands() == [("wc", "a.csv"), ("wc", "b.csv")]


def test_the_lines_of_a_file_can_be_repeated_over() -> None:
    Path("names.txt").write_text("x\ny\n")
    run("init", stdin="hello\nnames.txt\n")
    assert "lines: names.txt" in Path("pilotage.yaml").read_text()
    assert "2 packages" in run("check").stdout


def test_nothing_to_repeat_over_gives_one_package() -> None:
    run("init", stdin="./a {{x}} '{print $1}'\n\n")
    assert commands() == [("./a", "{x}", "{print $1}")]


def refused(*answers: str) -> str:
    """What is said where the answers make no document."""
    result = run("init", stdin="".join(f"{answer}\n" for answer in answers))
    assert (result.exit_code, Path("pilotage.yaml").exists()) == (2, False)
    assert result.stderr.endswith("nothing was written\n")
    assert "pilotage.yaml" not in result.stderr
    return result.stderr


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    assert "[no-match]" in refused("wc", "*.absent")


def test_a_place_for_nothing_is_refused() -> None:
    assert "the command has {x}, but no values to put there" in refused("./a {x}", "")


def test_a_table_gives_its_columns() -> None:
    Path("runs.csv").write_text("seed,name\n1,a\n2,b\n")
    assert run("init", stdin="./a {seed} {name}\nruns.csv\n").exit_code == 0
    assert "csv: runs.csv" in Path("pilotage.yaml").read_text()
    assert "2 packages" in run("check").stdout


@pytest.mark.parametrize(
    "command, said", [("./a", "uses no column"), ("./a {sed}", "runs.csv has no column for {sed}")]
)
def test_a_command_that_does_not_fit_its_table_is_refused(command: str, said: str) -> None:
    Path("runs.csv").write_text("seed,name\n1,a\n")
    found = refused(command, "runs.csv")
    assert said in found
    assert "{seed}, {name}" in found


def test_two_places_and_one_list_are_refused() -> None:
    assert "the command has {a}, {b}, but the list has values for only one of them" in refused("./x {a} {b}", "1..3")


@pytest.mark.parametrize("answer", ["nmes.txt", "data/names", "nmes.csv"])
def test_a_file_that_is_not_there_is_said(answer: str) -> None:
    Path("names.txt").touch()
    assert f"there is no file {answer}" in refused("wc", answer)


def test_a_mistyped_file_is_answered_with_a_near_one() -> None:
    Path("names.txt").touch()
    assert "did you mean 'names.txt'?" in refused("wc", "nmes.txt")


def test_a_folder_is_no_list() -> None:
    Path("data").mkdir()
    assert "data/ is a folder\n  its files are data/*" in refused("wc", "data/")


def test_values_may_look_like_files_and_numbers() -> None:
    run("init", stdin="wc\na.txt,1.5\n")
    assert commands() == [("wc", "a.txt"), ("wc", "1.5")]


def test_braces_beside_a_place_are_the_commands_own() -> None:
    run("init", stdin="awk '{print $1}' ${HOME}/{f}\n1..1\n")
    assert commands() == [("/bin/sh", "-c", "awk '{print $1}' ${HOME}/'1'")]


def test_a_command_that_cannot_be_split_is_shown_without_a_file() -> None:
    result = run("init", "./a", "./b 'c")
    assert (result.exit_code, Path("pilotage.yaml").exists()) == (2, False)
    assert result.stderr.startswith("what would be written: error: the command cannot be split")
    assert "./b 'c" in result.stderr
    assert result.stderr.endswith("nothing was written\n")


def test_a_list_of_commands_that_is_not_there_is_said() -> None:
    assert run("init", "--commands", "absent").stderr == "absent: error: there is no such file [missing-file]\n"


def test_a_list_of_commands_must_be_text() -> None:
    Path("list.txt").write_bytes(b"./a \xff\n")
    assert "[not-utf8]" in run("init", "--commands", "list.txt").stderr


def test_an_empty_job_name_is_not_the_folders() -> None:
    assert run("init", "./a", "--job", "").exit_code == 2


def test_an_empty_command_is_asked_for_again() -> None:
    assert run("init", stdin="\n\n./a\n\n").exit_code == 0
    assert commands() == [("./a",)]


def test_an_input_that_ends_early_is_an_error() -> None:
    result = run("init", stdin="")
    assert result.exit_code == 2
    assert "ended before" in result.stderr


def test_a_document_is_not_overwritten_unless_forced() -> None:
    Path("pilotage.yaml").write_text("mine")
    refused = run("init", "./a")
    assert (refused.exit_code, Path("pilotage.yaml").read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    assert run("init", "./a", "--force").exit_code == 0
    assert commands() == [("./a",)]


def test_the_job_is_called_as_its_folder_or_as_asked() -> None:
    run("init", "./a")
    assert "job: my-project" in Path("pilotage.yaml").read_text()
    run("init", "./a", "--job", "other", "--force")
    assert "job: other" in Path("pilotage.yaml").read_text()


def test_a_name_no_job_can_have_is_refused() -> None:
    assert run("init", "./a", "--job", "a/b").exit_code == 2


@given(st.text())
def test_any_folder_can_name_a_job(name: str) -> None:
    text = document_text({"pilotage": 1, "job": job_name(name), "run": "a"})
    assert "job: " in text


WORDS = st.text(st.characters(codec="ascii", min_codepoint=32, exclude_characters="'\"\\"), min_size=1).filter(
    str.strip
)


@given(st.lists(WORDS, min_size=1, max_size=4))
def test_any_commands_give_a_document_that_passes(words: list[str]) -> None:
    text = document_text(list_of_commands([word.strip() for word in words], job="x"))
    loaded = load(text.encode(), file="pilotage.yaml", folder=MemoryFolder())
    assert loaded.expansion is not None
    assert loaded.expansion.count == len(words)
