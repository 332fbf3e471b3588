"""What agents collect besides outputs: versions, variables of nodes, what a script says, core files; nothing of it fails a job."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.logs import SqliteLogs
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.provenance.assembly import dump_of
from pilotage.provenance.recorder import Recorder
from tests.kit.real_runs import Place

JOB = """\
pilotage: 1
job: kept
provenance: {script: sh collect.sh 1.5, core: 64 MiB, data: {study: B, group: none}}
software:
  - {id: tool, version: "2", run: [sh, tool.sh, "{package}"], probe: sh -c 'echo tool 2.0.1; echo more'}
  - {id: other, run: "true", probe: no-such-command-at-all}
stages:
  - each: {n: 1..3}
    software: tool
    outputs: [out-*.txt]
  - {software: other}
  - {name: crash, shell: "kill -SEGV $$", retry: {attempts_max: 1}}
"""
TOOL = 'echo made > "out-$1.txt"\n'
COLLECT = """\
if [ "$PILOTAGE_PACKAGE" = 2.1.1 ]; then echo "no data today" >&2; exit 3; fi
printf '{"kappa": %s, "files": "%s"}' "$1" "$(ls | sort | tr '\\n' ' ')"
"""


def events(place: Place, job: str) -> list[dict[str, Any]]:
    lines = place.run("book", "dump", job).stdout.splitlines()
    return [json.loads(line)["event"] for line in lines if line.startswith('{"event":')]


@pytest.fixture
def ran(place: Place) -> str:
    """The job, which was run: its last stage crashes."""
    (place.folder / "tool.sh").write_text(TOOL)
    (place.folder / "collect.sh").write_text(COLLECT)
    place.environment |= {"PILOTAGE_PROVENANCE_VARIABLES": "LANG,NO_SUCH_VARIABLE", "LANG": "C.UTF-8"}
    place.document(JOB)
    (place.folder / "notes.txt").write_text("as measured")
    place.run("run", "--annotate", "group=A", "--annotate", "notes=@notes.txt", code=1)
    return str(place.told("outputs", "kept", code=1)["job"])


def test_what_a_job_asks_for_is_collected_and_reaches_its_record(place: Place, ran: str, tmp_path: Path) -> None:
    first = place.told("status", f"{ran}/1.1.1")["attempts"][0]
    assert first["custom"] == {"kappa": 1.5, "files": "collect.sh out-1.1.1.txt tool.sh "}
    assert [file["name"] for file in first["manifest"]] == ["out-1.1.1.txt"]  # the script is no output
    failed = place.told("status", f"{ran}/2.1.1")["attempts"][0]
    assert (failed["exit_code"], failed["custom"]) == ("SUCCESS", None)
    assert failed["custom_fault"] == "its provenance script ended with 3: no data today"

    told = [event["data"] for event in events(place, ran) if event["type"] == "NodeDescribed"]
    assert len(told) <= 3  # once for each pilot and software, not for each package
    software = {name: version for each in told for name, version in each["software"].items()}
    assert software["tool@2"] == "tool 2.0.1"
    assert software["other"].startswith("unknown: its probe cannot be started")

    crashed = place.told("status", f"{ran}/3.1.1")["attempts"][-1]
    assert crashed["custom"]["files"] == "collect.sh "
    (core,) = crashed["cores"]
    assert "core" not in {log["stream"] for log in place.told("logs", f"{ran}/3.1.1")["logs"]}

    told = place.told("provenance", "show", ran)["custom"]
    assert {"package": "1.1.1", "attempt": 1, "custom": first["custom"]} in told
    assert "1.1.1: kappa=1.5, files=collect.sh out-1.1.1.txt tool.sh" in place.run("provenance", "show", ran).stdout
    for query, count in (
        ("custom.kappa within 1.4..1.6", 1),
        ("custom.kappa=1.5 and custom.files~out-1.2.1", 1),
        ("custom.kappa>2", 0),
    ):
        found = place.told("provenance", "find", query, code=0 if count else 1)
        assert [each["job"] for each in found["records"]] == [ran] * count

    place.run("serve", "--stop")
    with (
        closing(FolderRecords(tmp_path / "records")) as store,
        closing(SqliteJournal(place.state)) as book,
        closing(SqliteLogs(WorkDatabase(place.state))) as logs,
    ):
        record = Recorder(book, store, now=lambda: 2e9).record(ran, logs=logs)
        assert record is not None
        (part,) = [each for each in record.parts if each.kind == "core"]
        assert (part.name, part.sha256) == (f"3.1.1/1/{core['name']}", core["sha256"])
        assert hashlib.sha256(store.content(part.sha256)).hexdigest() == core["sha256"]
        (node,) = record.nodes
        (notes,) = [each for each in record.parts if each.kind == "custom"]
        assert (notes.name, store.content(notes.sha256)) == ("notes", b"as measured")
        assert b"".join(dump_of(record, store.content)) == b"".join(book.dump(ran))
    assert record.tags == {"study": "B", "group": "A"}
    assert node.environment["LANG"] == "C.UTF-8"
    assert "NO_SUCH_VARIABLE" not in node.environment
    assert node.software["tool@2"] == "tool 2.0.1"
    assert node.cpu_model
    assert node.kernel.startswith("Linux")
