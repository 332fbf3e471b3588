"""What can be seen of a site directly, beside its service: its login node, its batch system, and what a pilot prints there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.agent.batch import Answer, BatchError, Call, Dialect, output_of
from pilotage.agent.batch.berth import OUTPUT_FOLDER
from pilotage.app.site_hops import HopName
from pilotage.model.errors import PilotageError

if TYPE_CHECKING:
    from pilotage.adapters.sites.installing import Installation
    from pilotage.model.configuration import Settings
    from pilotage.model.site_entry import SiteEntry

TAIL_BYTES = 4000


class NotSeen(PilotageError):
    """Something that should be seen at a site is not; `got` has the words of whoever stood in the way."""


class Looks:
    """Looks at a site with its own caller; at one that cannot be reached from here, at nothing."""

    def __init__(self, entry: SiteEntry, *, state: Path, settings: Settings) -> None:
        """Take what is written of it; nothing is called yet. Raises `UnknownKind`."""
        from pilotage.adapters.sites.batch import runs_commands
        from pilotage.adapters.sites.identity import site_prefix
        from pilotage.app.sites import caller_for, refuse_unknown_kind

        self._entry = entry
        self._state = state
        self._settings = settings
        self._folder = ""
        self._dialect: Dialect | None = None
        kinds = refuse_unknown_kind(entry)
        # A site agent without an address was started by hand, somewhere: nobody here knows the way.
        if entry.kind != "local" and (entry.address or entry.started_by == "service"):
            self._dialect = kinds[entry.kind](site_prefix(state, entry.name))
        self._caller = caller_for(entry, state=state)
        self._commands = runs_commands(entry, self._caller)  # of the batch system, as whoever submits there runs them

    def close(self) -> None:
        """Let go of the connection."""
        self._caller.close()

    def each(self) -> Iterator[tuple[HopName, Callable[[], str]]]:
        """The hops that can be looked at, in order; each look says what it saw, or raises `NotSeen`."""
        if self._dialect is None:
            return
        yield "reach", self._reach
        yield "scheduler", partial(self._scheduler, self._dialect)
        if self._entry.started_by == "service":
            yield "install", self._install

    def state(self, key: str) -> str:
        """What the batch system says of a key: queued, running or ended, with its own word; nothing where it says nothing."""
        if self._dialect is None:
            return ""
        try:
            seen = self._dialect.listed(self._commands(self._dialect.listing())).get(key)
        except BatchError:
            return ""
        if seen is None:
            return ""
        word = "held" if seen.reason == "held" else seen.state
        return word if word == "running" else f"{word}, {seen.detail}" if seen.detail else word

    def words(self, key: str) -> str:
        """The last that what has a key printed so far."""
        if self._dialect is None or not self._folder:
            return ""
        file = output_of(f"{self._folder}/{OUTPUT_FOLDER}", key)
        try:
            answer = self._caller.run(Call(("sh",), f"tail -c {TAIL_BYTES} {shlex.quote(file)} 2>/dev/null\nexit 0\n"))
        except BatchError:
            return ""
        return answer.stdout.strip()

    def _run(self, call: Call, run: Callable[[Call], Answer] | None = None) -> Answer:
        from pilotage.adapters.sites.callers import MAY_WAIT

        try:
            answer = (run or self._caller.run)(call)
        except BatchError as error:
            raise NotSeen("it cannot be reached", got=str(error)) from error
        if answer.exit_status is None:
            raise NotSeen(f"no answer in time: {MAY_WAIT}", got=answer.stderr.strip())
        return answer

    def _reach(self) -> str:
        answer = self._run(Call(("sh",), "hostname 2>/dev/null || uname -n\n"))
        if answer.exit_status != 0:
            raise NotSeen("its shell does not answer as one should", got=answer.stderr or str(answer.exit_status))
        return answer.stdout.strip().splitlines()[-1] if answer.stdout.strip() else ""

    def _scheduler(self, dialect: Dialect) -> str:
        answer = self._run(dialect.is_here(), self._commands)
        version = dialect.version(answer)
        if not version:
            raise NotSeen(f"{dialect.name} is not there", got=answer.stderr.strip() or answer.stdout.strip())
        try:
            dialect.listed(self._commands(dialect.listing()))
        except BatchError as error:
            raise NotSeen(f"{dialect.name} {version} does not answer", got=str(error)) from error
        return f"{dialect.name} {version}"

    def _install(self) -> str:
        installation = self._installation()
        try:
            self._folder = installation.ensure()
        except (BatchError, ValueError) as error:
            raise NotSeen("the agent cannot be put there", got=str(error)) from error
        words = [self._entry.python, "-I", "-S", installation.agent, "--version"]
        script = "\n".join([*self._entry.setup, f"exec {shlex.join(words)}", ""])
        answer = self._run(Call(("bash", "-l", "-s") if self._entry.setup else ("sh",), script))
        if answer.exit_status != 0:
            raise NotSeen(f"{self._entry.python} does not start the agent on the login node", got=answer.stderr.strip())
        return f"{self._folder}, {answer.stdout.strip().splitlines()[-1]}"

    def _installation(self) -> Installation:
        from pilotage.adapters.sites.identity import site_prefix
        from pilotage.adapters.sites.installing import Installation
        from pilotage.app.sites import ca_file_of
        from pilotage.app.tokens import tokens_of

        tokens = tokens_of(self._state, self._settings)
        return Installation(
            self._caller,
            folder=self._entry.folder,
            prefix=site_prefix(self._state, self._entry.name),
            ca_file=partial(ca_file_of, self._state),
            token=partial(tokens.for_pilot, self._entry.name),
        )
