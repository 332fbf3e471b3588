"""Packages in the words of their document, from its layout."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.app.state_folder import SystemClock
from pilotage.book.query import QueryError, Target, canonical, parse
from pilotage.book.rows.rows import JobRow
from pilotage.language import Expansion
from pilotage.model.answers import PackageWords, parameters_text
from pilotage.model.settings.settings import QuerySettings
from pilotage.reading.access import Principal
from pilotage.reading.queries import BookReader
from pilotage.service.jobs.package_names import COMMAND_CHARACTERS_MAX, PackageNames, outputs_line, words_of
from tests.kit.jobs import expanded

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
    package_names = PackageNames(None, lambda _: sweep)  # type: ignore[arg-type] # what is at work is asked of no journal
    found = package_names.find(JobRow(job_id=1, job="j", definition="x"), name)
    assert (found.dotted if found is not None else None) == place


def test_every_package_is_found_by_the_name_that_it_is_told_by() -> None:
    expansion = expanded(
        "stages:\n  - {each: {i: 1..30}, run: 'x {i}'}\n  - {each: {a: 1..3, b: 1..4}, run: 'y {a} {b}'}\n"
    )
    package_names = PackageNames(None, lambda _: expansion)  # type: ignore[arg-type]
    from pilotage.book.rows.rows import JobRow

    row = JobRow(job_id=1, job="j", definition="x")
    names = [expansion.name(number) for number in range(expansion.count)]
    assert [package_names.find(row, name) for name in names] == [
        expansion.id(number) for number in range(expansion.count)
    ]


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
    eight = {f"p{number}": "x" * 60 for number in range(8)}
    assert parameters_text(eight) == " ".join(f"{name}={value}" for name, value in eight.items())  # nothing is cut
    assert parameters_text({**eight, "p8": "1"}) == f"{parameters_text(eight)} …"
    assert parameters_text({"long": "x" * 61}) == f"long={'x' * 59}…"


class _Rows:
    """A journal that knows jobs."""

    def __init__(self, *rows: JobRow) -> None:
        self._rows = {row.job: row for row in rows}

    def job(self, job: str) -> JobRow | None:
        return self._rows.get(job)


def _conditions(sweep: Expansion, text: str, *, scopes: frozenset[str] = frozenset({"book.read"})) -> str:
    """A query for packages as it is put to the book, by somebody who is called ann."""
    rows = _Rows(JobRow(job_id=1, job="j", owner="ann", definition="x"), JobRow(job_id=2, job="k", owner="bob"))
    journal: Any = rows
    reading = BookReader(
        journal, clock=SystemClock(), settings=QuerySettings(), find=PackageNames(journal, lambda _: sweep).find
    )
    principal = Principal(user="ann", scopes=scopes)
    return canonical(reading._asked(principal, text, target=Target.PACKAGES, cursor=None).query)


@pytest.mark.parametrize(
    "text, meant",
    [
        ("job=j and package=fit-0_1", "job=j and package=1.2.1"),
        ("package in ('all', 1.1.1) and job=j", "package in (2.1.1, 1.1.1) and job=j"),
        ('job=j and package!="part 2"', "job=j and package!=3.2.1"),
        ("job=nowhere and package='all'", "job=nowhere and package=1.1.1"),
        ("job=k and package=nobody-is-called-so", "job=k and package=1.1.1"),
    ],
)
def test_a_query_that_names_a_job_may_call_its_packages_by_name(sweep: Expansion, text: str, meant: str) -> None:
    """Of a job that is not there for who asks, whatever place it is finds nothing, and tells nothing."""
    assert _conditions(sweep, text) == canonical(parse(meant))


@pytest.mark.parametrize(
    "text, told",
    [
        ("job=j and package=fit", "the job has no package named 'fit'\n.*\n.*\n.*pilotage query job=j"),
        ("state=DONE and package='all'", 'within one job\n.*\n.*\n.*write job=ID and package="all"'),
        ('(job=j or job=k) and package="all"', "within one job"),
        ('job in (j, k) and package="all"', "within one job"),
    ],
)
def test_a_name_that_no_package_has_or_that_could_be_of_many_jobs_is_refused(
    sweep: Expansion, text: str, told: str
) -> None:
    with pytest.raises(QueryError, match=told):
        _conditions(sweep, text)
