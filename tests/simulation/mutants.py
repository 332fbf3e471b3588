"""Bugs planted on purpose, to show that the worlds provoke them and that some checker tells.

Each is a patch of production code for the length of one test: a function of the state, the core, the restore or the
driver is replaced by one that is wrong in the way its name says. Production code has no switch for any of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest

import pilotage.engine.engine as engine_module
from pilotage.book.codec import Checked
from pilotage.book.rows.rows import StreamRow
from pilotage.book.rows.streams import ReceivedNumbers
from pilotage.engine import engine, explain, restore
from pilotage.engine.decision_log import ENGINE_STREAM, DecisionLog
from pilotage.engine.decisions import attempts, completion, lost_pilots
from pilotage.engine.decisions import lost_pilots as on_pilots
from pilotage.engine.engine_state import EngineState
from pilotage.engine.folds import on_attempts, on_packages
from pilotage.engine.inbound import exchanges, operations
from pilotage.engine.past_pilots import EndedPilots
from pilotage.engine.retry import policy
from pilotage.engine.state import job_queries
from pilotage.engine.state import job_queries as job_queries_module
from pilotage.engine.state.jobs import ActivePackage, JobState, LateStageState
from pilotage.engine.state.sites import AttemptState, PilotState
from pilotage.engine.transitions import readiness
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import Exchange
from pilotage.model.states import ExitCodeGasw
from pilotage.service import core as core_module
from pilotage.service.core import Core
from pilotage.service.messages import Outbox
from pilotage.simulator.trials.checked_world import CheckedWorld
from pilotage.simulator.world.journal import SimulatedJournal
from pilotage.simulator.world.service_process import ServiceProcess

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One planted bug, who has to tell of it, and the seed of a small world in which it shows."""

    name: str
    plant: Plant
    by: tuple[str, ...]  # checkers; `sanity` is the engine's own look at itself, `journal` what cannot be written
    first_seed: int


MUTANTS: list[Mutant] = []


def mutant(*, first_seed: int, by: str) -> Callable[[Plant], Plant]:
    """Put a bug on the list; its name is its function's."""

    def put(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(name=plant.__name__, plant=plant, by=tuple(by.split()), first_seed=first_seed))
        return plant

    return put


def graft(patch: Patch, original: Any, mutated: Any) -> None:
    """Put one function in another's place wherever production code knows it: by its name, or in a table."""
    found = 0
    for module in [each for name, each in sys.modules.items() if name.startswith("pilotage.")]:
        for name in [name for name, value in vars(module).items() if value is original]:
            patch.setattr(module, name, mutated)
            found += 1
    for table in (engine.FOLDS.job, engine.FOLDS.other, engine.FOLDS.package):
        for kind in [kind for kind, fold in table.items() if fold is original]:
            patch.setitem(table, kind, mutated)
    decisions = tuple(mutated if each is original else each for each in engine.DECISIONS)
    patch.setattr(engine, "DECISIONS", decisions)
    patch.setattr(engine_module, "DECISIONS", decisions)
    assert found, f"{original} is nowhere to be found"


def whoever_it_is(state: EngineState, _: str, one: Checked, *, site: str) -> int | None:
    """The package that something is said of, whoever says it."""
    del site
    job = state.jobs.by_id.get(one.event.job or "")
    return job.number(one.place) if job is not None and one.place is not None else None


# --- who is believed --------------------------------------------------------------------------------------------------


@mutant(first_seed=28, by="leases")
def whoever_serves_a_bound_attempt_gets_it(patch: Patch) -> None:
    """Fencing dropped: a batch job that was started twice runs its attempt twice."""

    def lease(state: EngineState, pilot: PilotState, ref: Any, node: str) -> None:
        found = job_queries.find_attempt(state.jobs, ref)
        if found is not None and not found.lost and found.pilot != pilot.name:
            if found.pilot in state.pilots.by_name:
                state.pilots.by_name[found.pilot].give_back(ref)
            if found.leased:
                found.site.profile.ends.left(found.began_at)
            found.leased, found.pilot = False, ""
            started = payloads.AttemptStarted(pilot=pilot.name, node=node or None)
            job = state.jobs.by_id[ref.job]
            state.log.write(started, job=job, number=found.number, attempt=ref.attempt, epoch=found.epoch)

    graft(patch, exchanges._lease, lease)


@mutant(first_seed=144, by="grants")
def a_success_of_an_old_epoch_is_granted(patch: Patch) -> None:
    """The epoch ignored: whatever succeeds is a candidate, also what a kill and a restart left behind."""
    folded = on_attempts.on_attempt_finished

    def on_attempt_finished(state: EngineState, job: JobState, number: int, event: Event, data: Any) -> None:
        work = job.work.get(number)
        known = work is not None and event.attempt in work.attempts
        folded(state, job, number, event, data)
        if not known and data.exit_code == ExitCodeGasw.SUCCESS and not job.is_final(number):
            job.work_of(number).candidates += (event.attempt or 0,)
            state.pending.to_commit.append((job, number))
            readiness.reconsider(state, job, number)

    graft(patch, folded, on_attempt_finished)


@mutant(first_seed=8, by="grants")
def two_attempts_of_one_epoch_are_granted(patch: Patch) -> None:
    """What succeeds after another attempt was granted is granted as well."""
    folded, granted = on_attempts.on_attempt_finished, completion.grant_succeeded
    late: dict[int, list[tuple[JobState, int, int]]] = {}  # by engine

    def on_attempt_finished(state: EngineState, job: JobState, number: int, event: Event, data: Any) -> None:
        if data.exit_code == ExitCodeGasw.SUCCESS and job.granted[number] and event.epoch == job.epoch_of(number):
            late.setdefault(id(state), []).append((job, number, event.attempt or 0))
        folded(state, job, number, event, data)

    def grant(state: EngineState) -> None:
        granted(state)
        for job, number, attempt in late.pop(id(state), ()):
            state.log.write(
                payloads.CommitGranted(), job=job, number=number, attempt=attempt, epoch=job.epoch_of(number)
            )

    graft(patch, folded, on_attempt_finished)
    graft(patch, granted, grant)


@mutant(first_seed=175, by="restoring aborts")
def a_duplicate_counts_twice(patch: Patch) -> None:
    """An end that is told again is one more failure."""
    folded = on_attempts.on_attempt_finished

    class Forgetful(ReceivedNumbers):
        def add(self, n: int) -> bool:
            super().add(n)
            return True

    def on_attempt_finished(state: EngineState, job: JobState, number: int, event: Event, data: Any) -> None:
        work = job.work.get(number)
        before = work.failures.get(event.attempt or 0) if work is not None else None
        folded(state, job, number, event, data)
        if work is not None and before is not None:
            again = 1000 * len(work.failures) + before.attempt
            work.fail(again, msgspec.structs.replace(before, attempt=again))
            state.pending.to_judge[job, number] = None

    patch.setattr(core_module, "ReceivedNumbers", Forgetful)
    graft(patch, exchanges.may_report, whoever_it_is)  # else an end that is told again is noted, and no more
    graft(patch, folded, on_attempt_finished)


@mutant(first_seed=8, by="restoring successes")
def a_late_success_is_forgotten(patch: Patch) -> None:
    """What was suspected or lost and succeeds all the same counts as nothing."""
    folded = on_attempts._succeed

    def succeed(state: EngineState, job: JobState, work: ActivePackage, attempt: AttemptState) -> None:
        if attempt.trusted:
            folded(state, job, work, attempt)

    graft(patch, folded, succeed)


@mutant(first_seed=64, by="rooms")
def what_is_cancelled_runs_on(patch: Patch) -> None:
    """Nobody tells a pilot that it holds what it should not."""
    graft(patch, exchanges.unwanted, lambda pilot, exchange: [])


@mutant(first_seed=137, by="finishing")
def a_lease_never_expires(patch: Patch) -> None:
    """A pilot that is silent is waited for until it speaks."""
    graft(patch, lost_pilots.check_lease, lambda state, name: None)


@mutant(first_seed=107, by="finishing")
def what_a_dead_pilot_held_is_not_lost(patch: Patch) -> None:
    """The pilot ends, and its attempts are waited for."""
    graft(patch, on_pilots.end_lost_pilots, lambda state: state.pending.lost_pilots.clear())


# --- what is durable --------------------------------------------------------------------------------------------------


@mutant(first_seed=106, by="acknowledged leases")
def replies_and_effects_leave_before_the_write(patch: Patch) -> None:
    """The torn tail's decision is lost: it was acted upon before it was durable."""
    syncs = ServiceProcess._sync_soon

    def sync_soon(self: ServiceProcess) -> None:
        syncs(self)
        self._release(len(self._unreleased))

    patch.setattr(ServiceProcess, "_sync_soon", sync_soon)


@mutant(first_seed=106, by="acknowledged")
def events_are_acknowledged_and_not_written(patch: Patch) -> None:
    """Nobody needs phases, so they are heard, acknowledged and left out."""
    heard = Core._hear

    def hear(self: Core, exchange: Exchange, outbox: Outbox) -> bool:
        wanted = heard(self, exchange, outbox)
        outbox.events = [one for one in outbox.events if not isinstance(one.data, payloads.PhaseEntered)]
        return wanted

    patch.setattr(Core, "_hear", hear)


@mutant(first_seed=106, by="restoring")
def a_restart_forgets_grants(patch: Patch) -> None:
    """What was done is done, and granted, again after a crash."""
    restored = restore._restore_final

    def restore_final(state: EngineState, job: JobState, final: Any, gone: EndedPilots) -> None:
        if not final.granted:
            restored(state, job, final, gone)

    graft(patch, restored, restore_final)


@mutant(first_seed=44, by="epochs")
def a_restart_counts_attempts_anew_and_nobody_compares(patch: Patch) -> None:
    """The number of an attempt is used again after a crash."""
    restored = restore._restore_package
    patch.setattr(CheckedWorld, "_compare", lambda *_: None)

    def restore_package(state: EngineState, job: JobState, number: int, facts: Any, gone: EndedPilots) -> None:
        restored(state, job, number, facts, gone)
        job.last_attempt[number] = max(job.work[number].attempts, default=0) if number in job.work else 0

    graft(patch, restored, restore_package)


@mutant(first_seed=28, by="grants epochs creations")
def a_restart_forgets_grants_and_nobody_compares(patch: Patch) -> None:
    """The same, and the checkers have to do without the comparison of what was restored with what was folded."""
    patch.setattr(CheckedWorld, "_compare", lambda *_: None)
    a_restart_forgets_grants(patch)


@mutant(first_seed=43, by="finishing")
def a_restart_asks_for_no_submission_again(patch: Patch) -> None:
    """An effect that was lost with the process is never carried out."""
    patch.setattr(restore, "submit", lambda *_, **__: None)
    patch.setattr(restore, "submit_pilot", lambda *_: None)


# --- attempts ---------------------------------------------------------------------------------------------------------


@mutant(first_seed=2, by="sanity epochs")
def what_follows_a_suspect_has_its_number(patch: Patch) -> None:
    """A new attempt shares its number, and its files, with the one that was suspected."""
    created = attempts.create

    def create(state: EngineState, job: JobState, number: int, *rest: Any, **named: Any) -> None:
        work = job.work.get(number)
        if work is not None and any(each.suspect for each in work.attempts.values()):
            job.last_attempt[number] -= 1
        created(state, job, number, *rest, **named)

    graft(patch, created, create)


@mutant(first_seed=42, by="leases")
def side_effects_happen_twice(patch: Patch) -> None:
    """What acts on the outside is tried again as soon as it is suspected, as everything else."""
    graft(patch, job_queries_module.may_act, lambda job, work: False)


@mutant(first_seed=72, by="retries")
def retries_have_no_cap(patch: Patch) -> None:
    """What fails is tried again for ever."""
    patch.setattr(policy._History, "_over_cap", lambda *_: None)
    patch.setattr(policy._History, "_over_budget", lambda *_: None)


@mutant(first_seed=3, by="creations")
def a_held_job_is_worked_on(patch: Patch) -> None:
    """A hold is written down and has no effect."""
    patch.setattr(JobState, "open", property(lambda self: self.accepted and not (self.cancelled or self.aborted)))


@mutant(first_seed=62, by="creations")
def a_cancelled_job_is_worked_on(patch: Patch) -> None:
    """A kill ends what runs, and the rest is started."""
    patch.setattr(JobState, "open", property(lambda self: self.accepted and not (self.held or self.aborted)))


@mutant(first_seed=135, by="grants")
def a_cancel_and_a_grant_both_stand(patch: Patch) -> None:
    """A kill of a job stops what is not started yet, and what succeeds afterwards is granted."""
    killed, granted = operations._kill, completion.grant_succeeded

    def kill(state: EngineState, job: JobState, operation: Any) -> None:
        if operation.package:
            killed(state, job, operation)
        else:
            state.log.write(payloads.CancelAccepted(message=operation.message), job=job, epoch=job.epoch)

    def grant(state: EngineState) -> None:
        jobs = {job for job, _ in state.pending.to_commit if job.cancelled}
        for job in jobs:
            job.cancelled = False
        granted(state)
        for job in jobs:
            job.cancelled = True

    graft(patch, killed, kill)
    graft(patch, granted, grant)


# --- inputs -----------------------------------------------------------------------------------------------------------


@mutant(first_seed=106, by="sanity reads")
def a_success_is_enough_for_consumers(patch: Patch) -> None:
    """Readiness by the end of an attempt, whichever it was, instead of by the grant."""
    folded = on_attempts.on_attempt_finished

    def on_attempt_finished(state: EngineState, job: JobState, number: int, event: Event, data: Any) -> None:
        folded(state, job, number, event, data)
        if data.exit_code == ExitCodeGasw.SUCCESS:
            readiness.satisfy(state, job, number)

    graft(patch, folded, on_attempt_finished)


@mutant(first_seed=46, by="sanity")
def what_is_dropped_is_waited_for(patch: Patch) -> None:
    """A line is left out, and its consumers never start."""

    def on_dropped(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Dropped) -> None:
        job.drop_revision = max(job.drop_revision, data.operation)
        job.work_of(number).dropped = data.operation
        readiness.reconsider(state, job, number)

    graft(patch, on_packages.on_dropped, on_dropped)


@mutant(first_seed=130, by="reads")
def what_is_dropped_is_read(patch: Patch) -> None:
    """An assignment lists the files of a line that was left out when its attempt was created."""
    assigned = Core._assignment

    def assignment(self: Core, attempt: AttemptState) -> Any:
        revision, attempt.drop_revision = attempt.drop_revision, -1
        told = assigned(self, attempt)
        attempt.drop_revision = revision
        return msgspec.structs.replace(told, drop_revision=revision)

    patch.setattr(Core, "_assignment", assignment)


@mutant(first_seed=2, by="reads")
def an_attempt_pins_no_drop_revision(patch: Patch) -> None:
    """What was dropped when an attempt was created depends on when somebody asks."""
    writes = DecisionLog.write_of

    def write_of(self: DecisionLog, data: Any, *about: Any) -> None:
        if isinstance(data, payloads.AttemptCreated):
            data = msgspec.structs.replace(data, drop_revision=0)
        writes(self, data, *about)

    patch.setattr(DecisionLog, "write_of", write_of)


@mutant(first_seed=51, by="restores")
def a_line_comes_back_under_its_consumers(patch: Patch) -> None:
    """A restore is accepted after a consumer started without what is restored."""

    graft(patch, operations.started_consumers, lambda job, number, own: iter(()))


@mutant(first_seed=62, by="reads")
def a_late_stage_is_laid_out_too_early(patch: Patch) -> None:
    """Off by one: the last producer is not waited for."""
    counted = readiness._late

    def late(job: JobState, about: Any) -> LateStageState:
        state = counted(job, about)
        state.pending = max(0, state.pending - 1)
        return state

    graft(patch, counted, late)


@mutant(first_seed=137, by="finishing")
def consumers_of_what_failed_wait_for_ever(patch: Patch) -> None:
    """Nobody gives up what waits for a package that will make nothing."""
    graft(patch, completion.abort_consumers, lambda state: state.pending.to_abort_consumers.clear())


@mutant(first_seed=106, by="explaining waiting")
def nothing_says_why_a_package_waits(patch: Patch) -> None:
    """Whoever asks is told where a package stands, and no reason."""
    told = explain.explain
    graft(patch, told, lambda *about: msgspec.structs.replace(told(*about), reasons=()))


# --- who may write ----------------------------------------------------------------------------------------------------


@mutant(first_seed=8, by="restoring journal")
def numbers_of_decisions_collide_with_loaded_ones(patch: Patch) -> None:
    """An engine that takes over counts on from where the stream has its first hole, and not above its highest number."""

    def next_number(streams: Iterable[StreamRow]) -> int:
        return max((row.watermark for row in streams if row.stream == ENGINE_STREAM), default=0) + 1

    graft(patch, restore.next_number, next_number)


@mutant(first_seed=4, by="journal")
def a_service_that_lost_its_lock_writes_on(patch: Patch) -> None:
    """The fence dropped: what a service decided that another has taken over from goes into the book after all."""

    def append_late(journal: SimulatedJournal, events: Sequence[Checked], now: float, *, generation: int) -> None:
        journal.append(events, now)

    patch.setattr(SimulatedJournal, "append_late", append_late)
