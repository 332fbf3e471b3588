"""The index servers that are fed from the records of this service: what each of them wants.

An index registers again when it finds that it is not known, such as after a restart of the service: so nothing is stored.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from pilotage.ports.record_index import UnknownFeed
from pilotage.provenance.index.feed import CheckedFeed, FeedRegistration, check_feed

FEEDS_MAX = 1000
"""Registered feeds; the one that was not asked for the longest time is forgotten."""


class RecordFeeds:
    """The feeds by their user and name."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._feeds: OrderedDict[tuple[str, str], tuple[FeedRegistration, CheckedFeed]] = OrderedDict()

    def register(self, user: str, registration: FeedRegistration) -> None:
        """Register a feed, in place of one of the same name. Raises `UnknownAttribute` and `QueryError`."""
        checked = check_feed(registration)
        with self._guard:
            self._feeds[user, registration.name] = registration, checked
            self._feeds.move_to_end((user, registration.name))
            while len(self._feeds) > FEEDS_MAX:
                self._feeds.popitem(last=False)

    def feed(self, user: str, name: str) -> CheckedFeed:
        """What an index wants. Raises `UnknownFeed`."""
        with self._guard:
            found = self._feeds.get((user, name))
            if found is None:
                raise UnknownFeed(
                    "no index of this name is registered", subject=name[:64], next_step="register it first"
                )
            self._feeds.move_to_end((user, name))
            return found[1]

    def registrations(self, user: str) -> list[FeedRegistration]:
        """What the indexes of a user registered, by name."""
        with self._guard:
            return [
                each for (owner, _), (each, _) in sorted(self._feeds.items(), key=lambda one: one[0]) if owner == user
            ]

    def remove(self, user: str, name: str) -> None:
        """Forget a feed. Raises `UnknownFeed`."""
        self.feed(user, name)
        with self._guard:
            self._feeds.pop((user, name), None)
