"""The sites of a running service follow their file; a file that cannot be read changes nothing, and that is said."""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from pilotage.app.sites.connections import SitesReader
from pilotage.model.errors import DocumentError, PilotageError
from pilotage.model.site import Site
from pilotage.model.sites.entry import SiteEntry, site_of
from pilotage.ports import SiteAccess, SiteUnreachable
from pilotage.service.sites.config_watch import ConfiguredSite, SitesFileWatcher, connect_sites
from pilotage.service.sites.pool import Prober, SiteConnection
from tests.kit.pilots import wait_until

LYON = "  - {name: lyon, kind: slurm}\n"
FARM = "  - {name: farm, kind: gridengine}\n"


class Changed:
    """Stands in for what runs jobs: notes which sites it was given, and the ways that were made."""

    def __init__(self) -> None:
        self.sites: list[str] = []
        self.connections: list[str] = []
        self.renewed: list[str] = []
        self.formers: list[str] = []
        self.looks = 0
        self.surprises: list[Exception] = []

    def change_sites(
        self,
        sites: Sequence[Site],
        connections: Mapping[str, SiteConnection],
        *,
        renewed: Collection[str] = (),
        formers: Mapping[str, SiteConnection] | None = None,
    ) -> None:
        if self.surprises:
            raise self.surprises.pop()
        self.sites = [site.name for site in sites]
        self.connections += sorted(connections)
        self.renewed, self.formers = sorted(renewed), sorted(formers or {})

    def release_sites(self) -> None:
        self.looks += 1


class Access:
    """Stands in for a way to a site: notes that it is let go of."""

    closed = False

    def close(self) -> None:
        self.closed = True


class House:
    """A folder, and a keeper of the sites in it, which looks when the test says so.

    What is in `surprises` is raised where the sites are arranged, and what is in `unmade` where the way to a site is made.
    """

    def __init__(self, folder: Path, *sites: str) -> None:
        self.file = folder / "sites.yaml"
        self.runner = Changed()
        self.surprises: list[Exception] = []
        self.unmade: dict[str, Exception] = {}
        self.made: list[Access] = []
        self.write(*sites)
        reader = SitesReader(lambda: self.file, self.arranged)
        self.keeper = SitesFileWatcher(reader, self.runner, configured=reader.changed() or ())

    def write(self, *sites: str) -> None:
        self.file.write_text("".join(["pilotage: 1\nsites:", "\n" if sites else " []\n", *sites]))

    def arranged(self, entries: Sequence[SiteEntry]) -> list[ConfiguredSite]:
        if self.surprises:
            raise self.surprises.pop()
        return [ConfiguredSite(site=site_of(each), entry=each, make=partial(self.make, each.name)) for each in entries]

    def make(self, name: str) -> SiteAccess:
        if name in self.unmade:
            raise self.unmade[name]
        self.made.append(Access())
        return cast("SiteAccess", self.made[-1])

    def look(self) -> list[str]:
        self.keeper.look()
        return self.runner.sites


def test_sites_come_go_and_change_with_their_file(tmp_path: Path) -> None:
    house = House(tmp_path, LYON)
    assert (house.look(), [*house.keeper.known.entries]) == ([], ["lyon"])  # nothing has changed
    house.write(LYON, FARM)
    assert (house.look(), house.runner.connections) == (["lyon", "farm"], ["farm"])
    house.write(LYON.replace("slurm", "slurm, queue: long"), FARM)
    assert (house.look(), house.runner.connections) == (["lyon", "farm"], ["farm", "lyon"])
    house.write(FARM)
    assert (house.look(), house.runner.connections) == (["farm"], ["farm", "lyon"])
    assert [*house.keeper.known.entries] == ["farm"]


@pytest.mark.parametrize(
    "changed, renewed, formers",
    [
        ("kind: slurm, pilots_max: 3", [], []),
        ("kind: slurm, users: [ann]", [], []),
        ("kind: slurm, setup: [module load slurm]", ["lyon"], []),
        ("kind: slurm, queue: long", ["lyon"], []),
        ("kind: gridengine", ["lyon"], ["lyon"]),
        ("kind: slurm, address: 'ssh://me@other'", ["lyon"], ["lyon"]),
    ],
)
def test_what_an_entry_says_of_pilots_renews_them_and_another_batch_system_is_looked_after_until_it_is_empty(
    tmp_path: Path, changed: str, renewed: list[str], formers: list[str]
) -> None:
    house = House(tmp_path, LYON)
    house.write(f"  - {{name: lyon, {changed}}}\n")
    house.look()
    assert (house.runner.connections, house.runner.renewed, house.runner.formers) == (["lyon"], renewed, formers)


def test_an_agent_of_its_own_looks_after_the_batch_system_that_its_entry_named_before(tmp_path: Path) -> None:
    house = House(tmp_path, LYON.replace("slurm", "slurm, started_by: agent"))
    house.write(LYON.replace("slurm", "gridengine, started_by: agent"))
    house.look()
    assert (house.runner.renewed, house.runner.formers) == (["lyon"], [])


def test_a_comment_changes_nothing(tmp_path: Path) -> None:
    house = House(tmp_path, LYON)
    house.write(LYON, "  # no more\n")
    assert (house.look(), house.runner.connections) == ([], [])


def test_a_faulty_file_keeps_the_sites_and_says_so_once_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = House(tmp_path, LYON)
    house.write(LYON, "  - {name: farm, kidn: slurm}\n")
    with caplog.at_level(logging.WARNING):
        house.look()
        house.look()
    assert [record.message.count("kidn") for record in caplog.records] == [1]
    known = house.keeper.known
    assert ([*known.entries], "kidn" in known.fault, known.file) == (["lyon"], True, str(house.file))
    house.write(LYON, FARM)
    assert (house.look(), house.keeper.known.fault) == (["lyon", "farm"], "")


def test_a_faulty_file_is_not_read_again_before_it_changes(tmp_path: Path) -> None:
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites: 3\n")
    reader = SitesReader(lambda: tmp_path / "sites.yaml", lambda _: [])
    with pytest.raises(DocumentError):
        reader.changed()
    assert reader.changed() is None


def test_what_keeps_the_sites_from_being_arranged_is_told_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = House(tmp_path, LYON)
    house.write(LYON, FARM)
    full = OSError(errno.ENOSPC, "No space left on device")
    house.surprises = [full, full]
    with caplog.at_level(logging.WARNING):
        assert house.look() == []
        assert "No space left" in house.keeper.known.fault
        assert house.look() == []
        assert [record.message.count("No space left") for record in caplog.records] == [1]
    assert (house.look(), house.keeper.known.fault) == (["lyon", "farm"], "")


def test_a_way_that_cannot_be_made_is_told_by_the_name_of_its_site_and_tried_again(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.write(LYON, FARM)
    house.unmade = {"farm": ValueError("only one's own home folder")}
    assert house.look() == []
    assert "farm" in house.keeper.known.fault
    assert "only one's own home folder" in house.keeper.known.fault
    assert [each.closed for each in house.made] == [True]
    house.unmade.clear()
    assert (house.look(), house.keeper.known.fault) == (["lyon", "farm"], "")
    assert [each.closed for each in house.made] == [True, False, False]


def test_sites_that_could_not_be_handed_over_are_handed_over_at_the_next_look(tmp_path: Path) -> None:
    house = House(tmp_path, LYON)
    house.write(LYON, FARM)
    house.runner.surprises = [RuntimeError("can't start new thread")]
    assert (house.look(), [*house.keeper.known.entries]) == ([], ["lyon"])
    assert "new thread" in house.keeper.known.fault
    assert (house.look(), house.keeper.known.fault) == (["lyon", "farm"], "")


def test_a_file_that_became_faulty_is_not_what_it_was_before(tmp_path: Path) -> None:
    house = House(tmp_path, LYON)
    house.write(LYON, FARM)
    house.unmade = {"farm": OSError("a moment")}
    house.look()
    house.write(LYON, FARM, "  - {name: paris, kidn: slurm}\n")
    house.unmade.clear()
    assert (house.look(), "kidn" in house.keeper.known.fault) == ([], True)
    assert (house.look(), "kidn" in house.keeper.known.fault) == ([], True)


def test_a_fault_that_is_over_is_told_no_more_though_the_file_is_as_before(tmp_path: Path) -> None:
    house = House(tmp_path, LYON)
    before, farther = house.file, tmp_path / "other.yaml"
    farther.write_text("pilotage: 1\nsites: []\n")
    house.file = farther
    house.surprises = [OSError("a moment")]
    house.look()
    house.look()
    assert "a moment" in house.keeper.known.fault
    house.file = before
    assert (house.look(), house.keeper.known.fault, house.runner.connections) == ([], "", [])


def test_a_service_does_not_begin_with_a_site_that_cannot_be_and_says_which() -> None:
    made = [Access()]

    def refuse() -> SiteAccess:
        raise OSError(errno.ENOSPC, "No space left on device")

    configured = [
        ConfiguredSite(site=Site(name="lyon"), make=lambda: cast("SiteAccess", made[0])),
        ConfiguredSite(site=Site(name="farm"), make=refuse),
    ]
    with pytest.raises(PilotageError, match=r"farm.*No space left"):
        connect_sites(configured)
    assert made[0].closed


def test_a_kind_that_nobody_knows_is_a_fault_of_the_file(tmp_path: Path) -> None:
    from pilotage.app.sites.connections import UnknownKind, refuse_unknown_kind

    refuse_unknown_kind(SiteEntry(name="lyon", kind="slurm"))
    with pytest.raises(UnknownKind, match="pilotage site pack"):
        refuse_unknown_kind(SiteEntry(name="lyon", kind="slrum"))


def test_a_file_that_is_gone_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    house = House(tmp_path, LYON)
    house.file.unlink()
    house.look()
    assert [*house.keeper.known.entries] == ["lyon"]
    house.write(LYON)
    house.look()
    house.look()
    assert (house.runner.sites, house.runner.connections) == ([], [])
    house.file.unlink()
    house.look()
    house.look()
    assert [*house.keeper.known.entries] == []


def test_it_looks_by_itself_and_a_surprise_does_not_end_that(tmp_path: Path) -> None:
    house = House(tmp_path, LYON)
    surprises = [RuntimeError("a surprise")]

    def besides() -> None:
        if surprises:
            raise surprises.pop()

    keeper = SitesFileWatcher(
        SitesReader(lambda: house.file, house.arranged), house.runner, configured=(), look_seconds=0.01, besides=besides
    )
    keeper.start()
    try:
        wait_until(lambda: house.runner.looks > 2, 20)
    finally:
        keeper.stop()
    assert (house.runner.sites, surprises) == (["lyon"], [])


# --- probes ---


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_so_many_probes_are_under_way_and_no_site_is_asked_too_often() -> None:
    clock, asked = Clock(), list[str]()
    prober = Prober(asked.append, at_once=2, every_seconds=3600.0, clock=clock)
    sites = ["a", "b", "c"]
    assert prober.look(sites, under_way=[]) == ["a", "b"]
    assert prober.look(sites, under_way=["a", "b"]) == []
    assert prober.look(sites, under_way=["b"]) == ["c"]
    assert prober.look(sites, under_way=[]) == []
    clock.now = 3600.0
    assert prober.look(sites, under_way=[]) == ["a", "b"]
    assert asked == ["a", "b", "c", "a", "b"]


def test_without_a_number_there_are_none_and_a_refusal_is_no_end() -> None:
    def refuse(site: str) -> None:
        raise SiteUnreachable("it is being probed", subject=site)

    clock = Clock()
    assert Prober(refuse, at_once=0, every_seconds=1.0, clock=clock).look(["a"], under_way=[]) == []
    assert Prober(refuse, at_once=2, every_seconds=1.0, clock=clock).look(["a", "b"], under_way=[]) == ["a", "b"]
