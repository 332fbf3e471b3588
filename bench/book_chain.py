"""The whole chain: a scheduler logs what it does, its courier delivers over HTTP to a server, and all is acknowledged."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.floor import bare
from bench.work import Work
from pilotage.agent import Producer

PACKAGES = 10_000
READY_SECONDS = 30.0


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, str]]:
    """A real server in a process of its own: its address and its token."""
    program = str(Path(sys.executable).with_name("pilotage"))
    command = [program, "serve", "--book-only", "--journal", f"sqlite:{folder}", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield _address(folder, process)
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=READY_SECONDS)
        if process.returncode not in (0, 3, -signal.SIGTERM):
            raise SystemExit(f"the server ended with {process.returncode}: {said}")


def _address(folder: Path, process: subprocess.Popen[str]) -> tuple[str, str]:
    deadline = time.monotonic() + READY_SECONDS
    announced = folder / "service.json"
    while not announced.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the server did not start")
        time.sleep(0.05)
    found: dict[str, Any] = json.loads(announced.read_text())
    return str(found["url"]), Path(found["token_file"]).read_text().strip()


def chain() -> dict[str, float]:
    """Log, deliver, commit, acknowledge; then the floor: the same rows into bare SQLite, in the same run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events = list(Work(started_at=time.time() - 3600, in_flight=64).events("J1", PACKAGES))
        with (
            server(folder / "book") as (url, token),
            Producer(url, source="service", token=token, spool=folder / "spool", environment={}) as producer,
        ):
            started = time.perf_counter()
            for event in events:
                subject = {key: event[key] for key in ("job", "package", "attempt") if key in event}
                producer.log(event["type"], event["data"], time=event["time"], **subject)
            producer.flush(timeout_seconds=300.0)
            seconds = time.perf_counter() - started
        with sqlite3.connect(folder / "book" / "book.sqlite") as book:
            rows = book.execute("SELECT * FROM events ORDER BY position").fetchall()
            [(state, done)] = book.execute("SELECT state, done FROM jobs").fetchall()
        book.close()
        if len(rows) != len(events) or state != "DONE" or done != PACKAGES:
            raise SystemExit(f"{len(rows)} of {len(events)} events stored; the job is {state} with {done} done")
        floor, _ = bare(folder, [rows[at : at + 1000] for at in range(0, len(rows), 1000)])
    return {"rate": len(events) / seconds, "ratio": floor / seconds, "floor_rate": len(events) / floor}


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(json.dumps(chain()))
