"""Manifests of ended attempts, cached for a while and otherwise read from the book."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from pilotage.book.query import EVERYTHING
from pilotage.book.rows.rows import JobRow
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports import Journal

Manifest = tuple[OutputFile, ...]

REMEMBERED_FILES = 100_000
"""Files of cached manifests: consumers come soon after their producers."""


class _Made(msgspec.Struct, frozen=True):
    manifest: Manifest | None = None


_decode = msgspec.json.Decoder(_Made).decode


class Manifests:
    """The manifest of any attempt that staged its outputs; one thread at a time."""

    def __init__(self, journal: Journal, *, remembered_files: int = REMEMBERED_FILES) -> None:
        self._journal = journal
        self._files_max = remembered_files
        self._known: OrderedDict[AttemptRef, Manifest] = OrderedDict()
        self._files = 0

    def note(self, ref: AttemptRef, manifest: Manifest) -> None:
        """Cache the manifest that an attempt just reported."""
        old = self._known.pop(ref, None)
        if old is not None:
            self._files -= len(old) + 1
        self._known[ref] = manifest
        self._files += len(manifest) + 1
        while self._files > self._files_max:
            _, gone = self._known.popitem(last=False)
            self._files -= len(gone) + 1

    def of(self, ref: AttemptRef) -> Manifest | None:
        """The manifest of an attempt; None if it reported none."""
        known = self._known.get(ref)
        if known is None:
            known = self._read(ref)
            if known is not None:
                self.note(ref, known)
        return known

    def _read(self, ref: AttemptRef) -> Manifest | None:
        job, place = self._journal.job(ref.job), parse_dotted(ref.package)
        row = self._journal.package(job, place) if job is not None and place is not None else None
        if job is None or row is None or place is None:
            return None
        facts = row.facts.attempts.get(ref.attempt)
        if facts is None:
            return None
        for position in (facts.staged_position, facts.finished_position):
            if position is not None and (found := self._at(job, position)) is not None:
                return found
        return None

    def _at(self, job: JobRow, position: int) -> Manifest | None:
        page = self._journal.find_events(EVERYTHING, after=position - 1, limit=1, job=job)
        if not page.items or page.items[0].row.position != position:
            return None
        return _decode(page.items[0].row.data).manifest
