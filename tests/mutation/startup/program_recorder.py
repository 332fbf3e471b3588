"""Notes the lines that one program runs, and leaves them in a file of its own when the program ends."""

from __future__ import annotations

import atexit
import json
import os
import uuid
from pathlib import Path

import coverage


def record_program(*, test: str, folder: str) -> None:
    """Record from now on until the program ends. A program that is killed leaves nothing."""
    recording = coverage.Coverage(data_file=None, source_pkgs=["pilotage"], config_file=False, messages=False)
    recording.start()
    atexit.register(_save, recording, test, Path(folder), os.getpid())


def _save(recording: coverage.Coverage, test: str, folder: Path, process: int) -> None:
    recording.stop()
    if os.getpid() != process:  # a forked child, which ran its parent's list of things to do at the end
        return
    data = recording.get_data()
    lines = {file: sorted(data.lines(file) or ()) for file in data.measured_files()}
    if lines:
        unfinished = folder / f"{uuid.uuid4().hex}.part"
        unfinished.write_text(json.dumps({"test": test, "lines": lines}), encoding="utf-8")
        unfinished.rename(unfinished.with_suffix(".json"))
