"""Published DAG files: each is accepted or refused as the table says, and what is accepted survives an export."""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import DiskFolder
from pilotage.language.formats.dagman import read_dagman, write_dagman
from pilotage.language.formats.dagman.values import DOCUMENTED_LOSSES
from pilotage.language.formats.dagman.writer import DOCUMENTED_EXPORT_LOSSES
from pilotage.language.parsing.document import read_document, write_document
from pilotage.language.parsing.rules import check_rules
from pilotage.language.text.tree import NOWHERE, Report
from pilotage.model.jobs.definition import Definition

_TABLE = Path(__file__).with_name("dagman_verdicts.csv")
_MUTANTS_PER_FILE = 4


def _rows() -> list[dict[str, str]]:
    with _TABLE.open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


ROWS = _rows()
PATHS = [row["path"] for row in ROWS]
ACCEPTED = [row["path"] for row in ROWS if row["verdict"] == "accept"]


class _Overlay:
    """Files in memory over a folder on disk."""

    def __init__(self, files: Mapping[str, str], below: DiskFolder) -> None:
        self._files = files
        self._below = below

    def read(self, path: str) -> bytes | None:
        return self._files[path].encode() if path in self._files else self._below.read(path)

    def is_folder(self, path: str) -> bool:
        return False

    def exists(self, path: str) -> bool:
        return path in self._files or self._below.exists(path)

    def glob(self, pattern: str) -> list[str]:
        return self._below.glob(pattern)


@pytest.fixture(scope="session")
def dags(reference_data: Path) -> Path:
    """The folder with the published DAGs."""
    return reference_data / "dagman"


def _definition(path: Path) -> Definition:
    definition, report, _ = read_dagman(path.read_bytes(), file=path.name, folder=DiskFolder(path.parent))
    assert report.errors == []
    assert definition is not None
    return definition


def _expanded(definition: Definition, folder: DiskFolder | _Overlay) -> Expansion:
    report = Report(definition.job)
    check_rules(definition, report, lambda _: NOWHERE)
    expansion = expand(definition, RecordingLists(folder), report)
    assert report.errors == []
    assert expansion is not None
    return expansion


def test_the_table_has_every_published_dag(dags: Path) -> None:
    assert sorted(str(path.relative_to(dags)) for path in dags.rglob("*.dag")) == sorted(PATHS)


@pytest.mark.parametrize("row", ROWS, ids=PATHS)
def test_a_published_dag_is_accepted_or_refused_as_the_table_says(dags: Path, row: dict[str, str]) -> None:
    path = dags / row["path"]
    definition, report, _ = read_dagman(path.read_bytes(), file=path.name, folder=DiskFolder(path.parent))
    verdict = "refuse" if definition is None else "accept"
    assert (verdict, " ".join(sorted({problem.code for problem in report.errors}))) == (row["verdict"], row["codes"])


def test_every_loss_over_all_published_dags_is_documented(dags: Path) -> None:
    found: set[str] = set()
    for name in PATHS:
        path = dags / name
        _, _, losses = read_dagman(path.read_bytes(), file=path.name, folder=DiskFolder(path.parent))
        found.update(loss.keyword for loss in losses)
    assert found <= DOCUMENTED_LOSSES


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_dag_has_a_canonical_document(dags: Path, name: str) -> None:
    definition = _definition(dags / name)
    document, report = read_document(
        write_document(definition).encode(), file="pilotage.yaml", folder=DiskFolder((dags / name).parent)
    )
    assert report.errors == []
    assert document is not None
    assert document.definition == definition


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_dag_survives_an_export(dags: Path, name: str) -> None:
    folder = DiskFolder((dags / name).parent)
    before = _expanded(_definition(dags / name), folder)
    files, losses = write_dagman(before)
    assert {loss.keyword for loss in losses} <= DOCUMENTED_EXPORT_LOSSES
    if any(loss.keyword == "role" for loss in losses):
        return  # several FINAL packages cannot be said; the loss is what this test is about
    overlay = _Overlay(files, folder)
    main = f"{before.definition.job}.dag"
    definition, report, _ = read_dagman(files[main].encode(), file=main, folder=overlay)
    assert report.errors == []
    assert definition is not None
    after = _expanded(definition, overlay)
    assert [_said(before, number) for number in range(before.count)] == [
        _said(after, number) for number in range(after.count)
    ]
    assert {(a, b) for a, b, _ in before.graph.edges()} == {(a, b) for a, b, _ in after.graph.edges()}


def _said(expansion: Expansion, number: int) -> object:
    package = expansion.package(number)
    declared = package.declared
    return (
        (package.path, package.name, package.activity),
        [(binary.argv, binary.environment.exported) for binary in package.binaries],
        (sorted(package.needed), sorted(package.made)),
        (declared.retry, declared.priority, declared.category, declared.role, declared.noop, declared.done),
        (declared.scripts, declared.abort_on, declared.subjob, declared.resources, declared.container),
    )


@pytest.mark.parametrize("name", PATHS)
def test_a_damaged_published_dag_is_read_or_refused(dags: Path, name: str) -> None:
    path = dags / name
    generator = random.Random(name)
    folder = DiskFolder(path.parent)
    for _ in range(_MUTANTS_PER_FILE):
        data = _damaged(path.read_bytes(), generator)
        definition, report, _ = read_dagman(data, file=path.name, folder=folder)
        assert (definition is None) == bool(report.errors)


def _damaged(data: bytes, generator: random.Random) -> bytes:
    """The file with a few bytes changed and two of its lines exchanged."""
    lines = data.split(b"\n")
    first, second = generator.randrange(len(lines)), generator.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    text = bytearray(b"\n".join(lines))
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(text) + 1)
        change = generator.choice((b"", b"\\\n", b'"', b"{", b"+", b"$(", b"\xff", b" CHILD ", b"\nJOB A "))
        text[at : at + generator.randint(0, 2)] = change
    return bytes(text)
