"""Files are sent and received in ranges, over real sockets: what broke off goes on, and what changed is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.client import Server, ServerRefused, ServerUnreachable, contents
from pilotage.client.contents import (
    CapturedFiles,
    FileChanged,
    FileThere,
    missing_contents,
    receive_file,
    send_content,
)
from pilotage.model.answers import PublishedFile
from pilotage.model.jobs.submission import Origin
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import Batch
from tests.kit.running_jobs import running_services
from tests.kit.served_book import TOKEN, event, listening, registered

DATA = bytes(range(256)) * 400
SHA256 = hashlib.sha256(DATA).hexdigest()
PIECE = 10_000


class UnsteadyServer(Server):
    """A server whose connection breaks after some pieces, both ways, until it has broken so often."""

    def __init__(self, url: str) -> None:
        super().__init__(url, token=lambda: TOKEN)
        self.breaks = 0
        self.sent: list[str] = []
        self.asked: list[int] = []

    def upload_piece(self, path: str, content: bytes, *, content_range: str, answer_seconds: float) -> Any:
        self.sent.append(content_range)
        answer = super().upload_piece(path, content, content_range=content_range, answer_seconds=answer_seconds)
        self._break()
        return answer

    def pieces(self, path: str, parameters: Any = None, *, offset: int = 0) -> Iterator[bytes]:
        self.asked.append(offset)
        for piece in super().pieces(path, parameters, offset=offset):
            yield piece[:PIECE]
            if self.breaks:
                self._break()
            yield piece[PIECE:]

    def _break(self) -> None:
        if self.breaks:
            self.breaks -= 1
            raise ServerUnreachable("the connection broke", subject=self.url)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with running_services(tmp_path / "state") as (made, _):
        yield made


@pytest.fixture
def server(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnsteadyServer]:
    monkeypatch.setattr(contents, "UPLOAD_BYTES", PIECE)
    monkeypatch.setattr(contents, "PAUSES_SECONDS", (0.0, 0.0))
    with listening(services) as url:
        made = UnsteadyServer(url)
        yield made
        made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "a.dat"
    made.write_bytes(DATA)
    return made


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give up at the first broken connection."""
    with monkeypatch.context() as patched:
        patched.setattr(contents, "PAUSES_SECONDS", ())
        yield


def send(server: Server, file: Path, **more: Any) -> int:
    moved: list[int] = []
    send_content(server, file, sha256=SHA256, size_bytes=len(DATA), moved=moved.append, **more)
    return sum(moved)


def test_a_file_is_sent_in_pieces_once(server: UnsteadyServer, file: Path) -> None:
    assert missing_contents(server, [SHA256]) == {SHA256}
    assert send(server, file) == len(DATA)
    assert server.sent == [
        f"bytes {start}-{min(start + PIECE, len(DATA)) - 1}/{len(DATA)}" for start in range(0, len(DATA), PIECE)
    ]
    assert missing_contents(server, [SHA256]) == set()
    server.sent.clear()
    send(server, file)
    assert server.content(f"/v1/content/{SHA256}") == DATA


def test_an_upload_goes_on_after_broken_connections_and_in_another_program(
    server: UnsteadyServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.breaks = 1
    with impatient(monkeypatch), pytest.raises(ServerUnreachable):
        send(server, file)
    assert len(server.sent) == 1
    server.breaks = 5
    send(server, file)
    assert len({*server.sent}) == len(server.sent) == 11
    assert missing_contents(server, [SHA256]) == set()


def test_an_upload_that_another_program_continued_goes_on_behind_it(server: UnsteadyServer, file: Path) -> None:
    server.head(f"/v1/content/{SHA256}")
    real = server.head
    answers: Iterator[tuple[int, dict[str, str]]] = iter([(404, {})])
    server.head = lambda path: next(answers, None) or real(path)  # type: ignore[method-assign]
    Server.upload_piece(
        server,
        f"/v1/content/{SHA256}",
        DATA[:PIECE],
        content_range=f"bytes 0-{PIECE - 1}/{len(DATA)}",
        answer_seconds=0,
    )
    send(server, file)
    assert missing_contents(server, [SHA256]) == set()


def test_a_file_that_changes_while_it_is_sent_is_named(server: UnsteadyServer, file: Path) -> None:
    file.write_bytes(b"!" + DATA[1:])
    with pytest.raises(FileChanged, match="changed while it was sent"):
        send(server, file)
    file.write_bytes(DATA[:-1])
    with pytest.raises(FileChanged, match="shorter"):
        send(server, file)
    assert missing_contents(server, [SHA256]) == {SHA256}


class CountingServer(Server):
    """A server that remembers which paths were uploaded to; one of an earlier release has no request for many files."""

    def __init__(self, url: str, *, refuses: int = 0) -> None:
        super().__init__(url, token=lambda: TOKEN)
        self.uploads: list[str] = []
        self._refuses = refuses

    def upload(self, path: str, content: bytes, *, method: str = "POST") -> Any:
        self.uploads.append(path.removeprefix("/v1/"))
        if self._refuses and path.endswith("captured"):
            raise ServerRefused("no", subject="", status=self._refuses, code="not_found")
        return super().upload(path, content, method=method)

    def __enter__(self) -> CountingServer:
        return self


def keep(server: Server, files: list[bytes]) -> list[str]:
    captured = CapturedFiles(server)
    named = [captured.keep(each) for each in files]
    captured.send()
    return named


def test_captured_files_are_sent_together_as_far_as_they_are_small(
    server: UnsteadyServer, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "UPLOAD_BYTES", 8 * 2**20)
    monkeypatch.setattr(contents, "ASKED_AT_ONCE", 4)
    many, large = [b"%d" % number for number in range(10)], b"l" * (contents.SMALL_BYTES + 1)
    with CountingServer(server.url) as counting:
        named = keep(counting, [*many, large, many[0]])
        assert counting.uploads == ["content/captured", "content/captured", "content", "content/captured"]
        assert keep(counting, [b"a single one"]) == [hashlib.sha256(b"a single one").hexdigest()]
        assert counting.uploads[4:] == ["content"]
        monkeypatch.setattr(contents, "UPLOAD_BYTES", 10)
        keep(counting, [b"x" * 5, b"y" * 5, b"z" * 4])
        assert counting.uploads[5:] == ["content/captured", "content"]
    assert [services.journal.content(each) for each in named] == [*many, large, many[0]]


def test_a_server_of_an_earlier_release_gets_captured_files_one_by_one(
    server: UnsteadyServer, services: Services
) -> None:
    for status in (404, 405):
        files = [b"%d %d" % (status, number) for number in range(3)]
        with CountingServer(server.url, refuses=status) as counting:
            named = keep(counting, files)
            assert counting.uploads == ["content/captured", "content", "content", "content"]
        assert [services.journal.content(each) for each in named] == files
    with CountingServer(server.url, refuses=403) as counting, pytest.raises(ServerRefused):
        keep(counting, [b"a", b"b"])


def a_result(services: Services, folder: Path, name: str = "out/ä b\n.dat") -> PublishedFile:
    """A job with one result in a folder."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(DATA)
    origin = services.journal.put_content(msgspec.json.encode(Origin(folder=str(folder))))
    job = registered(1, "j")
    job["data"] |= {"definition": "ab" * 32, "lists": {"origin": origin}}
    manifest = [{"name": name, "size_bytes": len(DATA), "sha256": SHA256}]
    about = {"job": "j", "package": "1.1.1", "attempt": 1}
    events = [
        job,
        event(2, "AttemptCreated", {"site": "local"}, **about),
        event(3, "AttemptFinished", {"exit_code": "SUCCESS", "manifest": manifest}, **about),
        event(4, "CommitGranted", {}, **about),
    ]
    checked, refused, _ = services.codec.read_batch(msgspec.json.encode({"events": events}))
    assert not refused
    services.writer.submit(Batch(checked)).result(60.0)
    return PublishedFile(name=name, size_bytes=len(DATA), sha256=SHA256, package="1.1.1")


def test_a_result_goes_on_after_broken_connections_and_in_another_program(
    server: UnsteadyServer, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, target = a_result(services, tmp_path / "job"), tmp_path / "here.dat"
    server.breaks = 1
    with impatient(monkeypatch), pytest.raises(ServerUnreachable):
        receive_file(server, "j", file, target, replace=False)
    assert not target.exists()
    (draft,) = tmp_path.glob(".pilotage-*.part")
    so_far = draft.stat().st_size
    assert 0 < so_far < len(DATA)
    server.breaks = 1
    server.asked.clear()
    receive_file(server, "j", file, target, replace=False)
    assert server.asked == [so_far, so_far + PIECE]
    assert target.read_bytes() == DATA
    assert not list(tmp_path.glob(".pilotage-*.part"))


def test_a_damaged_draft_is_received_anew(
    server: UnsteadyServer, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, target = a_result(services, tmp_path / "job"), tmp_path / "here.dat"
    server.breaks = 1
    with impatient(monkeypatch), pytest.raises(ServerUnreachable):
        receive_file(server, "j", file, target, replace=False)
    (draft,) = tmp_path.glob(".pilotage-*.part")
    draft.write_bytes(b"!" * draft.stat().st_size)
    server.breaks = 0
    receive_file(server, "j", file, target, replace=False)
    assert target.read_bytes() == DATA


def test_a_result_that_is_not_the_granted_one_is_not_kept(
    server: UnsteadyServer, services: Services, tmp_path: Path
) -> None:
    file, target = a_result(services, tmp_path / "job"), tmp_path / "here.dat"
    (tmp_path / "job" / file.name).write_bytes(b"!" + DATA[1:])
    with pytest.raises(FileChanged, match="not the granted one"):
        receive_file(server, "j", file, target, replace=False)
    (tmp_path / "job" / file.name).unlink()
    with pytest.raises(ServerRefused, match="gone"):
        receive_file(server, "j", file, target, replace=False)
    assert not target.exists()


def test_another_file_is_replaced_on_request_alone(server: UnsteadyServer, services: Services, tmp_path: Path) -> None:
    file, target = a_result(services, tmp_path / "job"), tmp_path / "here.dat"
    target.write_text("mine")
    with pytest.raises(FileThere):
        receive_file(server, "j", file, target, replace=False)
    assert target.read_text() == "mine"
    receive_file(server, "j", file, target, replace=True)
    assert target.read_bytes() == DATA
