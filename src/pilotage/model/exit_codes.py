"""How a command ends. More come with what can end otherwise: packages that failed, a run that was stopped."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command."""

    COMPLETE = 0
    BAD_INPUT = 2
    INTERRUPTED = 130
