"""What of a job goes on at other sites when the service that was started for its run is stopped."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from pilotage.app.site_entries import LOCAL
from pilotage.client import Server
from pilotage.client.server import Parameters, path_of
from pilotage.model.errors import PilotageError

_LOOKED_AT = 1000


def goes_on_elsewhere(server: Server, job: str) -> str:
    """How many packages of a job run at sites that stopping does not end, in words; empty where nobody knows of any."""
    found: Counter[str] = Counter()
    with suppress(PilotageError):  # who does not answer is stopped all the same
        asked: Parameters = {"query": f"job={job} and state in (SCHEDULED, RUNNING)", "limit": _LOOKED_AT}
        for package in server.get(path_of("packages"), asked)["packages"]:
            if package["site"] not in (None, "", LOCAL):
                found[package["site"]] += 1
    told = ", ".join(f"{count} at {site}" for site, count in sorted(found.items()))
    return f"what runs elsewhere goes on and is kept: {told}" if told else ""
