"""A service whose announcement is gone, or is another's, ends its agents and itself."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotage.service.http.watchdogs import EXIT_STATUS, OwnStateFolder, end_when_displaced

WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.02


class Left:
    """Notes who is told what instead of ending this process."""

    def __init__(self) -> None:
        self.dismissed: list[str] = []
        self.status: int | None = None
        self.event = threading.Event()

    def leave(self, status: int) -> None:
        self.status = status
        self.event.set()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "state" / "service.json"
    made.parent.mkdir()
    made.touch()
    return made


@pytest.fixture
def watched(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    monkeypatch.setattr("pilotage.service.http.watchdogs.end_children", lambda: None)
    left = Left()
    end = end_when_displaced(file, dismiss=left.dismissed.append, leave=left.leave, look_seconds=LOOK_SECONDS)
    yield left
    end()


def test_it_leaves_when_the_folder_was_removed(watched: Left, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.unlink()
    file.parent.rmdir()
    assert watched.event.wait(WAIT_SECONDS)
    assert (watched.status, watched.dismissed) == (EXIT_STATUS, ["the state folder of its service is gone"])
    assert f"{file} was removed" in caplog.text


def test_it_leaves_when_another_service_has_announced_itself(watched: Left, file: Path) -> None:
    other = file.with_name("other")
    other.touch()
    other.replace(file)
    assert watched.event.wait(WAIT_SECONDS)


def test_it_stays_as_long_as_the_file_is_the_same_whatever_is_written_into_it(watched: Left, file: Path) -> None:
    file.write_text("other words")
    assert not watched.event.wait(10 * LOOK_SECONDS)
    assert watched.dismissed == []


class Announced:
    """A folder with a book, whose announcement is written again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.book = file.with_name("book")
        self.book.touch()
        self.written = threading.Semaphore(0)
        self.looked_after = threading.Semaphore(0)
        self.left = Left()

    def announce(self) -> None:
        self.file.touch()
        self.written.release()

    def watch(self) -> Callable[[], None]:
        kept = OwnStateFolder(files=[self.book], announce=self.announce, look_after=self.looked_after.release)
        return end_when_displaced(
            self.file, dismiss=self.left.dismissed.append, kept=kept, leave=self.left.leave, look_seconds=LOOK_SECONDS
        )


def test_an_announcement_that_was_removed_alone_is_written_again_however_often(file: Path) -> None:
    here = Announced(file)
    end = here.watch()
    for _ in range(2):
        file.unlink()
        assert here.written.acquire(timeout=WAIT_SECONDS)
    assert here.looked_after.acquire(timeout=WAIT_SECONDS)
    end()
    assert here.left.dismissed == []


@pytest.mark.parametrize("fault", ["removed again at once", "no space"])
def test_an_announcement_that_cannot_be_kept_is_tried_again(file: Path, fault: str) -> None:
    here = Announced(file)
    troubles = iter([True, True])

    def announce() -> None:
        here.announce()
        if next(troubles, False):
            file.unlink()
            if fault == "no space":
                raise OSError(errno.ENOSPC, "No space left on device")

    kept = OwnStateFolder(files=[here.book], announce=announce, look_after=here.looked_after.release)
    end = end_when_displaced(
        file, dismiss=here.left.dismissed.append, kept=kept, leave=here.left.leave, look_seconds=LOOK_SECONDS
    )
    file.unlink()
    for _ in range(3):
        assert here.written.acquire(timeout=WAIT_SECONDS)
    assert here.looked_after.acquire(timeout=WAIT_SECONDS)
    end()
    assert here.left.dismissed == []


@pytest.mark.parametrize("what", ["gone", "another"])
def test_it_leaves_when_the_book_went_with_the_announcement(
    file: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.service.http.watchdogs.end_children", lambda: None)
    here = Announced(file)
    end = here.watch()
    if what == "another":
        other = file.with_name("other")
        other.touch()
        other.replace(here.book)
    else:
        here.book.unlink()
    file.unlink()
    assert here.left.event.wait(WAIT_SECONDS)
    end()
    assert not here.written.acquire(blocking=False)


def test_a_folder_that_cannot_be_looked_at_is_taken_for_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, looked = Left(), threading.Semaphore(0)
    end = end_when_displaced(file, dismiss=left.dismissed.append, leave=left.leave, look_seconds=LOOK_SECONDS)
    stat = Path.stat

    def stale(path: Path, **more: bool) -> os.stat_result:
        if path != file:
            return stat(path, **more)
        looked.release()
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "stat", stale)
    for _ in range(5):
        assert looked.acquire(timeout=WAIT_SECONDS)
    end()
    assert left.status is None


PARENT = """
import subprocess, sys
from pilotage.service.http.watchdogs import end_children
heedless = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
children = [
    subprocess.Popen(["sleep", "600"]),
    subprocess.Popen([sys.executable, "-c", heedless], stdout=subprocess.PIPE),
]
children[1].stdout.readline()
end_children(grace_seconds=0.5)
print(*[-child.wait(20) for child in children])
end_children()  # with nothing left it ends at once
"""


def test_what_was_started_is_ended_in_good_order_and_by_force_what_does_not_heed() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(int(signal.SIGTERM)), str(int(signal.SIGKILL))]
