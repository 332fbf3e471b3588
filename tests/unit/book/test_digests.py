"""Failures told without asking: in digests, at most one a minute, one at the end, and to the operators by reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from pilotage.adapters.notifiers.smtp import SmtpNotifier, SmtpServer
from pilotage.book.notices.digests import EXAMPLES_MAX, LOSS_ROUTES, ROUTES, Audience, audiences, failures
from pilotage.book.rows.ledger import Changes
from pilotage.book.rows.tables import FailureRow, MailRow
from pilotage.model.events.payloads import Aborted, AttemptLost, CancelAccepted
from pilotage.model.settings.settings import NotificationSettings
from pilotage.model.states import LossReason, Reason
from pilotage.ports import DeliveryRefused, NotDelivered
from tests.engines.smtp import BreakOff, MailServer
from tests.kit.notified import BASE_URL, FakeMailer, Notified

OPERATORS = NotificationSettings(
    cluster_management=("cluster@example.org", "night@example.org"), grid_control=("grid@example.org",)
)
RESEARCHER, CLUSTER, GRID = "ada@example.org", "cluster@example.org", "grid@example.org"


@pytest.fixture
def mailer() -> FakeMailer:
    return FakeMailer()


@pytest.fixture
def book(tmp_path: Path, mailer: FakeMailer) -> Iterator[Notified]:
    with Notified(tmp_path, settings=OPERATORS, mailer=mailer) as notified:
        notified.register(lines=20)
        yield notified


def recipients(mailer: FakeMailer) -> list[str]:
    return sorted(letter.recipients[0] for letter in mailer.letters)


def test_an_owner_is_told_of_a_failure_without_asking(book: Notified, mailer: FakeMailer) -> None:
    book.run("1.1.1")
    book.fail("1.1.1", reason="out-of-memory", node="node-17")
    book.deliver()
    (letter,) = mailer.letters
    assert letter.recipients == (RESEARCHER,)
    assert letter.subject == "[pilotage] 1 failure in name-j1 (j1)"
    assert f"{BASE_URL}/v1/jobs/j1" in letter.body
    assert "out-of-memory: 1 attempt failed" in letter.body
    assert "1.1.1 attempt 1 at lyon/node-17: it broke" in letter.body


def test_at_most_one_mail_a_minute_is_sent_and_every_failure_is_in_one(book: Notified, mailer: FakeMailer) -> None:
    for attempt in range(1, 151):
        book.fail("1.1.1", attempt=attempt)
        book.wait(1)
        book.deliver()
    assert [letter.subject for letter in mailer.letters] == [
        "[pilotage] 1 failure in name-j1 (j1)",
        "[pilotage] 60 failures in name-j1 (j1)",
        "[pilotage] 60 failures in name-j1 (j1)",
    ]
    assert "1.1.1 attempt 2:" in mailer.letters[1].body
    assert "1.1.1 attempt 1:" not in mailer.letters[1].body
    book.wait(60)
    book.deliver()
    assert mailer.letters[-1].subject == "[pilotage] 29 failures in name-j1 (j1)"
    assert "application-error: 150 attempts failed (29 new)" in mailer.letters[-1].body
    book.wait(600)
    book.deliver()
    assert len(mailer.letters) == 4


def test_failures_are_grouped_by_reason_with_the_first_examples(book: Notified, mailer: FakeMailer) -> None:
    book.fail("1.20.1", reason="wall-time")
    book.deliver()
    for line in range(1, 13):
        book.fail(f"1.{line}.1", reason="out-of-memory" if line % 2 else None)
    book.wait(60)
    book.deliver()
    body = mailer.letters[-1].body
    assert "out-of-memory: 6 attempts failed" in body
    assert "execution-failed: 6 attempts failed" in body
    assert "wall-time" not in body
    shown = [line for line in body.splitlines() if " attempt 1" in line]
    assert len(shown) == 2 * EXAMPLES_MAX
    assert body.count("… and 1 more") == 2
    assert shown[0].split()[0] in ("1.1.1", "1.2.1")


def test_the_end_of_a_job_that_had_failures_is_told_with_its_counts(book: Notified, mailer: FakeMailer) -> None:
    book.register("j2", lines=3)
    book.run("1.1.1", job="j2")
    book.fail("1.1.1", job="j2")
    book.deliver()
    book.wait(3600)
    book.run("1.2.1", job="j2")
    book.grant("1.2.1", job="j2")
    book.say(Aborted(cause="retries-exhausted"), job="j2", package="1.1.1")
    book.say(CancelAccepted(), job="j2", package="1.3.1")
    book.deliver()
    letter = mailer.letters[-1]
    assert letter.subject == "[pilotage] 1 failure, ended DONE in name-j2 (j2)"
    assert "ended DONE: 3 packages, 1 done, 1 failed, 1 cancelled" in letter.body
    assert "retries-exhausted: 1 package given up" in letter.body
    assert "application-error: 1 attempt failed" in letter.body
    book.wait(3600)
    book.deliver()
    assert len(mailer.letters) == 2
    with book.journal.transaction() as ledger:
        assert ledger.find_rows(FailureRow, having={"job": "j2"}) == []


def test_the_mail_at_the_end_keeps_the_minute_too(book: Notified, mailer: FakeMailer) -> None:
    book.register("j2", lines=1)
    book.fail("1.1.1", job="j2")
    book.deliver()
    book.run("1.1.1", job="j2", attempt=2)
    book.grant("1.1.1", job="j2", attempt=2)
    book.deliver()
    assert len(mailer.letters) == 1
    book.wait(60)
    book.deliver()
    assert mailer.letters[-1].subject == "[pilotage] ended DONE in name-j2 (j2)"


def test_a_job_without_failures_ends_in_silence(book: Notified, mailer: FakeMailer) -> None:
    book.register("j2", lines=1)
    book.run("1.1.1", job="j2")
    book.grant("1.1.1", job="j2")
    book.deliver()
    assert mailer.letters == []


def test_what_somebody_wanted_to_end_is_no_failure(book: Notified, mailer: FakeMailer) -> None:
    book.fail("1.1.1", exit_code="EXECUTION_CANCELED", reason=None)
    book.deliver()
    assert mailer.letters == []


def test_a_job_that_is_given_up_is_a_failure(book: Notified, mailer: FakeMailer) -> None:
    book.say(Aborted(cause="quota", message="no more hours"))
    book.deliver()
    assert "quota: 1 job given up" in mailer.letters[0].body
    assert "ended ABORTED: 20 packages, 0 done, 20 failed, 0 cancelled" in mailer.letters[0].body


def test_the_same_failure_sent_twice_is_counted_once(book: Notified, mailer: FakeMailer) -> None:
    before = book.stream.n
    book.fail("1.1.1")
    book.stream.n = before
    book.fail("1.1.1")
    book.deliver()
    assert mailer.letters[0].subject == "[pilotage] 1 failure in name-j1 (j1)"


@pytest.mark.parametrize(
    "reason, told",
    [
        ("platform-failure", [RESEARCHER, CLUSTER]),
        ("segmentation-fault", [RESEARCHER, CLUSTER, GRID]),
        ("missing-output", [RESEARCHER, CLUSTER, GRID]),
        ("failure-pattern", [RESEARCHER]),
        ("looping", [RESEARCHER]),
        ("something-new", [RESEARCHER]),
    ],
)
def test_operators_are_told_by_reason(book: Notified, mailer: FakeMailer, reason: str, told: list[str]) -> None:
    book.fail("1.1.1", reason=reason)
    book.deliver()
    assert recipients(mailer) == sorted(told)
    assert {letter.recipients for letter in mailer.letters if letter.recipients[0] == CLUSTER} <= {
        (CLUSTER, "night@example.org")
    }


@pytest.mark.parametrize(
    "reason, told",
    [
        ("platform-failure", [RESEARCHER, CLUSTER]),
        ("pilot-killed", [RESEARCHER, CLUSTER]),
        ("unheard", [RESEARCHER, CLUSTER]),
        ("wall-time", [RESEARCHER]),
        ("preempted", [RESEARCHER]),
        ("rescheduled", []),
        ("dropped", []),
        ("outrun", []),
        ("healed", []),
        ("regrouped", []),
    ],
)
def test_an_attempt_that_was_lost_is_a_failure_unless_somebody_wanted_it_so(
    book: Notified, mailer: FakeMailer, reason: LossReason, told: list[str]
) -> None:
    book.run("1.1.1")
    book.say(AttemptLost(reason=reason, message="its node is gone"), package="1.1.1", attempt=1)
    book.deliver()
    assert recipients(mailer) == sorted(told)
    for letter in mailer.letters:
        assert f"{reason}: 1 attempt failed" in letter.body
        assert "1.1.1 attempt 1 at lyon: its node is gone" in letter.body


def test_operators_hear_of_every_owners_failures_but_not_of_ends(book: Notified, mailer: FakeMailer) -> None:
    book.register("j2", owner="nobody", lines=1)
    book.fail("1.1.1", reason="platform-failure")
    book.fail("1.1.1", job="j2", reason="platform-failure")
    book.say(Aborted(cause="permanent-failure"), job="j2", package="1.1.1")
    book.deliver()
    letter = next(letter for letter in mailer.letters if letter.recipients[0] == CLUSTER)
    assert letter.subject == "[pilotage] 2 failures in 2 jobs"
    assert "ended" not in letter.body
    assert recipients(mailer) == sorted([CLUSTER, RESEARCHER])


def test_operators_are_told_of_each_failure_once(book: Notified, mailer: FakeMailer) -> None:
    for attempt in (1, 2):
        book.fail("1.1.1", attempt=attempt, reason="platform-failure")
        book.deliver()
        book.wait(60)
    told = [letter for letter in mailer.letters if letter.recipients[0] == CLUSTER]
    assert ["platform-failure: 1 attempt failed, " in letter.body for letter in told] == [True, True]
    with book.journal.transaction() as ledger:
        assert ledger.find_rows(FailureRow, having={"audience": "cluster-management"}) == []


def test_a_letter_that_waits_is_sent_after_a_restart_though_nothing_else_happens(
    book: Notified, mailer: FakeMailer
) -> None:
    mailer.faults.append(NotDelivered("later"))
    book.fail("1.1.1")
    book.deliver()
    book.restart()
    book.wait(1)
    book.deliver()
    assert len(mailer.letters) == 1


def test_every_reason_there_is_has_a_route_that_includes_the_researcher() -> None:
    assert set(ROUTES) == set(get_args(Reason))
    assert set(LOSS_ROUTES) == set(get_args(LossReason))
    assert all(Audience.RESEARCHER in audiences(reason) for reason in (*ROUTES, *LOSS_ROUTES, "another"))


def test_without_a_mail_server_nothing_is_counted(tmp_path: Path) -> None:
    with Notified(tmp_path, settings=OPERATORS) as book:
        book.register()
        book.fail("1.1.1", reason="platform-failure")
        book.deliver()
        with book.journal.transaction() as ledger:
            assert ledger.find_rows(FailureRow, having={}) == []


def test_failures_and_letters_survive_restarts_and_no_letter_changes_on_its_way(
    book: Notified, mailer: FakeMailer
) -> None:
    book.fail("1.1.1")
    book.restart()
    mailer.faults.append(NotDelivered("later"))
    book.deliver()
    book.fail("1.2.1", reason="wall-time")
    book.restart()
    book.wait(1)
    book.deliver()
    assert mailer.tried[0] == mailer.tried[1]
    assert "1.2.1" not in mailer.letters[0].body
    book.restart()
    book.wait(59)
    book.deliver()
    assert len(mailer.letters) == 1
    book.wait(1)
    book.deliver()
    assert "wall-time: 1 attempt failed" in mailer.letters[1].body
    assert mailer.letters[0].id != mailer.letters[1].id


def test_a_letter_that_is_refused_for_good_holds_nothing_up(book: Notified, mailer: FakeMailer) -> None:
    mailer.faults.append(DeliveryRefused("550 no such mailbox"))
    book.fail("1.1.1")
    book.deliver()
    with book.journal.transaction() as ledger:
        (mail,) = ledger.find_rows(MailRow, having={})
    assert "550" in mail.fault
    book.fail("1.2.1", reason="wall-time")
    book.wait(60)
    book.deliver()
    assert "wall-time" in mailer.letters[0].body


def test_a_batch_that_is_undone_counts_no_failure(book: Notified, mailer: FakeMailer) -> None:
    def break_off(*_: object) -> None:
        raise RuntimeError("in the middle of the transaction")

    hooks = book.keeper._within
    book.keeper._within = (*hooks, break_off)
    with pytest.raises(RuntimeError):
        book.fail("1.1.1")
    book.keeper._within = hooks
    book.deliver()
    assert mailer.letters == []


def test_whatever_people_write_stays_within_its_line(book: Notified, mailer: FakeMailer) -> None:
    book.fail("1.1.1", reason="bad\r\nBcc: eve@example.org", exit_message="a\x00b\n\nJob forged\u2028x" + "y" * 9000)
    book.deliver()
    letter = mailer.letters[0]
    assert "\r" not in letter.body
    assert "bad Bcc: eve@example.org: 1 attempt failed" in letter.body
    assert "a b Job forged x" in letter.body
    assert max(map(len, letter.body.splitlines())) < 300


def test_a_batch_without_failures_is_looked_through_and_nothing_else() -> None:
    assert failures(Changes()) == []


def test_a_real_mail_server_that_says_later_breaks_off_or_refuses(tmp_path: Path, mail_server: MailServer) -> None:
    with Notified(tmp_path, mailer=FakeMailer()) as book:
        server = SmtpServer(host=mail_server.host, port=mail_server.port, sender="pilotage@example.org")
        book.digests._mailer = SmtpNotifier(server, clock=book.clock)
        mail_server.plan("451 4.3.0 later", BreakOff())
        book.register()
        book.fail("1.1.1")
        for _ in range(3):
            book.deliver()
            book.wait(300)
        kept, again = (mail.message for mail in mail_server.mails)
        assert kept["Message-ID"] == again["Message-ID"]
        assert again["To"] == RESEARCHER
        assert again["Auto-Submitted"] == "auto-generated"
        mail_server.refused_recipients[RESEARCHER] = "550 5.1.1 nobody here"
        book.fail("1.2.1")
        book.deliver()
        with book.journal.transaction() as ledger:
            (mail,) = ledger.find_rows(MailRow, having={})
        assert mail.sent_at is not None
        assert "550" in mail.fault


def test_the_page_has_the_routes_as_the_table_has_them(root: Path) -> None:
    page = (root / "docs/howto/notifications.md").read_text("utf-8")
    named = [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 5]
    told = {
        reason: tuple(
            audience for audience, cell in zip(Audience, line.split("|")[2:5], strict=True) if cell.strip() == "yes"
        )
        for line in named
        for reason in re.findall(r"`([a-z-]+)`", line.split("|")[1])
    }
    for reason in (*ROUTES, *(lost for lost, reached in LOSS_ROUTES.items() if reached)):
        assert told.get(reason, (Audience.RESEARCHER,)) == audiences(reason), reason
    assert set(told) <= {*ROUTES, *LOSS_ROUTES}
