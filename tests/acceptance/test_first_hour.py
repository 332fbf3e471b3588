"""What a newcomer writes first works, or says in one line what to do: real services, agents and processes."""

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


FIRST = """\
pilotage: 1
job: first
stages:
  - shell: for n in 1 2; do echo $n > part-$n.txt; done
    outputs: [part-*.txt]
  - each: {p: part-*.txt}
    run: sh twice.sh {p} points/{p.stem}.json
    inputs: ["{p}"]
    outputs: ["points/{p.stem}.json"]
"""


def test_a_late_script_a_folder_of_outputs_and_what_was_left_behind(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(FIRST)
    (folder / "twice.sh").write_text('cat "$1" "$1" > "$2"\necho done > "fit-$(basename "$1" .txt).log"\n')
    told = run(folder, "run").stdout
    assert (folder / "points/part-2.json").read_text() == "2\n2\n"
    kept = 'outputs: ["points/{p.stem}.json", "fit-{p.stem}.log"]'
    assert f"to keep such files: {kept}\n" in told
    assert told.count("no output declares it") == 1
    # The script of the late stage is part of what its packages are known by.
    (folder / "twice.sh").write_text('cat "$1" "$1" "$1" > "$2"\n')
    told = run(folder, "run").stdout
    assert "left behind" not in told
    assert (folder / "points/part-1.json").read_text() == "1\n1\n1\n"
