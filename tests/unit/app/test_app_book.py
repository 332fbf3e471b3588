"""The book put together: where its service may be found, and how it is opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pilotage.adapters.settings.settings_files import load_settings
from pilotage.app import maintenance, state_folder
from pilotage.model.errors import MissingExtra, PilotageError
from pilotage.model.settings.settings import Settings
from pilotage.ports import JournalBusy
from pilotage.service.journal.writer import BatchCommitter
from tests.kit.events import StandingClock, a_short_job


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def places(folder: Path, **environment: str) -> Iterator[tuple[Path, str]]:
    for found in state_folder.state_folders(environment={"XDG_CONFIG_DIRS": "/nowhere", **environment}, folder=folder):
        yield found.path, found.usual_url


def settings(**flags: object) -> Settings:
    said = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(environment={"XDG_CONFIG_DIRS": "/nowhere"}, folder=Path.cwd(), flags=said)


def test_a_service_is_looked_for_here_and_then_upward(tmp_path: Path) -> None:
    here = tmp_path / "here"
    (tmp_path / "pilotage.toml").write_text('[journal]\nurl = "sqlite:books"\n[service]\nport = 7000\n')
    found = list(places(here))
    assert found[:2] == [
        (here / ".pilotage", "http://127.0.0.1:8642"),
        (tmp_path / "books", "http://127.0.0.1:7000"),
    ]


def test_the_environment_says_which_book_is_meant(tmp_path: Path) -> None:
    assert next(places(tmp_path, PILOTAGE_JOURNAL_URL="sqlite:elsewhere"))[0] == tmp_path / "elsewhere"


@pytest.mark.parametrize(
    "host, url", [("0.0.0.0", "http://127.0.0.1:8642"), ("::1", "http://[::1]:8642"), ("node7", "http://node7:8642")]
)
def test_a_service_that_listens_everywhere_is_reached_here(tmp_path: Path, host: str, url: str) -> None:
    assert next(places(tmp_path, PILOTAGE_SERVICE_HOST=host))[1] == url
    assert next(places(tmp_path, PILOTAGE_SERVICE_HOST=host, PILOTAGE_SERVICE_PORT="0"))[1] == ""


def test_broken_settings_above_are_nobodys_trouble_here(tmp_path: Path) -> None:
    (tmp_path / "pilotage.toml").write_text("what is this")
    assert len(list(places(tmp_path / "here"))) >= 1
    with pytest.raises(PilotageError, match="is not TOML"):
        list(places(tmp_path))


def test_a_journal_is_opened_as_the_settings_say() -> None:
    journal = state_folder.open_journal(settings(journal__url="sqlite:a"))
    try:
        assert journal.position() == 0
        with pytest.raises(JournalBusy):
            state_folder.open_journal(settings(journal__url="sqlite:a"))
    finally:
        journal.close()


def test_an_index_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(PilotageError, match="sitte"):
        state_folder.open_journal(settings(journal__url="sqlite:a", query__indexed=["sitte"]))


def test_postgresql_without_its_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pilotage.adapters.journals.postgres.journal")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match="to keep the book in PostgreSQL"):
        state_folder.open_journal(settings(journal__url="postgresql://nobody@127.0.0.1:1/none"))


def test_looking_after_a_book_makes_none() -> None:
    for look in (maintenance.check_book, maintenance.rebuild_book):
        with pytest.raises(maintenance.NoBook, match="there is no book here"):
            look(settings())
    assert list(Path.cwd().iterdir()) == []


def test_the_owner_is_the_account_and_not_what_the_environment_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    told = state_folder.local_user()
    monkeypatch.setenv("USER", "somebody-else")
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert state_folder.local_user() == told != "somebody-else"


def test_all_of_a_backup_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = settings()
    folder, target, real = Path(here.journal.address.folder), tmp_path / "saved", os.fsync
    with closing(state_folder.open_journal(here)) as journal:
        BatchCommitter(journal, clock=StandingClock()).take([*a_short_job("j1"), *a_short_job("j2")])
        journal.seal("j1")
    (folder / "keys").mkdir()
    (folder / "keys/a").write_text("a key")
    (folder / "token").write_text("a token")
    before, after = set[Path](), set[Path]()

    def sync(descriptor: int) -> None:
        real(descriptor)
        (after if target.exists() else before).add(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", sync)
    assert maintenance.backup_book(here, target).sealed == 1
    (made,) = {path for path in before if path.name == "book"}
    assert {path.relative_to(target) for path in (target, *target.rglob("*"))} == {
        path.relative_to(made) for path in before
    }
    assert after == {tmp_path}


@pytest.mark.parametrize(
    "flags, expected",
    [
        ({}, (0,)),
        ({"service__host": "localhost"}, (0,)),
        ({"service__host": "::1"}, (0,)),
        ({"service__port": 0}, ()),
        ({"service__port": 8642}, ()),
        ({"service__address": "https://front.example.org"}, ()),
        ({"service__host": "0.0.0.0"}, ()),
    ],
)
def test_another_port_will_do_only_where_nobody_has_said_which_and_nobody_comes_from_elsewhere(
    flags: dict[str, object], expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_DIRS", "/nowhere")
    said = {name.replace("__", "."): value for name, value in flags.items()}
    assert state_folder.other_ports(settings(**flags), folder=Path.cwd(), flags=said) == expected


def test_a_book_is_opened_to_be_read_beside_its_writer_unless_it_is_of_another_version(tmp_path: Path) -> None:
    chosen = settings(journal__url=f"sqlite:{tmp_path / 'book'}")
    assert state_folder.open_reader(chosen) is None
    with closing(state_folder.open_journal(chosen)) as journal:
        BatchCommitter(journal, clock=StandingClock()).take(a_short_job())
        reader = state_folder.open_reader(chosen)
        assert reader is not None
        with closing(reader):
            assert reader.job("j1") is not None
