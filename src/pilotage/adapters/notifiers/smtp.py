"""Mail: sends digests, and the notices of a subscription together in one message."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Literal

import msgspec

from pilotage.adapters.notifiers.mail_address import is_address
from pilotage.adapters.notifiers.networks import reason
from pilotage.book.notices.notices import Notice, data_of, plain, time_text
from pilotage.ports import BadAddress, Clock, DeliveryRefused, Letter, NotDelivered

# The check of mail addresses is in a module of its own, since a service without a mail server never loads this one.


log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 20.0
PAUSE_SECONDS = 60.0
NOTICES_MAX = 100

_POLICY = SMTP.clone(cte_type="7bit")  # accepted by every server

Security = Literal["none", "starttls", "tls"]


class SmtpServer(msgspec.Struct, frozen=True, kw_only=True):
    """The mail server, and the sender of messages."""

    host: str
    port: int
    sender: str
    security: Security = "none"
    user: str = ""
    password: str = ""
    timeout_seconds: float = TIMEOUT_SECONDS

    def __repr__(self) -> str:
        return f"SmtpServer(host={self.host!r}, port={self.port}, sender={self.sender!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        # Without the password.
        return [("host", self.host), ("port", self.port), ("sender", self.sender)]


class SmtpNotifier:
    """Sends mail through one server: for subscriptions, and letters of any kind."""

    notices_max = NOTICES_MAX

    def __init__(self, server: SmtpServer, *, clock: Clock, pause_seconds: float = PAUSE_SECONDS) -> None:
        """Send through a server; a subscriber gets at most one message per `pause_seconds`."""
        if not is_address(server.sender):
            raise BadAddress(
                "the sender is not a mail address",
                subject="notifications.smtp_from",
                expected="NAME@DOMAIN",
                got=repr(server.sender[:80]),
            )
        self._server = server
        self._clock = clock
        self.pause_seconds = pause_seconds

    def check_address(self, address: str) -> None:
        """Refuse anything but one plain mail address."""
        if not is_address(address):
            raise BadAddress("not a mail address", subject=plain(address, length_max=80), expected="NAME@DOMAIN")

    def tell(self, address: str, notices: Sequence[Notice], *, secret: str) -> None:
        """Send one message with all notices, a line each."""
        self.check_address(address)
        if notices:
            self.send(_letter(address, notices))

    def send(self, letter: Letter) -> None:
        """Send a message; if the server refuses some recipients, it counts as sent to the others."""
        message = self._message(letter)
        where = f"{self._server.host}:{self._server.port}"
        try:
            smtp = self._connect()
            try:
                refused = smtp.send_message(message, self._server.sender, list(letter.recipients))
            finally:
                _leave(smtp)
        except smtplib.SMTPRecipientsRefused as fault:
            raise _refused(list(fault.recipients.values()), where) from fault
        except smtplib.SMTPResponseException as fault:
            raise _refused([(fault.smtp_code, _bytes(fault.smtp_error))], where) from fault
        except (smtplib.SMTPException, OSError) as fault:
            cause = plain(str(fault)) if isinstance(fault, smtplib.SMTPException) else reason(fault)
            raise NotDelivered(f"the mail server did not accept it: {cause}", subject=where) from fault
        if refused:
            # No retry: the other recipients would get it twice.
            log.warning("%s refused %d of the %d recipients of a mail", where, len(refused), len(letter.recipients))

    def _connect(self) -> smtplib.SMTP:
        server = self._server
        # The sender's domain as our own name: looking that up can take longer than the mail.
        own = server.sender.rpartition("@")[2]
        if server.security == "tls":
            context = ssl.create_default_context()
            connection: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, own, timeout=server.timeout_seconds, context=context
            )
        else:
            connection = smtplib.SMTP(server.host, server.port, own, timeout=server.timeout_seconds)
        try:
            if server.security == "starttls":
                connection.starttls(context=ssl.create_default_context())
            if server.user:
                connection.login(server.user, server.password)
        except BaseException:  # whatever fails, close the connection and raise it again
            connection.close()
            raise
        return connection

    def _message(self, letter: Letter) -> EmailMessage:
        message = EmailMessage(policy=_POLICY)
        domain = self._server.sender.rpartition("@")[2]
        message["From"] = Address(display_name="pilotage", addr_spec=self._server.sender)
        message["To"] = [Address(addr_spec=recipient) for recipient in letter.recipients]
        message["Subject"] = plain(letter.subject)
        message["Date"] = formatdate(self._clock.now(), usegmt=True)
        message["Message-ID"] = f"<{letter.id}@{domain}>"
        message["Auto-Submitted"] = "auto-generated"  # suppresses automatic replies (RFC 3834)
        message.set_content(letter.body)
        return message


def _leave(smtp: smtplib.SMTP) -> None:
    """Send QUIT. The server has accepted the message, whatever happens now."""
    try:
        smtp.quit()
    except (smtplib.SMTPException, OSError):
        smtp.close()


def _letter(address: str, notices: Sequence[Notice]) -> Letter:
    first, last = notices[0], notices[-1]
    name = first.source.rpartition("/")[2]
    count = f"{len(notices)} change{'' if len(notices) == 1 else 's'}"
    subject = f"[pilotage] {count}: {first.subject}" + (" …" if len(notices) > 1 else "")
    lines = [_line(notice) for notice in notices]
    lines += ["", f"Subscription {name}: {first.source}"]
    return Letter(
        id=f"{name}-{first.id}-{last.id}", recipients=(address,), subject=subject, body="\n".join(lines) + "\n"
    )


def _line(notice: Notice) -> str:
    data = data_of(notice)
    before = f"{data['state_before']} → " if data.get("state_before") else ""
    change = f"{before}{data['state']}" if "state" in data.get("changed", ()) else ""
    named = ("site", "node", "exit_code", "reason", "exit_message")
    others = [name for name in data.get("changed", ()) if name in data and name not in (*named, "state")]
    details = [f"{name}={plain(str(data[name]))}" for name in (*named, *others) if data.get(name) not in (None, "")]
    return " ".join(
        part for part in (time_text(notice.time), notice.subject, change, *details, f"[{notice.id}]") if part
    )


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _refused(answers: Sequence[tuple[int, bytes]], where: str) -> NotDelivered:
    """Interpret a mail server's answers: a code from 500 on is permanent, unless another one is temporary."""
    code, text = min(answers, default=(0, b""))
    answer = f"the mail server answered {code} {plain(text.decode(errors='replace'))}".rstrip()
    if code >= 500:
        return DeliveryRefused(answer, subject=where)
    return NotDelivered(answer, subject=where)
