"""Sites whose batch systems do not work are no matter of jobs that this computer can do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.kit.real_runs import place_in

SITES = 40
COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")
JOB = 'pilotage: 1\njob: small\nstages:\n  - {each: {n: 1..20}, shell: "true"}\n'
HANGS, FAILS = "exec sleep 600", "echo it is broken >&2; exit 1"


@pytest.mark.parametrize(
    "look, submit",
    [(HANGS, HANGS), (FAILS, FAILS), ("exit 0", HANGS), ("exit 0", FAILS)],
    ids=["hanging", "failing", "hanging-submissions", "failing-submissions"],
)
def test_sites_that_are_broken_hold_up_no_job_of_this_computer(tmp_path: Path, look: str, submit: str) -> None:
    programs, work = tmp_path / "bin", tmp_path / "work"
    for each in (programs, work):
        each.mkdir()
    for name in COMMANDS:
        (programs / name).write_text(f"#!/bin/sh\n{look if name in ('squeue', 'scancel') else submit}\n")
        (programs / name).chmod(0o755)
    entries = [f"  - {{name: s{number}, kind: slurm, folder: {tmp_path}/shared}}\n" for number in range(SITES)]
    with place_in(work, environment={"PATH": f"{programs}:{os.environ['PATH']}"}) as place:
        (work / "sites.yaml").write_text("".join(["pilotage: 1\nsites:\n", *entries]))
        place.document(JOB)
        begun = time.monotonic()
        assert "20 of 20 packages done" in place.run("run").stdout
        assert time.monotonic() - begun < 50  # a reservation at one of them would be held for a minute
