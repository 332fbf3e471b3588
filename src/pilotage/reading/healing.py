"""What healing saw in a job, what it drew, and what it did about it, as the book says."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.book.query import parse
from pilotage.book.rows.healing import JobHealing, read_healing
from pilotage.book.rows.rows import EventRow, JobRow
from pilotage.model.answers import HealedStep, HealingDecision, HealingHistory, SeenIncident
from pilotage.model.events.healing_payloads import HealingDecided, Incident
from pilotage.model.events.payloads import AttemptLost, ReplicaWanted
from pilotage.model.settings.engine import Healing, HealingSettings
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import Journal
from pilotage.reading.packages import ShownPackage
from pilotage.reading.view_builders import stopped_activities

_EVENTS_AT_ONCE = 1000
_DONE_TO_IT = parse("type in (ReplicaWanted, AttemptLost)")

_decided = msgspec.json.Decoder(HealingDecided).decode
_wanted = msgspec.json.Decoder(ReplicaWanted).decode
_lost = msgspec.json.Decoder(AttemptLost).decode


def healing_history(
    journal: Journal, job: JobRow, *, healing: Healing, settings: HealingSettings, before: int, limit: int
) -> HealingHistory:
    """The last decisions about a job, the newest last; only those before a position, unless that is 0."""
    decided = [
        row
        for row in journal.own_events(job)
        if row.type == HealingDecided.__name__ and (not before or row.position < before)
    ]
    shown, known = decided[-limit:], read_healing(job.healing)
    answer = HealingHistory(
        job=job.job,
        healing=healing,
        decisions=tuple(map(_decision, shown)),
        before=shown[0].position if shown else 0,
        more=len(shown) < len(decided),
        waste_max=settings.waste_max,
        stopped=tuple(stopped_activities(job)),
        why=_why_nothing(job, known, healing=healing, settings=settings) if not decided and not before else "",
    )
    if known is None:
        return answer
    learned = known.learned
    return msgspec.structs.replace(
        answer,
        activities=learned.activities,
        learned_at=known.learned_at,
        slot_seconds=learned.slot_seconds,
        healing_seconds=learned.healing_seconds,
        waste=learned.healing_seconds / learned.slot_seconds if learned.slot_seconds else None,
    )


def shares_of(incidents: Sequence[Incident]) -> list[float]:
    """The probability of each incident to be drawn: its degree by that of all that need a treatment."""
    # vip-execution-service, section 3: "according to their probability"
    slices = [each.degree if each.needs_treatment else 0.0 for each in incidents]
    wheel = sum(slices)
    return [each / wheel if wheel else 0.0 for each in slices]


def _decision(row: EventRow) -> HealingDecision:
    data = _decided(row.data)
    seen = zip(data.incidents, shares_of(data.incidents), strict=True)
    return HealingDecision(
        decision=row.n,
        at=row.time,
        incidents=tuple(
            SeenIncident(kind=each.kind, subject=each.subject, degree=each.degree, level=each.level, share=share)
            for each, share in seen
        ),
        drawn=data.drawn,
        instead=data.instead,
        confidence=data.confidence,
        treated=data.treated,
        more=data.more,
        message=data.message,
    )


def _why_nothing(job: JobRow, known: JobHealing | None, *, healing: Healing, settings: HealingSettings) -> str:
    if job.definition is None:
        return "another scheduler runs this job, and only jobs that pilotage runs are healed"
    if known is not None:
        return "no incident was found that needs a treatment"
    if healing == "off":
        return "healing is off in the settings of this service (engine.healing)"
    bounds = (
        f"incidents are looked for every {settings.cycle_seconds:g} s, and the times of an activity count"
        f" from {settings.finished_min:,} finished packages on"
    )
    so_far = "nothing was found before its end" if job.state in FINAL_NAMES else "nothing was found yet"
    return f"{so_far}: {bounds}"


def healed_steps(journal: Journal, package: ShownPackage) -> tuple[HealedStep, ...]:
    """What healing did to a package: the attempts that it wanted beside others, and those that it gave up."""
    facts = package.facts
    if facts is None:
        return ()
    attempts = facts.attempts.values()
    if not facts.replicas and not any(each.replica or each.lost_reason == "healed" for each in attempts):
        return ()
    steps: list[HealedStep] = []
    after, more = 0, True
    while more:
        page = journal.find_events(
            _DONE_TO_IT, after=after, limit=_EVENTS_AT_ONCE, job=package.job, place=package.place
        )
        steps += [step for found in page.items if (step := _step(found.row)) is not None]
        more = page.more
        after = page.scanned_to if page.scanned_to is not None else after
    return tuple(steps)


def _step(row: EventRow) -> HealedStep | None:
    if row.type == ReplicaWanted.__name__:
        wanted = _wanted(row.data)
        return HealedStep(decision=wanted.decision, at=row.time) if wanted.cause == "healing" else None
    lost = _lost(row.data)
    if lost.reason != "healed":
        return None
    return HealedStep(decision=lost.decision, at=row.time, attempt=row.attempt, message=lost.message)
