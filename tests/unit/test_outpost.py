"""The agent of a site beyond ssh: what is said where there is no way, and that nothing of it is left when the service ends."""

from __future__ import annotations

import time
from pathlib import Path

from pilotage.adapters.sites.callers import Ssh
from pilotage.adapters.sites.outpost import Outpost, OutpostSettings
from pilotage.model.site_entry import SiteEntry
from tests.engines.debian import ensure_programs
from tests.engines.postgres import free_port
from tests.pilots import wait_until


def test_where_there_is_no_way_ssh_says_why_and_stopping_is_quick(tmp_path: Path) -> None:
    ensure_programs(["ssh"], packages=["openssh-client"])
    address = f"ssh://somebody@127.0.0.1:{free_port()}"
    entry = SiteEntry(name="lyon", kind="slurm", address=address, started_by="agent")
    settings = OutpostSettings(entry=entry, prefix="pilotage-x", socket=tmp_path / "agent.sock", token=lambda: "t")
    outpost = Outpost(settings, Ssh(address, state=tmp_path))
    said: list[str] = []
    outpost.start(heard_at=lambda: 0.0, complain=said.append)
    wait_until(lambda: said)
    begun_at = time.monotonic()
    outpost.stop()
    assert time.monotonic() - begun_at < 10.0
    assert "Connection refused" in said[0]
