"""Which files an agent may read (those of attempts at its site), and which logs it may upload (those of its own)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pilotage.engine.engine import Engine
from pilotage.engine.state.jobs import JobState
from pilotage.model.errors import PilotageError
from pilotage.model.events.events import parse_dotted
from pilotage.model.exchange.exchange import AgentMessage, Assignment, AttemptRef, Exchange, InputSource, LogText
from pilotage.ports import Journal
from pilotage.service.jobs.active_jobs import ActiveJob, ActiveJobs
from pilotage.service.works.manifests import Manifests


class AgentAccess:
    """Decides from the active jobs, and from the book where those do not tell."""

    def __init__(self, journal: Journal, jobs: ActiveJobs, manifests: Manifests) -> None:
        self._journal = journal
        self._jobs = jobs
        self._manifests = manifests

    def reads(self, engine: Engine, site: str, job: str) -> frozenset[str]:
        """The names of all files that attempts on the pilots of a site read; in the engine's thread only."""
        at_work, state = self._jobs.get(job), engine.state.jobs.by_id.get(job)
        names: set[str] = set()
        if at_work is None or state is None:
            return frozenset()
        for pilot in engine.state.pilots.by_name.values():
            if pilot.site.name == site:
                for ref in (*pilot.assigned, *pilot.owed):
                    if ref.job == job:
                        names.update(at_work.reads(ref) or self._asked_again(at_work, state, ref))
                        if ref not in pilot.assigned:
                            at_work.forget(ref)  # no other request uses it
        return frozenset(names)

    def _asked_again(self, at_work: ActiveJob, state: JobState, ref: AttemptRef) -> tuple[str, ...]:
        """The files read by an attempt that an earlier service assigned."""
        number = at_work.number_of(ref)
        if at_work.knows(ref) or number is None:
            return ()
        granted = [each for each in state.producers(number) if state.granted[each]]
        inputs = tuple(InputSource(state.dotted(each), state.granted[each]) for each in granted)
        work = state.work.get(number)
        ties = work.ties.get(ref.attempt, ()) if work is not None else ()
        early = tuple(InputSource(state.dotted(each), tried) for each, tried in ties if not state.granted[each])
        at_work.recompute_key(Assignment(ref=ref, inputs=inputs, early=early), self._manifests)
        return at_work.reads(ref)

    def ran(self, exchange: Exchange, ref: AttemptRef) -> bool:
        """Whether the book says that an agent ran an attempt, at its site."""
        place, row = parse_dotted(ref.package), self._journal.job(ref.job)
        package = self._journal.package(row, place) if row is not None and place is not None else None
        facts = package.facts.attempts.get(ref.attempt) if package is not None else None
        return facts is not None and (facts.pilot, facts.site) == (exchange.pilot, exchange.site)


# Ownership of logs: an agent may upload only those of attempts that it runs or ran.

log = logging.getLogger(__name__)

_DOUBTFUL_MAX = 1000  # logs of one exchange that are looked up in the book

Ran = Callable[[Exchange, AttemptRef], bool]


def own_logs(engine: Engine, says: AgentMessage, *, ran: Ran) -> list[LogText]:
    """The logs that an agent may upload: of attempts it holds or must still report, or `ran` according to the book.

    The book is read only for a repeated log or an unknown pilot, which is rare.
    """
    exchange = says.exchange
    pilot = engine.state.pilots.by_name.get(exchange.pilot)
    if pilot is not None and pilot.site.name != exchange.site:
        pilot = None
    kept, doubtful = [], 0
    for text in says.logs:
        if pilot is None or (text.ref not in pilot.assigned and text.ref not in pilot.owed):
            doubtful += 1
            if doubtful > _DOUBTFUL_MAX or not _ran(exchange, text.ref, ran):
                continue
        kept.append(text)
    if len(kept) < len(says.logs):
        log.warning("%d logs from %.64s are of attempts it did not run", len(says.logs) - len(kept), exchange.pilot)
    return kept


def _ran(exchange: Exchange, ref: AttemptRef, ran: Ran) -> bool:
    try:
        return ran(exchange, ref)
    except PilotageError as fault:
        log.warning("the owner of a log from %.64s is unknown: %s", exchange.pilot, fault)
        return False
