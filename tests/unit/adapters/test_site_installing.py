"""What agents need at a site is put there once, whole and closed to others, and renewed where it ends."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pilotage.adapters.sites.commands import LocalCaller
from pilotage.adapters.sites.install import CHECKED_SECONDS, OLD_DAYS, Installation, home_relative, put, site_prefix
from pilotage.agent.batch import Answer, Call, Unknown
from pilotage.agent.link.connect import announced
from pilotage.agent.site.state_folder import KEEP_SECONDS, SiteFolder
from pilotage.ports import SiteUnreachable


class Counting(LocalCaller):
    """Runs commands in a home folder of the test's own, and remembers them."""

    def __init__(self, home: Path) -> None:
        super().__init__(environment={"HOME": str(home)})
        self.calls: list[Call] = []

    def run(self, call: Call) -> Answer:
        self.calls.append(call)
        return super().run(call)


class Scene:
    """A home folder, and an installation in it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.caller = Counting(self.home)
        self.token = "one"
        self.server = "http://here:1"
        self.now = 1000.0
        self.ca = folder / "ca.pem"
        self.ca.write_text("believe me")
        self.installation = self.another()

    def another(self, folder: str = "") -> Installation:
        """The same, of a process that knows nothing of the first one."""
        return Installation(
            self.caller,
            folder=folder,
            prefix="pilotage-x",
            ca_file=lambda: self.ca,
            token=lambda: self.token,
            server=lambda: self.server,
            clock=lambda: self.now,
        )

    @property
    def puts(self) -> list[str]:
        """The names of the files that were written."""
        return [Path(call.argv[4]).name for call in self.caller.calls if len(call.argv) > 4]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def token_until(end: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": end}).encode()).decode().rstrip("=")
    return f"head.{claims}.signature"


def test_everything_is_put_there_once_and_nobody_else_can_read_it(scene: Scene) -> None:
    folder = Path(scene.installation.ensure())
    assert folder == scene.home / ".pilotage-site" / "pilotage-x"
    agent = Path(scene.installation.agent)
    assert sorted(scene.puts) == sorted([agent.name, "token", "ca.pem", "service.json"])
    assert [mode(file) for file in (folder, agent, folder / "token", folder / "ca.pem")] == [0o700, 0o700, 0o600, 0o600]
    assert (Path(scene.installation.token_file).read_text(), Path(scene.installation.ca_file).read_text()) == (
        "one\n",
        "believe me",
    )
    help_text = LocalCaller().run(Call(("python3", "-I", "-S", str(agent), "pilot", "--help"))).stdout
    assert "--shared-state" in help_text
    calls = len(scene.caller.calls)
    scene.installation.ensure()
    assert len(scene.caller.calls) == calls
    scene.another().ensure()
    assert scene.puts[4:] == ["token", "ca.pem", "service.json"]


def test_an_agent_that_is_not_what_was_put_there_is_replaced_before_it_is_used(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.installation.ensure()
    agent = Path(scene.installation.agent)
    whole = agent.read_bytes()
    assert agent.stem.endswith(hashlib.sha256(whole).hexdigest()[:12])
    for changed in (whole[:-1], whole + b"x", b"#!/bin/sh\necho mine\n"):
        agent.write_bytes(changed)
        scene.another().ensure()
        assert agent.read_bytes() == whole
        assert "has changed since it was installed" in caplog.text
        caplog.clear()
    agent.write_bytes(b"evil")
    scene.installation.ensure()  # it was looked at a moment ago
    scene.now += CHECKED_SECONDS
    scene.installation.ensure()
    assert agent.read_bytes() == whole


def test_a_token_is_replaced_when_half_of_its_life_is_over_and_no_secret_is_in_a_command(scene: Scene) -> None:
    scene.token = token_until(1100.0)
    scene.installation.ensure()
    scene.now = 1049.0
    scene.installation.refresh()
    assert scene.puts.count("token") == 1
    scene.token = token_until(2000.0)
    scene.now = 1050.0
    scene.installation.refresh()
    assert scene.puts.count("token") == 2
    assert (scene.home / ".pilotage-site/pilotage-x/token").read_text().strip() == scene.token
    assert not any("signature" in word for call in scene.caller.calls for word in call.argv)


def test_another_authority_is_put_where_the_old_one_is(scene: Scene) -> None:
    scene.installation.ensure()
    scene.ca.write_text("no, me")
    scene.installation.refresh()
    assert Path(scene.installation.ca_file).read_text() == "no, me"


def test_what_somebody_removed_is_put_there_again_where_there_is_doubt(scene: Scene) -> None:
    folder = Path(scene.installation.ensure())
    Path(scene.installation.agent).unlink()
    (folder / "token").unlink()
    scene.installation.doubt()
    scene.installation.ensure()
    assert Path(scene.installation.agent).exists()
    assert (folder / "token").exists()


def age(*files: Path, days: int) -> None:
    for file in files:
        os.utime(file, (time.time() - days * 86_400.0,) * 2)


@pytest.mark.parametrize("started_from", ["the folder", "elsewhere"])
def test_what_a_site_agent_starts_pilots_with_is_not_old_while_it_works(
    scene: Scene, tmp_path: Path, started_from: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(scene.installation.ensure())
    before = (tmp_path if started_from == "elsewhere" else folder) / "agent-0.1-0123456789ab.pyz"
    before.write_bytes(b"of a version before")
    forgotten = folder / "agent-0.0.pyz"
    forgotten.write_bytes(b"of nobody")
    age(before, forgotten, days=OLD_DAYS + 2)
    place = SiteFolder(folder, site="lyon", version="0.1")
    place.install(before)
    started_with = Path(place.job_template({}).agent)
    scene.another().ensure()
    assert (started_with.read_bytes(), forgotten.exists()) == (b"of a version before", False)
    assert (started_with == before) == (started_from == "the folder")
    age(started_with, days=OLD_DAYS + 2)
    place.keep_agent()  # not every time
    assert started_with.stat().st_mtime < time.time() - KEEP_SECONDS
    monkeypatch.setattr(
        "pilotage.agent.site.state_folder.time", SimpleNamespace(time=lambda: time.time() + KEEP_SECONDS)
    )
    place.keep_agent()
    monkeypatch.undo()
    scene.another().ensure()
    assert started_with.exists()
    age(started_with, days=OLD_DAYS + 2)
    later = SiteFolder(folder, site="lyon", version="0.1")
    later.install(before)
    scene.another().ensure()
    assert Path(later.job_template({}).agent) == started_with
    assert started_with.exists()


def test_a_file_that_did_not_arrive_whole_does_not_get_its_name(scene: Scene) -> None:
    class Short(Counting):
        def run(self, call: Call) -> Answer:
            return super().run(Call(call.argv, call.stdin[:-1]))

    file = scene.home / "file"
    with pytest.raises(Unknown):
        put(Short(scene.home), str(file), b"whole", mode=0o600)
    assert list(scene.home.iterdir()) == []
    put(scene.caller, str(file), bytes(range(256)), mode=0o600)
    assert file.read_bytes() == bytes(range(256))


def test_a_folder_that_cannot_be_used_is_told_in_the_systems_words(scene: Scene) -> None:
    (scene.home / "taken").write_text("a file")
    with pytest.raises(Unknown, match=r"cannot use the folder \./taken/pilotage-x: .*(exists|Not a directory)"):
        scene.another("taken").ensure()


@pytest.mark.parametrize(
    "named, meant",
    [("", ".pilotage-site"), ("~", "."), ("~/a b", "a b"), ("-x", "-x"), ("c/d", "c/d")],
)
def test_a_folder_without_a_slash_in_front_is_in_the_home_folder(scene: Scene, named: str, meant: str) -> None:
    assert Path(scene.another(named).ensure()) == (scene.home / meant / "pilotage-x").absolute()


def test_a_folder_of_somebody_else_is_refused_and_one_with_a_slash_in_front_is_that_one() -> None:
    with pytest.raises(ValueError, match="own home folder"):
        home_relative("~other/x")
    assert home_relative("/scratch/me") == "/scratch/me"


def test_two_services_and_two_sites_of_one_service_have_names_of_their_own(tmp_path: Path) -> None:
    first = site_prefix(tmp_path / "a", "lyon")
    assert first == site_prefix(tmp_path / "a", "lyon")
    assert len({first, site_prefix(tmp_path / "a", "paris"), site_prefix(tmp_path / "b", "lyon")}) == 3


def test_where_the_service_is_now_is_said_beside_its_agents(scene: Scene) -> None:
    folder = Path(scene.installation.ensure())
    assert scene.installation.announcement == f"{folder}/service.json"
    told = announced(scene.installation.announcement)
    assert (told.url, told.ca_file) == ("http://here:1", f"{folder}/ca.pem")
    scene.installation.refresh()
    scene.server = "http://here:2"
    scene.installation.refresh()
    assert announced(scene.installation.announcement).url == "http://here:2"
    assert scene.puts.count("service.json") == 2
    assert mode(folder / "service.json") == 0o600


def test_an_address_that_is_not_known_yet_is_not_said(scene: Scene) -> None:
    def unknown() -> str:
        raise SiteUnreachable("the service has not announced its address yet")

    scene.installation = Installation(
        scene.caller, folder="", prefix="pilotage-y", ca_file=lambda: None, token=lambda: "", server=unknown
    )
    scene.installation.ensure()
    assert scene.installation.announcement == ""
