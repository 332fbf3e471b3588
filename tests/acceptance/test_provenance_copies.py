"""Files of one content in several jobs, and records that came from elsewhere, as a user finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in

COPY = """\
pilotage: 1
job: copied
stages:
  - {shell: "cp s.txt copy.txt; wc -c < s.txt > n.txt", inputs: [s.txt], outputs: [copy.txt, n.txt]}
"""


def run(place: Place, *words: str) -> str:
    """Run a document, and return the id of its job, whose record is made."""
    job: str = place.told("run", *words)["job"]
    place.run("provenance", "keep", job)
    return job


def test_a_trace_never_goes_to_a_later_job_nor_twice_to_one(place: Place) -> None:
    place.document(COPY)
    (place.folder / "s.txt").write_text("some words\n")
    first = run(place)
    again = place.told("provenance", "rerun", first)["job"]
    back = place.told("provenance", "trace", f"{first}/n.txt")["lines"]
    assert [(each["job"], each.get("package", each.get("name"))) for each in back] == [
        (first, "n.txt"),
        (first, "1.1.1"),
        (first, "s.txt"),
    ]
    assert back[2]["origin"] == "captured"
    later = place.told("provenance", "trace", f"{again}/n.txt")["lines"]
    assert [(each["job"], each.get("package", each.get("name"))) for each in later] == [
        (again, "n.txt"),
        (again, "1.1.1"),
        (again, "s.txt"),
        (first, "1.1.1"),
        (first, "s.txt"),
    ]
    assert {each["origin"] for each in later if each["name"] == "s.txt"} == {"captured"}
    shown = place.run("provenance", "trace", f"{again}/n.txt").stdout
    assert shown.count("came with the submission") == 2
    forward = place.told("provenance", "trace", f"{again}/copy.txt", "--forward")["lines"]
    assert [each["name"] for each in forward] == ["copy.txt"]
    read = place.told("provenance", "trace", f"{first}/s.txt")["lines"]
    assert [each["name"] for each in read] == ["s.txt"]
