"""A state folder that was made for nothing: it goes with the service that was started in it."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from pilotage.adapters.journals.unused import is_unused
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
    if not is_unused(state):
        return
    aside = state.with_name(f"{state.name}-{os.getpid()}")
    with suppress(OSError):  # it takes some room, and nothing else
        state.rename(aside)  # whoever looks meanwhile finds a whole folder, or none
        shutil.rmtree(aside)
