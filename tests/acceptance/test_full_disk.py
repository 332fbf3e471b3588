"""A disk that is really full: a small file system of the test's own, seen by the service alone, which grows later."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.served_book import event, registered

ANSWER_SECONDS = 60
MOUNTED = 'mount -t tmpfs -o size=3m,mode=700 tmpfs "$1" && exec "$2" serve --book-only --journal "sqlite:$1" --port 0'
AS_ROOT_THERE = [] if os.geteuid() == 0 else ["--map-root-user"]
INTO = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]


class SmallService:
    """A service whose state folder lies on a file system of its own."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self._folder = folder
        told = json.loads(self._inside("service.json").read_text())
        self._token = self._inside("token").read_text().strip()
        self._port = int(told["url"].rpartition(":")[2])

    def _inside(self, name: str) -> Path:
        return Path(f"/proc/{self.process.pid}/root{self._folder}/{name}")

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
        connection.request(
            method,
            path,
            json.dumps(body) if body is not None else None,
            {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found

    def enlarge(self) -> None:
        command = ["nsenter", "--target", str(self.process.pid), "--mount", *INTO]
        subprocess.run([*command, "mount", "-o", "remount,size=64m", str(self._folder)], check=True)


@contextmanager
def small_service(folder: Path) -> Iterator[SmallService]:
    folder.mkdir()
    program = str(Path(sys.executable).with_name("pilotage"))
    command = ["unshare", "--mount", *AS_ROOT_THERE, "sh", "-c", MOUNTED, "sh", str(folder), program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    # A service that never says that it serves is ended, and the test with it.
    alarm = threading.Timer(ANSWER_SECONDS, process.kill)
    alarm.start()
    try:
        said = process.stdout.readline()
        if not said.startswith("serving"):
            reason = process.stderr.read()
            if "unshare" in reason or "mount" in reason:
                pytest.skip(f"privilege: no file system of one's own here: {reason.strip()}")
            pytest.fail(f"the service did not start: {said}{reason}")
        yield SmallService(process, folder)
    finally:
        alarm.cancel()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=ANSWER_SECONDS)


def test_a_full_disk_keeps_nothing_of_a_batch_loses_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_service(tmp_path / "state") as service:
        assert service.ask("POST", "/v1/events", {"events": [registered(1, "j")]})[0] == 200
        kept, n, status = 1, 1, 200
        batch: list[Any] = []
        while status == 200:
            batch = [event(n + at, "Noted", {"text": "x" * 10_000}, job="j") for at in range(1, 21)]
            status, answer = service.ask("POST", "/v1/events", {"events": batch})
            if status == 200:
                n += len(batch)
                kept += answer["kept"]
            assert n < 2000, "three megabytes hold no twenty of them"
        assert status == 507
        assert service.ask("GET", "/v1/jobs/j")[0] == 200
        assert service.ask("GET", "/v1/position") == (200, {"position": kept})
        service.enlarge()
        status, answer = service.ask("POST", "/v1/events", {"events": batch})
        assert (status, answer["kept"]) == (200, len(batch))
        status, answer = service.ask("POST", "/v1/events", {"events": batch})
        assert (status, answer["kept"], answer["repeated"]) == (200, 0, len(batch))
        assert service.ask("GET", "/v1/position") == (200, {"position": kept + len(batch)})
