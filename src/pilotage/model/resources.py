"""What an attempt takes of a node, and what a node has to give: whole numbers, so that sums come out even."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Amount = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class Capacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node, or what is left of it, can give at once."""

    cores_hundredths: Amount = 100
    memory_bytes: Amount = 0
    gpus: Amount = 0
    scratch_bytes: Amount = 0


class Demand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one attempt takes. A memory, scratch space or wall time of 0 was not said: anything will do."""

    cores_hundredths: int = 100
    memory_bytes: int = 0
    gpus: int = 0
    scratch_bytes: int = 0
    wall_seconds: float = 0.0
    nodes: int = 1
    node_restriction: tuple[str, ...] = ()  # only on these, by name or pattern; none: on any


def slots_for(demand: Demand, capacity: Capacity) -> int:
    """How many attempts with this demand a capacity holds at once."""
    if demand.nodes > 1:
        return 0  # never through a pilot
    fitting = capacity.cores_hundredths // demand.cores_hundredths
    if demand.memory_bytes:
        fitting = min(fitting, capacity.memory_bytes // demand.memory_bytes)
    if demand.gpus:
        fitting = min(fitting, capacity.gpus // demand.gpus)
    if demand.scratch_bytes:
        fitting = min(fitting, capacity.scratch_bytes // demand.scratch_bytes)
    return fitting


def lacking(demand: Demand, capacity: Capacity) -> list[tuple[str, int, int]]:
    """In what a capacity falls short of a demand: the field, what is asked and what there is."""
    fields = ("cores_hundredths", "memory_bytes", "gpus", "scratch_bytes")
    pairs = ((name, getattr(demand, name), getattr(capacity, name)) for name in fields)
    return [(name, asked, given) for name, asked, given in pairs if asked > given]
