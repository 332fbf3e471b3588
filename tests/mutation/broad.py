"""Tests of agents, which run in isolation so that no recording sees into them, and simulated worlds: tried by room on the rest.

Each list is a cross-section of a minute or two, not all that there is: a bug that it does not notice counts as unnoticed.
"""

from __future__ import annotations

_WITHOUT_HINTS = "tests/simulation/test_mutants.py::test_a_planted_bug_is_found_without_a_hint"
_WORLDS = ("tests/simulation/test_worlds.py",)

HOUSE_RULES = ("tests/test_values.py",)
"""Looks at every class of the program, and runs no line of it: tried on whatever other tests let pass."""

BROAD: dict[str, tuple[str, ...]] = {
    "adapters": ("tests/acceptance/test_run.py", "tests/acceptance/test_book_commands.py"),
    "agent": (
        "tests/acceptance/test_run.py",
        "tests/acceptance/test_run_faults.py",
        "tests/acceptance/test_run_stopping.py",
        "tests/acceptance/test_links.py",
        "tests/unit/agent/test_process_cleanup.py",
        "tests/unit/adapters/test_site_crontab.py",
    ),
    "app": (
        "tests/acceptance/test_run.py",
        "tests/acceptance/test_run_stopping.py",
        "tests/acceptance/test_refused_runs.py",
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
    "book": (*_WORLDS, "tests/acceptance/test_book_commands.py"),
    "client": ("tests/acceptance/test_streams.py", "tests/acceptance/test_operations.py"),
    "engine": _WORLDS,
    "model": (*_WORLDS, "tests/acceptance/test_run.py"),
    "simulator": (*_WORLDS, "tests/simulation/test_mutants.py", "--deselect", _WITHOUT_HINTS),
    "service": (
        "tests/acceptance/test_run.py",
        "tests/acceptance/test_operations.py",
        "tests/acceptance/test_after_a_run.py",
    ),
}
