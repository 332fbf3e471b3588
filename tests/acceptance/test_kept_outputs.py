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
