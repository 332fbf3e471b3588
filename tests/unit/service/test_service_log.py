"""The log of a service, and how commands end that are interrupted before they begin."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.cli.service.serve import OneLine, logged
from pilotage.model.errors import PilotageError

INTERRUPTED_IN_AN_IMPORT = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from pilotage.cli import main
"""


def record(message: str, *, with_traceback: bool = False) -> logging.LogRecord:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        told = sys.exc_info() if with_traceback else None
    return logging.LogRecord("pilotage.part", logging.WARNING, __file__, 1, message, (), told)


def test_a_record_is_one_line_with_its_date_whatever_it_says() -> None:
    text = OneLine().format(record("the book cannot be written\n  make room", with_traceback=True))
    assert "\n" not in text
    assert re.match(
        r"20[0-9-]{8}T[0-9:.]{12}Z WARNING pilotage\.part: the book cannot be written \| make room \| ", text
    )
    assert text.endswith("ValueError: two | lines")


def test_what_ends_a_service_is_a_line_of_its_log_and_an_exit_code(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> int:
        raise PilotageError("it cannot be", next_step="mend it")

    def crash() -> int:
        raise ZeroDivisionError

    assert (logged(lambda: 3), logged(fail), logged(crash)) == (3, 2, 1)
    assert [each.message for each in caplog.records] == [
        "it cannot be\n  mend it",
        "the service crashed",
    ]


def test_the_level_is_a_setting(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "pilotage", "serve"],
        cwd=tmp_path, env={"PILOTAGE_SERVICE_LOG_LEVEL": "loud", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (told.returncode, "expected debug or info or warning or error" in told.stderr) == (2, True)


def test_ctrl_c_while_a_command_is_imported_prints_no_traceback() -> None:
    told = subprocess.run([sys.executable, "-c", INTERRUPTED_IN_AN_IMPORT], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (130, "interrupted\n")
