"""What the agent of a site was told and did, in a small file: so that an end at any moment makes it lose and double nothing.

What is about to be submitted is noted before, and what came of it after. Of what was noted and has not shown itself nobody
knows whether it was queued: it is looked for under its key.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from pilotage.agent.files import read_small, replace_file

FORGET_SECONDS = 600.0

ASKED = "asked"  # it was about to be submitted
SUBMITTED = "submitted"
GONE = "gone"
FAILED = "failed"  # it was refused


class Record(NamedTuple):
    """What is known of one key."""

    state: str
    at: float  # when it came to this, in seconds since 1970
    native_id: str = ""
    reason: str = ""
    text: str = ""  # what it printed last, or what the batch system said
    absent_at: float = 0.0  # since when the service does not speak of it
    seconds: float = 0.0  # that its submission took; 0: not known
    scheduler: str = ""  # the batch system that it was submitted to; none: the one that the entry names


class SiteMemory:
    """Records by key, and what the service said last; `save` makes it durable."""

    def __init__(self, file: Path) -> None:
        """Read what an earlier process noted; a file that cannot be read is as good as none: the batch system knows the rest."""
        self._file = file
        try:
            said = json.loads(read_small(file) or b"{}")
            self.records = {str(key): Record(*told) for key, told in said.get("records", {}).items()}
        except (ValueError, TypeError, AttributeError):
            said, self.records = {}, {}
        self.entry: dict[str, Any] | None = said.get("entry")
        self.prefix: str = said.get("prefix", "")
        self.port: int = said.get("port", 0)  # where its relay listened
        self.expected: set[str] = set(said.get("expected", ()))
        self.effects: list[dict[str, Any]] = said.get("effects", [])
        self.unheard: set[str] = set()  # what has not spoken, by the service's last word
        self.scheduler = ""  # the batch system that is submitted to now
        self._saved = b""

    def save(self) -> None:
        """Have everything on disk; raises `OSError`."""
        said = {
            "entry": self.entry,
            "prefix": self.prefix,
            "port": self.port,
            "expected": sorted(self.expected),
            "effects": self.effects,
            "records": self.records,
        }
        content = json.dumps(said).encode()
        if content != self._saved:
            replace_file(self._file, content)
            self._saved = content

    def told(self, hears: dict[str, Any]) -> None:
        """Take what the service said; what it does not speak of any more is forgotten after a while."""
        self.expected = set(hears.get("expected") or ())
        self.effects = list(hears.get("effects") or ())
        self.unheard = set(hears.get("unheard") or ())
        self.entry = hears.get("entry") or self.entry
        self.prefix = str(hears.get("prefix") or self.prefix)
        spoken_of = self.expected | {str(each.get("key")) for each in self.effects}
        now = time.time()
        for key, record in list(self.records.items()):
            if key in spoken_of:
                if record.absent_at:
                    self.records[key] = record._replace(absent_at=0.0)
            elif not record.absent_at or record.absent_at > now:
                self.records[key] = record._replace(absent_at=now)
            elif record.state != SUBMITTED and now > record.absent_at + FORGET_SECONDS:
                del self.records[key]

    def note(
        self, key: str, state: str, *, native_id: str = "", reason: str = "", text: str = "", seconds: float = 0.0
    ) -> None:
        """Note what has become of a key; what is known stays known."""
        before = self.records.get(key)
        if before is not None and before.state == state and state != ASKED:
            return
        native_id = native_id or (before.native_id if before is not None else "")
        scheduler = before.scheduler if before is not None and before.state != ASKED else self.scheduler
        self.records[key] = Record(state, time.time(), native_id, reason, text, seconds=seconds, scheduler=scheduler)

    def age_seconds(self, key: str) -> float:
        """How long ago a key came to what it is; clocks that were set back say nothing."""
        return max(0.0, time.time() - self.records[key].at)
