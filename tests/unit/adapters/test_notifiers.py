"""What webhooks and mails look like on the wire, and where webhooks may go."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.notifiers import networks
from pilotage.adapters.notifiers.mail_address import is_address
from pilotage.adapters.notifiers.networks import EVERYTHING, LOOPBACK, read_networks
from pilotage.adapters.notifiers.smtp import SmtpNotifier, SmtpServer
from pilotage.adapters.notifiers.webhook import CONTENT_TYPE, SIGNATURE_HEADER, WebhookNotifier, signature, verify
from pilotage.app.service.notifiers import Transports, owner_addresses
from pilotage.book.notices.notices import Notice, plain, time_text
from pilotage.model.errors import PilotageError
from pilotage.model.settings.settings import NotificationSettings
from pilotage.ports import BadAddress, DeliveryRefused, Letter, NotDelivered
from tests.engines.smtp import MailServer
from tests.kit.events import START, StandingClock
from tests.kit.webhook_receiver import Drip, Status, WebhookReceiver

SECRET = "0123456789abcdef"
# A certificate for localhost that signs itself, with its key: good for these tests and for nothing else.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUO88VNjRm2clA3nWpO0q7eVSdQukwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNTA1MzIyMVoYDzIxMjYxMDIy
MDUzMjIxWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASh5+i9oaiuN3MzFfOn0F6Ho8DAEFOXpDnrWtN6E3hGDz/STGJ+TmAu
l2S/XUAOppVTS33Hb8237fH9MGJnPfkho28wbTAdBgNVHQ4EFgQUFeSxekSOzfrD
ykJU7EZtXtAcM/kwHwYDVR0jBBgwFoAUFeSxekSOzfrDykJU7EZtXtAcM/kwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhAN3fxQ/BRmUcTQjnfSGVnjxx8O3R27zjRdYURgMrXinxAiBv
nHynEBNHCdz9XgXcIf9mUwEICNwVTHWHirCIL8SrQA==
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgCh7ZfiZRuptCA/ul
38iJuJTEkb0JtndA2TZoR4PpMVKhRANCAASh5+i9oaiuN3MzFfOn0F6Ho8DAEFOX
pDnrWtN6E3hGDz/STGJ+TmAul2S/XUAOppVTS33Hb8237fH9MGJnPfkh
-----END PRIVATE KEY-----
"""


def notice(**data: object) -> Notice:
    return Notice(
        id="7.1",
        source="https://book.example/v1/subscriptions/abc",
        type="io.pilotage.package.state",
        subject="jobs/j1/packages/1.2.1",
        time=START + 0.25,
        data=msgspec.Raw(msgspec.json.encode({"changed": [], **data})),
    )


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as running:
        yield running


def webhook(clock: StandingClock | None = None) -> WebhookNotifier:
    return WebhookNotifier(clock=clock or StandingClock(), networks=LOOPBACK, timeout_seconds=5)


def test_a_webhook_is_a_structured_cloud_event(receiver: WebhookReceiver) -> None:
    webhook().tell(receiver.url + "?token=x", [notice(state="DONE")], secret=SECRET)
    (post,) = receiver.posts
    assert post.path == "/hook?token=x"
    assert post.headers["Content-Type"] == CONTENT_TYPE
    assert post.event == {
        "specversion": "1.0",
        "id": "7.1",
        "source": "https://book.example/v1/subscriptions/abc",
        "type": "io.pilotage.package.state",
        "subject": "jobs/j1/packages/1.2.1",
        "time": "2023-11-14T22:13:20.250000Z",
        "datacontenttype": "application/json",
        "data": {"changed": [], "state": "DONE"},
    }


def test_the_signature_is_of_the_time_and_the_body_and_is_made_anew_each_time(receiver: WebhookReceiver) -> None:
    clock = StandingClock()
    notifier = webhook(clock)
    notifier.tell(receiver.url, [notice()], secret=SECRET)
    clock.at += 1000
    notifier.tell(receiver.url, [notice()], secret=SECRET)
    first, second = (post.headers[SIGNATURE_HEADER] for post in receiver.posts)
    body = receiver.posts[0].body
    assert first == signature(SECRET, body, at=START)
    assert verify(SECRET, body, first, now=START + 299)
    assert verify(SECRET, body, second, now=clock.now())
    assert not verify(SECRET, body, first, now=clock.now())
    assert not verify(SECRET, body + b" ", second, now=clock.now())
    assert not verify("another secret", body, second, now=clock.now())


@pytest.mark.parametrize(
    "header", ["", "t=", "t=1", "v1=abc", "t=x,v1=y", "t=²,v1=y", "t=-1,v1=é", "t=1,v1=,,=", "=,="]
)
def test_a_header_that_is_no_signature_does_not_verify(header: str) -> None:
    assert not verify(SECRET, b"{}", header, now=1.0)


def test_redirects_are_not_followed(receiver: WebhookReceiver) -> None:
    with WebhookReceiver() as elsewhere:
        receiver.plan(Status(307, {"Location": elsewhere.url}))
        with pytest.raises(DeliveryRefused, match="redirects are not followed"):
            webhook().tell(receiver.url, [notice()], secret=SECRET)
        assert elsewhere.attempts == 0


@pytest.mark.parametrize("said, after", [("17", 17.0), ("soon", None), ("-1", None), ("9" * 30, None), ("", None)])
def test_a_receiver_may_say_when_to_come_back(receiver: WebhookReceiver, said: str, after: float | None) -> None:
    receiver.plan(Status(429, {"Retry-After": said}))
    with pytest.raises(NotDelivered) as caught:
        webhook().tell(receiver.url, [notice()], secret=SECRET)
    assert caught.value.after_seconds == after
    assert caught.value.retryable


def test_a_numeric_address_that_may_never_be_reached_is_refused_at_once() -> None:
    guarded = WebhookNotifier(clock=StandingClock(), networks=["10.0.0.0/8"])
    for host in ("127.0.0.1:9", "[::1]", "169.254.169.254", "192.168.1.1", "[::ffff:127.0.0.1]", "[fe80::1%25eth0]"):
        with pytest.raises(BadAddress, match=r"may not reach[\s\S]*notifications\.webhook_networks"):
            guarded.check_address(f"http://{host}/hook")
    for host in ("10.1.2.3", "93.184.216.34", "[2606:4700::1]", "localhost", "nowhere.example"):
        guarded.check_address(f"http://{host}/hook")  # what a name stands for is seen when it is used


def test_a_private_address_is_reached_only_where_its_network_was_allowed(receiver: WebhookReceiver) -> None:
    guarded = WebhookNotifier(clock=StandingClock(), networks=["10.0.0.0/8"])
    with pytest.raises(NotDelivered, match="may not reach"):
        guarded.tell(receiver.url, [notice()], secret=SECRET)
    assert receiver.attempts == 0
    WebhookNotifier(clock=StandingClock(), networks=EVERYTHING).tell(receiver.url, [notice()], secret=SECRET)
    assert len(receiver.posts) == 1


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1", "::1", "fe80::1",
        "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::", "ff02::1", "255.255.255.255", "fd12:3456::1", "fec0::1",
        "64:ff9b::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::808:808", "2002:a00:1::1", "2002:7f00:1::", "2002:808:808::1",
        "::10.0.0.1", "::127.0.0.1", "2001:0:a00:1::1", "2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:192.168.0.1",
        "fe80::1%eth0", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
    ],
)  # fmt: skip
def test_what_is_not_public_is_not_reached_by_itself(address: str) -> None:
    assert not networks._allowed(address, ())
    assert networks._allowed(address, read_networks(EVERYTHING))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700::5efe:8.8.8.8"]
)
def test_what_is_public_is_reached(address: str) -> None:
    assert networks._allowed(address, ())


def test_an_ipv4_address_within_ipv6_is_judged_as_what_it_is() -> None:
    assert networks._allowed("::ffff:10.0.0.1", read_networks(["10.0.0.0/8"]))
    assert not networks._allowed("::ffff:192.168.0.1", read_networks(["::/0"]))


def test_the_address_that_was_judged_is_the_one_that_is_used(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: str, port: int, *rest: object, **more: object) -> object:
        asked.append(host)
        public = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port))]
        return public if len(asked) > 1 else real("127.0.0.1", port, type=socket.SOCK_STREAM)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with pytest.raises(NotDelivered, match="may not reach"):
        WebhookNotifier(clock=StandingClock()).tell("http://trick.example/", [notice()], secret=SECRET)
    assert asked == ["trick.example"]


def test_this_machine_is_reached_where_a_setting_says_so(receiver: WebhookReceiver) -> None:
    webhook = Transports(NotificationSettings(), clock=StandingClock())["webhook"]
    for address in (receiver.url, "http://[::1]:1/", "http://localhost:1/"):
        with pytest.raises(NotDelivered, match="may not reach"):
            webhook.tell(address, [notice()], secret=SECRET)
    told = NotificationSettings(webhook_networks=("127.0.0.0/8",))
    Transports(told, clock=StandingClock())["webhook"].tell(receiver.url, [notice()], secret=SECRET)
    assert len(receiver.posts) == 1


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(BadAddress, match="10\\.0\\.0\\.0/33"):
        read_networks(["10.0.0.0/33"])


def test_a_name_that_cannot_be_resolved_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(NotDelivered, match="cannot resolve") as caught:
        webhook().tell("https://nowhere.example/", [notice()], secret=SECRET)
    assert caught.value.retryable


def test_a_receiver_that_speaks_no_tls_is_not_told_anything(receiver: WebhookReceiver) -> None:
    with pytest.raises(NotDelivered):
        WebhookNotifier(
            clock=StandingClock(), networks=LOOPBACK, tls=ssl.create_default_context(), timeout_seconds=2
        ).tell(receiver.url.replace("http:", "https:"), [notice()], secret=SECRET)
    assert receiver.posts == ()


def test_a_webhook_over_tls_reaches_only_who_has_the_right_certificate(
    receiver: WebhookReceiver, tmp_path: Path
) -> None:
    file = tmp_path / "localhost.pem"
    file.write_text(CERTIFICATE)
    receiver.stop()
    receiver.secure(file)
    receiver.start()
    url = receiver.url.replace("http:", "https:")
    trusting = WebhookNotifier(
        clock=StandingClock(), networks=LOOPBACK, tls=ssl.create_default_context(cafile=file), timeout_seconds=5
    )
    trusting.tell(url, [notice()], secret=SECRET)
    assert len(receiver.posts) == 1
    with pytest.raises(NotDelivered, match="certificate"):
        webhook().tell(url, [notice()], secret=SECRET)
    receiver.plan(Drip())
    hurried = WebhookNotifier(
        clock=StandingClock(), networks=LOOPBACK, tls=ssl.create_default_context(cafile=file), timeout_seconds=0.3
    )
    with pytest.raises(NotDelivered, match="in time"):
        hurried.tell(url, [notice()], secret=SECRET)
    assert len(receiver.posts) == 1


def smtp(server: MailServer) -> SmtpNotifier:
    reached = SmtpServer(host=server.host, port=server.port, sender="pilotage@example.org", timeout_seconds=5)
    return SmtpNotifier(reached, clock=StandingClock())


def test_a_letter_arrives_as_it_was_written(mail_server: MailServer) -> None:
    body = "Größe → 3\n.\n..two dots\n" + "x" * 2000 + "\n"
    smtp(mail_server).send(Letter(id="a-1", recipients=("ada@example.org", "b@x.org"), subject="é → ü", body=body))
    (mail,) = mail_server.mails
    assert (mail.sender, mail.recipients) == ("pilotage@example.org", ("ada@example.org", "b@x.org"))
    message = mail.message
    assert message["Subject"] == "é → ü"
    assert message["From"] == "pilotage <pilotage@example.org>"
    assert message["Message-ID"] == "<a-1@example.org>"
    assert message["Date"] == "Tue, 14 Nov 2023 22:13:20 +0000"
    assert message.get_content() == body


def test_no_header_can_be_smuggled_into_a_mail(mail_server: MailServer) -> None:
    smtp(mail_server).send(
        Letter(id="a-1", recipients=("ada@example.org",), subject="x\r\nBcc: eve@example.org\r\n\r\nforged", body="b\n")
    )
    message = mail_server.mails[0].message
    assert message["Bcc"] is None
    assert message["Subject"] == "x Bcc: eve@example.org forged"


def test_one_mailbox_that_is_gone_does_not_keep_the_letter_from_the_others(mail_server: MailServer) -> None:
    mail_server.refused_recipients["gone@example.org"] = "550 5.1.1 nobody here"
    letter = Letter(id="a-1", recipients=("gone@example.org", "ada@example.org"), subject="s", body="b\n")
    smtp(mail_server).send(letter)
    assert mail_server.mails[0].recipients == ("ada@example.org",)
    mail_server.refused_recipients["ada@example.org"] = "451 4.3.0 later"
    with pytest.raises(NotDelivered) as caught:
        smtp(mail_server).send(letter)
    assert caught.value.retryable


def test_a_line_of_a_mail_says_what_changed(mail_server: MailServer) -> None:
    told = notice(state="DONE", state_before="RUNNING", changed=["state", "attempts"], attempts=2, site="lyon", node="")
    smtp(mail_server).tell("ada@example.org", [told], secret=SECRET)
    content = mail_server.mails[0].message.get_content()
    assert content.splitlines()[0] == (
        "2023-11-14T22:13:20.250000Z jobs/j1/packages/1.2.1 RUNNING → DONE site=lyon attempts=2 [7.1]"
    )


def test_a_sender_that_is_no_address_is_refused_at_once() -> None:
    with pytest.raises(BadAddress, match="smtp_from"):
        SmtpNotifier(SmtpServer(host="localhost", port=25, sender=""), clock=StandingClock())


def test_the_password_of_the_mail_server_is_never_shown() -> None:
    server = SmtpServer(host="mail", port=25, sender="a@b.org", user="u", password="hunter2")
    assert "hunter2" not in repr(server)


@pytest.mark.parametrize("text", ["ada@example.org", "a.b+c@x-y.example", "x@localhost"])
def test_what_looks_like_an_address_is_one(text: str) -> None:
    assert is_address(text)


def test_plain_text_has_one_line_and_a_length() -> None:
    assert plain("a\r\n\x00b\u2028c\x85d") == "a b c d"
    assert plain("x" * 300, length_max=10) == "x" * 9 + "…"
    assert plain("") == ""


def test_times_are_written_as_rfc_3339_has_them() -> None:
    assert time_text(0.0) == "1970-01-01T00:00:00.000000Z"


def test_the_settings_say_which_transports_there_are() -> None:
    clock = StandingClock()
    bare = Transports(NotificationSettings(), clock=clock)
    assert (set(bare), bare.mailer) == ({"webhook"}, None)
    mailing = NotificationSettings(smtp_host="mail", smtp_from="p@example.org", grid_control=("g@example.org",))
    made = Transports(mailing, clock=clock)
    assert set(made) == {"webhook", "mail"}
    assert made["mail"] is made.mailer
    for wrong, named in (
        (NotificationSettings(smtp_host="mail"), "smtp_from"),
        (NotificationSettings(smtp_host="mail", smtp_from="p@x.org", cluster_management=("the night shift",)), "night"),
        (NotificationSettings(webhook_networks=("10.0.0.0/99",)), "10.0.0.0/99"),
    ):
        with pytest.raises(BadAddress, match=named):
            Transports(wrong, clock=clock)


def test_owners_have_the_address_that_was_said_or_their_own_name_if_it_is_one() -> None:
    address_of = owner_addresses(["ada=ada@example.org", "a=b=c@example.org"])
    assert address_of("ada") == "ada@example.org"
    assert address_of("a=b") == "c@example.org"
    assert address_of("bob@example.org") == "bob@example.org"
    assert address_of("bob") is None
    for wrong in ("ada", "=x@y.org", "ada=", "ada=nobody"):
        with pytest.raises(PilotageError, match="OWNER=NAME@DOMAIN"):
            owner_addresses([wrong])
