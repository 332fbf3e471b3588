"""Who is told of what: queries, changes, rights, validity, and that notices are exactly as durable as their events."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.notices.notices import START as BEGINNING
from pilotage.book.notices.notices import number_of, number_text, read_number
from pilotage.book.notices.subscriptions import SubscriptionError, wanted, watchable
from pilotage.book.rows.tables import NoticeRow, SubscriptionRow, WatchedRow
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import Aborted, AccessRule, AccessSet, Bound, CancelAccepted, Held, Tagged
from pilotage.ports import JournalUnavailable
from pilotage.reading.access import Forbidden, Principal
from pilotage.service.notifications.subscriptions import (
    SUBSCRIPTIONS_MAX,
    NotPolled,
    SubscriptionRequest,
    TooManySubscriptions,
    UnknownSubscription,
)
from tests.kit.notified import ADA, ADDRESS, BOB, OPERATOR, Notified


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Notified]:
    with Notified(tmp_path) as notified:
        yield notified


def queued(book: Notified, row: SubscriptionRow, *, principal: Principal = ADA) -> list[dict[str, Any]]:
    found = book.subscriptions.notices(principal, row.subscription, after=BEGINNING, limit=1000)
    return [msgspec.json.decode(each.data) | {"type": each.type} for each in found]


def moves(book: Notified, row: SubscriptionRow) -> list[tuple[str, str, str]]:
    return [(each.get("package", ""), each["state_before"], each["state"]) for each in queued(book, row)]


def test_every_change_of_state_is_told_in_order_when_nothing_else_is_asked_for(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(query="job=j1"))
    book.register()
    book.run("1.1.1")
    book.fail("1.1.1")
    book.run("1.1.1", attempt=2)
    book.grant("1.1.1", attempt=2)
    assert moves(book, row) == [
        ("1.1.1", "WAITING", "RUNNING"),
        ("1.1.1", "RUNNING", "WAITING"),
        ("1.1.1", "WAITING", "RUNNING"),
        ("1.1.1", "RUNNING", "DONE"),
    ]


def test_only_the_states_that_were_named_are_told(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(states=("done", "ABORTED")))
    book.register()
    book.run("1.1.1")
    book.grant("1.1.1")
    book.say(Aborted(cause="quota"), package="1.2.1")
    assert moves(book, row) == [("1.1.1", "RUNNING", "DONE"), ("1.2.1", "WAITING", "ABORTED")]


def test_the_query_limits_what_is_told(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(query="site=lyon and tag.colour=red"))
    book.register()
    book.say(Tagged(name="colour", value="red"), package="1.1.1")
    book.say(Tagged(name="colour", value="red"), package="1.2.1")
    book.run("1.1.1", site="lyon")
    book.run("1.2.1", site="prague")
    book.run("1.3.1", site="lyon")
    assert moves(book, row) == [("1.1.1", "WAITING", "RUNNING")]


def test_jobs_can_be_watched_instead_of_packages(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(target="jobs", query="name=name-j1"))
    book.register(lines=1)
    book.run("1.1.1")
    book.grant("1.1.1")
    told = queued(book, row)
    assert [(each["state_before"], each["state"]) for each in told][-2:] == [
        ("WAITING", "RUNNING"),
        ("RUNNING", "DONE"),
    ]
    assert told[-1]["counts"] == {"packages": 1, "done": 1, "aborted": 0, "cancelled": 0, "failed": 0}
    assert told[-1]["type"] == "io.pilotage.job.state"


def test_a_package_that_moves_because_its_job_was_cancelled_is_told(book: Notified) -> None:
    book.register()
    book.say(Bound(site="lyon"), package="1.1.1")
    row = book.subscriptions.create(ADA, SubscriptionRequest(states=("CANCELLED",)))
    book.say(CancelAccepted())
    assert moves(book, row) == [("1.1.1", "READY", "CANCELLED")]


def test_a_package_first_heard_of_that_stays_where_its_job_put_it_has_not_moved(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest())
    book.register()
    book.say(Tagged(name="colour", value="red"), package="1.1.1")
    assert moves(book, row) == []


def test_watched_attributes_are_told_when_they_change_and_only_then(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(attributes=("tag.step", "held", "site")))
    book.register()
    book.say(Tagged(name="step", value="one"), package="1.1.1")
    book.say(Tagged(name="other", value="x"), package="1.1.1")
    book.say(Tagged(name="step", value="one"), package="1.1.1")
    book.say(Tagged(name="step", value="t" * 5000), package="1.1.1")
    book.say(Tagged(name="step", value="t" * 5000 + "u"), package="1.1.1")
    book.run("1.1.1")
    book.grant("1.1.1")
    told = queued(book, row)
    assert [each["changed"] for each in told] == [["tag.step"], ["tag.step"], ["tag.step"], ["site"]]
    assert told[0]["tags"] == {"step": "one"}
    assert {each["type"] for each in told} == {"io.pilotage.package.changed"}


def test_what_was_last_told_of_watched_attributes_survives_a_restart(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(attributes=("held", "state")))
    book.register()
    book.say(Held(operation=1), package="1.1.1")
    book.restart()
    book.say(Tagged(name="x", value="y"), package="1.1.1")
    book.run("1.1.1")
    assert [each["changed"] for each in queued(book, row)] == [["held"], ["state"]]


def test_only_jobs_that_the_subscriber_may_read_are_told_of(book: Notified) -> None:
    mine = book.subscriptions.create(BOB, SubscriptionRequest(query="all"))
    everything = book.subscriptions.create(OPERATOR, SubscriptionRequest(query="all"))
    book.register("j1", owner="ada")
    book.register("j2", owner="bob")
    book.run("1.1.1", job="j1")
    book.run("1.1.1", job="j2")
    assert [each["job"] for each in queued(book, mine, principal=BOB)] == ["j2"]
    assert [each["job"] for each in queued(book, everything, principal=OPERATOR)] == ["j1", "j2"]
    book.say(AccessSet(rules=(AccessRule(principal="bob", rights=("read",)),)), job="j1")
    book.run("1.2.1", job="j1")
    assert [each["job"] for each in queued(book, mine, principal=BOB)] == ["j2", "j1"]


def test_a_group_on_the_access_list_counts_also_after_a_restart(book: Notified) -> None:
    member = Principal(user="eve", groups=frozenset({"vo"}), scopes=BOB.scopes)
    row = book.subscriptions.create(member, SubscriptionRequest())
    book.register()
    book.say(AccessSet(rules=(AccessRule(principal="group:vo", rights=("read",)),)))
    book.restart()
    book.run("1.1.1")
    assert [each["job"] for each in queued(book, row, principal=member)] == ["j1"]


def test_a_batch_that_is_undone_leaves_no_notice_and_one_sent_again_leaves_one(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest())
    book.register()
    fails = True

    def break_off(*_: object) -> None:
        if fails:
            raise RuntimeError("in the middle of the transaction")

    book.keeper._within = (*book.keeper._within, break_off)
    before = book.stream.n
    with pytest.raises(RuntimeError):
        book.run("1.1.1")
    assert queued(book, row) == []
    fails, book.stream.n = False, before
    book.run("1.1.1")
    book.stream.n = before
    book.run("1.1.1")
    assert moves(book, row) == [("1.1.1", "WAITING", "RUNNING")]


def test_no_notice_is_lost_or_doubled_when_the_service_is_cancelled_at_any_moment(tmp_path: Path, root: Path) -> None:
    def durable() -> SqliteJournal:
        return SqliteJournal(tmp_path)

    with Notified(tmp_path, open_journal=durable) as book:
        row = book.subscriptions.create(ADA, SubscriptionRequest(validity_seconds=80_000))
    acknowledged = 0
    for round_number in range(5):
        command = [sys.executable, "-m", "tests.kit.notified", str(tmp_path), str(acknowledged + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
            assert child.stdout is not None
            for _ in range(7 + 5 * round_number):
                acknowledged = int(child.stdout.readline())
            child.kill()
        with Notified(tmp_path, open_journal=durable) as book:
            found = book.subscriptions.notices(ADA, row.subscription, after=BEGINNING, limit=10_000)
            job = book.journal.job("j1")
            assert job is not None
            # One that was committed, but not yet acknowledged, may be there: with its notice.
            assert [each.package for each in found] == [f"1.{line}.1" for line in range(1, job.running + 1)]
            assert job.running >= acknowledged
            acknowledged = job.running


def test_what_could_not_be_committed_did_not_happen(book: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest())
    committing = book.journal.transaction

    @contextmanager
    def failing() -> Iterator[Any]:
        with committing() as ledger:
            yield ledger
            raise JournalUnavailable("gone before the commit")

    for act in (
        lambda: book.subscriptions.create(ADA, SubscriptionRequest()),
        lambda: book.subscriptions.drop(ADA, row.subscription),
        lambda: book.subscriptions.rebind(ADA, row.subscription, transport="webhook", address=ADDRESS),
    ):
        monkeypatch.setattr(book.journal, "transaction", failing)
        with pytest.raises(JournalUnavailable):
            act()
        monkeypatch.undo()
        assert book.subscriptions.of(ADA) == [row]
    book.register()
    monkeypatch.setattr(book.journal, "transaction", failing)
    with pytest.raises(JournalUnavailable):
        book.subscriptions.drop(ADA, row.subscription)
    monkeypatch.undo()
    book.run("1.1.1")
    assert moves(book, row) == [("1.1.1", "WAITING", "RUNNING")]


def test_a_poller_reads_the_same_again_until_it_acknowledges(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest())
    book.register()
    for line in (1, 2, 3):
        book.run(f"1.{line}.1")
    first = book.subscriptions.notices(ADA, row.subscription, after=BEGINNING, limit=2)
    again = book.subscriptions.notices(ADA, row.subscription, after=BEGINNING, limit=2)
    assert [number_of(each) for each in first] == [number_of(each) for each in again]
    rest = book.subscriptions.notices(ADA, row.subscription, after=number_of(first[-1]), limit=2)
    book.subscriptions.acknowledge(ADA, row.subscription, through=number_of(first[-1]))
    assert [each.package for each in (*first, *rest)] == ["1.1.1", "1.2.1", "1.3.1"]
    with book.journal.transaction() as ledger:
        assert [row.package for row in ledger.find_rows(NoticeRow, having={})] == ["1.3.1"]


def test_who_listens_is_told_of_the_subscriptions_that_have_news_and_of_no_others(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest())
    book.subscriptions.create(ADA, SubscriptionRequest(query="site=prague"))
    woken: list[str] = []
    book.subscriptions.on_news(woken.append)
    book.register()
    assert woken == []
    book.run("1.1.1")
    assert woken == [row.subscription]


def test_without_subscriptions_what_moved_is_not_even_looked_at(book: Notified) -> None:
    book.register()
    row = book.subscriptions.create(ADA, SubscriptionRequest())
    book.subscriptions.drop(ADA, row.subscription)
    looked: list[bool] = []
    noting = book.subscriptions.note

    def note(joined: Any, ledger: Any) -> None:
        def watching() -> Iterator[Any]:
            looked.append(True)
            yield from joined.moved()

        noting(msgspec.structs.replace(joined, moved=watching), ledger)

    book.keeper._within = (note,)
    book.run("1.1.1")
    assert looked == []
    book.subscriptions.create(ADA, SubscriptionRequest())
    book.run("1.2.1")
    assert looked == [True]


def test_validity_is_two_hours_unless_said_and_never_more_than_the_cap(book: Notified) -> None:
    now = book.clock.now()
    assert book.subscriptions.create(ADA, SubscriptionRequest()).expires_at == now + 7200
    assert book.subscriptions.create(ADA, SubscriptionRequest(validity_seconds=60)).expires_at == now + 60
    assert book.subscriptions.create(ADA, SubscriptionRequest(validity_seconds=1e9)).expires_at == now + 86_400
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(SubscriptionError, match="validity_seconds"):
            book.subscriptions.create(ADA, SubscriptionRequest(validity_seconds=wrong))


def test_a_subscription_that_is_refreshed_lives_on_and_one_that_is_not_is_over(book: Notified) -> None:
    kept, lost = (book.subscriptions.create(ADA, SubscriptionRequest(validity_seconds=100)) for _ in range(2))
    book.register()
    book.run("1.1.1")
    book.wait(90)
    until = book.subscriptions.refresh(ADA, kept.subscription, validity_seconds=50).expires_at
    assert until == book.clock.now() + 50
    book.wait(20)
    book.run("1.2.1")
    assert [package for package, _, _ in moves(book, kept)] == ["1.1.1", "1.2.1"]
    assert [row.subscription for row in book.subscriptions.of(ADA)] == [kept.subscription]
    with pytest.raises(UnknownSubscription):
        book.subscriptions.refresh(ADA, lost.subscription, validity_seconds=None)
    book.deliver()
    with book.journal.transaction() as ledger:
        assert {row.subscription for row in ledger.find_rows(NoticeRow, having={})} == {kept.subscription}
        assert [row.subscription for row in ledger.find_rows(SubscriptionRow, having={})] == [kept.subscription]


def test_what_is_dropped_is_gone_with_all_it_was_still_to_be_told(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(attributes=("site",)))
    book.register()
    book.run("1.1.1")
    book.subscriptions.drop(ADA, row.subscription)
    book.run("1.2.1")
    assert book.subscriptions.of(ADA) == []
    with book.journal.transaction() as ledger:
        for kind in (NoticeRow, WatchedRow, SubscriptionRow):
            assert ledger.find_rows(kind, having={}) == []


def test_nobody_sees_or_touches_the_subscription_of_another(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest())
    assert book.subscriptions.of(OPERATOR) == []
    for act in (
        lambda: book.subscriptions.get(OPERATOR, row.subscription),
        lambda: book.subscriptions.drop(BOB, row.subscription),
        lambda: book.subscriptions.refresh(BOB, row.subscription, validity_seconds=1),
        lambda: book.subscriptions.rebind(BOB, row.subscription, transport="poll", address=""),
        lambda: book.subscriptions.notices(BOB, row.subscription, after=BEGINNING, limit=1),
        lambda: book.subscriptions.acknowledge(BOB, row.subscription, through=(9, 9)),
    ):
        with pytest.raises(UnknownSubscription):
            act()
    with pytest.raises(Forbidden):
        book.subscriptions.of(Principal(user="ada"))
    assert book.subscriptions.get(ADA, row.subscription) == row


def test_one_owner_has_only_so_many_and_others_still_can(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(validity_seconds=10))
    for _ in range(SUBSCRIPTIONS_MAX - 1):
        book.subscriptions.create(ADA, SubscriptionRequest(validity_seconds=10))
    with pytest.raises(TooManySubscriptions):
        book.subscriptions.create(ADA, SubscriptionRequest())
    book.subscriptions.create(BOB, SubscriptionRequest())
    book.subscriptions.drop(ADA, row.subscription)
    book.subscriptions.create(ADA, SubscriptionRequest())
    book.wait(11)
    book.subscriptions.create(ADA, SubscriptionRequest())


def test_a_subscription_with_an_address_is_not_polled(book: Notified) -> None:
    row = book.subscriptions.create(ADA, SubscriptionRequest(transport="webhook", address=ADDRESS))
    with pytest.raises(NotPolled, match="webhook"):
        book.subscriptions.notices(ADA, row.subscription, after=BEGINNING, limit=1)
    with pytest.raises(NotPolled, match="webhook"):
        book.subscriptions.acknowledge(ADA, row.subscription, through=(9, 9))


@pytest.mark.parametrize(
    "asked, names",
    [
        (SubscriptionRequest(query="state=="), "state"),
        (SubscriptionRequest(query="type=Tagged"), "type"),
        (SubscriptionRequest(states=("RUNING",)), "RUNNING"),
        (SubscriptionRequest(attributes=("updated",)), "updated"),
        (SubscriptionRequest(attributes=("owner",)), "owner"),
        (SubscriptionRequest(attributes=("sight",)), "site"),
        (SubscriptionRequest(attributes=("tag.",)), "tag."),
        (SubscriptionRequest(attributes=tuple(f"tag.t{n}" for n in range(21))), "too many"),
        (SubscriptionRequest(target="events"), "target"),
        (SubscriptionRequest(transport="pigeon"), "pigeon"),
        (SubscriptionRequest(transport="webhook", address="elsewhere"), "fake:NAME"),
        (SubscriptionRequest(transport="mail", address="ada@example.org"), r"notifications\.smtp_host"),
        (SubscriptionRequest(address=ADDRESS), "address"),
        (SubscriptionRequest(transport="webhook", address=ADDRESS, secret="short"), "secret"),
    ],
)
def test_what_cannot_be_subscribed_to_is_refused_by_name(
    book: Notified, asked: SubscriptionRequest, names: str
) -> None:
    with pytest.raises(PilotageError, match=names):
        book.subscriptions.create(ADA, asked)
    assert book.subscriptions.of(ADA) == []


def test_every_watchable_attribute_can_be_watched() -> None:
    for target in ("jobs", "packages"):
        names = [name if name != "tag" else "tag.x" for name in watchable(wanted_target(target))]
        assert set(wanted(target=target, query="", states=(), attributes=names).attributes) == set(names) - {"state"}


def wanted_target(name: str) -> Any:
    return wanted(target=name, query="", states=(), attributes=()).target


@pytest.mark.parametrize("text", ["", "1", "1.", ".1", "1.2.3", "-1.2", "1.2 ", "٣.1", "1e3.2", "9" * 17 + ".1"])
def test_a_number_that_is_none_is_not_read(text: str) -> None:
    assert read_number(text) is None


def test_a_number_is_read_as_it_is_written() -> None:
    assert read_number(number_text((1042, 3))) == (1042, 3)
