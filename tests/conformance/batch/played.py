"""The played systems."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from pilotage.agent.batch import Answer, Call, Dialect
from tests.conformance.batch.system import System, run_here
from tests.conformance.batch.voices import stage


class PlayedSystem(System):
    """A system whose commands are programs of ours."""

    too_many = stage.ARRAY_MAX + 1

    def __init__(self, dialect: Dialect, folder: Path) -> None:
        super().__init__(folder)
        self.dialect = dialect
        self.state, self.programs = (folder.with_name(f"{folder.name}-{what}") for what in ("state", "programs"))
        for made in (self.state, self.programs):
            made.mkdir()
        voice = importlib.import_module(f"tests.conformance.batch.voices.{dialect.name}")
        stage.install(dialect.name, commands=tuple(voice.COMMANDS), folder=self.programs, state=self.state)
        self.has_queues = dialect.name in ("pbs", "lsf")
        self.bad_queue = None if dialect.name == "htcondor" else "no-such-queue"
        self.tells_exit_status = dialect.name != "dirac"
        if dialect.name == "lsf":
            self.wall_seconds = 60  # is a minute, which is played in a second

    def run(self, call: Call) -> Answer:
        return run_here(call, within=[], environment={"PATH": f"{self.programs}:{os.environ['PATH']}"})

    def down(self) -> None:
        (self.state / "down").touch()

    def up(self) -> None:
        (self.state / "down").unlink()

    def close(self) -> None:
        """End whatever runs."""
        stage.Stage(self.state).close()
