"""What is written of this computer in the file of sites holds, beside what is measured here."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.sites.local import LocalSite
from pilotage.app.service import serve
from pilotage.app.service.serve import local_site, this_computer
from pilotage.app.simulation import sites_to_simulate
from pilotage.model.resources import AMOUNT_UNKNOWN
from pilotage.model.sites.entry import SiteEntry, pilots_max_of, site_of

ENTRY = SiteEntry(
    name="local",
    kind="local",
    slots=3,
    users=("ada",),
    wall_time_seconds=60.0,
    software=("root/6",),
    job_types=("mpi",),
    platform="x86_64-linux",
    initial_score=3.0,
    job_throttle=5.0,
    node_names=("desk",),
    stores=("s3://ours",),
    idle_seconds=5.0,
)


def test_all_that_is_written_of_it_reaches_the_engine_and_what_is_not_is_measured(tmp_path: Path) -> None:
    placed = this_computer(ENTRY, folder=tmp_path, slots=None, idle_seconds=300.0)
    assert placed is not None
    measured = local_site(3, tmp_path)
    expected = msgspec.structs.replace(site_of(ENTRY), capacity=measured.capacity, pilots_max=1)
    assert placed.site.scratch_bytes  # what a package brings must go in there
    assert placed.site.scratch_bytes < AMOUNT_UNKNOWN
    assert msgspec.structs.replace(placed.site, capacity=measured.capacity, scratch_bytes=None) == expected
    assert placed.entry == ENTRY


def test_its_platform_is_its_own_unless_another_is_written(tmp_path: Path) -> None:
    about = os.uname()
    own = f"{about.machine}-{about.sysname.lower()}"
    bare = msgspec.structs.replace(ENTRY, platform="")
    for entry, platform in ((None, own), (bare, own), (msgspec.structs.replace(ENTRY, platform="mips"), "mips")):
        placed = this_computer(entry, folder=tmp_path, slots=1, idle_seconds=300.0)
        assert placed is not None
        assert placed.site.platform == platform


def test_what_is_written_of_its_capacity_holds_before_what_is_measured(tmp_path: Path) -> None:
    entry = msgspec.structs.replace(ENTRY, memory_bytes=2**30, scratch_bytes=2**20, gpus=2)
    placed = this_computer(entry, folder=tmp_path, slots=1, idle_seconds=300.0)
    assert placed is not None
    assert placed.site.capacity == msgspec.structs.replace(site_of(entry).capacity, cores_hundredths=100)
    assert placed.site.scratch_bytes == 2**20


def test_free_space_that_changes_makes_it_no_other_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = local_site(2, tmp_path)
    monkeypatch.setattr(serve, "scratch_here", lambda folder: 2**20)
    after = local_site(2, tmp_path)
    assert (before.scratch_bytes or 0) > (after.scratch_bytes or 0)
    assert before.capacity == after.capacity


def test_without_an_entry_it_is_as_it_is_and_without_slots_it_is_none(tmp_path: Path) -> None:
    placed = this_computer(None, folder=tmp_path, slots=2, idle_seconds=300.0)
    assert placed is not None
    assert (placed.site.name, placed.site.capacity.cores_hundredths, placed.entry) == ("local", 200, None)
    assert this_computer(ENTRY, folder=tmp_path, slots=0, idle_seconds=300.0) is None


@pytest.mark.parametrize("entry, idle_seconds, wall_seconds", [(ENTRY, 5.0, 60.0), (None, 77.0, 0.0)])
def test_its_pilots_end_as_is_written_and_else_as_the_settings_say(
    entry: SiteEntry | None, idle_seconds: float, wall_seconds: float, tmp_path: Path
) -> None:
    placed = this_computer(entry, folder=tmp_path, slots=1, idle_seconds=77.0)
    assert placed is not None
    access = placed.make()
    assert isinstance(access, LocalSite)
    told = access._settings
    assert (told.idle_seconds, told.wall_seconds, told.state) == (idle_seconds, wall_seconds, tmp_path)


def test_it_is_simulated_with_one_pilot_as_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites.yaml").write_text(
        "pilotage: 1\nsites:\n  - {name: local, kind: local, slots: 2}\n  - {name: annex, kind: local}\n"
    )
    entries = sites_to_simulate(named="").entries
    assert [pilots_max_of(each) for each in entries] == [1, 1]
    assert [each.node_names for each in entries] == [(os.uname().nodename,)] * 2


def test_its_one_node_is_called_as_it_calls_itself_unless_its_entry_says_otherwise(tmp_path: Path) -> None:
    own = os.uname().nodename
    for entry, named in ((None, own), (SiteEntry(name="local", kind="local"), own), (ENTRY, "desk")):
        placed = this_computer(entry, folder=tmp_path, slots=1, idle_seconds=300.0)
        assert placed is not None
        assert placed.site.node_names == (named,)
