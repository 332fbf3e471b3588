"""What other documents of a folder use stays when one document is cleaned, and a folder without a book has nothing to clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.app.clean import _documents_beside, _kept_for_documents, obsolete_files
from pilotage.app.jobs.submit import Source, document_source
from pilotage.model.answers import ObsoleteFile, ObsoleteFiles

DOCUMENT = "pilotage: 1\njob: {name}\nstages:\n  - {{outputs: [{output}], shell: 'echo > {output}'}}\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pilotage.yaml").write_text(DOCUMENT.format(name="own", output="own.txt"), "utf-8")
    return document_source(tmp_path / "pilotage.yaml")


def found(*names: str, removed: tuple[str, ...] = ()) -> ObsoleteFiles:
    files = tuple(ObsoleteFile(name=each, size_bytes=1, sha256="0", modified_at=1.0, job="j1") for each in names)
    return ObsoleteFiles(job="own", folder="/f", files=files, removed=removed)


def test_only_readable_documents_of_ours_stand_beside_the_one_that_is_cleaned(source: Source, tmp_path: Path) -> None:
    (tmp_path / "other.yml").write_text(DOCUMENT.format(name="other", output="a.txt"), "utf-8")
    (tmp_path / "more.yaml").write_text(DOCUMENT.format(name="more", output="b.txt"), "utf-8")
    (tmp_path / "notes.yaml").write_text("something: else\n", "utf-8")
    (tmp_path / "notes.txt").write_text("pilotage: 1\n", "utf-8")
    (tmp_path / "folder.yaml").mkdir()
    assert [each.name for each in _documents_beside(source)] == ["more.yaml", "other.yml"]


def test_what_another_document_makes_is_kept_unless_it_is_gone_already(source: Source, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(DOCUMENT.format(name="other", output="a.txt"), "utf-8")
    (tmp_path / "broken.yaml").write_text("pilotage: 1\nstages: nonsense\n", "utf-8")
    left = _kept_for_documents(source, found("a.txt", "b.txt"))
    assert [each.name for each in left.files] == ["b.txt"]
    assert [(each.name, each.reason, each.message) for each in left.kept] == [
        ("a.txt", "other-document", "other.yaml makes or reads it")
    ]
    gone = found("a.txt", "b.txt", removed=("a.txt",))
    assert _kept_for_documents(source, gone) == gone


def test_a_folder_without_a_book_has_nothing_to_clean(source: Source, tmp_path: Path) -> None:
    assert obsolete_files(source) == ObsoleteFiles(job="own", folder=str(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pilotage.yaml"]
