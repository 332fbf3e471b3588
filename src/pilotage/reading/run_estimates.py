"""What packages are estimated to take, from measured runs of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pilotage.forecast.run_time import RUNS_MIN, SizeEstimate, size_estimate
from pilotage.ports import MeasuredRun

__all__ = ["RUNS_MIN", "RunEstimates", "SizeEstimate", "run_estimates"]

_COVERED = 0.95  # of the runs had no more memory and no more scratch space than their estimate


class RunEstimates(NamedTuple):
    """What a package of one kind takes, by the size of its inputs: usually, and for memory and scratch space nearly always."""

    seconds: SizeEstimate
    output_bytes: SizeEstimate
    scratch_bytes: SizeEstimate
    memory_bytes: SizeEstimate | None  # None: it was never measured

    @property
    def by_size(self) -> bool:
        """Whether the sizes of inputs matter for any of it."""
        return any(each is not None and each.by_size for each in self)


def run_estimates(runs: Sequence[MeasuredRun]) -> RunEstimates:
    """The estimates from at least one run, the latest last."""
    sizes = np.array([np.nan if each.input_bytes is None else float(each.input_bytes) for each in runs])
    measured = [each for each in runs if each.memory_bytes is not None]
    with_memory = np.array([each.memory_bytes is not None for each in runs])
    memory = np.array([float(each.memory_bytes or 0) for each in measured])
    return RunEstimates(
        seconds=size_estimate(sizes, np.array([each.seconds for each in runs])),
        output_bytes=size_estimate(sizes, np.array([float(each.output_bytes) for each in runs])),
        scratch_bytes=size_estimate(sizes, np.array([float(each.scratch_bytes) for each in runs]), covered=_COVERED),
        memory_bytes=size_estimate(sizes[with_memory], memory, covered=_COVERED) if measured else None,
    )
