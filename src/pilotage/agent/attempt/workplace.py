"""Shared by the slots of one pilot: the scratch root, known checksums, and the thread that watches commands."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from pilotage.agent.attempt.commands import quick_way_works
from pilotage.agent.attempt.containers import Engines
from pilotage.agent.attempt.diagnosis import FULL, Failure, TokenEnded, from_system
from pilotage.agent.attempt.environment import base_environment
from pilotage.agent.attempt.files import SIDECAR, FolderVisibility, KnownFiles
from pilotage.agent.attempt.scratch import remove_tree
from pilotage.agent.attempt.undelivered_events import UndeliveredEvents
from pilotage.agent.attempt.watcher import Watcher
from pilotage.agent.processes import KernelKills, ProcessCleanup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pilotage.agent.attempt.archives import UnpackedSoftware
    from pilotage.agent.link.http import Connect


# Undeclared files: files that a successful attempt left in its folder and that no output declares.
#
# They are removed with the folder, and the author of the document may have wanted them. In a job of many packages the
# reports would be the same, so a pilot reports few packages per stage: those with new names, apart from digits.

REASON = "undeclared-files"
KEEPING = "outputs: "
NAMES_MAX = 5
"""At most so many files of an attempt are named."""
KINDS_MAX = 3
"""At most so many packages of a stage are reported, each with different names."""
_STAGES_MAX = 1000
_NAME_CHARACTERS_MAX = 200
_DIGITS = re.compile("[0-9]+")
_CACHES = frozenset({"__pycache__"})  # made by Python beside the modules of a package


class UndeclaredFiles:
    """The reports made by one pilot; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: dict[tuple[str, str], set[tuple[str, ...]]] = {}  # by job and stage

    def look(self, ref: Mapping[str, Any], work: Mapping[str, Any], manifest: Any, removed: Iterable[str]) -> list[str]:
        """The undeclared files of an attempt to report, in order; mostly none."""
        known = {each["name"] for each in work.get("inputs", ())}
        known.update(each["name"] + end for each in work.get("early", ()) for end in ("", SIDECAR))
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
            if len(self._reported) >= _STAGES_MAX:
                self._reported.clear()
            reported = self._reported.setdefault(stage, set())
            if kind in reported or len(reported) >= KINDS_MAX:
                return False
            reported.add(kind)
            return True


def undeclared_fields(left: Sequence[str]) -> dict[str, str]:
    """The fields of a success with undeclared files; the second line is the JSON that would declare them."""
    named = [name for name in left if len(name) <= _NAME_CHARACTERS_MAX][:NAMES_MAX]
    others = len(left) - len(named)
    more = f" and {others} more" if named and others else f"{others} files" if others else ""
    message = f"it left behind {', '.join(named)}{more}: no output declares {'it' if len(left) == 1 else 'them'}"
    if named:
        message += f"\n{KEEPING}{json.dumps(named, ensure_ascii=False)}"
    return {"reason": REASON, "exit_message": message}


def _is_a_result(name: str) -> bool:
    """Tell whether a file may be wanted: not a folder, hidden, a cache, or a name that is not text."""
    if name.endswith("/") or not name.isprintable():
        return False
    return not any(part.startswith(".") or part in _CACHES for part in name.split("/"))


_JOBS_MAX = 10_000


class SoftwareVersions:
    """What the probes of software said on this node; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], str] = {}  # by name and image
        self._told: dict[tuple[str, str, str], None] = {}  # by job, name and image

    def find(self, name: str, image: str, probe: Callable[[], str]) -> str:
        """The version of a software in an image, or on the node itself; probed once."""
        with self._lock:  # two slots that start at the same moment probe once
            if (name, image) not in self._found:
                self._found[name, image] = probe()
            return self._found[name, image]

    def is_news(self, job: str, name: str, image: str) -> bool:
        """Tell whether the version was not yet told for a job."""
        with self._lock:
            if (job, name, image) in self._told:
                return False
            if len(self._told) >= _JOBS_MAX:
                self._told.clear()
            self._told[job, name, image] = None
            return True


GRACE_SECONDS = 5.0
SHOWN_MAX = 1000
"""Of so many attempts a pilot keeps for readers where their outputs are."""
LOG_BYTES_MAX = 64 * 1024 * 1024


class Fetch(Protocol):
    """How a slot gets files that it cannot see: through the pilot's service. Each method raises `OSError` if it fails."""

    def bring(self, sizes: Mapping[str, int]) -> None:
        """Fetch captured files by their sha256, many at once, as far as that is cheaper; `content` fetches the others."""
        ...

    def content(self, sha256: str) -> str:
        """The path of a captured file in the pilot's cache, with the right content; fetched once."""
        ...

    def cached(self, name: str, sha256: str) -> str | None:
        """The path of a file of the site's cache in the pilot's own, fetched once; None if the service has no such file."""
        ...

    def cached_here(self, name: str) -> str | None:
        """The same, if it was fetched before."""
        ...

    def file(self, job: str, name: str) -> str | None:
        """The path of a copy of a file of the job's tree, which the caller may move away; None if it does not exist."""
        ...

    def stage(self, ref: Mapping[str, object], number: int, path: str) -> None:
        """Upload a file as the output with this number in the attempt's manifest."""
        ...


def bring_captured(fetch: Fetch, inputs: Sequence[Mapping[str, Any]], *, sees_folder: Callable[[], bool]) -> None:
    """Fetch the captured files among some inputs together, if there are several. Raises `Failure`."""
    captured = [each for each in inputs if each.get("content") or (each.get("stored") and not sees_folder())]
    sizes = {each["sha256"]: each.get("size_bytes", 0) for each in captured}
    if len(sizes) <= 1:
        return
    try:
        fetch.bring(sizes)
    except OSError as error:
        if error.errno in FULL:
            raise from_system(error, doing="fetching the captured files") from error
        reason = "credential-expired" if isinstance(error, TokenEnded) else "platform-failure"
        raise Failure(reason, f"cannot get {len(sizes):,} captured files: {error}") from error


class DamagedFiles:
    """Files in the cache of the site that have another content than they should; safe for threads."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str, path: str) -> None:
        """Note a damaged file, and remove it, so that no other package gets it."""
        with contextlib.suppress(OSError):  # the service removes it as well
            os.unlink(path)
        self._names[name] = None

    def untold(self) -> list[str]:
        """Those that the service does not know of."""
        return list(self._names)

    def told(self, names: Iterable[str]) -> None:
        """The service knows of some."""
        for name in names:
            self._names.pop(name, None)


class Workplace:
    """The shared part of a pilot's slots. `close` it when no attempt runs any more."""

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
        """Take the locations and settings; files and threads are made when an attempt needs them.

        `scratch` is a folder of this pilot alone. `keep` is for kept folders of failed attempts (default: beside
        `scratch`), `spool` for the events of each attempt (default: not delivered). A `sole` process runs only
        attempts: it adopts their left-over processes and ends them. `connect` makes the pilot's own link, for
        undelivered events. `environment` is the base for applications (default: `os.environ`).
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
        quick_way_works()  # tried now, while no other child runs that could be confused with it
        self._null = -1
        self._lock = threading.Lock()
        self.known = KnownFiles()
        self.undeclared = UndeclaredFiles()
        self.versions = SoftwareVersions()
        self.turns = threading.Lock()
        self.visibility = FolderVisibility()
        self.damaged = DamagedFiles()
        self._shown: deque[Callable[[], None]] = deque()  # remove what attempts that succeeded said of their files
        self._software: UnpackedSoftware | None = None
        self.kernel_kills = KernelKills()
        self.cleanup = ProcessCleanup(sole=sole, grace_seconds=grace_seconds)
        self.engines = Engines(self.environment.get("PATH", os.defpath))
        self.watcher = Watcher(
            self.cleanup, look_seconds=look_seconds, grace_seconds=grace_seconds, log_bytes_max=log_bytes_max
        )

    def null(self) -> int:
        """A descriptor of /dev/null for the input of commands."""
        if self._null < 0:
            with self._lock:
                if self._null < 0:
                    self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._null

    def software(self) -> UnpackedSoftware:
        """The archives of software that were unpacked here."""
        from pilotage.agent.attempt.archives import UnpackedSoftware  # few jobs have such

        with self._lock:
            if self._software is None:
                self._software = UnpackedSoftware(f"{self.scratch}/software")
            return self._software

    def keep_shown(self, remove: Callable[[], None]) -> None:
        """Keep what an attempt said of its files, for readers that have not begun yet; `remove` is called later."""
        self._shown.append(remove)
        while len(self._shown) > SHOWN_MAX:
            self._shown.popleft()()

    def close(self) -> None:
        """End the watching thread and remove the scratch folder."""
        for remove in self._shown:
            remove()
        self.left_events.close()
        self.watcher.close()
        self.cleanup.close()
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
        remove_tree(self.scratch)
