"""The YAML writer: block style, few quotes, none missing."""

from __future__ import annotations

import pytest
import yaml

from pilotage.language.text.emit import COLUMNS_MAX, write_yaml


def test_a_document_is_written_in_block_style_and_in_its_order() -> None:
    job = {
        "pilotage": 1,
        "stages": [
            {"each": {"seed": "1..1000"}, "run": "./simulate --seed {seed}", "outputs": ["sim-{seed}.dat"]},
            {"run": "./merge {inputs}", "inputs": ["sim-*.dat", "x.csv"], "retries": 3, "hold": False},
        ],
        "empty": {},
        "none": [],
    }
    assert write_yaml(job) == (
        "pilotage: 1\n"
        "stages:\n"
        "  - each:\n"
        "      seed: 1..1000\n"
        "    run: ./simulate --seed {seed}\n"
        '    outputs: ["sim-{seed}.dat"]\n'
        "  - run: ./merge {inputs}\n"
        "    inputs: [sim-*.dat, x.csv]\n"
        "    retries: 3\n"
        "    hold: false\n"
        "empty: {}\n"
        "none: []\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "no", "Y", "on", "true", "NULL", "~", "010", "0x1F", "0o17", "1_000", "1.10", "1e5", ".5", ".inf", "1:30",
        "2024-01-01", "=", "<<", "-", "---", "...x", "- a", "? a", ": a", "a: b", "a:", "a #b", " a", "a ", "#a", "*.dat",
        "&a", "!a", "|", ">", "%a", "@a", "`a", "[a]", "{seed}", "]", ",", '"a"', "a\tb",
    ],
)  # fmt: skip
def test_a_text_that_some_reader_would_change_is_quoted(text: str) -> None:
    written = write_yaml({"a": text})
    assert written.startswith(('a: "', "a: '"))
    assert yaml.safe_load(written) == {"a": text}


@pytest.mark.parametrize(
    "text",
    ["a", "./run --x {seed}", "-x", "1..9", "a:b", "a#b", "it's", 'say "x"', "x[1]", "a, b", "é", "v1.10", "1.2.3"],
)
def test_a_text_that_everyone_reads_alike_stays_plain(text: str) -> None:
    assert write_yaml({"a": text}) == f"a: {text}\n"


@pytest.mark.parametrize(
    "text, written",
    [
        ("a\nb\n", "a: |\n  a\n  b\n"),
        ("a\nb", "a: |-\n  a\n  b\n"),
        ("a\n\n", "a: |+\n  a\n\n"),
        ("a\n\n  b\n", "a: |\n  a\n\n    b\n"),
        (" a\nb", 'a: " a\\nb"\n'),
        ("a\n \nb", 'a: "a\\n \\nb"\n'),
        ("a\r\nb", 'a: "a\\r\\nb"\n'),
    ],
)
def test_lines_become_a_literal_block_where_it_is_exact(text: str, written: str) -> None:
    assert write_yaml({"a": text}) == written


def test_a_list_that_fills_the_line_is_written_in_brackets() -> None:
    items = ["x" * 10] * 7 + ["x"]
    line = f"a: [{', '.join(items)}]"
    items[-1] = "x" * (COLUMNS_MAX - len(line) + 1)
    assert write_yaml({"a": items}).splitlines()[0] == f"a: [{', '.join(items)}]"


def test_a_list_one_column_too_long_is_written_as_a_block() -> None:
    items = ["x" * 10] * 7 + ["x"]
    line = f"a: [{', '.join(items)}]"
    items[-1] = "x" * (COLUMNS_MAX - len(line) + 2)
    assert write_yaml({"a": items}) == "a:\n" + "".join(f"  - {item}\n" for item in items)


def test_lists_in_lists_are_nested() -> None:
    assert write_yaml([[1, 2], [["a"]], {"b": [{"c": 1}]}]) == "- [1, 2]\n- - [a]\n- b:\n    - c: 1\n"


@pytest.mark.parametrize("value, written", [(1e20, "1.0e+20"), (1e-7, "1.0e-07"), (0.5, "0.5"), (float("inf"), ".inf")])
def test_a_float_is_a_float_for_every_reader(value: float, written: str) -> None:
    assert write_yaml(value) == f"{written}\n"
    assert yaml.safe_load(written) == value


def test_a_key_too_long_for_its_line_is_written_with_a_question_mark() -> None:
    data = {"k" * 3000: {"a": 1}, "b": 2}
    assert write_yaml(data).startswith("? kkk")
    assert yaml.safe_load(write_yaml(data)) == data


@pytest.mark.parametrize("value", [object(), {1: 2}, b"bytes", {"a": {1, 2}}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="document"):
        write_yaml(value)
