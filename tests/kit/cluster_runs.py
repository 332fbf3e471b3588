"""A service in a folder whose one site is a real Slurm cluster, and what the book and the cluster say of its batch jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pilotage.service.announcement import find_service
from tests.engines.postgres import free_port
from tests.engines.slurm import SlurmCluster
from tests.engines.sshd import SshServer
from tests.kit.real_runs import Place, place_in, wait_until

SITE = "lyon"
SETTINGS = "[engine]\ninterval_seconds = 1\n"
"""An agent that is not heard for six seconds is suspect: a node that was lost is missed soon."""

# Each notes that it runs, and waits for a file.
WAITING = """\
pilotage: 1
job: waiting
stages:
  - each: {{number: [1, 2, 3, 4]}}
    outputs: ["out-{{number}}.txt"]
    shell: |
      echo {{number}} >> {folder}/begun
      while ! test -e {folder}/go; do sleep 0.05; done
      echo done > out-{{number}}.txt
"""


class ClusterRun:
    """A folder with a service, and the cluster that is its site."""

    def __init__(self, place: Place, cluster: SlurmCluster, *, slots: int = 0, settings: str = "") -> None:
        """Take both, what this computer runs at once, and more settings; the service is started by `serve`."""
        self.place = place
        self.cluster = cluster
        self._slots = slots
        self._settings = f"{SETTINGS}{settings}"

    def serve(self) -> None:
        """Start the service, at the address that it had before unless it was moved."""
        self.place.run("serve", "--slots", str(self._slots), "--background")

    def move_service(self) -> None:
        """Have the service listen at another port from its next start on."""
        (self.place.folder / "pilotage.toml").write_text(f"{self._settings}[service]\nport = {free_port()}\n")

    def kill_service(self) -> None:
        """Kill the service, as when its computer loses its power."""
        found = find_service(self.place.state)
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        wait_until(lambda: find_service(self.place.state) is None, "the service is gone")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the book has of a type about packages, in order: package, attempt and data."""
        asked = "SELECT stage, line, number, attempt, data FROM events WHERE type = ? ORDER BY position"
        with closing(sqlite3.connect(f"file:{self.place.state}/book.sqlite?mode=ro", uri=True)) as book:
            found = book.execute(asked, (kind,)).fetchall()
        return [
            {"package": f"{stage}.{line}.{number}", "attempt": attempt, "data": json.loads(data)}
            for stage, line, number, attempt, data in found
        ]

    def running(self) -> list[str]:
        """The nodes of each batch job that runs, as the cluster writes them."""
        return self.cluster.command("squeue", "--noheader", "--states=RUNNING", "--format=%N").split()

    def queued(self) -> list[str]:
        """The names of all batch jobs that are not over."""
        return self.cluster.command("squeue", "--noheader", "--format=%j").split()

    def jobs_ever(self) -> list[str]:
        """The names of all batch jobs that the cluster remembers."""
        return self.cluster.command("squeue", "--noheader", "--states=all", "--format=%j").split()


@contextmanager
def cluster_run(
    folder: Path,
    cluster: SlurmCluster,
    entry: Mapping[str, Any] | None = None,
    *,
    slots: int = 0,
    settings: str = "",
    others: Sequence[Mapping[str, Any]] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[ClusterRun]:
    """A service that has a cluster as its site, in an empty folder; `entry` is what its entry says besides, or, with None, does not.

    This computer is a site, too, where it has `slots`; `others` are the entries of further ones, as far as they differ
    from the first, and `environment` is what the service needs for them. When the block is over nothing of it is left in the queue.
    """
    (folder / "work").mkdir()
    with place_in(folder / "work", environment={**cluster.environment(), **(environment or {})}) as place:
        fields = {
            "name": SITE,
            "kind": "slurm",
            "mode": "bound",
            "folder": str(folder / "shared"),
            "python": sys.executable,
            "slots": 2,
            "wall_time_seconds": 600,
            "job_throttle": 100,
            **(entry or {}),
        }
        entries = ["".join(_lines(fields)), *("".join(_lines({**fields, **each})) for each in others)]
        (place.folder / "sites.yaml").write_text("pilotage: 1\nsites:\n" + "".join(f"  -\n{each}" for each in entries))
        run = ClusterRun(place, cluster, slots=slots, settings=settings)
        run.move_service()
        try:
            run.serve()
            yield run
        finally:
            cluster.command("scancel", "--user", str(os.geteuid()))
            wait_until(lambda: not run.queued(), "the cluster ends what is left")


def ssh_for(server: SshServer, cluster: SlurmCluster, folder: Path) -> Path:
    """A folder with an `ssh` that has the settings of a user who was there before."""
    folder.mkdir()
    configuration = folder / "config"
    told = " ".join(f"{name}={value}" for name, value in cluster.environment().items())
    configuration.write_text(f"{server.configuration().read_text()}SetEnv {told}\n")
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {configuration} "$@"\n')
    program.chmod(0o755)
    return folder


def _lines(fields: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"    {name}: {value}\n" for name, value in fields.items() if value is not None)


@contextmanager
def site_agent(run: ClusterRun, folder: Path, *options: str) -> Iterator[None]:
    """The agent of the site, as its user starts it there, while the block runs."""
    archive, token = folder / "agent.pyz", folder / f"{SITE}.token"
    if not archive.exists():
        run.place.run("site", "pack", "--output", str(archive))
        run.place.run("site", "token", SITE, "--output", str(token))
    found = find_service(run.place.state)
    assert found is not None
    words = ["site", f"--server={found.url}", f"--site={SITE}", f"--folder={folder / 'there'}", f"--token-file={token}"]
    with (folder / "agent.log").open("ab") as said:
        agent = subprocess.Popen(
            [sys.executable, "-I", "-S", str(archive), *words, *options],
            env=run.place.environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield
    finally:
        agent.terminate()
        agent.wait(30)


def lines(file: Path) -> list[str]:
    """What was noted in a file, sorted."""
    return sorted(file.read_text().split()) if file.exists() else []
