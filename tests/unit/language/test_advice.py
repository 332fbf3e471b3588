from __future__ import annotations

import pytest

from pilotage.language.expansion import advice
from tests.kit.jobs import loaded, refused, warnings


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

    text = "variables: {d: raw}\nstages:\n  - each: {f: '{d}/*'}\n    run: x {f}\n    inputs: ['{f}']\n    outputs: ['{f}.o']\n"
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
        "each: {f: 'o-*'}\n    run: y {f}\n    inputs: ['{f}']",
        "each: {f: '{p}-*'}\n    run: y {f}\n    inputs: ['{f}']",
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


def test_an_unknown_executor_is_a_warning_that_the_default_is_taken() -> None:
    (warning,) = warnings("stages:\n  - run: x\n    executor: locl\n")
    assert (warning.code, "may run anywhere" in warning.message, warning.hint) == (
        "unknown-executor",
        True,
        "did you mean 'local'?",
    )
    assert codes("stages:\n  - run: x\n    executor: local\n") == []


def blur(*, outputs: str = "", more: str = "", maximum: int = 10**9) -> str:
    """A head with a software that Boutiques describes."""
    made = f', "output-files": [{outputs}]' if outputs else ""
    return (
        "pilotage: 1\njob: j\nsoftware:\n  - id: blur\n    boutiques: "
        '{"name": "blur", "tool-version": "1", "description": "d", "schema-version": "0.5", "command-line": "blur [N]", '
        f'"inputs": [{{"id": "n", "name": "n", "type": "Number", "value-key": "[N]", "maximum": {maximum}}}]{made}{more}}}\n'
    )


OPTIONAL = '{"id": "o", "name": "o", "path-template": "o.txt", "optional": true}'
STAGE = "stages:\n  - software: blur\n    parameters: {n: 1}\n"


def test_a_part_of_a_descriptor_that_a_job_cannot_honour_is_told_once() -> None:
    (warning,) = warnings(STAGE + "  - software: blur\n    parameters: {n: 2}\n", head=blur(outputs=OPTIONAL))
    assert (warning.code, warning.line) == ("descriptor-part-unused", 7)
    assert "output-files: 'o' is optional" in warning.message
    assert warning.hint == "declare the files in outputs"


def test_outputs_that_the_document_declares_need_no_advice() -> None:
    assert warnings(STAGE + "    outputs: [o.txt]\n", head=blur(outputs=OPTIONAL)) == []


def test_a_configuration_file_is_told_even_where_outputs_are_declared() -> None:
    configuration = '{"id": "c", "name": "c", "path-template": "c.cfg", "file-template": ["n = [N]"]}'
    (warning,) = warnings(STAGE + "    outputs: [o.txt]\n", head=blur(outputs=configuration))
    assert ("file-template" in warning.message, "earlier binary" in warning.hint) == (True, True)


def test_an_image_that_a_package_cannot_share_is_told() -> None:
    head = blur(more=', "container-image": {"type": "docker", "image": "b"}')
    both = "stages:\n  - binaries: [{software: blur, parameters: {n: 1}}, {run: x}]\n"
    (warning,) = warnings(both, head=head)
    assert "do not share it" in warning.message
    assert warnings(both + "    container: own\n", head=head) == []
    assert warnings(STAGE, head=head) == []


def test_many_parts_are_cut_short() -> None:
    outputs = ", ".join(OPTIONAL.replace('"o"', f'"o{n}"').replace("o.txt", f"{n}.txt") for n in range(14))
    (warning,) = warnings(STAGE, head=blur(outputs=outputs))
    assert "'o9' is optional; and 4 more" in warning.message


def test_parameters_are_checked_for_the_last_package_too() -> None:
    text = "stages:\n  - each: {i: 1..1500}\n    software: blur\n    parameters: {n: '{i}'}\n"
    (fault,) = refused(text, head=blur(maximum=1499))
    assert (fault.code, fault.message.startswith("blur-1499 (blur): n: expected at most 1499")) == (
        "bad-parameters",
        True,
    )


def test_packages_with_the_same_parameters_are_checked_once() -> None:
    text = "variables: {n: '3'}\nstages:\n  - each: {i: 1..20000}\n    packages: [{name: 'p-{i}', software: blur, parameters: {n: '{n}'}}]\n"
    assert [problem.code for problem in refused(text, head=blur(maximum=2))] == ["bad-parameters"]
    assert warnings(text, head=blur()) == []


def test_more_parameters_than_are_checked_are_told_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "PARAMETERS_CHECKED_MAX", 10)
    text = "stages:\n  - each: {i: 1..25}\n    software: blur\n    parameters: {n: '{i}'}\n"
    (warning,) = warnings(text, head=blur())
    assert (warning.code, "of 25 different sets" in warning.message, "first 10" in warning.message) == (
        "parameters-unchecked",
        True,
        True,
    )


def test_files_that_are_iterated_over_and_not_taken_are_told() -> None:
    text = "stages:\n  - {run: x, outputs: [o-1]}\n  - {each: {f: 'o-*'}, run: 'y {f}'}\n"
    assert codes(text) == ["not-taken"]


def test_a_stage_that_declares_nothing_is_told_of_with_what_becomes_of_its_files() -> None:
    text = (
        "stages:\n  - {name: fit, run: x}\n  - {run: y, outputs: [o]}\n  - {run: z, stdout: z.log}\n  - {shell: echo}\n"
    )
    found = loaded(text).report.warnings
    assert [(warning.code, warning.line) for warning in found] == [("no-outputs", 4), ("no-outputs", 7)]
    assert found[0].message.startswith("the stage 'fit' declares no outputs: all files that it writes are removed")
    assert "outputs: [result.dat]" in found[0].hint


@pytest.mark.parametrize(
    "stage",
    [
        "packages: [{run: a}, {run: b, outputs: [o]}]",
        "{run: a, done: true}",
        "{run: a, noop: true}",
        "{run: a, side_effects: true}",
    ],
)
def test_a_stage_that_declares_something_or_runs_nothing_is_not_told_of(stage: str) -> None:
    stage = stage if stage.startswith("{") else f"{{{stage}}}"
    assert [warning.code for warning in loaded(f"stages:\n  - {stage}\n").report.warnings] == []
