"""The driver: nothing is said before it is durable, a full disk only delays, and nobody is left waiting at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.fold.join import Receipt
from pilotage.book.rows.rows import StreamRow
from pilotage.engine.decision_log import ENGINE_STREAM
from pilotage.engine.engine import Engine
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import AgentMessage, AttemptRef, Exchange, ExchangeReply, LogText
from pilotage.model.exchange.operations import Effect, Hold, SubmitPilot
from pilotage.model.settings.engine import EngineSettings
from pilotage.ports import JournalFull, StoreError
from pilotage.service.core import Core
from pilotage.service.errors import NotRunning, OperationRefused, Superseded
from pilotage.service.jobs.driver import Driver
from pilotage.service.journal.writer import Batch, BatchCommitter, OwnRefused, Writer
from pilotage.service.messages import Input, Outbox, Submit
from tests.kit.served_book import WallClock
from tests.kit.small_plans import bag, registered_of, site
from tests.kit.waiting import wait_until

PATIENCE_SECONDS = 20.0
NOTE = msgspec.Raw(b'{"text":"by another"}')


class Handler:
    """Writes down what it is told, in order; one core from nothing."""

    def __init__(self, journal: SqliteJournal) -> None:
        self.journal = journal
        self.told: list[str] = []
        self.effects: list[Effect] = []
        self.wrote = threading.Event()
        self.acted = threading.Event()
        self.fault: Exception | None = None
        self.settings = EngineSettings(interval_seconds=60)
        self.gate = threading.Event()  # what follows outside waits for it
        self.gate.set()

    def begin(self, driver: Driver) -> Core:
        if self.fault is not None:
            raise self.fault
        return Core(Engine(sites=[site()], settings=self.settings, now=0.0))

    def received_stream(self, pilot: str) -> StreamRow | None:
        return self.journal.stream("agent", pilot)

    def ran(self, exchange: Exchange, ref: AttemptRef) -> bool:
        if ref.package == "1.1.9":
            raise StoreError("the book cannot be read")
        return (exchange.site, ref.package) == ("here", "1.1.1")

    def written(self, outbox: Outbox, logs: Sequence[LogText]) -> None:
        position = self.journal.position()
        self.told += [one.event.type for one in outbox.events] + [text.head for text in logs]
        assert position >= len([word for word in self.told if word[0].isupper()])
        self.wrote.set()
        assert self.gate.wait(PATIENCE_SECONDS)

    def reply(self, reply: ExchangeReply) -> bytes:
        self.told.append(f"reply {reply.sequence}")
        return msgspec.json.encode(reply)

    def carry_out(self, effects: Sequence[Effect]) -> None:
        self.effects += effects
        self.acted.set()

    def end(self) -> None:
        self.told.append("end")


class FullDisk(BatchCommitter):
    """A keeper that finds no room for as long as it is told so, and waits where it is told to."""

    full = False
    refused = 0

    def __init__(self, journal: SqliteJournal) -> None:
        super().__init__(journal, clock=WallClock())
        self.came = threading.Semaphore(0)  # once for each write that begins
        self.gate = threading.Event()
        self.gate.set()
        self.kept: list[str] = []  # jobs of what was written, in order

    def commit_together(self, batches: Sequence[Batch]) -> list[Receipt]:
        self.came.release()
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.full:
            self.refused += 1
            self.full = self.refused < 2
            raise JournalFull("no room")
        self.kept += [one.event.job or "" for batch in batches for one in batch.checked]
        return super().commit_together(batches)


class Set:
    """A driver with everything around it."""

    def __init__(self, folder: Path) -> None:
        self.journal = SqliteJournal(folder)
        self.keeper = FullDisk(self.journal)
        self.writer = Writer(self.keeper)
        self.handler = Handler(self.journal)
        self.clock = SetClock()
        self.driver = Driver(writer=self.writer, clock=self.clock, handler=self.handler)


class SetClock(WallClock):
    """A clock that somebody may set."""

    set_by = 0.0

    def now(self) -> float:
        return super().now() + self.set_by


@contextmanager
def running(folder: Path, **settings: float) -> Iterator[Set]:
    parts = Set(folder)
    parts.handler.settings = msgspec.structs.replace(parts.handler.settings, **settings)
    parts.writer.start()
    try:
        parts.driver.start()
        yield parts
    finally:
        parts.driver.stop()
        parts.writer.stop()
        parts.journal.close()


def submit(parts: Set, job: str = "j", packages: int = 3) -> None:
    plan = bag(packages)
    registered = registered_of(plan, owner="ada")
    parts.driver.submit(lambda token: Submit(token=token, job=job, registered=registered, plan=plan)).result(
        PATIENCE_SECONDS
    )


def said(sequence: int, *, logs: tuple[LogText, ...] = (), leaving: str = "") -> AgentMessage:
    exchange = Exchange(pilot="k.1", site="here", sequence=sequence, leaving=leaving)
    return AgentMessage(exchange=exchange, logs=logs)


def test_a_job_is_answered_when_it_is_in_the_book_and_its_pilot_is_asked_for_after_that(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        submit(parts)
        row = parts.journal.job("j")
        assert row is not None
        assert row.accepted_at is not None
        assert parts.handler.acted.wait(PATIENCE_SECONDS)
        assert any(isinstance(effect, SubmitPilot) for effect in parts.handler.effects)
        assert parts.handler.told[:2] == ["JobRegistered", "JobAccepted"]


def test_what_is_in_the_book_and_has_not_been_let_out_can_be_waited_for_and_by_nobody_cancelled(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        submit(parts)
        parts.driver.ask(lambda engine: None).result(PATIENCE_SECONDS)
        parts.handler.wrote.clear()
        parts.handler.gate.clear()
        held = parts.driver.operate(Hold(job="j"))
        assert parts.handler.wrote.wait(PATIENCE_SECONDS)
        row = parts.journal.job("j")
        assert row is not None
        assert row.held
        pending = parts.driver.pending_effects
        assert pending is not None
        assert not pending.cancel()
        assert not pending.done()
        parts.handler.gate.set()
        pending.result(PATIENCE_SECONDS)
        assert held.done()
        assert parts.driver.alive


def test_who_waits_while_there_is_no_room_or_until_the_end_is_let_go(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        submit(parts)
        while parts.keeper.came.acquire(blocking=False):
            pass
        parts.keeper.full = True
        parts.keeper.gate.clear()
        held = parts.driver.operate(Hold(job="j"))
        assert parts.keeper.came.acquire(timeout=PATIENCE_SECONDS)
        pending = parts.driver.pending_effects
        assert pending is not None
        parts.keeper.gate.set()
        pending.result(PATIENCE_SECONDS)  # it is not in the book, and nothing follows from it
        held.result(PATIENCE_SECONDS)
    assert parts.driver.pending_effects is None


def test_a_refusal_fails_the_future_with_its_code(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        asked = parts.driver.operate(Hold(job="nothing"))
        with pytest.raises(OperationRefused) as refused:
            asked.result(PATIENCE_SECONDS)
        assert refused.value.code == "unknown-job"


def test_a_question_is_answered_by_the_engine_and_a_faulty_one_hurts_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        submit(parts)
        assert parts.driver.ask(lambda engine: sorted(engine.state.jobs.by_id)).result(PATIENCE_SECONDS) == ["j"]
        with pytest.raises(ZeroDivisionError):
            parts.driver.ask(lambda engine: 1 // 0).result(PATIENCE_SECONDS)
        assert parts.driver.alive


def test_a_full_disk_delays_everything_and_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        parts.keeper.full = True
        submit(parts)  # returns only when there was room
        assert parts.keeper.refused == 2
        row = parts.journal.job("j")
        assert row is not None


def test_steps_are_written_and_let_out_in_their_order_also_when_the_first_finds_no_room(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        submit(parts, "j")
        submit(parts, "k")
        while parts.keeper.came.acquire(blocking=False):
            pass
        parts.keeper.kept.clear()
        parts.keeper.full = True
        parts.keeper.gate.clear()
        first = parts.driver.operate(Hold(job="j"))
        assert parts.keeper.came.acquire(timeout=PATIENCE_SECONDS)  # it is being written, and will find no room
        second = parts.driver.operate(Hold(job="k"))
        assert parts.driver.ask(lambda engine: engine.state.jobs.by_id["k"].held).result(PATIENCE_SECONDS) is not None
        parts.keeper.gate.set()
        second.result(PATIENCE_SECONDS)
        assert first.done()
        assert [job for job in parts.keeper.kept if job in "jk"] == ["j", "k"]
        assert parts.handler.told[-2:] == ["Held", "Held"]


def test_what_an_agent_says_again_and_again_while_nothing_can_be_written_waits_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []
    step = Core.step

    def counted(core: Core, inbox: Sequence[Input], now: float) -> Outbox:
        heard.extend(each.sequence for each in inbox if isinstance(each, Exchange))
        return step(core, inbox, now)

    monkeypatch.setattr(Core, "step", counted)
    with running(tmp_path) as parts:
        submit(parts, "j")
        submit(parts, "k")
        while parts.keeper.came.acquire(blocking=False):
            pass
        parts.keeper.full = True
        parts.keeper.gate.clear()
        parts.driver.operate(Hold(job="j"))
        assert parts.keeper.came.acquire(timeout=PATIENCE_SECONDS)  # it is being written, and will find no room
        held = parts.driver.operate(Hold(job="k"))
        while not parts.driver.ask(lambda engine: engine.state.jobs.by_id["k"].held).result(PATIENCE_SECONDS):
            pass
        answers = [parts.driver.exchange(said(sequence, leaving="now")) for sequence in range(1, 101)]
        parts.keeper.gate.set()
        held.result(PATIENCE_SECONDS)
        answers[-1].result(PATIENCE_SECONDS)
    assert heard == [100]
    assert [each.message for each in caplog.records].count("the book cannot be written: no room") == 1


def test_a_clock_that_is_set_back_does_not_let_the_engine_sleep(tmp_path: Path) -> None:
    with running(tmp_path, submit_again_seconds=0.2) as parts:
        submit(parts)
        assert parts.handler.acted.wait(PATIENCE_SECONDS)
        parts.clock.set_by = -3600.0
        asked = parts.handler.effects
        wait_until(lambda: len(asked) > 2, lambda: f"it was asked for {len(asked)} times", seconds=PATIENCE_SECONDS)


def test_a_later_exchange_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        first = parts.driver.exchange(said(1))
        second = parts.driver.exchange(said(2, leaving="now"))
        with pytest.raises(Superseded):
            first.result(PATIENCE_SECONDS)
        reply = msgspec.json.decode(second.result(PATIENCE_SECONDS), type=ExchangeReply)
        assert reply.sequence == 2


def test_an_old_exchange_does_not_take_the_place_of_a_later_one(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        later = parts.driver.exchange(said(2))
        with pytest.raises(Superseded):
            parts.driver.exchange(said(1, leaving="now")).result(PATIENCE_SECONDS)
        assert msgspec.json.decode(later.result(PATIENCE_SECONDS))["sequence"] == 2
        reply = msgspec.json.decode(parts.driver.exchange(said(3, leaving="now")).result(PATIENCE_SECONDS))
        assert reply["sequence"] == 3


def test_logs_are_kept_before_the_agent_is_answered(tmp_path: Path) -> None:
    text = LogText(ref=AttemptRef("j", "1.1.1", 1), stream="stdout", head="a log")
    with running(tmp_path) as parts:
        parts.driver.exchange(said(1, logs=(text,), leaving="now")).result(PATIENCE_SECONDS)
        told = parts.handler.told
        assert told.index("a log") < told.index("reply 1")


def test_logs_of_what_an_agent_never_ran_are_left_out_one_by_one(tmp_path: Path) -> None:
    def text(package: str) -> LogText:
        return LogText(ref=AttemptRef("j", package, 1), stream="stdout", head=f"of {package}")

    with running(tmp_path) as parts:
        logs = tuple(text(package) for package in ("1.1.2", "x", "1.1.9", "1.1.1"))
        parts.driver.exchange(said(1, logs=logs, leaving="now")).result(PATIENCE_SECONDS)
        assert [word for word in parts.handler.told if word.startswith("of ")] == ["of 1.1.1"]
        assert parts.driver.alive


def test_whoever_waits_at_the_end_is_told_and_later_ones_are_refused(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        waiting = parts.driver.exchange(said(1))
        parts.driver.stop()
        for future in (waiting, parts.driver.exchange(said(2)), parts.driver.operate(Hold(job="j"))):
            with pytest.raises(NotRunning):
                future.result(PATIENCE_SECONDS)
        assert not parts.driver.alive
        assert parts.handler.told[-1] == "end"


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    parts = Set(tmp_path)
    parts.handler.fault = LookupError("no such expansion")
    with pytest.raises(LookupError, match="no such expansion"):
        parts.driver.start()
    parts.journal.close()


def test_a_decision_that_the_book_refuses_ends_the_engine_and_is_never_answered(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        submit(parts)
        n = parts.driver.ask(lambda engine: engine.state.log.next_number).result(PATIENCE_SECONDS)
        # Somebody else has written under the next number, as a service does that has taken the book over.
        taken = Event(source="service", stream=ENGINE_STREAM, n=n, type="Noted", time=1.0, data=NOTE)
        assert not BatchCommitter(parts.journal, clock=WallClock()).take([taken]).refused
        asked = parts.driver.operate(Hold(job="j"))
        with pytest.raises(NotRunning, match="the service has stopped: the book refuses 1 of 1 events") as told_why:
            asked.result(PATIENCE_SECONDS)
        assert "start this one again" in told_why.value.next_step
        assert not parts.driver.alive
        for told in (parts.driver.broken, parts.writer.broken):
            assert "the book refuses 1 of 1 events of this service: service engine" in told
            assert "start this one again" in told
        row = parts.journal.job("j")
        assert row is not None
        assert not row.held


def test_nothing_of_a_batch_is_kept_when_one_of_its_own_events_is_refused(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    keeper = BatchCommitter(journal, clock=WallClock())
    taken = Event(source="service", stream=ENGINE_STREAM, n=2, type="Noted", time=1.0, data=NOTE)
    keeper.take([taken])
    position = journal.position()
    others = [msgspec.structs.replace(taken, n=n, time=2.0) for n in (1, 2, 3)]
    checked, _ = keeper.codec.check_all(others)
    with pytest.raises(OwnRefused):
        keeper.commit_together([Batch(checked, own=True)])
    assert journal.position() == position
    journal.close()
