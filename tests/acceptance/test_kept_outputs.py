"""Outputs that stay in the cache of the site: a later job merges them from there, stores the result, and releases them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
