"""Whatever gets lost, comes late, is full, or dies: what has one key is never started twice, and every end is told."""

from __future__ import annotations

from collections.abc import Collection

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pilotage.agent.batch import BatchError, Unknown
from pilotage.agent.batch.pilot_job import PilotJobTemplate
from pilotage.agent.batch.submitter import PATIENCE_SECONDS, SETTLE_SECONDS, Submitter
from tests.unit.agent.test_batch_submitter import PlainDialect, PlainSystem

KEYS = 12
LATE_SECONDS = SETTLE_SECONDS - 1.0


class SubmitterHistory(RuleBasedStateMachine):
    """A desk, the batch system behind it, and an engine that asks again for what it heard nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.system = PlainSystem()
        self.noted: list[str] = []
        self.late: dict[str, tuple[float, list[str]]] = {}  # what was taken and does not show yet: until when, and what
        self.begun: set[str] = set()  # keys of everything that was ever taken
        self.answered: set[str] = set()  # what the engine was told that it is there
        self.told: set[str] = set()  # what it was told that it has ended
        self.ended: set[str] = set()
        self.submitter = self.new_desk()

    def new_desk(self) -> Submitter:
        job_template = PilotJobTemplate(site="lyon", folder="/far", agent="/far/agent.pyz", server="https://home")

        def note(keys: Collection[str]) -> None:
            self.noted[:] = keys

        return Submitter(
            PlainDialect("pilotage"),
            self.system.run,
            lambda: job_template,
            clock=lambda: self.system.now,
            unsure=list(self.noted),
            note=note,
        )

    @rule(
        first=st.integers(1, KEYS),
        count=st.integers(1, KEYS),
        fate=st.sampled_from(["well", "well", "no answer", "lost", "late", "down"]),
        room=st.integers(0, 2 * KEYS),
    )
    def submit(self, first: int, count: int, fate: str, room: int) -> None:
        """The engine asks for some that it heard nothing of."""
        keys = [f"lyon-{number}" for number in range(first, min(first + count, KEYS + 1))]
        wanted = []
        for key in keys:
            if key in self.answered or key in self.told:
                break
            wanted.append(key)
        if not wanted:
            return
        before = set(self.system.jobs)
        self.system.room = room
        self.system.up = fate != "down"
        self.system.answers = fate not in ("no answer", "lost", "late")
        self.system.takes = fate != "lost"
        hidden = {key: what for key, (_, what) in self.late.items()}
        try:
            native_ids = self.submitter.submit_pilots(wanted[0], len(wanted))
        except BatchError:
            native_ids = []
        self.system.up = self.system.answers = self.system.takes = True
        new = self.system.jobs.keys() - before
        assert not new & self.begun, "it was started twice"
        assert not new & hidden.keys()
        self.begun |= new
        if fate == "late":
            until = self.system.now + LATE_SECONDS
            self.late.update((key, (until, self.system.jobs.pop(key))) for key in new)
        self.answered.update(wanted[: len(native_ids)])
        assert self.answered <= self.begun, "it was said to be there, and is not"

    @rule(seconds=st.sampled_from([0.1, 3.0, LATE_SECONDS, SETTLE_SECONDS + 1.0, PATIENCE_SECONDS + 1.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, and what came late shows itself."""
        self.system.now += seconds
        for key in [key for key, (until, _) in self.late.items() if until <= self.system.now]:
            self.system.jobs[key] = self.late.pop(key)[1]

    @precondition(lambda self: self.system.jobs)
    @rule(data=st.data(), forgotten=st.booleans())
    def end(self, data: st.DataObject, *, forgotten: bool) -> None:
        """Something ends; a system may forget at once what it has answered for, and keep it in its history or not."""
        key = data.draw(st.sampled_from(sorted(self.system.jobs)))
        self.ended.add(key)
        self.system.jobs[key][1] = "ended:wall-time"
        if forgotten and key in self.answered:
            self.system.past[key] = self.system.jobs.pop(key)

    @rule()
    def restart(self) -> None:
        """The process of the desk dies, and another comes."""
        self.submitter = self.new_desk()

    @rule(fate=st.sampled_from(["well", "well", "down"]))
    def look(self, fate: str) -> None:
        """What is there is looked at."""
        self.system.up = fate != "down"
        try:
            listed = self.submitter.listing(sorted(self.answered - self.told))
        except Unknown:
            return
        finally:
            self.system.up = True
        over = {key for key, each in listed.items() if each.ended}
        assert over <= self.ended, "it was said to have ended, and has not"
        self.told |= over
        assert self.ended & self.system.jobs.keys() <= self.told, "an end was not told"
        self.answered.update(key for key, each in listed.items() if not each.ended and key in self.system.jobs)

    @invariant()
    def each_is_one(self) -> None:
        """Nothing is there twice."""
        assert not self.late.keys() & self.system.jobs.keys()


TestDesk = SubmitterHistory.TestCase
