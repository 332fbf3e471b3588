"""The reading side of one stream: whole events, in order, on disk before anyone sends them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pilotage.agent.errors import SpoolError, spool_error
from pilotage.agent.files import locked, sync_folder
from pilotage.agent.records import END_START, HEADER_START, counters_of, parse_header, text_of
from pilotage.agent.spool import Acknowledged, read_acknowledged, write_acknowledged
from pilotage.agent.stream import LOCK_NAME, Place, segment_file, segments_of

_LINE_MAX = 64 << 20


class Batch(NamedTuple):
    """Some events of a stream as JSON texts, the damaged lines that stand after them, and the mark that follows."""

    texts: list[bytes]
    damaged: list[bytes]
    after: Acknowledged


class Reader:
    """Reads one stream from where the server has it; used by one courier at a time, which holds the queue's lock."""

    def __init__(self, folder: Path) -> None:
        """Name the folder of the stream."""
        self.folder = folder
        self.synced = Place(0, 0)  # everything up to here is known to be on disk
        self._mark = Acknowledged(-1, -1, -1)
        self._descriptor = -1
        self._ended = False

    def reload(self) -> None:
        """Begin where the server has the stream, which another courier may have carried on."""
        mark = read_acknowledged(self.folder)
        if mark != self._mark or self._descriptor < 0:
            segments = segments_of(self.folder)
            if mark.segment not in segments and segments:
                # No mark, or a segment that is gone: sending what the server has already does no harm.
                mark = Acknowledged(segments[0], 0, mark.n)
            if mark.segment != self._mark.segment or self._descriptor < 0:
                self._open(mark.segment)
            self._mark = mark

    def _open(self, segment: int) -> None:
        self.close()
        try:
            self._descriptor = os.open(segment_file(self.folder, segment), os.O_RDWR)
        except FileNotFoundError:
            return
        sync_folder(self.folder)  # its name is on disk before anything from it is sent

    def next_batch(self, *, events_max: int, size_max_bytes: int) -> Batch | None:
        """The next events, on disk when this returns, or None where there is nothing to send or to set aside."""
        try:
            while self._descriptor >= 0:
                batch = self._batch(events_max=events_max, size_max_bytes=size_max_bytes)
                if batch is not None:
                    self._sync(batch)
                    return batch
                if self._past_header():
                    continue
                if not self._ended or not self._go_on():
                    return None
        except OSError as error:
            raise spool_error(error, doing="reading events", subject=str(self.folder)) from error
        return None

    def _batch(self, *, events_max: int, size_max_bytes: int) -> Batch | None:
        offset = self._mark.size_bytes
        lines = self._lines(offset, size_bytes=size_max_bytes, count=events_max + 1)
        texts: list[bytes] = []
        damaged: list[bytes] = []
        for line in lines:
            text = text_of(line)
            if text is None and texts:
                break  # first what is good
            if text is None:
                settled = self._settled(offset, size_bytes=size_max_bytes)
                if settled != line:
                    break  # it was seen while it was written; the next batch begins with it
                damaged.append(line)
            elif text.startswith(END_START):
                self._ended = True
                break
            elif text.startswith(HEADER_START):
                self._check_header(text)
            elif len(texts) == events_max or damaged:
                break
            else:
                texts.append(text)
            offset += len(line) + 1
        if not texts and not damaged:
            return None
        counters = counters_of(texts[-1]) if texts else None
        number = counters[0] if counters else self._mark.n
        return Batch(texts, damaged, Acknowledged(self._mark.segment, offset, number))

    def _past_header(self) -> bool:
        """Step over the header, should it have been all that fitted in a block; says whether there was one to step over."""
        if self._mark.size_bytes or self._ended:
            return False
        header = next(iter(self._lines(0, size_bytes=4096, count=1)), None)
        if header is None:
            return False
        self._mark = self._mark._replace(size_bytes=len(header) + 1)
        return True

    def _lines(self, offset: int, *, size_bytes: int, count: int) -> list[bytes]:
        """The whole lines from an offset on: as many as fit, at least one where there is one."""
        while True:
            block = os.pread(self._descriptor, size_bytes, offset)
            lines = block.split(b"\n", count)
            if len(lines) > 1 or len(block) < size_bytes or size_bytes > _LINE_MAX:
                return lines[:-1]
            size_bytes *= 4

    def _settled(self, offset: int, *, size_bytes: int) -> bytes:
        """A line read again while nobody writes: a line that looks damaged may only have been seen too early."""
        with locked(self.folder / LOCK_NAME):
            return next(iter(self._lines(offset, size_bytes=size_bytes, count=1)), b"")

    def _check_header(self, text: bytes) -> None:
        if parse_header(text) is None:
            raise SpoolError(
                "the segment was written by another version",
                subject=str(self.folder),
                got=text.decode("utf-8", "replace"),
                next_step="deliver it with the version of pilotage that wrote it",
            )

    def _sync(self, batch: Batch) -> None:
        end = Place(batch.after.segment, batch.after.size_bytes)
        if end > self.synced:
            os.fdatasync(self._descriptor)
            self.synced = end

    def _go_on(self) -> bool:
        """Leave a segment that is done with for the next one, if that is there; the last one always stays."""
        later = [first for first in segments_of(self.folder) if first > self._mark.segment]
        if not later:
            return False
        old = self._mark.segment
        self._mark = Acknowledged(later[0], 0, self._mark.n)
        write_acknowledged(self.folder, self._mark)
        self._open(later[0])
        sync_folder(self.folder)
        segment_file(self.folder, old).unlink()
        return True

    def acknowledge(self, batch: Batch) -> None:
        """The server has this batch, or what it refused of it is set aside."""
        try:
            write_acknowledged(self.folder, batch.after)
        except OSError as error:
            raise spool_error(error, doing="noting what is delivered", subject=str(self.folder)) from error
        self._mark = batch.after

    def close(self) -> None:
        """Close the file."""
        old, self._descriptor, self._ended = self._descriptor, -1, False
        if old >= 0:
            os.close(old)
