"""What packages are estimated to take: whether the sizes of their inputs matter."""

from __future__ import annotations

import pytest

from pilotage.ports import MeasuredRun
from pilotage.reading.run_estimates import RUNS_MIN, run_estimates


@pytest.mark.parametrize("of_seconds, of_memory", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("is_measured", [True, False])
def test_sizes_matter_if_they_do_for_anything_that_was_measured(
    *, of_seconds: bool, of_memory: bool, is_measured: bool
) -> None:
    runs = [
        MeasuredRun(
            seconds=10.0 * number if of_seconds else 10.0,
            input_bytes=1000 * number,
            output_bytes=5,
            scratch_bytes=7,
            memory_bytes=(100 * number if of_memory else 100) if is_measured else None,
        )
        for number in range(1, 2 * RUNS_MIN)
    ]
    assert run_estimates(runs).by_size is (of_seconds or (of_memory and is_measured))
