from __future__ import annotations

import gzip
import io
import json
import os
import sys
from pathlib import Path

import pytest

import pilotage
from pilotage import app
from pilotage.model.errors import DocumentError

DOCUMENT = "pilotage: 1\njob: small\nrun: a\noutputs: [a.dat]\nrun_time: 90s\n"


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "pilotage.yaml"
    path.write_text(DOCUMENT)
    return path


def refusal(source: object) -> tuple[str, str]:
    with pytest.raises(DocumentError) as caught:
        app.load(str(source))
    (problem,) = caught.value.problems
    return problem.code, problem.hint


def test_a_loaded_document_is_expanded(document: Path) -> None:
    loaded = pilotage.load(document)
    assert loaded.format == "yaml"
    assert loaded.expansion is not None
    assert [package.name for package in loaded.expansion.packages()] == ["a"]


def test_loading_raises_every_fault_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("pilotage: 1\njob: x\nrunn: ./a\nnodes: many\n")
    with pytest.raises(DocumentError) as caught:
        app.load(path)
    assert [problem.code for problem in caught.value.problems] == ["unknown-field", "wrong-type"]


def test_a_missing_file_is_answered_with_a_near_one(document: Path) -> None:
    assert refusal(document.with_name("pilotaje.yaml")) == ("missing-file", "did you mean 'pilotage.yaml'?")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    code, hint = refusal(tmp_path / "absent" / "x.yaml")
    assert (code, "absent" in hint) == ("missing-file", True)


def test_a_folder_is_answered_with_its_document(document: Path) -> None:
    assert refusal(document.parent) == ("is-directory", f"did you mean '{document}'?")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path)[0] == "is-directory"


def test_a_named_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe")[0] == "not-a-file"


def test_a_device_is_refused() -> None:
    assert refusal("/dev/zero")[0] == "not-a-file"


def test_nothing_is_an_empty_document() -> None:
    assert refusal(os.devnull)[0] == "empty-document"


def test_a_file_that_cannot_be_read_is_refused() -> None:
    assert refusal("/proc/self/mem")[0] == "unreadable-file"


def test_a_name_that_no_file_can_have_is_refused() -> None:
    assert refusal("a\0b")[0] == "unreadable-file"
    assert refusal("x" * 5000)[0] == "unreadable-file"


def test_a_name_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        app.load(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml"))
    assert caught.value.problems[0].file.endswith("\ufffd.yaml")


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert refusal(path)[0] == "too-large"


def test_a_packed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json.bz2"
    path.write_bytes(b"BZh91AY&SY")
    assert refusal(path) == ("not-text", "unpack it first")


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DOCUMENT.encode())))
    assert app.check("-").valid


def test_the_document_of_a_folder_is_found(document: Path) -> None:
    assert app.find_document(str(document.parent)) == str(document)


def test_a_folder_without_document_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        app.find_document(str(tmp_path))
    assert "pilotage init" in str(caught.value)


def test_the_verdict_of_a_valid_document(document: Path) -> None:
    assert json.loads(app.check_json(app.check(str(document)))) == {
        "valid": True,
        "errors": [],
        "warnings": [],
        "job": "small",
        "stages": 1,
        "lines": 1,
        "packages": 1,
        "binaries": 1,
        "files": 1,
        "edges": 0,
        "critical_path_seconds": 90.0,
    }


def test_the_verdict_of_a_document_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("pilotage: 1\njob: x\nrunn: ./a\n")
    assert json.loads(app.check_json(app.check(str(path)))) == {
        "valid": False,
        "errors": [
            {
                "file": str(path),
                "line": 3,
                "column": 1,
                "code": "unknown-field",
                "message": "a job has no field 'runn'",
                "hint": "did you mean 'run'?",
            }
        ],
        "warnings": [],
        "job": None,
        "stages": None,
        "lines": None,
        "packages": None,
        "binaries": None,
        "files": None,
        "edges": None,
        "critical_path_seconds": None,
    }


def test_a_verdict_tells_which_stages_grow_later(tmp_path: Path) -> None:
    path = tmp_path / "late.yaml"
    path.write_text(
        "pilotage: 1\njob: x\nstages:\n  - {run: a, outputs: ['p-*']}\n  - {each: {p: p-*}, run: 'b {p}'}\n"
    )
    verdict = app.check(str(path))
    assert (verdict.packages, [late.stage for late in verdict.late]) == (1, [2])


def test_converting_to_yaml_gives_the_canonical_form(document: Path) -> None:
    converted = app.convert(app.load(document), "yaml")
    assert converted.losses == ()
    (text,) = converted.files.values()
    canonical = document.with_name("canonical.yaml")
    canonical.write_text(text)
    assert app.convert(app.load(canonical), "yaml") == converted


@pytest.mark.parametrize("target", ["dagman", "wfformat"])
def test_a_job_survives_another_format(document: Path, target: str) -> None:
    converted = app.convert(app.load(document), "dagman" if target == "dagman" else "wfformat")
    for name, text in converted.files.items():
        document.with_name(name).write_text(text)
    loaded = app.load(document.with_name(next(iter(converted.files))))
    assert loaded.format == target
    assert loaded.expansion is not None
    assert loaded.expansion.count == 1


def test_what_an_export_cannot_say_is_listed_with_its_side(document: Path) -> None:
    document.write_text(DOCUMENT + "owner: somebody\n")
    losses = app.convert(app.load(document), "dagman").losses
    assert ("export", "owner") in {(loss.side, loss.keyword) for loss in losses}


def test_what_an_import_cannot_take_is_listed_with_its_side(tmp_path: Path) -> None:
    (tmp_path / "a.sub").write_text("executable = a\nqueue\n")
    (tmp_path / "x.dag").write_text("JOB A a.sub\nDOT x.dot\n")
    losses = app.convert(app.load(tmp_path / "x.dag"), "yaml").losses
    assert [(loss.side, loss.line, loss.keyword) for loss in losses if loss.keyword == "DOT"] == [("import", 2, "DOT")]


def test_a_first_document_that_would_be_refused_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DocumentError):
        app.first_document({"pilotage": 1, "job": "x", "each": {"f": "*.absent"}, "run": "a {f}"}, folder=str(tmp_path))


def test_a_packed_instance_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"name": "x", "schemaVersion": "1.4", "workflow": {}}'))
    loaded = app.examine(str(path))
    assert loaded.format == "wfformat"
    assert "not-utf8" not in {problem.code for problem in loaded.report.errors}


def test_an_error_in_python_has_no_zero_places_and_keeps_its_hint(document: Path) -> None:
    absent = document.with_name("pilotaje.yaml")
    with pytest.raises(DocumentError) as caught:
        app.load(absent)
    assert str(caught.value) == f"{absent}: missing-file: there is no such file (did you mean 'pilotage.yaml'?)"


def test_an_error_in_python_has_its_place(document: Path) -> None:
    document.write_text("pilotage: 1\njob: x\nrunn: a\n")
    with pytest.raises(DocumentError) as caught:
        app.load(document)
    assert str(caught.value).startswith(f"{document}:3:1: unknown-field: ")


def test_json_holds_no_character_that_steers_a_terminal() -> None:
    assert json.loads(app.json_text("\x1b\x7f\x9b")) == "\x1b\x7f\x9b"
    assert app.json_text("\x1b\x7f\x9bé") == '"\\u001b\\u007f\\u009bé"\n'
