"""Whose logs they are: an agent brings those of what it runs, and of nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pilotage.engine.engine import Engine
from pilotage.model.errors import PilotageError
from pilotage.model.exchange import AttemptRef, Exchange
from pilotage.model.work import AgentSays, LogText

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
