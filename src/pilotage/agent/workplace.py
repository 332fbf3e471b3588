"""Where the attempts of one pilot run, and what its slots share: known checksums, and the one thread that watches them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Protocol

from pilotage.agent.containers import Engines
from pilotage.agent.environment import base_environment
from pilotage.agent.hashing import KnownFiles
from pilotage.agent.kernel_kills import KernelKills
from pilotage.agent.left_events import LeftEvents
from pilotage.agent.processes import Remains
from pilotage.agent.scratch import remove_tree
from pilotage.agent.sight import Sight
from pilotage.agent.spawning import quick_way_works
from pilotage.agent.undeclared import Undeclared
from pilotage.agent.watching import Watcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pilotage.agent.link_connection import Connect

GRACE_SECONDS = 5.0
LOG_BYTES_MAX = 64 * 1024 * 1024


class Fetch(Protocol):
    """How a slot gets at what it does not see: the pilot asks its server. Each raises `OSError` where it cannot."""

    def content(self, sha256: str) -> str:
        """The path of a captured file in the pilot's own cache, whose content is right; fetched once."""
        ...

    def file(self, job: str, name: str) -> str | None:
        """The path of a copy of a file of the job's tree, which the slot may take away; None where there is none."""
        ...

    def stage(self, ref: Mapping[str, object], number: int, path: str) -> None:
        """Put a file to where the outputs of an attempt wait, as the one of this number of its manifest."""
        ...


class Workplace:
    """What the slots of one pilot have in common. Made once; `close` it when no attempt runs any more."""

    def __init__(
        self,
        *,
        scratch: str,
        pilot: str,
        site: str = "",
        node: str = "",
        server: str = "",
        ca_file: str = "",
        spool: str = "",
        keep: str = "",
        sole: bool = False,
        connect: Connect | None = None,
        environment: Mapping[str, str] | None = None,
        grace_seconds: float = GRACE_SECONDS,
        log_bytes_max: int = LOG_BYTES_MAX,
        look_seconds: float = 0.5,
    ) -> None:
        """Say where: no file is made and no thread started before an attempt needs it.

        `scratch` is a folder of this pilot alone, `keep` one for the folders of failed attempts that shall be kept (none:
        beside `scratch`), `spool` one for the events of each attempt (none: they are not looked after). `sole` says that this process runs attempts and nothing else: it then adopts what they leave
        behind, and ends it. `connect` is how it reaches the service itself, for what its attempts could not tell. `environment` is what an application is given of the agent's own (none: `os.environ`).
        """
        self.scratch = os.path.realpath(scratch)
        self.node = node
        self.pilot = pilot
        self.keep = keep or f"{self.scratch}.failed"
        self.mark = f"PILOTAGE_MARK={pilot}".encode()
        self.environment = base_environment(
            os.environ if environment is None else environment,
            MARK=pilot, SITE=site, NODE=node, SERVER=server, CA_FILE=ca_file,
        )  # fmt: skip
        self.spools = spool
        self.left_events = LeftEvents(spool, server=server, ca_file=ca_file, connect=connect)
        quick_way_works()  # found out now, while nothing runs that the trial could be taken for
        self._null = -1
        self._lock = threading.Lock()
        self.known = KnownFiles()
        self.undeclared = Undeclared()
        self.turns = threading.Lock()
        self.sight = Sight()
        self.kernel_kills = KernelKills()
        self.remains = Remains(sole=sole, grace_seconds=grace_seconds)
        self.engines = Engines(self.environment.get("PATH", os.defpath))
        self.watcher = Watcher(
            self.remains, look_seconds=look_seconds, grace_seconds=grace_seconds, log_bytes_max=log_bytes_max
        )

    def null(self) -> int:
        """A descriptor that commands read nothing from."""
        if self._null < 0:
            with self._lock:
                if self._null < 0:
                    self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._null

    def close(self) -> None:
        """End the watching thread and remove the scratch folder."""
        self.left_events.close()
        self.watcher.close()
        self.remains.close()
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
        remove_tree(self.scratch)
