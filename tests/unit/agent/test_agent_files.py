from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotage.agent.attempt.inputs.placing as inputs_module
from pilotage.agent.attempt import files
from tests.kit.agent_runs import Place, log_of, place_in


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(place: Place, name: str, content: bytes = b"data") -> Path:
    file = place.folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_what_packages_made_lies_under_its_name_as_a_second_name_of_the_file(place: Place) -> None:
    file = _write(place, "a/b/c.dat")
    (place.folder / "link").symlink_to("a/b/c.dat")
    inputs = [{"name": "a/b/c.dat", "made": True}, {"name": "link", "made": True}]
    outcome = place.shell("cat a/b/c.dat link; stat -c %i a/b/c.dat", inputs=inputs)
    assert log_of(outcome) == f"datadata{file.stat().st_ino}\n"
    assert file.read_bytes() == b"data"


def test_inputs_are_copied_where_there_are_no_hard_links(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    file = _write(place, "a", b"x" * 100_000)
    outcome = place.shell("wc -c < a; echo mine > a", inputs=[{"name": "a", "sha256": _sha(b"x" * 100_000)}])
    assert (log_of(outcome).strip(), outcome.payload["exit_code"]) == ("100000", "SUCCESS")
    assert file.stat().st_size == 100_000


def test_captured_content_is_brought_by_its_sha_and_can_be_run(place: Place) -> None:
    sha = place.fetch.put_content(b"#!/bin/sh\necho captured\n")
    inputs = [{"name": "tool", "sha256": sha, "content": True, "executable": True}]
    assert log_of(place.run("./tool", inputs=inputs)) == "captured\n"


def test_captured_content_that_a_command_changed_is_not_used_again(place: Place) -> None:
    sha = place.fetch.put_content(b"captured")
    inputs = [{"name": "a", "sha256": sha, "content": True}]
    assert (
        place.shell("chmod u+w a; echo more >> a", inputs=inputs)
        .payload["exit_message"]
        .startswith("it changed its input")
    )
    failed = place.run("cat", "a", inputs=inputs).payload  # it is fetched anew, and this server has it no more
    assert failed["reason"] == "platform-failure"
    place.fetch.put_content(b"captured")
    assert log_of(place.run("cat", "a", inputs=inputs)) == "captured"


def test_an_input_that_was_sent_is_fetched_by_its_content_where_the_folder_is_not_seen(place: Place) -> None:
    sha = place.fetch.put_content(b"sent")
    inputs = [{"name": "a", "sha256": sha, "size_bytes": 4, "stored": True}]
    unseen: dict[str, Any] = {"mark": "", "folder_mark": ""}
    assert log_of(place.run("cat", "a", inputs=inputs, **unseen)) == "sent"
    _write(place, "b", b"here")
    inputs = [{"name": "b", "sha256": _sha(b"here"), "size_bytes": 4, "stored": True}]
    assert log_of(place.run("cat", "b", inputs=inputs)) == "here"
    assert place.run("cat", "b", inputs=inputs, **unseen).payload["reason"] == "platform-failure"


def test_captured_files_of_a_package_are_asked_for_together_unless_they_are_read_in_the_folder(place: Place) -> None:
    shas = [place.fetch.put_content(content) for content in (b"first", b"second", b"third")]
    captured = [{"name": f"c{n}", "sha256": shas[n], "size_bytes": n, "content": True} for n in (0, 1)]
    sent = {"name": "s", "sha256": shas[2], "size_bytes": 5, "stored": True}
    _write(place, "s", b"third")
    assert log_of(place.run("cat", "c0", "c1", "s", inputs=[*captured, sent])) == "firstsecondthird"
    unseen: dict[str, Any] = {"mark": "", "folder_mark": ""}
    assert log_of(place.run("cat", "c0", "c1", "s", inputs=[*captured, sent], **unseen)) == "firstsecondthird"
    assert log_of(place.run("cat", "s", inputs=[sent], **unseen)) == "third"  # a single one is just fetched
    assert place.fetch.brought == [{shas[0]: 0, shas[1]: 1}, {shas[0]: 0, shas[1]: 1, shas[2]: 5}]


def test_a_file_is_made_executable_without_touching_the_tree(place: Place) -> None:
    file = _write(place, "tool", b"#!/bin/sh\necho run\n")
    assert log_of(place.run("./tool", inputs=[{"name": "tool", "executable": True}])) == "run\n"
    assert not file.stat().st_mode & 0o111


@pytest.mark.parametrize(
    "said, reason, code",
    [
        ({"name": "absent"}, "missing-input", "ERROR_READ_GRID"),
        ({"name": "there/absent"}, "missing-input", "ERROR_READ_GRID"),
        ({"name": "dangling"}, "missing-input", "ERROR_READ_GRID"),
        ({"name": "folder"}, "missing-input", "ERROR_READ_GRID"),
        ({"name": "there", "sha256": "0" * 64}, "input-checksum", "ERROR_READ_GRID"),
        ({"name": "there", "size_bytes": 5}, "input-checksum", "ERROR_READ_GRID"),
        ({"name": "x", "content": True, "sha256": "0" * 64}, "platform-failure", "ERROR_READ_GRID"),
        ({"name": "../there"}, "platform-failure", "ERROR_READ_GRID"),
        ({"name": "/etc/passwd"}, "platform-failure", "ERROR_READ_GRID"),
    ],
)
def test_an_input_that_is_not_as_it_must_be_is_told(place: Place, said: dict[str, Any], reason: str, code: str) -> None:
    _write(place, "there")
    (place.folder / "folder").mkdir()
    (place.folder / "dangling").symlink_to("nowhere")
    payload = place.run("/bin/true", inputs=[said]).payload
    assert (payload["reason"], payload["exit_code"]) == (reason, code)
    assert repr(said["name"]) in payload["exit_message"]
    assert [each["phase"] for each in payload["phases"]] == ["setup", "inputs", "cleaning"]
    assert place.scratch_is_empty()


def test_a_file_is_read_once_for_its_checksum(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = files.sha256_of

    def noted(path: str, size_bytes: int) -> str:
        read.append(path)
        return real(path, size_bytes)

    monkeypatch.setattr(files, "sha256_of", noted)
    file = _write(place, "a")
    inputs = [{"name": "a", "sha256": _sha(b"data")}]
    for _ in range(3):
        assert place.run("/bin/true", inputs=inputs).payload["exit_code"] == "SUCCESS"
    assert read == [str(file)]
    file.write_bytes(b"DATA")
    assert place.run("/bin/true", inputs=inputs).payload["reason"] == "input-checksum"


def test_an_input_that_a_command_writes_into_is_told(place: Place) -> None:
    _write(place, "a")
    payload = place.shell("echo more >> a", inputs=[{"name": "a", "made": True}]).payload
    assert payload["reason"] == "application-error"
    assert payload["exit_message"].startswith("it changed its input 'a'")
    for harmless in ("rm a", "rm a; echo new > a", "chmod 400 a", "touch b"):
        assert place.shell(harmless, inputs=[{"name": "a", "made": True}]).payload["exit_code"] == "SUCCESS"


def test_a_file_of_the_user_is_never_written_into(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(place, "a", b"mine")
    assert place.shell("echo more >> a; cat a", inputs=[{"name": "a"}]).payload["exit_code"] == "SUCCESS"
    assert file.read_bytes() == b"mine"
    monkeypatch.setattr(inputs_module, "COPIED_BYTES_MAX", 3)  # a larger one is linked, and a change of it told
    assert place.shell("echo more >> a", inputs=[{"name": "a"}]).payload["reason"] == "application-error"


def test_the_checksum_of_an_output_is_that_of_its_content_whatever_its_inode_was_before(place: Place) -> None:
    for word in ("one", "two", "six"):
        outcome = place.shell(f"echo {word} > o; touch -d @0 o", binary=_outputs({"name": "o"}))
        [file] = outcome.payload["manifest"]
        assert file["sha256"] == _sha(f"{word}\n".encode())
        for staged in place.staged.iterdir():
            staged.unlink()


def test_what_is_pilotages_own_is_no_output(place: Place) -> None:
    outcome = place.shell("mkdir .pilotage; echo x > .pilotage/token", binary=_outputs({"expression": ".*"}))
    assert outcome.payload["reason"] == "missing-output"
    assert ".pilotage is reserved" in outcome.payload["exit_message"]


def test_an_agent_that_does_not_see_the_folder_is_served(place: Place, tmp_path: Path) -> None:
    served = tmp_path / "server" / "files"
    served.mkdir(parents=True)
    (served / "a").write_bytes(b"served")
    place.folder, place.staged = tmp_path / "nowhere", tmp_path / "nowhere" / "staged"
    inputs = [{"name": "a", "sha256": _sha(b"served")}]
    outcome = place.shell("cat a > b", inputs=inputs, binary={"outputs": [{"name": "b"}]})
    assert outcome.payload["manifest"] == [{"name": "b", "size_bytes": 6, "sha256": _sha(b"served")}]
    assert (tmp_path / "server" / "staged" / "1.1.1-1-0").read_bytes() == b"served"
    assert place.run("/bin/true", inputs=[{"name": "absent"}]).payload["reason"] == "missing-input"


def _outputs(*said: dict[str, Any]) -> dict[str, Any]:
    return {"outputs": list(said)}


def test_outputs_are_found_by_name_pattern_and_expression_in_the_order_of_names(place: Place) -> None:
    _write(place, "in-3.dat")
    outcome = place.shell(
        "mkdir -p d/e; echo 1 > z; for n in b a; do echo $n > in-$n.dat; echo $n > d/$n-1; done; echo x > d/e/x-1; echo y > d/no",
        inputs=[{"name": "in-3.dat"}],
        binary={
            **_outputs(
                {"name": "z"}, {"name": "in-*.dat", "pattern": True}, {"expression": r"[a-z]-\d", "folder": "d"}
            ),
            "stdout": "log/out.txt",
        },
    )
    assert place.outputs(outcome) == {
        "d/a-1": b"a\n", "d/b-1": b"b\n", "in-a.dat": b"a\n", "in-b.dat": b"b\n", "log/out.txt": b"", "z": b"1\n",
    }  # fmt: skip
    assert [each["name"] for each in outcome.payload["manifest"]] == sorted(place.outputs(outcome))
    assert place.scratch_is_empty()


def test_what_an_expression_finds_elsewhere_is_put_into_its_folder(place: Place) -> None:
    said = _outputs({"expression": r".*\.root", "folder": "results"})
    outcome = place.shell("mkdir results; echo a > a.root; echo b > results/b.root; echo c > c.txt", binary=said)
    assert place.outputs(outcome) == {"results/a.root": b"a\n", "results/b.root": b"b\n"}


def test_two_files_that_would_get_one_name_are_a_failure(place: Place) -> None:
    said = _outputs({"expression": r".*\.root", "folder": "results"})
    outcome = place.shell("mkdir results; echo a > a.root; echo b > results/a.root", binary=said)
    assert outcome.payload["reason"] == "missing-output"
    assert "two files would be named 'results/a.root'" in outcome.payload["exit_message"]


@pytest.mark.parametrize(
    "script, output, message",
    [
        ("true", {"name": "a"}, "'a' is missing"),
        ("mkdir a", {"name": "a"}, "is a folder"),
        ("mkfifo a", {"name": "a"}, "is not a regular file"),
        ("ln -s /etc/hostname a", {"name": "a"}, "leads out of the package's folder"),
        (
            "rm -r d; ln -s ../.. d; :",
            {"name": "d/job/secret"},
            "leads out of the package's folder",
        ),
        ("ln -s nothing a", {"name": "a"}, "is a broken link"),
        ("ln -s /etc/hostname a.dat", {"name": "*.dat", "pattern": True}, "leads out"),
        ("true", {"name": "*.dat", "pattern": True}, "no file matches"),
        ("true", {"expression": "x+", "folder": "d"}, "no file in 'd' matches 'x+'"),
        (
            "printf x > \"$(printf 'a\\377.dat')\"",
            {"name": "*.dat", "pattern": True},
            "is not UTF-8",
        ),
    ],
)
def test_an_output_that_cannot_be_taken_is_missing(
    place: Place, script: str, output: dict[str, Any], message: str
) -> None:
    _write(place, "secret")
    payload = place.shell(f"echo fine > first; {script}", binary=_outputs({"name": "first"}, output)).payload
    assert (payload["reason"], payload["exit_code"]) == ("missing-output", "ERROR_FILE_NOT_FOUND")
    assert message in payload["exit_message"]
    assert place.staged_names() == []
    assert place.scratch_is_empty()


def test_links_within_the_folder_and_inputs_that_are_passed_on_are_copied(place: Place) -> None:
    file = _write(place, "in")
    outcome = place.shell(
        "echo x > a; ln -s a b; ln in out",
        inputs=[{"name": "in"}],
        binary=_outputs(*({"name": n} for n in ("a", "b", "in", "out"))),
    )
    assert place.outputs(outcome) == {"a": b"x\n", "b": b"x\n", "in": b"data", "out": b"data"}
    assert file.stat().st_nlink == 1


def test_results_that_cannot_be_staged_are_told(place: Place) -> None:
    (place.staged / "1.1.1-1-0").mkdir(parents=True)
    payload = place.shell("echo x > a", binary=_outputs({"name": "a"})).payload
    assert (payload["reason"], payload["exit_code"]) == ("platform-failure", "ERROR_WRITE_GRID")


def test_outputs_go_to_another_file_system_whole(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def across(source: str, target: str, **folders: int) -> None:
        if not source.endswith(".part") and str(place.staged) in target:
            raise OSError(errno.EXDEV, "another file system")
        real(source, target, **folders)

    monkeypatch.setattr(os, "rename", across)
    outcome = place.shell("echo x > a; chmod 750 a", binary=_outputs({"name": "a"}))
    assert place.outputs(outcome) == {"a": b"x\n"}
    assert place.staged_names() == ["1.1.1-1-0"]
    assert (place.staged / "1.1.1-1-0").stat().st_mode & 0o777 == 0o750


_IN_FOLDERS: list[dict[str, Any]] = [
    {"name": "points/x.json"},
    {"name": "a/b/c/y.dat"},
    {"name": "plots/*.png", "pattern": True},
    {"expression": "[a-z]*[.]log", "folder": "logs"},
]
_INTO_FOLDERS = "set -e; for each in points/x.json a/b/c/y.dat plots/1.png logs/k.log; do echo $each > $each; done"
_LONG_WAY = {"stalled_after_seconds": 60.0}


@pytest.mark.parametrize("way", [{}, _LONG_WAY], ids=["short", "long"])
def test_the_folders_of_outputs_are_there_before_the_command_starts(place: Place, way: dict[str, Any]) -> None:
    outcome = place.shell(_INTO_FOLDERS, binary={"outputs": _IN_FOLDERS}, **way)
    assert outcome.payload["exit_code"] == "SUCCESS"
    assert set(place.outputs(outcome)) == {"points/x.json", "a/b/c/y.dat", "plots/1.png", "logs/k.log"}
    assert place.scratch_is_empty()


def test_the_folders_of_outputs_are_there_for_each_binary_and_for_a_startup_script(place: Place) -> None:
    binaries = [
        {"argv": ["/bin/sh", "-c", "echo 1 > first/a"], "outputs": [{"name": "first/a"}]},
        {"argv": ["/bin/sh", "-c", "cat first/a > second/b"], "outputs": [{"name": "second/b"}]},
    ]
    assert set(place.outputs(place.run(binaries=binaries))) == {"first/a", "second/b"}
    startup = ["/bin/sh", "-c", "echo 1 > first/a; echo 2 > second/b"]
    assert set(place.outputs(place.run(binaries=binaries, startup=startup))) == {"first/a", "second/b"}


def test_an_output_in_a_folder_that_is_an_input_is_told(place: Place) -> None:
    _write(place, "points")
    outcome = place.run("true", inputs=[{"name": "points"}], binary={"outputs": [{"name": "points/x.json"}]})
    assert (outcome.payload["reason"], outcome.payload["exit_message"]) == (
        "missing-output", "the output 'points/x.json' is in 'points', which is not a folder"
    )  # fmt: skip


def test_no_folder_is_made_outside_the_package(place: Place) -> None:
    for name in ("../up/x.dat", "/somewhere/x.dat"):
        outcome = place.run("true", binary={"outputs": [{"name": name}]})
        assert "is not a file name in the package's folder" in outcome.payload["exit_message"]
    assert not (place.root / "scratch" / "up").exists()
