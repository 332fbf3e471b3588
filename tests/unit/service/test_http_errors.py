from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pilotage.model.errors import PilotageError
from pilotage.ports import JournalBusy, JournalError, JournalFull, JournalUnavailable
from pilotage.reading.queries import UnknownJob
from pilotage.service.http.errors import STATUSES
from pilotage.service.http.framework import on_error


def answer(error: Exception) -> Any:
    request: Any = SimpleNamespace(scope={"method": "GET", "path": "/v1/jobs"})
    return on_error(request, error)


def every_subclass(kind: type[Exception]) -> Iterator[type[Exception]]:
    for each in kind.__subclasses__():
        yield each
        yield from every_subclass(each)


def test_narrower_errors_stand_before_wider_ones() -> None:
    kinds = list(STATUSES)
    for number, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:number]), kind


@pytest.mark.parametrize(
    "error, status", [(JournalFull("x"), 507), (JournalUnavailable("x"), 503), (JournalBusy("x"), 500)]
)
def test_a_fault_of_the_journal_keeps_its_words_to_the_log(
    error: JournalError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    error.subject = "postgresql://me:hunter2@db"
    response = answer(error)
    assert response.status_code == status
    assert "hunter2" not in repr(response.content)
    assert "hunter2" in caplog.text


def test_an_error_tells_what_was_expected_and_what_to_do_next() -> None:
    error = UnknownJob("no such job", subject="job x", expected="an id", got="x", next_step="list them")
    response = answer(error)
    assert response.status_code == 404
    assert response.content.error.message == "job x: no such job; expected an id, got x"
    assert response.content.error.hint == "list them"


def test_an_error_that_nobody_thought_of_is_internal(caplog: pytest.LogCaptureFixture) -> None:
    response = answer(PilotageError("hunter2"))
    assert response.status_code == 500
    assert "hunter2" not in repr(response.content)
    assert "hunter2" in caplog.text


def test_every_error_of_the_journal_that_can_be_tried_again_says_when() -> None:
    for kind in every_subclass(JournalError):
        response = answer(kind("x"))
        if kind("x").retryable:  # type: ignore[attr-defined]
            assert response.status_code in (503, 507), kind
            assert int(response.headers["Retry-After"]) > 0
