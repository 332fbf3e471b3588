"""How an agent is started at a site: its command line, and what its batch job asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotage.agent.batch.values import Wanted
from pilotage.agent.resources import USUAL_ROOM, Room, asked_fields, attempt_options, pilot_options, room_of

OUTPUT_FOLDER = "output"
STATE_FOLDER = "state"
BOUND_MARGIN_SECONDS = 90.0
"""What the batch job of one attempt is given beyond the attempt's own wall time: to start, to stage, and to tell."""
BOUND_MARGIN_BYTES = 64 * 1024 * 1024
"""The same of memory, for the agent and a launcher: the batch system counts everything that runs in its job."""
# A login shell knows `module` and the like, which a batch job may not.
_SETUP = ("bash", "-l", "-c")
_GO_ON = 'exec "$@"'


@dataclass(frozen=True)
class PilotJobTemplate:
    """What every agent of a service at one site has in common. All paths are absolute, and the nodes see them."""

    site: str
    folder: str  # of this service at this site: where agents keep their state, and print to
    agent: str  # the agent in one file
    server: str
    agent_sha256: str = ""  # of that file; nodes start no other
    token_file: str = ""
    ca_file: str = ""
    announcement: str = ""  # a file that says where the service is now
    python: str = "python3"
    setup: Sequence[str] = ()  # lines of shell before it starts
    room: Room = USUAL_ROOM  # what a pilot has; 0 where the entry does not say
    scratch_folder: str = "$TMPDIR"  # as the node has it; none where it has no such variable: in the state folder
    wall_seconds: float = 0.0
    idle_seconds: float = 300.0
    grace_seconds: float = 10.0
    queue: str = ""
    account: str = ""
    parallel: str = ""
    directives: Sequence[str] = ()

    @property
    def output(self) -> str:
        """The folder in which each has a file for what it prints."""
        return f"{self.folder}/{OUTPUT_FOLDER}"

    def pilots(self, key: str, *, count: int = 1) -> Wanted:
        """Pilots, under a key and those that follow it; they are told their own by the environment."""
        options = [
            *pilot_options(self.room),
            f"--idle={self.idle_seconds:g}",
            f"--deserted={self.idle_seconds:g}",
        ]
        return self._wanted(
            key,
            options,
            scratch_folder=self.scratch_folder,
            count=count,
            room=self.room,
            wall_seconds=self.wall_seconds,
        )

    def attempt(self, key: str, *, serves: str, demand: Mapping[str, Any]) -> Wanted:
        """An agent for one attempt, `JOB:PACKAGE:ATTEMPT`, by the fields of its demand as they are told in JSON.

        It runs once, whatever the nodes: what it starts is to start the rest. Where there are several it works in the state
        folder, which all of them see: what it starts elsewhere is to find the files of the package.
        """
        room, nodes = Room._make(map(int, room_of(demand))), int(demand.get("nodes", 1))
        asked_seconds = float(demand.get("wall_seconds", 0.0))
        wall_seconds = asked_seconds + BOUND_MARGIN_SECONDS if asked_seconds else self.wall_seconds
        job_bytes = room.memory_bytes + BOUND_MARGIN_BYTES if room.memory_bytes else 0
        if self.room.memory_bytes:  # all that a node there gives
            job_bytes = min(job_bytes, max(self.room.memory_bytes, room.memory_bytes))
        return self._wanted(
            key,
            [*attempt_options(room), f"--serves={serves}"],
            scratch_folder=self.scratch_folder if nodes == 1 else "",
            room=room._replace(memory_bytes=job_bytes),
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
        room: Room,
        wall_seconds: float,
        nodes: int = 1,
        hosts: Sequence[str] = (),
    ) -> Wanted:
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
        return Wanted(
            key=key,
            command=command,
            count=count,
            **asked_fields(room),
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
