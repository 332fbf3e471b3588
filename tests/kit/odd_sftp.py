"""A server of SFTP that is within its rights and unlike OpenSSH: it gives less than was asked for, in another order.

Run as a program, with a folder, it speaks on its standard input and output, as a subsystem of sshd does.
"""

from __future__ import annotations

import os
import random
import select
import struct
import sys
from pathlib import Path
from typing import BinaryIO

from pilotage.adapters.stores.sftp.protocol import Fields, Kind, Status, Wide, packet, packet_length

SEED = 7


class OddServer:
    """Answers requests some at a time, the last one first; reads give a random part of what was asked for."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self._source, self._target = source, target
        self._random = random.Random(SEED)
        self._waiting: list[bytes] = []
        self._open: dict[bytes, int] = {}

    def run(self) -> None:
        """Answer until nobody asks any more."""
        while header := self._source.read(4):
            content = self._source.read(packet_length(header))
            kind = Kind(content[0])
            if kind is Kind.INIT:
                self._target.write(packet(Kind.VERSION, 3))
                self._target.flush()
                continue
            request = struct.unpack_from(">I", content, 1)[0]
            self._waiting.append(self._answer(kind, request, Fields(content[5:])))
            if len(self._waiting) > 5 or not select.select([self._source], [], [], 0.01)[0]:
                for answer in reversed(self._waiting):
                    self._target.write(answer)
                self._target.flush()
                self._waiting.clear()

    def _answer(self, kind: Kind, request: int, fields: Fields) -> bytes:
        match kind:
            case Kind.OPEN:
                handle = b"handle"
                self._open[handle] = os.open(fields.text(), os.O_RDONLY)
                return packet(Kind.HANDLE, handle, request=request)
            case Kind.FSTAT | Kind.STAT:
                named = fields.content()
                status = os.fstat(self._open[named]) if kind is Kind.FSTAT else Path(os.fsdecode(named)).stat()
                told = (1 | 4 | 8, Wide(status.st_size), status.st_mode, 0, int(status.st_mtime))
                return packet(Kind.ATTRS, *told, request=request)
            case Kind.READ:
                handle, offset, size = fields.content(), fields.wide(), fields.number()
                piece = os.pread(self._open[handle], self._random.randint(1, size), offset)
                if not piece:
                    return packet(Kind.STATUS, Status.EOF, "", "", request=request)
                return packet(Kind.DATA, piece, request=request)
            case Kind.CLOSE:
                os.close(self._open.pop(fields.content()))
                return packet(Kind.STATUS, Status.OK, "", "", request=request)
            case _:
                return packet(Kind.STATUS, Status.OP_UNSUPPORTED, "no", "", request=request)


if __name__ == "__main__":
    OddServer(sys.stdin.buffer, sys.stdout.buffer).run()
