"""Events that a program or a person logs: which epoch they belong to."""

from __future__ import annotations

import pytest

from pilotage.agent.delivery.producer import Subject, read_environment
from pilotage.client.send import compose

INSIDE = read_environment({
    "PILOTAGE_JOB": "j1", "PILOTAGE_PACKAGE": "1.1.1", "PILOTAGE_ATTEMPT": "2", "PILOTAGE_EPOCH": "4"
})  # fmt: skip


@pytest.mark.parametrize(
    "subject, given, epoch",
    [
        (Subject(None, None, None), None, 4),  # its own package
        (Subject("j2", "1.1.1", 1), None, 1),  # another: nothing is known about its epoch
        (Subject("j2", "1.1.1", 1), 3, 3),
    ],
)
def test_only_an_event_of_its_own_package_has_the_epoch_of_an_attempt(
    subject: Subject, given: int | None, epoch: int
) -> None:
    event = compose(
        "Noted", fields=(), data={"text": "x"}, subject=subject, environment=INSIDE, source="client", epoch=given
    )
    assert event.epoch == epoch
