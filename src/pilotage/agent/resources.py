"""Resources: how much a node offers and how much an attempt takes; each kind is a field of `Resources` and a row of `KINDS`.

`pilotage.model.resources` is its counterpart in the service.
"""

from __future__ import annotations

from operator import add, le, sub
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Resources(NamedTuple):
    """An amount of each kind, under the names used in messages."""

    cores_hundredths: int = 100
    memory_bytes: int = 0
    gpus: int = 0
    scratch_bytes: int = 0


class Kind(NamedTuple):
    """A kind of resource: its option for a pilot, its variable for an application, its request to a batch system."""

    name: str  # of the field of `Resources`
    option: str  # on a pilot's command line
    metavar: str
    help: str
    variable: str = ""  # tells an application its share, after PILOTAGE_; empty: it is not told
    is_asked: bool = True  # requested from a batch system, by the field of that name in `BatchRequest`
    is_counted: bool = False  # requested like every counted resource: see `BatchRequest.consumables`
    is_measured: bool = False  # a pilot without this option measures it


KINDS = (
    Kind("cores_hundredths", "--cores-hundredths", "N", "the same, finer", "CORES", is_asked=False),  # whole cores are
    Kind("memory_bytes", "--memory", "BYTES", "memory to give; 0: all of it", "MEMORY_BYTES"),
    Kind("gpus", "--gpus", "N", "GPUs to give", "GPUS", is_counted=True),
    Kind("scratch_bytes", "--scratch", "BYTES", "disk to give; 0: what is free", is_asked=False, is_measured=True),
)
VARIABLES = tuple(kind.variable for kind in KINDS if kind.variable)
DEFAULT_RESOURCES = Resources()


def resources_of(demand: Mapping[str, Any]) -> Resources:
    """Resources of a demand, from its JSON fields."""
    if not demand:
        return DEFAULT_RESOURCES
    return Resources(*map(demand.get, Resources._fields, DEFAULT_RESOURCES))


def resources_of_entry(entry: Mapping[str, Any]) -> Resources:
    """Resources of a pilot at a site, from the JSON of the site's entry; 0 where it does not say."""
    amounts = {name: int(entry.get(name) or 0) for name in Resources._fields[1:]}
    return Resources(100 * int(entry.get("slots") or 1), **amounts)


def fits(resources: Resources, free: Resources) -> bool:
    """Tell whether the free resources suffice for an attempt."""
    return all(map(le, resources, free))


def take(free: Resources, resources: Resources) -> Resources:
    """Free resources after an attempt has started."""
    return Resources._make(map(sub, free, resources))


def give_back(free: Resources, resources: Resources) -> Resources:
    """Free resources after an attempt has ended."""
    return Resources._make(map(add, free, resources))


def pilot_options(resources: Resources) -> list[str]:
    """Command-line options that tell a pilot its resources."""
    amounts = ((kind, getattr(resources, kind.name)) for kind in KINDS)
    return [f"{kind.option}={amount}" for kind, amount in amounts if amount or not kind.is_measured]


def attempt_options(resources: Resources) -> list[str]:
    """Command-line options that tell the agent of one attempt its resources."""
    return [f"{kind.option}={getattr(resources, kind.name)}" for kind in KINDS if not kind.is_measured]


def asked_fields(resources: Resources) -> dict[str, int]:
    """Resources to request from a batch system, by the fields of `BatchRequest`."""
    asked = {kind.name: getattr(resources, kind.name) for kind in KINDS if kind.is_asked}
    return {"cores": max(1, -(-resources.cores_hundredths // 100)), **asked}


def amounts_of(resources: Resources) -> list[str]:
    """The share of an application, as `VARIABLE=AMOUNT`, in the order of `VARIABLES`."""
    amounts = {**resources._asdict(), "cores_hundredths": f"{resources.cores_hundredths / 100:g}"}
    return [f"{kind.variable}={amounts[kind.name]}" for kind in KINDS if kind.variable]
