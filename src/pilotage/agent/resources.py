"""Resources: how much a node offers and how much an attempt takes; each kind is a field of `Room` and a row of `KINDS`.

`pilotage.model.resources` is its counterpart in the service.
"""

from __future__ import annotations

from operator import add, le, sub
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Room(NamedTuple):
    """An amount of each kind, under the names used in messages."""

    cores_hundredths: int = 100
    memory_bytes: int = 0
    gpus: int = 0
    scratch_bytes: int = 0


class Kind(NamedTuple):
    """A kind of resource: its option for a pilot, its variable for an application, its request to a batch system."""

    name: str  # of the field of `Room`
    option: str  # on a pilot's command line
    metavar: str
    help: str
    variable: str = ""  # tells an application its share, after PILOTAGE_; empty: it is not told
    is_asked: bool = True  # requested from a batch system, by the field of that name in `Wanted`
    is_counted: bool = False  # requested like every counted resource: see `Wanted.consumables`
    is_measured: bool = False  # a pilot without this option measures it


KINDS = (
    Kind("cores_hundredths", "--cores-hundredths", "N", "the same, finer", "CORES", is_asked=False),  # whole cores are
    Kind("memory_bytes", "--memory", "BYTES", "memory to give; 0: all of it", "MEMORY_BYTES"),
    Kind("gpus", "--gpus", "N", "GPUs to give", "GPUS", is_counted=True),
    Kind("scratch_bytes", "--scratch", "BYTES", "disk to give; 0: what is free", is_asked=False, is_measured=True),
)
VARIABLES = tuple(kind.variable for kind in KINDS if kind.variable)
USUAL_ROOM = Room()


def room_of(said: Mapping[str, Any]) -> Room:
    """Resources of a demand, from its JSON fields."""
    if not said:
        return USUAL_ROOM
    return Room(*map(said.get, Room._fields, USUAL_ROOM))


def room_of_entry(entry: Mapping[str, Any]) -> Room:
    """Resources of a pilot at a site, from the JSON of the site's entry; 0 where it does not say."""
    amounts = {name: int(entry.get(name) or 0) for name in Room._fields[1:]}
    return Room(100 * int(entry.get("slots") or 1), **amounts)


def fits(room: Room, free: Room) -> bool:
    """Tell whether the free resources suffice for an attempt."""
    return all(map(le, room, free))


def take(free: Room, room: Room) -> Room:
    """Free resources after an attempt has started."""
    return Room._make(map(sub, free, room))


def give_back(free: Room, room: Room) -> Room:
    """Free resources after an attempt has ended."""
    return Room._make(map(add, free, room))


def pilot_options(room: Room) -> list[str]:
    """Command-line options that tell a pilot its resources."""
    told = ((kind, getattr(room, kind.name)) for kind in KINDS)
    return [f"{kind.option}={amount}" for kind, amount in told if amount or not kind.is_measured]


def attempt_options(room: Room) -> list[str]:
    """Command-line options that tell the agent of one attempt its resources."""
    return [f"{kind.option}={getattr(room, kind.name)}" for kind in KINDS if not kind.is_measured]


def asked_fields(room: Room) -> dict[str, int]:
    """Resources to request from a batch system, by the fields of `Wanted`."""
    asked = {kind.name: getattr(room, kind.name) for kind in KINDS if kind.is_asked}
    return {"cores": max(1, -(-room.cores_hundredths // 100)), **asked}


def told_amounts(room: Room) -> list[str]:
    """The share of an application, as `VARIABLE=AMOUNT`, in the order of `VARIABLES`."""
    amounts = {**room._asdict(), "cores_hundredths": f"{room.cores_hundredths / 100:g}"}
    return [f"{kind.variable}={amounts[kind.name]}" for kind in KINDS if kind.variable]
