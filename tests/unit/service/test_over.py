"""When nothing of a job will be run any more, and what is answered where the same is run already."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pilotage.model.exchange.operations import Refused, Release
from pilotage.service.errors import OperationRefused
from pilotage.service.jobs.publishing import is_over
from pilotage.service.jobs.runner import Runner


@pytest.mark.parametrize(
    "unfinished, late, cancelled, aborted, attempts, expected",
    [
        (0, 0, False, False, 0, True),
        (0, 0, False, False, 1, True),
        (1, 0, False, False, 0, False),
        (0, 1, False, False, 0, False),
        (1, 0, True, False, 0, True),
        (1, 0, False, True, 0, True),
        (0, 1, False, True, 0, True),
        (1, 0, True, False, 1, False),
        (1, 0, False, True, 1, False),
    ],
)
def test_a_job_is_over_when_all_is_finished_or_it_was_ended_and_nothing_runs(
    unfinished: int, late: int, cancelled: object, aborted: object, attempts: int, expected: object
) -> None:
    work = {1: SimpleNamespace(attempts=[]), 2: SimpleNamespace(attempts=[1] * attempts)}
    job = SimpleNamespace(unfinished=unfinished, late=late, cancelled=cancelled, aborted=aborted, work=work)
    assert is_over(cast("Any", job)) is expected


@pytest.mark.parametrize("held", ["held", "not held"])
def test_a_job_that_is_run_already_is_released_and_told_as_resumed(held: str) -> None:
    asked: list[object] = []

    def operate(operation: object) -> Future[None]:
        asked.append(operation)
        done: Future[None] = Future()
        if held == "held":
            done.set_result(None)
        else:
            done.set_exception(OperationRefused(Refused(code="not-held", message="it is not held")))
        return done

    journal = SimpleNamespace(job=lambda _job: None)  # of a job without packages that are held for their files
    runner = SimpleNamespace(
        _remake=lambda _job: 2, _driver=SimpleNamespace(operate=operate, ask=None), _journal=journal
    )
    prepared = SimpleNamespace(expansion=SimpleNamespace(wanted=5))
    answer = Runner._go_on(cast("Any", runner), "j1", cast("Any", prepared))
    assert (answer.job, answer.packages, answer.resumed, answer.remade) == ("j1", 5, True, 2)
    assert asked == [Release(job="j1")]
