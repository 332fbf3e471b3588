from __future__ import annotations

import pytest

from pilotage.language import MemoryFolder, read_document, write_document
from tests.kit.jobs import HEAD, loaded, only_fault, refused


def canonical(text: str) -> str:
    document, report = read_document((HEAD + text).encode(), file="job.yaml", folder=MemoryFolder())
    assert not report.errors, report.errors
    assert document is not None
    return write_document(document.definition)


def packaged(inner: str) -> str:
    return f"stages: [{{lines: [{{packages: [{inner}]}}]}}]\n"


def binary(inner: str) -> str:
    return packaged(f"{{binaries: [{inner}]}}")


@pytest.mark.parametrize(
    "short, long",
    [
        ("run: x y\n", binary("{run: [x, y]}")),
        ("stages: {run: x}\n", binary("{run: [x]}")),
        ("stages: [{run: x}]\n", binary("{run: [x]}")),
        ("lines: [{run: x}]\n", binary("{run: [x]}")),
        ("packages: [{run: x}]\n", binary("{run: [x]}")),
        ("binaries: [{run: x}, {shell: y}]\n", binary("{run: [x]}, {shell: 'y'}")),
        ('run: "a \'b c\' \\"d\\" e\\\\ f"\n', binary("{run: [a, 'b c', d, 'e f']}")),
        ("run: x\ninputs: a\n", binary("{run: [x], inputs: [{name: a}]}")),
        ("run: x\noutputs: [a, {name: b}]\n", binary("{run: [x], outputs: [{name: a}, {name: b}]}")),
        (
            "run: x\noutputs: {name: a, dispositions: store}\n",
            binary("{run: [x], outputs: [{name: a, dispositions: [store]}]}"),
        ),
        ("run: x\ncores: 2\n", packaged("{resources: {cores: 2}, binaries: [{run: [x]}]}")),
        ("run: x\nmemory: 2 GiB\n", packaged("{resources: {memory_bytes: 2147483648}, binaries: [{run: [x]}]}")),
        ("run: x\nwall_time: 2h\n", packaged("{resources: {wall_time_seconds: 7200}, binaries: [{run: [x]}]}")),
        (
            "run: x\nresources: {cores: 2}\nmemory: 1K\n",
            packaged("{resources: {cores: 2, memory_bytes: 1024}, binaries: [{run: [x]}]}"),
        ),
        ("run: x\nrun_time: 1 min\n", binary("{run: [x], run_time_seconds: 60}")),
        ("run: x\ncontainer: img\n", packaged("{container: {image: img}, binaries: [{run: [x]}]}")),
        ("run: x\nfailure_patterns: bad\n", packaged("{failure_patterns: [{pattern: bad}], binaries: [{run: [x]}]}")),
        ("run: x\nprogress: 5 min\n", packaged("{progress: {stalled_after_seconds: 300}, binaries: [{run: [x]}]}")),
        ("run: x\nabort_on: 3\n", packaged("{abort_on: {exit_code: 3}, binaries: [{run: [x]}]}")),
        ("run: x\nscripts: {pre: a b}\n", packaged("{scripts: {pre: {run: [a, b]}}, binaries: [{run: [x]}]}")),
        ("run: x\nscripts: {pre: [a, b]}\n", packaged("{scripts: {pre: {run: [a, b]}}, binaries: [{run: [x]}]}")),
        (
            "stages: [{run: x, environment: {A: 1}}]\n",
            packaged("{environment: {exported: {A: '1'}}, binaries: [{run: [x]}]}"),
        ),
        (
            "each: {i: 1..3}\nrun: x\n",
            "stages: [{each: {variable: i, range: 1..3}, lines: [{packages: [{binaries: [{run: [x]}]}]}]}]\n",
        ),
        (
            "each: {i: [1, 2]}\nrun: x\n",
            "stages: [{each: {variable: i, values: ['1', '2']}, lines: [{packages: [{binaries: [{run: [x]}]}]}]}]\n",
        ),
        (
            "each: {i: 'a*'}\nrun: x\n",
            "stages: [{each: {variable: i, files: 'a*'}, lines: [{packages: [{binaries: [{run: [x]}]}]}]}]\n",
        ),
        (
            "each: {i: [1], k: [2]}\nrun: x\n",
            "stages: [{each: {cross: [{variable: i, values: ['1']}, {variable: k, values: ['2']}]}, lines: [{packages: [{binaries: [{run: [x]}]}]}]}]\n",
        ),
        (
            "software: [{id: s, run: y}]\nstages: [{run: x}]\n",
            "software: [{id: s, infrastructures: [{executions: [{run: [y]}]}]}]\n" + binary("{run: [x]}"),
        ),
        ("run: x\nnode_restriction: n1\n", packaged("{node_restriction: [n1], binaries: [{run: [x]}]}")),
        (
            "early_start: true\nrun: x\n",
            "stages: [{lines: [{early_start: true, packages: [{binaries: [{run: [x]}]}]}]}]\n",
        ),
    ],
)
def test_a_short_form_is_its_long_form(short: str, long: str) -> None:
    assert canonical(short) == canonical(long)


@pytest.mark.parametrize(
    "text, code, line, column",
    [
        ("run: x\nmemroy: 2\n", "unknown-field", 4, 1),
        ("stages: [{runn: x}]\n", "unknown-field", 3, 11),
        ("run: x\nmemory: 2 bananas\n", "wrong-type", 4, 9),
        ("run: x\ncores: many\n", "wrong-type", 4, 8),
        ("run: x\ncores: 0\n", "out-of-range", 4, 8),
        ("run: x\ncores: 1e999\n", "out-of-range", 4, 8),
        ("run: x\ngpus: 1.5\n", "wrong-type", 4, 7),
        ("run: x\ngpus: 010\n", "wrong-type", 4, 7),
        ("run: x\ncpu_percent: 101\n", "out-of-range", 4, 14),
        ("run: x\nside_effects: yes\n", "wrong-type", 4, 15),
        ("run: x\nside_effects: 'true'\n", "wrong-type", 4, 15),
        ("run: x\nrole: fnal\n", "unknown-choice", 4, 7),
        ("run: x\ncontainer: {engine: docker}\n", "missing-field", 4, 12),
        ("run: x\ncontainer: {image: i, engine: dokcer}\n", "unknown-choice", 4, 31),
        ("run: x\nmemory: 1\nmemory_bytes: 2\n", "duplicate-key", 5, 1),
        ("run: x\ncores: 1\nresources: {cores: 2}\n", "duplicate-key", 5, 13),
        ("binaries: [{run: x}]\nrun: y\n", "misplaced-field", 4, 1),
        ("run: ''\n", "empty-command", 3, 6),
        ("run: []\n", "empty-command", 3, 6),
        ('run: "a \'b"\n', "bad-command", 3, 6),
        ("run: {a: b}\n", "wrong-type", 3, 6),
        ("run: x\nfailure_patterns: ['(']\n", "bad-expression", 4, 20),
        ("run: x\noutputs: [{expression: '[', folder: d}]\n", "bad-expression", 4, 24),
        ("run: x\ninputs: [[a]]\n", "wrong-type", 4, 10),
        ("run: x\ninputs:\n", "ambiguous-scalar", 4, 8),
        ("run: x\nstdout: no\n", "ambiguous-scalar", 4, 9),
        ("run: x\ncreated: yesterday\n", "wrong-type", 4, 10),
        ("run: x\ncreated: 2026-03-05T14:00:00\n", "wrong-type", 4, 10),
        ("run: x\nvariables: [a]\n", "wrong-type", 4, 12),
        ("run: x\nvariables: {job: a}\n", "bad-name", 4, 18),
        ("run: x\nvariables: {'a b': a}\n", "bad-name", 4, 20),
        ("run: x\nlimits: {io: 0}\n", "out-of-range", 4, 14),
        ("stages: 3\n", "wrong-type", 3, 9),
        ("run: x\nstages: []\n", "misplaced-field", 3, 1),
    ],
)
def test_a_field_that_is_wrong_is_refused_where_it_stands(text: str, code: str, line: int, column: int) -> None:
    faults = refused("", head=HEAD + text)
    assert [(fault.code, fault.line, fault.column) for fault in faults] == [(code, line, column)]


@pytest.mark.parametrize(
    "field, near",
    [("memroy: 1", "memory"), ("otputs: [a]", "outputs"), ("wal_time: 1", "wall_time"), ("piority: 1", "priority")],
)
def test_an_unknown_field_has_a_near_name(field: str, near: str) -> None:
    assert only_fault(f"stages:\n  - run: x\n    {field}\n").hint == f"did you mean {near!r}?"


def test_an_expression_that_would_run_for_ever_elsewhere_is_taken_and_one_without_bounds_refused() -> None:
    text = f"stages:\n  - run: x\n    failure_patterns: ['(a+)+$', '{'(' * 60}a{')+' * 60}', '(x{{1,900}}){{1,900}}']\n"
    (fault,) = loaded(text).report.errors
    assert (fault.code, "'(x{1,900}){1,900}' could take forever" in fault.message) == ("bad-expression", True)


def test_shell_syntax_in_run_is_a_warning() -> None:
    (warning,) = loaded("stages:\n  - run: a | b\n    outputs: [c]\n").report.warnings
    assert (warning.code, "shell:" in warning.hint) == ("shell-syntax", True)


@pytest.mark.parametrize(
    "field, hint",
    [
        ("merge: {run: x}", "if 'merge' is a name, write a list: each element begins with '- name: merge'"),
        ("merge: x", "known here: abort_on, activity, after, arguments, binaries,"),
        ("packges: {run: x}", "did you mean 'packages'?"),
    ],
)
def test_a_table_under_an_unknown_field_may_be_meant_as_a_name(field: str, hint: str) -> None:
    assert refused(f"stages:\n  - lines:\n      - {field}\n")[0].hint.startswith(hint)
