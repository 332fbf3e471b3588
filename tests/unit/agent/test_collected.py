"""What is collected besides outputs has bounds, and its faults are told: no attempt fails for them."""

from __future__ import annotations

import hashlib
import os
import resource
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt.collected import (
    SCRIPT_BYTES_MAX,
    Printed,
    core_limit,
    first_line,
    run_briefly,
    script_fields,
    take_cores,
)
from pilotage.agent.attempt.containers import Engines
from pilotage.agent.attempt.files import KnownFiles
from pilotage.agent.attempt.workplace import SoftwareVersions
from pilotage.agent.processes import ProcessCleanup

CORE = b"\x7fELF" + b"\2\1\1" + b"\0" * 9 + b"\x04\x00" + b"content" * 1000


def briefly(command: str, tmp_path: Path, *, seconds_max: float = 30.0, stopped: bool = False) -> Printed:
    return run_briefly(
        ["sh", "-c", command],
        environment=[f"PATH={os.environ['PATH']}".encode()],
        folder=str(tmp_path),
        cleanup=ProcessCleanup(sole=False, grace_seconds=5.0),
        marks=[b"PILOTAGE_MARK=nobody"],
        seconds_max=seconds_max,
        bytes_max=SCRIPT_BYTES_MAX,
        is_stopped=lambda: stopped,
    )


def test_a_short_command_is_heard_to_its_end(tmp_path: Path) -> None:
    assert briefly("echo one; pwd", tmp_path) == Printed(f"one\n{tmp_path}\n".encode())
    assert briefly("exec >&-; echo so it is >&2; exit 4", tmp_path).fault == "ended with 4: so it is"


@pytest.mark.parametrize(
    "command, fault",
    [
        ("read line < fifo", "took longer than 0.2 s"),
        ("echo one; exec >&-; read line < fifo", "took longer than 0.2 s"),
        ("yes", f"printed more than {SCRIPT_BYTES_MAX:,} bytes"),
    ],
)
def test_a_command_without_end_is_ended(command: str, fault: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert briefly(command, tmp_path, seconds_max=0.2 if "longer" in fault else 60.0).fault == fault


def test_a_command_ends_with_its_attempt(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert briefly("read line < fifo", tmp_path, stopped=True).fault == "was stopped with its attempt"


@pytest.mark.parametrize(
    "output, fields",
    [
        (b'{"a": [1, "\xc3\xa9"]}\n', {"custom": '{"a":[1,"é"]}'}),
        (b"[1]", {"custom_fault": "its provenance script printed JSON that is not an object"}),
        (b"", {"custom_fault": "its provenance script printed no JSON: Expecting value: line 1 column 1 (char 0)"}),
    ],
)
def test_a_script_must_print_an_object(output: bytes, fields: dict[str, str]) -> None:
    assert script_fields(Printed(output)) == fields


def test_a_version_is_the_first_line_or_says_why_it_is_unknown() -> None:
    assert first_line(Printed(b"\n tool 1.2 \nmore")) == "tool 1.2"
    assert first_line(Printed(b"")) == "unknown: its probe printed nothing"
    assert first_line(Printed(b"x", "ended with 1")) == "unknown: its probe ended with 1"


def test_a_software_is_probed_once_and_told_once_for_each_job() -> None:
    asked: list[str] = []
    versions = SoftwareVersions()

    def probe() -> str:
        asked.append("asked")
        return "1.0"

    assert [versions.find("tool", image, probe) for image in ("", "", "image")] == ["1.0"] * 3
    assert len(asked) == 2
    assert [versions.is_news(job, "tool", "") for job in ("j", "j", "k")] == [True, False, True]


def test_core_files_are_taken_and_nothing_that_is_only_called_so(tmp_path: Path) -> None:
    for name, content in {"core": CORE, "core.17": b"no core", "a.core": CORE + b"x" * 10**6, "b.txt": CORE}.items():
        (tmp_path / name).write_bytes(content)
    found = take_cores(str(tmp_path), 10**5, KnownFiles(), without=[])
    (core,), (log,) = found.fields["cores"], found.logs
    assert (core["name"], core["size_bytes"], log["stream"]) == ("core", len(CORE), "core:core")
    assert zlib.decompress(b64decode(log["head"])) == CORE
    assert found.fields["custom_fault"] == "its core file a.core is too large to be kept"
    assert {path.name for path in tmp_path.iterdir()} == {"b.txt", "core.17"}  # an output pattern would take them
    (tmp_path / "core").write_bytes(CORE)
    assert take_cores(str(tmp_path), 10**5, KnownFiles(), without=["core"]).fields == {}


def test_a_core_limit_ends_with_the_start_of_a_command() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    with core_limit(4096):
        assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 4096
    with core_limit(0):
        assert resource.getrlimit(resource.RLIMIT_CORE) == before
    assert resource.getrlimit(resource.RLIMIT_CORE) == before


INSPECTED = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/asked"
echo registry/an/image@sha256:aa
echo sha256:bb
"""


def test_the_digest_of_an_image_is_that_of_its_registry_or_its_file(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text(INSPECTED)
    (tmp_path / "podman").write_text("#!/bin/sh\necho bb\n")
    (tmp_path / "apptainer").write_text("#!/bin/sh\nexit 1\n")
    for name in ("docker", "podman", "apptainer"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "an.sif").write_bytes(b"image")
    engines = Engines(str(tmp_path))

    def digest(image: str, engine: str) -> Any:
        return engines.digest({"image": image, "engine": engine}, folder=str(tmp_path), known=KnownFiles())

    assert [digest("an/image", "docker") for _ in range(2)] == ["sha256:aa"] * 2
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    assert digest("an/image", "podman") == "sha256:bb"
    assert digest("an/image@sha256:cc", "podman") == "sha256:cc"
    assert digest("an.sif", "apptainer") == f"sha256:{hashlib.sha256(b'image').hexdigest()}"
    assert digest("docker://an/image", "apptainer") == ""
