"""The outputs of earlier jobs, from the book of a folder: for stages that iterate over them."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pilotage.app.service.session import nearest_address
from pilotage.client.errors import ServerRefused
from pilotage.language.folder import CachedFile, EarlierOutputs
from pilotage.language.text.patterns import matches
from pilotage.model.errors import PilotageError
from pilotage.model.states import FINAL_NAMES

if TYPE_CHECKING:
    from pilotage.client.server import Server

_JOBS_AT_ONCE = 1000
_FILES_AT_ONCE = 1000


class BookedJobs:
    """Jobs in the book of a folder, whether its service runs or not; starts nothing."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of the document; the book is opened on the first query."""
        self._folder = folder
        self._known: dict[str, EarlierOutputs | None] = {}  # by the given name: the job, and all its outputs

    def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
        """The outputs of a job that match a pattern; raises `PilotageError` if they cannot be used."""
        if job not in self._known:
            self._known[job] = self._ask(job)
        found = self._known[job]
        if found is None:
            return None
        return found._replace(names=sorted(name for name in found.names if matches(pattern, name)))

    def cached_files(self, site: str) -> list[CachedFile] | None:
        """The files in the cache of a site; None if it has no such site."""
        from pilotage.app.service.offline import server_or_book

        address = nearest_address(self._folder)
        if address is None:
            return None
        with server_or_book(address) as server:
            return _cached_files(server, site)

    def _ask(self, job: str) -> EarlierOutputs | None:
        from pilotage.app.service.offline import server_or_book
        from pilotage.client.jobs import Jobs

        address = nearest_address(self._folder)
        if address is None:
            return None
        with server_or_book(address) as server:
            found = _job(server, job)
            if found is None:
                return None
            files = list(Jobs(server).outputs(found["id"]))
        names = [_in_tree(folder, file.name, job=found["id"], tree=self._folder) for folder, file in files]
        begins = _in_tree(files[0][0], "", job=found["id"], tree=self._folder) if files else ""
        return EarlierOutputs(found["id"], names, begins.rstrip("/"))


def _job(server: Server, word: str) -> dict[str, Any] | None:
    """The job of an id, which must be over; or the newest finished job of a name."""
    from pilotage.client.server import path_of

    try:
        found: dict[str, Any] = server.get(path_of("jobs", word))
    except ServerRefused as refused:
        if refused.code != "unknown_job":
            raise
    else:
        if found["state"] not in FINAL_NAMES:
            raise PilotageError(f"the job {word} is not over: {found['state']}", next_step="wait for its end")
        return found
    finished: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query = f"name={json.dumps(word, ensure_ascii=False)} and state in (DONE, CLEARED)"
        page = server.get(path_of("jobs"), {"query": query, "limit": _JOBS_AT_ONCE, "cursor": cursor})
        finished += [each for each in page["jobs"] if each["place"] != "purged"]
        cursor = page["next"]
        if cursor is None:
            return max(finished, key=lambda each: float(each["submitted_at"] or 0.0), default=None)


def _cached_files(server: Server, site: str) -> list[CachedFile] | None:
    """All files that are in the cache of a site, from all pages of the answer."""
    from pilotage.client.server import path_of

    found: list[CachedFile] = []
    cursor: str | None = None
    while True:
        try:
            page = server.get(path_of("files"), {"site": site, "limit": _FILES_AT_ONCE, "cursor": cursor})
        except ServerRefused as refused:
            if refused.code != "unknown_site":
                raise
            return None
        present = (each for each in page["files"] if each["state"] == "present")
        found += [CachedFile(each["locator"], int(each["size_bytes"] or 0)) for each in present]
        cursor = page["next"]
        if cursor is None:
            return found


def _in_tree(folder: str, name: str, *, job: str, tree: Path) -> str:
    """The name of another job's file, relative to the document's tree."""
    root = PurePath(os.path.realpath(tree))
    if not PurePath(folder).is_relative_to(root):
        raise PilotageError(
            f"the outputs of the job {job} are in {folder}, and not below the folder of this document",
            next_step="put the document there, or into a folder above",
        )
    inner = PurePath(folder).relative_to(root).as_posix()
    return name if inner == "." else f"{inner}/{name}"
