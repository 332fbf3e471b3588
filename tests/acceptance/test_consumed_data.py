"""What a job reads is in the book: names, sizes, checksums, and where each input came from."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.kit.real_runs import Place, wait_until

TWO_STAGES = """\
pilotage: 1
job: reading
stages:
  - each: {n: [1, 2]}
    run: [sh, cut.sh, "large-{n}.dat", small.txt, "part-{n}.dat"]
    inputs: ["large-{n}.dat", shared.dat, small.txt]
    outputs: ["part-{n}.dat"]
  - shell: cat part-1.dat part-2.dat > whole.dat
    inputs: [part-1.dat, part-2.dat]
    outputs: [whole.dat]
"""
CUT = 'head -c 10 "$1" > "$3"; cat "$2" >> "$3"\n'
LARGE_BYTES = 100_000  # more than is sent with a job


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def described(place: Place, job: str) -> list[dict[str, Any]]:
    lines = place.run("book", "dump", job).stdout.splitlines()
    events = [json.loads(line)["event"] for line in lines if line.startswith('{"event":')]
    return [file for event in events if event["type"] == "InputsDescribed" for file in event["data"]["files"]]


def test_what_a_job_reads_is_told_with_checksum_and_origin(place: Place) -> None:
    contents = {name: name.encode() * LARGE_BYTES for name in ("large-1.dat", "large-2.dat", "shared.dat")}
    for name, content in contents.items():
        (place.folder / name).write_bytes(content)
    (place.folder / "small.txt").write_text("small")
    (place.folder / "cut.sh").write_text(CUT)
    place.document(TWO_STAGES)
    place.run("run")
    job = place.told("outputs", "reading")["job"]
    wait_until(lambda: len(described(place, job)) == 3, "the checksums of three inputs")
    files = {file["name"]: file for file in described(place, job)}
    assert {name: (file["sha256"], file["size_bytes"]) for name, file in files.items()} == {
        name: (sha256(content), len(content)) for name, content in contents.items()
    }
    first = place.told("status", f"{job}/1.1.1")
    told = {file["name"]: (file["origin"], file["sha256"]) for file in first["inputs"]}
    assert told == {
        "cut.sh": ("captured", sha256(CUT.encode())),
        "small.txt": ("captured", sha256(b"small")),
        "large-1.dat": ("folder", sha256(contents["large-1.dat"])),
        "shared.dat": ("folder", sha256(contents["shared.dat"])),
    }
    assert {file["direction"] for file in first["inputs"]} == {"in"}
    (made,) = first["attempts"][0]["manifest"]
    assert made["direction"] == "out"
    last = place.told("status", f"{job}/2.1.1")
    assert {(file["name"], file["origin"], file["source"]) for file in last["inputs"]} == {
        ("part-1.dat", "package", "1.1.1"),
        ("part-2.dat", "package", "1.2.1"),
    }
    assert made["sha256"] in {file["sha256"] for file in last["inputs"]}
    text = place.run("status", f"{job}/1.1.1").stdout
    assert "in   large-1.dat" in text
    assert "out  part-1.dat" in text
