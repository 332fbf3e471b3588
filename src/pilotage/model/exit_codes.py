"""Exit codes of the commands."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command."""

    COMPLETE = 0
    FAILED = 1  # the result is not as it should be: packages failed, an inconsistent book
    BAD_INPUT = 2
    STOPPED = 3  # a retry can help: a server does not answer
    INTERRUPTED = 130
