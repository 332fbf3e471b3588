"""Waiting for what tells nobody that it has come, without keeping a core busy with looking."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 0.25
DEAR_SECONDS_MAX = 1.0  # the pause after a look that starts a whole program
_LOOKING_PART = 5  # at most about so small a part of the time is spent on looking
_WAITED_PART = 20  # what has been waited for long is seen later by so small a part of that
_PAUSE = threading.Event()  # never set


def wait_until(holds: Callable[[], object], why: Callable[[], str], *, seconds: float) -> None:
    """Wait for something to become true; the test fails with what `why` says where it does not in time.

    A look may read a whole book, or start a program. So the dearer it is, and the longer it was in vain, the longer is
    the pause before the next.
    """
    began = time.monotonic()
    looked_at = began
    while not holds():
        now = time.monotonic()
        assert now < began + seconds, why()
        dear = min((now - looked_at) * (_LOOKING_PART - 1), DEAR_SECONDS_MAX)
        _PAUSE.wait(max(PAUSE_SECONDS_MIN, dear, min((now - began) / _WAITED_PART, PAUSE_SECONDS_MAX)))
        looked_at = time.monotonic()
