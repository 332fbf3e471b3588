"""A folder without a book has nothing to clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.app.clean import obsolete_files
from pilotage.app.jobs.submit import document_source
from pilotage.model.answers import ObsoleteFiles

DOCUMENT = "pilotage: 1\njob: own\nstages:\n  - {outputs: [own.txt], shell: 'echo > own.txt'}\n"


def test_a_folder_without_a_book_has_nothing_to_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pilotage.yaml").write_text(DOCUMENT, "utf-8")
    assert obsolete_files(document_source(tmp_path / "pilotage.yaml")) == ObsoleteFiles(job="own", folder=str(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pilotage.yaml"]
