"""A state folder that was made for nothing: it goes with the service that was started in it."""

from __future__ import annotations

import time
from pathlib import Path

from pilotage.adapters.journals import unused
from pilotage.app.local_agents import is_held
from pilotage.app.session import LOCK_FILE, LOOK_SECONDS

_SECONDS = 2.0


def remove_unused(state: Path) -> None:
    """Remove the state folder of a service that has ended, unless somebody else has begun to use it."""
    until = time.monotonic() + _SECONDS
    while is_held(state / LOCK_FILE):  # it has said its last word, and its process ends
        if time.monotonic() > until:
            return
        time.sleep(LOOK_SECONDS)
    unused.remove_unused(state)
