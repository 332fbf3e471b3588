from __future__ import annotations

import pytest

from tests.kit.jobs import HEAD, expanded, only_fault, refused, warnings


@pytest.mark.parametrize("name", ["'a b'", "a/b", "-a", ".", "''", "'{x}'", "é", "a" * 201, '"a\\nb"', '"a\\n"'])
def test_a_bad_name_of_a_job_is_refused(name: str) -> None:
    assert only_fault("stages:\n  - run: x\n", head=f"pilotage: 1\njob: {name}\n").code == "bad-name"


@pytest.mark.parametrize("name", ["a", "A.b_c+d-1", "2026", "a" * 200])
def test_a_good_name_of_a_job_is_fine(name: str) -> None:
    assert expanded("stages:\n  - run: x\n", head=f"pilotage: 1\njob: {name}\n").definition.job == name


@pytest.mark.parametrize(
    "stage, code",
    [
        ("{name: s}", "no-lines"),
        ("{lines: []}", "no-lines"),
        ("{lines: [{packages: []}]}", "no-packages"),
        ("{packages: [{name: p}]}", "no-command"),
        ("{binaries: [{outputs: [a]}]}", "no-command"),
        ("{run: x, shell: y}", "two-commands"),
        ("{run: x, invoking_script: y}", "two-commands"),
        ("{packages: [{subjob: a.dag, run: x}]}", "two-commands"),
        ("{run: x, startup_parameters: [a]}", "no-startup-script"),
        ("{run: x, scripts: {skip_exit_code: 1}}", "no-pre-script"),
        ("{run: x, node_restriction: [n1, 'n 2']}", "bad-name"),
        ("{run: x, node_restriction: ['$(n1)']}", "bad-name"),
        ("{run: x, outputs: [{name: a, expression: b}]}", "bad-output"),
        ("{run: x, outputs: [{size: 3}]}", "bad-output"),
        ("{run: x, outputs: [{name: a, folder: b}]}", "bad-output"),
        (
            "{run: x, outputs: [{name: a, dispositions: [deletable, retain-indefinitely]}]}",
            "contradicting-dispositions",
        ),
        ("{run: x, inputs: ['']}", "bad-input"),
        ("{run: x, retry: {rules: [{action: again}]}}", "bad-rule"),
        ("{run: x, retry: {rules: [{action: again, exit_code: 1, pattern: x}]}}", "bad-rule"),
        ("{run: x, environment: {'A=B': c}}", "bad-name"),
        ("{run: x, environment: {'': c}}", "bad-name"),
        ("{run: x, outputs: ['" + "a" * 4097 + "']}", "name-too-long"),
        ("{run: x, activity: '" + "a" * 257 + "'}", "name-too-long"),
        ("{run: x, container: 'i{'}", "bad-template"),
    ],
)
def test_a_broken_rule_is_refused(stage: str, code: str) -> None:
    assert only_fault(f"stages:\n  - {stage}\n").code == code


def test_a_job_without_stages_is_refused() -> None:
    assert only_fault("", head=HEAD).code == "no-stages"


def test_two_stages_of_one_name_are_refused() -> None:
    fault = only_fault("stages:\n  - {name: a, run: x}\n  - {name: a, run: y}\n")
    assert (fault.code, fault.line) == ("duplicate-name", 5)


def test_stages_without_a_name_are_named_apart() -> None:
    expansion = expanded(
        "stages:\n  - run: ./x\n  - run: bin/x\n  - shell: echo\n  - run: '{job}'\n  - name: x5\n    run: y\n"
    )
    assert expansion.stage_names == ("x", "x2", "stage3", "stage4", "x5")


def test_a_limit_that_no_package_has_is_a_warning() -> None:
    assert [w.code for w in warnings("limits: {io: 3}\nstages:\n  - run: x\n")] == ["unused-limit"]


def test_every_broken_rule_is_told() -> None:
    text = "stages:\n  - {run: x, shell: y}\n  - {run: x, inputs: ['']}\n  - {run: 'a }'}\n  - {name: s}\n"
    assert [fault.code for fault in refused(text)] == ["no-lines", "two-commands", "bad-input", "bad-template"]


@pytest.mark.parametrize(
    "comparison, code, column",
    [
        ("{files: '*.dat', as: sums}", "unknown-choice", 31),
        ("{files: '*.dat'}", "missing-field", 10),
        ("{as: text}", "missing-field", 10),
        ("{files: [], as: text}", "bad-comparison", 18),
        ("{files: '{n}.dat', as: text}", "misplaced-placeholder", 18),
        ("{files: a, as: text, tolerance: 1e-9}", "bad-comparison", 42),
        ("{files: a, as: numbers, tolerance: -1}", "out-of-range", 45),
        ("{files: a, as: numbers, tolerance: 1e999}", "out-of-range", 45),
        ("{files: a, as: identical, ignore: x}", "bad-comparison", 44),
        ("{files: a, as: text, ignore: '('}", "bad-expression", 39),
        ("{files: a, as: text, ignore: '(a)*\\1'}", "bad-expression", 39),
        ("{files: a, as: text, ignored: x}", "unknown-field", 31),
    ],
)
def test_a_bad_comparison_is_refused_where_it_is(comparison: str, code: str, column: int) -> None:
    fault = only_fault(f"compare: {comparison}\nstages:\n  - run: x\n")
    assert (fault.code, fault.line, fault.column) == (code, 3, column)


def test_one_comparison_needs_no_list_and_ignored_lines_may_have_braces() -> None:
    text = "compare: {files: '*.log', as: text, ignore: '^[0-9]{4}-'}\nstages:\n  - run: x\n"
    (found,) = expanded(text).definition.compare
    assert (found.files, found.compared_as, found.ignore) == (("*.log",), "text", ("^[0-9]{4}-",))
