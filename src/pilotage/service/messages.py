"""What comes into the core of the service, and what goes out of it, as values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.book.codec import Checked, Refusal
from pilotage.engine.restore import JobSnapshot
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import Exchange, ExchangeReply
from pilotage.model.exchange.operations import Accepted, AnyOperation, AnySiteOperation, Effect, Refused
from pilotage.model.exchange.reports import AnyReport
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.site import Site


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An operation somebody asked for; the token finds who waits for the answer."""

    token: int
    operation: AnyOperation


class AskedOfSite(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a site."""

    token: int
    operation: AnySiteOperation


class SitesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """These are the sites from now on; those that are missing are drained.

    Of those that are `rewritten` something is said anew, if only how they are reached; those that are `renewed` start
    other pilots from now on, and what was started before is drained.
    """

    sites: tuple[Site, ...]
    rewritten: tuple[str, ...] = ()
    renewed: tuple[str, ...] = ()


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    """The service ends in good order: nothing more is asked for."""

    token: int


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A package that need not be run: what it would make is there, made by the same work before."""

    package: int
    manifest: tuple[payloads.OutputFile, ...] = ()
    message: str = ""  # where it comes from


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """A job on its way in, with its plan, and what of it need not be run.

    Whether the book has a job of its id is for the driver to look up.
    """

    token: int
    job: str
    registered: payloads.JobRegistered
    plan: JobPlan
    adopted: Sequence[Adopted] = ()
    left_out: Sequence[int] = ()  # packages that nobody asked for
    taken: bool = False


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """A job that the engine has let go of, as the book has it, just before somebody asks for more of it in the same step.

    `gone` are pilots that are known to be over (`restore.ended_pilots`).
    """

    job: JobSnapshot
    gone: frozenset[str] = frozenset()


class PutAway(msgspec.Struct, frozen=True, kw_only=True):
    """The book has sealed a job: where it is over, the engine knows it no longer."""

    job: str


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `ExpandStage`: the plan with the stage in it."""

    job: str
    stage: int
    revision: int  # as it was asked for
    plan: JobPlan
    expanded: payloads.StageExpanded
    along: Sequence[payloads.StageExpanded] = ()  # later stages whose lists became known with it
    adopted: Sequence[Adopted] = ()  # what of it need not be run
    left_out: Sequence[int] = ()  # packages that nobody asked for


class GrowthFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The other answer to `ExpandStage`: what was made cannot be laid out."""

    job: str
    stage: int
    revision: int
    message: str


Input = (
    Exchange
    | Asked
    | AskedOfSite
    | Submit
    | Grown
    | GrowthFailed
    | Reload
    | PutAway
    | SitesChanged
    | Stopping
    | AnyReport
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an operation or a submission."""

    token: int
    outcome: Accepted | Refused


class Outbox(msgspec.Struct, kw_only=True):
    """What a step asks for: first the events, durably; then everything else, in any order."""

    events: list[Checked] = []
    replies: list[ExchangeReply] = []
    answers: list[Answer] = []
    effects: list[Effect] = []
    refused: list[Refusal] = []  # events of agents that could not be read
    skewed: list[tuple[str, str]] = []  # (source, stream) of agents that said something, and whose clocks are wrong
    wake_at: float | None = None
