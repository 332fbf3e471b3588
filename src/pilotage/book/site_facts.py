"""What events say of a site: what it is, how it stands, what was learned of it, and what came of the latest probe."""

from __future__ import annotations

from pilotage.book.registers import Register, takes
from pilotage.book.rows import Keys, SiteRow, StoredKey
from pilotage.model import payloads
from pilotage.model.events import Event

Stands = payloads.SiteHibernated | payloads.SiteWoken | payloads.SiteStanding


def on_site(row: SiteRow, keys: Keys, key: StoredKey, event: Event, data: payloads.Payload) -> None:
    """Whatever is said of a site; its row is touched by all of it."""
    row.updated_at = max(row.updated_at, event.time)
    if isinstance(data, payloads.SiteDescribed):
        _on_described(row, keys, key, event, data)
    elif isinstance(data, Stands):
        _on_stands(row, keys, key, event, data)
    elif isinstance(data, payloads.SiteProbed) and takes(keys, Register.PROBED, key):
        told = f"a pilot came after {data.seconds:.0f} s" if data.passed else data.message or "no pilot came"
        row.probed_at, row.probe = event.time, told


def _on_described(row: SiteRow, keys: Keys, key: StoredKey, event: Event, data: payloads.SiteDescribed) -> None:
    if takes(keys, Register.DESCRIBED, key):
        row.kind = data.kind
    if takes(keys, Register.STANDING, key):
        row.status, row.score, row.learned = data.status, None, ""
    if takes(keys, Register.STATUS, key):
        row.message, row.reason, row.since = data.message, "", event.time


def _on_stands(row: SiteRow, keys: Keys, key: StoredKey, event: Event, data: Stands) -> None:
    """The latest word, and what was learned by then; what is told now and then leaves the reason where it was."""
    if takes(keys, Register.STANDING, key):
        row.score, row.learned = data.score, data.learned
        if isinstance(data, payloads.SiteStanding):
            row.status = data.status
        else:
            row.status = "hibernated" if isinstance(data, payloads.SiteHibernated) else "candidate"
    if not isinstance(data, payloads.SiteStanding) and takes(keys, Register.STATUS, key):
        row.message, row.reason, row.since = data.message, data.reason, event.time
