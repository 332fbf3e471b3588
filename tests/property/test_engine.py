"""Whatever happens, in whatever order: the engine stays sane, decides nothing twice, and follows from its events alone."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pilotage.engine.past_pilots import ended_pilots
from pilotage.engine.restore import JobSnapshot, holds_in
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import (
    AnyOperation,
    CancelSubmitted,
    Clear,
    Drop,
    ExpandStage,
    Hold,
    Kill,
    Release,
    Replicate,
    Reschedule,
    Restart,
    Restore,
    SubmitAttempt,
    SubmitPilot,
)
from pilotage.model.exchange.reports import Gone, SiteSeen, SubmissionFailed, Submitted
from pilotage.model.jobs.definition import AbortOn
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import HealingSettings, RestartSettings
from pilotage.model.site import Site
from pilotage.service.messages import OperationRequest, Reload, SitesChanged
from tests.kit.decided import check_decisions
from tests.kit.small_engine import Agent, Small, differences
from tests.kit.small_plans import bag, chain, grown, kind, plan, site, stage

GIB = 2**30
MERGE = [("1.1.1", "2.1.1"), ("1.2.1", "2.1.1"), ("1.3.1", "2.1.1"), ("2.1.1", "3.1.1")]
PLANS: list[Callable[[], JobPlan]] = [
    lambda: bag(4),
    lambda: chain(lines=2, stages=3),
    lambda: plan(stage(3), stage(), stage(), edges=MERGE),
    lambda: plan(
        stage(3), None, stage(2, kind("after")), late={2: ["1.1.1", "1.2.1", "1.3.1"]}, waits={3: (2,)}, priority=1
    ),
    lambda: bag(3, kind("mail", side_effects=True)),
    lambda: bag(4, kind(memory_bytes=GIB, category="licence"), limits={"licence": 1}),
    lambda: plan(stage(2), stage(2), early=[("1.1.1", "2.1.1")], edges=[("1.2.1", "2.2.1")], hold=True),
    lambda: plan(stage(3, kind("check", abort_on=AbortOn(exit_code=3))), stage(2, kind("last", final=True))),
    lambda: plan(
        stage(3, kind("check", abort_on=AbortOn(exit_code=3))),
        None,
        stage(1, kind("last", final=True)),
        late={2: ["1.1.1", "1.2.1", "1.3.1"]},
    ),
    lambda: plan(stage(2), stage(1, kind("check", abort_on=AbortOn(exit_code=0))), stage(1, kind("last", final=True))),
]
REASONS = [
    "application-error",
    "platform-failure",
    "preempted",
    "wall-time",
    "out-of-memory",
    "missing-input",
    "looping",
]
OPERATIONS: list[Callable[[str, str], AnyOperation]] = [
    lambda job, package: Kill(job=job, package=package),
    lambda job, package: Hold(job=job, package=package),
    lambda job, package: Release(job=job, package=package),
    lambda job, package: Restart(job=job, package=package),
    lambda job, package: Reschedule(job=job, package=package),
    lambda job, package: Replicate(job=job, package=package),
    lambda job, package: Drop(job=job, stage=int(package.split(".")[0]), line=int(package.split(".")[1])),
    lambda job, package: Restore(job=job, stage=int(package.split(".")[0]), line=int(package.split(".")[1])),
]
JOB_OPERATIONS: list[Callable[[str], AnyOperation]] = [
    lambda job: Kill(job=job),
    lambda job: Hold(job=job),
    lambda job: Release(job=job),
    lambda job: Restart(job=job),
]
SITES = (
    site("a", pilots=2, capacity=Capacity(cores_hundredths=200, memory_bytes=8 * GIB)),
    site("b", capacity=Capacity(cores_hundredths=100, memory_bytes=2 * GIB), wall_seconds=3600.0),
    site("c", mode="bound", job_throttle=1.0, capacity=Capacity(cores_hundredths=100, memory_bytes=4 * GIB)),
)
which = st.integers(0, 1000)  # of those there are, counted round


class Service(RuleBasedStateMachine):
    """A service with three sites and a few small jobs, and everything that can happen to it."""

    sites = SITES
    plans = PLANS
    kind_of_small = Small

    def __init__(self) -> None:
        super().__init__()
        self.small = self.kind_of_small(
            *self.sites,
            flood_packages=2,
            incidents=HealingSettings(failing_attempts_max=5),
            dead_start_seconds_max=60.0,
            restart=RestartSettings(delay_seconds_max=30.0, platform_failures_max=4, preemptions_max=4),
        )
        self.jobs: list[str] = []
        self.submissions: list[SubmitAttempt] = []
        self.started = 0
        self.gone: set[str] = set()

    # --- helpers ---

    def _tidy(self) -> None:
        """Note what must be remembered of the effects, and forget what was said."""
        self.submissions += self.small.take(SubmitAttempt)
        self.small.take(CancelSubmitted)
        self.small.refused.clear()
        for agent in self.small.agents.values():
            agent.unread.clear()

    @property
    def _live(self) -> list[Agent]:
        return [agent for name, agent in self.small.agents.items() if name not in self.gone]

    @property
    def _busy(self) -> list[tuple[Agent, AttemptRef]]:
        return [(agent, ref) for agent in self._live for ref in agent.held]

    def _agent(self, number: int) -> Agent:
        return self._live[number % len(self._live)]

    def _package(self, number: int) -> tuple[str, str]:
        known = list(self.small.engine.state.jobs.by_id)
        job = known[number % len(known)]
        state = self.small.engine.state.jobs.by_id[job]
        return job, state.dotted(number // len(known) % state.count)

    # --- rules ---

    @initialize(kind=st.sampled_from(range(len(PLANS))))
    def begin(self, kind: int) -> None:
        self._submit(kind)

    @precondition(lambda self: len(self.jobs) < 3)
    @rule(kind=st.sampled_from(range(len(PLANS))))
    def submit(self, kind: int) -> None:
        self._submit(kind)

    def _submit(self, kind: int) -> None:
        job = f"job-{len(self.jobs)}"
        made = self.plans[kind % len(self.plans)]()
        self.small.submit(made, job=job, owner="ada" if kind % 2 else "emmy")
        self.jobs.append(job)
        self._tidy()

    @precondition(lambda self: any(isinstance(each, SubmitPilot) for each in self.small.effects))
    @rule(remaining=st.sampled_from([None, 30.0, 4000.0]), backlog=st.sampled_from([0, 0, 2]))
    def start_pilot(self, remaining: float | None, backlog: int) -> None:
        name = next(each.site for each in self.small.effects if isinstance(each, SubmitPilot))
        self.started += 1  # one request may be started twice, as two agents
        self.small.pilot(name, instance=self.started, remaining_seconds=remaining, backlog=backlog)
        self._tidy()

    @precondition(lambda self: self.submissions)
    @rule(number=which)
    def start_bound(self, number: int) -> None:
        self.started += 1
        self.small.bound(self.submissions[number % len(self.submissions)], instance=self.started)
        self._tidy()

    @precondition(lambda self: self._live)
    @rule(number=which)
    def exchange(self, number: int) -> None:
        self._agent(number).exchange()
        self._tidy()

    @precondition(lambda self: self._busy)
    @rule(number=which, reason=st.sampled_from([None, None, *REASONS]), message=st.sampled_from(["no", "never"]))
    def finish(self, number: int, reason: str | None, message: str) -> None:
        agent, ref = self._busy[number % len(self._busy)]
        agent.end(ref, reason=reason, message=message, status=3 if reason == REASONS[0] and number % 2 else None)
        if number % 3:
            agent.exchange()
        self._tidy()

    @precondition(lambda self: self._busy)
    @rule()
    def succeed_all(self) -> None:
        for agent in self._live:
            for ref in list(agent.held):
                agent.end(ref)
            agent.exchange()
        self._tidy()

    @precondition(lambda self: self._busy)
    @rule(number=which)
    def stage_outputs(self, number: int) -> None:
        agent, ref = self._busy[number % len(self._busy)]
        agent.say(payloads.OutputsStaged(manifest=()), ref)
        agent.exchange()
        self._tidy()

    @precondition(lambda self: self._live)
    @rule(number=which)
    def lose_a_reply(self, number: int) -> None:
        agent = self._agent(number)
        before = dict(agent.held), list(agent.unacknowledged)
        self.small.step(agent.message())
        agent.held, agent.unacknowledged = before
        self._tidy()

    @precondition(lambda self: self._live)
    @rule(number=which, reason=st.sampled_from(["idle", "killed", "wall-time", "preempted"]))
    def end_pilot(self, number: int, reason: str) -> None:
        agent = self._agent(number)
        agent.say(payloads.PilotEnded(reason=reason))
        agent.exchange(leaving=reason)
        self._tidy()
        self.gone.add(agent.name)

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0, 61.0, 190.0]), alive=st.booleans())
    def wait(self, seconds: float, alive: bool) -> None:  # noqa: FBT001 # hypothesis names it
        self.small.wait(seconds, *(self._live if alive else ()))
        self._tidy()

    @precondition(lambda self: self.small.engine.state.jobs.by_id)
    @rule(number=which, kind=st.sampled_from(range(len(OPERATIONS))))
    def operate(self, number: int, kind: int) -> None:
        self.small.ask(OPERATIONS[kind](*self._package(number)))
        self._tidy()

    @rule(number=which, kind=st.sampled_from(range(len(JOB_OPERATIONS))))
    def operate_on_a_job(self, number: int, kind: int) -> None:
        self.small.ask(JOB_OPERATIONS[kind](self.jobs[number % len(self.jobs)]))
        self._tidy()

    @rule(number=which, then=st.sampled_from(["kill", "leave", "restart", "restart"]))
    def clear(self, number: int, then: str) -> None:
        """A job is cleared, perhaps after it was killed, and perhaps comes back."""
        job, small = self.jobs[number % len(self.jobs)], self.small
        if then == "kill":
            small.ask(Kill(job=job))
        small.ask(Clear(job=job))
        self._tidy()
        row = small.journal.job(job)
        if then == "restart" and row is not None and job not in small.engine.state.jobs.by_id:
            finals, unfinished = small.journal.finals(row), small.journal.unfinished(row)
            holds = holds_in(row, small.journal.own_events)
            kept = JobSnapshot(row=row, plan=small.plans[job][-1], finals=finals, unfinished=unfinished, holds=holds)
            gone = ended_pilots(small.journal.pilots(after="", limit=1_000_000))
            small.step(Reload(job=kept, gone=gone), OperationRequest(token=9, operation=Restart(job=job)))
            small.answers.clear()
            self._tidy()

    @rule(number=which, answers=st.booleans())
    def see_a_site(self, number: int, answers: bool) -> None:  # noqa: FBT001
        self.small.step(SiteSeen(site="abc"[number % 3], answers=answers))
        self._tidy()

    @precondition(lambda self: self.submissions)
    @rule(number=which, how=st.sampled_from(["submitted", "failed", "gone"]))
    def report(self, number: int, how: str) -> None:
        effect = self.submissions[number % len(self.submissions)]
        if how == "submitted":
            self.small.step(Submitted(site="c", key=effect.key, native_id=str(number)))
        elif how == "failed":
            self.small.step(SubmissionFailed(site="c", key=effect.key, reason="refused"))
        else:
            self.small.step(Gone(site="c", key=effect.key, reason="killed"))
        self._tidy()

    @precondition(lambda self: self.small.engine.state.pilots.requests)
    @rule(number=which, how=st.sampled_from(["submitted", "gone"]))
    def report_a_request(self, number: int, how: str) -> None:
        requests = list(self.small.engine.state.pilots.requests.values())
        request = requests[number % len(requests)]
        if how == "submitted":
            self.small.step(Submitted(site=request.site.name, key=request.key, native_id=str(number)))
        else:
            self.small.step(Gone(site=request.site.name, key=request.key, reason="killed"))
        self._tidy()

    @precondition(lambda self: any(isinstance(each, ExpandStage) for each in self.small.effects))
    @rule(lines=st.integers(0, 3))
    def grow(self, lines: int) -> None:
        effect = self.small.take(ExpandStage)[0]
        before = self.small.plans[effect.job][-1]
        if effect.stage in before.layouts:
            return  # asked for before it was laid out, and answered already
        edges = [(f"1.{line}.1", f"2.{line}.1") for line in range(1, lines + 1)]
        edges += [(f"2.{line}.1", "3.1.1") for line in range(1, lines + 1)]
        self.small.grow(grown(before, late=effect.stage, lines=lines, edges=edges), late=effect.stage, job=effect.job)
        self._tidy()

    @rule()
    def restart_the_service(self) -> None:
        before = self.small.engine.durable_state()
        assert differences(self.small.restarted().engine.durable_state(), before) == []
        self.small.restart()
        self._tidy()

    @rule(missing=st.sampled_from(SITES), seconds=st.sampled_from([0.0, 5.0, 300.0]))
    def restart_the_service_without_a_site_that_comes_back(self, missing: Site, seconds: float) -> None:
        small, before = self.small, self.small.engine.durable_state()
        small.sites = tuple(each for each in self.sites if each.name != missing.name)
        small.core = small.restarted()
        known = small.engine.durable_state()
        assert differences(known, before | {"sites": known["sites"]}) == []
        small.step(SitesChanged(sites=small.sites))
        small.wait(seconds)
        small.sites = self.sites
        small.step(SitesChanged(sites=self.sites))
        self._tidy()

    # --- in the end ---

    def teardown(self) -> None:
        check_decisions(self.small.book)
        state = self.small.engine.durable_state()
        assert differences(self.small.replayed().durable_state(), state) == []
        assert differences(self.small.restarted().engine.durable_state(), state) == []
        self.small.finish(gone=self.gone)
        check_decisions(self.small.book)


TestService = Service.TestCase
TestService.settings = settings(max_examples=60, stateful_step_count=50)


def test_a_pilot_that_missed_its_work_with_side_effects_and_was_lost_is_ended_and_the_work_goes_on() -> None:
    state = Service()
    state.begin(kind=0)
    state.start_pilot(backlog=0, remaining=None)
    state.succeed_all()
    state.submit(kind=4)
    state.lose_a_reply(number=0)
    state.wait(alive=False, seconds=190.0)
    state.teardown()


def test_a_held_job_that_comes_back_is_held_for_the_same_reason_after_a_restart() -> None:
    state = Service()
    state.begin(kind=0)
    state.submit(kind=0)
    state.submit(kind=6)
    state.clear(number=500, then="kill")
    state.clear(number=278, then="restart")
    state.restart_the_service()
    state.teardown()
