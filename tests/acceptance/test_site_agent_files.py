"""Files from a store reach the packages of a site through its agent: by the cache, or from the service where nodes do not see it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.acceptance.test_site_agent import SECONDS_MAX, far
from tests.kit.pilots import wait_until

PACKAGES, SIZE_BYTES = 6, 5_000_000


@pytest.mark.parametrize("folder", ["site/cache", "ours/cache"], ids=["seen by the nodes", "not seen"])
def test_a_common_input_is_brought_once_and_all_packages_read_it(folder: str, tmp_path: Path) -> None:
    cache = tmp_path / folder
    with far(tmp_path, cache=str(cache)) as place:
        store = place.service.folder / "store"
        store.mkdir()
        (store / "common é").write_bytes(b"c" * SIZE_BYTES)
        given = {"name": "common input", "locator": f"file://{quote(str(store / 'common é'))}"}
        stage = {
            "each": {"n": f"1..{PACKAGES}"},
            "shell": "wc -c < 'common input' > out-{n}.txt",
            "inputs": [given],
            "outputs": ["out-{n}.txt"],
        }
        document = {"pilotage": 1, "job": "far", "stages": [stage]}
        (place.service.folder / "pilotage.yaml").write_text(json.dumps(document))
        place.agent.start()
        place.service.program("submit")
        files = [place.service.folder / f"out-{number}.txt" for number in range(1, PACKAGES + 1)]
        try:
            wait_until(lambda: all(each.exists() for each in files), SECONDS_MAX)
        except AssertionError:
            pytest.fail(f"{place.agent.log()}\n{place.service.log()}")
        assert {each.read_text().strip() for each in files} == {str(SIZE_BYTES)}
        assert [each.stat().st_size for each in cache.rglob("*") if each.is_file()] == [SIZE_BYTES]
