"""A signal that comes between the submission of a job and its first progress is dealt with like any later one."""

from __future__ import annotations

import pytest

from pilotage.app.jobs import watch
from pilotage.cli.shared.job_run import HungUp, Terminated, follow_job
from pilotage.model.exit_codes import ExitCode


class Session:
    """A service that was started for this run, and what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def server(self, **_: float) -> object:
        raise AssertionError("nobody connects in this test")

    def is_followed_elsewhere(self, job: str) -> bool:
        return False

    def is_embedded(self) -> bool:
        return True

    def hold(self, job: str) -> None:
        self.asked.append(f"hold {job}")

    def is_shared(self, job: str) -> bool:
        return True

    def end_attempts(self, job: str) -> bool:
        self.asked.append(f"end attempts of {job}")
        return True


@pytest.mark.parametrize("came", [KeyboardInterrupt, Terminated])
def test_the_job_is_held_and_stopped(
    came: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session()
    monkeypatch.setattr(watch, "JobWatcher", _raising(came))

    code = follow_job("sweep-1", session, as_json=False)  # type: ignore[arg-type]

    assert code == ExitCode.STOPPED
    assert session.asked == ["hold sweep-1", "end attempts of sweep-1"]
    assert "stopped; the same command continues where it stopped" in capsys.readouterr().err


def test_a_closed_terminal_leaves_the_job_running(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    monkeypatch.setattr(watch, "JobWatcher", _raising(HungUp))

    assert follow_job("sweep-1", session, as_json=False) == ExitCode.STOPPED  # type: ignore[arg-type]
    assert session.asked == []


def _raising(came: type[BaseException]) -> object:
    def watcher(*_: object) -> object:
        raise came

    return watcher
