"""Inputs that another attempt still writes: copied as they grow, checked when they are complete, never changed for others."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotage.agent.attempt.inputs.growing as growing_module
from pilotage.agent.attempt.attempt import Outcome
from pilotage.agent.attempt.outputs import ShownFolder
from tests.kit.agent_runs import Place, log_of, place_in, wait_until

FOLLOW = "until grep -q '\"final\": true' a.pilotage; do :; done; cat a a.pilotage"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_module, "FOLLOW_SECONDS", 0.01)
    monkeypatch.setattr(growing_module, "LATE_SECONDS_MIN", 0.1)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


class Maker:
    """The agent of an attempt that writes `a`, played by the test."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.scratch = place.root / "elsewhere"
        self.scratch.mkdir()
        self.file = place.root / "cache/.growing-j1-0.0.1-1"
        self.shown = ShownFolder(str(self.file), str(self.scratch))

    def write(self, text: str) -> None:
        with (self.scratch / "a").open("a") as file:
            file.write(text)

    def finish(self, content: bytes | None = None) -> None:
        """Stage the file, and say that it is complete; `content` is what is said of it."""
        staged = self.place.staged / "0.0.1-1-0"
        self.place.staged.mkdir(exist_ok=True)
        (self.scratch / "a").rename(staged)
        made = staged.read_bytes() if content is None else content
        manifest = [{"name": "a", "size_bytes": len(made), "sha256": hashlib.sha256(made).hexdigest()}]
        self.shown.finish(manifest, str(self.place.staged / "0.0.1-1"))


@pytest.fixture
def maker(place: Place) -> Maker:
    return Maker(place)


class Reader:
    """An attempt in a thread of its own that reads `a` early."""

    def __init__(self, maker: Maker, script: str, **said: Any) -> None:
        self.outcome: Outcome | None = None
        self._early = [{"name": "a", "source": str(maker.file)}]
        self._thread = threading.Thread(target=self._run, args=(maker.place, script, said))
        self._thread.start()

    def _run(self, place: Place, script: str, said: dict[str, Any]) -> None:
        self.outcome = place.shell(script, early=self._early, **said)

    def ended(self) -> Outcome:
        self._thread.join(60)
        assert self.outcome is not None
        return self.outcome


def test_a_command_sees_its_input_grow_and_is_told_when_it_is_complete(maker: Maker) -> None:
    began = maker.place.root / "began"
    reader = Reader(maker, f"cat a.pilotage > {began}.new; mv {began}.new {began}; {FOLLOW}")
    maker.write("one ")
    wait_until(began.exists)
    assert json.loads(began.read_text()) in ({"bytes": 4, "final": False}, {"bytes": 0, "final": False})
    maker.write("two")
    maker.finish()
    said, sha256 = log_of(reader.ended()), hashlib.sha256(b"one two").hexdigest()
    assert said == f'one two{{"bytes": 7, "final": true, "sha256": "{sha256}"}}'
    assert maker.place.scratch_is_empty()


def test_what_the_command_writes_into_its_input_changes_nothing_for_others(maker: Maker) -> None:
    maker.write("one")
    changed = maker.place.root / "changed"
    reader = Reader(maker, f"chmod u+w a; printf X | dd of=a conv=notrunc 2> {changed}; {FOLLOW}")
    wait_until(changed.exists)
    maker.write(" two")
    maker.finish()
    assert reader.ended().payload["exit_code"] == "SUCCESS"
    assert (maker.place.staged / "0.0.1-1-0").read_text() == "one two"


@pytest.mark.parametrize("how", ["replaced", "cut", "another"])
def test_a_file_that_does_not_only_grow_ends_the_command(how: str, maker: Maker) -> None:
    maker.write("one")
    began = maker.place.root / "began"
    reader = Reader(maker, f"touch {began}; {FOLLOW}")
    wait_until(began.exists)
    if how == "replaced":
        (maker.scratch / "b").write_text("one two three")
        (maker.scratch / "b").rename(maker.scratch / "a")
    elif how == "cut":
        os.truncate(maker.scratch / "a", 1)
    else:
        maker.finish(b"two")
    payload = reader.ended().payload
    assert (payload["reason"], "while it grew" in payload["exit_message"]) == ("input-checksum", True)


def test_a_file_that_is_complete_before_the_reader_begins_is_taken_from_where_it_was_staged_or_published(
    maker: Maker,
) -> None:
    maker.write("one")
    maker.finish()
    assert log_of(Reader(maker, FOLLOW).ended()).startswith("one{")
    (maker.place.staged / "0.0.1-1-0").rename(maker.place.folder / "a")
    assert log_of(Reader(maker, FOLLOW).ended()).startswith("one{")


@pytest.mark.parametrize("what", ["nothing is said", "another folder", "neither staged nor published"])
def test_a_file_that_cannot_be_seen_on_this_node_is_waited_for_and_then_missing(what: str, maker: Maker) -> None:
    maker.write("one")
    if what == "nothing is said":
        maker.shown.end()
    elif what == "another folder":
        maker.scratch.rename(maker.place.root / "moved")
        maker.scratch.mkdir()
    else:
        maker.finish()
        (maker.place.staged / "0.0.1-1-0").unlink()
    payload = Reader(maker, FOLLOW).ended().payload
    assert (payload["reason"], payload["exit_code"]) == ("missing-input", "ERROR_READ_GRID")
    assert "cannot be seen on this node" in payload["exit_message"]


def test_a_reader_that_waits_for_a_file_that_is_not_made_yet_can_be_cancelled(maker: Maker) -> None:
    reader = Reader(maker, FOLLOW)
    wait_until(lambda: "inputs" in maker.place.phases)
    maker.place.runner.cancel("not wanted")
    assert reader.ended().payload["exit_code"] == "EXECUTION_CANCELED"


def test_inputs_and_what_is_said_beside_them_are_neither_outputs_nor_left_behind(maker: Maker) -> None:
    maker.write("one")
    maker.finish()
    binary = {"argv": ["/bin/sh", "-c", f"{FOLLOW}; echo made > b"], "outputs": [{"name": "*", "pattern": True}]}
    early = [{"name": "a", "source": str(maker.file)}]
    outcome = maker.place.run(binaries=[binary], early=early)
    assert maker.place.outputs(outcome) == {"b": b"made\n"}
    assert "undeclared" not in str(maker.place.run("true", early=early).payload)


def test_a_complete_input_of_a_package_that_could_have_started_early_is_said_to_be_final(place: Place) -> None:
    (place.folder / "a").write_text("whole")
    given = [{"name": "a", "sha256": hashlib.sha256(b"whole").hexdigest(), "size_bytes": 5, "made": True}]
    assert json.loads(log_of(place.run("cat", "a.pilotage", inputs=given, early=[{"name": "a"}]))) == {
        "bytes": 5,
        "final": True,
        "sha256": given[0]["sha256"],
    }


# --- the attempt that writes it -------------------------------------------------------------------------------------


def test_an_attempt_says_where_its_outputs_grow_and_then_what_it_made(tmp_path: Path) -> None:
    shown = tmp_path / "cache/.growing-j1-1.1.1-1"
    with place_in(tmp_path) as place:
        binary = {"argv": ["/bin/sh", "-c", f"cat {shown} > a"], "outputs": [{"name": "a"}]}
        outcome = place.run(binaries=[binary], shown=str(shown))
        [content] = place.outputs(outcome).values()
        assert json.loads(content)["folder"].endswith("/slot-1")
        assert json.loads(shown.read_text())["made"]["a"]["path"] == str(place.staged / "1.1.1-1-0")
    assert not shown.exists()  # its pilot has ended


def test_an_attempt_that_failed_says_nothing_any_more(place: Place) -> None:
    shown = place.root / "cache/.growing-j1-1.1.1-1"
    assert place.shell(f"test -e {shown} && exit 3", shown=str(shown)).payload["exit_status"] == 3
    assert not shown.exists()


def test_what_a_pilot_that_was_killed_said_is_removed_later(place: Place) -> None:
    old, young = place.root / "cache/.growing-x", place.root / "cache/.growing-y"
    old.parent.mkdir()
    for each in (old, young, old.with_name("kept")):
        each.touch()
    os.utime(old, (0, 0))
    os.utime(old.with_name("kept"), (0, 0))
    ShownFolder(str(place.root / "cache/.growing-z"), str(place.root))
    assert sorted(each.name for each in old.parent.iterdir()) == [".growing-y", ".growing-z", "kept"]
