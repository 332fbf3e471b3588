"""Outputs that stay in the cache of the site: a later job merges them from there, stores the result, and releases them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.engines.s3 import S3Server
from tests.engines.sshd import SshServer
from tests.kit.real_runs import Place, place_in, wait_until

MADE = """
pilotage: 1
job: made
stages:
  - name: make
    each: {n: 1..3}
    shell: "echo small {n} > 'small {n}.txt'"
    outputs: [{name: "small {n}.txt", dispositions: [retain-indefinitely]}]
"""
MERGE = """
pilotage: 1
job: merge
stages:
  - each: {part: {files: "small *.txt", site: local, group: 10}}
    shell: "cat small*.txt > all.txt"
    inputs: [{name: "{part.name}", locator: "{part}", disposition: release}]
    outputs: [{name: all.txt, dispositions: [store], replicas: 2}]
"""
SETTINGS = """
[stores.tape]
url = "file://{folder}/tape"
[stores.vault]
url = "file://{folder}/vault"
[files]
archive = ["tape", "vault"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "job").mkdir()
    with place_in(tmp_path / "job") as place:
        (place.folder / "pilotage.toml").write_text(SETTINGS.format(folder=tmp_path))
        (place.folder / "made.yaml").write_text(MADE)
        (place.folder / "merge.yaml").write_text(MERGE)
        yield place


def cached(place: Place) -> list[str]:
    """The files in the cache of this computer, by content."""
    found = (place.folder / ".pilotage/cache").rglob("*")
    return sorted(path.read_text() for path in found if path.is_file() and not path.name.endswith(".part"))


def listed(place: Place) -> list[str]:
    return sorted(each["locator"] for each in place.told("files", "list")["files"])


def test_small_files_stay_in_the_cache_until_a_later_job_has_merged_and_stored_them(
    place: Place, tmp_path: Path
) -> None:
    place.run("run", "made.yaml")
    wait_until(lambda: len(cached(place)) == 3, "three files in the cache")
    [first, *_] = locators = listed(place)
    assert first.startswith("job:made-")
    assert first.endswith("/small%201.txt")
    assert cached(place) == [f"small {n}\n" for n in (1, 2, 3)]
    assert "until a job of" in place.run("files", "why", first).stdout
    (place.folder / "small 1.txt").unlink()  # the cache alone has it now
    place.run("run", "merge.yaml")
    for store in ("tape", "vault"):
        [copy] = [each for each in (tmp_path / store).rglob("*") if each.is_file()]
        assert copy.read_text() == "small 1\nsmall 2\nsmall 3\n"
    wait_until(lambda: cached(place) == [], "an empty cache")
    wait_until(lambda: not list(place.folder.glob("small*.txt")), "an empty tree")
    assert len(locators) == 3


PRESENT = """
pilotage: 1
job: present
stages:
  - shell: "cat here.dat > out.txt"
    inputs: [{name: here.dat, acquisition: none, locator: "LOCATOR"}]
    outputs: [out.txt]
"""


def test_a_file_that_must_be_there_is_linked_from_its_place_and_not_copied(place: Place, tmp_path: Path) -> None:
    there = tmp_path / "data" / "here.dat"
    (place.folder / "present.yaml").write_text(PRESENT.replace("LOCATOR", str(there)))
    job = place.told("run", "--detach", "present.yaml")["job"]
    told = f"the input 'here.dat' must be there: {there} does not exist on"
    wait_until(lambda: told in place.run("explain", f"{job}/1.1.1").stdout, "a package that lacks its input")
    place.run("kill", job)
    there.parent.mkdir()
    there.write_text("data\n")
    place.run("run", "present.yaml")
    assert (place.folder / "out.txt").read_text() == "data\n"
    assert cached(place) == []
    there.write_text("other\n")
    place.run("run", "present.yaml")
    assert (place.folder / "out.txt").read_text() == "other\n", "without a checksum no result is taken over"


def test_a_remote_file_that_must_be_in_the_cache_of_the_site_holds_its_package_until_it_is(
    place: Place, tmp_path: Path
) -> None:
    made = place.told("run", "--detach", "made.yaml")["job"]
    wait_until(lambda: len(cached(place)) == 3, "three files in the cache")
    locator = f"job:{made}/small%201.txt"
    (place.folder / "present.yaml").write_text(PRESENT.replace("LOCATOR", locator))
    place.run("run", "present.yaml")
    assert (place.folder / "out.txt").read_text() == "small 1\n"
    place.run("files", "purge", locator)
    wait_until(lambda: len(cached(place)) == 2, "a file that has gone")
    (place.folder / "present.yaml").write_text(PRESENT.replace("LOCATOR", locator).replace("out.txt", "two.txt"))
    job = place.told("run", "--detach", "present.yaml")["job"]
    wait_until(lambda: "and is not there" in place.run("explain", f"{job}/1.1.1").stdout, "a package that is held")
    assert len(cached(place)) == 2, "it is not fetched"


FARM_SETTINGS = """
[stores.tape]
url = "s3://{bucket}/tape"
endpoint = "{endpoint}"
region = "us-east-1"
credentials_file = "{folder}/credentials"
[stores.vault]
url = "{sftp}/vault"
ssh_config = "{ssh_config}"
[files]
archive = ["tape", "vault"]
"""


def test_the_farm_of_use_case_four_merges_stores_twice_and_releases(
    root: Path, tmp_path: Path, s3_server: S3Server, ssh_server: SshServer
) -> None:
    folder, bucket = tmp_path / "farm", f"bucket-{uuid4().hex}"
    shutil.copytree(root / "examples" / "farm", folder)
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n")
    s3_server.bucket(bucket)
    for raw in sorted((folder / "raw").iterdir()):
        s3_server.write(bucket, f"raw/{raw.name}", raw.read_bytes())
    shutil.rmtree(folder / "raw")
    sftp = f"sftp://{ssh_server.user}@{ssh_server.host}:{ssh_server.port}{tmp_path}"
    settings = FARM_SETTINGS.format(
        bucket=bucket,
        endpoint=f"http://127.0.0.1:{s3_server.port}",
        folder=tmp_path,
        sftp=sftp,
        ssh_config=ssh_server.configuration(),
    )
    settings += f'[stores.raw]\nurl = "s3://{bucket}/raw"\nendpoint = "http://127.0.0.1:{s3_server.port}"\nregion = "us-east-1"\n'
    settings += f'credentials_file = "{tmp_path}/credentials"\n'
    with place_in(folder) as place:
        (folder / "pilotage.toml").write_text(settings)
        place.run("run", "reco.yaml", "--set", f"raw_store=s3://{bucket}/raw")
        small = ["all", "all", "filtered", "filtered", "filtered", "filtered"]

        def names() -> list[str]:
            return sorted(each.rpartition("/")[2].partition("-")[0] for each in listed(place))

        wait_until(lambda: names() == small, "the small files alone in the cache: the raw ones were deletable")
        merged = {"filtered": b"".join(_parts(folder, "filtered-*.dat")), "all": b"".join(_parts(folder, "*.root"))}
        place.run("run", "merge.yaml")
        tape = {key.rpartition("/")[2]: content for key, content in s3_server.content(bucket, "tape").items()}
        vault = {path.name: path.read_bytes() for path in (tmp_path / "vault").rglob("*") if path.is_file()}
        assert tape == vault == {"merged-0.dat": merged["filtered"], "histograms-0.txt": merged["all"]}
        wait_until(lambda: listed(place) == [], "an empty cache")
        wait_until(lambda: not [*folder.glob("*.root"), *folder.glob("filtered-*")], "an empty tree")


def _parts(folder: Path, pattern: str) -> list[bytes]:
    return [f"# {path.name}\n".encode() + path.read_bytes() for path in sorted(folder.glob(pattern))]


SHARING = """
pilotage: 1
job: JOB
stages:
  - shell: "cat common.dat > JOB.txt"
    inputs: [{name: common.dat, locator: "LOCATOR", disposition: WISH}]
    outputs: [JOB.txt]
"""


def test_of_two_jobs_that_share_an_input_the_one_that_wishes_longer_keeps_it(place: Place, tmp_path: Path) -> None:
    (tmp_path / "common.dat").write_text("common\n")

    def run(job: str, wish: str) -> None:
        text = SHARING.replace("JOB", job).replace("WISH", wish).replace("LOCATOR", f"file://{tmp_path}/common.dat")
        (place.folder / f"{job}.yaml").write_text(text)
        place.run("run", f"{job}.yaml")

    run("first", "deletable")
    wait_until(lambda: cached(place) == [], "a file that nobody wants")
    run("second", "retain-indefinitely")
    run("third", "deletable")
    [file] = place.told("files", "list")["files"]
    assert (file["state"], file["wish"]) == ("present", "retain-indefinitely")
    run("fourth", "release")
    wait_until(lambda: cached(place) == [], "a file that was released")
