"""Forged events of an agent: about attempts of others, about ends it has reported already, and plain nonsense.

The sender of an exchange is authenticated before the core sees it, so no agent can use another's name here; but an agent
can put anything into its own exchange.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from pilotage.model.events.events import Event
from pilotage.model.events.payloads import (
    AttemptFinished,
    CancelAccepted,
    CommitGranted,
    Noted,
    OutputsStaged,
    Payload,
    PilotEnded,
)
from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.model.states import ExitCodeGasw
from pilotage.simulator.agents.attempt import Run, manifest_of
from pilotage.simulator.agents.spool import Spool

Item = TypeVar("Item")

_encode = msgspec.json.Encoder().encode
_NONSENSE: tuple[tuple[str, bytes], ...] = (
    ("Nonsense", b"{}"),
    ("AttemptFinished", b'{"exit_code":"FINE"}'),
    ("PhaseEntered", b'{"phase":"application","by":"me"}'),
    ("PilotEnded", b"[1,2,3]"),
    ("Tagged", b'{"name":"' + b"n" * 5000 + b'","value":"v"}'),
)


def _event_of(assignment: Assignment, payload: Payload) -> Event:
    """An event about an attempt; the spool fills in stream and number."""
    ref = assignment.ref
    return Event(
        source="agent",
        stream="",
        n=1,
        type=type(payload).__name__,
        time=0.0,
        job=ref.job,
        package=ref.package,
        attempt=ref.attempt,
        epoch=assignment.epoch,
        data=msgspec.Raw(_encode(payload)),
    )


class Rogue:
    """Forges events of one agent."""

    __slots__ = ("_chance", "_name", "_others", "_spool")

    def __init__(
        self, name: str, spool: Spool, others: Mapping[str, Mapping[AttemptRef, Run]], chance: random.Random
    ) -> None:
        """Take the agent's name and spool, and the attempts of every agent, by name."""
        self._name = name
        self._spool = spool
        self._others = others
        self._chance = chance

    def lie(self) -> None:
        """Put one forged event into the spool, of a kind that is possible now; nonsense always is."""
        lies: list[Callable[[], bool]] = [self._end_anothers, self._end_again, self._decide, self._use_anothers_stream]
        self._chance.shuffle(lies)
        if self._chance.random() < 0.2 or not any(lie() for lie in lies):
            self._talk_nonsense()

    def _end_anothers(self) -> bool:
        """Report the end of another agent's attempt."""
        assignment = self._anothers()
        if assignment is not None:
            self._spool.forge(_event_of(assignment, self._some_end(assignment)))
        return assignment is not None

    def _end_again(self) -> bool:
        """Report another end of an attempt than before."""
        ref = self._some(list(self._spool.ends))
        event = self._spool.end_of(ref) if ref is not None else None
        if ref is None or event is None:
            return False
        failed = b"SUCCESS" not in bytes(event.data)
        end: Payload = AttemptFinished(exit_code=ExitCodeGasw.EXECUTION_FAILED, exit_status=1, reason="signal")
        if failed:
            end = AttemptFinished(exit_code=ExitCodeGasw.SUCCESS, exit_status=0, manifest=manifest_of(ref))
        self._spool.forge(msgspec.structs.replace(event, data=msgspec.Raw(_encode(end))))
        return True

    def _decide(self) -> bool:
        """Report a decision of the service, or the end of another agent."""
        assignment = self._anothers()
        if assignment is None:
            return False
        other = next(name for name, held in self._others.items() if assignment.ref in held)
        payload: Payload = self._chance.choice(
            [CommitGranted(), CancelAccepted(message="no"), PilotEnded(reason="killed")]
        )
        event = _event_of(assignment, payload)
        if isinstance(payload, PilotEnded):
            event = msgspec.structs.replace(event, job=None, package=None, attempt=None, epoch=1, pilot=other)
        elif isinstance(payload, CancelAccepted):
            event = msgspec.structs.replace(event, attempt=None)
        self._spool.forge(event)
        return True

    def _use_anothers_stream(self) -> bool:
        """Send an event in another agent's stream, as its next one; it is sent once."""
        assignment = self._anothers()
        if assignment is None:
            return False
        other = next(name for name, held in self._others.items() if assignment.ref in held)
        event = _event_of(assignment, self._some_end(assignment))
        self._spool.smuggled += (msgspec.structs.replace(event, stream=other, n=self._chance.randint(1, 50)),)
        return True

    def _talk_nonsense(self) -> None:
        kind, data = self._chance.choice(_NONSENSE)
        event = Event(source="agent", stream=self._name, n=1, type=kind, time=0.0, data=msgspec.Raw(data))
        assignment = self._anothers()
        if assignment is not None and self._chance.random() < 0.5:
            event = msgspec.structs.replace(_event_of(assignment, Noted(text="")), type=kind, data=msgspec.Raw(data))
        self._spool.forge(event)

    def _anothers(self) -> Assignment | None:
        """An attempt of another agent."""
        held = [run for name, runs in self._others.items() if name != self._name for run in runs.values()]
        found = self._some(held)
        return found.assignment if found is not None else None

    def _some_end(self, assignment: Assignment) -> Payload:
        manifest = manifest_of(assignment.ref)
        ends: list[Payload] = [
            AttemptFinished(exit_code=ExitCodeGasw.SUCCESS, exit_status=0, manifest=manifest),
            AttemptFinished(exit_code=ExitCodeGasw.EXECUTION_FAILED, exit_status=1, reason="application-error"),
            OutputsStaged(manifest=manifest),
        ]
        return self._chance.choice(ends)

    def _some(self, items: list[Item]) -> Item | None:
        return self._chance.choice(items) if items else None
