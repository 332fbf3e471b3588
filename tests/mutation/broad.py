"""Tests of real processes, which no recording sees into: tried by room on what the recorded tests let pass.

Each list is a cross-section of a minute or two, not all that there is: a bug that it does not notice counts as unnoticed.
"""

from __future__ import annotations

BROAD: dict[str, tuple[str, ...]] = {
    "adapters": ("tests/acceptance/test_run.py", "tests/acceptance/test_book_commands.py"),
    "agent": (
        "tests/acceptance/test_run.py",
        "tests/acceptance/test_run_faults.py",
        "tests/acceptance/test_run_stopping.py",
        "tests/acceptance/test_links.py",
    ),
    "app": (
        "tests/acceptance/test_run.py",
        "tests/acceptance/test_site_commands.py",
        "tests/acceptance/test_doctor_faults.py",
        "tests/acceptance/test_book_commands.py",
    ),
    "cli": (
        "tests/acceptance/test_command_line.py",
        "tests/acceptance/test_run.py",
        "tests/acceptance/test_site_commands.py",
        "tests/acceptance/test_book_commands.py",
    ),
    "client": ("tests/acceptance/test_streams.py", "tests/acceptance/test_operations.py"),
    "service": (
        "tests/acceptance/test_run.py",
        "tests/acceptance/test_operations.py",
        "tests/acceptance/test_after_a_run.py",
    ),
}
