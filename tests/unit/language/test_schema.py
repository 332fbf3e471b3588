from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pilotage.language import MemoryFolder, read_document, write_document
from pilotage.language.parsing.kinds import Anything, DocumentParse
from pilotage.language.parsing.records import names_below, names_of
from pilotage.language.parsing.schema import document_schema
from pilotage.language.text.yaml import read_tree
from pilotage.model.jobs.definition import Definition, Package

HEAD = "pilotage: 1\njob: x\n"

ACCEPTED = {
    "one-command": "run: ./a\n",
    "sweep": "stages:\n  - each: {seed: 1..10}\n    run: ./a {seed}\n    outputs: [o-{seed}.dat]\n",
    "arguments": "stages: [{run: [./a, 1, -x]}]\n",
    "lines": "stages:\n  - lines:\n      - run: ./a\n      - packages: [{run: ./b, cores: 2, memory: 2 GiB}]\n",
    "quantities": "run: a\nwall_time: 1:30:00\nrun_time_seconds: 60\nwork: 5 MB\n",
    "files": "run: a\ninputs: [a.dat, {name: b.dat, acquisition: self, size: 1 GB}]\nstdout: log.txt\n",
    "one-input": "run: a\ninputs: a.dat\n",
    "nested-each": "each: {dot: [{a: [1, 2]}, {cross: {b: 1..2, c: [x]}}]}\nrun: ./a {a} {b} {c}\n",
    "csv": "each: {csv: runs.csv}\nrun: ./a\n",
    "source": "each: {variable: part, files: '*.dat', group: 10}\nrun: ./a\n",
    "environment": "environment: {A: b}\nrun: a\n",
    "two-environments": "environment: {exported: {A: b}, setting: {queue: long}}\nrun: a\n",
    "container": "run: a\ncontainer: debian.sif\nprogress: 10 min\nfailure_patterns: oops\n",
    "retry": "run: a\nretry: {attempts_max: 3, rules: [{reason: wall-time, action: more-time, time_factor: 2}]}\n",
    "scripts": "run: a\nscripts: {pre: ./before -x, post: {run: [./after]}}\n",
    "software": "software: {id: s, run: ./s}\nstages: [{software: s}]\n",
    "catalogue": "catalogue: [tools.yaml]\nrun: a\n",
}

REFUSED = {
    "unknown-field": "runn: ./a\n",
    "misplaced-field": "stages: [{lines: [{run: ./a}], run: ./b}]\n",
    "wrong-choice": "run: a\ninputs: [{name: a, acquisition: maybe}]\n",
    "no-number": "run: a\nnodes: many\n",
    "too-small": "run: a\nnodes: 0\n",
    "no-truth": "run: a\nside_effects: 1\n",
    "missing-name": "run: a\ninputs: [{locator: x}]\n",
    "unknown-operator": "each: {dots: {a: {nonsense: {}}}}\nrun: [{}]\n",
    "empty-command": "run: []\n",
}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(document_schema())


def plain(text: str) -> Any:
    tree, report = read_tree(text.encode(), file="x.yaml")
    assert tree is not None
    assert report.errors == []
    return Anything().read(tree, (), DocumentParse(report, MemoryFolder()))


def faults(validator: Draft202012Validator, data: Any) -> list[str]:
    return [fault.message for fault in validator.iter_errors(data)]


def test_the_schema_is_a_schema_of_its_dialect() -> None:
    schema = document_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def test_every_reference_leads_to_a_definition() -> None:
    schema = document_schema()

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    assert {name.removeprefix("#/$defs/") for name in references(schema)} <= schema["$defs"].keys()


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED)
def test_a_right_document_validates(validator: Draft202012Validator, body: str) -> None:
    assert faults(validator, plain(HEAD + body)) == []


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_a_wrong_document_does_not_validate(validator: Draft202012Validator, body: str) -> None:
    assert faults(validator, plain(HEAD + body)) != []


def test_a_document_without_its_head_does_not_validate(validator: Draft202012Validator) -> None:
    assert faults(validator, plain("job: x\nrun: a\n")) != []


@pytest.mark.parametrize("name", [n for n in ACCEPTED if n not in ("csv", "catalogue")])
def test_the_canonical_form_validates(validator: Draft202012Validator, name: str) -> None:
    document, report = read_document((HEAD + ACCEPTED[name]).encode(), file="x.yaml", folder=MemoryFolder())
    assert document is not None, report.errors
    assert faults(validator, plain(write_document(document.definition))) == []


def test_every_example_validates(validator: Draft202012Validator, root: Path) -> None:
    examples = sorted((root / "examples").rglob("pilotage.yaml"))
    assert examples
    assert {str(e): faults(validator, plain(e.read_text())) for e in examples} == {str(e): [] for e in examples}


def test_the_head_of_a_document_takes_exactly_what_the_reader_takes() -> None:
    names = {"catalogue", *names_of(Definition), *names_below(Definition)}
    assert document_schema()["properties"].keys() == names


def test_a_quantity_goes_by_both_its_names() -> None:
    properties = document_schema()["$defs"]["Package"]["properties"]
    assert properties["memory"] == properties["memory_bytes"]
    assert names_of(Package) <= properties.keys()


def test_fields_say_what_they_are_for() -> None:
    assert document_schema()["$defs"]["Binary"]["properties"]["shell"]["description"].startswith("A script")
