"""Records of jobs that the installed program really ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.records import JobRecord
from tests.kit.real_runs import Place, place_in, wait_until

DOCUMENT = """\
pilotage: 1
job: survey
description: Counts words, and fails once
parameters:
  limit: {type: integer, default: "3"}
stages:
  - name: split
    run: [./split.sh, "{limit}", text.txt]
    inputs: [text.txt, large.dat]
    outputs: ["part-*.txt"]
  - name: count
    each: {part: {files: "part-*.txt"}}
    activity: counting
    shell: |
      test {part} != part-2.txt || test -e $PILOTAGE_FOLDER/once || { touch $PILOTAGE_FOLDER/once; exit 3; }
      wc -w < {part}
    inputs: ["{part}"]
    stdout: "{part.stem}.count"
    retry: {rules: [{exit_code: 3, action: again}]}
  - name: total
    binaries:
      - run: [cat]
        arguments: ["{inputs}"]
        inputs: ["*.count"]
        stdout: all.txt
      - run: [wc, -l]
        stdin: all.txt
        stdout: total.txt
  - name: broken
    shell: "false"
    inputs: [total.txt]
    outputs: [never.txt]
"""
SPLIT = """\
#!/bin/sh
# Writes each of the first lines to a file of its own.
head -n $1 $2 | { n=0; while read line; do n=$((n + 1)); echo "$line" > part-$n.txt; done; }
"""


def survey(place: Place) -> str:
    """Run a job with parameters, a script of its own, a late stage, a failed attempt, and a package that fails; its id."""
    place.document(DOCUMENT)
    (place.folder / "split.sh").write_text(SPLIT)
    (place.folder / "split.sh").chmod(0o755)
    (place.folder / "text.txt").write_text("one\ntwo words\nthree words here\nfour\n")
    (place.folder / "large.dat").write_bytes(b"x" * 300_000)  # too large for the record
    place.run("run", "--set", "limit=2", code=1)
    job: str = place.told("status")["job"]["id"]
    place.run("tag", job, "group=B")
    return job


@contextmanager
def survey_place(folder: Path) -> Iterator[tuple[Place, str]]:
    """A folder in which such a job ran, and its id; its record is in the storage of the folder, and no service runs."""
    (folder / "run").mkdir()
    with place_in(folder / "run", environment={"HOME": str(folder)}) as place:
        job = survey(place)
        wait_until(
            lambda: "InputsDescribed" in place.run("book", "dump", job).stdout, "the checksum of its large input"
        )
        place.run("provenance", "keep", job)
        place.run("serve", "--stop")
        yield place, job


@contextmanager
def recorded_survey(folder: Path) -> Iterator[tuple[FolderRecords, JobRecord]]:
    """The record of such a job, and its storage; the folder in which it ran stays."""
    with survey_place(folder) as (place, job), closing(FolderRecords(place.state / "records")) as store:
        record = store.record(job)
        assert record is not None
        yield store, record
