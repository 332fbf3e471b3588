"""A pytest plugin that notes which lines of the program each test runs, with `-p tests.mutation.recorder`.

What runs in the test's own process is seen here; programs that it starts record themselves (`startup/`). The file for
the notes is named by the environment, since workers of pytest-xdist are processes of their own, each with its own
suffix. A test that does not pass is named beside it: it could not tell a bug from none.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator

import coverage
import pytest

from tests.mutation.recorder_files import FILE_VARIABLE, TEST_VARIABLE, durations_file, failed_file

_file = os.environ[FILE_VARIABLE]
_recording = coverage.Coverage(
    data_file=_file, data_suffix=True, source_pkgs=["pilotage"], config_file=False, messages=False
)
_failed: set[str] = set()
_seconds: defaultdict[str, float] = defaultdict(float)


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
    """Remember how long a test takes, and one that fails or skips."""
    _seconds[report.nodeid] += report.duration
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what was seen; who only hands out tests to workers has seen nothing."""
    _recording.stop()
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        return
    _recording.save()
    failed_file(_file, process=os.getpid()).write_text("\n".join(sorted(_failed)), encoding="utf-8")
    durations_file(_file, process=os.getpid()).write_text(json.dumps(_seconds), encoding="utf-8")
