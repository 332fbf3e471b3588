"""`pilotage provenance find` in a folder with records, and the configuration of index servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.adapters.record_index.sqlite import SqliteRecordIndex
from pilotage.adapters.records.folder import FolderRecords
from pilotage.cli import main
from pilotage.model.records import RECORD_VERSION, JobRecord, RecordNode
from pilotage.provenance.index.attributes import chosen_attributes


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["provenance", *words])


def commit(folder: Path, *jobs: str) -> None:
    with closing(FolderRecords(folder)) as store:
        store.commit(
            [
                JobRecord(
                    version=RECORD_VERSION, job=job, revision=1, owner="ada", name="n", state="DONE", made_at=1.0,
                    submitted_at=1767225600.0 + at, tags={"group": job},
                )
                for at, job in enumerate(jobs)
            ]
        )  # fmt: skip


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".pilotage" / "records"
    commit(folder, "j1", "j2", "j3")
    return folder


def found(*words: str) -> list[str]:
    result = run("find", *words, "--json")
    assert result.exit_code in (0, 1), result.output
    return [each["job"] for each in json.loads(result.stdout)["records"]]


def test_a_group_of_patients_a_processor_and_some_months_are_found_together(records: Path) -> None:
    with closing(FolderRecords(records)) as store:
        for job, group, model, submitted_at in (
            ("k1", "B", "Intel(R) Xeon(R) Gold", 1769904000.0),  # 2026-02
            ("k2", "A", "Intel(R) Xeon(R) Gold", 1769904000.0),
            ("k3", "B", "AMD EPYC", 1769904000.0),
            ("k4", "B", "Intel(R) Xeon(R) Gold", 1775001600.0),  # 2026-04
        ):
            node = RecordNode(node="n", cpu_model=model)
            store.commit(
                [
                    JobRecord(
                        version=RECORD_VERSION, job=job, revision=1, owner="ada", name="n", state="DONE", made_at=1.0,
                        submitted_at=submitted_at, tags={"patient_group": group}, nodes=(node,),
                    )
                ]
            )  # fmt: skip
    query = "tag.patient_group=B and node.cpu_model~Xeon and submitted within 2026-01..2026-03"
    assert found(query) == ["k1"]


def test_records_are_found_with_where_they_lie_also_those_that_came_since(records: Path) -> None:
    result = run("find", "tag.group=j2")
    assert result.exit_code == 0
    assert result.stdout == "j2  n  DONE  ada  2026-01-01 00:00:01Z  .pilotage/records\n"
    assert found("submitted within 2026-01") == ["j3", "j2", "j1"]
    commit(records, "j4")
    assert found("tag.group=j4") == ["j4"]
    assert run("find", "tag.group=j5").exit_code == 1
    told = json.loads(run("find", "state=DONE", "--limit", "3", "--json").stdout)
    assert told["records"][0]["storage"] == str(records)
    assert len(found("state=DONE", "--cursor", told["next"])) == 1


def _spoiled(file: Path) -> None:
    file.write_bytes(b"no index" * 1000)


def _of_other_attributes(file: Path) -> None:
    file.unlink()
    SqliteRecordIndex(file, attributes=chosen_attributes(["site"])).close()


@pytest.mark.parametrize("spoil", [Path.unlink, _spoiled, _of_other_attributes])
def test_an_index_that_is_lost_damaged_or_of_other_attributes_is_made_again(
    records: Path, spoil: Callable[[Path], None]
) -> None:
    assert found("tag.group=j2") == ["j2"]
    spoil(records / "index.sqlite")
    assert found("tag.group=j2") == ["j2"]


def test_the_setting_names_the_index_server(records: Path, tmp_path: Path) -> None:
    (tmp_path / "pilotage.toml").write_text('[provenance]\nindex = "nowhere"\n')
    result = run("find", "tag.group=j2")
    assert result.exit_code == 2
    assert "nowhere: no service runs in this folder" in result.output


def test_a_query_with_blanks_needs_quotes(records: Path) -> None:
    assert "Put the query in quotes" in run("find", "state=DONE", "and", "site=lyon").output


@pytest.mark.parametrize(
    "text, words",
    [
        ("nam = 'x'", "unknown field `nam`"),
        ("name = 'a/b'", "name"),
        ("port = 'x'", "port"),
        ("no toml", "index.toml"),
    ],
)
def test_faulty_configurations_of_index_servers_are_refused(records: Path, text: str, words: str) -> None:
    Path("index.toml").write_text(text)
    result = run("index", "--config", "index.toml", "--once")
    assert result.exit_code == 2
    assert words in result.output
    assert not Path("index").exists()


def test_options_of_index_servers_are_checked(records: Path) -> None:
    assert "needs a storage" in run("index", "--once").output
    assert "no such attribute" in run("index", "--once", "--storage", ".", "--attribute", "sites").output
    assert "relative time" in run("index", "--once", "--storage", ".", "--query", "submitted within 2h").output
    assert "the options of the index" in run("index", "--once", "--storage", ".", "--name", "a b").output
    two = run("index", "--once", "--storage", "a", "--token-file", "x", "--token-file", "y")
    assert "one --token-file for all storages" in two.output
    assert not Path("index").exists()
    assert "no service runs in this folder" in run("index", "--once", "--storage", "nowhere").output


def test_an_index_server_that_does_not_run_is_started_with_its_own_command(records: Path, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    result = run("find", "state=DONE", "--index", "index")
    assert result.exit_code != 0
    assert "pilotage provenance index --folder index" in result.output
    assert "pilotage serve" not in result.output
