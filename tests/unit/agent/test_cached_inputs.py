"""Inputs from the cache of the site, and inputs that a network file system shows late."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotage.agent.attempt.inputs.placing as inputs_module
from pilotage.agent.attempt.archives import BadArchive, unpack
from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.attempt.inputs.placing import Inputs
from tests.kit.agent_runs import Place, log_of, place_in

NAME = "ab/abcdef"
CONTENT = b"brought here"
NAMES = ["a", "with space", "Prüfung/äöü €", "new\nline", "sub folder/deep\n/x"]


def digest(content: bytes = CONTENT) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache/ab").mkdir(parents=True)
    return tmp_path / "cache"


def put(folder: Path, content: bytes = CONTENT, name: str = NAME) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o444)
    return file


def said(name: str = "a", content: bytes = CONTENT, **more: Any) -> dict[str, Any]:
    return {"name": name, "cached": NAME, "sha256": digest(content), "size_bytes": len(content), **more}


def work(cache: Path, *inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), "cache": str(cache), **more}


@pytest.mark.parametrize("name", NAMES)
def test_a_cached_file_lies_under_its_name_as_a_link(name: str, place: Place, cache: Path) -> None:
    file = put(cache)
    outcome = place.run("/bin/sh", "-c", 'cat "$0"; stat -c %i "$0"', name, **work(cache, said(name)))
    assert log_of(outcome) == f"{CONTENT.decode()}{file.stat().st_ino}\n"
    assert place.workplace.damaged.untold() == []


def test_a_cached_program_is_made_executable_and_the_cache_stays_as_it_is(place: Place, cache: Path) -> None:
    script = b"#!/bin/sh\necho run\n"
    file = put(cache, script)
    assert log_of(place.run("./tool", **work(cache, said("tool", script, executable=True)))) == "run\n"
    assert file.stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("wrong", [CONTENT[::-1], CONTENT[:3], CONTENT + b"!"])
def test_a_cached_file_with_another_content_is_not_given_to_the_command_but_removed_told_and_fetched(
    wrong: bytes, place: Place, cache: Path
) -> None:
    file = put(cache, wrong)
    payload = place.run("cat", "a", **work(cache, said())).payload
    assert payload["reason"] == "input-checksum"
    assert not file.exists()
    assert place.workplace.damaged.untold() == [NAME]
    put(cache, wrong)
    put(place.root / "server/cached")
    assert log_of(place.run("cat", "a", **work(cache, said()))) == CONTENT.decode()


@pytest.mark.parametrize("ending", ["", "; exit 3"])
@pytest.mark.parametrize("binary", [{}, {"stdout": "said"}], ids=["plain", "full"])
def test_a_command_that_writes_into_a_cached_file_is_told_and_nobody_else_gets_it(
    binary: dict[str, Any], ending: str, place: Place, cache: Path
) -> None:
    file = put(cache)
    script = f"chmod u+w a; echo more >> a{ending}"
    payload = place.shell(script, binary=binary, **work(cache, said())).payload
    assert payload["reason"] == "application-error"
    assert ("it changed its input 'a'" in payload["exit_message"]) == (not ending)
    assert not file.exists()
    assert place.workplace.damaged.untold() == [NAME]
    place.workplace.damaged.told([NAME])
    assert place.workplace.damaged.untold() == []


def test_a_file_that_the_node_does_not_see_in_the_cache_is_fetched_from_the_service(place: Place, cache: Path) -> None:
    put(place.root / "server/cached")
    elsewhere = place.root / "not here"
    assert log_of(place.run("cat", "a", **work(elsewhere, said(), visible_seconds=60.0))) == CONTENT.decode()
    assert log_of(place.run("cat", "a", inputs=[said()])) == CONTENT.decode()
    assert place.workplace.damaged.untold() == []


def test_a_file_that_neither_the_cache_nor_the_service_has_is_told(place: Place, cache: Path) -> None:
    for inputs in (work(cache, said()), {"inputs": [said()]}):
        payload = place.run("cat", "a", **inputs).payload
        assert (payload["reason"], payload["exit_code"]) == ("missing-input", "ERROR_READ_GRID")
        assert "'a'" in payload["exit_message"]
    payload = place.run("cat", "a", **work(cache, said(cached="../../etc/passwd"))).payload
    assert payload["reason"] == "platform-failure"


# --- files that a network file system shows late -----------------------------------------------------------------------


class Looks:
    """The looks of an attempt for its inputs: what happens before each, as another node would do it."""

    def __init__(self, place: Place, **said: Any) -> None:
        place.marks()
        self.place = place
        self.work = {
            "folder": str(place.folder), "staged": str(place.staged), **place.marks(), "visible_seconds": 60.0, **said,
        }  # fmt: skip
        self.steps: list[Callable[[], object]] = []
        self.count = 0

    def check(self) -> None:
        self.count += 1
        if self.count > 1 and self.steps:
            self.steps.pop(0)()

    def run(self, *inputs: dict[str, Any]) -> Path:
        scratch = self.place.root / "late"
        scratch.mkdir()
        made = Inputs(
            job="j1", work=self.work, scratch=str(scratch), known=self.place.workplace.known, fetch=self.place.fetch,
            visibility=self.place.workplace.visibility, damaged=self.place.workplace.damaged,
            software=self.place.workplace.software,
        )  # fmt: skip
        made.place(inputs, self.check)
        return scratch


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "LOOK_SECONDS", (0.0, 0.0))


@pytest.fixture(params=["made", "cached"])
def late(request: pytest.FixtureRequest, place: Place, cache: Path) -> tuple[Looks, Path, dict[str, Any]]:
    """The looks, where the file will be, and what the work order says of it."""
    looks = Looks(place, cache=str(cache))
    if request.param == "cached":
        return looks, cache / NAME, said("a file")
    file = {"name": "a file", "made": True, "sha256": digest(), "size_bytes": len(CONTENT)}
    return looks, place.folder / "a file", file


def test_a_file_that_comes_late_is_waited_for(late: tuple[Looks, Path, dict[str, Any]]) -> None:
    looks, file, each = late
    looks.steps = [lambda: None, lambda: None, lambda: file.write_bytes(CONTENT)]
    assert (looks.run(each) / "a file").read_bytes() == CONTENT
    assert looks.count == 4


def test_a_file_that_grows_and_one_with_an_older_content_are_waited_for(
    late: tuple[Looks, Path, dict[str, Any]],
) -> None:
    looks, file, each = late
    file.write_bytes(CONTENT[:3])
    status = file.stat()

    def older_of_the_same_size() -> None:
        file.write_bytes(CONTENT[::-1])
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def whole_with_the_same_time() -> None:
        file.write_bytes(CONTENT)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    looks.steps = [
        lambda: file.write_bytes(CONTENT[:8]), older_of_the_same_size, older_of_the_same_size, whole_with_the_same_time,
    ]  # fmt: skip
    assert (looks.run(each) / "a file").read_bytes() == CONTENT
    assert looks.count == 5
    assert looks.place.workplace.damaged.untold() == []


def test_a_file_that_does_not_come_in_its_time_is_missing(late: tuple[Looks, Path, dict[str, Any]]) -> None:
    looks, _, each = late
    looks.work["visible_seconds"] = 1e-9
    with pytest.raises(Failure, match="a file") as told:
        looks.run(each)
    assert told.value.reason == "missing-input"
    assert looks.count == 2


def test_a_cancelled_attempt_waits_no_longer(late: tuple[Looks, Path, dict[str, Any]]) -> None:
    looks, _, each = late

    def cancel() -> None:
        raise Failure("cancelled", "cancelled by its user")

    looks.steps = [cancel]
    with pytest.raises(Failure, match="cancelled by its user"):
        looks.run(each)


def test_a_file_of_the_user_and_one_at_the_computer_of_the_service_are_not_waited_for(place: Place) -> None:
    looks = Looks(place)
    with pytest.raises(Failure, match="does not exist"):
        looks.run({"name": "a", "sha256": digest()})
    assert looks.count == 1
    looks = Looks(place, visible_seconds=0.0)
    (place.root / "late").rmdir()
    with pytest.raises(Failure, match="does not exist"):
        looks.run({"name": "a", "made": True, "sha256": digest()})
    assert looks.count == 1


# --- archives of software ----------------------------------------------------------------------------------------------


def tar_of(*members: tuple[str, bytes | str], kind: str = "w:gz", mode: int = 0o755) -> bytes:
    """An archive: a text as content is the target of a link, and a name that ends with a slash is a folder."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode=kind) as archive:  # type: ignore[call-overload]
        for name, content in members:
            each = tarfile.TarInfo(name)
            each.mode = mode
            if isinstance(content, str):
                each.type, each.linkname = tarfile.SYMTYPE, content
            elif name.endswith("/"):
                each.type = tarfile.DIRTYPE
            else:
                each.size = len(content)
            archive.addfile(each, io.BytesIO(content) if isinstance(content, bytes) else None)
    return written.getvalue()


def zip_of(*members: tuple[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in members:
            each = zipfile.ZipInfo(name)
            each.external_attr = 0o100755 << 16
            archive.writestr(each, content)
    return written.getvalue()


TOOL = ("tool 1/bin/run", b"#!/bin/sh\necho it runs\n")


@pytest.mark.parametrize(
    "archive",
    [
        tar_of(("./", b""), ("tool 1/", b""), TOOL, ("tool 1/bin/again", "../bin/run"), kind="w"),
        tar_of(TOOL, ("tool 1/bin/again", "run")),
        tar_of(TOOL, kind="w:xz"),
        zip_of(TOOL, ("tool 1/share/x", b"")),
    ],
    ids=["tar", "tar.gz", "tar.xz", "zip"],
)
def test_an_archive_of_software_is_unpacked_once_and_lies_beside_the_inputs(
    archive: bytes, place: Place, cache: Path
) -> None:
    put(cache, archive)
    needed = work(cache, said("reco", archive, unpacked=True))
    for _ in range(2):
        assert log_of(place.run("reco/tool 1/bin/run", **needed)) == "it runs\n"
    [folder] = (place.root / "scratch/software").iterdir()
    assert folder.name == digest(archive)
    assert place.scratch_is_empty()
    assert log_of(place.shell("echo more >> 'reco/tool 1/bin/run' || chmod -R a-r reco; rm reco", **needed)) == ""
    assert log_of(place.run("reco/tool 1/bin/run", **needed)).startswith("it runs")


@pytest.mark.parametrize(
    "archive",
    [
        tar_of(("../out", b"x")),
        tar_of(("/etc/out", b"x")),
        tar_of(("a/../../out", b"x")),
        tar_of(("a", "/etc"), ("a/out", b"x")),
        tar_of(("a", ".."), ("b", b"x")),
        tar_of(("a/b", "../../out")),
        tar_of(("a", "b"), ("b", ".."), ("c", "a/../..")),
        zip_of(("../out", b"x")),
        zip_of(("a", b"x"), ("a/b", b"x")),
        tar_of(TOOL)[:60],
        b"no archive",
        b"",
    ],
    ids=range(12),
)
def test_an_archive_that_leads_out_of_its_folder_or_is_none_is_refused_and_leaves_nothing(
    archive: bytes, place: Place, cache: Path
) -> None:
    put(cache, archive)
    payload = place.run("true", **work(cache, said("reco", archive, unpacked=True))).payload
    assert (payload["reason"], payload["exit_code"]) == ("missing-input", "ERROR_READ_GRID")
    assert [each.name for each in (place.root / "scratch/software").iterdir()] == []
    assert not list(place.root.rglob("out"))


def test_an_archive_with_devices_or_too_many_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        device = tarfile.TarInfo("null")
        device.type, device.devmajor, device.devminor = tarfile.CHRTYPE, 1, 3
        archive.addfile(device)
    (tmp_path / "device").write_bytes(written.getvalue())
    (tmp_path / "into").mkdir()
    with pytest.raises(BadArchive, match="neither a file"):
        unpack(str(tmp_path / "device"), str(tmp_path / "into"))
    monkeypatch.setattr("pilotage.agent.attempt.archives.GROWTH_BYTES", 1000)
    (tmp_path / "bomb").write_bytes(tar_of(("zeros", bytes(5_000_000))))
    with pytest.raises(BadArchive, match="far more than its own size"):
        unpack(str(tmp_path / "bomb"), str(tmp_path / "into"))
    monkeypatch.setattr("pilotage.agent.attempt.archives.FILES_MAX", 2)
    (tmp_path / "many").write_bytes(tar_of(*((str(number), b"") for number in range(3))))
    with pytest.raises(BadArchive, match="more than 2 files"):
        unpack(str(tmp_path / "many"), str(tmp_path / "into"))
