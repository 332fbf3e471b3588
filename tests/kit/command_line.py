"""The command line in this process, in an empty folder, with nothing in the environment that a test did not put there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.cli import main


def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in an empty folder, at home there, knowing no server."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SERVER", "TOKEN", "TOKEN_FILE", "CA_FILE", "JOB", "PACKAGE", "ATTEMPT", "EPOCH"):
        monkeypatch.delenv(f"PILOTAGE_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PILOTAGE_SPOOL", str(tmp_path / "spool"))


def run(*arguments: str, stdin: str = "") -> Result:
    """What a command prints and how it ends, which is never with a traceback."""
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*arguments: str, stdin: str = "") -> str:
    """What a command says that is refused."""
    result = run(*arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr
