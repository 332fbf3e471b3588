"""The engine runs ahead of what is durable: a job that it knows to be over may have files that have not got their names yet."""

from __future__ import annotations

from pathlib import Path

from pilotage.model.exchange.exchange import AttemptRef, Exchange
from pilotage.service.messages import Outbox
from tests.kit.earlier_work import place
from tests.kit.small_service import SmallService, finished

TWO = """
pilotage: 1
job: two
stages:
  - each: {n: 1..2}
    run: make {n}
    outputs: ["out-{n}"]
"""


class Ahead(SmallService):
    """Keeps what came of its steps, and lets a test say when that is followed."""

    outboxes: tuple[Outbox, ...] = ()

    def step(self, *inbox: object, follow: bool = True) -> Outbox:
        outbox = super().step(*inbox, follow=follow)  # type: ignore[arg-type]
        if not follow and any(isinstance(each, Exchange) for each in inbox):
            self.outboxes += (outbox,)
        return outbox


def test_the_last_file_of_a_job_gets_its_name_though_the_engine_was_done_before(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        service = Ahead(here)
        on_its_way = {"now": False}
        service.aftermath._on_its_way = lambda _: on_its_way["now"]  # as the driver says
        job = service.submit(TWO).job
        for number in (1, 2):
            ref: AttemptRef = service.work(f"1.{number}.1")
            staged = service.stage(ref, {f"out-{number}": str(number)})
            service.exchange((ref, finished(staged)), follow=False)
        first, second = service.outboxes
        on_its_way["now"] = True
        service.aftermath.follow(service.engine, first.events)
        on_its_way["now"] = False
        service.aftermath.follow(service.engine, second.events)
        assert (here.folder / "out-1").read_text() == "1"
        assert (here.folder / "out-2").read_text() == "2"
        assert service.staged(job) == []
        assert service.jobs.get(job) is None or not service.aftermath.unpublished(job)
        service.aftermath.stop()
