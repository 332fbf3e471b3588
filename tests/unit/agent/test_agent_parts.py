"""Small parts of an agent, each by itself: answers to a batch, outputs, the slot's folder, what a node is."""

from __future__ import annotations

import json
import os
import platform
import resource
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.attempt.outputs import find_outputs, gives_files, make_output_folders
from pilotage.agent.attempt.scratch import Scratch, remove_tree
from pilotage.agent.attempt.workplace import undeclared_fields
from pilotage.agent.link.http import Answer, BatchAccepted, BatchTooLarge, Refusal, RetryLater, judge
from pilotage.agent.pilot.pilot import cpu_model, describe_node, memory_bytes, usable_folder
from pilotage.agent.site import relay
from tests.kit.agent_runs import open_descriptors, place_in


def _answer(status: int, value: object = None, *, retry_after: str = "", location: str = "") -> Answer:
    return Answer(status, json.dumps(value).encode() if value is not None else b"", retry_after, location)


_TAKEN = {"position": 5, "refused": []}
_ONE_REFUSED = {"position": 5, "refused": [{"index": 1, "code": "purged", "message": "gone"}], "parked": 2}
_ERROR = {"error": {"code": "malformed", "message": "no"}}


@pytest.mark.parametrize(
    "answer, meaning",
    [
        (_answer(200, _TAKEN), BatchAccepted(5, [], 0)),
        (_answer(200, _ONE_REFUSED), BatchAccepted(5, [Refusal(1, "purged", "gone")], 2)),
        (_answer(409, _ONE_REFUSED), BatchAccepted(5, [Refusal(1, "purged", "gone")], 2)),
        (_answer(422, _ONE_REFUSED), BatchAccepted(5, [Refusal(1, "purged", "gone")], 2)),
        (_answer(200, {"position": 0, "refused": [{"index": 0}]}), BatchAccepted(0, [Refusal(0, "refused", "")], 0)),
        (_answer(409, _TAKEN), RetryLater("HTTP 409", 0.0)),
        (_answer(400, _ERROR), BatchTooLarge("malformed", "no")),
        (_answer(409, _ERROR), BatchTooLarge("malformed", "no")),
        (_answer(422, _ERROR), BatchTooLarge("malformed", "no")),
        (_answer(413, _ERROR), BatchTooLarge("too_large", "no")),
        (_answer(413), BatchTooLarge("too_large", "the server rejects this batch as too large")),
        (_answer(400), RetryLater("HTTP 400", 0.0)),
        (_answer(404, _ERROR), RetryLater("HTTP 404: malformed: no", 0.0)),
        (_answer(503, retry_after="7"), RetryLater("HTTP 503", 7.0)),
        (_answer(503, retry_after="99999"), RetryLater("HTTP 503", 3600.0)),
        (_answer(503, retry_after="soon"), RetryLater("HTTP 503", 0.0)),
        (_answer(401), RetryLater("HTTP 401: the token is missing, invalid or not allowed to log events", 0.0, denied=True)),
        (_answer(403, _ERROR), RetryLater("HTTP 403: malformed: no", 0.0, denied=True)),
        (_answer(300), RetryLater("HTTP 300: redirected to nowhere; use the server's own address", 0.0)),
        (_answer(399, location="/x"), RetryLater("HTTP 399: redirected to /x; use the server's own address", 0.0)),
        (_answer(200, []), RetryLater("HTTP 200: the answer is not from a pilotage server", 0.0)),
        (_answer(200, {"position": -1, "refused": []}), RetryLater("HTTP 200: the answer is not from a pilotage server", 0.0)),
        (_answer(200, {"position": True, "refused": []}), RetryLater("HTTP 200: the answer is not from a pilotage server", 0.0)),
        (_answer(200, {"position": 5, "refused": [{"index": 2}]}), RetryLater("HTTP 200: the answer is not from a pilotage server", 0.0)),
        (_answer(200, {"position": 5, "refused": [{"index": 1}, {"index": 1}]}), RetryLater("HTTP 200: the answer is not from a pilotage server", 0.0)),
        (_answer(200, {"position": 5, "refused": [1]}), RetryLater("HTTP 200: the answer is not from a pilotage server", 0.0)),
    ],
    ids=range(26),
)  # fmt: skip
def test_an_answer_to_a_batch_of_two_means(answer: Answer, meaning: object) -> None:
    assert judge(answer, count=2) == meaning


def test_refusals_are_told_in_the_order_of_the_batch() -> None:
    found = judge(_answer(200, {"position": 5, "refused": [{"index": 2}, {"index": 0}]}), count=3)
    assert isinstance(found, BatchAccepted)
    assert [each.batch_index for each in found.refused] == [0, 2]


@pytest.mark.parametrize(
    "work, names",
    [
        ({}, []),
        ({"binaries": [{"outputs": [{"name": "a"}, {"name": "none"}]}]}, ["a", "none"]),
        ({"binaries": [{"stdout": "o", "stderr": "e"}]}, ["e", "o"]),
        ({"binaries": [{"stdout": "o", "outputs": [{"name": "a"}]}], "startup": ["x"]}, ["a"]),
        ({"binaries": [{"outputs": [{"name": "*", "pattern": True}]}]}, ["a", "b"]),
        ({"binaries": [{"outputs": [{"name": "*", "pattern": True}, {"name": "in"}]}]}, ["a", "b", "in"]),
        ({"binaries": [{"outputs": [{"expression": "[ab]"}]}]}, ["a", "b"]),
        ({"binaries": [{"outputs": [{"expression": ".*", "folder": "sub/"}]}]}, ["sub/a", "sub/b", "sub/c"]),
        ({"binaries": [{"outputs": [{"expression": "x*"}]}]}, []),
    ],
)
def test_the_files_that_a_package_gives_are_found(tmp_path: Path, work: dict[str, Any], names: list[str]) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a", "b", "in", "sub/c"):
        (tmp_path / name).touch()
    assert find_outputs(work, str(tmp_path), ["in"]) == names


@pytest.mark.parametrize(
    "output, words",
    [
        ({"name": "*.x", "pattern": True}, "no file matches the output '*.x'"),
        ({"expression": "x+"}, "no file matches 'x+'"),
        ({"expression": "x+", "folder": "sub"}, "no file in 'sub' matches 'x+'"),
        ({"expression": "("}, "the expression '(' is invalid"),
        ({"expression": "a", "folder": "taken"}, "two files would be named 'taken/a'"),
    ],
)
def test_an_output_that_is_missing_is_told_with_the_command_that_should_have_made_it(
    tmp_path: Path, output: dict[str, Any], words: str
) -> None:
    (tmp_path / "taken").mkdir()
    for name in ("a", "taken/a"):
        (tmp_path / name).touch()
    with pytest.raises(Failure) as raised:
        find_outputs({"binaries": [{"argv": ["one"]}, {"outputs": [output]}]}, str(tmp_path), [])
    assert (raised.value.reason, raised.value.binary) == ("missing-output", 1)
    assert words in raised.value.message


@pytest.mark.parametrize(
    "work, gives",
    [
        ({}, False), ({"binaries": [{}]}, False), ({"binaries": [{}, {"outputs": [{"name": "a"}]}]}, True),
        ({"binaries": [{"stdout": "o"}]}, True), ({"binaries": [{"stderr": "e"}]}, True),
        ({"binaries": [{"stdout": "o"}], "startup": ["x"]}, False),
        ({"binaries": [{"outputs": [{"name": "a"}]}], "startup": ["x"]}, True),
    ],
)  # fmt: skip
def test_a_package_gives_files_where_it_names_any(work: dict[str, Any], *, gives: bool) -> None:
    assert gives_files(work) is gives


def test_folders_of_outputs_are_made_as_far_as_they_are_named(tmp_path: Path) -> None:
    outputs: list[dict[str, Any]] = [
        {"name": "a/b"},
        {"name": "c"},
        {"name": "d/*/e", "pattern": True},
        {"expression": "x", "folder": "f"},
        {},
    ]
    for _ in range(2):
        make_output_folders(outputs, str(tmp_path))
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == ["a", "d", "f"]
    (tmp_path / "file").touch()
    for name in ("file/x", "file/x/y"):
        with pytest.raises(Failure, match="which is not a folder") as raised:
            make_output_folders([{"name": name}], str(tmp_path))
        assert raised.value.reason == "missing-output"


def test_a_slot_that_is_ready_is_left_as_it_is(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path / "root"), 1)
    scratch.prepare()
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == stat.S_IMODE(Path(scratch.path).stat().st_mode) == 0o700
    (Path(scratch.path) / "file").touch()
    scratch.prepare()
    assert (Path(scratch.path) / "file").exists()
    assert scratch.empty() is True
    assert scratch.removed == ["file"]
    assert scratch.empty() is True
    assert scratch.removed == []
    kept = scratch.keep(str(tmp_path / "kept"), "one")
    assert (kept, scratch.descriptor) == (str(tmp_path / "kept" / "one"), -1)
    scratch.prepare()
    assert Path(scratch.path).is_dir()
    scratch.abandon()
    assert scratch.path.endswith("slot-1.1")
    scratch.abandon()
    assert scratch.path.endswith("slot-1.2")


def test_only_a_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "file").touch()
    assert [remove_tree(str(tmp_path / name)) for name in ("link", "file", "folder", "gone")] == [
        False,
        False,
        True,
        True,
    ]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize(
    "left, message",
    [
        (["a"], 'it left behind a: no output declares it\noutputs: ["a"]'),
        (["a", "b"], 'it left behind a, b: no output declares them\noutputs: ["a", "b"]'),
        (list("abcdefg"), 'it left behind a, b, c, d, e and 2 more: no output declares them\noutputs: ["a", "b", "c", "d", "e"]'),
        (["n" * 200], f'it left behind {"n" * 200}: no output declares it\noutputs: ["{"n" * 200}"]'),
        (["n" * 201], "it left behind 1 files: no output declares it"),
    ],
    ids=["one", "two", "many", "long", "too long"],
)  # fmt: skip
def test_what_was_left_behind_is_named(left: list[str], message: str) -> None:
    assert undeclared_fields(left) == {"reason": "undeclared-files", "exit_message": message}


@pytest.mark.parametrize("soft, hard, asked", [(1024, 4096, [(4096, 4096)]), (4096, 4096, []), (1024, -1, [(-1, -1)])])
def test_a_relay_takes_as_many_files_as_it_may(
    soft: int, hard: int, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: taken.append(limits))
    relay._raise_limit()
    assert taken == asked


def test_a_node_is_described_as_its_system_names_it() -> None:
    described = describe_node("n1", "here")
    lines = Path("/etc/os-release").read_text().splitlines()
    [name] = [line.partition("=")[2].strip("\"'") for line in lines if line.startswith("PRETTY_NAME=")]
    system = os.uname()
    assert described == {
        "node": "n1",
        "site": "here",
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "system": f"{name}, {system.sysname} {system.release} {system.machine}",
        "software": {"python": ".".join(map(str, sys.version_info[:3]))},
        "environment": {"utc_offset": time.strftime("%z")[:3] + ":" + time.strftime("%z")[3:]},
        "os_release": name,
        "kernel": f"{system.sysname} {system.release} {system.machine}",
        "cpu_model": cpu_model(),
        "libc": " ".join(platform.libc_ver()).strip(),
    }


@pytest.mark.parametrize(
    "told, model",
    [
        ("processor\t: 0\nmodel\t\t: 85\nmodel name\t: Xeon 6148\n\nmodel name\t: other\n", "Xeon 6148"),
        (
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nCPU part\t: 0xd40\n",
            "CPU implementer 0x41, CPU part 0xd0c",
        ),
        ("", ""),
    ],
)
def test_the_model_of_a_processor_is_what_the_kernel_calls_it(told: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(told)
    assert cpu_model(str(tmp_path / "cpuinfo")) == model
    assert cpu_model(str(tmp_path / "none")) == ""
    [total] = [
        line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")
    ]
    assert memory_bytes() == pytest.approx(int(total) * 1024, rel=0.1)


def test_a_folder_is_usable_where_it_is_there_and_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH_OF_NODE", str(tmp_path))
    assert usable_folder("$SCRATCH_OF_NODE") == usable_folder(str(tmp_path)) == str(tmp_path)
    for text in ("", "$NO_SUCH_VARIABLE/x", "relative", str(tmp_path / "gone")):
        assert usable_folder(text) == ""


@pytest.mark.parametrize(
    "binary, reason, words",
    [
        ({"stdin": "gone"}, "missing-input", "its stdin 'gone' cannot be read"),
        ({"stdout": "folder/x", "stdin": "in"}, "platform-failure", "making 'folder/x' for its output failed"),
    ],
)
def test_a_stream_that_cannot_be_opened_is_told_and_leaves_nothing_open(
    tmp_path: Path, binary: dict[str, Any], reason: str, words: str
) -> None:
    with place_in(tmp_path) as place:
        (place.folder / "in").write_text("x")
        (place.folder / "folder").write_text("x")
        inputs = [{"name": "in"}, {"name": "folder"}]
        assert place.run("/bin/true", binary={"stdin": "in"}, inputs=inputs).payload["exit_code"] == "SUCCESS"
        before = open_descriptors()
        payload = place.run("/bin/cat", binary=binary, inputs=inputs).payload
        assert payload["reason"] == reason
        assert words in payload["exit_message"]
        assert open_descriptors() == before


def test_both_streams_may_go_to_one_file(tmp_path: Path) -> None:
    with place_in(tmp_path) as place:
        outcome = place.shell("echo out; echo err >&2", binary={"stdout": "sub/log", "stderr": "sub/log"})
        assert place.outputs(outcome) == {"sub/log": b"out\nerr\n"}
        outcome = place.shell("echo out; echo err >&2", binary={"stdout": "a", "stderr": "b"})
        assert place.outputs(outcome) == {"a": b"out\n", "b": b"err\n"}
