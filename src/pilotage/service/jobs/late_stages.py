"""Expands late stages from the outputs of their producers, in one thread, one after another.

The core ignores an answer that is out of date, and asks again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec

from pilotage.engine.engine import Engine
from pilotage.language import Expansion
from pilotage.model.errors import PilotageError
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import ExpandStage
from pilotage.model.jobs.plan import JobPlan
from pilotage.ports import Journal
from pilotage.service.jobs.refusals import KnownStores
from pilotage.service.jobs.submission import expand_late_stage
from pilotage.service.messages import AdoptedPackage, ExpandedPlan, ExpansionFailed
from pilotage.service.works.manifests import Manifest, Manifests
from pilotage.service.works.reuse import EarlierResult

log = logging.getLogger(__name__)


class Expanded(msgspec.Struct, frozen=True, kw_only=True):
    """A job with one more stage, before the core has accepted it."""

    expansion: Expansion
    plan: JobPlan


class ExpansionStore(Protocol):
    """Holds the expansions of jobs."""

    def expansion(self, job: str) -> Expansion | None:
        """The present expansion of a job."""
        ...

    def offer_expansion(self, job: str, stage: int, expanded: Expanded) -> None:
        """Keep the new expansion of a job, for when the core accepts it."""
        ...

    def adopt(
        self, job: str, expansion: Expansion, *, granted: Mapping[int, Manifest], numbers: range
    ) -> Sequence[EarlierResult]:
        """Those of these packages that need not run."""
        ...


Ask = Callable[[Callable[[Engine], dict[int, int]]], "Future[dict[int, int]]"]


class Expander:
    """The thread that expands."""

    def __init__(
        self,
        growing: ExpansionStore,
        journal: Journal,
        *,
        stores: KnownStores | None = None,
        ask: Ask,
        tell: Callable[[ExpandedPlan | ExpansionFailed], None],
    ) -> None:
        """Take which stores there are, how to query the grants, and where to send the answer."""
        self._stores = stores
        self._growing = growing
        self._journal = journal
        self._manifests = Manifests(journal)
        self._ask = ask
        self._tell = tell
        self._thread = threading.Thread(target=self._run, name="expander", daemon=True)
        self._change = threading.Condition()
        self._wanted: deque[ExpandStage] = deque()
        self._stopping = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def want(self, effect: ExpandStage) -> None:
        """Queue a stage; only the last request for it counts."""
        with self._change:
            others = (each for each in self._wanted if (each.job, each.stage) != (effect.job, effect.stage))
            self._wanted = deque((*others, effect))
            self._change.notify()

    def stop(self) -> None:
        """End after the present stage."""
        with self._change:
            self._stopping = True
            self._change.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._stopping or self._wanted)
                if self._stopping:
                    return
                effect = self._wanted.popleft()
            try:
                self._expand(effect)
            except PilotageError as fault:
                if not fault.retryable:
                    self._fail(effect, str(fault))
            except Exception:
                log.exception("stage %d of %s cannot be expanded", effect.stage, effect.job)
                self._fail(effect, "it could not be expanded; the log of the service says why")

    def _expand(self, effect: ExpandStage) -> None:
        known = self._growing.expansion(effect.job)
        if known is None:
            return
        expansion = known
        late = next((each for each in expansion.late if each.stage == effect.stage), None)
        if late is None or late.stages:
            return  # already expanded, or others come first: the core asks again
        granted = self._ask(lambda engine: _granted(engine, effect.job, late.packages)).result()
        made = self._made(effect.job, expansion, granted)
        produced = {number: [file.name for file in manifest] for number, manifest in made.items()}
        row = self._journal.job(effect.job)
        owner = (row.owner if row is not None else None) or ""
        grown, after, (expanded, *along) = expand_late_stage(
            self._journal, expansion, stage=effect.stage, produced=produced, owner=owner, stores=self._stores
        )
        self._growing.offer_expansion(effect.job, effect.stage, Expanded(expansion=grown, plan=after))
        self._tell(
            ExpandedPlan(
                job=effect.job,
                stage=effect.stage,
                revision=effect.revision,
                plan=after,
                expanded=expanded,
                along=along,
                adopted=self._adopted(effect.job, grown, range(expansion.count, grown.count)),
                left_out=sorted(grown.left_out - expansion.left_out),
            )
        )

    def _made(self, job: str, expansion: Expansion, granted: Mapping[int, int]) -> dict[int, Manifest]:
        """The outputs of packages, from their granted attempts."""
        refs = {number: AttemptRef(job, expansion.id(number).dotted, attempt) for number, attempt in granted.items()}
        return {number: self._manifests.of(ref) or () for number, ref in refs.items()}

    def _adopted(self, job: str, grown: Expansion, numbers: range) -> list[AdoptedPackage]:
        """The packages of a new stage that an earlier run made."""
        before = tuple(
            {other for number in numbers for other in grown.graph.predecessors(number).tolist()} - {*numbers}
        )
        granted = self._ask(lambda engine: _granted(engine, job, before)).result()
        found = self._growing.adopt(job, grown, granted=self._made(job, grown, granted), numbers=numbers)
        return [
            AdoptedPackage(package=each.number, manifest=each.manifest, message=each.message, disposed=each.disposed)
            for each in found
        ]

    def _fail(self, effect: ExpandStage, message: str) -> None:
        self._tell(ExpansionFailed(job=effect.job, stage=effect.stage, revision=effect.revision, message=message))


def _granted(engine: Engine, job: str, packages: tuple[int, ...]) -> dict[int, int]:
    """The granted attempts of packages that are not left out."""
    state = engine.state.jobs.by_id.get(job)
    if state is None:
        return {}
    dropped = {number for number, work in state.work.items() if work.dropped}
    return {number: state.granted[number] for number in packages if state.granted[number] and number not in dropped}
