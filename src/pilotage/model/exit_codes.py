"""How a command ends."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command."""

    COMPLETE = 0
    FAILED = 1  # what was looked at is not as it should be: packages failed, a book that does not add up
    BAD_INPUT = 2
    STOPPED = 3  # trying again can help: a server that does not answer
    INTERRUPTED = 130
