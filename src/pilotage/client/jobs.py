"""Jobs at a server: submit, watch and steer them, and fetch their results."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from pilotage.client.server import Parameters, Server, path_of
from pilotage.model.answers import (
    CleanRequest,
    Explanation,
    HealingHistory,
    LogPlace,
    ObsoleteFiles,
    OutputsPage,
    PackageOutput,
    Progress,
    PublishedFile,
)
from pilotage.model.exchange.operations import Accepted, AnyOperation, OperatedOn, OperationOn
from pilotage.model.jobs.submission import RunPlan, Submission, SubmissionAnswer

AT_ONCE = 1000
UNFINISHED = "state in (SUBMITTED, WAITING, READY, SCHEDULED, RUNNING)"
"""The query for jobs that are not over."""

Result = TypeVar("Result")


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt printed to one stream; `dropped_bytes` are missing in the middle."""

    attempt: int
    stream: str
    head: str
    tail: str
    dropped_bytes: int
    final: bool

    @property
    def text(self) -> str:
        """The log as one text, with a line where bytes are missing."""
        if not self.dropped_bytes:
            return self.head + self.tail
        return f"{self.head}\n[… {self.dropped_bytes:,} bytes are missing here …]\n{self.tail}"


class Jobs:
    """The jobs of one server. A change is sent again if the connection breaks, and carried out once."""

    def __init__(self, server: Server) -> None:
        """Use a server, which the caller closes."""
        self._server = server

    def submit(self, submission: Submission) -> SubmissionAnswer:
        """Submit a job; raises `DocumentError` if its document has faults."""
        return _read(self._server.do(path_of("jobs"), submission, key=_key()), SubmissionAnswer)

    def plan(self, submission: Submission) -> RunPlan:
        """What running a job would do; stores nothing."""
        return _read(self._server.post(path_of("plan"), submission), RunPlan)

    def clean(self, request: CleanRequest) -> ObsoleteFiles:
        """The files that a document no longer makes; those the request names are removed."""
        return _read(self._server.post(path_of("clean"), request), ObsoleteFiles)

    def operate(self, operation: AnyOperation) -> Accepted:
        """Kill, hold, release, restart … a job or a part of it."""
        body: dict[str, Any] = msgspec.to_builtins(operation)
        job = body.pop("job")
        return _read(self._server.do(path_of("jobs", job, "operations"), body, key=_key()), Accepted)

    def operate_on(self, wanted: OperationOn) -> OperatedOn:
        """Apply one operation to everything that a query finds."""
        return _read(self._server.do(path_of("operations"), wanted, key=_key()), OperatedOn)

    def progress(self, job: str) -> Progress:
        """How far a job is."""
        return _read(self._server.get(path_of("jobs", job, "progress")), Progress)

    def explain(self, job: str, package: str) -> Explanation:
        """Why a package is in its state."""
        return _read(self._server.get(path_of("jobs", job, "packages", package, "explain")), Explanation)

    def healing(self, job: str, *, limit: int | None = None) -> HealingHistory:
        """What healing saw in a job and did about it: the last decisions, or all; the newest last."""
        history = self._healing(job, before=0, limit=limit)
        while history.more and (limit is None or len(history.decisions) < limit):
            left = None if limit is None else limit - len(history.decisions)
            earlier = self._healing(job, before=history.before, limit=left)
            decisions = (*earlier.decisions, *history.decisions)
            history = msgspec.structs.replace(
                history, decisions=decisions, before=earlier.before, more=earlier.more and bool(earlier.decisions)
            )
        return history

    def _healing(self, job: str, *, before: int, limit: int | None) -> HealingHistory:
        size = AT_ONCE if limit is None else min(limit, AT_ONCE)
        asked: Parameters = {"before": before or None, "limit": size}
        return _read(self._server.get(path_of("jobs", job, "healing"), asked), HealingHistory)

    def logs(self, job: str, package: str, *, attempt: int | None = None) -> list[Log]:
        """The logs of a package, attempt by attempt."""
        answer = self._server.get(path_of("jobs", job, "packages", package, "logs"), {"attempt": attempt})
        return _read(answer["logs"], list[Log])

    def log_text(self, place: LogPlace) -> str:
        """The text of a log that an output object refers to."""
        return self._server.text(place.url)

    def output(self, job: str, package: str) -> PackageOutput:
        """GASW's output object of a package."""
        return _read(self._server.get(path_of("jobs", job, "packages", package, "outputs")), PackageOutput)

    def outputs(self, job: str) -> Iterator[tuple[str, PublishedFile]]:
        """The output files of a job, each with the folder that its name is relative to."""
        cursor: str | None = None
        while True:
            asked: Parameters = {"cursor": cursor, "limit": AT_ONCE}
            page = _read(self._server.get(path_of("jobs", job, "outputs"), asked), OutputsPage)
            for file in page.files:
                yield page.folder, file
            cursor = page.next
            if cursor is None:
                return

    def clear(self, job: str) -> None:
        """Record that the outputs of a job were handed over."""
        self._server.do(path_of("jobs", job, "clear"), None, key=_key())

    def job(self, job: str) -> Mapping[str, Any]:
        """A job's record in the book."""
        found: Mapping[str, Any] = self._server.get(path_of("jobs", job))
        return found

    def unfinished(self) -> Iterator[Mapping[str, Any]]:
        """The unfinished jobs, as recorded in the book."""
        cursor: str | None = None
        while True:
            page = self._server.get(path_of("jobs"), {"query": UNFINISHED, "limit": AT_ONCE, "cursor": cursor})
            yield from page["jobs"]
            cursor = page["next"]
            if cursor is None:
                return

    def held_for(self, job: str) -> str:
        """The message with which a job was last held; empty if it was released since."""
        return self._last_message(job, "type in (Held, Released)")

    def killed_for(self, job: str) -> str:
        """The message with which a job was killed."""
        return self._last_message(job, "type = CancelAccepted")

    def _last_message(self, job: str, query: str) -> str:
        """The message of the last event about the job itself that matches a query."""
        why, after, more = "", 0, True
        while more:
            asked: Parameters = {"query": query, "after": after, "limit": AT_ONCE}
            page = self._server.get(path_of("jobs", job, "events"), asked)
            for event in page["events"]:
                if event["package"] is None:
                    why = event["data"].get("message", "")
            after, more = page["after"], page["more"]
        return why


def _read(data: Any, kind: type[Result]) -> Result:
    return msgspec.convert(data, kind)


def _key() -> str:
    return secrets.token_hex(16)
