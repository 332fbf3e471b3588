"""Packages in the words of their document, from its layout."""

from __future__ import annotations

import pytest

from pilotage.language import Expansion
from pilotage.model.package_words import PackageWords, parameters_text
from pilotage.service.wording import COMMAND_CHARACTERS_MAX, Wording, outputs_line, words_of
from tests.jobs import expanded

SWEEP = """\
stages:
  - name: fit
    each: {temp: [0.8, 1.2], field: [8, 16]}
    run: ./fit --temp {temp} --field {field} --note 'two words'
    outputs: ["points-{temp}-{field}.json"]
  - name: all
    shell: |
      cat {inputs} > all.json
      wc -l all.json
    inputs: [points-*.json]
    outputs: [all.json]
  - each: {n: 1..3}
    packages: [{name: "part {n}", run: "p {n}", outputs: ["p-{n}"]}]
"""


@pytest.fixture(scope="module")
def sweep() -> Expansion:
    return expanded(SWEEP)


def test_a_package_is_called_by_its_name_its_parameters_and_its_command(sweep: Expansion) -> None:
    assert words_of(sweep, 1) == PackageWords(
        name="fit-0_1",
        parameters={"temp": "0.8", "field": "16"},
        command="./fit --temp 0.8 --field 16 --note 'two words'",
    )
    files = "points-0.8-8.json points-0.8-16.json points-1.2-8.json points-1.2-16.json"
    assert words_of(sweep, 4) == PackageWords(name="all", command=f"cat {files} > all.json; wc -l all.json")


def test_a_command_is_cut_where_it_is_very_long() -> None:
    words = words_of(expanded("stages:\n  - {each: {i: 1..2}, run: [x, '{i}', " + f"'{'y' * 5000}'" + "]}\n"), 0)
    assert len(words.command) == COMMAND_CHARACTERS_MAX


@pytest.mark.parametrize(
    "name, place",
    [("fit-0_1", "1.2.1"), ("all", "2.1.1"), ("part 2", "3.2.1"), ("fit-7_7", None), ("fit", None), ("none", None)],
)
def test_a_package_is_found_by_its_name(sweep: Expansion, name: str, place: str | None) -> None:
    wording = Wording(None, lambda _: sweep)  # type: ignore[arg-type] # what is at work is asked of no journal
    from pilotage.book.rows import JobRow

    found = wording.find(JobRow(job_id=1, job="j", definition="x"), name)
    assert (found.dotted if found is not None else None) == place


def test_every_package_is_found_by_the_name_that_it_is_told_by() -> None:
    expansion = expanded(
        "stages:\n  - {each: {i: 1..30}, run: 'x {i}'}\n  - {each: {a: 1..3, b: 1..4}, run: 'y {a} {b}'}\n"
    )
    wording = Wording(None, lambda _: expansion)  # type: ignore[arg-type]
    from pilotage.book.rows import JobRow

    row = JobRow(job_id=1, job="j", definition="x")
    names = [expansion.name(number) for number in range(expansion.count)]
    assert [wording.find(row, name) for name in names] == [expansion.id(number) for number in range(expansion.count)]


@pytest.mark.parametrize(
    "number, files, line",
    [
        (1, ["fit-0.8-16.log"], '["points-{temp}-{field}.json", "fit-{temp}-{field}.log"]'),
        (1, ["debug.txt"], '["points-{temp}-{field}.json", "debug-{tag}.txt"]'),
        (1, ["run16/x.txt"], '["points-{temp}-{field}.json", "run16/x-{tag}.txt"]'),
        (4, ["sums.txt", "a b, c"], '[all.json, sums.txt, "a b, c"]'),
    ],
)
def test_the_outputs_that_would_keep_a_file(sweep: Expansion, number: int, files: list[str], line: str) -> None:
    assert outputs_line(sweep, number, files) == f"outputs: {line}"


def test_the_outputs_of_packages_over_files_are_said_by_the_stem() -> None:
    text = "stages:\n  - {run: make, outputs: [raw/a.txt, raw/b.txt]}\n  - {each: {f: 'raw/*.txt'}, run: 'x {f}', inputs: ['{f}']}\n"
    assert outputs_line(expanded(text), 1, ["a.count"]) == 'outputs: ["{f.stem}.count"]'


def test_parameters_are_one_line_however_many_and_long_they_are() -> None:
    text = parameters_text({f"p{number}": "x" * 100 for number in range(50)})
    assert "\n" not in text
    assert len(text) < 600
    assert parameters_text({"temp": "0.8", "field": "16"}) == "temp=0.8 field=16"
