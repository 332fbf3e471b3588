"""Records of real jobs: made by the service, kept when it is killed, made before a job is purged, read without it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pilotage.service.announcement import find_service
from tests.kit.real_runs import Place, wait_until

DOCUMENT = """\
pilotage: 1
job: counted
provenance: {script: note.sh}
stages:
  - each: {n: 1..2}
    run: sh count.sh {n}
    inputs: [words.txt]
    outputs: ["{n}.out"]
  - shell: cat 1.out 2.out > total.out; echo added
    inputs: [1.out, 2.out]
    outputs: [total.out]
"""
SOON = "[provenance]\nrecorded_after_seconds = 0.1\n"


def prepared(place: Place, settings: str = "") -> None:
    place.document(DOCUMENT)
    (place.folder / "count.sh").write_text("wc -w < words.txt > $1.out\n")
    (place.folder / "note.sh").write_text('#!/bin/sh\necho \'{"kind": "words"}\'\n')
    (place.folder / "note.sh").chmod(0o755)
    (place.folder / "words.txt").write_text("one two three\n")
    (place.folder / "pilotage.toml").write_text(settings)


def shown(place: Place) -> Any:
    return place.told("provenance", "show", "counted")


def test_a_record_is_made_soon_after_the_end_of_a_job(place: Place) -> None:
    prepared(place, SOON)
    place.run("run", "--annotate", "text=@words.txt")  # the same content as an input
    wait_until(lambda: place.told("provenance", "list")["records"], "the record")
    record = shown(place)["record"]
    assert (record["name"], record["state"], record["sites"]) == ("counted", "DONE", ["local"])
    parts = {(each["kind"], each["name"]) for each in record["parts"]}
    assert parts >= {
        ("definition", "definition"),
        ("file", "count.sh"),
        ("file", "words.txt"),
        ("custom", "text"),
        ("log", "logs-1.jsonl"),
    }
    assert {name for kind, name in parts if kind == "output"} == {"1.out", "2.out", "total.out"}
    assert place.run("provenance", "show", "counted", "--part", "total.out").stdout == "3\n3\n"
    log = place.run("provenance", "show", "counted", "--part", "events-1.jsonl").stdout
    assert log.count(r'"custom":"{\"kind\":\"words\"}"') == 3  # a script that came with the job needs no ./
    assert place.run("provenance", "fsck").stderr == "sound\n"


def test_a_service_that_is_killed_leaves_the_record_to_the_next(place: Place) -> None:
    prepared(place)
    place.run("run")
    found = find_service(place.folder / ".pilotage")
    assert found is not None
    os.kill(found.pid, signal.SIGKILL)
    wait_until(lambda: find_service(place.folder / ".pilotage") is None, "the end of the service")
    assert not (place.folder / ".pilotage" / "records").exists()
    assert shown(place)["record"]["revision"] == 1  # made by the command itself, since no service runs
    place.run("provenance", "annotate", "counted", "group=B", "words=@words.txt")  # by the next service
    place.run("tag", "counted", "kept=yes")
    told = shown(place)
    assert [each["name"] for each in told["annotations"]] == ["group", "words"]
    assert place.run("provenance", "show", "counted", "--part", "words").stdout == "one two three\n"
    place.run("serve", "--stop")
    told = shown(place)
    job = told["record"]["job"]
    assert (told["record"]["revision"], told["record"]["tags"]) == (2, {"kept": "yes"})
    first, second = (
        {
            part["sha256"]: part["kind"]
            for part in place.told("provenance", "show", job, "--revision", n)["record"]["parts"]
        }
        for n in ("1", "2")
    )
    new = sorted(kind for sha256, kind in second.items() if sha256 not in first)
    assert new == [
        "environment",
        "life-log",
    ]  # what is new in the log, and sites as a service knows them; all else is shared


def test_a_job_is_purged_after_its_record_is_made(place: Place) -> None:
    prepared(place)
    place.run("run")
    job = place.told("status")["job"]["id"]
    place.run("serve", "--stop")
    records = place.folder / ".pilotage" / "records"
    made = place.told("provenance", "list")["records"]
    assert [each["job"] for each in made] == [job]  # by the service when it was stopped
    assert "Traceback" not in place.log()
    for each in sorted(records.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    records.rmdir()
    place.run("book", "purge", job)
    told = place.told("provenance", "show", job)
    assert told["record"]["state"] == "DONE"
    assert any(part["kind"] == "log" for part in told["record"]["parts"])


def test_without_the_setting_nothing_is_kept(place: Place) -> None:
    prepared(place, '[provenance]\nrecords = "no"\n')
    place.run("run")
    assert "keeps no records" in place.run("provenance", "show", "counted", code=2).stderr
    place.run("serve", "--stop")
    assert not Path(place.folder, ".pilotage", "records").exists()


def test_a_record_that_is_asked_for_at_once_waits_for_the_checksums_of_large_inputs(place: Place) -> None:
    with (place.folder / "large.dat").open("wb") as file:
        file.truncate(600 * 2**20)
    place.document(
        "pilotage: 1\njob: l\nstages:\n  - {shell: cat *.dat | wc -c > n, inputs: [large.dat], outputs: [n]}\n"
    )
    job = place.told("run")["job"]
    place.run("provenance", "keep", job)
    assert "InputsDescribed" in place.run("book", "dump", job).stdout
    assert place.told("provenance", "show", job)["record"]["revision"] == 1
