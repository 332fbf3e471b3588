"""Files that the service itself keeps: put by a user, fetched by jobs, and stored there by content; only for who put them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotage
from tests.kit.real_runs import Place, place_in

FIRST = """
pilotage: 1
job: first
stages:
  - each: {{n: 1..2}}
    shell: "sha256sum in.dat > sum-{{n}}.txt; echo {{n}} >> sum-{{n}}.txt"
    inputs: [{{name: in.dat, locator: "{locator}"}}]
    outputs: [{{name: "sum-{{n}}.txt", locator: "store:", dispositions: [forward, store, deletable], replicas: 2}}]
  - shell: "cat sum-*.txt > all.txt"
    inputs: ["sum-*.txt"]
    outputs: [{{name: all.txt, dispositions: [store]}}]
"""
SECOND = """
pilotage: 1
job: second
stages:
  - shell: "cat one > two"
    inputs: [{{name: one, locator: "{locator}"}}]
    outputs: [two]
"""
SETTINGS = """
[stores.own]
url = "store:"
[stores.tape]
url = "file://{tape}"
[files]
archive = ["own", "tape"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "job").mkdir()
    with place_in(tmp_path / "job") as made:
        (made.folder / "pilotage.toml").write_text(SETTINGS.format(tape=tmp_path / "tape"))
        made.run("serve", "--background", "--port", "0", "--slots", "2")
        yield made


def locator_of(content: bytes) -> str:
    return f"store:{hashlib.sha256(content).hexdigest()}"


def kept(place: Place) -> set[str]:
    return {each["locator"] for each in place.told("files", "kept")["files"]}


def test_files_are_put_read_by_jobs_and_kept_by_their_content(place: Place, tmp_path: Path) -> None:
    content = os.urandom(10_000_000)
    (tmp_path / "large.dat").write_bytes(content)
    done = place.run("files", "put", str(tmp_path / "large.dat"))
    assert done.stdout == f"{locator_of(content)} {tmp_path / 'large.dat'}\n"
    (tmp_path / "large.dat").unlink()
    place.document(FIRST.format(locator=locator_of(content)))
    place.run("run")
    sums = [f"{hashlib.sha256(content).hexdigest()}  in.dat\n{n}\n".encode() for n in (1, 2)]
    assert kept(place) == {locator_of(each) for each in (content, *sums, b"".join(sums))}
    assert sorted(path.read_bytes() for path in (tmp_path / "tape").rglob("sum-*")) == sorted(sums), "the other copy"
    assert not list(place.folder.glob("sum-*")), "deletable outputs go when all their copies are verified"
    # A later job of the same user names an output of this one by its content, and the service has it.
    place.document(SECOND.format(locator=locator_of(sums[0])))
    place.run("run")
    assert (place.folder / "two").read_bytes() == sums[0]
    place.run("files", "drop", locator_of(sums[0]))
    assert locator_of(sums[0]) not in kept(place)
    assert "is not kept for you" in place.run("files", "drop", locator_of(sums[0]), code=2).stderr
    place.document(SECOND.format(locator=locator_of(sums[0])).replace("job: second", "job: third"))
    refused = place.run("run", code=2)
    assert f"{locator_of(sums[0])} is not stored here" in refused.stderr
    assert "pilotage files put FILE" in refused.stderr


def test_python_puts_files_and_lists_and_drops_them(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    client = pilotage.Client()
    (tmp_path / "small").write_bytes(b"small")
    assert client.put(tmp_path / "small") == client.put(tmp_path / "small") == locator_of(b"small")
    assert [(each.locator, each.size_bytes) for each in client.kept()] == [(locator_of(b"small"), 5)]
    assert [client.drop_kept(locator_of(b"small")) for _ in range(2)] == [True, False]
    assert client.kept() == []
