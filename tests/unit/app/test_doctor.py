"""The doctor names each hop that is broken, and says nothing bad of a healthy one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pilotage.adapters.settings.tokens import ensure_token
from pilotage.app.doctor import CheckedFolder, Finding, HostSystem, diagnose, folder_to_check
from pilotage.model.settings.settings import JournalSettings, ServiceSettings, Settings
from pilotage.model.settings.stores import StoreSettings
from pilotage.service.announcement import Announcement, announced
from pilotage.service.http.dispatcher import make_dispatcher
from pilotage.service.http.listener import Listener, bind, bind_local, url_of
from tests.kit.command_line import in_an_empty_folder, run
from tests.kit.running_jobs import running_services

WAIT_SECONDS = 60.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / ".pilotage"
    folder.mkdir(mode=0o700)
    return folder


def settings_of(state: Path, **service: Any) -> Settings:
    return Settings(journal=JournalSettings(url=f"sqlite:{state}"), service=ServiceSettings(port=0, **service))


def findings(state: Path, settings: Settings | None = None, **sick: Any) -> dict[str, Finding]:
    concerned = CheckedFolder(settings=settings or settings_of(state), folder=state.parent, state=state)
    return {each.hop: each for each in diagnose(concerned, world=HostSystem(**sick))}


def room(**more: int) -> Any:
    plain = {"f_bavail": 2**30, "f_frsize": 4096, "f_files": 10**6, "f_favail": 10**6, "f_flag": 0}
    return lambda _: SimpleNamespace(**{**plain, **more})


def test_what_an_installation_lacks_is_named(state: Path) -> None:
    assert "installation" not in findings(state)
    finding = findings(state, missing_parts=lambda: ["httptools", "uvicorn"])["installation"]
    assert (finding.verdict, finding.message.endswith("httptools, uvicorn")) == ("bad", True)
    assert finding.next_step == "install them: pip install httptools uvicorn"


def test_a_store_of_s3_without_its_extra_is_told(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = (StoreSettings(name="tape", url="s3://tape"),)
    settings = msgspec.structs.replace(settings_of(state), stores=stores)
    assert "installation" not in findings(state, settings)
    monkeypatch.setitem(sys.modules, "obstore", None)
    found = findings(state, settings)["installation"]
    assert (found.verdict, "pilotage[s3]" in found.next_step) == ("bad", True)


def test_a_healthy_folder_has_nothing_bad(state: Path) -> None:
    ensure_token(state)
    found = findings(state, network=lambda _: "", statvfs=room())
    assert [each for each in found.values() if each.verdict != "ok"] == [found["service"]]
    assert found["service"].next_step == "start it: pilotage serve"
    assert list(state.iterdir()) == [state / "token"]  # what was tried is gone


def test_a_state_folder_that_is_open_to_others_is_told_with_the_cure(state: Path) -> None:
    assert findings(state)["state folder: access"].verdict == "ok"
    state.chmod(0o755)
    finding = findings(state)["state folder: access"]
    assert (finding.verdict, finding.message) == (
        "bad",
        "other users can access the state folder: expected mode 700, got 755",
    )
    assert finding.next_step.startswith(f"chmod 700 {state}; or ")


def test_a_state_folder_that_is_not_there_yet_is_looked_for_above(tmp_path: Path) -> None:
    found = findings(tmp_path / "not" / "there")
    assert found["state folder"].message == f"{tmp_path} can be written"


@pytest.mark.parametrize(
    "sick, hop, verdict, told",
    [
        ({"python": (3, 9)}, "python", "bad", "Python 3.9 is too old"),
        ({"sqlite": "3.22.0"}, "sqlite", "bad", "SQLite 3.22.0 is too old"),
        (
            {"statvfs": room(f_bavail=100)},
            "state folder: space",
            "bad",
            "only 400 KiB are free, and a job needs 64 MiB or more",
        ),
        ({"statvfs": room(f_favail=3)}, "state folder: space", "bad", "only 3 more files fit here"),
        ({"statvfs": room(f_bavail=50_000)}, "state folder: space", "warn", "little space"),
        ({"statvfs": room(f_flag=os.ST_NOEXEC)}, "state folder: programs", "bad", "noexec"),
        ({"now": lambda: 0.0}, "state folder: clock", "bad", "ahead of this computer"),
        ({"network": lambda _: "nfs4"}, "file system", "warn", "nfs4"),
    ],
)
def test_each_broken_hop_is_named(state: Path, sick: dict[str, Any], hop: str, verdict: str, told: str) -> None:
    found = findings(state, **sick)[hop]
    assert found.verdict == verdict
    assert told in found.message
    assert found.next_step


def test_a_clock_that_is_a_little_wrong_is_a_warning(state: Path) -> None:
    assert findings(state, now=lambda: time.time() + 10.0)["state folder: clock"].verdict == "warn"


def test_a_file_system_without_hard_links_is_told(state: Path) -> None:
    def refuse(_: Path, __: Path) -> None:
        raise OSError(errno.EPERM, "not permitted")

    found = findings(state, link=refuse)["state folder: hard links"]
    assert (found.verdict, "copied" in found.message) == ("warn", True)


def test_a_folder_that_cannot_be_written_is_told(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def refuse(self: Path, *arguments: Any, **more: Any) -> Any:
        if ".pilotage-doctor" in self.name:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return real(self, *arguments, **more)

    monkeypatch.setattr(Path, "open", refuse)
    found = findings(state)["state folder"]
    assert (found.verdict, "read-only" in found.message) == ("bad", True)


def test_a_folder_whose_disk_takes_nothing_is_told(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(
        _: int,
    ) -> None:  # as a file server does that has no room: what is written is fine until it is to be kept
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", refuse)
    found = findings(state)["state folder"]
    assert (found.verdict, "quota exceeded" in found.message) == ("bad", True)


def test_a_port_that_is_taken_is_told(state: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        settings = Settings(journal=JournalSettings(url=f"sqlite:{state}"), service=ServiceSettings(port=port))
        found = findings(state, settings)["port"]
        may = CheckedFolder(settings=settings, folder=state.parent, state=state, port_may_change=True)
        changed = next(each for each in diagnose(may) if each.hop == "port")
    assert (found.verdict, f"127.0.0.1:{port}" in found.message) == ("bad", True)
    assert (changed.verdict, "a service here uses a free one" in changed.message) == ("warn", True)


def test_an_address_that_is_none_of_this_computer_is_told_as_such(state: Path) -> None:
    service = ServiceSettings(host="203.0.113.1", port=0)  # of an example in a document
    found = findings(state, Settings(journal=JournalSettings(url=f"sqlite:{state}"), service=service))["port"]
    assert (found.verdict, "--host" in found.next_step) == ("bad", True)


def test_whether_the_port_may_change_is_what_a_service_there_would_do(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_token(state)
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert folder_to_check(None).port_may_change
    (tmp_path / "pilotage.toml").write_text("[service]\nport = 8642\n")
    assert not folder_to_check(None).port_may_change
    assert folder_to_check(f"sqlite:{below}").port_may_change
    monkeypatch.setenv("PILOTAGE_SERVICE_PORT", "8642")
    assert not folder_to_check(f"sqlite:{below}").port_may_change


def test_a_token_that_others_may_read_is_told(state: Path) -> None:
    ensure_token(state)
    (state / "token").chmod(0o644)
    assert findings(state)["token"].verdict == "bad"


@pytest.fixture
def served(state: Path) -> Iterator[Announcement]:
    """A service that runs jobs, as its file announces it."""
    with (
        running_services(state) as (services, _),
        bind("127.0.0.1", 0) as bound,
        bind_local(state / "agent.sock") as local,
    ):
        dispatcher = make_dispatcher(services)
        started = threading.Event()
        listener = Listener(dispatcher, bound=bound, beside=[local], started=started.set, stopping=dispatcher.stop)
        thread = threading.Thread(target=listener.listen)
        thread.start()
        assert started.wait(WAIT_SECONDS)
        told = Announcement(
            url=url_of(bound),
            pid=os.getpid(),
            token_file=str(state / "token"),
            version="1",
            started_at=0.0,
            socket=str(state / "agent.sock"),
        )
        with announced(state, told):
            yield told
        listener.should_exit = True
        thread.join(WAIT_SECONDS)


def test_a_service_that_answers_on_both_sides_is_well(state: Path, served: Announcement) -> None:
    found = findings(state)
    assert [found[hop].verdict for hop in ("service", "socket", "agents")] == ["ok", "ok", "ok"]
    assert "port" not in found


@pytest.mark.parametrize("name, hop", [("book.sqlite", "book"), ("work.sqlite", "earlier work")])
def test_a_damaged_book_is_told(state: Path, name: str, hop: str) -> None:
    state.mkdir(exist_ok=True)
    with contextlib.closing(sqlite3.connect(state / name)) as made:
        made.executescript("CREATE TABLE t (a); CREATE TABLE u (a);")
    assert findings(state)[hop].verdict == "ok"
    with (state / name).open("r+b") as file:
        file.seek(4096)
        file.write(b"x" * 4096)
    found = findings(state)[hop]
    assert (found.verdict, "is damaged" in found.message) == ("bad", True)


def test_a_service_that_is_not_well_says_why(
    state: Path, served: Announcement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.service.http.services.Services.is_full", lambda _: True)
    found = findings(state)
    assert (found["service"].verdict, found["socket"].verdict) == ("bad", "ok")
    assert "is not well: the disk of the service is full" in found["service"].message


def test_a_socket_that_leads_nowhere_is_told(state: Path, served: Announcement) -> None:
    (state / "agent.sock").unlink()
    found = findings(state)
    assert (found["service"].verdict, found["socket"].verdict) == ("ok", "bad")
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(state / "agent.sock"))
        assert "connection refused" in findings(state)["socket"].message


def test_a_service_that_does_not_answer_is_told(state: Path) -> None:
    with bind("127.0.0.1", 0) as bound:
        url = url_of(bound)
    told = Announcement(url=url, pid=os.getpid(), token_file="", version="1", started_at=0.0)
    with announced(state, told):
        found = findings(state)["service"]
    assert (found.verdict, "does not answer" in found.message) == ("bad", True)


def test_an_agent_that_is_gone_is_told_with_its_last_words(state: Path, served: Announcement) -> None:
    (state / "pilots").mkdir()
    # Its number is that of another process by now: what tells is that nobody holds the lock of its record.
    (state / "pilots" / "key-1.json").write_text(json.dumps({"pid": os.getpid()}))
    (state / "pilots" / "key-1.err").write_text("one\ntwo\nno module named x\n")
    found = findings(state)
    assert "no module named x" in found["agent"].message
    with (state / "pilots" / "key-2.json").open("wb") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        assert findings(state)["agents"].message == "1 agent lives"


def test_in_a_folder_below_the_state_folder_of_the_one_above_is_looked_at(
    tmp_path: Path, state: Path, served: Announcement, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    below = state.parent / "below" / "further"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert folder_to_check(None).state == state
    assert not (below / ".pilotage").exists()
    # Where nothing is known above, or another is named, it is what was asked for.
    assert folder_to_check(f"sqlite:{below}").state == below
    (state / "service.json").unlink()
    (state / "token").unlink(missing_ok=True)
    assert folder_to_check(None).state == below / ".pilotage"


def test_the_command_ends_with_1_where_something_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("PILOTAGE_SERVICE_PORT", "0")
    assert run("doctor").exit_code == 0
    told = json.loads(run("doctor", "--json").stdout)["findings"]
    assert {"hop", "verdict", "message"} <= set(told[0])
    with bind("127.0.0.1", 0) as taken:
        monkeypatch.setenv("PILOTAGE_SERVICE_PORT", str(taken.getsockname()[1]))
        result = run("doctor")
    assert result.exit_code == 1
    assert "bad   port" in result.stdout
    assert "→ choose another: pilotage serve --port 0" in result.stdout


def test_the_file_of_sites_is_looked_at_where_there_is_one(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(state.parent, monkeypatch)
    assert "sites" not in findings(state)
    file = state.parent / "sites.yaml"
    file.write_text("pilotage: 1\nsites:\n  - {name: lyon, kind: slurm}\n")
    told = findings(state)
    assert (told["sites"].verdict, "lyon" in told["sites"].message) == ("ok", True)
    file.write_text("pilotage: 1\nsites:\n  - {name: lyon, kidn: slurm}\n")
    told = findings(state)
    assert (told["sites"].verdict, "kidn" in told["sites"].message) == ("bad", True)
