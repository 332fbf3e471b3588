"""One connection to an SFTP server, through a process of `ssh`: requests are sent ahead, answers are waited for.

A session is used by one thread at a time. No request waits for ever: a server that is silent for too long is given up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pilotage.adapters.sites.commands import command_environment
from pilotage.adapters.stores.sftp.protocol import (
    VERSION,
    Answer,
    Attributes,
    BadPacket,
    Fields,
    Kind,
    Status,
    packet,
    packet_length,
    read_answer,
    read_extensions,
)
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import AccessDenied, NotInStore, StoreUnreachable

LIMITS = "limits@openssh.com"
PIECE_BYTES = 32 << 10  # that every server takes
_PIECE_BYTES_MAX = 255 << 10
_PIPE_BYTES = 1 << 20
_END_SECONDS = 5.0
_HOST_KEY = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED")


class KeyRefused(StoreError):
    """The server accepted none of our keys."""


class Failed(StoreError):
    """The server answered with an error that says no more than that."""


class SftpSession:
    """A connection, from its start to `close`."""

    def __init__(self, words: Sequence[str], *, timeout_seconds: float, subject: str) -> None:
        """Start ssh and greet the server. Raises `KeyRefused`, `StoreUnreachable`, `StoreError`."""
        self._timeout_seconds = timeout_seconds
        self._subject = subject
        self._next = 0
        self._buffer = bytearray()
        self._answers: dict[int, Answer] = {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the session
        try:
            self._process = subprocess.Popen(
                list(words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=command_environment(),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as fault:
            self._errors.close()
            raise StoreError(f"ssh cannot be started: {fault.strerror}", subject=subject) from fault
        # Both are pipes, as asked for above.
        self._input, self._output = (pipe.fileno() for pipe in (self._process.stdin, self._process.stdout) if pipe)
        os.set_blocking(self._input, False)
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):  # a user may have too many of such size
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            with self._packets():
                self._write(packet(Kind.INIT, VERSION))
                self.extensions = read_extensions(self._receive())
            self.read_bytes, self.write_bytes = self._limits()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End ssh."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def is_usable(self) -> bool:
        """Whether the connection is still open, and silent as it should be."""
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        return self._process.poll() is None and not poll.poll(0)

    # --- requests ---

    def send(self, kind: Kind, *fields: int | str | bytes) -> int:
        """Send a request; returns its number, by which `wait` finds the answer."""
        self._next = (self._next + 1) & 0xFFFF_FFFF
        self._write(packet(kind, *fields, request=self._next))
        return self._next

    def wait(self, request: int) -> Answer:
        """The answer to a request; a status that is an error raises `NotInStore`, `AccessDenied` or `Failed`."""
        with self._packets():
            while request not in self._answers:
                answer = self._receive()
                self._answers[answer.request] = answer
            answer = self._answers.pop(request)
            if answer.kind is Kind.STATUS:
                self._judge(answer)
            return answer

    def call(self, kind: Kind, *fields: int | str | bytes) -> Answer:
        """Send a request and wait for its answer."""
        return self.wait(self.send(kind, *fields))

    def handle(self, kind: Kind, *fields: int | str | bytes) -> bytes:
        """Open a file or a folder."""
        with self._packets():
            return Fields(self._expect(self.call(kind, *fields), Kind.HANDLE)).content()

    def attributes(self, kind: Kind, name: str | bytes) -> Attributes:
        """The attributes of a path (`STAT`) or of an open file (`FSTAT`)."""
        with self._packets():
            return Fields(self._expect(self.call(kind, name), Kind.ATTRS)).attributes()

    def data(self, request: int) -> bytes:
        """The answer to a request to read; empty at the end of the file."""
        answer = self.wait(request)
        if answer.kind is Kind.STATUS:
            return b""
        with self._packets():
            return Fields(self._expect(answer, Kind.DATA)).content()

    def _expect(self, answer: Answer, kind: Kind) -> bytes:
        if answer.kind is not kind:
            raise BadPacket(f"a packet of kind {answer.kind.name} instead of {kind.name}")
        return answer.body

    def _limits(self) -> tuple[int, int]:
        """The most bytes of a request to read, and to write."""
        if LIMITS not in self.extensions:
            return PIECE_BYTES, PIECE_BYTES
        with self._packets():
            fields = Fields(self._expect(self.call(Kind.EXTENDED, LIMITS), Kind.EXTENDED_REPLY))
            _, reads, writes = fields.wide(), fields.wide(), fields.wide()
        return tuple(min(most or PIECE_BYTES, _PIECE_BYTES_MAX) for most in (reads, writes))  # type: ignore[return-value]

    def _judge(self, answer: Answer) -> None:
        fields = Fields(answer.body)
        code = fields.number()
        if code in (Status.OK, Status.EOF):
            return
        text = fields.text() if fields.left else ""
        if code == Status.NO_SUCH_FILE:
            raise NotInStore("no such file", subject=self._subject)
        if code == Status.PERMISSION_DENIED:
            raise AccessDenied("the account there may not do that", subject=self._subject)
        if code in (Status.NO_CONNECTION, Status.CONNECTION_LOST):
            raise StoreUnreachable("the server lost its connection", subject=self._subject)
        raise Failed(f"the server answered: {text or code}", subject=self._subject)

    # --- bytes ---

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        poll = select.poll()
        poll.register(self._input, select.POLLOUT)
        while rest:
            if not poll.poll(1000 * self._timeout_seconds):
                raise self._silent()
            try:
                rest = rest[os.write(self._input, rest) :]
            except BlockingIOError:
                continue
            except (BrokenPipeError, OSError) as fault:
                raise self._ended() from fault

    def _receive(self) -> Answer:
        """The next packet of the server."""
        buffer = self._buffer
        until = time.monotonic() + self._timeout_seconds
        while len(buffer) < 4 or len(buffer) < 4 + packet_length(buffer):
            poll = select.poll()
            poll.register(self._output, select.POLLIN)
            if not poll.poll(1000 * max(0.0, until - time.monotonic())):
                raise self._silent()
            piece = os.read(self._output, _PIPE_BYTES)
            if not piece:
                raise self._ended()
            buffer += piece
            until = time.monotonic() + self._timeout_seconds  # slow is not silent
        end = 4 + packet_length(buffer)
        content = bytes(memoryview(buffer)[4:end])
        del buffer[:end]
        return read_answer(content)

    def _silent(self) -> StoreUnreachable:
        return StoreUnreachable(f"no answer within {self._timeout_seconds:g} s", subject=self._subject)

    def _ended(self) -> StoreError:
        """The reason why ssh ended, by what it said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._errors.seek(0)
        told = " ".join(self._errors.read(4000).decode("utf-8", "replace").split())
        if "Permission denied (" in told or "Too many authentication failures" in told:
            return KeyRefused(f"ssh: {told[-300:]}", subject=self._subject)
        if any(text in told for text in _HOST_KEY):
            return StoreError(f"ssh: {told[-300:]}", subject=self._subject, next_step="check its key in known_hosts")
        if "subsystem request failed" in told:
            return StoreError("the server has no SFTP", subject=self._subject)
        return StoreUnreachable(f"ssh: {told[-300:] or 'the connection ended'}", subject=self._subject)

    @contextmanager
    def _packets(self) -> Iterator[None]:
        """Turn bytes that are no packet into an error of the store."""
        try:
            yield
        except BadPacket as fault:
            raise StoreError(
                f"the server does not speak SFTP: {fault}",
                subject=self._subject,
                next_step="a start-up file of the shell there, such as ~/.bashrc, must not print anything",
            ) from fault


def ssh_words(*, host: str, user: str, port: int, identity_file: str, configuration: str) -> list[str]:
    """The command by which ssh offers the SFTP of a host on its standard input and output."""
    options = {"BatchMode": "yes", "ConnectTimeout": "15", "ServerAliveInterval": "15", "ServerAliveCountMax": "3"}
    if identity_file:
        options["IdentitiesOnly"] = "yes"
    return [
        "ssh", "-T", "-x",
        *(["-F", str(Path(configuration).expanduser())] if configuration else []),
        *(["-i", str(Path(identity_file).expanduser())] if identity_file else []),
        *(word for name, value in options.items() for word in ("-o", f"{name}={value}")),
        *(["-l", user] if user else []),
        *(["-p", str(port)] if port else []),
        "-s", "--", host, "sftp",
    ]  # fmt: skip
