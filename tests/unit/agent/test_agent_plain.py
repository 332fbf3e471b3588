from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pilotage.agent.attempt.attempt as attempt_module
from pilotage.agent.attempt import files
from pilotage.agent.attempt.attempt import PLAIN_BINARY, PLAIN_WORK, SMALL_BYTES, Outcome, plain_binary, stage_small
from pilotage.agent.attempt.files import AGAIN_SECONDS, MARK_FILE, FolderVisibility, KnownFiles
from pilotage.agent.attempt.inputs.placing import Inputs, PlacedInput
from pilotage.agent.attempt.outputs import Outputs
from pilotage.model.exchange.exchange import Work, WorkBinary
from tests.kit.agent_runs import Place, open_descriptors, place_in

_MEASURED = ("phases", "read_bytes", "written_bytes")
_MADE: dict[str, Any] = {"name": "in", "sha256": hashlib.sha256(b"data").hexdigest(), "size_bytes": 4, "made": True}
_BOTH = [_MADE, {**_MADE, "name": "also"}]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        _fill(place)
        yield place


def _fill(place: Place) -> None:
    for name in ("in", "also", "mine", "folder/in"):
        file = place.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"data")


def _outputs(*names: str) -> dict[str, Any]:
    return {"outputs": [{"name": name} for name in names]}


# How it is run → what must come of it is what comes of it the long way, whatever that is.
_WORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("true", {}),
    "one": ("cat in also > out", {"inputs": _BOTH, "binary": _outputs("out")}),
    "twice": ("cat in > out", {"inputs": [_MADE, _MADE], "binary": _outputs("out")}),
    "empty": (": > out", {"binary": _outputs("out")}),
    "two": ("echo 1 > out; echo 2 > more", {"binary": _outputs("out", "more")}),
    "below": ("mkdir sub; cat folder/in > sub/out", {"inputs": [{**_MADE, "name": "folder/in"}], "binary": _outputs("sub/out")}),
    "large": (f"head -c {SMALL_BYTES} /dev/zero > out", {"binary": _outputs("out")}),
    "larger": (f"head -c {10 * SMALL_BYTES} /dev/zero > out", {"binary": _outputs("out")}),
    "missing output": ("true", {"binary": _outputs("out")}),
    "link": ("echo x > a; ln -s a out", {"binary": _outputs("out")}),
    "link to itself": ("ln -s out out", {"binary": _outputs("out")}),
    "link out": ("ln -s /etc/hostname out", {"binary": _outputs("out")}),
    "second name": ("echo x > a; ln a out", {"binary": _outputs("out")}),
    "pipe": ("mkfifo out", {"binary": _outputs("out")}),
    "folder": ("mkdir out", {"binary": _outputs("out")}),
    "input passed on": ("true", {"inputs": [_MADE], "binary": _outputs("in")}),
    "input renamed": ("mv in out", {"inputs": [_MADE], "binary": _outputs("out")}),
    "input taken away": ("rm $PILOTAGE_FOLDER/in; mv in out", {"inputs": [_MADE], "binary": _outputs("out")}),
    "unreadable": ("echo x > out; chmod 0 out", {"binary": _outputs("out")}),
    "not ASCII": ("echo x > ö", {"binary": _outputs("ö")}),
    "our own": ("mkdir .pilotage; echo x > .pilotage/x", {"binary": _outputs(".pilotage/x")}),
    "our own name": ("echo x > .pilotage", {"binary": _outputs(".pilotage")}),
    "pattern": ("echo x > out.1; echo y > out.2", {"binary": {"outputs": [{"name": "out.*", "pattern": True}]}}),
    "expression": ("echo x > out.1", {"binary": {"outputs": [{"expression": "out.*"}]}}),
    "a user's input": ("echo more >> mine; cat mine > out", {"inputs": [{"name": "mine"}], "binary": _outputs("out")}),
    "executable": ("test -x in", {"inputs": [{**_MADE, "executable": True}]}),
    "absent input": ("true", {"inputs": [_MADE, {**_MADE, "name": "gone"}]}),
    "wrong checksum": ("true", {"inputs": [{**_MADE, "sha256": "0" * 64}]}),
    "wrong size": ("true", {"inputs": [{**_MADE, "size_bytes": 5}]}),
    "no name": ("true", {"inputs": [{**_MADE, "name": ".."}]}),
    "changed input": ("echo more >> in; echo x > out", {"inputs": _BOTH, "binary": _outputs("out")}),
    "changed and failed": ("echo more >> in; exit 3", {"inputs": _BOTH}),
    "failed": ("echo why >&2; echo x > out; exit 3", {"inputs": _BOTH, "binary": _outputs("out")}),
    "killed": ("echo why >&2; kill -9 $$", {}),
    "too long": ("echo why >&2; sleep 60", {"demand": {"wall_seconds": 0.05}}),
    "environment": ("echo $A $PILOTAGE_JOB $OMP_NUM_THREADS", {"binary": {"environment": {"A": "b"}}}),
    "half a core": ("echo ${OMP_NUM_THREADS-none} $PILOTAGE_CORES", {"demand": {"cores_hundredths": 50}}),
    "path in no encoding": ("true", {"inputs": [{**_MADE, "name": "gone"}], "path": "\ud800"}),
    "left behind": ("setsid sleep 60 & echo x > out", {"binary": _outputs("out")}),
}  # fmt: skip


def _told(place: Place, outcome: Outcome) -> dict[str, Any]:
    """What is told of an attempt and of its files, without what is measured."""
    payload = {
        name: value
        for name, value in outcome.payload.items()
        if name not in _MEASURED and not name.startswith(("cpu_", "peak_"))
    }
    told = str([payload, outcome.logs]).replace(str(place.root), "")
    staged = {name: (place.staged / name).read_bytes() for name in place.staged_names()}
    phases = [each["phase"] for each in outcome.payload["phases"]]
    inputs = {each.name: each.read_bytes() for each in place.folder.iterdir() if each.is_file()}
    return {"told": told, "staged": staged, "phases": phases, "inputs": inputs, "empty": place.scratch_is_empty()}


def _both_ways(folder: Path, script: str, said: dict[str, Any]) -> list[dict[str, Any]]:
    """What comes of an attempt the short way, and the long way."""
    found = []
    for way in ("short", "long"):
        (folder / way).mkdir()
        with pytest.MonkeyPatch.context() as patch, place_in(folder / way) as place:
            if way == "long":
                patch.setattr(attempt_module, "plain_binary", lambda *_: None)
            _fill(place)
            place.shell("cat in also", inputs=_BOTH)  # from now on their checksums are known
            found.append(_told(place, place.shell(script, **said)))
    return found


@pytest.mark.parametrize("case", _WORKS)
def test_the_short_way_comes_to_what_the_long_way_comes_to(case: str, tmp_path: Path) -> None:
    short, long = _both_ways(tmp_path, *_WORKS[case])
    assert short == long


def test_what_the_system_refuses_is_told_with_the_last_lines_as_on_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(attempt_module, "find_outputs", refuse)
    short, long = _both_ways(tmp_path, "echo last words >&2", {"binary": _outputs("out", "more")})
    assert short == long
    assert "the disk is broken" in short["told"]
    assert short["told"].count("last words") == 2  # in the message, and in the log


def test_a_staging_folder_that_is_another_when_the_command_ends_gets_nothing(place: Place) -> None:
    place.marks()
    mark = place.staged / MARK_FILE
    # What was seen before the command is believed for a while, and that is over when it ends.
    place.workplace.visibility = FolderVisibility(lambda: 0.0 if mark.exists() else AGAIN_SECONDS + 1.0)
    outcome = place.shell(f"echo x > out; rm {mark}", inputs=_BOTH, binary=_outputs("out"))
    assert outcome.payload["exit_code"] == "SUCCESS"
    assert place.staged_names() == []
    assert (place.root / "server" / "staged" / "1.1.1-1-0").read_bytes() == b"x\n"


def test_a_usual_attempt_goes_the_short_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.shell("true", inputs=_BOTH)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the long way")

    monkeypatch.setattr(Inputs, "place", refuse)
    monkeypatch.setattr(Outputs, "stage", refuse)
    outcome = place.shell("cat in also > out; echo y > scrap", inputs=_BOTH, binary=_outputs("out"))
    assert place.outputs(outcome) == {"out": b"datadata"}
    assert place.scratch_is_empty()


def test_what_an_attempt_made_is_known_when_the_next_one_reads_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    [made] = place.shell("echo x > out", binary=_outputs("out")).payload["manifest"]
    (place.staged / "1.1.1-1-0").rename(place.folder / "out")
    monkeypatch.setattr(Inputs, "place", None)
    assert place.shell("grep x out", inputs=[{**made, "made": True}]).payload["exit_code"] == "SUCCESS"


def test_an_input_that_another_file_has_taken_the_place_of_is_not_believed(place: Place) -> None:
    assert place.shell("true", inputs=_BOTH).payload["exit_code"] == "SUCCESS"
    (place.folder / "new").write_bytes(b"dada")
    (place.folder / "new").rename(place.folder / "also")
    payload = place.shell("true", inputs=_BOTH).payload
    assert (payload["reason"], "'also'" in payload["exit_message"]) == ("input-checksum", True)
    assert place.scratch_is_empty()


@pytest.mark.parametrize(
    "said",
    [
        {"binaries": []},
        {"binaries": [{"argv": ["a"]}, {"argv": ["b"]}]},
        {"binaries": [{"argv": ["a"], "stdout": "log"}]},
        {"binaries": [{"argv": ["a"]}], "pre": {"argv": ["a"]}},
        {"binaries": [{"argv": ["a"]}], "post": {"argv": ["a"]}},
        {"binaries": [{"argv": ["a"]}], "startup": ["a"]},
        {"binaries": [{"argv": ["a"]}], "container": {"image": "a"}},
        {"binaries": [{"argv": ["a"]}], "failure_patterns": [{"pattern": "a"}]},
        {"binaries": [{"argv": ["a"]}], "stalled_after_seconds": 1.0},
    ],
)
def test_what_is_more_than_a_command_goes_the_long_way(said: dict[str, Any]) -> None:
    assert plain_binary({}, said) is None


def test_what_spans_nodes_goes_the_long_way() -> None:
    work = {"binaries": [{"argv": ["a"]}]}
    assert plain_binary({"demand": {"nodes": 2}}, work) is None
    assert plain_binary({"demand": {"nodes": 1}}, work) is not None


# What the short way does nothing about.
_UNUSUAL_WORK = {
    "adopted", "container", "early", "failure_patterns", "kept", "message", "post", "pre", "pre_skip_exit_code",
    "provenance", "refused", "shown", "stalled_after_seconds", "startup", "watched",
}  # fmt: skip
_UNUSUAL_BINARY = {"error_codes", "name", "stdin", "stdout", "stderr"}


@pytest.mark.parametrize(
    "kind, plain, unusual",
    [(Work, PLAIN_WORK, _UNUSUAL_WORK), (WorkBinary, PLAIN_BINARY, _UNUSUAL_BINARY)],
)
def test_every_field_is_either_plain_or_unusual(
    kind: type[msgspec.Struct], plain: frozenset[str], unusual: set[str]
) -> None:
    assert sorted([*plain, *unusual]) == sorted(each.encode_name for each in msgspec.structs.fields(kind))


@pytest.mark.parametrize("field", [*sorted(_UNUSUAL_WORK), "a field of later"])
def test_a_work_that_says_more_goes_the_long_way(field: str) -> None:
    work = {"binaries": [{"argv": ["a"]}]}
    assert plain_binary({}, work) is not None
    assert plain_binary({}, {**work, field: "x"}) is None


@pytest.mark.parametrize("field", [*sorted(_UNUSUAL_BINARY), "a field of later"])
def test_a_binary_that_says_more_goes_the_long_way(field: str) -> None:
    assert plain_binary({}, {"binaries": [{"argv": ["a"], field: "x"}]}) is None


@pytest.mark.parametrize(
    "outputs",
    [
        [], [{"name": "out"}, {"name": "out"}], [{"name": "out", "pattern": True}], [{}], [{"name": ""}],
        [{"name": "sub/out"}], [{"name": ".pilotage"}], [{"name": ".pilotage-x"}], [{"name": "ö"}], [{"name": "gone"}],
        [{"name": "sub"}], [{"name": "link"}], [{"name": "second"}], [{"name": "large"}], [{"name": "placed"}],
    ],
    ids=str,
)  # fmt: skip
def test_an_output_that_is_anything_but_a_small_new_file_is_left_to_the_long_way(
    tmp_path: Path, outputs: list[dict[str, Any]]
) -> None:
    scratch, target = tmp_path / "scratch", tmp_path / "target"
    (scratch / "sub").mkdir(parents=True)
    for name in ("out", "sub/out", ".pilotage", ".pilotage-x", "ö", "first", "placed"):
        (scratch / name).write_bytes(b"data")
    (scratch / "large").write_bytes(bytes(SMALL_BYTES))
    (scratch / "second").hardlink_to(scratch / "first")
    (scratch / "link").symlink_to("out")
    placed = [PlacedInput("in", "", (scratch / "placed").stat().st_ino, 4, 0)]
    before = sorted(scratch.rglob("*"))
    descriptor, opened = os.open(scratch, os.O_RDONLY), open_descriptors()
    said: dict[str, Any] = {"scratch": descriptor, "target": str(target), "known": KnownFiles(), "placed": placed}
    assert stage_small(outputs, **said) is None
    assert (sorted(scratch.rglob("*")), target.exists(), open_descriptors()) == (before, False, opened)
    [told] = stage_small([{"name": "out"}], **said) or []
    assert told == {"name": "out", "size_bytes": 4, "sha256": _MADE["sha256"]}
    assert (target.read_bytes(), (scratch / "out").exists()) == (b"data", False)
    (scratch / "large").write_bytes(bytes(SMALL_BYTES - 1))
    assert stage_small([{"name": "large"}], **said) is not None
    os.close(descriptor)


def test_a_file_is_known_by_what_the_system_says_of_it_as_long_as_that_stays(tmp_path: Path) -> None:
    file, known = tmp_path / "file", KnownFiles()
    file.write_bytes(b"data")
    before = file.stat()
    assert not known.is_known(before, _MADE["sha256"])
    assert known.keep_content(before, b"data") == _MADE["sha256"]
    assert known.is_known(before, _MADE["sha256"])
    assert not known.is_known(before, "0" * 64)
    file.write_bytes(b"other")
    assert not known.is_known(file.stat(), _MADE["sha256"])


@pytest.mark.parametrize("size_bytes", [0, 1, 64, 256, 257, 10_000])
def test_content_of_any_size_has_the_same_sha256_as_everywhere(tmp_path: Path, size_bytes: int) -> None:
    content = (bytes(range(256)) * 40)[:size_bytes]
    expected = hashlib.sha256(content).hexdigest()
    status, known = tmp_path.stat(), KnownFiles()
    assert known.keep_content(status, content) == expected
    assert known.is_known(status, expected)


@pytest.mark.parametrize("size_bytes", [0, 1, 256, 257, 1 << 20, (2 << 20) + 1])
@pytest.mark.parametrize("grown_bytes", [0, 1, 300])
def test_a_file_of_any_size_has_its_sha256_also_if_it_has_grown(
    tmp_path: Path, size_bytes: int, grown_bytes: int
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * (size_bytes + grown_bytes))
    assert files.sha256_of(str(file), size_bytes) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_library_of_checksums_is_brought_when_the_pilot_says_so_and_not_for_a_tiny_file(tmp_path: Path) -> None:
    (tmp_path / "tiny").write_bytes(b"x" * 64)
    said = (
        "import sys; from pilotage.agent.attempt import files; files.sha256_of(sys.argv[1], 64); "
        "print('hashlib' in sys.modules); files.get_ready(); print('hashlib' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", said, str(tmp_path / "tiny")], check=True, capture_output=True, text=True
    )
    assert told.stdout.split() == ["False", "True"]


def test_a_python_without_a_sha256_of_its_own_takes_that_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_OWN_DIGESTS", ("no_such_module",))
    assert files._digest_of_tiny() is hashlib.sha256
