"""Software that is started differently at each site, with a real Slurm that has one batch job for each package beside this computer."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

from tests.engines.slurm import SlurmCluster
from tests.kit.cluster_runs import SITE, cluster_run
from tests.kit.real_runs import wait_until

DOCUMENT = """\
pilotage: 1
job: releases
software:
  - id: both
    infrastructures:
      - {name: slurm, shell: 'echo "slurm $PILOTAGE_SITE $SLURM_JOB_NAME" > {target}'}
      - {name: local, shell: 'echo "local $PILOTAGE_SITE $SLURM_JOB_NAME" > {target}'}
  - id: batch
    infrastructures: [{name: slurm, shell: 'echo "slurm $PILOTAGE_SITE $SLURM_JOB_NAME" > {target}'}]
  - id: here
    infrastructures: [{name: local, shell: 'echo "local $PILOTAGE_SITE $SLURM_JOB_NAME" > {target}'}]
stages:
  - {executor: slurm, software: both, parameters: {target: far.txt}, outputs: [far.txt]}
  - {executor: local, software: both, parameters: {target: near.txt}, outputs: [near.txt]}
  - {each: {n: [1, 2]}, software: batch, parameters: {target: "batch-{n}.txt"}, outputs: ["batch-{n}.txt"]}
  - {each: {n: [1, 2]}, software: here, parameters: {target: "here-{n}.txt"}, outputs: ["here-{n}.txt"]}
"""
NOWHERE = """\
pilotage: 1
job: nowhere
software:
  - {id: tool, infrastructures: [{name: local, run: "true"}]}
stages:
  - {executor: slurm, software: tool}
"""


def test_each_site_starts_software_its_own_way_and_one_without_a_way_is_passed_over(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    with cluster_run(tmp_path, slurm_cluster, slots=1) as run:
        run.place.document(DOCUMENT)
        planned = run.place.run("plan").stdout
        assert "lyon is not used for here: here is described for local, and lyon is of the kind slurm" in planned
        assert "local is not used for batch: batch is described for slurm, and local is of the kind local" in planned
        run.place.run("run")
        written = {file.stem: file.read_text().split() for file in run.place.folder.glob("*.txt")}
        for name in ("far", "batch-1", "batch-2"):
            kind, site, batch_job = written.pop(name)
            assert (kind, site, batch_job.startswith("pilotage-")) == ("slurm", SITE, True)
        assert written == {name: ["local", "local"] for name in ("near", "here-1", "here-2")}
        assert len(run.events("AttemptQueued")) == 3
        run.place.document(NOWHERE)
        refused = run.place.run("run", code=2).stderr
        assert "no site can run tool: tool is described for local, and lyon is of the kind slurm" in refused


def archive_of(platform: str, folder: Path) -> str:
    """An archive of a program that says for which platform it was made."""
    script = f'#!/bin/sh\ncat "$1" > "$2"\necho {platform} >> "$2"\n'.encode()
    path = folder / f"tool-{platform}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("bin/tool")
        member.mode, member.size = 0o755, len(script)
        archive.addfile(member, io.BytesIO(script))
    return str(path)


def test_each_site_gets_the_archive_of_its_platform_once_until_software_is_purged(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    entry = {"platform": "far-linux", "cache": str(tmp_path / "far-cache")}
    platforms = {"slurm": "far-linux", "local": f"{os.uname().machine}-linux"}
    with cluster_run(tmp_path, slurm_cluster, entry, slots=1) as run:
        place = run.place
        archives = {each: archive_of(each, place.folder) for each in platforms.values()}
        (place.folder / "data.txt").write_text("data\n")
        given = {"name": "data.txt", "locator": str(place.folder / "data.txt")}
        software = {
            "id": "tool",
            "archives": [{"platform": each, "locator": path} for each, path in archives.items()],
            "run": "tool/bin/tool data.txt {target}",
        }
        stages = [
            {"executor": kind, "each": {"n": [1, 2, 3]}, "software": "tool", "inputs": [given],
             "parameters": {"target": f"{kind}-{{n}}.txt"}, "outputs": [f"{kind}-{{n}}.txt"]}
            for kind in platforms
        ]  # fmt: skip
        place.document(json.dumps({"pilotage": 1, "job": "platforms", "software": [software], "stages": stages}))
        place.run("run")
        for kind, platform in platforms.items():
            assert [(place.folder / f"{kind}-{n}.txt").read_text() for n in (1, 2, 3)] == [f"data\n{platform}\n"] * 3
        listed = {(each["site"], Path(each["locator"]).name) for each in place.told("files", "list")["files"]}
        assert listed == {
            (SITE, "tool-far-linux.tar.gz"), ("local", f"tool-{platforms['local']}.tar.gz"), (SITE, "data.txt"), ("local", "data.txt"),
        }  # fmt: skip
        told = place.told("files", "purge", "--software", "--dry-run")
        assert told["changed"] == 2
        place.run("files", "purge", "--software")
        wait_until(
            lambda: {Path(each["locator"]).name for each in place.told("files", "list")["files"]} == {"data.txt"},
            "the archives are gone, and nothing else",
        )
