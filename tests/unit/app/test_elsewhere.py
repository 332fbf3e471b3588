"""Whether a service sees a folder is proven, and files that change while they are sent are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotage
from pilotage.app.jobs.elsewhere import Meter, SentFiles, Transferred, sees_folder, send_files
from pilotage.client import Server
from pilotage.client.contents import FileChanged
from pilotage.service.works.capture import MissingInput
from tests.kit.running_jobs import running_services
from tests.kit.served_book import TOKEN, listening

DOCUMENT = """
pilotage: 1
job: j
stages:
  - each: {file: {files: "*.dat"}}
    inputs: ["{file}", large.bin]
    outputs: ["{file.stem}.out"]
    run: ./tool {file}
  - inputs: ["*.out", notes.txt]
    stdin: given.txt
    run: cat
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with running_services(tmp_path / "state") as (services, _), listening(services) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    (made / "pilotage.yaml").write_text(DOCUMENT)
    for name in ("a.dat", "b.dat", "notes.txt", "given.txt", "not-read.txt"):
        (made / name).write_text(f"{name}\n")
    (made / "large.bin").write_bytes(b"x" * 100_000)
    (made / "tool").write_text("#!/bin/sh\n")
    (made / "tool").chmod(0o755)
    return made


class MeddlingServer(Server):
    """A server at which something happens after each request of one kind."""

    def __init__(self, url: str, *, after: str, meddle: Callable[[], object]) -> None:
        super().__init__(url, token=lambda: TOKEN)
        self._after, self._meddle = after, meddle

    def _asked(self, method: str, path: str, *arguments: Any, **more: Any) -> Any:
        answer = super()._asked(method, path, *arguments, **more)
        if path.endswith(self._after):
            self._meddle()
        return answer


def sent(server: Server, folder: Path) -> SentFiles:
    loaded = pilotage.load(folder / "pilotage.yaml")
    return send_files(server, loaded, folder, keep=lambda _: "ab" * 32, report=None)


def test_a_folder_is_seen_if_its_mark_is_found_there_and_no_mark_stays(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(url, token=lambda: TOKEN) as server:
        assert sees_folder(server, folder)
        monkeypatch.setattr("os.path.realpath", lambda _: "/the/same/folder/elsewhere")
        assert not sees_folder(server, folder)
    assert not list(folder.glob(".pilotage*"))


def test_every_file_that_the_job_reads_is_sent_once(url: str, folder: Path) -> None:
    with Server(url, token=lambda: TOKEN) as server:
        first = sent(server, folder)
        assert sorted(first.captured) == ["a.dat", "b.dat", "given.txt", "large.bin", "notes.txt", "tool"]
        assert {name for name, file in first.captured.items() if file.content} == {"tool"}
        assert first.captured["tool"].executable
        assert (first.sent, first.there) == (5, 0)
        again = sent(server, folder)
        assert (again.sent, again.sent_bytes, again.there) == (0, 0, 5)


@pytest.mark.parametrize("name", ["a.dat", "large.bin"])
@pytest.mark.parametrize("after", ["/missing", "/batch"])
def test_a_file_that_changes_meanwhile_is_named(url: str, folder: Path, name: str, after: str) -> None:
    changed = (folder / name).read_bytes()[::-1] + b"!"

    def meddle() -> None:
        (folder / name).write_bytes(changed)

    with MeddlingServer(url, after=after, meddle=meddle) as server, pytest.raises(FileChanged) as told:
        sent(server, folder)
    assert name in str(told.value)


def test_an_input_that_is_gone_is_named(url: str, folder: Path) -> None:
    loaded = pilotage.load(folder / "pilotage.yaml")
    (folder / "notes.txt").unlink()
    with Server(url, token=lambda: TOKEN) as server, pytest.raises(MissingInput, match=r"notes\.txt"):
        send_files(server, loaded, folder, keep=lambda _: "ab" * 32, report=None)


def test_progress_is_reported_after_five_seconds_and_then_every_five() -> None:
    now, told = [0.0], list[Transferred]()
    meter = Meter("sent", 1000, told.append, clock=lambda: now[0])
    for now[0] in (1.0, 4.9, 5.0, 9.0, 10.5):
        meter(100)
    assert [(each.bytes_done, each.seconds) for each in told] == [(300, 5.0), (500, 10.5)]
    assert told[0].text == "sent 300 B of 1000 B, 60 B/s"
