"""`pilotage clean`: what earlier runs made and the document no longer makes, with real services, agents and processes."""

from __future__ import annotations

import hashlib
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotage
from pilotage.app.jobs.submit import RunSettings, document_source, submission
from pilotage.app.service.session import running_service
from pilotage.client.jobs import Jobs
from pilotage.model.answers import CleanRequest
from tests.kit.real_runs import PROGRAM, SECONDS_MAX, Place, end_all, place_in, wait_until

SWEEP = """\
pilotage: 1
job: sweep
stages:
  - each: {{n: 1..{count}}}
    shell: mkdir -p parts; echo part {{n}} > parts/part-{{n}}.txt
    outputs: ["parts/part-{{n}}.txt"]
  - shell: cat parts/*.txt > {sum}
    inputs: ["parts/*.txt"]
    outputs: [{sum}]
"""
OLD = SWEEP.format(count=4, sum="old/sum.txt").replace("cat", "mkdir old; cat")
NEW = SWEEP.format(count=2, sum="sum.txt")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as made:
        made.document(OLD)
        yield made


def files(place: Place) -> set[str]:
    paths = (path.relative_to(place.folder) for path in place.folder.rglob("*") if path.is_file())
    return {str(path) for path in paths if path.parts[0] != ".pilotage" and path.suffix != ".yaml"}


def names(told: Any) -> list[str]:
    return [file["name"] for file in told["files"]]


def kept(told: Any) -> dict[str, str]:
    return {file["name"]: file["reason"] for file in told["kept"]}


def ran_and_edited(place: Place) -> str:
    """The old document was run, and the new one is in its place; the job."""
    job: str = place.told("run")["job"]
    place.document(NEW)
    return job


@pytest.mark.parametrize("service", ["runs", "ended"])
def test_what_is_no_longer_made_is_shown_then_removed_and_made_again_by_the_old_document(
    place: Place, service: str
) -> None:
    job = ran_and_edited(place)
    if service == "ended":
        end_all(place.state)
    before = files(place)
    shown = place.run("clean", code=2)
    assert shown.stdout.startswith("sweep: 3 files, ")
    for name in ("old/sum.txt", "parts/part-3.txt", "parts/part-4.txt"):
        (line,) = (line for line in shown.stdout.splitlines() if line.strip().startswith(name))
        assert line.endswith(job)
    assert "Remove 3 files (" in shown.stderr
    assert "There is no terminal to ask on: use --yes." in shown.stderr
    assert names(place.told("clean", "--dry-run")) == ["old/sum.txt", "parts/part-3.txt", "parts/part-4.txt"]
    assert place.told("clean", code=2)["removed"] == []
    assert files(place) == before

    done = place.run("clean", "--yes")
    assert done.stdout.endswith("removed 3 files, 42 B; also 1 folder left empty: old\n")
    assert files(place) == {"parts/part-1.txt", "parts/part-2.txt"}
    assert not (place.folder / "old").exists()
    assert place.run("clean").stdout == "sweep: nothing to remove\n"
    noted = place.run("events", job, "--json").stdout
    assert "pilotage clean removed 3 files that its document no longer makes: old/sum.txt, parts/part-3.txt" in noted

    told = place.told("run")
    assert (told["done"], told["adopted"]) == (3, 2)
    place.document(OLD)
    told = place.told("run")
    assert (told["done"], told["adopted"]) == (5, 2)
    assert files(place) == before | {"sum.txt"}
    assert names(place.told("clean", "--dry-run")) == ["sum.txt"]


def test_a_person_is_asked_and_may_say_no(place: Place) -> None:
    ran_and_edited(place)
    assert b"nothing was removed" in answered(place, b"n\n", code=1)
    assert "parts/part-4.txt" in files(place)
    assert b"removed 3 files" in answered(place, b"y\n", code=0)
    assert "parts/part-4.txt" not in files(place)


def answered(place: Place, answer: bytes, *, code: int) -> bytes:
    """What `clean` says at a terminal to whoever answers so."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [str(PROGRAM), "clean"], cwd=place.folder, env=place.environment, stdin=its, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    os.close(its)
    try:
        os.write(ours, answer)
        said, _ = process.communicate(timeout=SECONDS_MAX)
    finally:
        os.close(ours)
    assert b"Remove 3 files (42 B)? [y/N]:" in said
    assert process.returncode == code, said
    return said


@pytest.mark.parametrize("service", ["runs", "ended"])
def test_a_file_that_was_edited_stays_also_where_the_index_is_lost(place: Place, service: str) -> None:
    ran_and_edited(place)
    end_all(place.state)
    for file in place.state.glob("work.sqlite*"):
        file.unlink()
    (place.folder / "parts/part-3.txt").write_text("my own\n")
    if service == "runs":
        place.run("serve", "--background", "--port", "0")
    told = place.told("clean", "--yes")
    assert told["removed"] == ["old/sum.txt", "parts/part-4.txt"]
    assert kept(told) == {"parts/part-3.txt": "changed"}
    assert "parts/part-3.txt  it was changed since it was made" in place.run("clean").stdout
    assert files(place) == {"parts/part-1.txt", "parts/part-2.txt", "parts/part-3.txt"}


WAITING = """\
pilotage: 1
job: reader
stages:
  - shell: |
      touch $PILOTAGE_FOLDER/began
      until test -e $PILOTAGE_FOLDER/go; do sleep 0.05; done
      cat parts/part-3.txt > read.txt
    inputs: [parts/part-3.txt]
    outputs: [read.txt]
"""


@pytest.mark.parametrize("service", ["runs", "ended"])
def test_what_a_run_in_flight_reads_stays_until_it_is_over(place: Place, service: str) -> None:
    ran_and_edited(place)
    (place.folder / "reader.yaml").write_text(WAITING)
    place.run("run", "reader.yaml", "--detach")
    wait_until((place.folder / "began").exists, "the run of the reader")
    if service == "ended":
        end_all(place.state)
    told = place.told("clean", "--yes")
    assert told["removed"] == ["old/sum.txt", "parts/part-4.txt"]
    assert kept(told) == {"parts/part-3.txt": "unfinished-job"}
    (place.folder / "go").touch()
    place.run("run", "reader.yaml")  # it goes on
    assert (place.folder / "read.txt").read_text() == "part 3\n"
    # Its document still reads it.
    assert kept(place.told("clean")) == {"parts/part-3.txt": "other-document"}
    (place.folder / "reader.yaml").unlink()
    assert place.told("clean", "--yes")["removed"] == ["parts/part-3.txt"]
    assert "read.txt" in files(place)


FAILING = """\
pilotage: 1
job: failing
stages:
  - each: {{n: 1..{count}}}
    shell: echo part {{n}} > part-{{n}}.txt
    outputs: ["part-{{n}}.txt"]
  - each: {{n: 1..{count}}}
    shell: test {{n}} != 3 -o -e $PILOTAGE_FOLDER/go && cp part-{{n}}.txt out-{{n}}.txt
    inputs: ["part-{{n}}.txt"]
    outputs: ["out-{{n}}.txt"]
    retry: {{attempts_max: 1}}
"""


@pytest.mark.parametrize("service", ["runs", "ended"])
def test_what_a_failed_package_reads_stays_and_it_can_be_retried(place: Place, service: str) -> None:
    place.document(FAILING.format(count=3))
    job = place.told("run", code=1)["job"]
    place.document(FAILING.format(count=1))
    if service == "ended":
        end_all(place.state)
    told = place.told("clean", "--yes")
    assert told["removed"] == ["out-2.txt", "part-2.txt"]
    assert kept(told) == {"part-3.txt": "unfinished-job"}
    (place.folder / "go").touch()
    if service == "ended":
        place.run("serve", "--background", "--port", "0")
    place.run("retry", job, "--failed")
    place.run("attach", job)
    assert (place.folder / "out-3.txt").read_text() == "part 3\n"


def test_a_request_by_hand_removes_nothing_that_a_document_beside_uses(place: Place) -> None:
    ran_and_edited(place)
    document = place.folder / "pilotage.yaml"
    shown = pilotage.obsolete_files(document)
    (place.folder / "kept.yaml").write_text(SWEEP.format(count=3, sum="sum.txt").replace("sweep", "kept"))
    source = document_source(document)
    sent = submission(source, source.load(), RunSettings(), keep=lambda data: hashlib.sha256(data).hexdigest())
    request = CleanRequest(submission=sent, remove={file.name: file.sha256 for file in shown.files})
    server = running_service(place.folder)
    assert server is not None
    with server:
        done = Jobs(server).clean(request)
    assert done.removed == ("old/sum.txt", "parts/part-4.txt")
    assert [(each.name, each.message) for each in done.kept] == [("parts/part-3.txt", "kept.yaml makes or reads it")]
    assert (place.folder / "parts/part-3.txt").exists()


def test_the_files_of_another_document_stay(place: Place) -> None:
    ran_and_edited(place)
    (place.folder / "other.yaml").write_text(OLD.replace("sweep", "other").replace("parts", "other"))
    place.run("run", "other.yaml")
    assert place.told("clean", "--yes")["removed"] == ["parts/part-3.txt", "parts/part-4.txt"]
    assert {"other/part-3.txt", "other/part-4.txt", "old/sum.txt"} < files(place)  # that was made by both
    assert place.run("clean", "other.yaml").stdout == "other: nothing to remove\n"


def test_what_a_document_makes_stays_although_it_was_run_under_another_name_or_had_nothing_to_do(place: Place) -> None:
    place.run("run")
    (place.folder / "kept.yaml").write_text(SWEEP.format(count=3, sum="sum.txt"))
    (place.folder / "broken.yaml").write_text("pilotage: 1\njob: [")
    place.document(NEW.replace("sweep", "new").replace("parts", "new"))
    told = place.told("clean", "--yes")
    assert told["removed"] == ["old/sum.txt", "parts/part-4.txt"]
    assert kept(told) == {f"parts/part-{n}.txt": "other-document" for n in (1, 2, 3)}


LATE = """\
pilotage: 1
job: late
stages:
  - shell: mkdir parts; for i in {items}; do echo $i > parts/$i.txt; done
    outputs: [parts/*.txt]
  - each: {{part: parts/*.txt}}
    shell: cp {{part}} {{part.stem}}.{ending}
    inputs: ["{{part}}"]
    outputs: ["{{part.stem}}.{ending}"]
"""


def test_what_a_late_stage_may_make_stays(place: Place) -> None:
    place.document(LATE.format(items="1 2 3", ending="out"))
    place.run("run")
    place.document(LATE.format(items="1 2", ending="out"))
    told = place.told("clean", "--yes")
    assert (told["files"], told["maybe_made"]) == ([], 6)
    assert "6 files that earlier runs made stay, since the document may make them" in place.run("clean").stdout
    place.document(LATE.format(items="1 2", ending="result"))
    told = place.told("clean", "--yes")
    assert (told["removed"], told["maybe_made"]) == (["1.out", "2.out", "3.out"], 3)


def test_python_shows_and_removes_the_same(place: Place) -> None:
    ran_and_edited(place)
    document = place.folder / "pilotage.yaml"
    found = pilotage.obsolete_files(document)
    assert [file.name for file in found.files] == ["old/sum.txt", "parts/part-3.txt", "parts/part-4.txt"]
    assert found.removed == ()
    assert pilotage.clean(document).removed == ("old/sum.txt", "parts/part-3.txt", "parts/part-4.txt")
    assert pilotage.clean(document).removed == ()


def test_a_folder_without_a_book_has_nothing_to_remove_and_gets_none(place: Place) -> None:
    assert place.run("clean").stdout == "sweep: nothing to remove\n"
    assert not place.state.exists()
    assert "exclude each other" in place.run("clean", "--yes", "--dry-run", code=2).stderr
    assert "there is no such file" in place.run("clean", "none.yaml", code=2).stderr
