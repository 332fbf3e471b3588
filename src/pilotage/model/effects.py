"""What the core wants done in the world, as values. Each follows from a durable decision and may be done again.

An effect is known by its key: whoever carries it out looks first whether it was done already. What came of it comes back
as a site report, an exchange, or a grown plan; until then the core may ask for it again.
"""

from __future__ import annotations

import msgspec

from pilotage.model.demand import Demand
from pilotage.model.exchange import AttemptRef


class SubmitPilot(msgspec.Struct, frozen=True, kw_only=True, tag="submit-pilot"):
    """Submit a pilot to the batch system of a site under our key."""

    site: str
    key: str


class SubmitAttempt(msgspec.Struct, frozen=True, kw_only=True, tag="submit-attempt"):
    """Submit one bound attempt to the batch system of a site under our key; its agent will ask for it."""

    site: str
    key: str
    ref: AttemptRef
    demand: Demand


class CancelSubmitted(msgspec.Struct, frozen=True, kw_only=True, tag="cancel-submitted"):
    """Take what was submitted under our key out of the batch system of a site; what is not there is reported as gone."""

    site: str
    key: str


class ExpandStage(msgspec.Struct, frozen=True, kw_only=True, tag="expand-stage"):
    """Lay out a late stage over the granted outputs of its producers; the answer is a grown plan."""

    job: str
    stage: int
    revision: int = 0  # of what its producers made: an answer to an earlier one is out of date


Effect = SubmitPilot | SubmitAttempt | CancelSubmitted | ExpandStage
