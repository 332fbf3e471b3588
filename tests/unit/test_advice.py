from __future__ import annotations

import pytest

from tests.jobs import warnings


def codes(stages: str) -> list[str]:
    return [warning.code for warning in warnings(stages)]


def test_a_plain_job_has_no_warnings() -> None:
    assert codes("stages:\n  - each: {i: 1..2}\n    run: x {i}\n    outputs: ['o-{i}']\n") == []


@pytest.mark.parametrize(
    "use",
    [
        "run: x {v}",
        "run: x\n    outputs: ['{v}']",
        "shell: echo {v}",
        "run: x\n    container: '{v}'",
        "run: x\n    stdout: '{v}.log'",
        "run: x {tag}",
        "run: x {package}",
        "run: x\n    packages:\n",
    ],
)
def test_a_variable_used_anywhere_is_used(use: str) -> None:
    if "packages" in use:
        use = "packages: [{run: a}, {run: 'b {v}'}]"
    assert codes(f"stages:\n  - each: {{v: [1, 2]}}\n    {use}\n") == []


def test_an_unused_constant_is_told_with_its_place() -> None:
    (warning,) = warnings("variables: {year: '2026', used: a}\nstages:\n  - run: x {used}\n")
    assert (warning.code, warning.line, warning.column) == ("unused-variable", 3, 19)


def test_a_constant_used_where_lists_are_read_is_used() -> None:
    from pilotage.language import MemoryFolder
    from tests.jobs import loaded

    text = "variables: {d: raw}\nstages:\n  - each: {f: '{d}/*'}\n    run: x {f}\n"
    assert loaded(text, folder=MemoryFolder(["raw/1"])).report.warnings == []


def test_an_output_that_nobody_uses_and_that_may_be_deleted_is_told() -> None:
    (warning,) = warnings("stages:\n  - run: x\n    outputs: [{name: o, dispositions: [deletable]}]\n")
    assert (warning.code, "'o'" in warning.message) == ("unused-output", True)


@pytest.mark.parametrize(
    "later",
    [
        "run: y\n    inputs: [o-1]",
        "run: y\n    inputs: ['o-*']",
        "run: y\n    stdin: o-1",
        "each: {f: 'o-*'}\n    run: y {f}",
        "each: {f: '{p}-*'}\n    run: y {f}",
    ],
)
def test_an_output_that_somebody_uses_is_not_told(later: str) -> None:
    text = "variables: {p: o}\n" if "{p}" in later else ""
    text += f"stages:\n  - each: {{i: 1..2}}\n    run: x\n    outputs: [{{name: 'o-{{i}}', dispositions: [forward, deletable]}}]\n  - {later}\n"
    assert codes(text) == []


@pytest.mark.parametrize(
    "kept",
    [
        "dispositions: [deletable, store]",
        "dispositions: [deletable], locator: 'https://x.org'",
        "dispositions: [retain-temporarily]",
    ],
)
def test_an_output_that_is_kept_somewhere_is_not_told(kept: str) -> None:
    assert codes(f"stages:\n  - run: x\n    outputs: [{{name: o, {kept}}}]\n") == []


def test_an_unknown_executor_is_a_warning_and_the_default_is_taken() -> None:
    (warning,) = warnings("stages:\n  - run: x\n    executor: locl\n")
    assert (warning.code, "default" in warning.message, warning.hint) == (
        "unknown-executor",
        True,
        "did you mean 'local'?",
    )
    assert codes("stages:\n  - run: x\n    executor: local\n") == []
