"""A real mail server that keeps what it is sent, and refuses, hangs or breaks off when it is told to."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as default_policy
from types import TracebackType

import msgspec
from aiosmtpd.smtp import SMTP, Envelope, Session

HOST = "127.0.0.1"


class Hang(msgspec.Struct, frozen=True):
    """Take the message and never answer: the client must give up by itself."""


class BreakOff(msgspec.Struct, frozen=True):
    """Take the message, keep it, and break the connection: the client cannot know whether it was kept."""


Answer = str | Hang | BreakOff
"""What a message is answered with: a reply such as `451 4.3.0 later`, or a fault."""


class Mail(msgspec.Struct, frozen=True):
    """One message as it came: the envelope, and the letter."""

    sender: str
    recipients: tuple[str, ...]
    content: bytes

    @property
    def message(self) -> EmailMessage:
        """The letter, read, with lines that end as everywhere else."""
        return message_from_bytes(self.content.replace(b"\r\n", b"\n"), policy=default_policy)


class MailServer:
    """A mail server on loopback. `plan` says how the next messages are answered; after that all are kept."""

    def __init__(self) -> None:
        """Take a free port and serve on it."""
        self.refused_recipients: dict[str, str] = {}
        self._mails: list[Mail] = []
        self._plan: deque[Answer] = deque()
        self._change = threading.Condition()
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None
        self.start()

    def __enter__(self) -> MailServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def host(self) -> str:
        """The address it listens on."""
        return HOST

    @property
    def port(self) -> int:
        """The port it listens on; the same after it was stopped and started."""
        return self._port

    @property
    def mails(self) -> tuple[Mail, ...]:
        """What was kept, in the order it came."""
        with self._change:
            return tuple(self._mails)

    @property
    def planned(self) -> tuple[Answer, ...]:
        """The answers that no message has had yet."""
        with self._change:
            return tuple(self._plan)

    def plan(self, *answers: Answer) -> None:
        """Answer the next messages like this, one each."""
        with self._change:
            self._plan.extend(answers)

    def wait_for(self, count: int, *, timeout_seconds: float = 30) -> tuple[Mail, ...]:
        """Wait until so many messages were kept, and give them; an `AssertionError` when they do not come."""
        with self._change:
            if not self._change.wait_for(lambda: len(self._mails) >= count, timeout_seconds):
                raise AssertionError(f"expected {count} mails, got {len(self._mails)} in {timeout_seconds} s")
            return tuple(self._mails)

    def wait_for_plan(self, *, timeout_seconds: float = 30) -> None:
        """Wait until every planned answer has been given, or begun."""
        with self._change:
            if not self._change.wait_for(lambda: not self._plan, timeout_seconds):
                raise AssertionError(f"answers nobody asked for in {timeout_seconds} s: {list(self._plan)}")

    def start(self) -> None:
        """Listen, on the port it had before if it had one."""
        # An address that can be taken again at once: connections of before may still linger.
        listener = socket.create_server((HOST, self._port))
        self._port = listener.getsockname()[1]
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listener, ready), name="mail server")
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """Break every connection and listen no more; nothing happens when it is stopped already."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None

    def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        asyncio.run(self._serve_until_stopped(listener, ready))

    async def _serve_until_stopped(self, listener: socket.socket, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        conversations: list[_Conversation] = []

        def converse() -> SMTP:
            conversations.append(_Conversation(self, enable_SMTPUTF8=True, hostname=HOST))
            return conversations[-1]

        server = await self._loop.create_server(converse, sock=listener)
        ready.set()
        await self._stopping.wait()
        server.close()
        for conversation in conversations:
            conversation.break_off()
        # What the conversations still wait for is cancelled when the loop is left.

    async def handle_RCPT(  # noqa: N802 - the names of these methods are aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Accept a recipient, unless it is to be refused."""
        if address in self.refused_recipients:
            return self.refused_recipients[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: _Conversation, session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Answer a message as planned, or keep it."""
        with self._change:
            answer = self._plan.popleft() if self._plan else "250 OK"
            if isinstance(answer, BreakOff) or (isinstance(answer, str) and answer.startswith("2")):
                content = envelope.content if isinstance(envelope.content, bytes) else b""
                self._mails.append(Mail(envelope.mail_from or "", tuple(envelope.rcpt_tos), content))
            self._change.notify_all()
        if isinstance(answer, str):
            return answer
        if isinstance(answer, BreakOff):
            server.break_off()
        # Never answered: the client gives up, or the server is stopped.
        await asyncio.Event().wait()
        return "421 unreachable"


class _Conversation(SMTP):
    """One connection, which can be broken off in the middle."""

    def break_off(self) -> None:
        """Close the connection without a word."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
