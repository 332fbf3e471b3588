"""Records with a copy in a store: made by a service, checked, and read on a computer that has nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.stores.places import Place as StorePlace
from tests.conformance.stores.places import bucket_place
from tests.conformance.stores.places import place_in as store_in
from tests.kit.real_runs import place_in, wait_until

DOCUMENT = """\
pilotage: 1
job: sample
stages:
  - {shell: "wc -w < in.txt > out.txt", inputs: [in.txt], outputs: [out.txt]}
"""
SETTINGS = """\
[provenance]
storage = "{storage}"

[stores.records]
url = "{storage}"
"""


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorePlace]:
    if request.param == "s3":
        with bucket_place(request.getfixturevalue("s3_server"), tmp_path) as place:
            yield place
    else:
        from pilotage.model.settings.stores import StoreSettings

        with store_in(tmp_path / "there", f"file://{tmp_path}/there", StoreSettings()) as place:
            yield place


def settings_for(store: StorePlace) -> str:
    known = {key: getattr(store.settings, key) for key in ("endpoint", "region", "credentials_file")}
    given = "".join(f'{key} = "{value}"\n' for key, value in known.items() if value and store.presigns)
    return SETTINGS.format(storage=store.base) + given


def test_records_are_read_checked_and_run_again_from_the_store_alone(store: StorePlace, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
        (folder / "pilotage.toml").write_text(settings_for(store))
    (home / "in.txt").write_text("three words here\n")
    with place_in(home) as place:
        place.document(DOCUMENT)
        job = place.told("run")["job"]
        place.run("provenance", "keep", job)
        assert store.content(), "the copy is there when the record is"
        place.run("serve", "--stop")
        assert place.run("provenance", "fsck").stderr == "sound\n"
        name = max(name for name in store.content() if name.endswith(".segment"))
        whole = store.content()[name]
        store.write(name, whole[:-1] + bytes([whole[-1] ^ 1]))
        told = place.told("provenance", "fsck", code=1)["damage"]
        assert [(each["place"].rpartition("/")[2], each["what"]) for each in told] == [
            (name.rpartition("/")[2], "its content does not match its name")
        ]
    with place_in(elsewhere) as place:
        refused = place.run("provenance", "list", "--records", store.base, code=2)
        assert name.rpartition("/")[2] in refused.stderr
        store.write(name, whole)
        assert job in place.run("provenance", "list", "--records", store.base).stdout
        place.run("provenance", "rerun", job, "--records", store.base, "--in", "again")
        assert (elsewhere / "again/out.txt").read_text().strip() == "3"
        nothing = place.run("provenance", "list", "--records", f"{store.base}/nothing", code=2)
        assert "there are no records here" in nothing.stderr


def test_a_storage_that_cannot_be_reached_is_named_and_the_job_is_done_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("not a folder")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/pilotage.toml").write_text(SETTINGS.format(storage=f"file://{tmp_path}/there"))
    with place_in(tmp_path / "home") as place:
        (place.folder / "in.txt").write_text("words\n")
        place.document(DOCUMENT)
        job = place.told("run")["job"]
        refused = place.run("provenance", "keep", job, code=3)
        assert "the copy of the records cannot be used" in refused.stderr
        assert str(tmp_path / "there") in refused.stderr
        (tmp_path / "there").unlink()
        place.run("provenance", "keep", job)
        assert list((tmp_path / "there").rglob("*.segment"))


def test_two_services_with_one_store_write_in_turns_and_every_record_is_there(tmp_path: Path) -> None:
    settings = SETTINGS.format(storage=f"file://{tmp_path}/there")
    settings = settings.replace("[provenance]\n", "[provenance]\nrecorded_after_seconds = 1\n")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pilotage.toml").write_text(settings)
        (tmp_path / name / "in.txt").write_text("words\n")
    with place_in(tmp_path / "one") as one, place_in(tmp_path / "two") as two:
        jobs = []
        for place in (one, two):
            place.document(DOCUMENT)
            place.run("serve", "--background", "--port", "0")
            jobs.append(place.told("run")["job"])
            if place is one:
                place.run("provenance", "keep", jobs[0])
        wait_until(lambda: "another folder writes" in two.run("status", jobs[1]).stdout, "the trouble")
        assert str(tmp_path / "one") in two.run("status", jobs[1]).stdout
        refused = two.run("provenance", "keep", jobs[1], code=3)
        assert "pilotage provenance take-over" in refused.stderr
        one.run("serve", "--stop")
        wait_until(lambda: "trouble" not in two.run("status", jobs[1]).stdout, "the record")
        listed = two.told("provenance", "list")["records"]
        assert sorted((each["job"], each["position"]) for each in listed) == sorted(zip(jobs, (1, 2), strict=True))
        two.run("serve", "--stop")
        one.run("provenance", "take-over")
        assert one.run("provenance", "fsck").stderr == "sound\n"
