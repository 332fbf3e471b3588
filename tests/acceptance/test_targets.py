"""`pilotage run result.dat`: only what that file needs is run, by real services, agents and processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_run import PROGRAM, run
from tests.real_runs import end_all


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not PROGRAM.exists():
        pytest.skip("the program pilotage: install the project into this environment")
    yield tmp_path
    for file in tmp_path.rglob("service.json"):
        end_all(file.parent)


TEXT = """\
pilotage: 1
job: some
stages:
  - name: other
    each: {n: 1..2}
    shell: echo {n} > other-{n}.dat
    outputs: ["other-{n}.dat"]
  - name: split
    shell: mkdir parts; for i in 1 2; do echo $i > parts/$i.txt; done
    outputs: [parts/*.txt]
  - name: work
    each: {part: parts/*.txt}
    shell: cat {part} > done/{part.stem}.out
    inputs: ["{part}"]
    outputs: ["done/{part.stem}.out"]
  - name: result
    shell: cat done/*.out > result.dat
    inputs: [done/*.out]
    outputs: [result.dat]
"""


def made(folder: Path) -> list[str]:
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(name) for name in names if name.parts[0] not in (".pilotage", "pilotage.yaml"))


def test_only_what_a_file_needs_is_run_and_the_rest_later(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(TEXT)
    assert "some: 2 of 2 packages would run, 2 left out\n" in run(folder, "plan", "result.dat").stdout
    assert "2 of 2 packages done, 4 dropped" in run(folder, "run", "done/2.out").stdout
    assert made(folder) == ["done/2.out", "parts/1.txt", "parts/2.txt"]
    assert "4 of 4 packages done, 2 adopted, 2 dropped" in run(folder, "run", "result.dat").stdout
    assert (folder / "result.dat").read_text() == "1\n2\n"
    assert not (folder / "other-1.dat").exists()
    assert "4 of 4 packages done, 4 adopted, 2 dropped" in run(folder, "run", "./result.dat").stdout
    told = run(folder, "status").stdout
    assert "    1  -     none; 2 dropped\n    2  DONE  1: 1 DONE\n" in told
    told = run(folder, "run", "reslt.dat", code=2).stderr
    assert "nothing in this document makes 'reslt.dat'" in told
    assert "did you mean 'result.dat'?" in told
    assert "6 of 6 packages done, 4 adopted" in run(folder, "run").stdout
    assert (folder / "other-2.dat").exists()
