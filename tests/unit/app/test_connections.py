"""Where pilots of a site find the service, and which way the service takes to each site of its file."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.sites.batch import BatchSite
from pilotage.adapters.sites.local import LocalSite
from pilotage.app.service.credentials import tokens_of
from pilotage.app.sites.connections import (
    FixedSites,
    UnknownKind,
    access_for,
    agent_sites_for,
    ca_file_of,
    configured_sites,
    is_loopback,
    server_for,
    slots_of,
)
from pilotage.model.settings.settings import ServiceSettings, Settings
from pilotage.model.sites.entry import SiteEntry, site_of
from pilotage.ports import SiteUnreachable, SubmissionRefused
from pilotage.service.announcement import SERVICE_FILE
from pilotage.service.sites.agent_worker import AgentSettings
from pilotage.service.sites.config_watch import ConfiguredSite

HERE = SiteEntry(name="cluster", kind="slurm")
AFAR = SiteEntry(name="cluster", kind="slurm", address="ssh://ada@login.example.org")
THROUGH_HERE = SiteEntry(name="cluster", kind="slurm", address="ssh://ada@localhost:2222")


def announce(state: Path, url: str, *, ca_file: str = "") -> None:
    told = {"url": url, "pid": 1, "token_file": "t", "version": "1", "started_at": 1.0, "ca_file": ca_file}
    (state / SERVICE_FILE).write_text(json.dumps(told), "utf-8")


def on(**settings: str) -> Settings:
    return Settings(service=ServiceSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "entry, settings, url, expected",
    [
        (HERE, on(address="https://front.example.org/"), "", "https://front.example.org"),
        (HERE, on(host="127.0.0.1"), "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        (THROUGH_HERE, on(host="127.0.0.1"), "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        (AFAR, on(host="head"), "http://head:8000", "http://head:8000"),
        (AFAR, on(host="0.0.0.0"), "https://127.0.0.1:8000", f"https://{socket.getfqdn()}:8000"),
        (AFAR, on(host="::"), "http://[::1]:8000", f"http://{socket.getfqdn()}:8000"),
    ],
)
def test_pilots_are_told_an_address_that_they_can_reach(
    tmp_path: Path, entry: SiteEntry, settings: Settings, url: str, expected: str
) -> None:
    if url:
        announce(tmp_path, url)
    assert server_for(entry, state=tmp_path, settings=settings) == expected


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"])
def test_pilots_of_another_computer_are_not_told_this_ones_own_address(tmp_path: Path, url: str) -> None:
    announce(tmp_path, url)
    with pytest.raises(SubmissionRefused, match="listens only on this computer") as refused:
        server_for(AFAR, state=tmp_path, settings=on(host="127.0.0.1"))
    assert refused.value.reason == "unreachable-server"


def test_a_service_that_has_not_said_where_it_answers_has_no_address(tmp_path: Path) -> None:
    with pytest.raises(SiteUnreachable, match="has not announced"):
        server_for(HERE, state=tmp_path, settings=on(host="127.0.0.1"))


@pytest.mark.parametrize(
    "host, expected",
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("head", False), ("", False)],
)  # fmt: skip
def test_which_hosts_are_the_computer_that_asks(host: str, expected: object) -> None:
    assert is_loopback(host) is expected


def test_the_authority_of_the_service_is_the_one_it_announced(tmp_path: Path) -> None:
    announce(tmp_path, "https://head:8000")
    assert ca_file_of(tmp_path) is None
    announce(tmp_path, "https://head:8000", ca_file="/state/tls/ca.pem")
    assert ca_file_of(tmp_path) == Path("/state/tls/ca.pem")


def test_a_batch_system_and_this_computer_are_reached_by_ways_of_their_own(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, Settings())
    ways = {
        kind: access_for(SiteEntry(name="s", kind=kind), state=tmp_path, settings=Settings(), tokens=tokens)
        for kind in ("local", "slurm")
    }
    try:
        assert isinstance(ways["local"], LocalSite)
        assert isinstance(ways["slurm"], BatchSite)
    finally:
        for way in ways.values():
            way.close()
    with pytest.raises(UnknownKind, match="this kind of site is unknown") as refused:
        access_for(SiteEntry(name="s", kind="abacus"), state=tmp_path, settings=Settings(), tokens=tokens)
    assert refused.value.expected.startswith("local, ")


def test_only_sites_with_an_agent_of_their_own_are_dealt_with_by_it_and_those_afar_have_an_outpost(
    tmp_path: Path,
) -> None:
    own = msgspec.structs.replace(HERE, name="own", started_by="agent")
    afar = msgspec.structs.replace(AFAR, name="afar", started_by="agent")
    found = agent_sites_for([HERE, own, afar], state=tmp_path, tokens=tokens_of(tmp_path, Settings()))
    assert {name: each.outpost is not None for name, each in found.items()} == {"own": False, "afar": True}
    assert [each.entry for each in found.values()] == [own, afar]


def test_this_computer_comes_first_with_its_own_entry_and_each_other_site_with_its_way(tmp_path: Path) -> None:
    local = SiteEntry(name="local", kind="local", slots=3)
    agent = msgspec.structs.replace(HERE, name="own", started_by="agent")
    asked: list[SiteEntry | None] = []

    def here(entry: SiteEntry | None) -> ConfiguredSite | None:
        asked.append(entry)
        return ConfiguredSite(site=site_of(local), entry=entry, make=lambda: None) if entry is not None else None  # type: ignore[arg-type, return-value]

    tokens = tokens_of(tmp_path, Settings())
    placed = configured_sites([HERE, local, agent], here=here, state=tmp_path, settings=Settings(), tokens=tokens)
    assert [each.site.name for each in placed] == ["local", "cluster", "own"]
    assert asked == [local]
    way = placed[1].make()
    assert isinstance(way, BatchSite)
    way.close()
    assert isinstance(placed[2].make(), AgentSettings)
    alone = configured_sites([HERE], here=here, state=tmp_path, settings=Settings(), tokens=tokens)
    assert ([each.site.name for each in alone], asked[1]) == (["cluster"], None)


def test_sites_that_are_given_are_told_once() -> None:
    given = FixedSites([])
    assert (given.changed(), given.changed()) == ([], None)


@pytest.mark.parametrize("sizes, expected", [([], 1), ([(2, 3)], 6), ([(2, 3), (1, 4)], 10)])
def test_as_many_packages_run_at_once_as_all_pilots_have_cores(sizes: list[tuple[int, int]], expected: int) -> None:
    sites = [site_of(SiteEntry(name="s", kind="slurm", pilots_max=pilots, slots=cores)) for pilots, cores in sizes]
    assert slots_of(sites) == expected
