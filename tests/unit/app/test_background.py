"""Why a service in the background did not start is told in its own words, or by what ended it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pilotage.adapters.settings.settings_files import load_settings
from pilotage.agent.processes import started_at
from pilotage.app.service import background
from pilotage.app.service.background import (
    LOCK_FILE,
    LOG_FILE,
    KilledAtStart,
    NotStarted,
    NotStopped,
    RestartLimit,
    StartingService,
    end_agents,
    is_held,
    stop_service,
)
from pilotage.model.settings.settings import JournalSettings, Settings
from pilotage.service.announcement import Announcement, Ended, note_end


def begun(folder: Path, script: str, *, said: str = "") -> StartingService:
    """A process that stands for a service whose log has something of before."""
    log = folder / LOG_FILE
    log.write_text(said, "utf-8")
    child = subprocess.Popen(["sh", "-c", script], cwd=folder)
    return StartingService(child, folder=folder, log=log, log_bytes=len(said.encode()))


@pytest.mark.parametrize(
    "script, kind, message",
    [
        ("exit 3", NotStarted, "the service did not start: it ended with exit status 3, and said nothing"),
        ("echo 'the port is taken' >> service.log; exit 2", NotStarted, "the service did not start: the port is taken"),
        ("echo '2026-01-02 03:04:05,678 ERROR pilotage.service: no room' >> service.log; exit 2", NotStarted, "the service did not start: no room"),
        ("kill -KILL $$", KilledAtStart, "the service was killed by SIGKILL before it answered"),
        ("echo 'out of memory' >> service.log; kill -KILL $$", NotStarted, "the service did not start: out of memory"),
    ],
)  # fmt: skip
def test_a_service_that_ended_before_it_answered_is_told_of(
    tmp_path: Path, script: str, kind: type[NotStarted], message: str
) -> None:
    with pytest.raises(NotStarted) as refused:
        begun(tmp_path, script, said="what another one said\n").wait()
    assert type(refused.value) is kind
    assert message in str(refused.value)
    assert "another one" not in str(refused.value)
    assert str(tmp_path / LOG_FILE) in refused.value.next_step


def test_a_service_that_does_not_answer_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "START_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe")  # nobody ever writes into it
    late = begun(tmp_path, "exec cat pipe")
    with pytest.raises(NotStarted, match="did not answer within"):
        late.wait()
    assert late._child.returncode is not None


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert background._signal_name(9) == "SIGKILL"
    assert background._signal_name(1000) == "signal 1000"


def test_a_service_that_ends_by_itself_time_and_again_is_not_started_once_more(tmp_path: Path) -> None:
    broken = RestartLimit()
    broken.refuse(tmp_path)  # nobody said anything of an end
    note_end(tmp_path, Ended(at=time.time(), reason="its disk is gone"))
    for _ in range(3):
        broken.refuse(tmp_path)
    with pytest.raises(NotStarted, match="ended by itself 4 times: its disk is gone"):
        broken.refuse(tmp_path)


def test_where_no_service_runs_none_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(environment={"XDG_CONFIG_DIRS": "/nowhere"}, folder=tmp_path, flags={})
    for upward in (False, True):
        with pytest.raises(NotStopped, match="no service runs here"):
            stop_service(settings, upward=upward)


def test_a_service_has_ended_only_when_its_book_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(journal=JournalSettings(url=f"sqlite:{tmp_path}"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child, (tmp_path / LOCK_FILE).open("wb") as book:
        its = Announcement(url="http://here", pid=child.pid, token_file="", version="", started_at=0.0)
        seen = iter([its])  # and nobody announces it any more
        monkeypatch.setattr(background, "find_service", lambda _folder: next(seen, None))
        fcntl.flock(book, fcntl.LOCK_EX)
        with pytest.raises(NotStopped, match="did not end within"):
            stop_service(settings, patience_seconds=0.05)
        assert child.wait() == -signal.SIGTERM


def test_only_the_process_that_a_record_is_about_is_ended_and_only_while_its_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "AGENTS_SECONDS", -1.0)
    record = tmp_path / "pilots" / "local-1.json"
    assert not is_held(record)
    record.parent.mkdir()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        own = {"pid": child.pid, "started": started_at(child.pid)}
        record.write_text(json.dumps(own), "utf-8")
        assert not is_held(record)
        assert end_agents(tmp_path)
        with record.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            assert is_held(record)
            record.write_text(json.dumps(own | {"started": "earlier"}), "utf-8")
            assert not end_agents(tmp_path)
            assert child.poll() is None
            record.write_text(json.dumps(own), "utf-8")
            assert not end_agents(tmp_path)
            assert child.wait() == -signal.SIGTERM
