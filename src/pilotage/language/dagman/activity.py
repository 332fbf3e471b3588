"""The activity that a command stands for where none is written: reader and writer must agree on it."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.language.text.templates import escape_braces


def activity_of_command(command: Sequence[str]) -> str:
    """The name of the program, as the expansion takes it for a package without an activity of its own."""
    return escape_braces(command[0]).rpartition("/")[2] if command else ""
