"""A small real service for pilots: it speaks the exchange over a Unix socket or TCP, keeps what it hears, and can fail as told."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import (
    AgentMessage,
    AgentReply,
    Assignment,
    AttemptRef,
    ExchangeReply,
    LogText,
    Work,
    WorkBinary,
)
from pilotage.model.resources import Demand

WAIT_SECONDS = 60.0
_says = msgspec.json.Decoder(AgentMessage)
_hears = msgspec.json.Encoder()


class AgentService:
    """Gives what it was told to give; `script` holds what to do wrong with the next exchanges, in order."""

    def __init__(self, *, interval_seconds: float = 10.0) -> None:
        self.interval_seconds = interval_seconds
        self.events: dict[tuple[str, int], Event] = {}  # in the order in which they first came
        self.finished: dict[AttemptRef, dict[str, Any]] = {}
        self.logs: list[LogText] = []
        self.said: list[AgentMessage] = []
        self.keep_said = True
        self.exchanges = 0
        self.connections = 0
        self.tokens: list[str] = []
        self.script: list[str] = []
        self.ready: deque[tuple[Assignment, Work]] = deque()
        self.assigned: dict[str, dict[AttemptRef, tuple[Assignment, Work]]] = {}
        self.leave = ""
        self.renewal = ""  # a token that comes with every answer
        self.token_ended = False  # whatever is fetched or brought is refused for it
        self.contents: dict[str, bytes] = {}
        self.answers_many = True  # one of an earlier release has no answer to a request for many contents
        self.asked_for_many = 0
        self.falsify: Callable[[bytes], bytes] = lambda answer: answer  # what becomes of such an answer on its way
        self.staged: dict[str, bytearray] = {}
        self.change = threading.Condition()
        self.stopped = False
        self.address = ""
        self._newest: dict[str, int] = {}
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    # --- being there -------------------------------------------------------------------------------------------------

    def listen(self, path: Path | None = None, *, port: int = 0) -> None:
        """Listen on a path, or on a port of the loopback."""
        self.stopped = False
        if path is not None:
            path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX)
            folder = os.open(path.parent, os.O_RDONLY)
            self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)
            self.address = f"unix:{path}"
        else:
            self._listener = socket.socket()
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", port))
            self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._listener.listen(16)
        self._start(self._accept, self._listener)

    def stop(self) -> None:
        """Hang up on everybody; what was heard stays."""
        with self.change:
            self.stopped = True
            self.change.notify_all()
            sockets = [self._listener, *self._open]
        for each in sockets:
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        self._threads.clear()
        self._open.clear()

    def _start(self, work: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self.stopped:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as incoming:
            while not self.stopped:
                line = incoming.readline()
                if not line:
                    return
                method, target, _ = line.decode().split()
                fields = _fields(incoming)
                body = incoming.read(int(fields.get("content-length", "0")))
                self.tokens.append(fields.get("authorization", "").removeprefix("Bearer "))
                answer = self._answer(method, target, fields, body)
                if answer is None:
                    return
                status, content = answer
                head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(content)}\r\nContent-Type: application/json\r\n"
                head += f"Pilotage-Token: {self.renewal}\r\n\r\n" if self.renewal else "\r\n"
                connection.sendall(head.encode() + content)

    # --- what it answers ---------------------------------------------------------------------------------------------

    def _answer(self, method: str, target: str, fields: dict[str, str], body: bytes) -> tuple[int, bytes] | None:
        if target == "/agent/exchange":
            return self._exchange(_says.decode(body))
        if self.token_ended:
            return 401, b'{"error":{"code":"unauthenticated","message":"this token has expired"}}'
        if method == "PUT":
            path, _, offset = target.partition("?offset=")
            staged = self.staged.setdefault(path.removeprefix("/agent/staged/"), bytearray())
            staged[int(offset) :] = body
            return 204, b""
        if target == "/agent/contents":
            self.asked_for_many += 1
            if not self.answers_many:
                return 404, b"{}"
            found = ((each, self.contents.get(f"content/{each}")) for each in json.loads(body)["sha256"])
            frames = [b"%b %d\n%b" % (each.encode(), len(data), data) for each, data in found if data is not None]
            return 200, self.falsify(b"".join(frames))
        content = self.contents.get(target.removeprefix("/agent/"))
        if content is None:
            return 404, b"{}"
        first, _, last = fields.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        if int(first) and int(first) >= len(content):
            return 416, b""
        return 206, content[int(first) : int(last) + 1 if last else None]

    def _exchange(self, says: AgentMessage) -> tuple[int, bytes] | None:
        exchange = says.exchange
        with self.change:
            self.exchanges += 1
            if self.script:
                fault = self.script.pop(0)
                if fault == "hang-up":
                    return None
                if fault == "silence":
                    self.change.wait_for(lambda: self.stopped)
                    return None
                if fault.isdigit():
                    return int(fault), b'{"error":{"code":"told so","message":"told so"}}'
                if fault == "lose-reply":
                    self._hear(says)
                    return None
                if fault == "introduce":  # only a token comes, and everything is to be said again with it
                    reply = ExchangeReply(pilot=exchange.pilot, sequence=exchange.sequence)
                    return 200, _hears.encode(AgentReply(reply=reply))
                if fault == "garbage":
                    return 200, b'{"reply":'
            self._hear(says)
            until = time.monotonic() + self.interval_seconds
            while True:
                if self._newest[exchange.pilot] > exchange.sequence:
                    return 409, b"{}"
                hears = self._reply(says)
                left = until - time.monotonic()
                if self.stopped:
                    return None
                reply = hears.reply
                if (
                    reply.assignments
                    or reply.cancelled
                    or reply.leave
                    or exchange.events
                    or exchange.leaving
                    or left <= 0
                ):
                    return 200, _hears.encode(hears)
                self.change.wait(left)

    def _hear(self, says: AgentMessage) -> None:
        exchange = says.exchange
        if self.keep_said:
            self.said.append(says)
        self.logs += says.logs
        held = self.assigned.setdefault(exchange.pilot, {})
        for event in exchange.events:
            assert event.stream == exchange.pilot
            if (event.stream, event.n) in self.events:
                continue
            self.events[event.stream, event.n] = event
            if event.type == "AttemptFinished":
                ref = AttemptRef(event.job or "", event.package or "", event.attempt or 0)
                self.finished[ref] = msgspec.json.decode(event.data)
                held.pop(ref, None)
        self._newest[exchange.pilot] = max(self._newest.get(exchange.pilot, 0), exchange.sequence)
        self.change.notify_all()

    def _reply(self, says: AgentMessage) -> AgentReply:
        exchange = says.exchange
        held = self.assigned[exchange.pilot]
        room = exchange.capacity.cores_hundredths // 100 + exchange.backlog - len(held)
        while self.ready and room > 0 and not exchange.leaving:
            given = self.ready.popleft()
            held[given[0].ref] = given
            room -= 1
        new = [each for ref, each in held.items() if ref not in exchange.held]
        numbers = [n for stream, n in self.events if stream == exchange.pilot]
        return AgentReply(
            reply=ExchangeReply(
                pilot=exchange.pilot,
                sequence=exchange.sequence,
                position=len(self.events),
                acknowledged=max(numbers, default=0) if self.keep_said else self._newest_number(exchange.events),
                assignments=tuple(assignment for assignment, _ in new),
                cancelled=tuple(ref for ref in exchange.held if ref not in held),
                interval_seconds=self.interval_seconds,
                leave=self.leave,
            ),
            work=tuple(work for _, work in new),
        )

    def _newest_number(self, events: tuple[Event, ...]) -> int:
        self._highest = max([getattr(self, "_highest", 0), *(event.n for event in events)])
        return self._highest

    # --- for tests ---------------------------------------------------------------------------------------------------

    def give(self, package: int, argv: tuple[str, ...], *, folder: Path, job: str = "job", **demand: Any) -> AttemptRef:
        """Have a command run; `demand` is what it takes."""
        ref = AttemptRef(job, f"1.1.{package}", 1)
        work = Work(
            path=f"job/001/001/{package:03d}", name="one", index=package, folder=str(folder),
            staged=str(folder / ".staged"), binaries=(WorkBinary(argv=argv),),
        )  # fmt: skip
        with self.change:
            self.ready.append((Assignment(ref=ref, demand=Demand(**demand)), work))
            self.change.notify_all()
        return ref

    def cancel(self, ref: AttemptRef) -> None:
        """Wait for an attempt no more."""
        with self.change:
            for held in self.assigned.values():
                held.pop(ref, None)
            self.change.notify_all()

    def send_away(self, reason: str) -> None:
        """Have every pilot end."""
        with self.change:
            self.leave = reason
            self.change.notify_all()

    def wait_for(self, what: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
        """Wait until something is so, which only exchanges can change."""
        with self.change:
            assert self.change.wait_for(what, timeout=seconds), "it did not come to that in time"

    def types(self, pilot: str = "") -> list[str]:
        """The types of the events of a pilot in the order of their numbers; of the only one where none is named."""
        streams = {stream for stream, _ in self.events}
        name = pilot or next(iter(streams))
        return [self.events[key].type for key in sorted(self.events) if key[0] == name]


def _fields(incoming: Any) -> dict[str, str]:
    fields: dict[str, str] = {}
    while True:
        name, _, value = incoming.readline().decode("latin-1").strip().partition(":")
        if not name:
            return fields
        fields[name.lower()] = value.strip()


@contextlib.contextmanager
def agent_service(path: Path | None = None, **settings: Any) -> Iterator[AgentService]:
    """A service that listens while the block runs."""
    service = AgentService(**settings)
    service.listen(path)
    try:
        yield service
    finally:
        service.stop()
