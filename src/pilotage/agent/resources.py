"""Resources: what a node has to give, and what an attempt takes of it; each kind is a field of `Room` and a row of `KINDS`.

The service has the same in `pilotage.model.resources`.
"""

from __future__ import annotations

from operator import add, le, sub
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Room(NamedTuple):
    """An amount of every kind, by the names that they have in messages."""

    cores_hundredths: int = 100
    memory_bytes: int = 0
    gpus: int = 0
    scratch_bytes: int = 0


class Kind(NamedTuple):
    """How an agent is told how much it has of a kind, how it asks for it, and how it tells an application."""

    name: str  # of the field of `Room`
    option: str  # of a pilot's command line
    metavar: str
    help: str
    variable: str = ""  # tells an application what it may take, after PILOTAGE_; none: it is not told
    is_asked: bool = True  # of a batch system, by the field of that name in `Wanted`
    is_counted: bool = False  # and in the same way as all that is counted: see `Wanted.consumables`
    is_measured: bool = False  # a pilot that is not told how much there is looks itself


KINDS = (
    Kind("cores_hundredths", "--cores-hundredths", "N", "the same, finer", "CORES", is_asked=False),  # in whole ones
    Kind("memory_bytes", "--memory", "BYTES", "memory to give; 0: all of it", "MEMORY_BYTES"),
    Kind("gpus", "--gpus", "N", "GPUs to give", "GPUS", is_counted=True),
    Kind("scratch_bytes", "--scratch", "BYTES", "disk to give; 0: what is free", is_asked=False, is_measured=True),
)
VARIABLES = tuple(kind.variable for kind in KINDS if kind.variable)
USUAL_ROOM = Room()


def room_of(said: Mapping[str, Any]) -> Room:
    """What a demand asks for, by its fields as they are told in JSON."""
    if not said:
        return USUAL_ROOM
    return Room(*map(said.get, Room._fields, USUAL_ROOM))


def room_of_entry(entry: Mapping[str, Any]) -> Room:
    """What a pilot at a site has, by the site's entry as it is told in JSON; 0 where that does not say."""
    amounts = {name: int(entry.get(name) or 0) for name in Room._fields[1:]}
    return Room(100 * int(entry.get("slots") or 1), **amounts)


def fits(room: Room, free: Room) -> bool:
    """Whether there is as much of everything as an attempt takes."""
    return all(map(le, room, free))


def take(free: Room, room: Room) -> Room:
    """What is left beside an attempt."""
    return Room._make(map(sub, free, room))


def give_back(free: Room, room: Room) -> Room:
    """What there is without an attempt."""
    return Room._make(map(add, free, room))


def pilot_options(room: Room) -> list[str]:
    """The words that tell a pilot what it has."""
    told = ((kind, getattr(room, kind.name)) for kind in KINDS)
    return [f"{kind.option}={amount}" for kind, amount in told if amount or not kind.is_measured]


def attempt_options(room: Room) -> list[str]:
    """The words that tell the agent of one attempt what this takes."""
    return [f"{kind.option}={getattr(room, kind.name)}" for kind in KINDS if not kind.is_measured]


def asked_fields(room: Room) -> dict[str, int]:
    """What a batch system is asked for, by the fields of `Wanted`."""
    asked = {kind.name: getattr(room, kind.name) for kind in KINDS if kind.is_asked}
    return {"cores": max(1, -(-room.cores_hundredths // 100)), **asked}


def told_amounts(room: Room) -> list[str]:
    """What an application is told that it may take, as `VARIABLE=AMOUNT`, in the order of `VARIABLES`."""
    amounts = {**room._asdict(), "cores_hundredths": f"{room.cores_hundredths / 100:g}"}
    return [f"{kind.variable}={amounts[kind.name]}" for kind in KINDS if kind.variable]
