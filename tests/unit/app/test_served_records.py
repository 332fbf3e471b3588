"""Records are uploaded as a whole, or the upload fails."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import pytest

from pilotage.app.provenance.served_records import ServedRecords
from pilotage.client import Server
from pilotage.client.errors import ServerError
from pilotage.model.records import RECORD_VERSION, JobRecord, RecordPart

CONTENT = b"a life log"
PART = RecordPart(
    kind="life-log", name="events-1.jsonl", sha256=hashlib.sha256(CONTENT).hexdigest(), size_bytes=len(CONTENT)
)
RECORD = JobRecord(
    version=RECORD_VERSION, job="j", revision=1, owner="ann", name="n", state="DONE", made_at=1.0, parts=(PART,)
)


class Answering:
    """A server that gives answers one after the other."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)

    def upload(self, path: str, content: bytes, *, method: str) -> dict[str, Any]:
        return self.answers.pop(0)


def uploaded(*answers: dict[str, Any]) -> int:
    server = Answering(*answers)
    sent = ServedRecords(cast("Server", server)).upload(RECORD, lambda _: CONTENT)
    assert server.answers == []
    return sent


def test_an_upload_ends_with_a_commit() -> None:
    missing = [PART.sha256]
    assert uploaded({"state": "registered", "missing": missing}, {"state": "committed", "missing": []}) == 1
    assert uploaded({"state": "committed", "missing": []}) == 0


def test_an_upload_that_was_not_committed_is_an_error() -> None:
    missing = [PART.sha256]
    with pytest.raises(ServerError, match="parts of it are missing there"):
        uploaded({"state": "registered", "missing": missing}, {"state": "uploading", "missing": ["0" * 64]})
