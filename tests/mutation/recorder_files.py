"""Where a recorded run leaves its notes: known to the plugin, which runs inside pytest, and to who reads them."""

from __future__ import annotations

from pathlib import Path

FILE_VARIABLE = "MUTATION_COVERAGE_FILE"
TEST_VARIABLE = "MUTATION_TEST"
"""Names the running test to the programs that it starts (`startup/sitecustomize.py`)."""


def failed_file(data_file: Path | str, *, process: int) -> Path:
    """Where one worker names the tests that did not pass."""
    return Path(f"{data_file}-failed.{process}")


def failed_files(data_file: Path) -> list[Path]:
    """All of these files."""
    return list(data_file.parent.glob(f"{data_file.name}-failed.*"))


def durations_file(data_file: Path | str, *, process: int) -> Path:
    """Where one worker keeps how many seconds each test took."""
    return Path(f"{data_file}-durations.{process}")


def durations_files(data_file: Path) -> list[Path]:
    """All of these files."""
    return list(data_file.parent.glob(f"{data_file.name}-durations.*"))


def programs_folder(data_file: Path | str) -> Path:
    """Where the programs that tests start leave the lines they ran."""
    return Path(f"{data_file}-programs")
