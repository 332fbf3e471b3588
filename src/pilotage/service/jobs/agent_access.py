"""What an agent may have and may bring: the files of what its site holds, and the logs of what it ran itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pilotage.engine.engine import Engine
from pilotage.engine.state.jobs import JobState
from pilotage.model.errors import PilotageError
from pilotage.model.events.events import parse_dotted
from pilotage.model.exchange.exchange import AgentSays, Assignment, AttemptRef, Exchange, InputSource, LogText
from pilotage.ports import Journal
from pilotage.service.jobs.active_jobs import ActiveJob, ActiveJobs
from pilotage.service.works.manifests import Manifests


class AgentAccess:
    """Knows it from the jobs at work, and from the book where those do not say."""

    def __init__(self, journal: Journal, jobs: ActiveJobs, manifests: Manifests) -> None:
        """Take what knows."""
        self._journal = journal
        self._jobs = jobs
        self._manifests = manifests

    def reads(self, engine: Engine, site: str, job: str) -> frozenset[str]:
        """The names of all files that the attempts read which the pilots of a site hold; in the engine's thread only."""
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
                            at_work.forget(ref)  # nobody else asks for it
        return frozenset(names)

    def _asked_again(self, at_work: ActiveJob, state: JobState, ref: AttemptRef) -> tuple[str, ...]:
        """What an attempt reads that a service gave out which is gone."""
        number = at_work.number_of(ref)
        if at_work.knows(ref) or number is None:
            return ()
        granted = [each for each in state.producers(number) if state.granted[each]]
        inputs = tuple(InputSource(state.dotted(each), state.granted[each]) for each in granted)
        at_work.asked_again(Assignment(ref=ref, inputs=inputs), self._manifests)
        return at_work.reads(ref)

    def ran(self, exchange: Exchange, ref: AttemptRef) -> bool:
        """Whether the book says that an agent ran an attempt, at the site that it speaks for."""
        place, row = parse_dotted(ref.package), self._journal.job(ref.job)
        package = self._journal.package(row, place) if row is not None and place is not None else None
        facts = package.facts.attempts.get(ref.attempt) if package is not None else None
        return facts is not None and (facts.pilot, facts.site) == (exchange.pilot, exchange.site)


# Whose logs they are: an agent brings those of what it runs, and of nothing else.

log = logging.getLogger(__name__)

_DOUBTFUL_MAX = 1000  # logs of one exchange that the book is asked about

Ran = Callable[[Exchange, AttemptRef], bool]


def own_logs(engine: Engine, says: AgentSays, *, ran: Ran) -> list[LogText]:
    """The logs that are an agent's to bring: of what it holds or owes the end of, or `ran` by the book.

    The book is asked where a log comes again, or its pilot is known no more, which is rare.
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
        log.warning("%d logs of %.64s are of nothing it ran", len(says.logs) - len(kept), exchange.pilot)
    return kept


def _ran(exchange: Exchange, ref: AttemptRef, ran: Ran) -> bool:
    try:
        return ran(exchange, ref)
    except PilotageError as fault:
        log.warning("nobody knows whose log it is that %.64s brings: %s", exchange.pilot, fault)
        return False
