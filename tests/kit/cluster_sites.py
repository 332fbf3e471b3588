"""Real clusters as sites of a real service, far from each other: no file and no network is shared, but for one cable each
to where the service is; at each an ordinary account with a site agent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from pilotage.adapters.sites.zipapp import build
from tests.engines.cables import Cable, add_address, add_route
from tests.engines.capsule import CannotIsolate, Capsule
from tests.engines.estates import Estate, as_user
from tests.engines.slurm import SlurmCluster
from tests.kit.site_service import AgentProcess, SiteService

PYTHON = "/usr/bin/python3"
SERVICE = "198.51.100.1"
"""The address of the service, on every cable."""


class Cluster(Protocol):
    """What is needed of a cluster."""

    @property
    def head(self) -> Capsule:
        """Its login node."""
        ...

    def environment(self) -> dict[str, str]:
        """What tells its commands where it is."""
        ...


@contextmanager
def middle() -> Iterator[Capsule]:
    """The network in which the service is, as long as the block runs; skips where the system does not let us make one."""
    if os.geteuid() != 0 or not Path(PYTHON).exists():
        pytest.skip("privilege: another account is needed, and a Python that it may use")
    try:
        capsule = Capsule(network=True)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    with capsule:
        add_address(capsule, SERVICE)
        yield capsule


class ClusterSite:
    """A cluster, the cable from the service to it, and the account there."""

    def __init__(
        self, name: str, cluster: Cluster, estate: Estate, *, center: Capsule, number: int, way_out: bool = True
    ) -> None:
        """Lay the cable, which is the only one of this number at the center; without a `way_out` it leads but to the cluster."""
        self.name, self.cluster, self.estate = name, cluster, estate
        self.cable = Cable(center, cluster.head, here=f"10.66.{number}.1", there=f"10.66.{number}.2")
        if way_out:
            add_route(cluster.head, SERVICE, by=self.cable.here)
        self.agent: AgentProcess | None = None

    def words(self, environment: Mapping[str, str] | None = None) -> list[str]:
        """What goes before a command on the login node, in the account."""
        told = {**self.cluster.environment(), **(environment or {})}
        return [*self.cluster.head.within, *as_user(self.estate, **told)]

    def start_agent(self, service: SiteService, *options: str) -> None:
        """Have its user start the agent of the site, with three files that were brought along."""
        agent = self.estate.bring(build(service.folder / "agent.pyz"), "agent.pyz")
        token = self.estate.bring(service.token_for(self.name), "token")
        authority = self.estate.bring(service.ca_file, "ca.pem")
        words = [PYTHON, "-I", "-S", str(agent), "site", f"--server={service.url}", f"--site={self.name}"]
        words += [f"--folder={self.folder}", f"--token-file={token}", f"--ca-file={authority}", *options]
        log = service.folder.parent / f"agent-{self.name}.log"
        self.agent = AgentProcess([*self.words(), *words], environment={}, log=log)
        self.agent.start()

    def end_agent(self) -> None:
        """Let go of the agent, which ends with its cluster."""
        if self.agent is not None:
            self.agent.kill()

    @property
    def folder(self) -> Path:
        """Where the agent and its pilots keep their files."""
        return self.estate.home / ".pilotage-site"

    def reaches(self, service: SiteService, node: Capsule | None = None) -> bool:
        """Whether a process on the login node, or on another, could speak to a service."""
        program = f"import socket; socket.create_connection(('{SERVICE}', {service.port}), 2)"
        words = [*(node or self.cluster.head).within, PYTHON, "-c", program]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def sees(self, path: Path) -> bool:
        """Whether a path is there on the login node."""
        done = subprocess.run([*self.cluster.head.within, "test", "-e", str(path)], check=False)
        return done.returncode == 0

    def log(self) -> str:
        """What its agent said."""
        return self.agent.log() if self.agent is not None else ""


def submitted(cluster: SlurmCluster) -> list[str]:
    """The names of everything of ours that a cluster was ever given, with the place in its array."""
    listed = cluster.command("squeue", "--states=all", "--noheader", "--array", "--format=%j %K")
    return [line for line in listed.splitlines() if line.startswith("pilotage-")]
