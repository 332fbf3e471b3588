"""`pilotage provenance` in a folder with records."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.adapters.records.folder import FolderRecords
from pilotage.app.provenance.rerun import Difference
from pilotage.cli import main
from pilotage.cli.provenance.rerun import difference_lines
from pilotage.model.records import RECORD_VERSION, JobRecord, RecordPart


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["provenance", *words])


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two records that share a part, in the state folder of the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".pilotage" / "records"
    store = FolderRecords(folder)
    for job, contents in {"j1": [b"shared" * 100, b"own" * 100], "j2": [b"shared" * 100]}.items():
        digests = store.add_parts([("file", each) for each in contents])
        parts = tuple(
            RecordPart(kind="file", name=f"f{n}", sha256=sha256, size_bytes=len(content))
            for n, (sha256, content) in enumerate(zip(digests, contents, strict=True))
        )
        made = JobRecord(
            version=RECORD_VERSION, job=job, revision=1, owner="ada", name="n", state="DONE", made_at=1.0, parts=parts
        )
        store.commit([made])
    store.close()
    return folder


def test_without_records_the_commands_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["fsck"], ["gc"], ["delete", "j1"]):
        result = run(*words)
        assert result.exit_code == 2
        assert "there are no records here" in result.output
        assert not (tmp_path / ".pilotage").exists()


def test_gc_lists_the_records_that_are_never_deleted(records: Path) -> None:
    Path("pilotage.toml").write_text('[provenance]\nnever_deleted = "job=j2 or owner=bob"\n')
    assert json.loads(run("gc", "--dry-run", "--json").output)["never_deleted"] == ["j2"]
    assert "never deleted by retention (provenance.never_deleted): j2" in run("gc", "--dry-run").output
    Path("pilotage.toml").write_text('[provenance]\nnever_deleted = "job="\n')
    assert "provenance.never_deleted" in run("gc", "--dry-run").output


def test_gc_of_a_damaged_storage_says_what_it_leaves_and_what_helps(records: Path) -> None:
    pack = records / "packs" / "000001.pack"
    content = bytearray(pack.read_bytes())
    content[-30] ^= 1  # the second record
    pack.write_bytes(content)
    told = run("gc")
    assert told.exit_code == 0
    assert "left as they are, since they are damaged: 000001.pack" in told.output
    assert "may need any: j2" in told.output
    assert "pilotage provenance delete JOB" in told.output


def test_fsck_finds_a_flipped_byte_and_names_the_jobs(records: Path) -> None:
    assert run("fsck").exit_code == 0
    pack = records / "packs" / "000001.pack"
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.write_bytes(content)
    result = run("fsck", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["sound"] is False
    assert {job for each in told["damage"] for job in each["jobs"]} & {"j1", "j2"}


@pytest.mark.parametrize("damage", ["no database", "a wrong row"])
def test_a_damaged_catalogue_is_reported_and_made_again(records: Path, damage: str) -> None:
    catalogue = records / "catalogue.sqlite"
    if damage == "no database":
        catalogue.write_bytes(b"this is no database" * 1000)
        result = run("gc", "--dry-run")
        assert result.exit_code == 2
        assert "remove catalogue.sqlite" in result.output
    else:
        with closing(sqlite3.connect(catalogue)) as connection:
            connection.execute("UPDATE parts SET size_bytes = 1")
            connection.commit()
        result = run("gc")
        assert result.exit_code == 2
        assert "nothing is removed from a damaged store" in result.output
    result = run("fsck")
    assert result.exit_code == 1
    assert "remove catalogue.sqlite" in result.output
    for each in records.glob("catalogue.sqlite*"):
        each.unlink()
    assert run("fsck").exit_code == 0
    with closing(FolderRecords(records, writes=False)) as store:
        assert store.record("j1") is not None


def test_a_deleted_record_frees_only_what_no_other_record_shares(records: Path) -> None:
    assert run("delete", "j1", "j9").exit_code == 1  # j9 has none
    assert (
        json.loads(run("gc", "--dry-run", "--json").stdout)["collected"]["parts"] == 2
    )  # the record itself, and its own part
    assert json.loads(run("gc", "--json").stdout)["collected"]["parts"] == 2  # the record itself, and its own part
    store = FolderRecords(records, writes=False)
    kept = store.record("j2")
    assert kept is not None
    assert store.content(kept.parts[0].sha256) == b"shared" * 100
    assert store.record("j1") is None
    store.close()
    assert run("fsck").exit_code == 0


def test_a_variable_that_a_run_did_not_report_is_not_told_to_be_none_there() -> None:
    found = [
        Difference(what="variable LANG", before="C", after=None),
        Difference(what="libc", before=None, after="2.36"),
    ]
    assert list(difference_lines(found)) == [
        "  variable LANG: C → not reported (unset, or not asked for by [provenance] variables)\n",
        "  libc: none → 2.36\n",
    ]
