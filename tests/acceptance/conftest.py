"""What acceptance tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An empty folder to run the program in; nothing of it runs any more afterwards."""
    with place_in(tmp_path) as made:
        yield made
