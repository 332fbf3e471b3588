"""Where a recorded run leaves its notes: known to the plugin, which runs inside pytest, and to who reads them."""

from __future__ import annotations

from pathlib import Path

FILE_VARIABLE = "MUTATION_COVERAGE_FILE"


def failed_file(data_file: Path | str, *, process: int) -> Path:
    """Where one worker names the tests that did not pass."""
    return Path(f"{data_file}-failed.{process}")


def failed_files(data_file: Path) -> list[Path]:
    """All of these files."""
    return list(data_file.parent.glob(f"{data_file.name}-failed.*"))
