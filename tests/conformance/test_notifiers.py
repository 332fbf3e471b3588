"""The port `Notifier`: what every way to tell somebody must do. Webhooks, mail and the fake pass it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import msgspec
import pytest

from pilotage.adapters.notifiers.networks import LOOPBACK
from pilotage.adapters.notifiers.smtp import SmtpNotifier, SmtpServer
from pilotage.adapters.notifiers.webhook import WebhookNotifier
from pilotage.book.notices.notices import Notice
from pilotage.ports import BadAddress, DeliveryRefused, NotDelivered, Notifier
from tests.engines import smtp
from tests.engines.smtp import MailServer
from tests.kit.events import START, StandingClock
from tests.kit.notified import FakeNotifier
from tests.kit.webhook_receiver import BreakOff, Drip, Hang, Status, WebhookReceiver

SECRET = "a secret of a subscription"


class Set(msgspec.Struct, frozen=True, kw_only=True):
    """A notifier with a receiver at its other end."""

    notifier: Notifier
    address: str
    bad_addresses: tuple[str, ...]
    received: Callable[[], Sequence[str]]  # the ids of the notices, in order
    away: Callable[[], None]
    back: Callable[[], None]
    fail: Callable[[], None]  # later
    refuse: Callable[[], None]  # for good
    vanish: Callable[[], None]  # takes it, and says nothing
    hang: Sequence[Callable[[], None]]


def notice(number: int, *, text: str = "é → \u2028 \x00") -> Notice:
    """A notice with awkward content."""
    data = {"state": "DONE", "state_before": "RUNNING", "changed": ["state"], "exit_message": text}
    return Notice(
        id=f"{number}.1",
        source="https://book.example/v1/subscriptions/abc",
        type="io.pilotage.package.state",
        subject=f"jobs/j1/packages/1.{number}.1",
        time=START + number,
        data=msgspec.Raw(msgspec.json.encode(data)),
    )


def fake_set(stack: ExitStack) -> Set:
    notifier = FakeNotifier()
    gone: list[bool] = []

    def fault(kind: type[NotDelivered]) -> Callable[[], None]:
        return lambda: notifier.faults.append(kind("as planned"))

    def vanish() -> None:
        told = notifier.tell

        def tell(address: str, notices: Sequence[Notice], *, secret: str) -> None:
            del notifier.tell
            told(address, notices, secret=secret)
            raise NotDelivered("gone")

        notifier.tell = tell  # type: ignore[method-assign]

    return Set(
        notifier=notifier,
        address="fake:x",
        bad_addresses=("", "x", "fake:\n"),
        received=lambda: notifier.ids,
        away=fault(NotDelivered),
        back=gone.clear,
        fail=fault(NotDelivered),
        refuse=fault(DeliveryRefused),
        vanish=vanish,
        hang=[fault(NotDelivered)],
    )


def webhook_set(stack: ExitStack) -> Set:
    receiver = stack.enter_context(WebhookReceiver())
    return Set(
        notifier=WebhookNotifier(clock=StandingClock(), networks=LOOPBACK, timeout_seconds=0.3),
        address=receiver.url,
        bad_addresses=(
            "", "x", "ftp://example.org/", "file:///etc/passwd", "http://", "http:///x", "http://a:b@example.org/",
            "http://user@example.org/", "http://example.org:99999/", "http://example.org:0/", "http://exa mple.org/",
            "http://example.org/\r\nX: y", "http://exämple.org/", "https://[::1", "http://example.org/" + "x" * 2048,
        ),
        received=lambda: [post.event["id"] for post in receiver.posts],
        away=receiver.stop,
        back=receiver.start,
        fail=lambda: receiver.plan(Status(503)),
        refuse=lambda: receiver.plan(Status(410)),
        vanish=lambda: receiver.plan(BreakOff()),
        hang=[lambda: receiver.plan(Hang()), lambda: receiver.plan(Drip())],
    )  # fmt: skip


def mail_set(stack: ExitStack) -> Set:
    server = stack.enter_context(MailServer())

    def received() -> list[str]:
        lines = [line for mail in server.mails for line in mail.message.get_content().splitlines()]
        return [line.rpartition("[")[2].rstrip("]") for line in lines if line.endswith("]")]

    reached = SmtpServer(host=server.host, port=server.port, sender="pilotage@example.org", timeout_seconds=0.3)
    return Set(
        notifier=SmtpNotifier(reached, clock=StandingClock()),
        address="ada@example.org",
        bad_addresses=(
            "", "ada", "@example.org", "ada@", "ada@example.org\r\nBcc: eve@example.org", "ada@example.org, eve@x.org",
            "Ada <ada@example.org>", "a@b..c", "a b@example.org", "ada@-x", "x" * 65 + "@example.org",
        ),
        received=received,
        away=server.stop,
        back=server.start,
        fail=lambda: server.plan("451 4.3.0 later"),
        refuse=lambda: server.plan("550 5.7.1 never"),
        vanish=lambda: server.plan(smtp.BreakOff()),
        hang=[lambda: server.plan(smtp.Hang())],
    )  # fmt: skip


@pytest.fixture(params=[fake_set, webhook_set, mail_set], ids=["fake", "webhook", "mail"])
def one(request: pytest.FixtureRequest) -> Iterator[Set]:
    with ExitStack() as stack:
        yield request.param(stack)


def tell(one: Set, *numbers: int) -> None:
    size = one.notifier.notices_max
    for start in range(0, len(numbers), size):
        some = [notice(number) for number in numbers[start : start + size]]
        one.notifier.tell(one.address, some, secret=SECRET)


def test_what_is_told_arrives_in_order(one: Set) -> None:
    tell(one, *range(1, 8))
    assert list(one.received()) == [f"{number}.1" for number in range(1, 8)]


def test_nothing_to_tell_is_nothing_sent(one: Set) -> None:
    one.notifier.tell(one.address, [], secret=SECRET)
    assert list(one.received()) == []


def test_a_receiver_that_is_away_is_a_fault_that_time_can_mend(one: Set) -> None:
    one.away()
    with pytest.raises(NotDelivered) as caught:
        tell(one, 1)
    assert caught.value.retryable
    one.back()
    tell(one, 1)
    assert list(one.received()) == ["1.1"]


def test_a_receiver_that_fails_is_a_fault_that_time_can_mend(one: Set) -> None:
    one.fail()
    with pytest.raises(NotDelivered) as caught:
        tell(one, 1)
    assert caught.value.retryable
    assert list(one.received()) == []


def test_a_receiver_that_refuses_says_so(one: Set) -> None:
    one.refuse()
    with pytest.raises(DeliveryRefused) as caught:
        tell(one, 1)
    assert not caught.value.retryable
    assert list(one.received()) == []


def test_what_may_have_arrived_counts_as_not_delivered(one: Set) -> None:
    one.vanish()
    with pytest.raises(NotDelivered):
        tell(one, 1)
    tell(one, 1)
    assert list(one.received()) == ["1.1", "1.1"]


def test_a_receiver_that_never_answers_is_given_up(one: Set) -> None:
    for hang in one.hang:
        hang()
        with pytest.raises(NotDelivered) as caught:
            tell(one, 1)
        assert caught.value.retryable
    tell(one, 2)
    assert list(one.received()) == ["2.1"]


def test_a_bad_address_is_refused_before_anything_is_sent(one: Set) -> None:
    for address in one.bad_addresses:
        with pytest.raises(BadAddress):
            one.notifier.check_address(address)
    one.notifier.check_address(one.address)
    assert list(one.received()) == []


def test_no_fault_shows_the_secret_or_the_path_of_the_address(one: Set) -> None:
    one.fail()
    with pytest.raises(NotDelivered) as caught:
        tell(one, 1)
    assert SECRET not in str(caught.value)
    assert "/hook" not in str(caught.value)
