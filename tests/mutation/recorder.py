"""A pytest plugin that notes which lines of the program each test runs, with `-p tests.mutation.recorder`.

What runs in the test's own process is seen here; programs that it starts record themselves (`startup/`). The file for
the notes is named by the environment, since workers of pytest-xdist are processes of their own, each with its own
suffix. A test that does not pass is named beside it: it could not tell a bug from none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator

import coverage
import pytest

from tests.mutation.recorder_files import FILE_VARIABLE, TEST_VARIABLE, WORKER_VARIABLE, reports_file

_file = os.environ[FILE_VARIABLE]
_recording = coverage.Coverage(
    data_file=_file, data_suffix=True, source_pkgs=["pilotage"], config_file=False, messages=False
)


def pytest_sessionstart() -> None:
    """Begin before any module of the program is imported."""
    _recording.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What runs from here on is this test's, its fixtures included."""
    _recording.switch_context(item.nodeid)
    os.environ[TEST_VARIABLE] = item.nodeid
    try:
        return (yield)
    finally:
        del os.environ[TEST_VARIABLE]
        _recording.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long each part of a test took, and whether it passed; workers tell it to the process that writes."""
    if WORKER_VARIABLE not in os.environ:
        with reports_file(_file).open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.duration, report.passed]) + "\n")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what was seen; who only hands out tests to workers has seen nothing."""
    _recording.stop()
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        return
    _recording.save()
