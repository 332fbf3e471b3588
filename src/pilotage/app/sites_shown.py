"""Sites as they are written down, for whoever asks while no service runs: in the same form as a service tells of them."""

from __future__ import annotations

from typing import Any

from pilotage.app.book import settings_here
from pilotage.app.site_entries import file_here, known_sites
from pilotage.model.definition import plain
from pilotage.model.site_entry import SiteEntry

NOT_SERVED = "not served"


def written_sites(named: str | None) -> dict[str, Any]:
    """All sites of the file that commands in this folder mean; raises `DocumentError` for what is wrong with it."""
    known = known_sites(file_here(settings_here(), named=named or ""))
    return {"sites": [_view(entry) for entry in known.entries], "file": str(known.file), "fault": ""}


def written_site(name: str) -> dict[str, Any] | None:
    """One site of that file, as a service that never ran for it would tell of it; None where it is not in there."""
    entries = known_sites(file_here(settings_here())).entries
    entry = next((each for each in entries if each.name == name), None)
    if entry is None:
        return None
    return {"site": _view(entry), "entry": plain(entry), "reasons": [], "pilots": [], "noticed": []}


def _view(entry: SiteEntry) -> dict[str, Any]:
    counts = dict.fromkeys(("pilots_queued", "pilots_live", "slots", "used", "dead_starts"), 0)
    unknown = dict.fromkeys(("score", "tscore", "queue_seconds", "next_try_at"))
    texts = dict.fromkeys(("message", "says", "closed", "unheard", "last_words"), "")
    about = {"site": entry.name, "kind": entry.kind, "mode": entry.mode, "status": NOT_SERVED}
    return {**about, **unknown, **counts, **texts, "updated_at": 0.0}
