"""The token of what a slot runs: in one small file of the slot, which is written over for each attempt.

There may be a thousand attempts a second, so the file is memory that the system shows as one: it is on no disk, and to
write it costs neither a call nor a wait for other threads. It is sealed, so that nobody can cut it off under the pilot.
Where there is no such memory it is a plain file beside the folder that the attempt works in, and not within: what is in
there may be taken for an output.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

SIZE_BYTES = 512
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


class SlotToken:
    """A file that only this user can read, with the token of the attempt that runs, and line ends behind it."""

    def __init__(self, plain: str) -> None:
        """Make it; `plain` is where it is where memory will not do, and then it is made by the first attempt."""
        self._descriptor = -1
        self._memory: mmap.mmap | None = None
        self._plain = plain
        self.path = plain
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._use_memory()

    def _use_memory(self) -> None:
        descriptor = os.memfd_create("pilotage-token", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(descriptor, 0o600)
            os.truncate(descriptor, SIZE_BYTES)
            seals = 0
            for name in _SEALS:
                seals |= getattr(fcntl, name)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            os.stat(path)
            self._memory = mmap.mmap(descriptor, SIZE_BYTES)
        except (OSError, AttributeError, ValueError):
            os.close(descriptor)
            raise
        self._memory[:] = b"\n" * SIZE_BYTES
        self._descriptor = descriptor
        self.path = path

    def show(self, token: str) -> None:
        """Have the file say this token, and nothing of the one before. Raises `OSError`."""
        content = token.encode("ascii", "replace").ljust(SIZE_BYTES, b"\n")
        if len(content) > SIZE_BYTES:
            raise OSError(f"a token of {len(content)} bytes is too long")
        if self._memory is not None:
            self._memory[:] = content
            return
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, 0o600)
        os.pwrite(self._descriptor, content, 0)

    def plain_file(self) -> str:
        """A plain file that says the same, for who does not see the processes of this system. Raises `OSError`."""
        if self._memory is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._plain, flags, 0o600)
            try:
                os.write(descriptor, self._memory[:])
            finally:
                os.close(descriptor)
        return self._plain

    def close(self) -> None:
        """Let go of the file."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
