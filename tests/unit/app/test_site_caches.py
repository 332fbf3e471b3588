"""Where the cache of each kind of site is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.adapters.sites.install import site_prefix
from pilotage.app.sites.caches import cache_of
from pilotage.model.sites.entry import SiteEntry
from pilotage.service.transfers.transfers import SiteCache


def found(state: Path, **fields: object) -> SiteCache | None:
    entry = SiteEntry(**{"name": "lyon", "kind": "slurm", **fields})  # type: ignore[arg-type]
    return cache_of("lyon", {"lyon": entry}, state=state)


def test_this_computer_has_it_in_the_state_folder(tmp_path: Path) -> None:
    assert cache_of("local", {"local": None}, state=tmp_path) == SiteCache(folder=f"{tmp_path}/cache")
    assert found(tmp_path, kind="local") == SiteCache(folder=f"{tmp_path}/sites/lyon/cache")


def test_a_batch_system_here_has_it_in_the_folder_of_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    prefix = site_prefix(tmp_path, "lyon")
    assert found(tmp_path) == SiteCache(folder=f"/home/ann/.pilotage-site/{prefix}/cache")
    assert found(tmp_path, folder="~") == SiteCache(folder=f"/home/ann/{prefix}/cache")
    assert found(tmp_path, folder="/scratch/ann") == SiteCache(folder=f"/scratch/ann/{prefix}/cache")


def test_an_entry_names_folder_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    limits = {"transfers_max": 2, "transfer_bytes_per_second": 1000}
    expected = SiteCache(folder="/home/ann/big cache", transfers_max=2, bytes_per_second=1000)
    assert found(tmp_path, cache="~/big cache", **limits) == expected


def test_a_site_elsewhere_is_reached_by_sftp(tmp_path: Path) -> None:
    prefix = site_prefix(tmp_path, "lyon")
    there = "sftp://me@login.example:2222"
    assert found(tmp_path, address="ssh://me@login.example:2222") == SiteCache(
        locator=f"{there}/~/.pilotage-site/{prefix}/cache"
    )
    assert found(tmp_path, address="ssh://me@login.example:2222", cache="/data/a b") == SiteCache(
        locator=f"{there}/data/a%20b"
    )


def test_a_site_with_a_site_agent_looks_after_its_own_and_an_unknown_one_has_none(tmp_path: Path) -> None:
    assert found(tmp_path, started_by="agent") is None
    assert cache_of("paris", {}, state=tmp_path) is None
