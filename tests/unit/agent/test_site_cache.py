"""The cache of a site, filled by its agent: from a service and a store that listen on real sockets, onto a real disk."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.link.download import Downloads
from pilotage.agent.site import cache as cache_module
from pilotage.agent.site.cache import SiteCache

SITE, KEY = "lyon", "fetch/lyon 1"
TARGET = "/agent/transfers/fetch%2Flyon%201"
NAME = "ab/abcdef"
CONTENT = bytes(range(256)) * 40_000
WAIT_SECONDS = 60.0


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class FileServer:
    """A service or a store: has files by target, and notes who asks for what; `script` says what to do wrong next."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.fields: dict[str, str] = {}
        self.asked: list[tuple[str, str, str]] = []  # target, range, token
        self.script: list[Any] = []
        self.reached = threading.Semaphore(0)
        self.address = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked, token = request.headers.get("Range", ""), request.headers.get("Authorization", "")
        self.asked.append((request.path, asked, token))
        wrong = self.script.pop(0) if self.script else None
        self.reached.release()
        if callable(wrong):
            wrong = wrong(request)
        if isinstance(wrong, tuple):
            status, headers, body = wrong
            request.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                request.send_header(name, value)
            request.end_headers()
            request.wfile.write(body)
            return
        content = self.files.get(request.path.partition("?")[0])
        if content is None:
            request.send_error(404)
            return
        start = int(asked[len("bytes=") :].partition("-")[0]) if asked else 0
        if start and start >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if asked else 200)
        if asked:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        for name, value in self.fields.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content[start:] if wrong is None else content[start : start + wrong])


@contextmanager
def listening() -> Iterator[FileServer]:
    server = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.address = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture
def service() -> Iterator[FileServer]:
    with listening() as server:
        server.files[TARGET] = CONTENT
        yield server


@pytest.fixture
def store() -> Iterator[FileServer]:
    with listening() as server:
        server.files["/bucket/a b"] = CONTENT
        yield server


class Agent:
    """A cache with its orders, as the site agent's main thread uses it."""

    def __init__(self, folder: Path, service: FileServer) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.news = threading.Semaphore(0)
        downloads = Downloads(service.address, token=lambda: "secret")
        self.cache = SiteCache(SITE, downloads.open, wake=self.news.release, say=self.said.append)

    def want(self, *effects: dict[str, Any], **entry: Any) -> None:
        self.cache.want(effects, self.folder, entry=entry)

    def report(self) -> dict[str, Any]:
        """The next report."""
        assert self.news.acquire(timeout=WAIT_SECONDS)
        [told] = self.cache.due()
        return told

    def file(self, name: str = NAME) -> Path:
        return self.folder / name

    def left(self) -> list[str]:
        """All files below the folder."""
        return sorted(str(each.relative_to(self.folder)) for each in self.folder.rglob("*") if each.is_file())


@pytest.fixture
def agent(tmp_path: Path, service: FileServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(cache_module, "AGAIN_SECONDS", (0.0, 0.0))
    made = Agent(tmp_path / "cache", service)
    yield made
    made.cache.stop()


def fetch(key: str = KEY, name: str = NAME, **more: Any) -> dict[str, Any]:
    return {"type": "fetch-file", "site": SITE, "key": key, "locator": "s3://bucket/a b", "name": name, **more}


def remove(key: str, name: str = NAME) -> dict[str, Any]:
    return {"type": "remove-file", "site": SITE, "key": key, "name": name}


def arrived(content: bytes = CONTENT, *, key: str = KEY, version: str = "") -> dict[str, Any]:
    report = {"report": "file-arrived", "site": SITE, "key": key, "size_bytes": len(content)}
    return {**report, "sha256": digest(content), "version": version}


def without_seconds(report: dict[str, Any]) -> dict[str, Any]:
    assert report.pop("seconds") >= 0.0
    return report


def test_a_file_is_brought_under_its_name_closed_to_writers_and_told_until_it_is_no_longer_wanted(
    agent: Agent, service: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fields = {"Pilotage-Version": "v1", "Pilotage-Sha256": digest(CONTENT)}
    agent.want(fetch())
    told = agent.report()
    assert without_seconds({**told}) == arrived(version="v1")
    assert agent.file().read_bytes() == CONTENT
    assert agent.file().stat().st_mode & 0o777 == 0o444
    assert service.asked == [(TARGET, "", "Bearer secret")]
    assert agent.cache.due() == []
    agent.want(fetch())
    agent.cache.forget()
    assert agent.cache.due() == [told]  # the message was lost
    agent.want()
    agent.cache.forget()
    assert agent.cache.due() == []
    assert agent.left() == [NAME]


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(agent: Agent, service: FileServer) -> None:
    service.script = [1_000_000, 2_000_000]
    agent.want(fetch())
    assert agent.report()["sha256"] == digest(CONTENT)
    assert [asked for _, asked, _ in service.asked] == ["", "bytes=1000000-", "bytes=3000000-"]
    assert agent.left() == [NAME]


def test_the_draft_of_a_killed_agent_is_gone_on_with_unless_the_file_is_another_by_now(
    agent: Agent, service: FileServer, tmp_path: Path
) -> None:
    service.fields = {"ETag": '"1"'}
    halted = threading.Event()

    def stall(request: BaseHTTPRequestHandler) -> int:
        request.close_connection = True
        halted.set()
        return 3_000_000

    def never(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        agent.cache._stopping.set()
        return 503, {}, b""

    service.script = [stall, never]
    agent.want(fetch())
    assert halted.wait(WAIT_SECONDS)
    assert service.reached.acquire(timeout=WAIT_SECONDS)
    assert service.reached.acquire(timeout=WAIT_SECONDS)
    agent.cache.stop()
    [draft] = agent.left()
    assert draft.endswith(".part")
    assert agent.file(draft).stat().st_size == 3_000_000
    assert agent.cache.due() == []
    service.asked.clear()
    second = Agent(agent.folder, service)
    second.want(fetch())
    assert second.report()["sha256"] == digest(CONTENT)
    assert [asked for _, asked, _ in service.asked] == ["bytes=3000000-"]
    assert second.left() == [NAME]
    # Of another version: nothing of the draft is used.
    agent.file().unlink()
    agent.file(draft).write_bytes(CONTENT[:3_000_000])
    service.fields = {"ETag": '"2"'}
    service.files[TARGET] = CONTENT[::-1]
    service.asked.clear()
    third = Agent(agent.folder, service)
    third.want(fetch("other"))
    service.files["/agent/transfers/other"] = CONTENT[::-1]
    assert third.report()["sha256"] == digest(CONTENT[::-1])
    assert [asked for _, asked, _ in service.asked] == ["bytes=3000000-", ""]
    assert third.left() == [NAME]


def test_a_file_in_place_is_told_at_once_and_not_fetched_again_unless_it_is_not_the_one(
    agent: Agent, service: FileServer
) -> None:
    service.fields = {"Pilotage-Sha256": digest(CONTENT)}
    agent.file().parent.mkdir(parents=True)
    agent.file().write_bytes(CONTENT)
    inode = agent.file().stat().st_ino
    agent.want(fetch())
    assert without_seconds(agent.report()) == arrived()
    assert agent.file().stat().st_ino == inode
    assert [asked for _, asked, _ in service.asked] == [f"bytes={len(CONTENT) - 1}-"]
    agent.want()
    for damaged in (CONTENT[:-1] + b"!", CONTENT[:100], CONTENT + b"!", b""):
        agent.file().chmod(0o600)
        agent.file().write_bytes(damaged)
        agent.want(fetch())
        assert without_seconds(agent.report()) == arrived()
        assert agent.file().read_bytes() == CONTENT
        agent.want()


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_small_and_empty_files_come_whole(size: int, agent: Agent, service: FileServer) -> None:
    service.files[TARGET] = CONTENT[:size]
    agent.want(fetch())
    assert without_seconds(agent.report()) == arrived(CONTENT[:size])
    assert agent.file().read_bytes() == CONTENT[:size]
    agent.want()
    agent.want(fetch())
    assert without_seconds(agent.report()) == arrived(CONTENT[:size])


def signed(store: FileServer, path: str = "/bucket/a%20b?X-Amz-Signature=SIGNED") -> Callable[..., Any]:
    store.files["/bucket/a%20b"] = CONTENT
    return lambda _: (307, {"Location": f"{store.address}{path}", "Pilotage-Version": "v7"}, b"")


def test_a_store_that_the_service_names_is_asked_without_our_token_and_its_address_is_told_to_nobody(
    agent: Agent, service: FileServer, store: FileServer, tmp_path: Path
) -> None:
    service.script = [signed(store)]
    agent.want(fetch())
    assert without_seconds(agent.report()) == arrived(version="v7")
    assert store.asked == [("/bucket/a%20b?X-Amz-Signature=SIGNED", "", "")]
    assert "SIGNED" not in str([agent.said, agent.left()])


@pytest.mark.parametrize("how", ["refused", "broken", "unreachable", "wrong"])
def test_a_file_that_does_not_come_from_its_store_comes_through_the_service(
    how: str, agent: Agent, service: FileServer, store: FileServer
) -> None:
    redirect = signed(store)
    if how == "refused":
        store.script = [(403, {}, b"<Error>SIGNED</Error>")]
    elif how == "broken":
        store.script = [1_500_000]
    elif how == "wrong":
        service.fields = {"Pilotage-Sha256": digest(CONTENT)}
        store.files["/bucket/a%20b"] = CONTENT[::-1]
        redirect = lambda _: (  # noqa: E731
            307,
            {"Location": f"{store.address}/bucket/a%20b?SIGNED", "Pilotage-Sha256": digest(CONTENT)},
            b"",
        )
    else:
        redirect = lambda _: (307, {"Location": "http://127.0.0.1:9/SIGNED"}, b"")  # noqa: E731
    service.script = [redirect]
    agent.want(fetch())
    assert agent.report()["sha256"] == digest(CONTENT)
    assert service.asked[-1][0] == f"{TARGET}?direct=no"
    assert "SIGNED" not in str(agent.said)
    assert agent.left() == [NAME]


@pytest.mark.parametrize(
    "status, body, reason",
    [
        (404, {"error": {"code": "unknown_content", "message": "no such file"}}, "not-in-store"),
        (401, {"error": {"code": "unauthenticated", "message": "this token has expired"}}, "credential-expired"),
        (409, {"error": {"code": "credential_expired", "message": "renew it"}}, "credential-expired"),
        (400, {}, "store-unreachable"),
    ],
)
def test_why_the_service_refuses_a_file_is_told(
    status: int, body: dict[str, Any], reason: str, agent: Agent, service: FileServer
) -> None:
    service.script = [(status, {}, json.dumps(body).encode())]
    agent.want(fetch())
    told = without_seconds(agent.report())
    assert (told["report"], told["reason"], told["key"]) == ("file-not-fetched", reason, KEY)
    assert told["message"]
    assert not body or body["error"]["message"] in told["message"]
    assert agent.left() == []


def test_a_file_with_another_content_than_the_document_requires_is_refused_at_once(agent: Agent) -> None:
    agent.want(fetch(sha256=digest(b"other")))
    told = agent.report()
    assert (told["report"], told["reason"]) == ("file-not-fetched", "input-checksum")
    assert f"expected sha256 {digest(b'other')}, got sha256 {digest(CONTENT)}" in told["message"]
    assert agent.left() == []


def test_a_file_with_another_checksum_is_never_put_in_place(agent: Agent, service: FileServer) -> None:
    service.fields = {"Pilotage-Sha256": digest(b"")}
    agent.want(fetch())
    told = agent.report()
    assert (told["reason"], len(service.asked)) == ("wrong-checksum", cache_module.WRONG_MAX)
    assert agent.left() == []


def test_a_transfer_that_never_gets_on_fails_after_some_tries(agent: Agent, service: FileServer) -> None:
    service.script = [(503, {}, b"")] * 20
    agent.want(fetch())
    told = agent.report()
    assert (told["reason"], len(service.asked)) == ("store-unreachable", cache_module.TRIES_MAX)


def test_a_transfer_has_its_time_and_a_later_one_goes_on_from_its_draft(
    agent: Agent, service: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "TRANSFER_SECONDS_MIN", 0.0)
    monkeypatch.setattr(cache_module, "TRANSFER_BYTES_PER_SECOND_MIN", 10**15)
    agent.want(fetch())
    assert agent.report()["reason"] == "timed-out"
    monkeypatch.undo()
    agent.want()
    agent.want(fetch())
    assert agent.report()["sha256"] == digest(CONTENT)


def test_a_service_that_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "AGAIN_SECONDS", (0.0, 0.0))
    refused = threading.Semaphore(0)
    with listening() as service:
        service.files[TARGET] = CONTENT
        away = Downloads("http://127.0.0.1:9", token=str)
        here = Downloads(service.address, token=str)
        tries: list[int] = []

        def open_transfer(target: str, **more: Any) -> Any:
            tries.append(1)
            refused.release()
            return (away if len(tries) < 20 else here).open(target, **more)

        agent = Agent(tmp_path, service)
        agent.cache = SiteCache(SITE, open_transfer, wake=agent.news.release)
        agent.want(fetch())
        assert agent.report()["sha256"] == digest(CONTENT)


def test_what_the_disk_refuses_is_told_as_such(
    agent: Agent, service: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    agent.want(fetch())
    told = agent.report()
    assert told["reason"] == "cache-unusable"
    assert str(tmp_path / "cache") in told["message"]
    agent.want(fetch("../2", "../../etc/passwd"))
    assert [each["reason"] for each in agent.cache.due()] == ["bad-name"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_told_as_such(agent: Agent, service: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def full(path: Any, flags: int, *more: Any, **others: Any) -> int:
        return real("/dev/full" if str(path).endswith(".part") else path, flags & ~os.O_CREAT, *more, **others)

    monkeypatch.setattr(os, "ftruncate", lambda *_: None)
    monkeypatch.setattr(os, "open", full)
    agent.want(fetch())
    told = agent.report()
    assert told["reason"] == "disk-full"
    assert "the disk is full" in told["message"]


def test_a_removed_file_is_gone_with_its_drafts_and_one_that_was_not_there_is_gone_too(agent: Agent) -> None:
    agent.file().parent.mkdir(parents=True)
    agent.file().write_bytes(CONTENT)
    agent.file(f"{NAME}.0123456789ab.part").write_bytes(b"half")
    for key in ("remove-1", "remove-2"):
        agent.want(remove(key))
        assert agent.report() == {"report": "file-gone", "site": SITE, "key": key}
        assert agent.left() == []


def test_orders_for_one_file_are_carried_out_in_their_order(agent: Agent, service: FileServer) -> None:
    service.files["/agent/transfers/second"] = CONTENT[::-1]
    agent.want(fetch("first"), remove("gone"), fetch("second"), transfers_max=3)
    service.files["/agent/transfers/first"] = CONTENT
    for _ in range(3):
        assert agent.news.acquire(timeout=WAIT_SECONDS)
    told = {each["key"]: each["report"] for each in agent.cache.due()}
    assert list(told) == ["first", "gone", "second"]
    assert told["second"] == "file-arrived"
    assert agent.file().read_bytes() == CONTENT[::-1]


def test_no_more_files_are_transferred_at_once_than_the_entry_allows(agent: Agent, service: FileServer) -> None:
    guard, running, most, go_on = threading.Lock(), [0], [0], threading.Semaphore(0)

    def busy(_: object) -> None:
        with guard:
            running[0] += 1
            most[0] = max(most[0], running[0])
        assert go_on.acquire(timeout=WAIT_SECONDS)
        with guard:
            running[0] -= 1

    keys = [f"k{number}" for number in range(6)]
    service.files.update({f"/agent/transfers/{key}": b"x" for key in keys})
    service.script = [busy] * len(keys)
    agent.want(*(fetch(key, f"aa/{key}") for key in keys), transfers_max=2)
    for _ in range(2):
        assert service.reached.acquire(timeout=WAIT_SECONDS)
    go_on.release(len(keys))
    for _ in keys:
        assert agent.news.acquire(timeout=WAIT_SECONDS)
    assert most[0] == 2
    assert len(agent.cache.due()) == len(keys)


def test_an_order_that_is_withdrawn_stops_and_leaves_its_draft_for_the_next(agent: Agent, service: FileServer) -> None:
    halted, go_on = threading.Event(), threading.Event()

    def half(request: BaseHTTPRequestHandler) -> int:
        halted.set()
        assert go_on.wait(WAIT_SECONDS)
        return 2_000_000

    service.script = [half]
    agent.want(fetch())
    assert halted.wait(WAIT_SECONDS)
    agent.want()  # no longer wanted
    go_on.set()
    agent.want(fetch("again"))
    service.files["/agent/transfers/again"] = CONTENT
    assert agent.report()["key"] == "again"
    assert agent.file().read_bytes() == CONTENT


def test_drafts_that_nobody_needs_any_more_are_removed(agent: Agent) -> None:
    folder = agent.file().parent
    folder.mkdir(parents=True)
    old, new = folder / "old.0123456789ab.part", folder / "new.0123456789ab.part"
    for each in (old, new, agent.file()):
        each.write_bytes(b"half")
    os.utime(old, (1, 1))
    os.utime(agent.file(), (1, 1))
    agent.want()
    assert agent.left() == [NAME, "ab/new.0123456789ab.part"]


def test_stopping_breaks_off_what_waits_for_its_store(agent: Agent, service: FileServer) -> None:
    halted, go_on = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        halted.set()
        assert go_on.wait(WAIT_SECONDS)

    def begin(request: BaseHTTPRequestHandler) -> int:
        request.send_response(200)
        request.send_header("Content-Length", str(len(CONTENT)))
        request.end_headers()
        request.wfile.write(CONTENT[:100])
        request.wfile.flush()
        hang(request)
        return 0

    service.script = [begin]
    agent.want(fetch())
    assert halted.wait(WAIT_SECONDS)
    agent.cache.stop()
    assert not agent.cache._threads
    go_on.set()
