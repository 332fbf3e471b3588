"""A batch system as the suite needs it: somewhere to run calls, that can be down, and a way to wait for what is seen."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pilotage.agent.batch import Answer, BatchJob, BatchRequest, Call, Dialect, output_of
from tests.kit import waiting

CALL_SECONDS_MAX = 60
WAIT_SECONDS = 60.0


class System(ABC):
    """One batch system, with a dialect that speaks to it."""

    dialect: Dialect
    bad_queue: str | None = "no-such-queue"  # none where there are no queues
    has_queues: bool = True  # that it tells of
    tells_exit_status: bool = True
    tells_cancelled: bool = True  # or it looks as if it had been killed
    wall_seconds: int = 1  # the shortest that it keeps
    too_many: int  # elements that no array may have

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(mode=0o755, exist_ok=True)

    @abstractmethod
    def run(self, call: Call) -> Answer:
        """Run a call."""

    @abstractmethod
    def down(self) -> None:
        """Let nobody answer any more."""

    @abstractmethod
    def up(self) -> None:
        """Let it answer again."""

    def overrun(self) -> tuple[str, str]:
        """Key and native id of something that runs longer than it may."""
        wanted = BatchRequest(
            key="wall-1", command=["sleep", "600"], wall_seconds=self.wall_seconds, folder=str(self.folder)
        )
        return wanted.key, self.submit(wanted)[wanted.key]

    @contextmanager
    def is_down(self) -> Iterator[None]:
        """Nobody answers as long as the block runs."""
        self.down()
        try:
            yield
        finally:
            self.up()

    def all(self, *calls: Call) -> list[Answer]:
        """Run calls at the same time: a system that is down takes its time to say so."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(self.run, calls))

    def submit(self, wanted: BatchRequest) -> dict[str, str]:
        """Start something; the native ids by key."""
        return self.dialect.submitted(wanted, self.run(self.dialect.submit(wanted)))

    def look(self, key: str, native_id: str = "") -> BatchJob | None:
        """What is known of a key: from the listing, or from what the system remembers."""
        listed = self.dialect.listed(self.run(self.dialect.listing()))
        if key in listed:
            return listed[key]
        history = self.dialect.history({key: native_id})
        return self.dialect.remembered(self.run(history)).get(key) if history is not None else None

    def wait(self, key: str, state: str, native_id: str = "") -> BatchJob:
        """Wait until a key is seen in a state; fail at once where it came to its end before."""
        seen: list[BatchJob | None] = [None]

        def is_so() -> bool:
            seen[0] = self.look(key, native_id)
            assert seen[0] is None or state == "ended" or seen[0].state != "ended", seen
            return seen[0] is not None and seen[0].state == state

        wait_until(is_so, lambda: f"{key} is not {state}: {seen}")
        assert seen[0] is not None
        return seen[0]

    @property
    def cancelled_reason(self) -> str:
        """The reason of what was cancelled."""
        return "cancelled" if self.tells_cancelled else "killed"

    def cancel(self, native_ids: dict[str, str]) -> None:
        """End something."""
        self.dialect.cancelled(self.run(self.dialect.cancel(native_ids)))

    def printed(self, key: str) -> str:
        """What has been printed under a key, once there is something whole."""
        file = Path(output_of(str(self.folder), key))
        wait_until(lambda: file.exists() and file.read_bytes().endswith(b"\n"), lambda: f"nothing in {file}")
        return file.read_bytes().decode("utf-8", "surrogateescape")


def wait_until(what: Callable[[], object], why: Callable[[], str]) -> None:
    """Wait until something is so that tells nobody."""
    waiting.wait_until(what, why, seconds=WAIT_SECONDS)


def run_here(call: Call, *, within: list[str], environment: dict[str, str]) -> Answer:
    """Run a call on this machine."""
    try:
        done = subprocess.run(
            [*within, *call.argv],
            input=call.stdin.encode("utf-8", "surrogateescape"),
            env={**os.environ, **environment, "LC_ALL": "C"},
            capture_output=True,
            timeout=CALL_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError as error:
        return Answer(127, "", str(error))
    except subprocess.TimeoutExpired:
        return Answer(None)
    return Answer(done.returncode, *(text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr)))
