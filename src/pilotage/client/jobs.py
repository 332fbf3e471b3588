"""Jobs at a server that runs them: submitted, watched, steered, and their results taken over."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from pilotage.client.server import Parameters, Server, path_of
from pilotage.model.answers import (
    CleanRequest,
    Explanation,
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

Told = TypeVar("Told")


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What the programs of one attempt wrote to one stream; in the middle `dropped_bytes` are missing."""

    attempt: int
    stream: str
    head: str
    tail: str = ""
    dropped_bytes: int = 0
    final: bool = True

    @property
    def text(self) -> str:
        """As one text; a line says where something is missing."""
        if not self.dropped_bytes:
            return self.head + self.tail
        return f"{self.head}\n[… {self.dropped_bytes:,} bytes are missing here …]\n{self.tail}"


class Jobs:
    """The jobs of one server. What changes something is sent again where a connection breaks, and done once."""

    def __init__(self, server: Server) -> None:
        """Ask a server, which stays the caller's to close."""
        self._server = server

    def submit(self, submission: Submission) -> SubmissionAnswer:
        """Have a job run; raises `DocumentError` where its document has faults."""
        return _read(self._server.do(path_of("jobs"), submission, key=_key()), SubmissionAnswer)

    def plan(self, submission: Submission) -> RunPlan:
        """What running a job would come to; nothing is kept."""
        return _read(self._server.post(path_of("plan"), submission), RunPlan)

    def clean(self, request: CleanRequest) -> ObsoleteFiles:
        """What a document no longer makes; removed is what the request names of it."""
        return _read(self._server.post(path_of("clean"), request), ObsoleteFiles)

    def put_content(self, content: bytes) -> str:
        """Have bytes kept that a job brings along; their sha256."""
        sha256: str = self._server.upload(path_of("content"), content)["sha256"]
        return sha256

    def operate(self, operation: AnyOperation) -> Accepted:
        """Kill, hold, release, restart … a job or a part of it."""
        body: dict[str, Any] = msgspec.to_builtins(operation)
        job = body.pop("job")
        return _read(self._server.do(path_of("jobs", job, "operations"), body, key=_key()), Accepted)

    def operate_on(self, wanted: OperationOn) -> OperatedOn:
        """One operation on everything that a query finds."""
        return _read(self._server.do(path_of("operations"), wanted, key=_key()), OperatedOn)

    def progress(self, job: str) -> Progress:
        """How far a job is."""
        return _read(self._server.get(path_of("jobs", job, "progress")), Progress)

    def explain(self, job: str, package: str) -> Explanation:
        """Why a package is where it is."""
        return _read(self._server.get(path_of("jobs", job, "packages", package, "explain")), Explanation)

    def logs(self, job: str, package: str, *, attempt: int | None = None) -> list[Log]:
        """What the programs of a package wrote, attempt by attempt."""
        told = self._server.get(path_of("jobs", job, "packages", package, "logs"), {"attempt": attempt})
        return _read(told["logs"], list[Log])

    def log_text(self, place: LogPlace) -> str:
        """The text of a log that an output object names."""
        return self._server.text(place.url)

    def output(self, job: str, package: str) -> PackageOutput:
        """GASW's output object of a package."""
        return _read(self._server.get(path_of("jobs", job, "packages", package, "outputs")), PackageOutput)

    def outputs(self, job: str) -> Iterator[tuple[str, PublishedFile]]:
        """The files of a job's results, each with the folder that its name is in."""
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
        """Record that the outputs of a job were taken over."""
        self._server.do(path_of("jobs", job, "clear"), None, key=_key())

    def job(self, job: str) -> Mapping[str, Any]:
        """A job as the book has it."""
        found: Mapping[str, Any] = self._server.get(path_of("jobs", job))
        return found

    def unfinished(self) -> Iterator[Mapping[str, Any]]:
        """The jobs that are not over, as the book has them."""
        cursor: str | None = None
        while True:
            page = self._server.get(path_of("jobs"), {"query": UNFINISHED, "limit": AT_ONCE, "cursor": cursor})
            yield from page["jobs"]
            cursor = page["next"]
            if cursor is None:
                return

    def held_for(self, job: str) -> str:
        """Why a job was held last, as whoever held it said; nothing where it was released since."""
        return self._last_message(job, "type in (Held, Released)")

    def killed_for(self, job: str) -> str:
        """Why a job was killed, as whoever did it said."""
        return self._last_message(job, "type = CancelAccepted")

    def _last_message(self, job: str, query: str) -> str:
        """What the last event of the job itself says to people, of those that a query finds."""
        why, after, more = "", 0, True
        while more:
            asked: Parameters = {"query": query, "after": after, "limit": AT_ONCE}
            page = self._server.get(path_of("jobs", job, "events"), asked)
            for event in page["events"]:
                if event["package"] is None:
                    why = event["data"].get("message", "")
            after, more = page["after"], page["more"]
        return why


def _read(told: Any, kind: type[Told]) -> Told:
    return msgspec.convert(told, kind, strict=False)


def _key() -> str:
    return secrets.token_hex(16)
