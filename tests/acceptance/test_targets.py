"""`pilotage run result.dat`: only what that file needs is run, by real services, agents and processes."""

from __future__ import annotations

import json

from tests.kit.late_documents import late_document
from tests.kit.real_runs import Place

TEXT = late_document(
    "some",
    """\
  - name: work
    each: {part: part-*.txt}
    shell: cat {part} > done/{part.stem}.out
    inputs: ["{part}"]
    outputs: ["done/{part.stem}.out"]
  - name: result
    shell: cat done/*.out > result.dat
    inputs: [done/*.out]
    outputs: [result.dat]
""",
    before="""\
  - name: other
    each: {n: 1..2}
    shell: echo {n} > other-{n}.dat
    outputs: ["other-{n}.dat"]
""",
)


def made(place: Place) -> list[str]:
    names = (path.relative_to(place.folder) for path in place.folder.rglob("*") if path.is_file())
    return sorted(str(name) for name in names if name.parts[0] not in (".pilotage", "pilotage.yaml"))


def test_only_what_a_file_needs_is_run_and_the_rest_later(place: Place) -> None:
    place.document(TEXT)
    assert "some: 2 of 2 packages would run, 2 left out\n" in place.run("plan", "result.dat").stdout
    assert "2 of 2 packages done, 4 dropped" in place.run("run", "done/part-2.out").stdout
    assert made(place) == ["done/part-2.out", "part-1.txt", "part-2.txt"]
    assert "4 of 4 packages done, 2 adopted, 2 dropped" in place.run("run", "result.dat").stdout
    assert (place.folder / "result.dat").read_text() == "1\n2\n"
    assert not (place.folder / "other-1.dat").exists()
    assert "4 of 4 packages done, 4 adopted, 2 dropped" in place.run("run", "./result.dat").stdout
    told = place.run("status").stdout
    assert "  targets    result.dat\n" in told
    assert "    1  -     left out: no target needs it\n    2  DONE  1: 1 DONE\n    3  DONE  2: 2 DONE\n" in told
    told = place.run("run", "reslt.dat", code=2).stderr
    assert "nothing in this document makes 'reslt.dat'" in told
    assert "did you mean 'result.dat'?" in told
    assert "6 of 6 packages done, 4 adopted" in place.run("run").stdout
    assert (place.folder / "other-2.dat").exists()


def test_a_target_that_did_not_appear_is_told_at_the_end_and_is_no_success(place: Place) -> None:
    place.document(TEXT)
    told = "part-9.txt was asked for and was not made: 2.1.1 (split), which could make it, did not\n"
    assert place.run("run", "part-9.txt", code=1).stdout.endswith(f"1 of 1 package done, 3 dropped\n{told}")
    again = json.loads(place.run("run", "--json", "part-9.txt", "part-1.txt", code=1).stdout)
    assert (again["adopted"], again["exit_code"], again["targets"]) == (1, 1, ["part-9.txt", "part-1.txt"])
    assert [each["target"] for each in again["unmade"]] == ["part-9.txt"]
    assert told in place.run("attach", code=1).stdout
    assert "nothing to do" in place.run("run", "part-1.txt").stdout
    # What is asked for beside it is made all the same, also where a late stage does not bring it.
    told = (
        "done/part-9.out was asked for and was not made: stage 3 (work), which could make it, was expanded without it"
    )
    assert told in place.run("run", "done/part-9.out", "other-1.dat", code=1).stdout
    assert (place.folder / "other-1.dat").exists()
    place.run("serve", "--stop")
    shown = place.run("status").stdout
    assert told in shown
    assert "    4  -     left out: no target needs it\n" in shown
    looked = json.loads(place.run("status", "--json").stdout)
    assert looked["job"]["targets"] == ["done/part-9.out", "other-1.dat"]
    assert [each["target"] for each in looked["progress"]["unmade"]] == ["done/part-9.out"]
    assert [each["left_out"] for each in looked["stages"]] == [False, False, True, True]


def test_a_late_stage_that_no_target_needs_is_left_out_and_waits_for_nothing(place: Place) -> None:
    place.document(TEXT)
    place.run("run", "other-1.dat")
    shown = place.run("status").stdout
    assert "    3  -     left out: no target needs it\n" in shown
    assert "WAITING" not in shown


def test_a_target_of_a_package_that_failed_is_told_beside_its_failure(place: Place) -> None:
    place.document(TEXT.replace("cat done/*.out > result.dat", "exit 3"))
    told = place.run("run", "result.dat", code=1).stdout
    assert "result.dat was asked for and was not made: 4.1.1 (result), which could make it, failed\n" in told


SLOW = """\
pilotage: 1
job: slow
stages:
  - each: {n: 1..2}
    shell: until test -e $PILOTAGE_FOLDER/go; do sleep 0.05; done; echo {n} > {n}.dat
    outputs: ["{n}.dat"]
"""


def test_a_job_that_gives_way_to_one_for_other_files_is_told_so_and_not_that_something_changed(place: Place) -> None:
    place.document(SLOW)
    jobs = [json.loads(place.run("run", "--detach", "--json", "1.dat").stdout)["job"]]

    def given_way(*words: str) -> str:
        """How the job before is said to give way, to who begins another and to whom it belonged."""
        begun = place.run("run", "--detach", "--json", *words)
        (said,) = [line for line in begun.stderr.splitlines() if "had not ended" in line]
        jobs.append(json.loads(begun.stdout)["job"])
        why = said.removeprefix(f"{jobs[-2]} had not ended and is killed: its document ")
        how = "with another content" if why == "has changed" else why.removeprefix("runs again ")
        assert how != why
        told = place.run("attach", jobs[-2], code=1).stdout
        assert f"killed: superseded by {jobs[-1]}: its document was submitted again {how}\n" in told
        assert "asked for" not in told
        return how

    assert given_way() == "for all of its files"
    assert given_way("2.dat") == "for some of its files only"
    assert given_way("1.dat") == "for other files of it"
    place.document(SLOW.replace("echo {n}", "echo x{n}"))
    assert given_way("2.dat") == "with another content"
    (place.folder / "go").touch()
    assert "1 of 1 package done" in place.run("attach", jobs[-1]).stdout
