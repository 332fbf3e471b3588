"""What every test shares: hypothesis profiles, the reference data, a home, the order among workers, and honest skips.

In continuous integration (`PILOTAGE_CI` is set) a skipped test fails, unless it skipped because the reference data is
absent or the system grants no privilege to mount: everything else that a test may miss can be installed.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from tests.kit.dealing import dealt

pytest_plugins = ["tests.engines.fixtures"]

REFERENCE_DATA_VARIABLE = "PILOTAGE_REFERENCE_DATA"
REFERENCE_DATA_ABSENT = f"reference data: set {REFERENCE_DATA_VARIABLE} to the folder that holds it"

# No deadline: how long an example takes depends on the machine, and no verdict may. A run in CI is reproducible.
settings.register_profile("house", deadline=None)
settings.register_profile("house-ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("house-ci" if os.environ.get("PILOTAGE_CI") else "house")

# A shell without job control starts what runs in the background with SIGINT ignored, and every program of a test would
# inherit that: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TOLD = "told"
"""Under this name reports carry what their tests told."""

AnyReport = TypeVar("AnyReport", pytest.TestReport, pytest.CollectReport)


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of published workflows, DAGs and descriptors that tests compare with; skips where there is none."""
    named = os.environ.get(REFERENCE_DATA_VARIABLE)
    if not named:
        pytest.skip(REFERENCE_DATA_ABSENT)
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"{REFERENCE_DATA_VARIABLE} names {named}, which is not a folder")
    return folder


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Says what a test saw: it is printed at the end of the run, whichever worker ran it and however it ended."""
    return partial(record_property, _TOLD)


def pytest_configure(config: pytest.Config) -> None:
    """Give all tests a home of their own: whatever they leave there, or kill there half-way, is nobody's."""
    if not hasattr(config, "workerinput"):  # workers have it from whoever started them
        home = tempfile.TemporaryDirectory(prefix="pilotage-home-", ignore_cleanup_errors=True)
        config.add_cleanup(home.cleanup)
        os.environ["HOME"] = home.name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests told."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ():
                if name == _TOLD:
                    terminalreporter.section(report.nodeid, sep="-")
                    terminalreporter.write_line(str(text).strip())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage only after thousands of tests were collected, and among these never: they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # when it is settled which tests are run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several workers run the tests, begin with those that take long."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        items[:] = [items[place] for place in dealt([item.nodeid for item in items], workers=worker["workercount"])]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one where skipping is not allowed."""
    return _without_excuse((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips as a whole."""
    return _without_excuse((yield))


def _without_excuse(report: AnyReport) -> AnyReport:
    if not os.environ.get("PILOTAGE_CI") or not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(("reference data", "privilege")):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {reason}"
    return report
