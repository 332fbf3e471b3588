"""Late stages, laid out in a thread of their own over what was granted; a fault of one ends nothing else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from pilotage.engine.engine import Engine
from pilotage.language import Expansion
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import ExpandStage
from pilotage.service.errors import NotRunning
from pilotage.service.jobs.late_stages import Expanded, Expander
from pilotage.service.messages import ExpandedPlan, ExpansionFailed
from pilotage.service.works.manifests import Manifest
from pilotage.service.works.reuse import EarlierResult
from tests.kit.earlier_work import place
from tests.kit.small_service import SmallService

WAIT_SECONDS = 60.0
LATE = """
pilotage: 1
job: late
stages:
  - {run: split, outputs: ["part-*"]}
  - {each: {part: "part-*"}, run: "work {part}", inputs: ["{part}"], outputs: ["half-{part}"]}
"""


class Parts:
    """A service whose first stage is done, and an expander that answers to the test."""

    def __init__(self, service: SmallService) -> None:
        self.service = service
        self.told: queue.Queue[ExpandedPlan | ExpansionFailed] = queue.Queue()
        self.grown: list[tuple[str, int, int]] = []
        self.looked: list[tuple[list[str], range]] = []  # the names that were granted, and for which packages
        self.found: list[EarlierResult] = []
        self.fault: Exception | None = None
        self.job = service.submit(LATE).job
        service.succeed("1.1.1", {"part-b": "B", "part-a": "A"})
        self.effect = next(each for each in service.effects if isinstance(each, ExpandStage))
        self.expander = Expander(self, service.place.journal, ask=self.ask, tell=self.told.put)

    def ask(self, question: Callable[[Engine], dict[int, int]]) -> Future[dict[int, int]]:
        answer: Future[dict[int, int]] = Future()
        if self.fault is not None:
            answer.set_exception(self.fault)
        else:
            answer.set_result(question(self.service.engine))
        return answer

    def expansion(self, job: str) -> Expansion | None:
        at_work = self.service.jobs.get(job)
        return at_work.expansion if at_work is not None else None

    def offer_expansion(self, job: str, stage: int, expanded: Expanded) -> None:
        self.grown.append((job, stage, expanded.plan.count))
        self.service.jobs.offer_expansion(job, stage, expanded)

    def adopt(
        self, job: str, expansion: Expansion, *, granted: Mapping[int, Manifest], numbers: range
    ) -> Sequence[EarlierResult]:
        self.looked.append(([file.name for manifest in granted.values() for file in manifest], numbers))
        return self.found

    def answer(self) -> ExpandedPlan | ExpansionFailed:
        return self.told.get(timeout=WAIT_SECONDS)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with place(tmp_path) as here:
        made = Parts(SmallService(here))
        made.expander.start()
        yield made
        made.expander.stop()
        made.service.aftermath.stop()


def test_a_stage_is_laid_out_over_what_its_producers_made_and_is_run_then(parts: Parts) -> None:
    parts.expander.want(parts.effect)
    told = parts.answer()
    assert isinstance(told, ExpandedPlan)
    assert (told.job, told.stage, told.revision, told.plan.count) == (parts.job, 2, parts.effect.revision, 3)
    assert parts.grown == [(parts.job, 2, 3)]
    assert parts.looked == [(["part-a", "part-b"], range(1, 3))]
    parts.service.step(told)
    parts.service.exchange()
    assert sorted(parts.service.assigned) == ["2.1.1", "2.2.1"]


def test_what_an_earlier_run_made_of_it_goes_with_the_answer(parts: Parts) -> None:
    maker = AttemptRef("earlier", "2.1.1", 1)
    parts.found = [EarlierResult(number=1, package="2.1.1", manifest=(), maker=maker, message="made before")]
    parts.expander.want(parts.effect)
    told = parts.answer()
    assert isinstance(told, ExpandedPlan)
    assert [(each.package, each.message) for each in told.adopted] == [(1, "made before")]


def test_what_is_unknown_or_laid_out_is_not_answered_and_the_next_is(parts: Parts) -> None:
    parts.expander.want(ExpandStage(job="unknown", stage=2, revision=1))
    parts.expander.want(ExpandStage(job=parts.job, stage=1, revision=1))
    parts.expander.want(parts.effect)
    told = parts.answer()
    assert (told.job, told.stage) == (parts.job, 2)
    assert parts.told.empty()


def test_a_fault_is_told_as_one_and_the_next_is_laid_out(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    parts.fault = RuntimeError("surprise")
    parts.expander.want(parts.effect)
    told = parts.answer()
    assert isinstance(told, ExpansionFailed)
    assert (told.job, told.stage, told.revision) == (parts.job, 2, parts.effect.revision)
    assert "surprise" in caplog.text
    parts.fault = None
    parts.expander.want(parts.effect)
    assert isinstance(parts.answer(), ExpandedPlan)


def test_a_service_that_stops_meanwhile_is_no_fault_of_the_stage(parts: Parts) -> None:
    parts.fault = NotRunning("the service is stopping")
    parts.expander.want(parts.effect)
    parts.expander.stop()
    assert parts.told.empty()


def test_one_that_was_never_started_can_be_stopped(parts: Parts) -> None:
    before = threading.active_count()
    expander = Expander(parts, parts.service.place.journal, ask=parts.ask, tell=parts.told.put)
    expander.stop()
    expander.want(parts.effect)  # in vain
    assert (threading.active_count(), parts.told.empty()) == (before, True)
