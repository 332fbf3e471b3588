"""The batch job of an agent: its command line and its resource request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotage.agent.batch.values import BatchRequest
from pilotage.agent.resources import (
    DEFAULT_RESOURCES,
    Resources,
    asked_fields,
    attempt_options,
    pilot_options,
    resources_of,
)

OUTPUT_FOLDER = "output"
STATE_FOLDER = "state"
BOUND_MARGIN_SECONDS = 90.0
"""Extra wall time for the batch job of one attempt: to start, to stage files, and to report."""
BOUND_MARGIN_BYTES = 64 * 1024 * 1024
"""Extra memory for the agent and a launcher: the batch system counts every process of the job."""
# A login shell has `module` and the like, which a batch job may lack.
_SETUP = ("bash", "-l", "-c")
_GO_ON = 'exec "$@"'


@dataclass(frozen=True)
class PilotJobTemplate:
    """Settings shared by all agents of a service at one site. All paths are absolute, and visible on the nodes."""

    site: str
    folder: str  # of this service at this site: state and output of agents
    agent: str  # the agent in one file
    server: str
    agent_sha256: str = ""  # of that file; nodes start no other content
    token_file: str = ""
    ca_file: str = ""
    announcement: str = ""  # file with the current address of the service
    python: str = "python3"
    setup: Sequence[str] = ()  # shell lines to run first
    resources: Resources = DEFAULT_RESOURCES  # resources of a pilot; 0 where the entry does not say
    scratch_folder: str = "$TMPDIR"  # expanded on the node; in the state folder if that variable is not set
    wall_seconds: float = 0.0
    idle_seconds: float = 300.0
    grace_seconds: float = 10.0
    queue: str = ""
    account: str = ""
    parallel: str = ""
    directives: Sequence[str] = ()

    @property
    def output(self) -> str:
        """The folder of output files, one per batch job."""
        return f"{self.folder}/{OUTPUT_FOLDER}"

    def pilots(self, key: str, *, count: int = 1) -> BatchRequest:
        """Pilots with consecutive keys from this one on; each finds its own in the environment."""
        options = [
            *pilot_options(self.resources),
            f"--idle={self.idle_seconds:g}",
            f"--deserted={self.idle_seconds:g}",
        ]
        return self._wanted(
            key,
            options,
            scratch_folder=self.scratch_folder,
            count=count,
            resources=self.resources,
            wall_seconds=self.wall_seconds,
        )

    def attempt(self, key: str, *, serves: str, demand: Mapping[str, Any]) -> BatchRequest:
        """An agent for one attempt, `JOB:PACKAGE:ATTEMPT`, with a demand as in JSON.

        It runs once, on however many nodes: its command starts the other processes. On several nodes it works in the
        state folder, which all of them share, so that processes elsewhere find the files of the package.
        """
        resources, nodes = Resources._make(map(int, resources_of(demand))), int(demand.get("nodes", 1))
        asked_seconds = float(demand.get("wall_seconds", 0.0))
        wall_seconds = asked_seconds + BOUND_MARGIN_SECONDS if asked_seconds else self.wall_seconds
        job_bytes = resources.memory_bytes + BOUND_MARGIN_BYTES if resources.memory_bytes else 0
        if self.resources.memory_bytes:  # the most that a node there has
            job_bytes = min(job_bytes, max(self.resources.memory_bytes, resources.memory_bytes))
        return self._wanted(
            key,
            [*attempt_options(resources), f"--serves={serves}"],
            scratch_folder=self.scratch_folder if nodes == 1 else "",
            resources=resources._replace(memory_bytes=job_bytes),
            nodes=nodes,
            hosts=tuple(str(each) for each in demand.get("node_restriction") or ()),
            wall_seconds=min(wall_seconds, self.wall_seconds or wall_seconds),
        )

    def _wanted(
        self,
        key: str,
        options: Sequence[str],
        *,
        scratch_folder: str,
        count: int = 1,
        resources: Resources,
        wall_seconds: float,
        nodes: int = 1,
        hosts: Sequence[str] = (),
    ) -> BatchRequest:
        command = [
            self.python, "-I", "-S", self.agent, "pilot",
            f"--server={self.server}", f"--state={self.folder}/{STATE_FOLDER}", "--shared-state", f"--site={self.site}",
            *([f"--token-file={self.token_file}"] if self.token_file else []),
            *([f"--ca-file={self.ca_file}"] if self.ca_file else []),
            *([f"--announcement={self.announcement}"] if self.announcement else []),
            *([f"--scratch-folder={scratch_folder}"] if scratch_folder else []),
            *([f"--wall={wall_seconds:g}"] if wall_seconds else []),
            f"--grace={self.grace_seconds:g}",
            *options,
        ]  # fmt: skip
        if self.setup:
            command = [*_SETUP, "\n".join([*self.setup, _GO_ON]), "bash", *command]
        return BatchRequest(
            key=key,
            command=command,
            count=count,
            **asked_fields(resources),
            nodes=nodes,
            hosts=hosts,
            wall_seconds=math.ceil(wall_seconds),
            queue=self.queue,
            account=self.account,
            parallel=self.parallel,
            directives=self.directives,
            folder=self.folder,
            output=self.output,
            agent=self.agent,
            agent_sha256=self.agent_sha256,
        )
