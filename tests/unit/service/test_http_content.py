"""Contents and results over HTTP: sent and read in ranges, by those who may, plainly and through the framework."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.model.jobs.submission import Captured, Origin
from pilotage.model.settings.settings import ServiceSettings, Settings
from pilotage.reading.access import EXCHANGE, OPERATE, READ, SUBMIT, Principal
from pilotage.service.http.dispatcher import make_dispatcher
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import Batch
from tests.kit.asked_app import ask
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.running_jobs import FakeJobs, running_services
from tests.kit.served_book import event, registered

DATA = bytes(range(256)) * 20
SHA256 = hashlib.sha256(DATA).hexdigest()
USER = frozenset({READ, SUBMIT, OPERATE})
PRINCIPALS = {
    "a": Principal(user="ann", scopes=USER),
    "b": Principal(user="bob", scopes=USER),
    "agent": Principal(user="agent", scopes=frozenset({EXCHANGE})),
}
NAME = "out/ä b\n.dat"


class Door:
    """A service that is asked plainly, or through the framework."""

    def __init__(self, services: Services, jobs: FakeJobs, app: Any, folder: Path) -> None:
        self.services, self.jobs, self.folder = services, jobs, folder
        self._app = app

    def ask(self, request: str, body: bytes = b"", *, user: str = "a", **headers: str) -> tuple[int, Any, bytes]:
        method, _, target = request.partition(" ")
        path, _, query = target.partition("?")
        if method in ("PUT", "POST"):
            headers = {"content_length": str(len(body)), **headers}
        answer = ask(self._app, path, body, method=method, query=query, authorization=f"Bearer {user}", **headers)
        status, fields, content = asyncio.run(answer)
        return status, {name.decode().lower(): value.decode() for name, value in fields.items()}, content

    def put(
        self, start: int, end: int, *, user: str = "a", data: bytes = DATA, sha256: str = SHA256
    ) -> tuple[int, Any]:
        told = f"bytes {start}-{end - 1}/{len(data)}"
        status, _, content = self.ask(f"PUT /v1/content/{sha256}", data[start:end], user=user, content_range=told)
        return status, msgspec.json.decode(content)

    def log(self, *events: dict[str, Any]) -> None:
        checked, refused, _ = self.services.codec.read_batch(msgspec.json.encode({"events": events}))
        assert not refused
        self.services.writer.submit(Batch(checked)).result(60.0)


class HangsUp:
    """An application whose client hangs up after the answer, as a server tells it: a stream of the framework waits for that."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        over = asyncio.Event()

        async def send_on(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                over.set()

        async def receive_on() -> Any:
            waiting = [asyncio.ensure_future(receive()), asyncio.ensure_future(over.wait())]
            done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in pending:
                each.cancel()
            return waiting[0].result() if waiting[0] in done else {"type": "http.disconnect"}

        await self._app(scope, receive_on, send_on)


@pytest.fixture(params=["plain", "framework"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Door]:
    settings = Settings(service=ServiceSettings(content_bytes_max=10_000))
    with running_services(tmp_path, principals=PRINCIPALS, settings=settings) as (services, jobs):
        services.start()
        app = make_dispatcher(services) if request.param == "plain" else HangsUp(FrameworkAnswers(services))
        try:
            yield Door(services, jobs, app, tmp_path)
        finally:
            services.stop()


def code(content: bytes) -> str:
    return str(msgspec.json.decode(content)["error"]["code"])


def test_a_file_is_sent_in_pieces_and_read_in_ranges(door: Door) -> None:
    assert door.ask(f"HEAD /v1/content/{SHA256}")[0] == 404
    assert door.put(0, 3000) == (200, {"sha256": SHA256, "received_bytes": 3000, "complete": False})
    status, headers, _ = door.ask(f"HEAD /v1/content/{SHA256}")
    assert (status, headers["upload-offset"]) == (202, "3000")
    assert door.ask(f"GET /v1/content/{SHA256}")[0] == 404
    assert door.put(3000, len(DATA))[1]["complete"]
    status, headers, _ = door.ask(f"HEAD /v1/content/{SHA256}")
    assert (status, headers["upload-length"]) == (200, str(len(DATA)))
    assert door.ask(f"GET /v1/content/{SHA256}")[2] == DATA
    status, headers, content = door.ask(f"GET /v1/content/{SHA256}", range="bytes=5000-")
    assert (status, content) == (206, DATA[5000:])
    assert headers["content-range"] == f"bytes 5000-{len(DATA) - 1}/{len(DATA)}"
    assert door.ask(f"GET /v1/content/{SHA256}", range="bytes=9999-")[0] == 416


def test_a_piece_that_does_not_continue_is_refused_and_changes_nothing(door: Door) -> None:
    door.put(0, 3000)
    for start in (0, 2999, 3001):
        status, answer = door.put(start, 4000)
        assert (status, answer["error"]["code"]) == (409, "upload_conflict")
    assert door.ask(f"HEAD /v1/content/{SHA256}")[1]["upload-offset"] == "3000"


def test_wrong_content_is_refused_and_removed(door: Door) -> None:
    other = b"!" + DATA[1:]
    door.put(0, 3000, data=other)
    status, answer = door.put(3000, len(DATA), data=other)
    assert (status, answer["error"]["code"]) == (409, "wrong_content")
    assert door.ask(f"HEAD /v1/content/{SHA256}")[0] == 404


def test_an_upload_whose_service_ended_before_it_was_verified_is_verified_later(door: Door) -> None:
    content = door.services.backend.content  # type: ignore[union-attr]
    content.append(SHA256, DATA, by="ann", offset=0, size_bytes=len(DATA))  # type: ignore[union-attr]
    status, headers, _ = door.ask(f"HEAD /v1/content/{SHA256}")
    assert (status, headers["upload-offset"]) == (202, str(len(DATA)))
    told = door.ask(f"PUT /v1/content/{SHA256}", b"", content_range=f"bytes */{len(DATA)}")[2]
    assert msgspec.json.decode(told)["complete"]
    assert door.ask(f"HEAD /v1/content/{SHA256}")[0] == 200
    other = hashlib.sha256(DATA * 2).hexdigest()
    door.put(0, 10, data=DATA, sha256=other)
    told = door.ask(f"PUT /v1/content/{other}", b"", content_range=f"bytes */{len(DATA)}")[2]
    assert msgspec.json.decode(told) == {"sha256": other, "received_bytes": 10, "complete": False}


def test_a_small_file_is_sent_whole_also_after_a_piece_of_it(door: Door) -> None:
    assert door.ask(f"PUT /v1/content/{SHA256}", DATA)[0] == 200
    assert door.ask(f"PUT /v1/content/{SHA256}", DATA)[0] == 200
    assert door.put(0, 10)[1]["complete"]
    empty = hashlib.sha256(b"").hexdigest()
    assert door.ask(f"PUT /v1/content/{empty}", b"")[0] == 200
    assert door.ask(f"GET /v1/content/{empty}")[::2] == (200, b"")
    other = hashlib.sha256(DATA * 2).hexdigest()
    door.put(0, 5, sha256=other, data=DATA[:9])
    assert door.ask(f"PUT /v1/content/{other}", DATA * 2)[0] == 200


def test_many_small_files_are_sent_at_once(door: Door) -> None:
    files = [b"", b"a\nb", DATA, b"\0" * 9]
    names = [hashlib.sha256(data).hexdigest() for data in files]
    parts = [b"%s %d\n%s" % (name.encode(), len(data), data) for name, data in zip(names, files, strict=True)]
    status, _, content = door.ask("POST /v1/content/batch", b"".join(parts))
    assert (status, content) == (200, b'{"stored":4}')
    for name, data in zip(names, files, strict=True):
        assert door.ask(f"GET /v1/content/{name}")[2] == data
        assert door.ask(f"GET /v1/content/{name}", user="b")[0] == 404
    assert door.ask("POST /v1/content/batch", b"".join(parts), user="b")[0] == 200
    wrong = b"%s 1\nx" % names[0].encode()
    status, _, content = door.ask("POST /v1/content/batch", wrong)
    assert (status, code(content)) == (409, "wrong_content")
    for bad in (b"x", b"%s 9\nx" % names[0].encode(), parts[1] + b"!"):
        assert door.ask("POST /v1/content/batch", bad)[0] == 400


def test_users_keep_what_they_sent_until_they_drop_it(door: Door) -> None:
    def told(request: str, *, user: str = "a") -> Any:
        body = msgspec.json.encode({"sha256": [SHA256]}) if request.startswith("POST") else b""
        return msgspec.json.decode(door.ask(request, body, user=user)[2])

    assert told("POST /v1/content/keep") == {"missing": [SHA256]}
    door.put(0, len(DATA))
    assert told("POST /v1/content/keep") == {"missing": []}
    (kept,) = told("GET /v1/content")["files"]
    assert (kept["locator"], kept["size_bytes"]) == (f"store:{SHA256}", len(DATA))
    assert told("POST /v1/content/keep", user="b") == {"missing": [SHA256]}
    assert told("GET /v1/content", user="b") == {"files": []}
    assert told("POST /v1/content/drop", user="b") == {"missing": [SHA256]}
    assert told("POST /v1/content/drop") == {"missing": []}
    assert told("GET /v1/content") == {"files": []}
    assert door.ask(f"GET /v1/content/{SHA256}")[0] == 404


@pytest.mark.parametrize(
    "told, status",
    [
        ("bytes 0-9/20000", 413), ("bytes 5-4/10", 416), ("bytes 0-10/10", 416), ("bytes */10", 400), ("x", 416),
        ("bytes 0-8/5120", 400), ("bytes 0-10/5120", 400),
    ],
)  # fmt: skip
def test_odd_ranges_are_refused(door: Door, told: str, status: int) -> None:
    assert door.ask(f"PUT /v1/content/{SHA256}", DATA[:10], content_range=told)[0] == status


def test_only_who_sent_a_content_reads_it_or_need_not_send_it(door: Door) -> None:
    door.put(0, len(DATA))
    asked = msgspec.json.encode({"sha256": [SHA256, "0" * 64]})
    for user, missing in (("a", ["0" * 64]), ("b", [SHA256, "0" * 64])):
        status, _, content = door.ask("POST /v1/content/missing", asked, user=user)
        assert (status, msgspec.json.decode(content)) == (200, {"missing": missing})
    assert door.ask(f"GET /v1/content/{SHA256}", user="b")[0] == 404
    assert door.ask(f"HEAD /v1/content/{SHA256}", user="b")[0] == 404
    assert door.put(0, len(DATA), user="b")[1]["complete"]
    assert door.ask(f"GET /v1/content/{SHA256}", user="b")[2] == DATA


@pytest.mark.parametrize("name", ["x", "A" * 64, "0" * 63])
def test_only_checksums_name_contents(door: Door, name: str) -> None:
    for request in (f"GET /v1/content/{name}", f"HEAD /v1/content/{name}", f"PUT /v1/content/{name}"):
        assert door.ask(request, b"")[0] == 400
    asked = msgspec.json.encode({"sha256": [name]})
    assert door.ask("POST /v1/content/missing", asked)[0] == 400


def test_a_folder_is_seen_by_its_mark_alone(door: Door, tmp_path: Path) -> None:
    mark, text = f".pilotage-seen-{'ab' * 16}", "cd" * 16

    def seen(**changed: str) -> Any:
        asked = {"folder": str(tmp_path), "mark": mark, "text": text} | changed
        status, _, content = door.ask("POST /v1/folders/seen", msgspec.json.encode(asked))
        return msgspec.json.decode(content)["seen"] if status == 200 else status

    assert seen() is False
    (tmp_path / mark).write_text(text)
    assert seen() is True
    assert seen(text="ef" * 16) is False
    assert seen(folder=str(tmp_path / "other")) is False
    assert seen(folder=".") is False
    assert seen(mark="../passwd") == 400
    assert seen(text="short") == 400
    (tmp_path / mark).unlink()
    (tmp_path / mark).symlink_to(tmp_path / "there")
    (tmp_path / "there").write_text(text)
    assert seen() is False


def submission(**files: Captured) -> dict[str, Any]:
    captured = {name: msgspec.to_builtins(file) for name, file in files.items()}
    return {"definition": {}, "lists": {}, "folder": "/far", "sent_from": "/far", "captured": captured}


def test_a_submission_from_elsewhere_gets_a_folder_of_its_own_with_its_inputs(door: Door) -> None:
    door.put(0, len(DATA))
    script = door.services.journal.put_content(b"#!/bin/sh\n")
    files = {"in": Captured(sha256=SHA256, content=False), "run.sh": Captured(sha256=script, executable=True)}
    for _ in range(2):
        assert door.ask("POST /v1/jobs", msgspec.json.encode(submission(**files)))[0] == 201
    files["in"] = Captured(sha256=SHA256, content=False, executable=True)
    assert door.ask("POST /v1/jobs", msgspec.json.encode(submission(**files)))[0] == 201
    first, again, other = (Path(each.folder) for each in door.jobs.submitted)
    assert first == again != other
    assert {each.sent_from for each in door.jobs.submitted} == {"/far"}
    assert (first / "in").read_bytes() == DATA
    assert (first / "run.sh").read_bytes() == b"#!/bin/sh\n"
    assert (first / "run.sh").stat().st_mode & 0o111


def test_a_submission_whose_inputs_another_user_sent_is_refused(door: Door) -> None:
    door.put(0, len(DATA), user="b")
    body = msgspec.json.encode(submission(a=Captured(sha256=SHA256, content=False)))
    status, _, content = door.ask("POST /v1/jobs", body)
    assert (status, b"was not sent" in content) == (409, True)
    body = msgspec.json.encode(submission(**{"../a": Captured(sha256=SHA256, content=False)}))
    assert door.ask("POST /v1/jobs", body, user="b")[0] == 400
    assert door.jobs.submitted == []


def a_job(door: Door, *, sent_from: str = "") -> None:
    """A job of ann's that came with DATA, and made a file."""
    journal = door.services.journal
    origin = journal.put_content(msgspec.json.encode(Origin(folder=str(door.folder), sent_from=sent_from)))
    captured = journal.put_content(msgspec.json.encode({"in": Captured(sha256=SHA256, content=False)}))
    job = registered(1, "j")
    job["data"] |= {"definition": "ab" * 32, "lists": {"origin": origin, "captured": captured}}
    (door.folder / "out").mkdir()
    (door.folder / NAME).write_bytes(DATA)
    (door.folder / "secret").write_bytes(DATA)
    file = {"name": NAME, "size_bytes": len(DATA), "sha256": SHA256}
    done = {"exit_code": "SUCCESS", "manifest": [file]}
    about = {"job": "j", "package": "1.1.1", "attempt": 1}
    door.log(
        job,
        event(2, "AttemptCreated", {"site": "local"}, **about),
        event(3, "AttemptFinished", done, **about),
        event(4, "CommitGranted", {}, **about),
    )


def test_a_result_is_read_in_ranges_by_whoever_may_read_the_job(door: Door) -> None:
    a_job(door)
    named = "GET /v1/jobs/j/packages/1.1.1/file?name=out%2F%C3%A4%20b%0A.dat"
    status, headers, content = door.ask(named)
    assert (status, content, headers["content-length"]) == (200, DATA, str(len(DATA)))
    assert door.ask(named, range="bytes=10-19")[::2] == (206, DATA[10:20])
    assert door.ask(named, user="b")[0] == 404
    assert code(door.ask("GET /v1/jobs/j/packages/1.1.1/file?name=secret")[2]) == "unknown_content"
    assert door.ask("GET /v1/jobs/j/packages/1.1.1/file")[0] == 400
    (door.folder / NAME).write_bytes(DATA + b"!")
    assert b"was changed" in door.ask(named)[2]
    (door.folder / NAME).unlink()
    assert b"is gone" in door.ask(named)[2]


def test_content_of_a_job_is_read_by_whoever_may_read_the_job(door: Door) -> None:
    a_job(door, sent_from="/far")
    door.put(0, len(DATA), user="b")
    assert door.ask(f"GET /v1/content/{SHA256}")[0] == 404
    assert door.ask(f"GET /v1/content/{SHA256}?job=j")[2] == DATA
    assert door.ask(f"GET /v1/content/{SHA256}?job=j", user="b")[0] == 404
    assert door.ask(f"GET /v1/content/{'0' * 64}?job=j")[0] == 404


def test_agents_read_sent_and_captured_content_in_ranges(tmp_path: Path) -> None:
    with running_services(tmp_path, principals=PRINCIPALS) as (services, jobs):
        services.start()
        try:
            door = Door(services, jobs, make_dispatcher(services), tmp_path)
            door.put(0, len(DATA))
            small = services.journal.put_content(b"0123456789")
            for sha256, data in ((SHA256, DATA), (small, b"0123456789")):
                path = f"GET /agent/content/{sha256}"
                assert door.ask(path, user="agent")[::2] == (200, data)
                status, headers, content = door.ask(path, user="agent", range="bytes=4-7")
                assert (status, content) == (206, data[4:8])
                assert headers["content-range"] == f"bytes 4-7/{len(data)}"
                assert door.ask(path, user="agent", range=f"bytes={len(data)}-")[0] == 416
            told = b'{"sha256":["%b","%b"]}' % (SHA256.encode(), small.encode())
            both = b"%b %d\n%b%b 10\n0123456789" % (SHA256.encode(), len(DATA), DATA, small.encode())
            assert door.ask("POST /agent/contents", told, user="agent")[::2] == (200, both)
        finally:
            services.stop()
