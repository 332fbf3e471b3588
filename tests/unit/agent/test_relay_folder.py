"""The relay through a folder: requests and answers as files, whole or not at all, and nothing left that nobody fetches."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.agent.link.connect import connect
from pilotage.agent.link.folder_link import BadContent, BadFolder, RelayFolder
from pilotage.agent.link.link import LinkBroken
from pilotage.agent.site.relay import Relays, _FileAnswer
from tests.kit.agent_service import AgentService
from tests.kit.pilots import flying, wait_until

SECONDS = 20.0


@pytest.fixture
def service() -> Iterator[AgentService]:
    made = AgentService(interval_seconds=0.5)
    made.listen()
    yield made
    made.stop()


@pytest.fixture
def folder(tmp_path: Path, service: AgentService) -> Iterator[Path]:
    """A folder that a relay serves."""
    relaying = Relays(service.address)
    relaying.start(folder=tmp_path / "relay")
    yield tmp_path / "relay"
    relaying.stop()


def files(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_large_bodies_and_the_token_go_through_both_ways(folder: Path, service: AgentService) -> None:
    content = os.urandom(5_000_001)
    service.contents["content/big"] = content
    link = connect(f"spool:{folder}", token=lambda: "secret")
    link.send("GET", "/agent/content/big", fields="Range: bytes=1-\r\n")
    answer = link.wait(SECONDS)
    assert (answer.status, answer.body) == (206, content[1:])
    link.send("PUT", "/agent/staged/j/1.1.1/1/0?offset=0", content)
    assert link.wait(SECONDS).status == 204
    link.close()
    assert bytes(service.staged["j/1.1.1/1/0"]) == content
    assert {*service.tokens} == {"secret"}
    wait_until(lambda: files(folder) == [])


def test_only_what_is_for_pilots_goes_through(folder: Path, service: AgentService) -> None:
    link = connect(f"spool:{folder}", token=lambda: "secret")
    link.send("GET", "/v1/jobs")
    assert link.wait(SECONDS).status == 404
    link.close()
    assert service.connections == 0


def test_a_service_that_is_gone_is_told_as_such(folder: Path, service: AgentService) -> None:
    service.stop()
    link = connect(f"spool:{folder}", token=lambda: "secret")
    link.send("GET", "/agent/content/x")
    answer = link.wait(SECONDS)
    link.close()
    assert (answer.status, b"cannot reach the service" in answer.body) == (503, True)


def test_a_pilot_works_through_the_folder(folder: Path, service: AgentService, tmp_path: Path) -> None:
    with flying(service, tmp_path / "state", server=f"spool:{folder}"):
        refs = [service.give(number, ("true",), folder=tmp_path) for number in range(1, 6)]
        service.wait_for(lambda: all(ref in service.finished for ref in refs))
    wait_until(lambda: files(folder) == [])


def test_requests_are_for_nobody_else_to_read(tmp_path: Path) -> None:
    relay = RelayFolder(tmp_path / "relay")
    relay.make()
    link = connect(f"spool:{relay.folder}", token=lambda: "secret")
    link.send("POST", "/agent/exchange", b"{}")
    (name,) = files(relay.requests)
    assert stat.S_IMODE(relay.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((relay.requests / name).stat().st_mode) == 0o600
    head, _, body = (relay.requests / name).read_bytes().partition(b"\n")
    assert ["Authorization", "Bearer secret"] in json.loads(head)["fields"]
    assert body == b"{}"
    link.close()
    assert files(relay.folder) == []  # what nobody waits for is not left behind


@pytest.mark.parametrize("mode", [0o755, 0o710])
def test_a_folder_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    relay = RelayFolder(tmp_path / "relay")
    relay.make()
    relay.folder.chmod(mode)
    with pytest.raises(BadFolder, match="chmod 700"):
        connect(f"spool:{relay.folder}")
    with pytest.raises(BadFolder):
        relay.make()


def test_a_folder_without_a_relay_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadFolder, match="no relay uses"):
        connect(f"spool:{tmp_path / 'none'}")


def test_a_request_has_one_taker(tmp_path: Path) -> None:
    relay = RelayFolder(tmp_path / "relay")
    relay.make()
    for number in range(5):
        relay.ask(f"{number}", {"method": "GET"}, b"")
    assert relay.take(3) == ["0", "1", "2"]
    assert relay.take(10) == ["3", "4"]
    assert relay.take(10) == []


def test_an_answer_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    relay = RelayFolder(tmp_path / "relay")
    relay.make()
    relay.ask("a", {"method": "GET"}, b"")
    assert relay.answer("a") is None
    with relay.draft_answer("a") as draft:
        draft.write(b'{"status": 200, "fields": [], "size_bytes": 4}\nfou')
        draft.flush()
        assert relay.answer("a") is None
    relay.publish("a")
    with pytest.raises(BadContent, match="incomplete"):
        relay.answer("a")


def test_nobody_gets_an_answer_that_nobody_waits_for(tmp_path: Path) -> None:
    relay = RelayFolder(tmp_path / "relay")
    relay.make()
    relay.ask("a", {"method": "GET"}, b"")
    relay.take(1)
    with relay.draft_answer("a") as draft:
        draft.write(b"{}\n")
    relay.forget("a")
    assert not relay.is_awaited("a")
    relay.publish("a")
    relay.done_with("a")
    assert files(relay.folder) == []


def test_what_nobody_fetches_is_removed_by_the_clock_of_the_file_system(tmp_path: Path) -> None:
    relay = RelayFolder(tmp_path / "relay")
    relay.make()
    for name in ("old", "busy", "new"):
        relay.ask(name, {"method": "GET"}, b"")
    relay.take(10)
    for name in ("old", "busy"):
        for place in (relay.taken, relay.answers):
            os.utime(place / name, (1, 1))
    assert relay.clean(older_seconds=600.0, busy=frozenset({"busy"})) == 2
    assert files(relay.folder) == ["answers/busy", "answers/new", "taken/busy", "taken/new"]


def test_a_folder_that_is_emptied_breaks_the_link(tmp_path: Path) -> None:
    relay = RelayFolder(tmp_path / "relay")
    relay.make()
    link = connect(f"spool:{relay.folder}")
    link.send("GET", "/agent/content/x")
    for name in files(relay.answers):
        (relay.answers / name).unlink()
    with pytest.raises(LinkBroken):
        link.wait(SECONDS)
    link.close()


@pytest.mark.parametrize("content", [b"", b"x", b"[]\n", b"{}", b'{"method": "GET"}\n', b"\xff\xfe\n"])
def test_what_is_no_request_harms_nobody(folder: Path, service: AgentService, content: bytes) -> None:
    (folder / "answers" / "bad").touch(mode=0o600)
    (folder / "requests" / "bad").write_bytes(content)
    service.contents["content/x"] = b"here"
    link = connect(f"spool:{folder}", token=lambda: "secret")
    link.send("GET", "/agent/content/x")
    assert link.wait(SECONDS).body == b"here"
    link.close()
    wait_until(lambda: not files(folder / "requests") and not files(folder / "taken"))


@pytest.mark.parametrize("size_bytes, told", [(4, {"size_bytes": 4}), (None, {})])
def test_an_answer_in_a_file_begins_with_its_size_if_that_is_known(
    size_bytes: int | None, told: dict[str, int]
) -> None:
    draft = io.BytesIO()
    answer = _FileAnswer(lambda: draft)
    asyncio.run(answer.begin(200, [(b"etag", b"x")], size_bytes))
    assert json.loads(draft.getvalue()) == {"status": 200, "fields": [["etag", "x"]], **told}
