"""Where a recorded run leaves its notes: known to the plugin, which runs inside pytest, and to who reads them."""

from __future__ import annotations

from pathlib import Path

FILE_VARIABLE = "MUTATION_COVERAGE_FILE"
TEST_VARIABLE = "MUTATION_TEST"
"""Names the running test to the programs that it starts (`startup/sitecustomize.py`)."""

WORKER_VARIABLE = "PYTEST_XDIST_WORKER"
"""Set by pytest-xdist in the processes that run tests for another."""


def reports_file(data_file: Path | str) -> Path:
    """A line for each part of each test: its name, its seconds, whether it passed."""
    return Path(f"{data_file}-reports.jsonl")


def programs_folder(data_file: Path | str) -> Path:
    """Where the programs that tests start leave the lines they ran."""
    return Path(f"{data_file}-programs")
