"""The agent of a site beyond ssh: what is said where there is no way, and that nothing of it is left when the service ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pilotage.adapters.sites.commands import Ssh
from pilotage.adapters.sites.ssh_agent import SshSiteAgent, SshSiteAgentSettings
from pilotage.model.errors import PilotageError
from pilotage.model.sites.entry import SiteEntry
from tests.engines.debian import ensure_programs
from tests.engines.postgres import free_port
from tests.kit.pilots import wait_until


def test_where_there_is_no_way_ssh_says_why_and_stopping_is_quick(tmp_path: Path) -> None:
    ensure_programs(["ssh"], packages=["openssh-client"])
    address = f"ssh://somebody@127.0.0.1:{free_port()}"
    entry = SiteEntry(name="lyon", kind="slurm", address=address, started_by="agent")
    settings = SshSiteAgentSettings(entry=entry, prefix="pilotage-x", socket=tmp_path / "agent.sock", token=lambda: "t")
    outpost = SshSiteAgent(settings, Ssh(address, state=tmp_path))
    said: list[str] = []
    outpost.start(heard_at=lambda: 0.0, complain=said.append)
    wait_until(lambda: said)
    begun_at = time.monotonic()
    outpost.stop()
    assert time.monotonic() - begun_at < 10.0
    assert "Connection refused" in said[0]


class Faulty(Ssh):
    """A way of which something goes wrong that has nothing to do with it."""

    fault: Exception

    def held(self, command: str) -> list[str]:
        raise self.fault


@pytest.mark.parametrize(
    "fault, said_of_it",
    [(PilotageError("no key to sign with"), "no key to sign with"), (KeyError("exp"), "KeyError: 'exp'")],
)
def test_whatever_goes_wrong_is_told_and_tried_again_and_logged_once(
    tmp_path: Path, fault: Exception, said_of_it: str, caplog: pytest.LogCaptureFixture
) -> None:
    entry = SiteEntry(name="lyon", kind="slurm", address="ssh://somebody@127.0.0.1", started_by="agent")
    settings = SshSiteAgentSettings(entry=entry, prefix="pilotage-x", socket=tmp_path / "agent.sock", token=lambda: "t")
    way = Faulty(entry.address, state=tmp_path)
    way.fault = fault
    outpost = SshSiteAgent(settings, way)
    said: list[str] = []
    outpost.start(heard_at=lambda: 0.0, complain=said.append)
    try:
        wait_until(lambda: len(said) > 1)
    finally:
        outpost.stop()
    assert said_of_it in said[0]
    assert said[1] == said[0]
    assert [each.message for each in caplog.records].count(f"site lyon: {said[0]}") == 1


@pytest.mark.parametrize(
    "mark, own, expected", [("", "b", True), ("a", "", True), ("a", "a", True), ("a", "b", False), ("", "", True)]
)
def test_an_agent_is_started_anew_only_where_its_mark_is_known_and_another(
    tmp_path: Path, mark: str, own: str, expected: object
) -> None:
    entry = SiteEntry(name="lyon", kind="slurm", address="ssh://somebody@127.0.0.1", started_by="agent")
    settings = SshSiteAgentSettings(entry=entry, prefix="pilotage-x", socket=tmp_path / "agent.sock", token=lambda: "t")
    outpost = SshSiteAgent(settings, Ssh(entry.address, state=tmp_path))
    outpost._mark = own
    try:
        assert outpost.is_as_started(mark) is expected
    finally:
        outpost.stop()
