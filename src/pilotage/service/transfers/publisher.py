"""Publishes verified drafts in the caches of sites: all that are complete by then together, with one wait for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pilotage.ports.job_tree import StoreError
from pilotage.service.transfers.cache_folder import CacheFolder

TOGETHER_MAX = 1000
"""So many files at most get their names together, so that the first of many need not wait for the last."""
GATHER_SECONDS = 0.05
"""Files that follow close upon others wait so long for more: waiting for the disk takes longer than a small file."""

Done = Callable[[StoreError | None], None]


class _Complete(NamedTuple):
    name: str
    is_wanted: Callable[[], bool]
    done: Done


class Publisher:
    """Gives complete drafts their names, with a thread for each folder that ends when none waits. Any thread may use it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._complete: dict[str, list[_Complete]] = {}  # by folder, which has a thread
        self._threads: set[threading.Thread] = set()
        self._stopping = threading.Event()

    def publish(self, folder: str, name: str, *, is_wanted: Callable[[], bool], done: Done) -> None:
        """Publish a complete draft soon, unless `is_wanted` says no by then; `done` gets what prevented it."""
        with self._guard:
            waiting = self._complete.setdefault(folder, [])
            waiting.append(_Complete(name, is_wanted, done))
            if len(waiting) == 1 and not any(each.name == folder for each in self._threads):
                thread = threading.Thread(target=self._work, args=(folder,), name=folder, daemon=True)
                self._threads.add(thread)
                thread.start()

    def stop(self, *, patience_seconds: float) -> bool:
        """Wait for what is complete; whether all is published."""
        self._stopping.set()
        with self._guard:
            threads = list(self._threads)
        for thread in threads:
            thread.join(patience_seconds)
        return not any(thread.is_alive() for thread in threads)

    def _work(self, folder: str) -> None:
        while True:
            with self._guard:
                waiting = self._complete.pop(folder, [])
                if not waiting:
                    self._threads.discard(threading.current_thread())
                    return
            for start in range(0, len(waiting), TOGETHER_MAX):
                _publish(CacheFolder(folder), waiting[start : start + TOGETHER_MAX])
            with self._guard:
                follow = folder in self._complete
            if follow:
                self._stopping.wait(GATHER_SECONDS)


def _publish(cache: CacheFolder, drafts: list[_Complete]) -> None:
    by_name = {each.name: each for each in drafts}
    try:
        faults = cache.publish(list(by_name), is_wanted=lambda name: by_name[name].is_wanted())
    except StoreError as of_all:
        faults = dict.fromkeys(by_name, of_all)
    for name in faults:
        with suppress(StoreError):
            cache.drop_draft(name)  # on a full disk, it is in the way
    for each in drafts:
        each.done(faults.get(each.name))
