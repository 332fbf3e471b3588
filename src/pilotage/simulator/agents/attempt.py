"""One attempt inside an agent: its phases, their times, and the report of its end.

Its whole course is known when it starts, so that it costs one entry of the schedule. A later disturbance (a cancel, the end
of its pilot, a pause) shifts or cuts its times.
"""

from __future__ import annotations

import math
from binascii import hexlify

import msgspec

from pilotage.model.events.payloads import AttemptFinished, OutputFile, PhaseTimes
from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.model.states import PILOT_WALL_OVER, ExitCodeGasw, Phase, exit_code_for
from pilotage.model.texts import changes_often
from pilotage.simulator.world.behaviour import AttemptOutcome

OUTPUT_NAME = "out"
BLACK_HOLE_SECONDS = 0.5  # how soon an attempt fails in a black hole


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt that failed for a reason is reported."""

    exit_status: int | None = None
    signal: int | None = None
    message: str = ""
    reason: str = ""  # the reported reason; empty: its own


CANCELLED = ""  # the reason of an attempt stopped by the service
WITH_PILOT = "wall-time of its pilot"  # of an attempt that ran until the end of its pilot

ENDINGS: dict[str, Ending] = {
    CANCELLED: Ending(signal=15, message="cancelled"),
    "application-error": Ending(exit_status=1, message="the application failed"),
    "command-not-found": Ending(exit_status=127, message="command not found"),
    "credential-expired": Ending(message="the token has expired"),
    "disk-full": Ending(message="no space left on device"),
    "failure-pattern": Ending(exit_status=0, message="the log says that it failed"),
    "input-checksum": Ending(message="an input is not what it should be"),
    "looping": Ending(signal=9, message="no progress"),
    "missing-input": Ending(message="an input is not there"),
    "missing-output": Ending(message="an output was not made"),
    "out-of-memory": Ending(signal=9, message="killed: out of memory"),
    "platform-failure": Ending(message="the node failed"),
    "preempted": Ending(signal=15, message="preempted"),
    "segmentation-fault": Ending(signal=11, message="segmentation fault"),
    "signal": Ending(signal=6, message="killed by a signal"),
    "wall-time": Ending(signal=15, message="killed: its wall time is over"),
    WITH_PILOT: Ending(signal=15, message=PILOT_WALL_OVER, reason="wall-time"),
}

_encode = msgspec.json.Encoder().encode


def _around_gaps() -> list[bytes]:
    """The report of a success with one phase, as fixed parts around the variable ones."""
    one = AttemptFinished(
        exit_code=ExitCodeGasw.SUCCESS,
        exit_status=0,
        node="<node>",
        phases=(PhaseTimes(phase="application", started_at=111.5, seconds=222.5),),
        manifest=(OutputFile(name=OUTPUT_NAME, size_bytes=333, sha256="4" * 64),),
        peak_memory_bytes=555,
    )
    found, left = [], _encode(one)
    for filled in (b'"<node>"', b"111.5", b"222.5", b"333", b"4" * 64, b"555"):
        before, _, left = left.partition(filled)
        found.append(before)
    return [*found, left]


_NODE, _BEGAN, _SECONDS, _SIZE, _SHA256, _MEMORY, _LAST = _around_gaps()


@changes_often
class Run(msgspec.Struct, eq=False, gc=False):
    """An attempt held by an agent: waiting for room until `started_at` is set, then running."""

    assignment: Assignment
    started_at: float = -1.0
    inputs_at: float = 0.0
    application_at: float = 0.0
    outputs_at: float = 0.0
    ends_at: float = 0.0
    reason: str | None = None  # why it will fail; None: it will succeed
    exit_status: int = 0
    memory_bytes: int = 0
    quiet_until: float = math.inf  # no phase is long enough to be reported before this
    stopped: bool = False  # nothing more will come of it

    @property
    def running(self) -> bool:
        """Whether it has started."""
        return self.started_at >= 0.0

    def start(self, outcome: AttemptOutcome, *, now: float, speed: float, memory_limit_bytes: int) -> None:
        """Plan its course: the drawn outcome, unless it exceeds its memory or time limit."""
        demand = self.assignment.demand
        work_seconds = outcome.application_seconds / speed
        self.started_at = self.quiet_until = now
        self.memory_bytes = outcome.memory_bytes
        if outcome.reason:
            self.reason, self.exit_status = outcome.reason, outcome.exit_status
            work_seconds *= outcome.fails_after
        if 0 < memory_limit_bytes < outcome.memory_bytes:
            self.reason, self.memory_bytes = "out-of-memory", memory_limit_bytes
            work_seconds *= 0.5
        self.inputs_at = now + outcome.setup_seconds
        self.application_at = self.inputs_at + outcome.inputs_seconds
        self.outputs_at = self.application_at + work_seconds
        self.ends_at = self.outputs_at + (outcome.outputs_seconds if self.reason is None else 0.0)
        if demand.wall_seconds and self.ends_at > now + demand.wall_seconds:
            self.cut("wall-time", at=now + demand.wall_seconds)

    def miss_input(self) -> None:
        """One of its inputs is missing: it ends as soon as that is known."""
        self.cut("missing-input", at=self.application_at)

    def find_no_space(self) -> bool:
        """Its disk is full when it stages; False if it never stages."""
        if self.reason is not None:
            return False
        self.reason = "disk-full"
        return True

    def fail_in_black_hole(self, reason: str) -> None:
        """It fails at once, like every attempt on this node."""
        self.cut(reason, at=min(self.ends_at, self.started_at + BLACK_HOLE_SECONDS))

    def cut(self, reason: str, *, at: float) -> None:
        """Let it fail at a time for a reason, whatever its outcome would have been."""
        self.reason, self.ends_at = reason, at
        self.exit_status = 0

    def postpone(self, *, now: float, seconds: float) -> None:
        """Delay everything that is still to come."""
        if self.inputs_at > now:
            self.inputs_at += seconds
        if self.application_at > now:
            self.application_at += seconds
        if self.outputs_at > now:
            self.outputs_at += seconds
        self.ends_at += seconds
        self.quiet_until += seconds

    def long_phase(self, *, now: float, interval_seconds: float) -> tuple[Phase, float] | None:
        """Its phase and when that began, once for each phase longer than an interval."""
        phase: Phase
        if now < self.inputs_at:
            phase, begins_at, ends_at = "setup", self.started_at, self.inputs_at
        elif now < self.application_at:
            phase, begins_at, ends_at = "inputs", self.inputs_at, self.application_at
        elif now < self.outputs_at:
            phase, begins_at, ends_at = "application", self.application_at, self.outputs_at
        else:
            phase, begins_at, ends_at = "outputs", self.outputs_at, self.ends_at
        if now < begins_at + interval_seconds:
            self.quiet_until = begins_at + interval_seconds
            return None
        self.quiet_until = ends_at + interval_seconds
        return phase, begins_at

    def encoded_end(self, *, now: float, skew_seconds: float, node: str, node_text: bytes) -> bytes:
        """The encoded report of its end, in the agent's clock; `node_text` is the name of the node in JSON."""
        began_at = self.started_at
        if self.reason is None and began_at == self.application_at < self.outputs_at == now and not skew_seconds:
            # The usual case without faults. Filling in the gaps takes a quarter of the time.
            content, digest = _content_of(self.assignment.ref)
            return b"".join((
                _NODE, node_text, _BEGAN, _encode(began_at), _SECONDS, _encode(now - began_at), _SIZE,
                _encode(len(content)), _SHA256, digest, _MEMORY, _encode(self.memory_bytes), _LAST,
            ))  # fmt: skip
        return _encode(self.finish(now=now, skew_seconds=skew_seconds, node=node))

    def finish(self, *, now: float, skew_seconds: float, node: str) -> AttemptFinished:
        """The report of its end, as a value."""
        phases = self._phases(now, skew_seconds) if self.started_at >= 0.0 else ()
        if self.reason is None:
            return AttemptFinished(
                exit_code=ExitCodeGasw.SUCCESS,
                exit_status=0,
                node=node,
                phases=phases,
                manifest=manifest_of(self.assignment.ref),
                peak_memory_bytes=self.memory_bytes,
            )
        ending = ENDINGS[self.reason]
        own_status = self.exit_status if self.reason == "application-error" else 0
        reason = ending.reason or self.reason
        return AttemptFinished(
            exit_code=exit_code_for(reason or "cancelled", phase=phases[-1].phase if phases else ""),
            exit_message=ending.message,
            reason=reason or None,
            exit_status=own_status or ending.exit_status,
            signal=ending.signal,
            node=node,
            phases=phases,
            peak_memory_bytes=self.memory_bytes,
        )

    def _phases(self, now: float, skew_seconds: float) -> tuple[PhaseTimes, ...]:
        """The phases with a duration."""
        begins_at = self.started_at
        phases: tuple[PhaseTimes, ...] = ()
        phase: Phase
        for phase, until in (
            ("setup", self.inputs_at),
            ("inputs", self.application_at),
            ("application", self.outputs_at),
            ("outputs", now),
        ):
            if until > begins_at and now > begins_at:
                started_at = max(0.0, begins_at + skew_seconds)
                phases += (PhaseTimes(phase=phase, started_at=started_at, seconds=min(until, now) - begins_at),)
            begins_at = until
        return phases


def manifest_of(ref: AttemptRef) -> tuple[OutputFile, ...]:
    """The staged files of an attempt, with a content that no other attempt of its job has."""
    content, digest = _content_of(ref)
    return (OutputFile(name=OUTPUT_NAME, size_bytes=len(content), sha256=digest.decode()),)


def _content_of(ref: AttemptRef) -> tuple[bytes, bytes]:
    """The content of the one file of an attempt, and a checksum of the right form, as unique as a real one."""
    content = f"{ref.package}.{ref.attempt}".encode()
    digest = hexlify(content).rjust(64, b"0")
    return content, digest if len(digest) == 64 else digest[-64:]
