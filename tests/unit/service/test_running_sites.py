"""Sites of a service that runs jobs: nothing is given to one before it has answered, when a service starts or a site comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage.book.codec import Codec
from pilotage.engine.engine import Engine
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.reports import Noticed
from pilotage.model.resources import Demand
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.ports import SeenAtSite, SiteUnreachable
from pilotage.service.jobs.runner import Runner
from pilotage.service.journal.writer import BatchCommitter, Writer
from pilotage.service.messages import Submit
from tests.kit.earlier_work import Place, place
from tests.kit.served_book import WallClock
from tests.kit.small_service import SmallService

TEXT = """
pilotage: 1
job: one
stages:
  - run: make it
"""
LYON = Site(name="lyon", kind="slurm", mode="bound")


class Hanging:
    """A batch system that says nothing until it is left alone."""

    def __init__(self, made: Callable[[], None] = lambda: None) -> None:
        self._made = made
        self._closed = threading.Event()

    @property
    def look_seconds(self) -> float:
        self._made()
        return 1.0

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        self._closed.wait()
        raise SiteUnreachable("no answer", subject="lyon")

    def submit_pilots(self, key: str, *, count: int = 1) -> list[str]:
        raise AssertionError(key)

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        raise AssertionError(key)

    def cancel(self, *keys: str) -> None:
        """Nothing is there."""

    def notice(self, unheard: Collection[str]) -> list[Noticed]:
        return []

    def close(self) -> None:
        self._closed.set()


def attempts_in(engine: Engine) -> int:
    return sum(1 for job in engine.state.jobs.by_id.values() for _ in job.attempts())


def given(runner: Runner) -> int:
    """How many attempts there are, when all that came before is decided on: what is asked is answered before a step."""
    runner.ask(attempts_in).result()
    return runner.ask(attempts_in).result()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A folder whose book has a job of one package, which is ready."""
    with place(tmp_path) as found:
        prepared = found.prepare(TEXT)
        service = SmallService(found)
        service.jobs.bring(prepared.job, expansion=prepared.expansion, plan=prepared.plan, origin=prepared.origin)
        service.step(Submit(token=1, job=prepared.job, registered=prepared.registered, plan=prepared.plan))
        yield found


@contextmanager
def runner_of(here: Place, **accesses: Hanging) -> Iterator[Runner]:
    codec = Codec()
    writer = Writer(BatchCommitter(here.journal, clock=WallClock(), codec=codec))
    writer.start()
    made = Runner(
        journal=here.journal,
        writer=writer,
        clock=WallClock(),
        codec=codec,
        sites=[LYON] if accesses else [],
        accesses=accesses,
        tree=here.tree,
        index=here.index,
        logs=here.logs,
        settings=EngineSettings(),
    )
    try:
        yield made
    finally:
        made.stop()
        writer.stop()


def test_a_service_that_starts_gives_nothing_to_a_site_that_has_not_answered(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runner_of(here, lyon=Hanging()) as runner:
        decided: list[int] = []
        monkeypatch.setattr(runner._expander, "start", lambda: decided.append(given(runner)))
        runner.start()
        assert [*decided, given(runner)] == [0, 0]


def test_a_site_that_comes_is_given_nothing_before_it_has_answered(here: Place) -> None:
    with runner_of(here) as runner:
        runner.start()
        decided: list[int] = []
        made = Hanging(lambda: decided.append(given(runner)))
        runner.change_sites([LYON], {"lyon": made})
        assert set(decided) == {0}
