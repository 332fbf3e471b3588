"""The join where it is most likely to break: small histories in every order, repeats, conflicts, parked events."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from pilotage.book.codec import Checked, Codec, Limits
from pilotage.book.fold.intake import JobsSealed
from pilotage.book.rows import streams
from pilotage.book.rows.rows import EventRow, JobRow, ParkedRow, StageRow, StreamRow
from pilotage.model.events.events import COUNTER_MAX, JUMP_MAX
from tests.kit.memory_ledger import Book, MemoryBook, SqliteBook
from tests.kit.shown import assert_book_says, everything
from tests.kit.standing import WireEvent

TWO = {"templates": [{"lines": 2, "activities": ["sim"]}]}
NONE: dict[str, Any] = {"items": 0}


class Teller:
    """Tells of things, each a second after the one before, with the clock of a service that has seen all before it."""

    def __init__(self, source: str = "service", stream: str = "engine", *, at: float = 1000.0, seen: int = 0) -> None:
        self.source, self.stream, self.at, self.seen, self.n = source, stream, at, seen, 0

    def say(
        self, event_type: str, about: str = "", *, epoch: int = 1, at: float | None = None, **data: Any
    ) -> WireEvent:
        """An event about the job, or about `1.1.1`, or about attempt 2 of it: `1.1.1/2`."""
        self.n += 1
        self.seen += 1
        event: WireEvent = {
            "source": self.source, "stream": self.stream, "n": self.n, "type": event_type, "epoch": epoch,
            "time": at if at is not None else self.at + self.n, "seen": self.seen, "job": "j", "data": data,
        }  # fmt: skip
        package, _, attempt = about.partition("/")
        event |= {"package": package} if package else {}
        return event | ({"attempt": int(attempt)} if attempt else {})

    def register(self, *stages: dict[str, Any], **data: Any) -> WireEvent:
        """A registration."""
        return self.say(
            "JobRegistered", owner="ada", name="n", stages=list(stages), lists={}, expander_version=0, **data
        )


def in_every_order(*events: WireEvent) -> None:
    """One by one in every order, the book says what the events say, and at the end it is the same book."""
    first: dict[str, Any] | None = None
    for order in itertools.islice(itertools.permutations(events), 0, None, 1 if len(events) < 6 else 7):
        book = MemoryBook()
        for count, event in enumerate(order, 1):
            book.take([event])
            assert_book_says(book, order[:count])
        first = first or everything(book)
        assert everything(book) == first


def told(*events: WireEvent) -> MemoryBook:
    book = MemoryBook()
    book.take(events)
    return book


def test_two_streams_tell_of_the_end_of_one_attempt() -> None:
    engine, agent, other = Teller(), Teller("agent", "a"), Teller("agent", "b")
    one = agent.say("AttemptFinished", "1.1.1/1", exit_code="EXECUTION_FAILED", exit_message="by a")
    two = other.say("AttemptFinished", "1.1.1/1", exit_code="EXECUTION_STALLED", exit_message="by b")
    assert (one["n"], one["seen"]) == (two["n"], two["seen"]), "their keys differ by the stream alone"
    events = [engine.register(TWO), engine.say("AttemptCreated", "1.1.1/1", site="lyon"), one, two]
    in_every_order(*events)
    assert told(*events).package("j", "1.1.1").exit_message == "by b"


def test_who_decides_outranks_who_reports() -> None:
    engine, agent = Teller(), Teller("agent", "zzz", seen=1)
    events = [
        engine.register(TWO),
        engine.say("AttemptFinished", "1.1.1/1", exit_code="EXECUTION_STALLED"),
        agent.say("AttemptFinished", "1.1.1/1", exit_code="EXECUTION_FAILED"),
    ]
    in_every_order(*events)
    assert told(*events).package("j", "1.1.1").exit_code == "EXECUTION_STALLED"


def test_epochs_may_be_skipped_and_facts_of_lower_ones_do_not_count() -> None:
    engine = Teller()
    events = [
        engine.register(TWO),
        engine.say("CommitGranted", "1.1.1/1"),
        engine.say("Restarted", "1.1.1", epoch=7, cause="by-hand"),
        engine.say("Aborted", "1.1.1", epoch=3, cause="quota"),
        engine.say("Cleared", "1.1.1", by="timeout"),
    ]
    in_every_order(*events)
    facts = told(*events).package("j", "1.1.1")
    assert (facts.state, facts.epoch, facts.cause, facts.cleared_by, facts.conflict) == ("WAITING", 7, None, None, 0)


def test_an_attempt_number_that_comes_again_in_a_higher_epoch_begins_anew_and_is_flagged() -> None:
    engine = Teller()
    events = [
        engine.register(TWO),
        engine.say("AttemptCreated", "1.1.1/1", site="lyon"),
        engine.say("AttemptStarted", "1.1.1/1", epoch=2),
        engine.say("CommitGranted", "1.1.1/1"),
        engine.say("CancelAccepted", "1.1.1"),
    ]
    in_every_order(*events)
    facts = told(*events).package("j", "1.1.1")
    assert (facts.state, facts.epoch, facts.site, facts.conflict) == ("RUNNING", 2, None, 1)


@pytest.mark.parametrize("ends", [["CancelAccepted"], ["Aborted"], ["Cleared"], ["CancelAccepted", "Aborted"]])
def test_what_befalls_a_whole_job_reaches_touched_and_untouched_packages_in_every_order(ends: list[str]) -> None:
    engine = Teller()
    data = {"CancelAccepted": {}, "Aborted": {"cause": "quota"}, "Cleared": {"by": "user"}}
    events = [
        engine.register(TWO),
        engine.say("JobAccepted"),
        engine.say("Bound", "1.1.1", site="lyon"),
        *(engine.say(end, **data[end]) for end in ends),  # type: ignore[arg-type] # keywords of the payload
        engine.say("Restarted", epoch=2, cause="by-hand"),
    ]
    in_every_order(*events)


def test_a_job_that_was_cleared_and_restarted_goes_on() -> None:
    engine = Teller()
    events = [
        engine.register({"templates": [{"lines": 1, "activities": ["sim"]}]}),
        engine.say("CommitGranted", "1.1.1/1"),
        engine.say("Cleared", by="user"),
        engine.say("Restarted", epoch=2, cause="by-hand"),
        engine.say("Restarted", "1.1.1", epoch=2, cause="by-hand"),
    ]
    in_every_order(*events)
    assert told(*events[:3]).job("j").state == "CLEARED"
    job = told(*events).job("j")
    assert (job.state, job.cleared_at, job.cleared_by) == ("RUNNING", None, None)


def test_the_garbage_collector_walks_through_no_row_of_a_book() -> None:
    # A busy service holds many thousand rows, and whoever waits for an answer waits for the collector too.
    engine, agent = Teller(), Teller("agent", "p")
    changes = MemoryBook().take([
        engine.register(TWO),
        engine.say("Bound", "1.1.1", site="lyon"),
        engine.say("AttemptCreated", "1.1.1/1", site="lyon"),
        agent.say("PhaseEntered", "1.1.1/1", phase="inputs"),
        engine.say("Tagged", "1.1.1", name="study", value="1"),
    ]).changes  # fmt: skip
    rows = [*changes.streams, *changes.jobs, *changes.stages, *changes.packages, *changes.tags]
    rows += [part for row in changes.packages for part in (row.facts, *row.facts.attempts.values())]
    assert {type(row).__name__ for row in rows} == {
        "StreamRow", "JobRow", "StageRow", "PackageRow", "PackageFacts", "AttemptFacts", "TagRow",
    }  # fmt: skip
    assert [row for row in rows if gc.is_tracked(row)] == []


def test_a_package_that_its_job_gave_up_says_why_and_the_later_cause_stands() -> None:
    engine = Teller()
    events = [
        engine.register(TWO),
        engine.say("Noted", "1.1.1", text="it is"),
        engine.say("Aborted", cause="quota", at=5000.0),
        engine.say("Aborted", cause="upstream", at=5000.0),
        engine.say("AttemptStarted", "1.2.1/1"),
    ]
    in_every_order(*events)
    book = told(*events)
    assert (book.package("j", "1.1.1").cause, book.job("j").cause) == ("upstream", "upstream")
    assert book.package("j", "1.2.1").cause is None, "it runs"


def test_a_stage_is_expanded_before_or_after_its_packages_are_heard_of() -> None:
    engine = Teller()
    events = [
        engine.register(TWO, {"late": True}),
        engine.say("StageExpanded", stage=2, shape=TWO),
        engine.say("AttemptStarted", "2.2.1/1"),
        engine.say("Dropped", "2.3.1", operation=1),
        engine.say("JobAccepted"),
    ]
    in_every_order(*events)
    book = told(*events)
    assert book.package("j", "2.2.1").activity == "sim"
    assert (book.job("j").expected, book.job("j").touched, book.job("j").dropped) == (4, 1, 1)


def test_a_job_that_is_registered_again_has_the_later_shape_and_packages_their_activity() -> None:
    engine = Teller()
    wide = {"templates": [{"lines": 3, "activities": ["reco"]}]}
    events = [
        engine.register(wide, TWO),
        engine.say("PackageRegistered", "1.3.1", activity="by hand"),
        engine.say("Tagged", "1.3.1", name="study", value="A"),
        engine.register(TWO),
        engine.say("Noted", "1.1.1", text="it is"),
    ]
    in_every_order(*events)
    book = told(*events)
    assert (book.package("j", "1.3.1").activity, book.package("j", "1.3.1").shaped) == ("by hand", 0)
    assert (book.package("j", "1.1.1").activity, book.package("j", "1.1.1").shaped) == ("sim", 1)


def test_a_package_that_is_registered_by_hand_keeps_the_activity_of_its_shape() -> None:
    engine = Teller()
    in_every_order(
        engine.register(TWO),
        engine.say("Noted", "1.1.1", text="it is"),
        engine.say("PackageRegistered", "1.1.1", activity="by hand"),
        engine.say("StageExpanded", stage=1, shape=NONE),
    )


def test_of_holds_with_one_operation_number_the_greater_key_stands() -> None:
    engine, client = Teller(), Teller("service", "another", seen=1)
    events = [
        engine.register(TWO),
        client.say("Held", "1.1.1", operation=4),
        engine.say("Released", "1.1.1", operation=4, epoch=9),
        engine.say("Held", operation=1),
        client.say("Released", operation=1),
    ]
    in_every_order(*events)
    assert (told(*events).package("j", "1.1.1").held, told(*events).job("j").held) == (0, 1)


def test_tags_of_an_attempt_are_those_of_its_package_and_the_greatest_key_stands() -> None:
    engine, application = Teller(), Teller("application", "app", seen=50)
    events = [
        engine.register(TWO, tags={"study": "A"}),
        application.say("Tagged", "1.1.1/1", name="step", value="2"),
        engine.say("Tagged", "1.1.1", name="step", value="1", at=9999.0),
        engine.say("Tagged", name="study", value="B"),
    ]
    in_every_order(*events)
    facts = told(*events).package("j", "1.1.1")
    assert (facts.tags["step"][0], facts.attempts, facts.state) == ("2", {}, "SUBMITTED")


def test_a_row_with_nothing_but_a_drop_leaves_the_totals_and_comes_back() -> None:
    engine = Teller()
    registered, dropped = engine.register(TWO), engine.say("Dropped", "1.1.1", operation=1)
    restored = engine.say("Restored", "1.1.1", operation=2)
    in_every_order(registered, dropped, restored, engine.say("JobAccepted"))
    job = told(registered, dropped).job("j")
    assert (job.submitted, job.dropped, job.expected, job.touched) == (1, 1, 2, 1)


def test_a_reservation_is_used_up_by_the_attempt_that_follows_it() -> None:
    engine = Teller()
    events = [
        engine.register(TWO),
        engine.say("Bound", "1.1.1", site="lyon"),
        engine.say("AttemptCreated", "1.1.1/1", site="lyon"),
        engine.say("AttemptFinished", "1.1.1/1", exit_code="ERROR_READ_GRID"),
        engine.say("Bound", "1.1.1", site="desy"),
    ]
    in_every_order(*events)
    assert told(*events[:-1]).package("j", "1.1.1").state == "WAITING"
    assert told(*events).package("j", "1.1.1").state == "READY"


def test_times_that_are_equal_decide_nothing() -> None:
    engine = Teller()
    in_every_order(
        engine.register(TWO),
        engine.say("AttemptStarted", "1.1.1/1", at=7.0),
        engine.say("AttemptStarted", "1.1.1/2", at=7.0),
        engine.say("CommitGranted", "1.1.1/2", at=7.0),
        engine.say("CancelAccepted", "1.1.1", at=7.0),
    )


def test_a_clock_that_is_ahead_is_believed_and_flagged() -> None:
    engine, book = Teller(), MemoryBook()
    book.take([engine.register(TWO, at=1300.0)], received=1000.0)
    book.take([engine.say("JobAccepted", at=1300.5), engine.say("Noted", text="late", at=1.0)], received=1000.0)
    assert [row.skewed for row in book.rows(EventRow)] == [0, 1, 0]
    assert book.job("j").accepted_at == 1300.5


# --- repeats, conflicts, parked events ------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def book(request: pytest.FixtureRequest) -> Any:
    kept: Book = MemoryBook() if request.param == "memory" else SqliteBook()
    yield kept
    kept.close()


OTHERS: dict[str, dict[str, Any]] = {
    "value": {"data": {"name": "study", "value": "B"}},
    "time": {"time": 1.0},
    "type": {"type": "Noted", "data": {"text": "x"}},
    "epoch": {"epoch": 2},
    "seen": {"seen": 99},
    "package": {"package": "1.2.1"},
    "attempt": {"attempt": 1},
    "job": {"job": "other"},
}


@pytest.mark.parametrize("other", sorted(OTHERS))
@pytest.mark.parametrize("place", ["in the book", "in the batch", "parked", "unparked"])
def test_an_identity_that_comes_again_with_other_content_is_refused_by_its_index(
    book: Book, place: str, other: str
) -> None:
    engine = Teller()
    registered, tagged = engine.register(TWO), engine.say("Tagged", "1.1.1", name="study", value="A")
    batches = {
        "in the book": [[registered, tagged]],
        "in the batch": [[registered]],
        "parked": [[tagged]],
        "unparked": [[tagged], [registered]],
    }[place]
    for batch in batches:
        book.take(batch)
    changed = {**tagged, **OTHERS[other]}
    last = [tagged, changed, tagged] if place == "in the batch" else [tagged, changed, {**tagged}]
    receipt = book.take([*last, engine.say("Noted", text="good")]).receipt
    assert [(one.index, one.code) for one in receipt.refused] == [(1, "conflict")]
    assert (receipt.repeated, receipt.kept + receipt.parked) == ((1, 2) if place == "in the batch" else (2, 1))


def test_how_far_a_stream_was_heard_is_told_however_its_events_come(book: Book) -> None:
    engine = Teller()
    one, two, three, four, five = (
        engine.register(TWO), *(engine.say("Noted", "1.1.1", text="x") for _ in range(4))
    )  # fmt: skip

    def heard() -> tuple[int, str]:
        [row] = book.rows(StreamRow)
        return row.watermark, row.ahead

    book.take([one, two, one])
    assert heard() == (2, "[]"), "on, and then a repeat"
    assert book.take([two]).changes.streams == []
    book.take([four, four])
    assert heard() == (2, "[[4,4]]")
    book.take([five, three])
    assert heard() == (5, "[]")


def test_a_number_out_of_all_reach_is_refused_and_spoils_no_stream(book: Book) -> None:
    engine = Teller()
    registered = engine.register(TWO)
    near, far = engine.say("Noted", "1.1.1", text="x"), engine.say("Noted", text="y")
    for n, code in ((COUNTER_MAX, "jumped"), (registered["n"] + JUMP_MAX + 1, "jumped")):
        receipt = book.take([registered, {**near, "n": n}, {**far, "n": n - 1 if n == COUNTER_MAX else n}]).receipt
        assert [one.code for one in receipt.refused] == [code, code]
    assert book.take([near, far]).receipt.refused == []
    assert [(row.watermark, row.ahead) for row in book.rows(StreamRow)] == [(far["n"], "[]")]
    # Within reach it is taken, as what a dump of one of many jobs has.
    assert book.take([{**far, "n": far["n"] + JUMP_MAX}]).receipt.refused == []


def test_a_repeat_written_another_way_is_the_same_event(book: Book) -> None:
    engine = Teller()
    registered, tagged = engine.register(TWO), engine.say("Tagged", "1.1.1", name="study", value="A", at=2000.0)
    book.take([registered, tagged])
    text = msgspec.json.encode(tagged).replace(b"2000.0", b"2e3").replace(b'"A"', b'"\\u0041"')
    checked, refused, _ = book.codec.read_batch(b'{ "events" : [ ' + text + b" ] }")
    assert refused == []
    assert book.keep(checked).receipt.repeated == 1


def test_an_event_is_parked_until_its_job_is_registered_even_in_the_same_batch(book: Book) -> None:
    engine = Teller()
    registered, accepted = engine.register(TWO), engine.say("JobAccepted")
    receipt = book.take([accepted], received=500.0).receipt
    assert (receipt.kept, receipt.parked, receipt.position) == (0, 1, 0)
    assert [row.job for row in book.rows(ParkedRow)] == ["j"]
    receipt = book.take([accepted, engine.say("Noted", "1.1.1", text="x"), registered], received=600.0).receipt
    assert (receipt.kept, receipt.parked, receipt.repeated, receipt.position) == (3, 0, 1, 3)
    assert book.rows(ParkedRow) == []
    assert book.job("j").state == "WAITING"
    assert [row.received for row in book.rows(EventRow)] == [600.0, 600.0, 500.0], "when it came, not when it counted"


def test_an_event_as_large_as_may_be_is_not_lost_while_parked() -> None:
    engine = Teller()
    registered, noted = engine.register(TWO), engine.say("Noted", text="x" * 1000)
    del noted["epoch"]  # plain, and short: as it is kept it must not be counted longer
    text = msgspec.json.encode({**noted, "time": 7})
    book = MemoryBook()
    book.codec = Codec(limits=Limits(event_bytes_max=len(text)))
    found = book.codec.read(text, 0)
    assert isinstance(found, Checked)
    assert book.keep([found]).receipt.parked == 1
    book.take([registered])
    assert len(book.rows(EventRow)) == 2


def test_events_of_a_purged_job_are_refused_and_of_a_sealed_one_bring_it_back() -> None:
    engine, book = Teller(), MemoryBook()
    book.take([engine.register(TWO)])
    [row] = book.rows(JobRow)
    row.place = "sealed"
    book.memory.put_rows([row])
    with pytest.raises(JobsSealed) as told_so:
        book.take([engine.say("JobAccepted")])
    assert told_so.value.jobs == ("j",)
    row.place = "purged"
    book.memory.put_rows([row])
    receipt = book.take([engine.say("JobAccepted"), {**engine.say("Noted", text="x"), "job": "k"}]).receipt
    assert [(one.index, one.code) for one in receipt.refused] == [(0, "purged")]
    assert receipt.parked == 1


def test_of_a_stream_of_holes_the_oldest_is_given_up_and_nothing_new_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "RANGES_MAX", 1)
    engine, book = Teller(), MemoryBook()
    events = [engine.register(TWO), *(engine.say("Noted", text=str(n)) for n in range(7))]
    assert book.take([events[at] for at in (0, 2, 4, 6, 7)]).receipt.refused == []
    assert [(one.index, one.code) for one in book.take(events).receipt.refused] == [(1, "conflict"), (3, "conflict")]


def states_before(book: Book, events: Sequence[WireEvent]) -> list[tuple[str, str | None, str]]:
    return [
        ("package", each.state_before, each.package.facts.state)
        if each.package is not None
        else ("job", each.state_before, each.job.state)
        for each in book.take(events).moved()
    ]


def test_what_moved_is_told_with_what_it_was() -> None:
    engine, book = Teller(), MemoryBook()
    assert states_before(book, [engine.register(TWO)]) == [("job", None, "SUBMITTED")]
    assert states_before(book, [engine.say("Noted", "1.1.1", text="x")]) == [("package", None, "SUBMITTED")]
    assert states_before(book, [engine.say("JobAccepted")]) == [
        ("package", "SUBMITTED", "WAITING"),
        ("job", "SUBMITTED", "WAITING"),
    ]
    assert states_before(book, [engine.say("AttemptStarted", "1.1.1/1")]) == [
        ("package", "WAITING", "RUNNING"),
        ("job", "WAITING", "RUNNING"),
    ]
    assert states_before(book, [engine.say("Tagged", "1.1.1", name="a", value="b")]) == [
        ("package", "RUNNING", "RUNNING"),
    ]


def test_a_stage_counts_what_its_job_counts() -> None:
    engine = Teller()
    book = told(engine.register(TWO, TWO), engine.say("JobAccepted"), engine.say("CommitGranted", "2.1.1/1"))
    assert [(row.waiting, row.done, row.expected) for row in book.rows(StageRow)] == [(2, 0, 2), (1, 1, 2)]
    assert (book.job("j").waiting, book.job("j").done) == (3, 1)
