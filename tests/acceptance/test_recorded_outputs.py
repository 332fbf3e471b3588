"""What commands print with `--json`, what is said over HTTP and what is stored keep their shape: others read it.

`python tests/acceptance/test_recorded_outputs.py` records the shapes anew; a difference from what is stored is a change for
users, and is told in the changelog.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

ANYTHING = "anything"
OPENAPI = "OpenAPI"
DOCUMENTS = "JSON Schema of documents"
PAYLOADS = "payloads of events"
TABLES = "tables of the book"
READ_PAYLOADS = """
import json
import msgspec
from pilotage.model.events.events import EVENT_TYPES
types = {name: msgspec.json.schema_components([each.payload])[1] for name, each in EVENT_TYPES.items()}
print(json.dumps(types))
"""
WORDS = ("description", "summary", "title")
MEASURED = {"read_bytes", "written_bytes", "peak_memory_bytes", "peak_memory_below_bytes"}
"""Fields that are there only if the kernel counted something: a page that was in memory was not read."""
RECORDED = Path(__file__).with_name("recorded_outputs.json")
DOCUMENT = """\
pilotage: 1
job: shapes
stages:
  - name: make
    each: {n: [1, 2]}
    outputs: ["part-{n}.txt"]
    shell: echo {n} > part-{n}.txt; echo said
  - name: fail
    inputs: [part-1.txt]
    outputs: [never.txt]
    retry: {attempts_max: 1}
    shell: echo why >&2; exit 3
"""
WAITING = """\
pilotage: 1
job: waiting
stages:
  - {shell: "while ! test -e go; do sleep 1; done"}
"""
COMMANDS = {
    "check": ["check"],
    "plan": ["plan"],
    "graph": ["graph", "--format", "json"],
    "rules": ["rules"],
    "rules of a document": ["rules", "pilotage.yaml", "--reason", "out-of-memory"],
    "run": ["run"],
    "plan afterwards": ["plan"],
    "status of the last job": ["status"],
    "status of a job": ["status", "{job}"],
    "status of a package": ["status", "{job}/1.1.1"],
    "explain": ["explain", "{job}/2.1.1"],
    "outputs": ["outputs", "{job}"],
    "query jobs": ["query", "name=shapes", "--jobs"],
    "query packages": ["query", "job={job} and state=ABORTED"],
    "events": ["events", "{job}"],
    "drop": ["drop", "{job}", "1.2"],
    "clean": ["clean"],
    "retry": ["retry", "{job}", "--failed"],
    "submit": ["submit", "waiting.yaml"],
    "hold": ["hold", "{submitted}"],
    "release": ["release", "{submitted}"],
    "kill": ["kill", "{submitted}"],
    "site list": ["site", "list"],
    "doctor": ["doctor"],
    "no such job": ["status", "nothing-1"],
    "simulate": ["simulate", "--seed", "1"],
}


def shape(value: Any) -> Any:
    """The names and kinds of what a value holds: of a list, all that its elements have between them; nothing of `null`."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [reduce(joined, map(shape, value))] if value else []
    return ANYTHING if value is None else "number" if type(value) in (int, float) else type(value).__name__


def joined(one: Any, other: Any) -> Any:
    """What fits both shapes: records become one with the names of both."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: joined(one.get(name, ANYTHING), other.get(name, ANYTHING)) for name in sorted({*one, *other})}
    if isinstance(one, list) and isinstance(other, list):
        return [reduce(joined, [*one, *other])] if one or other else []
    if ANYTHING in (one, other):
        return other if one == ANYTHING else one
    return one if one == other else "several"


def fits(found: Any, recorded: Any) -> bool:
    """Whether two shapes have the same names, and the same kinds wherever neither is `null`."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        both = found.keys() & recorded.keys()
        return (found.keys() ^ recorded.keys()) <= MEASURED and all(fits(found[name], recorded[name]) for name in both)
    if isinstance(found, list) and isinstance(recorded, list):
        return not found or not recorded or fits(found[0], recorded[0])
    return ANYTHING in (found, recorded) or found == recorded


def without_words(value: Any) -> Any:
    """A document of OpenAPI without what is written for people, which may be said better any day."""
    if isinstance(value, dict):
        # A dictionary under a word is a field of that name.
        return {
            name: without_words(each) for name, each in value.items() if name not in WORDS or not isinstance(each, str)
        }
    return [without_words(each) for each in value] if isinstance(value, list) else value


def tables(state: Path) -> dict[str, str]:
    """How each table and index of the book was made, by its name."""
    found: dict[str, str] = {}
    for file in sorted(state.glob("*.sqlite")):
        with contextlib.closing(sqlite3.connect(file)) as book:
            for name, made in book.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
                found[f"{file.name} {name}"] = " ".join(made.split())
    assert found
    return found


def _told(words: list[str | Path], environment: dict[str, str]) -> str:
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout


def printed(program: Path, folder: Path) -> dict[str, Any]:
    """The shape of what each command prints, one after another in one folder, with the exit code."""
    (folder / "pilotage.yaml").write_text(DOCUMENT)
    (folder / "waiting.yaml").write_text(WAITING)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
    environment["HOME"] = str(folder / "home")
    (folder / "home").mkdir()
    found: dict[str, Any] = {
        DOCUMENTS: without_words(json.loads(_told([program, "schema"], environment))),
        PAYLOADS: without_words(json.loads(_told([program.with_name("python"), "-c", READ_PAYLOADS], environment))),
    }
    jobs: dict[str, str] = {}
    try:
        for name, words in COMMANDS.items():
            asked = [str(program), *(word.format(**jobs) for word in words)]
            if "--format" not in words:
                asked.append("--json")
            ran = subprocess.run(
                asked, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
            )
            assert ran.stdout, (asked, ran.stderr)
            told: Any = (
                [json.loads(line) for line in ran.stdout.splitlines()] if name == "simulate" else json.loads(ran.stdout)
            )
            if name in ("run", "submit"):
                jobs["job" if name == "run" else "submitted"] = told["job"]
            if name == "run":
                url = json.loads((folder / ".pilotage" / "service.json").read_bytes())["url"]
                with urllib.request.urlopen(f"{url}/schema") as answer:
                    found[OPENAPI] = without_words(json.load(answer))
                found[TABLES] = tables(folder / ".pilotage")
            found[name] = {"exit_code": ran.returncode, "printed": shape(told)}
    finally:
        subprocess.run(
            [str(program), "serve", "--stop"],
            cwd=folder,
            env=environment,
            capture_output=True,
            timeout=120,
            check=False,
        )
    return found


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the commands print now."""
    return printed(Path(sys.executable).with_name("pilotage"), tmp_path_factory.mktemp("outputs"))


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints_for_programs_keeps_its_shape(name: str, outputs: dict[str, Any]) -> None:
    recorded = json.loads(RECORDED.read_text("utf-8"))[name]
    assert fits(outputs[name], recorded), f"{outputs[name]}\ninstead of\n{recorded}"


def test_what_is_said_over_http_keeps_its_shape(outputs: dict[str, Any]) -> None:
    assert outputs[OPENAPI] == json.loads(RECORDED.read_text("utf-8"))[OPENAPI]


@pytest.mark.parametrize("name", [DOCUMENTS, PAYLOADS, TABLES])
def test_what_is_stored_keeps_its_shape(name: str, outputs: dict[str, Any]) -> None:
    assert outputs[name] == json.loads(RECORDED.read_text("utf-8"))[name]


def test_a_shape_has_the_names_of_all_elements_and_fits_no_other() -> None:
    found = shape([{"a": 1}, {"b": [True, "x"]}, {"b": None}])
    assert found == [{"a": "number", "b": ["several"]}]
    assert fits(shape([{"a": 2.5, "b": []}]), found)
    assert not fits(shape([{"a": "2", "b": []}]), found)
    assert not fits(shape([{"a": 2}]), found)
    assert not fits(shape([{"a": 2, "b": [], "c": 1}]), found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        recorded = printed(Path(sys.argv[1] if len(sys.argv) > 1 else sys.executable).with_name("pilotage"), Path(made))
    RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
