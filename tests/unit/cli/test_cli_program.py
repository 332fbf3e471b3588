from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

import pilotage
from pilotage import app
from pilotage.cli import main, program
from pilotage.cli.program import COMMANDS
from pilotage.cli.shared.errors import exit_code_of
from pilotage.model.errors import DocumentError, PilotageError, Problem

DESCRIPTOR = {
    "name": "greet",
    "description": "Says hello.",
    "tool-version": "1",
    "schema-version": "0.5",
    "command-line": "greet [NAME] [LOUD]",
    "inputs": [
        {"id": "name", "name": "Name", "type": "String", "value-key": "[NAME]"},
        {
            "id": "loud",
            "name": "Loud",
            "type": "Flag",
            "value-key": "[LOUD]",
            "command-line-flag": "--loud",
            "optional": True,
        },
    ],
}


def run(*arguments: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    assert "Traceback" not in result.output
    return result


def all_commands(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [words]
    inner = [
        (name, command.get_command(click.Context(command), name))
        for name in command.list_commands(click.Context(command))
    ]
    return [words, *(path for name, found in inner if found for path in all_commands(found, (*words, name)))]


@pytest.mark.parametrize("words", all_commands(main), ids=" ".join)
def test_every_command_has_a_help_text(words: tuple[str, ...]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: {' '.join(('main', *words))} ")
    assert len(result.stdout.splitlines()) > 5


# --- the help of the program ------------------------------------------------------------------------------------------


def listed(text: str, section: str) -> dict[str, str]:
    """The rows of a section of a help text, each a word and what stands behind it."""
    lines = text.partition(f"{section}:\n")[2].partition("\n\n")[0].splitlines()
    rows: dict[str, str] = {}
    for line in lines:
        if line.startswith("   "):
            rows[list(rows)[-1]] += f" {line.strip()}"
        else:
            word, _, told = line.strip().partition("  ")
            rows[word] = told.strip()
    return rows


def test_the_help_explains_the_everyday_commands_and_names_the_others_by_group() -> None:
    text = run("--help").stdout
    everyday = listed(text, "Everyday commands")
    assert " ".join(everyday) == "init check plan run map status logs explain retry kill outputs site"
    assert everyday["explain"] == "Explain why a package waits, where it runs, or how it ended."
    groups = listed(text, "More commands, by group")
    assert list(groups) == ["documents", "jobs", "sites", "book", "provenance", "service", "forecast", "simulation"]
    others = {name for told in groups.values() for name in told.split(", ")}
    assert others | {*everyday, "help"} == set(main.list_commands(click.Context(main)))
    assert "serve" in groups["service"].split(", ")


@pytest.mark.parametrize(
    "words", [("--help", "--all"), ("--all", "--help"), ("--all",), ("help", "--all")], ids=" ".join
)
def test_all_commands_are_shown_when_asked_for(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 0
    shown = [name for group in COMMANDS for name in listed(result.stdout, group.capitalize())]
    assert sorted([*shown, "help"]) == main.list_commands(click.Context(main))


def test_a_group_is_a_folder_and_every_folder_of_commands_a_group() -> None:
    folders = {path.parent.name for path in Path(program.__file__).parent.glob("*/__init__.py")}
    assert folders - {"shared"} == set(COMMANDS)


@pytest.mark.parametrize("group", COMMANDS)
def test_the_help_of_a_group_shows_its_commands_and_those_below_them(group: str) -> None:
    result = run("help", group)
    assert result.exit_code == 0
    shown = listed(result.stdout, "Commands")
    assert {name.partition(" ")[0] for name in shown} == set(COMMANDS[group])
    assert all(shown.values())
    assert "..." not in result.stdout.partition("Commands:")[2]


def test_help_on_a_command_is_what_the_command_says_of_itself() -> None:
    assert run("help").stdout == run("--help").stdout
    assert run("help", "run").stdout == run("run", "--help").stdout
    assert run("help", "site", "add").stdout == run("site", "add", "--help").stdout
    assert "backup" in listed(run("book", "--help").stdout, "Commands")
    assert "book backup" in listed(run("help", "book").stdout, "Commands")


@pytest.mark.parametrize(
    "words, told",
    [
        (("help", "chek"), "Did you mean 'check'?"),
        (("help", "run", "now"), "'main run' has no subcommands."),
        (("jobs",), "'jobs' is a group of commands. See them with: pilotage help jobs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_there_is_no_help_on_is_bad_input(words: tuple[str, ...], told: str) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


@pytest.mark.parametrize("alias", ["restart", "reschedule", "why"])
def test_an_alias_has_help_and_is_listed_nowhere(alias: str) -> None:
    command = main.get_command(click.Context(main), alias)
    assert command is not None
    assert command.hidden
    assert run(alias, "--help").stdout.startswith(f"Usage: main {alias} ")
    assert run("help", alias).stdout == run(alias, "--help").stdout
    assert alias not in main.list_commands(click.Context(main))
    sections = (("--help",), "Everyday commands"), (("--all",), "Jobs"), (("help", "jobs"), "Commands")
    assert all(alias not in listed(run(*words).stdout, section) for words, section in sections)
    assert alias not in listed(run("--help").stdout, "More commands, by group")["jobs"].split(", ")


@pytest.mark.parametrize("alias", ["restart", "reschedule", "why"])
def test_an_alias_fails_in_the_form_of_every_command(alias: str) -> None:
    result = run(alias, "--json", "--no-such-option")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"], error["hint"]) == (2, "usage", f"see: main {alias} --help")


def test_the_version_is_said() -> None:
    assert run("--version").stdout == f"pilotage {pilotage.__version__}\n"


def test_an_unknown_command_is_answered_with_a_near_one() -> None:
    result = run("chek")
    assert result.exit_code == 2
    assert "No such command 'chek'. Did you mean 'check'?" in result.stderr


def test_a_word_that_is_near_to_nothing_lists_what_there_is() -> None:
    result = run("zzzzzz")
    assert result.exit_code == 2
    assert f"Commands: {', '.join(main.list_commands(click.Context(main)))}." in result.stderr


def test_an_unknown_option_is_bad_input() -> None:
    assert run("check", "--jsno").exit_code == 2


def test_the_schema_is_printed() -> None:
    result = run("schema")
    assert result.exit_code == 0
    Draft202012Validator.check_schema(json.loads(result.stdout))


def test_the_schema_is_written(tmp_path: Path) -> None:
    assert run("schema", "-o", str(tmp_path / "schema.json")).exit_code == 0
    assert json.loads((tmp_path / "schema.json").read_text()) == app.document_schema()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_PILOTAGE_COMPLETE={shell}_complete" in result.stdout


def test_no_completion_for_an_unknown_shell() -> None:
    assert run("completion", "csh").exit_code == 2


# --- software ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def descriptor(tmp_path: Path) -> str:
    (tmp_path / "greet.json").write_text(json.dumps(DESCRIPTOR))
    return str(tmp_path / "greet.json")


def test_a_command_line_is_printed(descriptor: str) -> None:
    result = run("software", "command", descriptor, "-", stdin='{"name": "world", "loud": true}')
    assert result.exit_code == 0
    assert result.stdout.strip() == "greet world --loud"


def test_every_refusal_of_an_invocation_is_shown(descriptor: str) -> None:
    result = run("software", "command", descriptor, "-", stdin='{"loud": "yes", "lout": 1}')
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count(": error: ") >= 2


def test_faults_of_both_files_are_shown(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    result = run("software", "command", str(tmp_path / "bad.json"), str(tmp_path / "absent.json"))
    assert result.exit_code == 2
    assert "bad.json" in result.stderr
    assert "absent.json: error: there is no such file" in result.stderr


def test_a_descriptor_that_is_no_text_is_refused(tmp_path: Path, descriptor: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    result = run("software", "command", str(tmp_path / "binary"), descriptor)
    assert result.exit_code == 2
    assert "[not-utf8]" in result.stderr


# --- errors and exit codes --------------------------------------------------------------------------------------------


class Stopped(PilotageError):
    """An error with an exit code of its own."""

    exit_code = 3


@pytest.mark.parametrize(
    "error, code",
    [
        (PilotageError("it failed"), 2),
        (Stopped("it stopped"), 3),
        (DocumentError([Problem(file="x", code="c", message="m")]), 2),
        (KeyboardInterrupt(), 130),
        (click.UsageError("what"), 2),
        (click.exceptions.Exit(1), 1),
        (MemoryError(), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_its_exit_code(error: BaseException, code: int) -> None:
    def fail() -> None:
        raise error

    assert exit_code_of(fail) == code


def test_an_error_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise PilotageError("it failed", subject="x", next_step="try that")

    exit_code_of(fail)
    assert capsys.readouterr().err == "error: x: it failed\n  try that\n"


def test_a_fault_of_the_program_is_not_hidden() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exit_code_of(fail)


def test_the_answer_of_a_command_is_the_exit_code() -> None:
    assert [exit_code_of(lambda: 2), exit_code_of(lambda: None)] == [2, 0]
