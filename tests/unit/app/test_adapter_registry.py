"""Adapters of other distributions: each is one file and one line, found by its entry point, and used as built-in ones are."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.settings.settings_files import load_settings
from pilotage.app import adapter_registry
from pilotage.app.adapter_registry import BUILT_IN, BrokenAdapter, adapter_names, find_adapter
from pilotage.app.service.credentials import tokens_of
from pilotage.app.service.notifiers import Transports
from pilotage.app.sites.connections import UnknownKind, access_for, other_sites
from pilotage.app.state_folder import open_journal, open_reader
from pilotage.book.notices.notices import Notice
from pilotage.model.settings.settings import BadJournalAddress, NotificationSettings
from pilotage.model.sites.entry import SiteEntry
from tests.kit.events import StandingClock

NOTICE = Notice(id="7.1", source="book", type="t", subject="j", time=0.0, data=msgspec.Raw(b"{}"))
PLUGIN = """
from pathlib import Path
from pilotage.adapters.journals.sqlite.adapter import open_journal as open_sqlite, open_reader as read_sqlite
from pilotage.model.settings.settings import JournalAddress


class Cloud:
    look_seconds = 60.0

    def __init__(self, entry, around):
        self.entry, self.around = entry, around

    def submit_pilots(self, key, *, count=1):
        return [f"{self.entry.name}/{key}/{Path(self.around.folder).name}"]


class Pigeon:
    notices_max, pause_seconds = 1, 0.0
    told = []

    def __init__(self, settings, *, clock):
        pass

    def check_address(self, address):
        pass

    def tell(self, address, notices, *, secret):
        self.told.append((address, [each.id for each in notices]))


def _folder(address):
    return JournalAddress(kind="sqlite", folder=address.url.partition("://")[2])


def open_journal(address, *, indexed):
    return open_sqlite(_folder(address), indexed=indexed)


def open_reader(address, *, indexed):
    return read_sqlite(_folder(address), indexed=indexed)
"""
ENTRY_POINTS = """
[pilotage.sites]
cloud = pilotage_cloud:Cloud
broken = pilotage_cloud:NoSuchThing

[pilotage.notifiers]
pigeon = pilotage_cloud:Pigeon

[pilotage.journals]
clay = pilotage_cloud
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with a site, a notifier and a journal of its own, as an installer leaves it."""
    place = tmp_path / "site-packages"
    about = place / "pilotage_cloud-1.0.dist-info"
    about.mkdir(parents=True)
    (place / "pilotage_cloud.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pilotage-cloud\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(place))
    adapter_registry._installed.cache_clear()
    yield
    adapter_registry._installed.cache_clear()
    sys.modules.pop("pilotage_cloud", None)


def test_the_table_of_built_in_adapters_is_that_of_the_distribution(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"] == BUILT_IN


@pytest.mark.parametrize("group, name", [(group, name) for group, names in BUILT_IN.items() for name in names])
def test_a_built_in_adapter_is_found_without_a_scan(
    group: adapter_registry.Group, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", None)
    assert find_adapter(group, name) is not None


def test_who_opens_a_book_does_not_load_what_scans_distributions(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from pilotage.app.state_folder import open_journal, settings_here\n"
        "open_journal(settings_here({'journal.url': 'sqlite:book'})).close()\n"
        "assert 'importlib.metadata' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.usefixtures("installed")
def test_a_site_of_an_installed_kind_is_used(tmp_path: Path) -> None:
    entry = SiteEntry(name="lyon", kind="cloud", slots=4)
    (_, site), *_ = other_sites([entry])
    assert (site.kind, site.capacity.cores_hundredths) == ("cloud", 400)
    settings = load_settings(environment={}, folder=tmp_path, flags={})
    state = tmp_path / "state"
    state.mkdir()
    access = access_for(entry, state=state, settings=settings, tokens=tokens_of(state, settings))
    assert access.submit_pilots("key") == ["lyon/key/lyon"]


@pytest.mark.usefixtures("installed")
def test_an_unknown_kind_of_site_names_those_that_exist() -> None:
    with pytest.raises(UnknownKind) as refused:
        other_sites([SiteEntry(name="lyon", kind="clowd")])
    for known in ("local", "cloud", "slurm", "htcondor"):
        assert known in refused.value.expected.split(", ")


@pytest.mark.usefixtures("installed")
def test_a_site_agent_cannot_submit_to_an_installed_kind() -> None:
    with pytest.raises(UnknownKind, match="site agent") as refused:
        other_sites([SiteEntry(name="lyon", kind="cloud", started_by="agent")])
    assert "cloud" not in refused.value.expected


@pytest.mark.usefixtures("installed")
def test_an_adapter_that_cannot_be_loaded_is_told_with_its_distribution() -> None:
    with pytest.raises(BrokenAdapter, match="broken of pilotage-cloud"):
        other_sites([SiteEntry(name="lyon", kind="broken")])


@pytest.mark.usefixtures("installed")
def test_an_installed_notifier_is_a_transport() -> None:
    transports = Transports(NotificationSettings(), clock=StandingClock())
    assert "pigeon" in transports
    transports["pigeon"].tell("the loft", [NOTICE], secret="")
    assert type(transports["pigeon"]).told == [("the loft", ["7.1"])]  # type: ignore[attr-defined]
    assert set(transports) == {"webhook", "pigeon"}
    assert len(transports) == 2
    assert transports.get("owl") is None


@pytest.mark.usefixtures("installed")
def test_a_book_is_opened_by_an_installed_journal(tmp_path: Path) -> None:
    settings = load_settings(environment={}, folder=tmp_path, flags={"journal.url": f"clay://{tmp_path}/tablets"})
    open_journal(settings).close()
    assert (tmp_path / "tablets" / "book.sqlite").is_file()
    reader = open_reader(settings)
    assert reader is not None
    reader.close()


@pytest.mark.usefixtures("installed")
def test_an_unknown_journal_names_those_that_exist(tmp_path: Path) -> None:
    settings = load_settings(environment={}, folder=tmp_path, flags={"journal.url": "stone://secret:word@host/x"})
    with pytest.raises(BadJournalAddress) as refused:
        open_journal(settings)
    assert refused.value.expected == "clay, postgresql, sqlite"
    assert "word" not in str(refused.value)


@pytest.mark.usefixtures("installed")
def test_every_name_is_told_once() -> None:
    assert adapter_names("pilotage.sites") == ["broken", "cloud", "local"]
