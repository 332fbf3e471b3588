"""Prepares `pilotage simulate`: the job and its plan, the sites, the world, and observations of earlier jobs."""

from __future__ import annotations

import gzip
import io
import lzma
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pilotage.app.documents.documents import examine
from pilotage.app.service.serve import engine_settings
from pilotage.app.sites.entries import file_here, known_sites
from pilotage.app.state_folder import local_user, settings_here
from pilotage.client import Server
from pilotage.client.server import path_of
from pilotage.model.errors import DocumentError, PilotageError
from pilotage.model.events.payloads import JobRegistered
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import Observed, SiteObserved, WorldFile
from pilotage.model.states import MADE_BEFORE, NOBODYS_FAULT

WORLD_BYTES_MAX = 32 * 2**20
LOCAL = "local"
_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz"}
_OWN_FAULTS = frozenset({"application-error", "failure-pattern", "missing-output", "segmentation-fault", "looping"})
"""A package that fails with one of these to the end would have failed anywhere."""
_NO_FAILURES = NOBODYS_FAULT | {MADE_BEFORE}
_LOSSES = {"unheard": "platform-failure", "pilot-killed": "platform-failure"}


class SimulatedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to simulate, and its sites."""

    name: str
    plan: JobPlan
    registered: JobRegistered
    sites: tuple[SiteEntry, ...]
    settings: EngineSettings = EngineSettings()  # as in a service of this folder
    notes: tuple[str, ...] = ()


def job_to_simulate(file: str, *, sites: str = "") -> SimulatedJob:
    """A document and its sites; raises `DocumentError` with all faults of either."""
    from pilotage.language import plan_of, shapes_of

    loaded = examine(file).job()
    plan = plan_of(loaded.expansion)
    notes = []
    if plan.late:
        listed = ", ".join(str(each.stage) for each in plan.late)
        notes.append(f"stage {listed} is left out: the number of its packages is known only when others have run")
        plan = msgspec.structs.replace(plan, late=(), late_waits={})
    if plan.hold:
        plan = msgspec.structs.replace(plan, hold=False)
    if not plan.count:
        raise PilotageError("has only late stages: there is nothing to simulate", subject=file)
    shapes = shapes_of(loaded.expansion)
    registered = JobRegistered(owner=local_user(), name=loaded.definition.job, stages=shapes)
    entries, written = sites_to_simulate(named=sites)
    if not written:
        notes.append("no sites are known: only this computer is simulated; name others with --sites FILE")
    elif not any(entry.name == LOCAL for entry in entries):
        notes.append("this computer is left out, though a service uses it: list it as `local` to include it")
    return SimulatedJob(
        name=loaded.definition.job,
        plan=plan,
        registered=registered,
        sites=entries,
        settings=engine_settings(settings_here()),
        notes=tuple(notes),
    )


class SitesToSimulate(NamedTuple):
    """The sites to simulate, and whether a file configures them."""

    entries: tuple[SiteEntry, ...]
    written: bool


def sites_to_simulate(*, named: str) -> SitesToSimulate:
    """The sites of a file, or of this folder's default file; without any, this computer as it is.

    The entry of this computer sets its number of slots, as for a service: one pilot has them all.
    """
    file = file_here(settings_here(), named=named)
    found = known_sites(file)
    if named and found.kept is None:
        raise PilotageError("there is no such file", subject=named)
    if found.entries:
        return SitesToSimulate(tuple(map(_as_served, found.entries)), written=True)
    if named:
        raise PilotageError("has no sites", subject=named)
    here = SiteEntry(name=LOCAL, kind="local", slots=len(os.sched_getaffinity(0)))
    return SitesToSimulate((_as_served(here),), written=False)


def _as_served(entry: SiteEntry) -> SiteEntry:
    """An entry with what a service adds: the name of this computer, and that it has one pilot."""
    pilots_max = 1 if entry.name == LOCAL else entry.pilots_max
    node_names = entry.node_names or ((os.uname().nodename,) if entry.kind == "local" else ())
    return msgspec.structs.replace(entry, pilots_max=pilots_max, node_names=node_names)


def world_in(data: bytes, *, file: str, sites: Sequence[SiteEntry]) -> WorldFile:
    """The world of a file; raises `DocumentError` with all its faults."""
    from pilotage.language.parsing.worlds import read_world

    if len(data) > WORLD_BYTES_MAX:
        raise PilotageError(f"has more than {WORLD_BYTES_MAX:,} bytes", subject=file)
    found, report = read_world(data, file=file, sites=[each.name for each in sites])
    if found is None:
        raise DocumentError(report.errors)
    return found


def world_text(world: WorldFile) -> str:
    """A world in its file format."""
    from pilotage.language.parsing.worlds import write_world

    return write_world(world)


@contextmanager
def trace_lines(file: str) -> Iterator[Iterator[str]]:
    """The lines of a trace, unpacked if compressed; raises `PilotageError` if it cannot be read."""
    try:
        with Path(file).open("rb") as raw:
            head = raw.read(6)
            raw.seek(0)
            packed = next((word for magic, word in _MAGIC.items() if head.startswith(magic)), "")
            opened: Any = raw
            if packed:
                opened = gzip.GzipFile(fileobj=raw) if packed == "gzip" else lzma.LZMAFile(raw)  # noqa: SIM115 # closed with its lines
            with io.TextIOWrapper(opened, encoding="utf-8", errors="replace", newline="") as lines:
                yield iter(lines)
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise PilotageError(f"it cannot be read: {reason.lower()}", subject=file) from None


# --- what was seen of earlier jobs ------------------------------------------------------------------------------------


def observe(server: Server, job: str, observed: Observed) -> None:
    """Add what the book has of a job (by id) to the observations."""
    activities = {each["id"]: each for each in _packages(server, job)}
    attempts = _Attempts(observed, activities)
    for event in _events(server, job):
        attempts.take(event)
    attempts.settle()
    _observe_pilots(server, observed, since=attempts.first_at, until=attempts.last_at)


class _Attempts:
    """The attempts of a job, from its events."""

    def __init__(self, observed: Observed, packages: dict[str, dict[str, Any]]) -> None:
        self._observed = observed
        self._packages = packages
        self._sites: dict[tuple[str, int], str] = {}
        self._failed: dict[tuple[str, int], str] = {}
        self._submitted_at: dict[tuple[str, int], float] = {}
        self._batch_jobs: dict[
            tuple[str, int], str | tuple[str, int]
        ] = {}  # the key of one that several share, or the attempt
        self._begun: set[str | tuple[str, int]] = set()  # batch jobs
        self.first_at = float("inf")
        self.last_at = float("-inf")

    def take(self, event: dict[str, Any]) -> None:
        self.first_at, self.last_at = min(self.first_at, event["time"]), max(self.last_at, event["time"])
        package, attempt, data = event.get("package"), event.get("attempt"), event["data"]
        if package is None or attempt is None:
            return
        key = (str(package), int(attempt))
        match event["type"]:
            case "AttemptCreated":
                self._sites[key] = data["site"]
                if data.get("pilot") is None and data.get("lease_seconds") is None:
                    self._submitted_at[key] = event["time"]  # in bound mode, it queues itself
                    self._batch_jobs[key] = data.get("group") or key
            case "AttemptStarted" if key in self._submitted_at and key in self._sites:
                queued_seconds = max(0.0, event["time"] - self._submitted_at.pop(key))
                if (batch_job := self._batch_jobs[key]) not in self._begun:  # else it waited for its turn, too
                    self._begun.add(batch_job)
                    self._site(self._sites[key]).queue_seconds.append(queued_seconds)
            case "AttemptLost":
                self._failed.setdefault(key, _LOSSES.get(data.get("reason"), data.get("reason") or "platform-failure"))
            case "AttemptFinished":
                self._finish(key, data)

    def settle(self) -> None:
        """Assign each failure to the package or the site, which is known once the package has ended."""
        for known in self._packages.values():
            if known["done_at"] is not None or known["aborted_at"] is not None:
                self._observed.packages[known["activity"]] = self._observed.packages.get(known["activity"], 0) + 1
        doomed: set[str] = set()
        for (package, attempt), reason in self._failed.items():
            of, site = self._packages.get(package), self._sites.get((package, attempt))
            if reason in _NO_FAILURES or of is None or site is None:
                continue
            if reason in _OWN_FAULTS and of["done_at"] is None:
                if of["aborted_at"] is not None:
                    doomed.add(package)
                continue
            there = self._site(site)
            there.attempts += 1
            there.failures[reason] = there.failures.get(reason, 0) + 1
        for name in doomed:
            activity = self._packages[name]["activity"]
            self._observed.doomed[activity] = self._observed.doomed.get(activity, 0) + 1

    def _finish(self, key: tuple[str, int], data: dict[str, Any]) -> None:
        reason, site = data.get("reason"), self._sites.get(key)
        if data["exit_code"] != "SUCCESS":
            if reason is not None:
                self._failed[key] = reason
            return
        self._failed.pop(key, None)  # it was lost, and came back
        if reason in _NO_FAILURES or site is None:
            return
        there, observed = self._site(site), self._observed
        there.attempts += 1
        activity = self._packages.get(key[0], {}).get("activity", "")
        for phase in data.get("phases", ()):
            match phase["phase"]:
                case "application":
                    observed.run_seconds.setdefault(activity, {}).setdefault(site, []).append(phase["seconds"])
                case "setup":
                    observed.setup_seconds.append(phase["seconds"])
                case "inputs":
                    observed.inputs_seconds.append(phase["seconds"])
                case "outputs":
                    observed.outputs_seconds.append(phase["seconds"])

    def _site(self, name: str) -> SiteObserved:
        return self._observed.sites.setdefault(name, SiteObserved())


def _observe_pilots(server: Server, observed: Observed, *, since: float, until: float) -> None:
    """The pilots requested while a job ran: how long they queued, and whether they started."""
    pilots = list(_pages(server, "/v1/pilots", "pilots", cursor="after"))
    asked = {each["pilot"]: each for each in pilots if each.get("requested_at") is not None}
    came: dict[str, float] = {}
    for each in pilots:
        request = each.get("request") or each["pilot"]
        if each.get("started_at") is not None:
            came[request] = min(each["started_at"], came.get(request, float("inf")))
    for key, request in asked.items():
        if not since <= request["requested_at"] <= until or not request.get("site"):
            continue
        if key not in came and request.get("ended_at") is None:
            continue  # it is still queued, for an unknown time
        there = observed.sites.setdefault(request["site"], SiteObserved())
        there.pilots += 1
        if key in came:
            there.queue_seconds.append(max(0.0, came[key] - request["requested_at"]))
        elif request.get("reason") not in ("cancelled", "not-needed"):
            there.dead_pilots += 1


def _packages(server: Server, job: str) -> Iterator[dict[str, Any]]:
    return _pages(server, path_of("jobs", job, "packages"), "packages", cursor="cursor")


def _events(server: Server, job: str) -> Iterator[dict[str, Any]]:
    after, more = 0, True
    while more:
        page = server.get(path_of("jobs", job, "events"), {"after": after, "limit": 1000})
        yield from page["events"]
        after, more = page["after"], page["more"]


def _pages(server: Server, path: str, name: str, *, cursor: str) -> Iterator[dict[str, Any]]:
    after: str | None = None
    while True:
        page = server.get(path, {cursor: after, "limit": 1000})
        yield from page[name]
        after = page.get("next")
        if not after:
            return
