"""Sites as they are written down, for whoever asks while no service runs: in the same form as a service tells of them."""

from __future__ import annotations

from typing import Any

from pilotage.app.book import settings_here
from pilotage.app.site_entries import file_here, known_sites, named_sites
from pilotage.model.definition import plain
from pilotage.model.site_entry import SiteEntry

NOT_SERVED = "not served"


def written_sites(named: str | None) -> dict[str, Any]:
    """All sites of the file that commands in this folder mean; raises `DocumentError` for what is wrong with it."""
    known = named_sites(settings_here(), named or "")
    return {"sites": [_view(entry) for entry in known.entries], "file": str(known.file), "fault": ""}


def written_site(name: str) -> dict[str, Any]:
    """One site of that file, as a service that never ran for it would tell of it; raises `SiteRefused`."""
    entry = known_sites(file_here(settings_here())).entry(name)
    return {"site": _view(entry), "entry": plain(entry), "reasons": [], "pilots": [], "noticed": []}


def _view(entry: SiteEntry) -> dict[str, Any]:
    counts = dict.fromkeys(("pilots_queued", "pilots_live", "slots", "used", "dead_starts"), 0)
    unknown = dict.fromkeys(("score", "tscore", "queue_seconds", "next_try_at"))
    texts = dict.fromkeys(("message", "says", "closed", "unheard", "last_words"), "")
    about = {"site": entry.name, "kind": entry.kind, "mode": entry.mode, "status": NOT_SERVED}
    return {**about, **unknown, **counts, **texts, "updated_at": 0.0}
