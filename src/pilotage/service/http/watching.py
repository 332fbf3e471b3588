"""A thread that watches something for as long as a service lives."""

from __future__ import annotations

import threading
from collections.abc import Callable

Watch = Callable[[threading.Event], None]
"""Looks again and again, and returns when the event is set, or when there is nothing more to look for."""


def watched(watch: Watch, *, name: str) -> Callable[[], None]:
    """Watch from a thread of this name; what is returned ends the watching, and waits until it has ended."""
    over = threading.Event()
    thread = threading.Thread(target=watch, args=(over,), name=name, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end
