from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.cli import main
from pilotage.cli.shared.problems import SHOWN_MAX, problem_lines, source_window
from pilotage.model.errors import Problem

VALID = "pilotage: 1\njob: small\nrun: a\noutputs: [a.dat]\n"


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    assert "Traceback" not in result.output
    return result


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def exploding() -> str:
    lines = ["pilotage: 1", "job: x", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    return "\n".join(lines)


BAD = {
    "duplicate-key": b"pilotage: 1\njob: x\njob: y\nrun: a\n",
    "tab": b"pilotage: 1\njob: x\nstages:\n\t- run: a\n",
    "no-as-version": b"pilotage: 1\njob: x\nsoftware: {id: s, version: no, run: a}\nrun: a\n",
    "no-as-name": b"pilotage: 1\njob: no\nrun: a\n",
    "octal-count": b"pilotage: 1\njob: x\nrun: a\nnodes: 010\n",
    "octal-name": b"pilotage: 1\njob: 010\nrun: a\n",
    "not-utf8": b"pilotage: 1\njob: \xe9t\xe9\nrun: a\n",
    "utf16": "pilotage: 1\njob: x\n".encode("utf-16"),
    "exploding-anchors": exploding().encode(),
    "deep-nesting": b"pilotage: 1\njob: x\nx: " + b"[" * 50_000,
    "deep-closed": b"[" * 5000 + b"]" * 5000,
    "empty": b"",
    "only-comment": b"# nothing\n",
    "binary": bytes(range(256)) * 8,
    "nul": b"pilotage: 1\njob: \0\n",
    "a-list": b"- 1\n- 2\n",
    "a-word": b"hello\n",
    "another-version": b"pilotage: 2\njob: x\n",
    "no-head": b"job: x\nrun: a\n",
    "cycle": b"pilotage: 1\njob: x\nstages: [{run: a, inputs: [x], outputs: [y]}, {run: b, inputs: [y], outputs: [x]}]\n",
    "two-makers": b"pilotage: 1\njob: x\neach: {i: 1..2}\nrun: a\noutputs: [same]\n",
    "missing-input": b"pilotage: 1\njob: x\nrun: a\ninputs: [absent]\n",
    "outside": b"pilotage: 1\njob: x\nrun: a\noutputs: [../x]\n",
    "unknown-placeholder": b"pilotage: 1\njob: x\nrun: a {nothing}\n",
    "no-match": b"pilotage: 1\njob: x\neach: {f: '*.absent'}\nrun: a {f}\n",
    "bad-dag": b"JOB A\nPARENT B CHILD C\n",
    "bad-json": b'{"pilotage": 1, "job": ',
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_a_place(name: str, tmp_path: Path) -> None:
    Path("bad.yaml").write_bytes(BAD[name])
    result = run("check", "bad.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("bad.yaml")
    assert ": error: " in result.stderr


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_json(name: str) -> None:
    result = run("check", "-", "--json", stdin=BAD[name])
    verdict = json.loads(result.stdout)
    assert result.exit_code == 2
    assert verdict["valid"] is False
    assert all(set(e) == {"file", "line", "column", "code", "message", "hint"} for e in verdict["errors"])


def test_a_document_of_a_hundred_megabytes_is_refused() -> None:
    with Path("big.yaml").open("wb") as file:
        file.write(b"pilotage: 1\njob: x\n")
        file.write(b"# more of the same\n" * (100 * 2**20 // 19))
    result = run("check", "big.yaml")
    assert (result.exit_code, "[too-large]" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", [".", "absent.yaml", "/dev/zero", "/proc/self/mem"])
@pytest.mark.parametrize("command", [["check"], ["check", "--json"], ["graph"], ["convert", "--to", "yaml"]])
def test_what_is_no_readable_file_is_refused_by_every_command(command: list[str], name: str) -> None:
    result = run(*command, name)
    assert result.exit_code == 2
    assert result.output != ""


def test_every_error_is_shown_with_its_line_and_a_caret() -> None:
    Path("x.yaml").write_text("pilotage: 1\njob: x\nrunn: ./a\nnodes: many\n")
    result = run("check", "x.yaml")
    assert result.stderr == (
        "x.yaml:3:1: error: a job has no field 'runn' [unknown-field]\n"
        "  runn: ./a\n"
        "  ^\n"
        "  hint: did you mean 'run'?\n"
        "x.yaml:4:8: error: expected an integer, got 'many' [wrong-type]\n"
        "  nodes: many\n"
        "         ^\n"
    )
    assert result.stdout == "x.yaml: 2 errors\n"


def test_a_valid_document_is_summed_up() -> None:
    Path("pilotage.yaml").write_text(VALID + "run_time: 1h\n")
    result = run("check")
    assert result.exit_code == 0
    assert result.stdout == (
        "pilotage.yaml: valid\n  small: 1 stage, 1 line, 1 package, 1 binary, 1 file, 0 edges\n  critical path: 1 h\n"
    )


def test_warnings_are_shown_and_do_not_fail() -> None:
    Path("pilotage.yaml").write_text(VALID + "variables: {unused: x}\n")
    result = run("check")
    assert result.exit_code == 0
    assert "pilotage.yaml:5:21: warning: nothing uses the variable 'unused' [unused-variable]" in result.stderr
    assert result.stdout.startswith("pilotage.yaml: valid, 1 warning\n")


def test_a_stage_that_grows_later_is_mentioned() -> None:
    Path("x.yaml").write_text(
        "pilotage: 1\njob: x\nstages:\n  - {run: a, outputs: ['p-*']}\n  - {each: {p: p-*}, run: 'b {p}'}\n"
    )
    assert "  stage 2 (b) is late, over p-*: its packages are not known yet\n" in run("check", "x.yaml").stdout


def test_what_an_import_loses_is_mentioned() -> None:
    Path("a.sub").write_text("executable = a\nqueue\n")
    Path("x.dag").write_text("JOB A a.sub\nDOT x.dot\n")
    assert "1 thing in it has no meaning here" in run("check", "x.dag").stdout


def test_the_format_can_be_said() -> None:
    Path("a.sub").write_text("executable = a\nqueue\n")
    Path("strange").write_text("JOB A a.sub\n")
    assert run("check", "strange", "--from", "dagman").exit_code == 0
    assert run("check", "strange", "--from", "yaml").exit_code == 2


def test_json_of_a_valid_document_has_exactly_the_promised_fields() -> None:
    result = run("check", "-", "--json", stdin=VALID)
    assert result.exit_code == 0
    assert list(json.loads(result.stdout)) == [
        "valid",
        "errors",
        "warnings",
        "job",
        "stages",
        "lines",
        "packages",
        "binaries",
        "files",
        "edges",
        "critical_path_seconds",
    ]


def test_a_folder_without_document_is_told_what_to_do() -> None:
    result = run("check")
    assert result.exit_code == 2
    assert result.stderr == (
        "pilotage.yaml: error: there is no pilotage.yaml in this folder [no-document]\n"
        "  hint: name a file, or write a first document: pilotage init\n"
    )


def test_a_folder_without_document_is_told_in_json() -> None:
    result = run("check", "--json")
    assert result.exit_code == 2
    assert [error["code"] for error in json.loads(result.stdout)["errors"]] == ["no-document"]


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", bytes(range(1, 256)) * 8, b"\x7fELF" + b"\xff\0" * 5000]
)
def test_a_binary_file_is_one_error(data: bytes) -> None:
    Path("x.png").write_bytes(data)
    result = run("check", "x.png")
    assert result.exit_code == 2
    assert result.stderr.startswith("x.png: error: this is a binary file, not text")
    assert result.stderr.count(": error: ") == 1


def test_a_text_in_another_encoding_is_no_binary_file() -> None:
    Path("x.yaml").write_bytes("pilotage: 1\njob: x\n".encode("utf-16"))
    assert "[not-utf8]" in run("check", "x.yaml").stderr


def test_a_packed_document_is_told_to_be_unpacked() -> None:
    Path("x.gz").write_bytes(gzip.compress(VALID.encode()))
    found = run("check", "x.gz").stderr
    assert found.startswith("x.gz: error: this gzip file contains no WfFormat instance")
    assert found.endswith("[not-an-instance]\n  hint: unpack it first\n")
    assert "[not-text]" in run("check", "x.gz", "--from", "yaml").stderr


def test_a_catalogue_is_told_from_a_job() -> None:
    Path("tools.yaml").write_text("software: [{id: s, run: a}]\n")
    result = run("check", "tools.yaml")
    assert "this is a catalogue of software, not a job [missing-head]" in result.stderr
    assert "catalogue: tools.yaml" in result.stderr


def test_a_boutiques_descriptor_is_told_from_a_job() -> None:
    Path("tool.json").write_text('{"name": "t", "command-line": "t", "tool-version": "1", "inputs": []}')
    result = run("check", "tool.json")
    assert "this is a Boutiques descriptor, not a job [missing-head]" in result.stderr
    assert "boutiques: tool.json" in result.stderr


def test_a_flood_of_errors_is_cut_short() -> None:
    Path("x.yaml").write_text("pilotage: 1\njob: x\nstages:\n" + "  - {nodes: x}\n" * (SHOWN_MAX + 7))
    result = run("check", "x.yaml")
    assert result.stderr.count(": error: ") <= SHOWN_MAX


# --- the line and the caret -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, column, shown, caret",
    [
        ("run: a", 6, "run: a", 5),
        ("\trun: a", 2, "    run: a", 4),
        ("日本: x", 5, "日本: x", 6),
        ("e\u0301: x", 5, "e\u0301: x", 3),
        ("a\x07b", 3, "a\ufffdb", 2),
        ("abc", 4, "abc", 3),
    ],
    ids=["plain", "tab", "wide", "combining", "control", "end"],
)
def test_the_caret_stands_under_its_character(source: str, column: int, shown: str, caret: int) -> None:
    assert source_window(source, column=column, width=60) == (shown, caret)


@pytest.mark.parametrize("column", [1, 5, 60, 150, 300, 301])
@pytest.mark.parametrize("character", ["x", "日", "\t"])
def test_a_long_line_is_shown_around_the_caret(column: int, character: str) -> None:
    shown, caret = source_window(character * 150 + "y" * 150, column=column, width=40)
    assert 0 <= caret <= 40
    assert len(shown) <= 40


def test_a_problem_without_place_names_only_its_file() -> None:
    lines = list(problem_lines(Problem(file="x", code="c", message="m"), severity="error", width=80))
    assert [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines] == ["x: \x1b[31merror: m [c]"]


def test_a_message_cannot_steer_the_terminal() -> None:
    problem = Problem(file="x\x1b[2J", code="c", message="m\x1b[31m\r", hint="h\x07")
    text = "".join(problem_lines(problem, severity="warning", width=80))
    assert "\x1b[2J" not in text
    assert "\r" not in text
    assert "\x07" not in text


def test_a_program_that_is_not_there_is_told_of() -> None:
    head = "pilotage: 1\njob: x\nstages:\n"
    stages = (
        "  - {run: ./there, outputs: [a]}\n  - {run: ./nope 1, outputs: [b]}\n  - {run: make, outputs: [bin/made]}\n"
        "  - {run: bin/made, inputs: [bin/made], outputs: [c]}\n  - {run: echo, outputs: [d]}\n"
    )
    Path("there").write_text("")
    Path("pilotage.yaml").write_text(head + stages)
    told = json.loads(run("check", "--json").stdout)
    assert [(each["code"], each["line"], each["column"]) for each in told["warnings"]] == [("missing-program", 5, 11)]
    assert "'./nope'" in told["warnings"][0]["message"]
    Path("pilotage.yaml").write_text(head + stages + "  - {run: e, memory: lots}\n")
    assert "missing-program" in run("check").stderr  # beside other faults, too
