"""A real service with a real batch system as its one site: its pilots come as batch jobs and run the packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage.service.announcement import find_service
from tests.engines.slurm import SlurmCluster
from tests.engines.sshd import SshServer
from tests.kit.cluster_runs import ssh_for
from tests.kit.real_runs import Place, place_in, wait_until

PACKAGES = 20
SERVE = """\
import sys
from pathlib import Path

from pilotage.app.state_folder import settings_here
from pilotage.app.service.serve import serve_jobs
from pilotage.language.parsing.sites import read_sites

found, report = read_sites(Path("sites.yaml").read_bytes(), file="sites.yaml")
assert found is not None, report
serve_jobs(settings_here(), started=lambda _: None, slots=0, entries=found.sites)
"""
SITES = """\
pilotage: 1
sites:
  - name: lyon
    kind: slurm
    address: {address}
    mode: {mode}
    folder: {folder}
    python: {python}
    slots: 2
    pilots_max: 3
    wall_time_seconds: 600
    idle_seconds: 1
    setup:
      - export GREETING="from a batch job"
    directives: ["--comment=pilots"]
"""
DOCUMENT = f"""\
pilotage: 1
job: at-lyon
stages:
  - name: one
    each: {{number: {list(range(1, PACKAGES + 1))}}}
    outputs: ["out-{{number}}.txt"]
    shell: echo "$GREETING $SLURM_JOB_NAME $PILOTAGE_SITE {{number}}" > out-{{number}}.txt
"""


@contextmanager
def served(place: Place, environment: Mapping[str, str]) -> Iterator[None]:
    """A service that knows the sites of `sites.yaml`, while the block runs."""
    with (place.folder / "service.out").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            cwd=place.folder,
            env={**place.environment, **environment, "PILOTAGE_SERVICE_PORT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        wait_until(lambda: find_service(place.state) is not None or process.poll() is not None, "the service answers")
        assert process.poll() is None, (place.folder / "service.out").read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)


def queued(cluster: SlurmCluster) -> list[str]:
    """The names of all jobs of the cluster that are not over."""
    return cluster.command("squeue", "--noheader", "--format=%j").split()


@pytest.mark.parametrize("way", ["pilots here", "bound here", "pilots over ssh", "bound over ssh"])
def test_twenty_packages_are_run_by_agents_that_a_batch_system_started(
    slurm_cluster: SlurmCluster, ssh_server: SshServer, tmp_path: Path, way: str
) -> None:
    (tmp_path / "work").mkdir()
    site = tmp_path / "shared"
    mode, over_ssh = way.split(maxsplit=1)[0], "ssh" in way
    address = ssh_server.address if over_ssh else '""'
    with place_in(tmp_path / "work") as place:
        if over_ssh:
            programs = ssh_for(ssh_server, slurm_cluster, tmp_path / "bin")
            place.environment["PATH"] = f"{programs}:{place.environment['PATH']}"
        place.document(DOCUMENT)
        (place.folder / "sites.yaml").write_text(
            SITES.format(folder=site, python=sys.executable, mode=mode, address=address)
        )
        with served(place, {} if over_ssh else slurm_cluster.environment()):
            place.run("run")
            status = place.told("status")
            kept = place.run("provenance", "show", "at-lyon", "--part", "sites/lyon.json").stdout
            log = (place.folder / "service.out").read_text()
            wait_until(lambda: not queued(slurm_cluster), "pilots without work end")
    written = [(place.folder / f"out-{number}.txt").read_text().split() for number in range(1, PACKAGES + 1)]
    assert [words[:4] for words in written] == [["from", "a", "batch", "job"]] * PACKAGES
    assert all(words[4].startswith("pilotage-") and words[5] == "lyon" for words in written)
    assert [int(words[-1]) for words in written] == list(range(1, PACKAGES + 1))
    assert (status["job"]["state"], status["job"]["counts"]["done"]) == ("DONE", PACKAGES)
    assert "Traceback" not in log
    site_then = json.loads(kept)
    version = slurm_cluster.command("sbatch", "--version").split()[-1]
    assert (site_then["scheduler"], site_then["entry"]["directives"]) == (f"slurm {version}", ["--comment=pilots"])
    # One folder of the service's own, closed to others, in which nothing is left of the pilots that ended.
    (own,) = site.iterdir()
    assert (own.stat().st_mode & 0o777, (own / "token").stat().st_mode & 0o777) == (0o700, 0o600)
    token = (own / "token").read_text().strip()
    assert token.count(".") == 2
    assert token not in log
    assert [file for file in (own / "state").rglob("*") if file.is_file()] == []
    for process in (
        entry for entry in Path("/proc").iterdir() if entry.name.isdecimal() and int(entry.name) != os.getpid()
    ):
        assert token.encode() not in _command_line(process)


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
