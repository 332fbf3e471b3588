"""The log of a service: every line with its time, whatever it is about, and as much as the settings want."""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from types import FrameType

from pilotage.model.exit_codes import ExitCode

log = logging.getLogger(__name__)

_NOISY = ("uvicorn", "asyncio")  # what they say of themselves is for who looks for a fault
_ENDED = 1  # as any program of Python that ends by a fault


class OneLine(logging.Formatter):
    """A line for each record, with a date and the time in UTC; a traceback is part of it."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        """Time, level, the part that says it, and what it says."""
        self.converter = time.gmtime
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record on one line."""
        lines = super().format(record).splitlines()
        return " | ".join(line.strip() for line in lines if line.strip())


def begin_log(level: str) -> bool:
    """Log to standard error from now on, what has at least a level; whether that is a file, in which all must have its time."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.WARNING)
    return is_file()


def is_file() -> bool:
    """Whether standard error is a file, and nobody sits before it."""
    try:
        return stat.S_ISREG(os.fstat(sys.stderr.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def logged(run: Callable[[], int]) -> int:
    """Do something whose end belongs into a log: what goes wrong is a line of it, and an exit code."""
    from pilotage.model.errors import PilotageError

    try:
        return run()
    except PilotageError as error:
        log.error("%s", error)  # it says what to do, and where it comes from does not matter
        return error.exit_code
    except OSError as error:
        log.error("%s", error)  # the system, not the program
        return ExitCode.BAD_INPUT
    except Exception:
        log.exception("the service ends by a fault of its own")
        return _ENDED


def outlive_terminal() -> None:
    """A hang-up ends no service. What it starts is not told to ignore one: a handler, unlike that, is not handed down."""

    def note(_number: int, _frame: FrameType | None) -> None:
        log.info("a hang-up (SIGHUP) was heard; the service goes on")

    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, note)
