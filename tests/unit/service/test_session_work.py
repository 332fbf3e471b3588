"""Whether the service of a folder has other work: what decides if it is stopped together with a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.app.service.session import Session
from pilotage.service.announcement import Announcement, announced
from tests.kit.canned_server import CannedServer, canned_server


@pytest.fixture
def server() -> Iterator[CannedServer]:
    with canned_server() as made:
        yield made


@pytest.fixture
def session(tmp_path: Path, server: CannedServer) -> Iterator[Session]:
    """The session of a run in a folder whose service was there before."""
    state = tmp_path / ".pilotage"
    state.mkdir(mode=0o700)
    (state / "token").write_text("secret")
    (state / "token").chmod(0o600)
    announcement = Announcement(
        url=server.url, pid=os.getpid(), token_file=str(state / "token"), version="1", started_at=1.0, socket="a.sock"
    )
    with announced(state, announcement):
        made = Session(tmp_path, environment={})
        assert (made.state, made.was_there) == (state, True)
        yield made


@pytest.mark.parametrize(
    "jobs, other", [([], False), (["mine"], False), (["mine", "theirs"], True), (["theirs"], True)]
)
def test_a_job_that_is_not_over_and_not_this_one_is_other_work(
    session: Session, server: CannedServer, jobs: list[str], *, other: bool
) -> None:
    server.answer("/v1/jobs", {"jobs": [{"id": each, "held": False} for each in jobs], "next": None})
    assert session.has_other_work("mine") == other
    asked = server.asked[-1]
    assert all(state in asked.parameters["query"] for state in ("SUBMITTED", "WAITING", "RUNNING"))
    assert not any(state in asked.parameters["query"] for state in ("DONE", "ABORTED", "CANCELLED", "CLEARED"))


def test_without_a_job_of_ones_own_any_is_other_work(session: Session, server: CannedServer) -> None:
    server.answer("/v1/jobs", {"jobs": [{"id": "mine", "held": False}], "next": None})
    assert session.has_other_work()


@pytest.mark.parametrize("running", [0, 2])
def test_a_held_job_is_work_only_while_something_of_it_runs(
    session: Session, server: CannedServer, running: int
) -> None:
    server.answer("/v1/jobs", {"jobs": [{"id": "theirs", "held": True}], "next": None})
    server.answer("/v1/jobs/theirs/progress", {"job": "theirs", "state": "RUNNING", "held": True, "running": running})
    assert session.has_other_work("mine") == bool(running)


def test_who_lives_and_does_not_answer_may_have_work_unless_it_was_started_for_this_run(
    session: Session, server: CannedServer
) -> None:
    server.refuse("/v1/jobs", 500, "internal", "it failed")
    assert session.has_other_work("mine")
    session.started = True
    assert not session.has_other_work("mine")
