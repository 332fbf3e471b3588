"""Parameters of a document: declared in it, chosen for each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from pilotage import app
from pilotage.app.documents.parameters import chosen_parameters
from pilotage.cli import main
from pilotage.language import LoadResult, MemoryFolder, load
from pilotage.language.builder import Job
from pilotage.language.parsing.document import write_document
from pilotage.model.errors import DocumentError, PilotageError
from tests.kit.jobs import commands

TEXT = """\
pilotage: 1
job: j
parameters:
  count: {type: integer, default: 3, description: how many}
  scale: {type: number, default: 0.5}
  quick: {type: yes-no, default: "false"}
  word: hello
stages:
  - run: x {count} {scale} {quick} {word}
    outputs: ["{word}.dat"]
"""


def read(text: str = TEXT, **given: str) -> LoadResult:
    return load(text.encode(), file="pilotage.yaml", folder=MemoryFolder(), parameters=given)


def faults(text: str = TEXT, **given: str) -> list[tuple[str, str]]:
    return [(fault.code, f"{fault.message} {fault.hint}") for fault in read(text, **given).report.errors]


def test_a_parameter_is_its_default_unless_something_is_chosen() -> None:
    assert commands(read().job().expansion) == [("x", "3", "0.5", "false", "hello")]
    assert commands(read(count="7", word="good day").job().expansion) == [("x", "7", "0.5", "false", "good day")]


def test_what_was_chosen_is_kept_in_the_definition() -> None:
    definition = read(count="7").job().definition
    assert {name: each.chosen for name, each in definition.parameters.items()}["count"] == "7"
    again = read(write_document(definition)).job()
    assert again.definition == definition
    assert commands(again.expansion) == [("x", "7", "0.5", "false", "hello")]


@pytest.mark.parametrize(
    "given, code, says",
    [
        ({"cuont": "1"}, "unknown-parameter", "did you mean 'count'?"),
        ({"count": "many"}, "wrong-type", "'count' must be a whole number, got 'many'"),
        ({"count": "1\n"}, "wrong-type", "a whole number"),
        ({"scale": "big"}, "wrong-type", "'scale' must be a number"),
        ({"quick": "maybe"}, "wrong-type", "true or false"),
    ],
)
def test_a_choice_that_does_not_fit_is_told_with_what_would(given: Mapping[str, str], code: str, says: str) -> None:
    ((told, message),) = faults(**given)
    assert told == code
    assert says in message


def test_a_parameter_without_a_value_says_how_to_give_one() -> None:
    text = "pilotage: 1\njob: j\nparameters: {seed: {type: integer}}\nrun: x {seed}\n"
    assert faults(text) == [
        ("missing-parameter", "the parameter 'seed' has no default and was not set use  --set seed=VALUE")
    ]
    assert faults(text, seed="4") == []


def test_declarations_are_checked() -> None:
    text = "pilotage: 1\njob: j\nvariables: {a: x}\nparameters: {a: 1, inputs: 2, n: {type: integer, default: y}}\nrun: x {a} {n}\n"
    assert [code for code, _ in faults(text)] == ["duplicate-name", "bad-name", "wrong-type"]


def test_a_parameter_that_nothing_uses_is_told_of() -> None:
    text = "pilotage: 1\njob: j\nparameters: {idle: 1}\nrun: x\noutputs: [y]\n"
    assert [warning.code for warning in read(text).report.warnings] == ["unused-variable"]


@pytest.mark.parametrize(
    "name, content",
    [
        ("p.yaml", "count: 7\nquick: true\n"),
        ("p.json", '{"count": 7, "quick": true}'),
        ("p.toml", "count = 7\nquick = true\n"),
    ],
)
def test_a_file_chooses_and_the_command_line_wins(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    assert chosen_parameters((), str(file)) == {"count": "7", "quick": "true"}
    assert chosen_parameters(("count=8", "word=a=b"), str(file)) == {"count": "8", "quick": "true", "word": "a=b"}


@pytest.mark.parametrize(
    "content, name", [("[1, 2]", "p.json"), ("- a\n", "p.yaml"), ("{", "p.json"), ("a: [1]", "p.yaml")]
)
def test_a_file_that_chooses_nothing_is_refused(tmp_path: Path, content: str, name: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PilotageError):
        chosen_parameters((), str(tmp_path / name))
    with pytest.raises(PilotageError, match="cannot be read"):
        chosen_parameters((), str(tmp_path / "absent.yaml"))
    with pytest.raises(PilotageError, match="NAME=VALUE"):
        chosen_parameters(("count",), None)


def test_a_job_that_is_built_takes_parameters_and_other_formats_have_none() -> None:
    job = Job("j", parameters={"count": {"type": "integer", "default": 3}})
    job.stage(run="x {count}")
    assert commands(job.load(MemoryFolder(), parameters={"count": "9"}).expansion) == [("x", "9")]
    dag = load(b"JOB A a.sub\n", file="x.dag", folder=MemoryFolder(), parameters={"count": "9"})
    assert "unknown-parameter" in [fault.code for fault in dag.report.errors]


def test_check_and_plan_take_what_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    Path("pilotage.yaml").write_text(TEXT)
    shown = CliRunner().invoke(main, ["plan", "--set", "count=7", "--json"]).stdout
    told = {each["name"]: each for each in json.loads(shown)["parameters"]}
    assert told["count"] == {
        "name": "count",
        "value": "7",
        "chosen": True,
        "type": "integer",
        "default": "3",
        "description": "how many",
    }
    assert told["word"] == {"name": "word", "value": "hello", "default": "hello"}
    lines = CliRunner().invoke(main, ["plan", "--set", "count=7"]).stdout
    assert "  count = 7 (how many)\n" in lines
    assert "  word = hello (default)\n" in lines
    assert not app.check("pilotage.yaml", parameters={"count": "x"}).valid
    with pytest.raises(DocumentError):
        app.load("pilotage.yaml", parameters={"nope": 1})
