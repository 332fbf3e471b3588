"""Whether results can be written is known before anything is spent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.app import load
from pilotage.ports import NotOurs, StoreError
from pilotage.service.jobs.refusals import refuse_unwritable

OUTPUTS = "pilotage: 1\njob: j\nstages:\n  - run: 'true'\n    outputs: ['out.txt', 'deep/down/out.txt']\n"


def refuse(folder: Path, text: str = OUTPUTS) -> None:
    (folder / "pilotage.yaml").write_text(text)
    refuse_unwritable(load(folder / "pilotage.yaml").expansion, str(folder))


@pytest.mark.parametrize("closed, named", [("", "."), ("deep", "deep"), ("deep/down", "deep/down")])
def test_the_nearest_folder_that_takes_no_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, named: str
) -> None:
    (tmp_path / closed).mkdir(parents=True, exist_ok=True)
    refuse(tmp_path)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / closed and real(path, mode))
    with pytest.raises(StoreError, match="results cannot be written here") as fault:
        refuse(tmp_path)
    assert Path(fault.value.subject) == tmp_path / named


@pytest.mark.parametrize("name", ["deep", "deep/down"])
def test_a_file_where_results_need_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("precious")
    with pytest.raises(NotOurs, match="a file has the name of a folder for results") as fault:
        refuse(tmp_path)
    assert Path(fault.value.subject) == tmp_path / name


def test_a_job_that_makes_no_files_may_run_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    bare = "pilotage: 1\njob: j\nstages:\n  - run: 'true'\n"
    refuse(tmp_path, bare)
    with pytest.raises(StoreError):  # with a file it may not
        refuse(tmp_path, f"{bare}    outputs: [x]\n")
