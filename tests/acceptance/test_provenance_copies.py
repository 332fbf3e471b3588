"""Files of one content in several jobs, and records that came from elsewhere, as a user finds them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.kit.real_runs import Place, end_all, place_in, wait_until

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


def test_a_name_is_enough_where_only_a_record_is_known(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    with place_in(tmp_path / "first") as first:
        first.document(COPY)
        (first.folder / "s.txt").write_text("some words\n")
        run(first)
        job = run(first, "--fresh", "--replace")
        first.run("provenance", "export", job, "--to", "../crate.zip")
        first.run("serve", "--stop")
        (first.state / "records").rename(tmp_path / "copy")
    (tmp_path / "elsewhere").mkdir()
    with place_in(tmp_path / "elsewhere") as place:
        again = place.told("provenance", "rerun", "copied", "--records", "../copy")
        for state in place.folder.glob("rerun-*/.pilotage"):  # which has a service of its own
            end_all(state)
        assert again["rerun_of"] == job
        listed = place.told("provenance", "list", "--records", "../copy")["records"]
        assert [each["job"] for each in listed][1:] == [job]
        assert place.told("provenance", "list", "--records", "../copy", "--before", "2026-01-01")["records"] == []
        unknown = place.run("provenance", "rerun", "copie", "--records", "../copy", code=2).stderr
        assert "pilotage provenance list --records ../copy" in unknown
    (tmp_path / "imported").mkdir()
    with place_in(tmp_path / "imported") as place:
        place.run("provenance", "import", "../crate.zip")
        assert place.told("provenance", "show", "copied")["record"]["job"] == job
        assert place.told("provenance", "diff", "copied", job)["jobs"] == [job, job]
        place.run("provenance", "export", "copied", "--to", "again.zip")
        assert "no such job" in place.run("provenance", "show", "copie", code=2).stderr
        place.run("serve", "--stop")
        assert place.told("provenance", "show", "copied")["record"]["job"] == job


LARGE = """\
pilotage: 1
job: large
stages:
  - {shell: "wc -c < big.*; cp in.txt out.txt", inputs: [big.bin, in.txt], outputs: [out.txt], stdout: size.txt}
"""


def test_a_job_is_run_again_with_the_large_inputs_of_its_crate(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    with place_in(tmp_path / "first") as first:
        first.document(LARGE)
        (first.folder / "big.bin").write_bytes(b"x" * 300_000)
        (first.folder / "in.txt").write_text("some words\n")
        job = first.told("run")["job"]
        wait_until(
            lambda: "InputsDescribed" in first.run("book", "dump", job).stdout, "the checksum of its large input"
        )
        first.run("provenance", "keep", job)
        first.run("provenance", "annotate", job, "patient_group=B", "paper=@in.txt")
        exported = first.run("provenance", "export", job, "--to", "../crate", "--with-contents").stderr
        assert f"to state one: pilotage provenance annotate {job} license=" in exported
        graph = json.loads((tmp_path / "crate" / "ro-crate-metadata.json").read_bytes())["@graph"]
        entities = {each["@id"]: each for each in graph}
        assert entities["#run"]["additionalProperty"] in (
            {"@id": "#tag-patient_group"},
            [{"@id": "#tag-patient_group"}],
        )
        assert entities["#tag-patient_group"]["value"] == "B"
    shutil.rmtree(first.folder)
    (tmp_path / "elsewhere").mkdir()
    with place_in(tmp_path / "elsewhere") as place:
        (tmp_path / "crate" / "files" / "in.txt").write_text("other words\n")
        assert "files/in.txt" in place.run("provenance", "import", "../crate", code=2).stderr
        (tmp_path / "crate" / "files" / "in.txt").write_text("some words\n")
        told = place.run("provenance", "import", "../crate").stderr
        assert "1 file of the job stays in the crate" in told
        assert f"pilotage provenance rerun {job} --inputs ../crate/files" in told
        found = place.told("provenance", "find", "tag.patient_group=B")["records"]
        assert [each["job"] for each in found] == [job]
        assert {each["name"] for each in place.told("provenance", "show", job)["annotations"]} == {
            "imported-annotations",
            "patient_group",
        }
        refused = place.run("provenance", "rerun", job, "--in", "again", code=2).stderr
        assert "big.bin is missing" in refused
        assert "--inputs FOLDER" in refused
        assert "--in," not in refused
        in_the_way = place.run("provenance", "rerun", job, "--in", "../crate/files", code=2).stderr
        assert "--replace" not in in_the_way
        assert "--inputs" in in_the_way
        assert place.told("provenance", "rerun", job, "--in", "again", "--inputs", "../crate/files")["same"]
