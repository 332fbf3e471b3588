"""What holds of notifications whatever happens: nothing lost, nothing doubled, nothing out of order."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.book.notices.notices import Notice, Number, number_text, read_number, retry_seconds
from pilotage.book.query import Target, parse
from pilotage.model.events.payloads import AttemptFinished
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import NotDelivered
from pilotage.service.notifications.subscriptions import SubscriptionRequest
from tests.kit.events import START, cut, delivered, random_history
from tests.kit.notified import ADDRESS, OPERATOR, FakeMailer, FakeNotifier, Notified

JOBS = parse("job in (job-1, job-2)", target=Target.PACKAGES)

seeds = st.integers(min_value=0, max_value=2**32)


@contextmanager
def a_book(**more: Any) -> Iterator[Notified]:
    with tempfile.TemporaryDirectory() as folder, Notified(Path(folder), **more) as book:
        yield book


def batches(chance: random.Random) -> Iterator[list[Any]]:
    yield from cut(delivered(random_history(chance, steps=60), chance), chance)


def states(book: Notified) -> dict[tuple[str, str], str]:
    page = book.journal.find_packages(JOBS, after=None, limit=10_000)
    return {
        (found.job, PackageId(found.row.stage, found.row.line, found.row.number).dotted): found.row.facts.state
        for found in page.items
    }


@settings(max_examples=25)
@given(seeds)
def test_the_moves_of_a_package_that_are_told_are_a_chain_to_where_it_stands(seed: int) -> None:
    chance = random.Random(seed)
    with a_book() as book:
        row = book.subscriptions.create(OPERATOR, SubscriptionRequest())
        for events in batches(chance):
            book.take(*events)
            if chance.random() < 0.1:
                book.restart()
        told: dict[tuple[str, str], list[tuple[str, str]]] = {}
        found = book.subscriptions.notices(OPERATOR, row.subscription, after=(0, 0), limit=100_000)
        for each in found:
            data = msgspec.json.decode(each.data)
            told.setdefault((each.job, each.package), []).append((data["state_before"], data["state"]))
        now = states(book)
        for package, moves in told.items():
            assert all(before != after for before, after in moves)
            assert all(after == before for (_, after), (before, _) in pairwise(moves)), package
            assert moves[-1][1] == now[package]
        still = {"SUBMITTED", "WAITING", "CANCELLED", "ABORTED"}
        assert all(state in still for package, state in now.items() if package not in told)


@settings(max_examples=25)
@given(seeds)
def test_of_watched_attributes_the_last_told_value_is_the_value_there_is(seed: int) -> None:
    chance = random.Random(seed)
    watched = ("site", "node", "exit_code", "held", "attempts", "tag.colour")
    with a_book() as book:
        row = book.subscriptions.create(OPERATOR, SubscriptionRequest(attributes=watched))
        for events in batches(chance):
            book.take(*events)
            if chance.random() < 0.1:
                book.restart()
        told: dict[tuple[str, str], dict[str, Any]] = {}
        for each in book.subscriptions.notices(OPERATOR, row.subscription, after=(0, 0), limit=100_000):
            data = msgspec.json.decode(each.data)
            assert data["changed"]
            told[each.job, each.package] = data | {"tag.colour": data["tags"]["colour"]}
        page = book.journal.find_packages(JOBS, after=None, limit=10_000)
        for found in page.items:
            facts = found.row.facts
            place = PackageId(found.row.stage, found.row.line, found.row.number).dotted
            values = {
                "site": facts.site,
                "node": facts.node,
                "exit_code": facts.exit_code,
                "held": bool(facts.held),
                "attempts": len(facts.attempts),
                "tag.colour": facts.tags["colour"][0] if "colour" in facts.tags else None,
            }
            last = told.get((found.job, place), {})
            assert {name: last.get(name) or None for name in values} == {k: v or None for k, v in values.items()}


class Unreliable(FakeNotifier):
    """Fails before, in the middle of, or after telling."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def tell(self, address: str, notices: Sequence[Notice], *, secret: str) -> None:
        """Tell some of it, and perhaps fail."""
        if self._chance.random() < 0.4:
            super().tell(address, notices[: self._chance.randint(0, len(notices))], secret=secret)
            raise NotDelivered("somewhere in between")
        super().tell(address, notices, secret=secret)


@settings(max_examples=25)
@given(seeds)
def test_whatever_fails_everything_arrives_in_order_and_repeats_can_be_known(seed: int) -> None:
    chance = random.Random(seed)
    notifier = Unreliable(chance)
    with a_book(notifiers={"webhook": notifier}) as book:
        pushed = book.subscriptions.create(
            OPERATOR, SubscriptionRequest(transport="webhook", address=ADDRESS, validity_seconds=86_400)
        )
        polled = book.subscriptions.create(OPERATOR, SubscriptionRequest(validity_seconds=86_400))
        for events in batches(chance):
            book.take(*events)
            if chance.random() < 0.5:
                book.deliver()
            if chance.random() < 0.1:
                book.restart()
            if chance.random() < 0.1:
                book.subscriptions.rebind(OPERATOR, pushed.subscription, transport="webhook", address="fake:other")
            book.wait(chance.choice([0.0, 1.0, 30.0]))
        for _ in range(200):
            book.wait(300)
            book.deliver()
        wanted = book.subscriptions.notices(OPERATOR, polled.subscription, after=(0, 0), limit=100_000)
        first_seen = list(dict.fromkeys(notifier.ids))
        assert first_seen == [number_text((each.position, each.part)) for each in wanted]


@settings(max_examples=25)
@given(seeds)
def test_every_failure_is_in_exactly_one_letter(seed: int) -> None:
    chance = random.Random(seed)
    mailer = FakeMailer()
    history = random_history(chance, steps=60)
    failed = 0
    for event in history:
        if event.type in ("Aborted", "AttemptLost"):
            failed += 1
        elif event.type == "AttemptFinished":
            code = msgspec.json.decode(event.data, type=AttemptFinished).exit_code
            failed += code not in ("SUCCESS", "EXECUTION_CANCELED")
    with a_book(mailer=mailer) as book:
        for events in cut(delivered(history, chance), chance):
            book.take(*events)
            if chance.random() < 0.3:
                mailer.faults.append(NotDelivered("later"))
            if chance.random() < 0.1:
                book.restart()
            book.deliver()
            book.wait(chance.choice([0.0, 10.0, 61.0]))
        for _ in range(10 + len(mailer.faults)):
            book.wait(300)
            book.deliver()
        counts = [letter.subject.split() for letter in mailer.letters]
        told = sum(int(words[1]) for words in counts if words[2].startswith("failure"))
        assert told == failed
        assert len({letter.id for letter in mailer.letters}) == len(mailer.letters)


@given(st.tuples(st.integers(0, 10**16 - 1), st.integers(0, 10**9 - 1)))
def test_a_number_is_read_back_as_it_was_written(number: Number) -> None:
    assert read_number(number_text(number)) == number


@given(st.text())
def test_reading_a_number_never_fails(text: str) -> None:
    found = read_number(text)
    assert found is None or all(part >= 0 for part in found)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_the_wait_grows_and_stays_within_its_bounds(attempts: int, chance: float) -> None:
    wait = retry_seconds(attempts, chance=chance)
    assert 0.5 <= wait <= 300
    assert retry_seconds(attempts + 1, chance=chance) >= wait


def test_the_clock_of_these_tests_stands() -> None:
    with a_book() as book:
        assert book.clock.now() == START
