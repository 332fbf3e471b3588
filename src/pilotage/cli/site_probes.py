"""What came of probes, looked for in the book."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.client.server import Parameters

LOOK_SECONDS = 1.0
LATE_SECONDS = 30.0
"""That a probe has failed is in the book so much later, at the latest."""


def patience_seconds() -> float:
    """How long a probe is waited for where nobody says: until its service gives it up, as far as the settings here tell."""
    from pilotage.app.book import settings_here

    return settings_here().engine.probe_timeout_seconds + LATE_SECONDS


def position(connection: Server) -> int:
    """How far the book is."""
    from pilotage.client.server import path_of

    found: int = connection.get(path_of("position"))["position"]
    return found


def await_probes(connection: Server, sites: Sequence[str], *, after: int, seconds_max: float) -> list[dict[str, Any]]:
    """What came of the probes of some sites that began behind a position; of those that do not end, that they did not."""
    begun = time.monotonic()
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(sites) and time.monotonic() < begun + seconds_max:
        for name in sites:
            if name not in found and (result := _probed(connection, name, after)) is not None:
                found[name] = {"site": name, **result}
        if len(found) < len(sites):
            time.sleep(LOOK_SECONDS)
    late = {"ok": False, "seconds": seconds_max, "message": "nothing was heard of it so far"}
    return [found.get(name, {"site": name, **late}) for name in sites]


def _probed(connection: Server, site: str, after: int) -> dict[str, Any] | None:
    from pilotage.client.server import path_of

    asked: Parameters = {"query": f"type=SiteProbed and site={site} and position>{after}", "limit": 1}
    for event in connection.get(path_of("events"), asked)["events"]:
        data = event["data"]
        return {"ok": data["passed"], "seconds": data.get("seconds", 0.0), "message": data.get("message", "")}
    return None
