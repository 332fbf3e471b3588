"""The input and output of the service's core, as values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.book.codec import Checked, Refusal
from pilotage.engine.past_pilots import EndedPilots
from pilotage.engine.restore import JobSnapshot
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import Exchange, ExchangeReply
from pilotage.model.exchange.operations import Accepted, AnyOperation, AnySiteOperation, Effect, Refused
from pilotage.model.exchange.reports import AnyReport, OutputsCopied
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.site import Site


class OperationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that a client requested; the token identifies the client that waits for the answer."""

    token: int
    operation: AnyOperation


class SiteOperationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The same for a site."""

    token: int
    operation: AnySiteOperation


class SitesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The new list of sites; sites that are missing from it are drained.

    The entries of `rewritten` sites changed, if only in how they are reached; `renewed` sites start different pilots
    from now on, and earlier ones are drained.
    """

    sites: tuple[Site, ...]
    rewritten: tuple[str, ...] = ()
    renewed: tuple[str, ...] = ()


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    """The service is stopping: request no more pilots."""

    token: int


class AdoptedPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package that need not run: an earlier run made its outputs from the same inputs."""

    package: int
    manifest: tuple[payloads.OutputFile, ...] = ()
    message: str = ""  # which attempt made them
    disposed: bool = False  # some of them were removed on purpose


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be registered, with its plan and the packages that need not run.

    The driver looks up whether the book already has a job of this id.
    """

    token: int
    job: str
    registered: payloads.JobRegistered
    plan: JobPlan
    adopted: Sequence[AdoptedPackage] = ()
    left_out: Sequence[int] = ()  # packages that no target needs
    taken: bool = False


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """A finished job that the engine had released, loaded from the book before an operation on it in the same step.

    `gone` are pilots known to have ended (`past_pilots.ended_pilots`).
    """

    job: JobSnapshot
    gone: EndedPilots


class JobSealed(msgspec.Struct, frozen=True, kw_only=True):
    """The book sealed a job: if it is over, the engine releases it."""

    job: str


class ExpandedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `ExpandStage`: the plan including the stage."""

    job: str
    stage: int
    revision: int  # as requested
    plan: JobPlan
    expanded: payloads.StageExpanded
    along: Sequence[payloads.StageExpanded] = ()  # later stages whose lists became known with it
    adopted: Sequence[AdoptedPackage] = ()  # packages of it that need not run
    left_out: Sequence[int] = ()  # packages that no target needs


class ExpansionFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The other answer to `ExpandStage`: the stage cannot be expanded."""

    job: str
    stage: int
    revision: int
    message: str


Input = (
    Exchange
    | OperationRequest
    | SiteOperationRequest
    | Submit
    | ExpandedPlan
    | ExpansionFailed
    | Reload
    | JobSealed
    | SitesChanged
    | Stopping
    | OutputsCopied
    | AnyReport
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an operation or a submission."""

    token: int
    outcome: Accepted | Refused


class Outbox(msgspec.Struct, kw_only=True):
    """The result of a step: first the events, durably; then everything else, in any order."""

    events: list[Checked] = []
    replies: list[ExchangeReply] = []
    answers: list[Answer] = []
    effects: list[Effect] = []
    refused: list[Refusal] = []  # events of agents that could not be decoded
    skewed: list[tuple[str, str]] = []  # (source, stream) of agents that sent something and whose clocks are wrong
    wake_at: float | None = None
