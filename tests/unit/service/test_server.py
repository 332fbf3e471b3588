"""The end of a service as a process: in good order whatever cannot be written any more, and watched to the last."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.settings.tokens import StoredKeys, ensure_token
from pilotage.adapters.sites.install import site_prefix
from pilotage.model.jobs.submission import RunPlan
from pilotage.model.settings.settings import ServiceSettings, Settings
from pilotage.ports import Journal
from pilotage.service import server
from pilotage.service.announcement import left_behind
from pilotage.service.http import watchdogs
from pilotage.service.http import watchdogs as idling
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.listener import Listener, PlainHttp
from tests.kit.running_jobs import FakeJobs
from tests.kit.served_book import WallClock, access_of

LEFT = "site lyon: 2 batch jobs are not cancelled"


def serve(
    folder: Path, jobs: FakeJobs, journal: Callable[[Path], Journal] = SqliteJournal, **service: Any
) -> int | None:
    """Serve until the listener ends, with a stand-in for what runs jobs."""

    def make(journal: Journal, **_: Any) -> JobBackend:
        return JobBackend(jobs, journal=journal, plan=lambda _: RunPlan(job="p", packages=1, would_run=1, there=0))

    return server.serve(
        settings=Settings(service=ServiceSettings(port=0, **service)),
        state_folder=folder,
        open_journal=lambda: journal(folder),
        access=access_of(),
        token_file=folder / "token",
        clock=WallClock(),
        make_backend=make,
        idle_seconds=1000.0,
    )


@pytest.fixture(autouse=True)
def _ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listener, "listen", lambda self: None)


def test_what_is_left_at_sites_is_noted(tmp_path: Path) -> None:
    jobs = FakeJobs()
    jobs.left_behind = [LEFT]
    serve(tmp_path, jobs)
    assert left_behind(tmp_path) == (LEFT,)


def test_a_full_disk_does_not_make_a_failure_of_a_good_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(server, "note_end", refuse)
    jobs = FakeJobs()
    jobs.left_behind = [LEFT]
    assert serve(tmp_path, jobs) is None
    assert LEFT in caplog.text
    assert "No space left" in caplog.text


def test_who_watches_for_a_service_that_hangs_stays_until_all_else_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    class Book(SqliteJournal):
        def close(self) -> None:
            super().close()
            ended.append("book")

    monkeypatch.setattr(watchdogs, "end_when_broken", lambda *_, **__: lambda: ended.append("watch"))
    monkeypatch.setattr(idling, "end_when_idle", lambda *_, **__: lambda: ended.append("idling"))
    serve(tmp_path, FakeJobs(), Book)
    assert ended == ["idling", "book", "watch"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_plain_http_is_not_spoken_where_other_computers_hear_it(tmp_path: Path, host: str) -> None:
    with pytest.raises(PlainHttp, match=r"plain HTTP[\s\S]*pilotage tls init[\s\S]*service\.plain_http"):
        serve(tmp_path, FakeJobs(), host=host)
    serve(tmp_path, FakeJobs(), host=host, plain_http="anywhere")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_on_the_loopback_it_is(tmp_path: Path, host: str) -> None:
    serve(tmp_path, FakeJobs(), host=host)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o711, 0o702, 0o740])
def test_a_state_folder_that_others_reach_into_is_refused_with_its_cure(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "my state"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(server.OpenToOthers, match=rf"mode 700, got {mode:o}\n.*chmod 700 '.*/my state'"):
        serve(folder, FakeJobs())
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)
    serve(folder, FakeJobs())


def test_whatever_is_made_first_in_a_state_folder_leaves_it_closed(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("keys", "token", "book", "prefix")]
    StoredKeys(folders[0]).package_key()
    ensure_token(folders[1])
    SqliteJournal(folders[2]).close()
    site_prefix(folders[3], "lyon")
    for folder in folders:
        serve(folder, FakeJobs())
