"""Who uses the service of a folder and shows which job: seen by other processes, since a lock is that of a process."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.app.service.session import CommandLocks

OTHER = """
import sys
from pathlib import Path
from pilotage.app.service.session import CommandLocks
followers = CommandLocks(Path(sys.argv[1]))
print("coming", flush=True)
for word in sys.argv[2:]:
    followers.show(word) if word != "-" else followers.use()
print("there", flush=True)
sys.stdin.read()
"""


@contextmanager
def another(state: Path, *words: str) -> Iterator[None]:
    """Another command that shows jobs, and with `-` uses the service."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(state), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert [process.stdout.readline(), process.stdout.readline()] == [b"coming\n", b"there\n"]
        yield
    finally:
        process.communicate()


def test_a_command_that_shows_another_job_does_not_show_this_one(tmp_path: Path) -> None:
    followers = CommandLocks(tmp_path)
    followers.use()
    followers.show("a")
    with another(tmp_path, "-", "b"):
        assert not followers.others_show("a")
        assert followers.others_show("b")
        assert followers.others_use()
    assert not followers.others_show("b")
    assert not followers.others_use()
    followers.close()


def test_a_folder_that_is_not_there_has_no_followers(tmp_path: Path) -> None:
    followers = CommandLocks(tmp_path / "gone")
    followers.use()
    followers.show("a")
    assert not followers.others_use()
    assert not followers.others_show("a")
    followers.close()


def test_who_comes_while_the_service_is_stopped_waits_for_that(tmp_path: Path) -> None:
    leaving = CommandLocks(tmp_path)
    assert not leaving.others_use()
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"coming\n"
        assert not select.select([process.stdout], [], [], 0.3)[0]
        leaving.close()
        assert process.stdout.readline() == b"there\n"
        again = CommandLocks(tmp_path)
        assert again.others_use()
        again.close()
    finally:
        process.communicate()
