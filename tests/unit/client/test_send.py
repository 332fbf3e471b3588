"""Events that a program or a person logs: which epoch they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.agent.delivery.producer import Subject, read_environment
from pilotage.client.finding import Address
from pilotage.client.send import compose, log_events
from tests.kit.canned_server import canned_server

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


@pytest.mark.parametrize(
    "kind, deliver_seconds, asked",
    [
        ("Noted", 0.0, []),
        ("Noted", 1.0, ["/v1/position", "/v1/events", "/v1/events"]),
        ("Tagged", 1.0, ["/v1/position", "/v1/events"] * 2),
    ],
)
def test_the_position_of_the_book_is_learned_before_the_first_event_and_before_each_that_replaces_a_value(
    tmp_path: Path, kind: str, deliver_seconds: float, asked: list[str]
) -> None:
    data = {"Noted": {"text": "x"}, "Tagged": {"name": "x", "value": "y"}}[kind]
    event = compose(
        kind, fields=(), data=data, subject=Subject("j", None, None), environment=read_environment({}), source="client"
    )
    with canned_server() as server:
        server.answer("/v1/position", {"position": 7})
        server.answer("/v1/events", {"position": 8, "kept": 1, "repeated": 0, "parked": 0, "refused": []})
        for _ in range(2):
            log_events(
                [event],
                address=Address(url=server.url),
                source="client",
                spool=str(tmp_path),
                environment={},
                deliver_seconds=deliver_seconds,
            )
        assert [each.path for each in server.asked] == asked
