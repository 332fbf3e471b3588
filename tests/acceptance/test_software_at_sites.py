"""Software that is started differently at each site, with a real Slurm that has one batch job for each package beside this computer."""

from __future__ import annotations

from pathlib import Path

from tests.engines.slurm import SlurmCluster
from tests.kit.cluster_runs import SITE, cluster_run

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
