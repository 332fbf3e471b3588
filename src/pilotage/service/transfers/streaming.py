"""A file on its way from a store to an HTTP client: a thread reads the store, and the event loop sends.

At most a few pieces are between them, so that a file of any size takes the same memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol

from pilotage.model.errors import PilotageError
from pilotage.ports.store import PresignedRequest, StoreObject
from pilotage.service.transfers.meter import TransferStopped
from pilotage.service.transfers.transfers import Cancelled

PIECES_AHEAD = 2
_LOOK_SECONDS = 1.0


class StreamHead(NamedTuple):
    """What is known before the first byte."""

    found: StoreObject
    start: int = 0
    end: int | None = None  # the byte after the last; None: as far as it goes
    presigned: PresignedRequest | None = None  # the receiver fetches the file itself


class RangeOf(Protocol):
    """Reads a `Range`: the first byte, and the one after the last."""

    def __call__(self, asked: str, *, size_bytes: int) -> tuple[int, int]:
        """Raises `PilotageError` for a range outside the file."""
        ...


class StreamedFile:
    """A file between the thread that reads it and the event loop that sends it."""

    def __init__(self, asked: str, range_of: RangeOf) -> None:
        """Take the `Range` that was asked for, and what reads it; made in the event loop."""
        self._asked = asked
        self._range = range_of
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(PIECES_AHEAD)
        self._is_gone = False
        self._pieces: asyncio.Queue[bytes | PilotageError | None] = asyncio.Queue()
        self.head: asyncio.Future[StreamHead] = self._loop.create_future()

    # --- in the thread ---

    def redirect(self, found: StoreObject, request: PresignedRequest) -> None:
        """The receiver may fetch the file itself."""
        self._tell(self._set_head, StreamHead(found, presigned=request))

    def begin(self, found: StoreObject) -> int:
        """Tell the receiver which file it is; returns where it wants to begin."""
        head = StreamHead(found)
        if found.size_bytes >= 0:
            try:
                head = StreamHead(found, *self._range(self._asked, size_bytes=found.size_bytes))
            except PilotageError as fault:
                self._tell(self._finish, fault)
                raise TransferStopped from fault
        self._tell(self._set_head, head)
        return head.start

    def take(self, piece: bytes) -> None:
        """Hand a piece over, when there is room."""
        while not self._room.acquire(timeout=_LOOK_SECONDS):
            if self._is_gone:
                break
        if self._is_gone:
            raise TransferStopped
        self._tell(self._pieces.put_nowait, piece)

    def end(self, fault: PilotageError | None) -> None:
        """Nothing more follows."""
        self._tell(self._finish, fault)

    def _tell(self, do: Callable[..., None], *given: object) -> None:
        try:
            self._loop.call_soon_threadsafe(do, *given)
        except RuntimeError:  # the loop is closed: the service has stopped
            raise TransferStopped from None

    # --- in the event loop ---

    def _set_head(self, head: StreamHead) -> None:
        if not self.head.done():
            self.head.set_result(head)

    def _finish(self, fault: PilotageError | None) -> None:
        if not self.head.done():
            self.head.set_exception(fault or Cancelled("it was cancelled"))
        else:
            self._pieces.put_nowait(fault)

    async def content(self, size_bytes: int | None, stop: Callable[[], None]) -> AsyncIterator[bytes]:
        """The pieces, up to a size; `stop` ends the transfer when no more are taken. Raises what broke it off."""
        left = size_bytes
        try:
            while left is None or left > 0:
                piece = await self._pieces.get()
                self._room.release()
                if piece is None:
                    return
                if isinstance(piece, PilotageError):
                    raise piece
                sent = piece if left is None else piece[:left]
                left = None if left is None else left - len(sent)
                yield sent
        finally:
            self.leave(stop)

    def leave(self, stop: Callable[[], None]) -> None:
        """Take nothing more, and end the transfer."""
        self._is_gone = True
        stop()
        self._room.release()
