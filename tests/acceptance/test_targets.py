"""`pilotage run result.dat`: only what that file needs is run, by real services, agents and processes."""

from __future__ import annotations

import json
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
    assert "  targets    result.dat\n" in told
    assert "    1  -     left out: no target needs it\n    2  DONE  1: 1 DONE\n    3  DONE  2: 2 DONE\n" in told
    told = run(folder, "run", "reslt.dat", code=2).stderr
    assert "nothing in this document makes 'reslt.dat'" in told
    assert "did you mean 'result.dat'?" in told
    assert "6 of 6 packages done, 4 adopted" in run(folder, "run").stdout
    assert (folder / "other-2.dat").exists()


def test_a_target_that_did_not_appear_is_told_at_the_end_and_is_no_success(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(TEXT)
    told = "parts/9.txt was asked for and was not made: 2.1.1 (split), which could have made it, has not\n"
    assert run(folder, "run", "parts/9.txt", code=1).stdout.endswith(f"1 of 1 package done, 3 dropped\n{told}")
    again = json.loads(run(folder, "run", "--json", "parts/9.txt", "parts/1.txt", code=1).stdout)
    assert (again["adopted"], again["exit_code"], again["targets"]) == (1, 1, ["parts/9.txt", "parts/1.txt"])
    assert [each["target"] for each in again["unmade"]] == ["parts/9.txt"]
    assert told in run(folder, "attach", code=1).stdout
    assert "nothing to do" in run(folder, "run", "parts/1.txt").stdout
    # What is asked for beside it is made all the same, also where a late stage does not bring it.
    told = "done/9.out was asked for and was not made: stage 3 (work), of which it could have come, was laid out without it"
    assert told in run(folder, "run", "done/9.out", "other-1.dat", code=1).stdout
    assert (folder / "other-1.dat").exists()
    run(folder, "serve", "--stop")
    shown = run(folder, "status").stdout
    assert told in shown
    assert "    4  -     left out: no target needs it\n" in shown
    looked = json.loads(run(folder, "status", "--json").stdout)
    assert looked["job"]["targets"] == ["done/9.out", "other-1.dat"]
    assert [each["target"] for each in looked["progress"]["unmade"]] == ["done/9.out"]
    assert [each["left_out"] for each in looked["stages"]] == [False, False, True, True]


def test_a_late_stage_that_no_target_needs_is_left_out_and_waits_for_nothing(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(TEXT)
    run(folder, "run", "other-1.dat")
    shown = run(folder, "status").stdout
    assert "    3  -     left out: no target needs it\n" in shown
    assert "WAITING" not in shown


def test_a_target_of_a_package_that_failed_is_told_beside_its_failure(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(TEXT.replace("cat done/*.out > result.dat", "exit 3"))
    told = run(folder, "run", "result.dat", code=1).stdout
    assert "result.dat was asked for and was not made: 4.1.1 (result), which could have made it, failed\n" in told


SLOW = """\
pilotage: 1
job: slow
stages:
  - each: {n: 1..2}
    shell: until test -e $PILOTAGE_FOLDER/go; do sleep 0.05; done; echo {n} > {n}.dat
    outputs: ["{n}.dat"]
"""


def test_a_job_that_gives_way_to_one_for_other_files_is_told_so_and_not_that_something_changed(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(SLOW)
    jobs = [json.loads(run(folder, "run", "--detach", "--json", "1.dat").stdout)["job"]]

    def given_way(*words: str) -> str:
        """How the job before is said to give way, to who begins another and to whom it belonged."""
        begun = run(folder, "run", "--detach", "--json", *words)
        (said,) = [line for line in begun.stderr.splitlines() if "was not over" in line]
        jobs.append(json.loads(begun.stdout)["job"])
        head, _, how = said.partition(" run again ")
        assert head == f"{jobs[-2]} was not over, and is killed: its document is"
        told = run(folder, "attach", jobs[-2], code=1).stdout
        assert f"killed: superseded by {jobs[-1]}: its document was run again {how}\n" in told
        assert "asked for" not in told
        return how

    assert given_way() == "for all of its files"
    assert given_way("2.dat") == "for some of its files alone"
    assert given_way("1.dat") == "for other files of it"
    (folder / "pilotage.yaml").write_text(SLOW.replace("echo {n}", "echo x{n}"))
    assert given_way("2.dat") == "with another content"
    (folder / "go").touch()
    assert "1 of 1 package done" in run(folder, "attach", jobs[-1]).stdout
