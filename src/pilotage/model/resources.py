"""Resources: what an attempt uses of a node, and what a node offers, in whole numbers, so that sums are exact.

Each kind is a row of `KINDS` and a field of `Amounts`, and every sum and comparison of amounts is in this module: they are
written out, kind by kind, since the engine adds and compares for every attempt. Code that shows, reads or writes amounts
uses `KINDS`. The agent, which imports nothing of this, has the same in `pilotage.agent.resources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from pilotage.model.texts import sizes_apart

Amount = Annotated[int, Meta(ge=0, le=2**53 - 1)]

AMOUNT_UNKNOWN = 2**53 - 1
"""An amount that a site does not state: it refuses nothing, and its pilots find out themselves."""


class Kind(NamedTuple):
    """One kind of resource: its names, and how amounts of it are shown."""

    name: str  # of the field in messages, in the book, and here; in documents, too, except `cores`
    entry: str  # of the field in a site's entry; absent there: `AMOUNT_UNKNOWN`
    noun: str  # the words after an amount, for people
    unit: Literal["hundredths", "bytes", "count"]

    def amount(self, given: int | None) -> int:
        """The amount in an entry."""
        if given is None:
            return AMOUNT_UNKNOWN
        return 100 * given if self.unit == "hundredths" else given

    def texts(self, asked: int, given: int) -> tuple[str, str]:
        """Two different amounts as text."""
        if self.unit == "bytes":
            return sizes_apart(asked, given)
        if self.unit == "hundredths":
            return f"{asked / 100:g}", f"{given / 100:g}"
        return f"{asked:,}", f"{given:,}"


CORES = Kind("cores_hundredths", "slots", "cores", "hundredths")
BESIDES_CORES = (
    Kind("memory_bytes", "memory_bytes", "of memory", "bytes"),
    Kind("gpus", "gpus", "GPUs", "count"),
    Kind("scratch_bytes", "scratch_bytes", "of scratch space", "bytes"),
)
"""The kinds that an attempt need not ask for."""
KINDS = (CORES, *BESIDES_CORES)
NAMES = tuple(kind.name for kind in KINDS)


class Amounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An amount of every kind."""

    cores_hundredths: int = 100
    memory_bytes: int = 0
    gpus: int = 0
    scratch_bytes: int = 0


class Capacity(Amounts, frozen=True, kw_only=True, omit_defaults=True):
    """What a node can offer at once."""

    cores_hundredths: Amount = 100
    memory_bytes: Amount = 0
    gpus: Amount = 0
    scratch_bytes: Amount = 0


class Demand(Amounts, frozen=True, kw_only=True, omit_defaults=True):
    """What one attempt uses. 0 means not stated: anything will do; likewise the wall time."""

    wall_seconds: float = 0.0
    nodes: int = 1
    node_restriction: tuple[str, ...] = ()  # only on these, by name or pattern; empty: on any


class Free:
    """The free part of a capacity; negative if more was assigned than runs at once."""

    __slots__ = ("cores_hundredths", "gpus", "memory_bytes", "scratch_bytes")

    def __init__(self, whole: Amounts) -> None:
        """Start with the whole capacity."""
        self.cores_hundredths = whole.cores_hundredths
        self.memory_bytes = whole.memory_bytes
        self.gpus = whole.gpus
        self.scratch_bytes = whole.scratch_bytes

    def take(self, demand: Amounts) -> None:
        """Take the resources of an attempt."""
        self.cores_hundredths -= demand.cores_hundredths
        if demand.memory_bytes or demand.gpus or demand.scratch_bytes:
            self.memory_bytes -= demand.memory_bytes
            self.gpus -= demand.gpus
            self.scratch_bytes -= demand.scratch_bytes

    def give_back(self, demand: Amounts) -> None:
        """Give back the resources of an attempt."""
        self.cores_hundredths += demand.cores_hundredths
        if demand.memory_bytes or demand.gpus or demand.scratch_bytes:
            self.memory_bytes += demand.memory_bytes
            self.gpus += demand.gpus
            self.scratch_bytes += demand.scratch_bytes

    def fits(self, demand: Amounts) -> bool:
        """Whether an attempt fits."""
        return (
            demand.cores_hundredths <= self.cores_hundredths
            and demand.memory_bytes <= self.memory_bytes
            and demand.gpus <= self.gpus
            and demand.scratch_bytes <= self.scratch_bytes
        )

    def is_contended(self, small: Amounts, large: Amounts) -> bool:
        """Whether one attempt would take resources that another one lacks."""
        return bool(
            large.cores_hundredths > self.cores_hundredths  # which every attempt uses
            or (small.memory_bytes and large.memory_bytes > self.memory_bytes)
            or (small.gpus and large.gpus > self.gpus)
            or (small.scratch_bytes and large.scratch_bytes > self.scratch_bytes)
        )


amounts: Callable[[Amounts | Free], tuple[int, ...]] = attrgetter(*NAMES)
"""The amounts in the order of `KINDS`."""


def slots_for(demand: Demand, capacity: Capacity) -> int:
    """How many attempts with this demand fit into a capacity."""
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


def count_waiting(demands: Iterable[Amounts], capacity: Capacity) -> int:
    """How many attempts cannot run beside those before them; later ones that fit may overtake."""
    left, waiting = Free(capacity), 0
    for demand in demands:
        if left.fits(demand):
            left.take(demand)
        else:
            waiting += 1
    return waiting


def count_running(demands: Iterable[Amounts], capacity: Capacity) -> int:
    """How many attempts run in order: the first ones, as far as they fit side by side."""
    left, running = Free(capacity), 0
    for demand in demands:
        if not left.fits(demand):
            break
        left.take(demand)
        running += 1
    return running


def lacking(demand: Amounts, capacity: Capacity) -> list[tuple[str, int, int]]:
    """Where a capacity falls short of a demand: the field, the demand and the capacity."""
    pairs = zip(NAMES, amounts(demand), amounts(capacity), strict=True)
    return [(name, asked, given) for name, asked, given in pairs if asked > given]


def shortage(name: str, site: str, asked: int, given: int) -> str:
    """What a node of a site has too little of, in words."""
    kind = KINDS[NAMES.index(name)]
    wanted, there = kind.texts(asked, given)
    return f"it asks for {wanted} {kind.noun} and {site} has {there}"


def is_what_was_asked_for(found: Capacity, wanted: Capacity) -> bool:
    """Whether a pilot has the configured capacity; amounts that the site does not state are accepted."""
    return all(asked in (AMOUNT_UNKNOWN, given) for asked, given in zip(amounts(wanted), amounts(found), strict=True))
