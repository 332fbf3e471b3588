"""Fields of a document as the installed program honours them: real services, real agents, real processes."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import typed
from tests.kit.real_runs import PROGRAM, end_all

SECONDS_MAX = 120


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not PROGRAM.exists():
        pytest.skip("the program pilotage: install the project into this environment")
    yield tmp_path
    for file in tmp_path.rglob("service.json"):
        end_all(file.parent)


def asked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return typed(arguments, folder=folder, environment=os.environ)


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    done = asked(folder, *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def told(folder: Path, *arguments: str) -> dict[str, Any]:
    done = asked(folder, *arguments, "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


BY_SITE = """\
pilotage: 1
job: by-site
software:
  - id: reco
    infrastructures:
      - {name: slurm, executions: [{run: sh on-slurm.sh}]}
      - {name: annex, executions: [{run: sh in-annex.sh}]}
      - {name: local, executions: [{run: sh here.sh}]}
  - {id: far, infrastructures: [{name: annex, executions: [{run: sh in-annex.sh}]}]}
stages:
  - {software: reco, executor: annex, stdout: annex.txt}
  - {software: reco, executor: grid, stdout: anywhere.txt}
  - {software: far, stdout: far.txt}
"""
SITES = """\
pilotage: 1
sites: [{name: annex, kind: local}]
"""


def test_software_is_started_as_the_site_has_it_and_an_unknown_executor_is_the_default(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(BY_SITE)
    (folder / "sites.yaml").write_text(SITES)
    for name in ("on-slurm", "in-annex", "here"):
        (folder / f"{name}.sh").write_text(f"echo {name} $PILOTAGE_SITE\n")
    plan = told(folder, "plan")
    assert plan["notes"] == [
        "no site and no kind of site is named 'grid': packages that ask for it may run anywhere",
        "local is not used for far: far is described for annex, and local is of the kind local on "
        + plan["notes"][1].rpartition(" ")[2],
    ]
    run(folder, "run")
    assert (folder / "annex.txt").read_text() == "in-annex annex\n"
    assert (folder / "far.txt").read_text() == "in-annex annex\n"
    assert (folder / "anywhere.txt").read_text() in ("here local\n", "in-annex annex\n")
    assert "nothing to do" in run(folder, "run")
    # A site that was written down a moment ago is no unknown executor.
    (folder / "sites.yaml").write_text(SITES.replace("[{", "[{name: cellar, kind: local}, {"))
    (folder / "late.yaml").write_text(
        "pilotage: 1\njob: late\nstages: [{shell: echo $PILOTAGE_SITE > late.txt, outputs: [late.txt], executor: cellar}]\n"
    )
    run(folder, "run", "late.yaml")
    assert (folder / "late.txt").read_text() == "cellar\n"


# Each says that it runs, and goes on when all of them do: one that ran alone would wait for ever.
SHARING = """\
pilotage: 1
job: sharing
stages:
  - each: {n: 1..8}
    cpu_percent: 10
    shell: echo {n} > $PILOTAGE_FOLDER/started; read line < $PILOTAGE_FOLDER/go
"""


def test_packages_that_use_a_tenth_of_a_core_share_one(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(SHARING)
    for name in ("started", "go"):
        os.mkfifo(folder / name)
    started = os.open(folder / "started", os.O_RDWR)
    process = subprocess.Popen([str(PROGRAM), "run", "--slots", "1"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        seen = b""
        while seen.count(b"\n") < 8:
            ready, _, _ = select.select([started], [], [], SECONDS_MAX)
            assert ready, f"only {seen.split()} ran at once"
            seen += os.read(started, 100)
        go = os.open(folder / "go", os.O_RDWR)
        os.write(go, b"on\n" * 8)
        shown, _ = process.communicate(timeout=SECONDS_MAX)
        os.close(go)
    finally:
        os.close(started)
        process.kill()
        process.wait()
    assert process.returncode == 0, shown
    assert "8 of 8 packages done" in shown


def test_a_stage_iterates_over_what_an_earlier_job_in_the_book_made(folder: Path) -> None:
    (folder / "first.yaml").write_text(
        "pilotage: 1\njob: first\nstages: [{each: {n: 1..2}, shell: 'echo {n} > part-{n}', outputs: ['part-{n}']}]\n"
    )
    (folder / "second.yaml").write_text(
        "pilotage: 1\njob: second\nstages:\n"
        "  - {each: {f: {files: part-*, job: first}}, run: 'cp {f} copy-{f}', inputs: ['{f}'], outputs: ['copy-{f}']}\n"
    )
    assert "no finished job has the id or the name 'first'" in run(folder, "check", "second.yaml", code=2)
    run(folder, "run", "first.yaml")
    (folder / "part-3").write_text("made by nobody")
    run(folder, "run", "second.yaml")
    assert sorted(path.name for path in folder.glob("copy-*")) == ["copy-part-1", "copy-part-2"]
    run(folder, "serve", "--stop")
    # Without a service the book is read; below another folder, the files keep their place.
    (first,) = [each["id"] for each in told(folder, "query", "name=first", "--jobs")["jobs"]]
    deeper = folder / "deeper"
    deeper.mkdir()
    text = (folder / "second.yaml").read_text()
    (folder / "by-id.yaml").write_text(text.replace("job: first", f"job: {first}"))
    assert "2 packages" in run(folder, "check", "by-id.yaml")
    (deeper / "elsewhere.yaml").write_text(text)
    shown = run(deeper, "check", "elsewhere.yaml", code=2)
    assert f"the outputs of the job {first} are in {folder}, and not below the folder of this document" in shown
