"""What notifications need of a journal: rows by key, in order, in the transaction of a batch. Both journals pass it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotage.adapters.journals.postgres.journal import PostgresJournal
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.rows.tables import FailureRow, MailRow, NoticeRow, SubscriptionRow, WatchedRow
from pilotage.model.events.payloads import Tagged
from pilotage.model.settings.settings import NotificationSettings
from pilotage.ports import Journal
from pilotage.service.notifications.subscriptions import SubscriptionRequest
from tests.kit.notified import ADA, ADDRESS, FakeMailer, Notified

AWKWARD = "a\x00b \U0001f600 \u2028 'quoted' \\u0000"


@pytest.fixture(params=["sqlite", "postgres"])
def open_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Journal]:
    if request.param == "sqlite":
        return lambda: SqliteJournal(tmp_path, durable=False)
    url = request.getfixturevalue("postgres_url")
    return lambda: PostgresJournal(url)


@pytest.fixture
def journal(open_journal: Callable[[], Journal]) -> Iterator[Journal]:
    opened = open_journal()
    yield opened
    opened.close()


def notice(subscription: str, position: int, part: int) -> NoticeRow:
    return NoticeRow(
        subscription=subscription,
        position=position,
        part=part,
        type="t",
        job="j1",
        package="1.1.1",
        time=1.5,
        data="{}",
    )


NOTICES = [notice("a", 2, 1), notice("a", 10, 1), notice("a", 10, 2), notice("b", 3, 1)]


def numbers(rows: list[NoticeRow]) -> list[tuple[str, int, int]]:
    return [(row.subscription, row.position, row.part) for row in rows]


def test_rows_are_found_by_values_in_the_order_of_their_key(journal: Journal) -> None:
    with journal.transaction() as ledger:
        ledger.put_rows(NOTICES[::-1])
        assert numbers(ledger.find_rows(NoticeRow, having={})) == numbers(NOTICES)
    with journal.transaction() as ledger:
        assert ledger.find_rows(NoticeRow, having={"subscription": "a"}) == NOTICES[:3]
        assert ledger.find_rows(NoticeRow, having={"subscription": "a"}, limit=2) == NOTICES[:2]
        assert ledger.find_rows(NoticeRow, having={"subscription": "a"}, after=("a", 2, 1)) == NOTICES[1:3]
        assert ledger.find_rows(NoticeRow, having={"subscription": "a"}, after=("a", 10, 1), limit=5) == NOTICES[2:3]
        assert ledger.find_rows(NoticeRow, having={"subscription": "c"}) == []


def test_rows_are_removed_up_to_a_key(journal: Journal) -> None:
    with journal.transaction() as ledger:
        ledger.put_rows(NOTICES)
        ledger.remove_rows(NoticeRow, having={"subscription": "a"}, through=("a", 10, 1))
        assert numbers(ledger.find_rows(NoticeRow, having={})) == [("a", 10, 2), ("b", 3, 1)]
        ledger.remove_rows(NoticeRow, having={"subscription": "a"})
        assert numbers(ledger.find_rows(NoticeRow, having={})) == [("b", 3, 1)]


def test_rows_are_found_by_many_keys_at_once(journal: Journal) -> None:
    watched = [
        WatchedRow(subscription="a", job_id=1, stage=1, line=line, number=1, told="{}") for line in range(1, 1001)
    ]
    by = ("subscription", "job_id", "stage", "line", "number")
    with journal.transaction() as ledger:
        ledger.put_rows(watched)
        keys = [("a", 1, 1, line, 1) for line in range(500, 1500)]
        found = ledger.rows_by_keys(WatchedRow, by=by, keys=keys)
        assert sorted(row.line for row in found) == list(range(500, 1001))
        assert list(ledger.rows_by_keys(WatchedRow, by=by, keys=[])) == []


def test_a_row_takes_the_place_of_the_one_with_the_same_key_and_nothing_is_lost_of_it(journal: Journal) -> None:
    first = SubscriptionRow(subscription="a", owner="ada")
    second = SubscriptionRow(subscription="a", owner=AWKWARD, expires_at=1_700_000_000.123456, binding=7, fault="é")
    mail = MailRow(recipient="r", number=1, subject="é", body="x\ny\n", composed_at=0.1, sent_at=None)
    with journal.transaction() as ledger:
        ledger.put_rows([first])
        ledger.put_rows([second])
        ledger.put_rows([mail])
    with journal.transaction() as ledger:
        assert ledger.find_rows(SubscriptionRow, having={}) == [second]
        assert ledger.find_rows(MailRow, having={"recipient": "r"}) == [mail]


def test_what_a_transaction_that_is_undone_put_is_not_there(journal: Journal) -> None:
    def put_and_fail() -> None:
        with journal.transaction() as ledger:
            ledger.put_rows(NOTICES)
            raise RuntimeError("undone")

    with pytest.raises(RuntimeError):
        put_and_fail()
    with journal.transaction() as ledger:
        assert ledger.find_rows(NoticeRow, having={}) == []


def test_subscriptions_and_digests_work_on_it_across_a_restart(
    open_journal: Callable[[], Journal], tmp_path: Path
) -> None:
    mailer = FakeMailer()
    settings = NotificationSettings(cluster_management=("cluster@example.org",))
    with Notified(tmp_path, settings=settings, mailer=mailer, open_journal=open_journal) as book:
        pushed = book.subscriptions.create(
            ADA, SubscriptionRequest(transport="webhook", address=ADDRESS, attributes=("tag.x", "state"))
        )
        polled = book.subscriptions.create(ADA, SubscriptionRequest(query="site=lyon"))
        book.register(lines=2)
        book.say(Tagged(name="x", value=AWKWARD), package="1.1.1")
        book.restart()
        book.say(Tagged(name="x", value=AWKWARD), package="1.1.1")
        book.run("1.1.1")
        book.fail("1.1.1", reason="platform-failure", exit_message=AWKWARD)
        book.deliver()
        assert [notice.type.rpartition(".")[2] for _, notice in book.notifier.told] == ["changed", "state", "state"]
        assert len(book.subscriptions.notices(ADA, polled.subscription, after=(0, 0), limit=10)) == 2
        assert sorted(letter.recipients[0] for letter in mailer.letters) == ["ada@example.org", "cluster@example.org"]
        book.subscriptions.drop(ADA, pushed.subscription)
        with book.journal.transaction() as ledger:
            assert {row.subscription for row in ledger.find_rows(NoticeRow, having={})} == {polled.subscription}
            assert ledger.find_rows(WatchedRow, having={}) == []
            assert [row.told for row in ledger.find_rows(FailureRow, having={})] == [1]
