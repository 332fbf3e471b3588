"""What the runs of packages took: measured when an attempt succeeds, for the estimates of later plans and jobs."""

from __future__ import annotations

from pilotage.language.expansion.software import find_software
from pilotage.model.events import payloads
from pilotage.model.jobs.definition import Definition, Package
from pilotage.ports import MeasuredRun

PENDING_MAX = 512
"""Runs of a kind that are recorded at once: of more, the latest."""

_WORK = ("inputs", "application", "outputs")  # phases that are work of a package


def software_of(definition: Definition, package: Package) -> str:
    """The software that a package runs, with versions; empty if it also runs something that is not described.

    A plain command is no name to go by: what `python3` takes depends on the script.
    """
    if not definition.software:
        return ""
    found = [find_software(definition, binary) for binary in package.binaries]
    if not found or any(each is None for each in found):
        return ""
    return ", ".join(f"{each.id}/{each.version}" for each in found if each is not None)


def measured_run(data: payloads.AttemptFinished, *, input_bytes: int | None, speed: float) -> MeasuredRun:
    """What a successful attempt took, at a site of some speed.

    Its scratch space is not measured: it is no more than its inputs and all that it wrote.
    """
    seconds = 0.0
    for phase in data.phases:
        if phase.phase in _WORK:
            seconds += phase.seconds
    output_bytes = sum([file.size_bytes for file in data.manifest or ()])
    peak_bytes = data.peak_memory_bytes
    return MeasuredRun(
        seconds=seconds * speed,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        scratch_bytes=(input_bytes or 0) + max(output_bytes, data.written_bytes or 0),
        memory_bytes=peak_bytes if peak_bytes is not None else data.peak_memory_below_bytes,
    )
