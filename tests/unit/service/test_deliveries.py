"""Notices on their way: in order, tried again, nothing lost when a receiver, an address or the service goes away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotage.adapters.notifiers.networks import LOOPBACK
from pilotage.adapters.notifiers.smtp import SmtpNotifier, SmtpServer
from pilotage.adapters.notifiers.webhook import WebhookNotifier
from pilotage.book.notices.notices import RETRY_SECONDS_MAX, retry_seconds
from pilotage.book.rows.tables import NoticeRow
from pilotage.ports import DeliveryRefused, JournalUnavailable, NotDelivered
from pilotage.service.notifications.deliveries import TROUBLE_SECONDS, Deliveries, DueDelivery, SubscriptionDeliveries
from pilotage.service.notifications.subscriptions import SubscriptionRequest
from tests.engines.smtp import BreakOff as MailBreakOff
from tests.engines.smtp import MailServer
from tests.kit.events import StandingClock
from tests.kit.notified import ADA, ADDRESS, BASE_URL, BOB, Notified, run_due
from tests.kit.webhook_receiver import BreakOff, Hang, Status, WebhookReceiver


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Notified]:
    with Notified(tmp_path) as notified:
        notified.register(lines=9)
        yield notified


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as running:
        yield running
    assert running.planned == ()


def hooked(folder: Path, *, timeout_seconds: float = 5.0) -> Notified:
    """A book whose webhooks really go out."""
    made = Notified(folder)
    webhook = WebhookNotifier(clock=made.clock, networks=LOOPBACK, timeout_seconds=timeout_seconds)
    made.notifiers["webhook"] = webhook
    made.register(lines=9)
    return made


def left(book: Notified) -> int:
    with book.journal.transaction() as ledger:
        return len(ledger.find_rows(NoticeRow, having={}))


def packages(receiver: WebhookReceiver) -> list[str]:
    return [post.event["data"]["package"] for post in receiver.posts]


def test_notices_are_told_in_order_and_then_forgotten(book: Notified) -> None:
    book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    for line in range(1, 6):
        book.run(f"1.{line}.1")
    book.deliver()
    assert [notice.subject for _, notice in book.notifier.told] == [f"jobs/j1/packages/1.{n}.1" for n in range(1, 6)]
    assert left(book) == 0
    assert run_due(book.deliveries) == 0


def test_nothing_is_sent_before_that_has_happened_which_it_tells(book: Notified) -> None:
    book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    settled: list[int] = []
    due_deliveries = SubscriptionDeliveries(book.subscriptions, clock=book.clock, base_url=BASE_URL)
    due_deliveries.settle = lambda: settled.append(len(book.notifier.told))
    book.run("1.1.1")
    assert run_due(Deliveries([due_deliveries], clock=book.clock)) == 1
    assert (settled, len(book.notifier.told)) == ([0], 1)


def test_what_failed_is_tried_again_later_and_later_and_at_most_five_minutes_apart(book: Notified) -> None:
    row = book.subscriptions.create(
        ADA, SubscriptionRequest(transport="webhook", address=ADDRESS, validity_seconds=80_000)
    )
    book.notifier.faults.extend(NotDelivered("down") for _ in range(12))
    book.run("1.1.1")
    waits = []
    while not book.notifier.told:
        book.deliver()
        at = book.subscriptions.get(ADA, row.subscription).next_at
        if at > book.clock.now():
            waits.append(at - book.clock.now())
            book.clock.at = at
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    told = book.subscriptions.get(ADA, row.subscription)
    assert (told.attempts, told.fault, told.next_at) == (0, "", 0.0)


def test_nothing_is_tried_before_its_time(book: Notified) -> None:
    book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    book.notifier.faults.append(NotDelivered("down", after_seconds=40.0))
    book.run("1.1.1")
    book.deliver()
    assert book.deliveries.next_at() == book.clock.now() + 40.0
    book.run("1.2.1")
    book.wait(39.9)
    book.deliver()
    assert book.notifier.tries == 1
    book.wait(0.1)
    book.deliver()
    assert len(book.notifier.told) == 2


def test_what_is_refused_for_good_is_tried_until_the_subscription_ends(book: Notified) -> None:
    row = book.subscriptions.create(
        ADA, SubscriptionRequest(transport="webhook", address=ADDRESS, validity_seconds=100)
    )
    book.notifier.faults.extend(DeliveryRefused("gone") for _ in range(50))
    book.run("1.1.1")
    book.deliver()
    assert book.subscriptions.get(ADA, row.subscription).fault == "gone"
    book.wait(50)
    book.deliver()
    assert (book.notifier.tries, left(book)) == (2, 1)
    book.wait(51)
    book.deliver()
    assert (book.notifier.tries, left(book)) == (2, 0)
    assert book.subscriptions.of(ADA) == []


def test_what_was_taken_before_a_fault_is_not_sent_again_and_begins_the_count_anew(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    for line in range(1, 6):
        book.run(f"1.{line}.1")
    book.notifier.faults.extend([NotDelivered("down"), NotDelivered("down"), None, NotDelivered("down")])
    tried = []
    for _ in range(3):
        book.deliver()
        tried.append((book.subscriptions.get(ADA, row.subscription).attempts, left(book)))
        book.wait(RETRY_SECONDS_MAX)
    assert tried == [(1, 5), (2, 5), (1, 2)]
    book.deliver()
    assert len(book.notifier.ids) == len(set(book.notifier.ids)) == 5


def test_a_receiver_is_left_alone_for_the_pause_of_its_transport(book: Notified) -> None:
    book.notifier.pause_seconds = 60.0
    book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    for line in range(1, 6):
        book.run(f"1.{line}.1")
    book.deliver()
    assert len(book.notifier.told) == 3
    book.wait(59)
    book.deliver()
    assert len(book.notifier.told) == 3
    book.wait(1)
    book.deliver()
    assert len(book.notifier.told) == 5


def test_a_failing_receiver_holds_up_nobody_else(book: Notified) -> None:
    book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address="fake:a"))
    book.run("1.1.1")
    book.notifier.faults.append(NotDelivered("down"))
    book.deliver()
    book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address="fake:b"))
    book.run("1.2.1")
    book.deliver()
    assert [(address, notice.subject[-5:]) for address, notice in book.notifier.told] == [("fake:b", "1.2.1")]


def test_tries_and_the_queue_survive_a_restart(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    book.notifier.faults.extend(NotDelivered("down") for _ in range(3))
    book.run("1.1.1")
    for _ in range(3):
        book.deliver()
        book.clock.at = book.subscriptions.get(ADA, row.subscription).next_at
    book.clock.at -= 1
    book.restart()
    assert book.subscriptions.get(ADA, row.subscription).attempts == 3
    book.deliver()
    assert book.notifier.told == []
    book.wait(1)
    book.deliver()
    assert len(book.notifier.told) == 1


def test_a_rebind_takes_the_queue_along_at_once(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address="fake:old"))
    book.notifier.faults.extend(NotDelivered("moved away") for _ in range(2))
    for line in (1, 2):
        book.run(f"1.{line}.1")
        book.deliver()
    bound = book.subscriptions.rebind(ADA, row.subscription, transport="webhook", address="fake:new")
    book.notifier.faults.clear()
    book.deliver()
    assert [address for address, _ in book.notifier.told] == ["fake:new", "fake:new"]
    assert bound.secret == row.secret
    polled = book.subscriptions.rebind(ADA, row.subscription, transport="poll", address="")
    book.run("1.3.1")
    book.deliver()
    assert len(book.subscriptions.notices(ADA, polled.subscription, after=(0, 0), limit=9)) == 1


def test_a_rebind_while_the_old_address_hangs_is_not_punished_for_it(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address="fake:old"))
    book.run("1.1.1")
    found = book.subscriptions.turn(row.subscription, limit=10)
    assert found is not None
    book.subscriptions.rebind(ADA, row.subscription, transport="webhook", address="fake:new")
    book.subscriptions.record_turn(found[0], through=None, fault="hung", next_at=book.clock.now() + 300)
    book.deliver()
    assert [address for address, _ in book.notifier.told] == ["fake:new"]


def test_a_drop_while_a_notice_is_on_its_way_leaves_nothing_behind(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    book.run("1.1.1")
    found = book.subscriptions.turn(row.subscription, limit=10)
    assert found is not None
    book.subscriptions.drop(ADA, row.subscription)
    book.subscriptions.record_turn(found[0], through=(3, 1), fault="", next_at=0.0)
    assert book.subscriptions.of(ADA) == []
    book.restart()
    assert book.subscriptions.of(ADA) == []


def test_a_receiver_that_is_down_gets_everything_in_order_when_it_is_back(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with hooked(tmp_path) as book:
        row = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=receiver.url))
        book.run("1.1.1")
        book.deliver()
        receiver.stop()
        for line in (2, 3):
            book.run(f"1.{line}.1")
        book.deliver()
        assert "refused" in book.subscriptions.get(ADA, row.subscription).fault
        book.restart()
        book.run("1.4.1")
        receiver.start()
        book.wait(RETRY_SECONDS_MAX)
        book.deliver()
        assert packages(receiver) == ["1.1.1", "1.2.1", "1.3.1", "1.4.1"]


def test_what_a_receiver_may_have_taken_is_sent_again_with_the_same_id(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with hooked(tmp_path) as book:
        book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=receiver.url))
        receiver.plan(BreakOff(), Status(503), Status(204), BreakOff())
        book.run("1.1.1")
        book.run("1.2.1")
        for _ in range(5):
            book.deliver()
            book.wait(RETRY_SECONDS_MAX)
        events = [post.event for post in receiver.posts]
        assert [event["data"]["package"] for event in events] == ["1.1.1", "1.1.1", "1.2.1", "1.2.1"]
        assert receiver.posts[0].body == receiver.posts[1].body
        assert len({(event["source"], event["id"]) for event in events}) == 2


def test_a_service_that_dies_before_it_notes_what_was_told_tells_it_again(book: Notified) -> None:
    book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    book.run("1.1.1")
    book.run("1.2.1")
    row = book.subscriptions.waiting()[0]
    found = book.subscriptions.turn(row.subscription, limit=1)
    assert found is not None
    book.restart()
    book.deliver()
    assert [notice.subject[-5:] for _, notice in book.notifier.told] == ["1.1.1", "1.2.1"]


def test_a_hanging_receiver_is_given_up_in_time_and_holds_up_nobody(tmp_path: Path, receiver: WebhookReceiver) -> None:
    with hooked(tmp_path, timeout_seconds=0.2) as book, WebhookReceiver() as other:
        slow = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=receiver.url))
        receiver.plan(Hang())
        book.subscriptions.create(BOB, SubscriptionRequest(transport="webhook", address=other.url))
        book.register("j2", owner="bob")
        book.run("1.1.1")
        book.run("1.1.1", job="j2")
        book.deliver()
        assert packages(other) == ["1.1.1"]
        assert "in time" in book.subscriptions.get(ADA, slow.subscription).fault
        book.wait(1)
        book.deliver()
        assert packages(receiver) == ["1.1.1"]


def test_the_thread_delivers_by_itself_what_batches_cause(tmp_path: Path, receiver: WebhookReceiver) -> None:
    with hooked(tmp_path) as book:
        book.deliveries.start()
        try:
            book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=receiver.url))
            for line in range(1, 6):
                book.run(f"1.{line}.1")
                receiver.wait_for(line)
            assert packages(receiver) == [f"1.{line}.1" for line in range(1, 6)]
        finally:
            book.deliveries.stop()
        assert left(book) == 0


def test_while_one_hangs_the_thread_serves_the_others(tmp_path: Path, receiver: WebhookReceiver) -> None:
    with hooked(tmp_path, timeout_seconds=20) as book, WebhookReceiver() as other:
        receiver.plan(Hang())
        book.deliveries.start()
        try:
            book.subscriptions.create(
                ADA, SubscriptionRequest(query="package=1.1.1", transport="webhook", address=receiver.url)
            )
            book.subscriptions.create(
                ADA, SubscriptionRequest(query="package!=1.1.1", transport="webhook", address=other.url)
            )
            book.run("1.1.1")
            for line in (2, 3, 4):
                book.run(f"1.{line}.1")
            other.wait_for(3)
            assert receiver.posts == ()
        finally:
            receiver.stop()
            book.deliveries.stop()


def test_mails_of_a_subscription_are_together_and_at_most_one_a_minute(tmp_path: Path, mail_server: MailServer) -> None:
    with Notified(tmp_path) as book:
        server = SmtpServer(host=mail_server.host, port=mail_server.port, sender="pilotage@example.org")
        book.notifiers["mail"] = SmtpNotifier(server, clock=book.clock)
        book.register(lines=9)
        book.subscriptions.create(ADA, SubscriptionRequest(transport="mail", address="ada@example.org"))
        book.run("1.1.1")
        book.run("1.2.1")
        book.deliver()
        for line in (3, 4, 5):
            book.run(f"1.{line}.1")
            book.wait(10)
            book.deliver()
        assert len(mail_server.mails) == 1
        book.wait(30)
        book.deliver()
        first, second = (mail.message for mail in mail_server.mails)
        assert first["Subject"] == "[pilotage] 2 changes: jobs/j1/packages/1.1.1 …"
        assert second["Subject"].startswith("[pilotage] 3 changes")
        assert "jobs/j1/packages/1.4.1 WAITING → RUNNING site=lyon" in second.get_content()


def test_a_mail_server_that_says_later_or_breaks_off_gets_it_again(tmp_path: Path, mail_server: MailServer) -> None:
    with Notified(tmp_path) as book:
        server = SmtpServer(host=mail_server.host, port=mail_server.port, sender="pilotage@example.org")
        book.notifiers["mail"] = SmtpNotifier(server, clock=book.clock)
        book.register()
        row = book.subscriptions.create(ADA, SubscriptionRequest(transport="mail", address="ada@example.org"))
        mail_server.plan("451 4.3.0 later", MailBreakOff(), "550 5.1.1 nobody here")
        book.run("1.1.1")
        faults = []
        for _ in range(3):
            book.deliver()
            faults.append(book.subscriptions.get(ADA, row.subscription).fault)
            book.wait(RETRY_SECONDS_MAX)
        book.deliver()
        kept, again = (mail.message for mail in mail_server.mails)
        assert kept["Message-ID"] == again["Message-ID"]
        assert "451" in faults[0]
        assert "550" in faults[2]
        assert left(book) == 0


def test_a_journal_that_does_not_answer_is_asked_again_later() -> None:
    clock = StandingClock()
    tries: list[float] = []

    def fail() -> None:
        tries.append(clock.now())
        raise JournalUnavailable("gone")

    class Trouble:
        def due_deliveries(self) -> list[DueDelivery]:
            return [DueDelivery("x", 0.0, fail)]

        def on_news(self, woken: object) -> None:
            """Nothing is ever new."""

    deliveries = Deliveries([Trouble()], clock=clock)
    assert (run_due(deliveries), run_due(deliveries)) == (1, 0)
    clock.at += TROUBLE_SECONDS
    assert run_due(deliveries) == 1
    assert len(tries) == 2


def test_one_receiver_is_never_told_two_things_at_once() -> None:
    clock = StandingClock()
    under_way = threading.Semaphore(1)
    overlapped: list[bool] = []
    done = threading.Event()
    runs: list[int] = []

    def run() -> None:
        overlapped.append(not under_way.acquire(blocking=False))
        runs.append(1)
        for woken in news:
            woken()
        under_way.release()
        if len(runs) == 50:
            done.set()

    news: list[Callable[[], None]] = []

    class Busy:
        def due_deliveries(self) -> list[DueDelivery]:
            return [DueDelivery("x", 0.0, run)]

        def on_news(self, woken: Callable[[], None]) -> None:
            news.append(woken)

    deliveries = Deliveries([Busy()], clock=clock)
    deliveries.start()
    assert done.wait(30)
    deliveries.stop()
    assert not any(overlapped)


def test_the_wait_is_never_longer_than_the_cap_however_often_it_failed() -> None:
    assert retry_seconds(10_000, chance=1.0) == RETRY_SECONDS_MAX
    assert retry_seconds(10_000, chance=0.0) == RETRY_SECONDS_MAX / 2
    assert 0.5 <= retry_seconds(0, chance=0.0) <= 1.0


def test_a_transport_that_the_service_lost_keeps_the_queue(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    notifier = book.notifiers.pop("webhook")
    book.run("1.1.1")
    book.deliver()
    assert "no transport webhook" in book.subscriptions.get(ADA, row.subscription).fault
    book.notifiers["webhook"] = notifier
    book.wait(RETRY_SECONDS_MAX)
    book.deliver()
    assert len(book.notifier.told) == 1


def test_the_agenda_of_a_book_without_subscriptions_is_empty(book: Notified) -> None:
    due_deliveries = SubscriptionDeliveries(book.subscriptions, clock=book.clock, base_url=BASE_URL)
    assert list(due_deliveries.due_deliveries()) == []
