"""A client of a service whose runner is a fake, for tests of its HTTP side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from litestar.testing import TestClient

from pilotage.reading.access import OPERATE, READ, SUBMIT, WRITE, Principal, local_principal
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import Batch
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.running_jobs import FakeJobs, origin_of, running_services
from tests.kit.served_book import TOKEN, event, registered

BOB = Principal(user="bob", scopes=frozenset({READ, WRITE, SUBMIT, OPERATE}))
PRINCIPALS = {
    TOKEN: local_principal("ann"),
    "of-bob": BOB,
    "reads-only": Principal(user="eve", scopes=frozenset({READ})),
}
SHA256 = "ab" * 32

Client = TestClient[FrameworkAnswers]


class ServiceClient:
    """A client of a service that runs jobs, with access to its parts."""

    def __init__(self, client: Client, services: Services, jobs: FakeJobs, folder: Path) -> None:
        self.http, self.services, self.jobs, self.folder = client, services, jobs, folder

    def log(self, *events: dict[str, Any]) -> None:
        """Store events as the engine would, bypassing HTTP."""
        checked, refused, _ = self.services.codec.read_batch(msgspec.json.encode({"events": events}))
        assert not refused
        self.services.writer.submit(Batch(checked)).result(20)

    def register(self, n: int, job: str, *, owner: str = "ann") -> None:
        """Register a job that runs here: two lines of two packages."""
        told = registered(n, job, owner=owner)
        told["data"] |= {"definition": SHA256, "lists": {"origin": origin_of(self.services.journal, self.folder)}}
        self.log(told, event(n + 1, "JobAccepted", job=job))

    def post(self, path: str, body: Any, *, token: str = TOKEN, key: str = "") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} | ({"Idempotency-Key": key} if key else {})
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        answer = self.http.post(path, content=content, headers=headers)
        return answer.status_code, answer.json()

    def get(self, path: str, *, token: str = TOKEN) -> tuple[int, Any]:
        answer = self.http.get(path, headers={"Authorization": f"Bearer {token}"})
        told = answer.json() if "json" in answer.headers["content-type"] else answer.text
        return answer.status_code, told


@contextmanager
def service_client_in(folder: Path) -> Iterator[ServiceClient]:
    """A service, as long as the block runs."""
    with (
        running_services(folder / "state", principals=PRINCIPALS) as (services, jobs),
        TestClient(FrameworkAnswers(services), raise_server_exceptions=False) as client,
    ):
        yield ServiceClient(client, services, jobs, folder)


def code_of(answer: tuple[int, Any]) -> tuple[int, str]:
    """The status and the word of an error."""
    return answer[0], answer[1]["error"]["code"]


def a_bad_day(service: ServiceClient) -> None:
    """One package done after a failure, one given up, one that waited for it in vain, and one that runs again."""
    service.register(1, "j")
    first: dict[str, Any] = {"job": "j", "package": "1.1.1"}
    second: dict[str, Any] = {"job": "j", "package": "1.2.1"}
    failed = {
        "exit_code": "EXECUTION_FAILED", "exit_message": "it was killed\nlast words", "reason": "out-of-memory",
        "signal": 9, "peak_memory_bytes": 2**31, "node": "wn1",
    }  # fmt: skip
    manifest = [{"name": "out/a.dat", "size_bytes": 3, "sha256": SHA256}]
    service.log(
        event(3, "AttemptCreated", {"site": "local", "lease_seconds": 60}, attempt=1, **first),
        event(4, "AttemptFinished", failed, attempt=1, **first),
        event(5, "AttemptCreated", {"site": "local", "lease_seconds": 60, "replaces": 1}, attempt=2, **first),
        event(6, "AttemptFinished", {"exit_code": "SUCCESS", "manifest": manifest}, attempt=2, **first),
        event(7, "CommitGranted", attempt=2, **first),
        event(8, "AttemptCreated", {"site": "local", "lease_seconds": 60}, attempt=1, **second),
        event(9, "AttemptFinished", failed, attempt=1, **second),
        event(10, "Aborted", {"cause": "retries-exhausted", "message": "3 of 3"}, **second),
        event(11, "Aborted", {"cause": "upstream", "upstream": "1.2.1"}, job="j", package="1.2.2"),
    )
