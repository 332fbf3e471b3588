"""Where the attempts of one pilot run, and what its slots share: known checksums, and the one thread that watches them."""

from __future__ import annotations

import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Protocol

from pilotage.agent.attempt.commands import quick_way_works
from pilotage.agent.attempt.containers import Engines
from pilotage.agent.attempt.environment import base_environment
from pilotage.agent.attempt.files import FolderVisibility, KnownFiles
from pilotage.agent.attempt.scratch import remove_tree
from pilotage.agent.attempt.undelivered_events import UndeliveredEvents
from pilotage.agent.attempt.watcher import Watcher
from pilotage.agent.processes import KernelKills, ProcessCleanup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pilotage.agent.link.http import Connect


# What an attempt that ended well left in its folder though no output declares it: told once for each kind of name.
#
# A file that nobody declared is gone with the folder, and whoever wrote the document may have wanted it. A job of
# many packages would tell the same of each, so a pilot tells it of few packages of a stage: those whose files are
# called otherwise than what it told before, apart from their numbers.

REASON = "undeclared-files"
KEEPING = "outputs: "
NAMES_MAX = 5
"""So many files of an attempt are named."""
KINDS_MAX = 3
"""So many packages of a stage are told of, each for other names."""
_STAGES_MAX = 1000
_NAME_CHARACTERS_MAX = 200
_DIGITS = re.compile("[0-9]+")
_CACHES = frozenset({"__pycache__"})  # what Python writes beside the modules of a package


class Undeclared:
    """What was told by one pilot; slots may ask at once."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], set[tuple[str, ...]]] = {}  # by job and stage

    def look(self, ref: Mapping[str, Any], work: Mapping[str, Any], manifest: Any, removed: Iterable[str]) -> list[str]:
        """The files that an attempt left behind and that are to be told of, in order; mostly there are none."""
        known = {each["name"] for each in work.get("inputs", ())}
        left = [name for name in removed if name not in known]
        if not left:
            return []
        known = {each["name"] for each in manifest or ()}
        left = sorted(name for name in left if name not in known and _is_a_result(name))
        return left if left and self._is_news(ref, left) else []

    def _is_news(self, ref: Mapping[str, Any], left: Sequence[str]) -> bool:
        kind = tuple(_DIGITS.sub("0", name) for name in left[:NAMES_MAX])
        stage = (ref["job"], ref["package"].partition(".")[0])
        with self._lock:
            if len(self._told) >= _STAGES_MAX:
                self._told.clear()
            told = self._told.setdefault(stage, set())
            if kind in told or len(told) >= KINDS_MAX:
                return False
            told.add(kind)
            return True


def told(left: Sequence[str]) -> dict[str, str]:
    """What a success says of the files that it left behind; the second line is what would keep them, as JSON."""
    named = [name for name in left if len(name) <= _NAME_CHARACTERS_MAX][:NAMES_MAX]
    others = len(left) - len(named)
    more = f" and {others} more" if named and others else f"{others} files" if others else ""
    message = f"it left behind {', '.join(named)}{more}: no output declares {'it' if len(left) == 1 else 'them'}"
    if named:
        message += f"\n{KEEPING}{json.dumps(named, ensure_ascii=False)}"
    return {"reason": REASON, "exit_message": message}


def _is_a_result(name: str) -> bool:
    """Whether somebody may have wanted a file: not a folder, nothing hidden, no cache, nothing that cannot be written as text."""
    if name.endswith("/") or not name.isprintable():
        return False
    return not any(part.startswith(".") or part in _CACHES for part in name.split("/"))


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
        self.left_events = UndeliveredEvents(spool, server=server, ca_file=ca_file, connect=connect)
        quick_way_works()  # found out now, while nothing runs that the trial could be taken for
        self._null = -1
        self._lock = threading.Lock()
        self.known = KnownFiles()
        self.undeclared = Undeclared()
        self.turns = threading.Lock()
        self.visibility = FolderVisibility()
        self.kernel_kills = KernelKills()
        self.cleanup = ProcessCleanup(sole=sole, grace_seconds=grace_seconds)
        self.engines = Engines(self.environment.get("PATH", os.defpath))
        self.watcher = Watcher(
            self.cleanup, look_seconds=look_seconds, grace_seconds=grace_seconds, log_bytes_max=log_bytes_max
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
        self.cleanup.close()
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
        remove_tree(self.scratch)
