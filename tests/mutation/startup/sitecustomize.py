"""Python imports this at the start of every program of a recorded test: it notes the lines of pilotage that the program runs.

The test's name comes through the environment. Programs that Python starts in isolation (agents at sites) do not come
here, and a program that is killed leaves nothing.
"""

from __future__ import annotations

import os


def _record(test: str, folder: str) -> None:
    """Record from now on, and leave the lines in a file of their own when the program ends."""
    import atexit  # imports here: a program that is not recorded starts as quickly as ever
    import json
    import uuid
    from pathlib import Path

    import coverage

    recording = coverage.Coverage(data_file=None, source_pkgs=["pilotage"], config_file=False, messages=False)
    # A program that imports nothing of pilotage is recorded too, and its standard error is part of what tests look at.
    recording.set_option("run:disable_warnings", ["module-not-imported", "no-data-collected"])
    process = os.getpid()

    def save() -> None:
        recording.stop()
        if os.getpid() != process:  # a forked child, which ran its parent's list of things to do at the end
            return
        data = recording.get_data()
        if lines := {file: sorted(data.lines(file) or ()) for file in data.measured_files()}:
            unfinished = Path(folder, f"{uuid.uuid4().hex}.part")
            unfinished.write_text(json.dumps({"test": test, "lines": lines}), encoding="utf-8")
            unfinished.rename(unfinished.with_suffix(".json"))

    recording.start()
    atexit.register(save)


if os.environ.get("MUTATION_TEST"):
    _record(os.environ["MUTATION_TEST"], os.environ["MUTATION_COVERAGE_FILE"] + "-programs")
