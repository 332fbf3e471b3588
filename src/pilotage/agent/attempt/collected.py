"""Collects what is kept of an attempt besides its outputs: core files, what a script of the user says, versions of software.

A fault in here fails no attempt: it is told beside what was collected.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import signal
import stat
import subprocess
import tempfile
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pilotage.agent.attempt.files import KnownFiles
    from pilotage.agent.processes import ProcessCleanup

SCRIPT_SECONDS_MAX = 60.0
SCRIPT_BYTES_MAX = 64 * 1024
PROBE_SECONDS_MAX = 30.0
PROBE_CHARACTERS_MAX = 500
CORES_MAX = 2
"""Core files of an attempt that are taken."""
CORE_SENT_BYTES_MAX = 4 << 20
"""A core file that is larger, compressed, is not sent."""
CORE_STREAM = "core:"
"""The beginning of the name under which a core file is sent beside the logs: compressed, in base64."""
_FAULT_CHARACTERS_MAX = 1000
_CORE = re.compile(r"core(\.[^/]*)?|[^/]*\.core")
_LOOK_SECONDS = 0.1
_PIECE_BYTES = 64 * 1024


class Printed(NamedTuple):
    """What a short command printed, and its fault; without one it succeeded."""

    output: bytes
    fault: str = ""


def run_briefly(
    argv: Sequence[str],
    *,
    environment: Collection[bytes],
    folder: str,
    cleanup: ProcessCleanup,
    marks: Collection[bytes],
    seconds_max: float,
    bytes_max: int,
    is_stopped: Callable[[], bool],
) -> Printed:
    """Run a command for a limited time, and return the limited text that it prints; everything that it started ends with it."""
    variables = dict(entry.split(b"=", 1) for entry in environment)
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(argv), env=variables, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return Printed(b"", f"cannot be started: {error}")
        cleanup.began(process.pid)
        try:
            output, fault = _output_of(process, seconds_max, bytes_max, is_stopped)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            cleanup.clear(process.pid, marks)
        if not fault and process.returncode:
            errors.seek(0)
            lines = errors.read(_PIECE_BYTES).decode("utf-8", "replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            fault = f"ended with {process.returncode}{last}"
    return Printed(output, fault)


def _output_of(
    process: subprocess.Popen[bytes], seconds_max: float, bytes_max: int, is_stopped: Callable[[], bool]
) -> tuple[bytes, str]:
    assert process.stdout is not None
    ends_at = time.monotonic() + seconds_max
    output = b""
    is_open = True
    with process.stdout:
        while is_open or process.poll() is None:
            if time.monotonic() >= ends_at:
                return output, f"took longer than {seconds_max:g} s"
            if is_stopped():
                return output, "was stopped with its attempt"
            if not is_open:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_SECONDS)
                continue
            if not select.select([process.stdout], [], [], _LOOK_SECONDS)[0]:
                is_open = process.poll() is None  # a process that it left behind may keep it open
                continue
            piece = os.read(process.stdout.fileno(), _PIECE_BYTES)
            is_open = bool(piece)
            output += piece
            if len(output) > bytes_max:
                return output, f"printed more than {bytes_max:,} bytes"
    return output, ""


class Collected(NamedTuple):
    """What was collected: fields of the AttemptFinished, files to send beside the logs, and versions of software by name."""

    fields: dict[str, Any]
    logs: list[dict[str, Any]]
    software: dict[str, str]


def first_line(printed: Printed) -> str:
    """The first line of what a probe printed, or its fault."""
    lines = printed.output.decode("utf-8", "replace").strip().splitlines()
    if printed.fault:
        return f"unknown: its probe {printed.fault}"[:PROBE_CHARACTERS_MAX]
    return lines[0].strip()[:PROBE_CHARACTERS_MAX] if lines else "unknown: its probe printed nothing"


def script_fields(printed: Printed) -> dict[str, str]:
    """The fields for what a script printed, which must be one JSON object."""
    if printed.fault:
        return _fault(printed.fault)
    try:
        found = json.loads(printed.output)
    except (ValueError, RecursionError) as error:
        return _fault(f"printed no JSON: {error}")
    if not isinstance(found, dict):
        return _fault("printed JSON that is not an object")
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    if len(text) > SCRIPT_BYTES_MAX:
        return _fault(f"printed more than {SCRIPT_BYTES_MAX:,} bytes")
    return {"custom": text}


def _fault(text: str) -> dict[str, str]:
    return {"custom_fault": f"its provenance script {text}"[:_FAULT_CHARACTERS_MAX]}


def take_cores(scratch: str, size_bytes_max: int, known: KnownFiles, *, without: Collection[str]) -> Collected:
    """Take the core files that programs left in a folder; `without` are its inputs."""
    fields: dict[str, Any] = {}
    cores: list[dict[str, Any]] = []
    logs: list[dict[str, Any]] = []
    names = [name for name in sorted(os.listdir(scratch)) if _CORE.fullmatch(name) and name not in without]
    for name in names:
        path = os.path.join(scratch, name)
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or not _is_core(path):
            continue
        if len(cores) < CORES_MAX:
            sent = _compressed(path) if status.st_size <= size_bytes_max else None
            if sent is None:
                fields["custom_fault"] = f"its core file {name[:200]} is too large to be kept"
            else:
                cores.append({"name": name, "size_bytes": status.st_size, "sha256": known.made(path, status)})
                logs.append({"stream": f"{CORE_STREAM}{name}", "head": sent})
        os.unlink(path)  # an output pattern must not take it
    if cores:
        fields["cores"] = cores
    return Collected(fields, logs, {})


def _is_core(path: str) -> bool:
    with open(path, "rb") as file:
        start = file.read(18)
    return start[:4] == b"\x7fELF" and start[16:18] in (b"\x04\x00", b"\x00\x04")  # ET_CORE, in either byte order


def _compressed(path: str) -> str | None:
    """A file, compressed and in base64; None if it is too large."""
    packer = zlib.compressobj(6)
    parts: list[bytes] = []
    size = 0
    with open(path, "rb") as file:
        while size <= CORE_SENT_BYTES_MAX:
            piece = file.read(1 << 20)
            parts.append(packer.compress(piece) if piece else packer.flush())
            size += len(parts[-1])
            if not piece:
                return base64.b64encode(b"".join(parts)).decode() if size <= CORE_SENT_BYTES_MAX else None
    return None


_core_limit = threading.Lock()


@contextlib.contextmanager
def core_limit(size_bytes: int) -> Any:
    """Let a command that is started within leave a core file of this size; 0: as it is."""
    if not size_bytes:
        yield
        return
    import resource

    with _core_limit:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        most = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
        resource.setrlimit(resource.RLIMIT_CORE, (most, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
