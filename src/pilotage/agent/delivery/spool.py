"""The spool: a folder with one queue per server; each queue holds the streams of events to deliver.

SPOOL/
  127.0.0.1-8700-0c4f9a31/          one queue
    queue.json                      which server
    seen                            the last position of that server's book
    refused.jsonl                   events it refused, with the reason
    application.node17-3f9a2c51d0b7/
      append.lock                   held while an event is appended
      0000000000000001.segment      events, one a line
      acknowledged                  the last event that the server acknowledged
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pilotage.agent.delivery.stream import (
    SEGMENT_BYTES,
    Stream,
    StreamRetired,
    create_segment,
    segment_file,
    segments_of,
)
from pilotage.agent.durable_files import (
    SegmentHeader,
    SegmentOrigin,
    append_durably,
    counters_of,
    locked,
    make_folder,
    parse_end,
    read_small,
    replace_file,
    tail_of,
)
from pilotage.agent.errors import BadSetting, SpoolError, spool_error

SOURCES = frozenset({"client", "service", "site", "agent", "application"})
PILOTS_OWN = ("spool:", "unix:")
"""Prefixes of addresses that only a pilot reaches: it delivers the events of its packages."""
_NOWHERE = SegmentOrigin("", "", 0, 0)


class EventId(NamedTuple):
    """The identity of an event, everywhere and for ever."""

    source: str
    stream: str
    n: int


class Acknowledged(NamedTuple):
    """The acknowledged mark of a stream: a segment, the bytes of it that are done, the number of the last event."""

    segment: int
    size_bytes: int
    n: int


def normal_server(server: str) -> str:
    """Normalise the URL of a server, so that each has one queue; raises `BadSetting` if it is not a base URL.

    An address that only a pilot reaches stays as it is.
    """
    if is_pilots_own(server):
        return server
    try:
        parts = urlsplit(server.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise BadSetting(
            "not the base URL of a server",
            subject=server,
            expected="http://HOST:PORT or https://HOST, without user, query or fragment",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = {"http": 80, "https": 443}[parts.scheme]
    shown_port = "" if port is None or port == usual else f":{port}"
    return f"{parts.scheme}://{host}{shown_port}{parts.path.rstrip('/')}"


def is_pilots_own(server: str) -> bool:
    """Tell whether only a pilot reaches a server."""
    return server.startswith(PILOTS_OWN) and not server.endswith(":")


def queue_name(server: str) -> str:
    """Folder name for a server: readable, and unique."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", server.partition("://")[2] or server).strip("-.")[:48]
    return f"{readable}-{zlib.crc32(server.encode()):08x}"


def default_spool(environment: dict[str, str]) -> Path:
    """The default spool folder."""
    named = environment.get("PILOTAGE_SPOOL")
    if named:
        return Path(named)
    state = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME") or "~").expanduser() / ".local/state")
    return Path(state) / "pilotage" / "spool"


class Spool:
    """The folder of all queues of a user on a host; made at the first write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def queue(self, server: str) -> Queue:
        """The queue for a server."""
        server = normal_server(server)
        return Queue(self.folder / queue_name(server), server=server)

    def queues(self) -> list[Queue]:
        """All existing queues, sorted by name."""
        found = []
        for folder in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            server = _server_of(folder)
            if server:
                found.append(Queue(folder, server=server))
        return found


def _server_of(folder: Path) -> str:
    try:
        value = json.loads(read_small(folder / "queue.json"))
        return str(value["server"])
    except (ValueError, KeyError, TypeError, NotADirectoryError):
        return ""


class Queue:
    """The events for one server: waiting streams, acknowledged marks, refused events."""

    def __init__(self, folder: Path, *, server: str) -> None:
        self.folder = folder
        self.server = server
        self._seen = 0

    def stream(self, source: str, *, segment_bytes: int = SEGMENT_BYTES) -> Stream:
        """Open the stream that this host appends to for a source; makes one if needed."""
        if source not in SOURCES:
            raise BadSetting("unknown source", subject=source, expected=", ".join(sorted(SOURCES)))
        try:
            self._make()
            with locked(self.folder / "queue.lock"):
                for folder in self._folders():
                    if folder.name.startswith(f"{source}."):
                        stream = _usable(folder, segment_bytes=segment_bytes)
                        if stream is not None:
                            return stream
                return Stream(self._new_stream(source), segment_bytes=segment_bytes)
        except OSError as error:
            raise spool_error(error, doing="opening the queue", subject=str(self.folder)) from error

    def _make(self) -> None:
        server = _server_of(self.folder)
        if server == self.server:
            return
        if server:
            raise SpoolError(
                "the queue belongs to another server", subject=str(self.folder), expected=self.server, got=server
            )
        make_folder(self.folder)
        with locked(self.folder / "queue.lock"):
            text = json.dumps({"spool": "pilotage", "version": 1, "server": self.server})
            replace_file(self.folder / "queue.json", text.encode() + b"\n")

    def _new_stream(self, source: str) -> Path:
        host = re.sub(r"[^A-Za-z0-9_.-]+", "-", os.uname().nodename)[:40] or "host"
        name = f"{host}-{os.urandom(6).hex()}"
        folder = self.folder / f"{source}.{name}"
        make_folder(folder)
        create_segment(folder, SegmentHeader(source, name, first=1, seen=self.seen(), origin=_NOWHERE))
        return folder

    def _folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        with os.scandir(self.folder) as entries:
            return sorted(self.folder / each.name for each in entries if each.is_dir())

    def streams(self) -> list[Path]:
        """The folders of all streams with events, of any writer."""
        return [folder for folder in self._folders() if folder.name.partition(".")[0] in SOURCES]

    def acknowledged(self, stream: Path) -> Acknowledged:
        """The acknowledged mark of a stream; an unreadable one counts as zero: sending again does no harm."""
        return read_acknowledged(stream)

    def seen(self) -> int:
        """The last position of the server's book that this queue knows."""
        try:
            position = int(read_small(self.folder / "seen") or b"0")
        except ValueError:
            position = 0
        self._seen = max(self._seen, position)
        return self._seen

    def note_seen(self, position: int) -> None:
        """Store a position; the caller holds the courier's lock."""
        if position > self.seen():
            replace_file(self.folder / "seen", b"%d\n" % position)
            self._seen = position

    def set_aside(self, entries: list[dict[str, Any]]) -> None:
        """Append refused events with their reasons, synced to disk."""
        lines = "".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n" for entry in entries)
        try:
            append_durably(self.folder / "refused.jsonl", lines.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise spool_error(error, doing="setting events aside", subject=str(self.folder)) from error

    def pending(self) -> int:
        """Number of waiting events, computed from their numbers without reading them."""
        return sum(pending_events(stream) for stream in self.streams())

    def refused(self) -> list[dict[str, Any]]:
        """The refused events, each with `time`, `code`, `reason` and the original `event`."""
        found = []
        for line in read_small(self.folder / "refused.jsonl").splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue  # a torn line: the server will refuse its event again
            if isinstance(value, dict):
                found.append(value)
        return found

    def refusal(self, event: EventId) -> dict[str, Any] | None:
        """The entry of a refused event, or None."""
        return next((entry for entry in reversed(self.refused()) if event_id(entry) == event), None)


def event_id(entry: dict[str, Any]) -> EventId | None:
    """The event of an entry of `refused.jsonl`; None if unknown."""
    event = entry.get("event")
    return EventId(event["source"], event["stream"], event["n"]) if isinstance(event, dict) else None


def read_acknowledged(stream: Path) -> Acknowledged:
    """Read the acknowledged mark of a stream."""
    try:
        segment, size, number = read_small(stream / "acknowledged").split()
        return Acknowledged(int(segment), int(size), int(number))
    except ValueError:
        return Acknowledged(0, 0, 0)


def write_acknowledged(stream: Path, mark: Acknowledged) -> None:
    """Write the acknowledged mark of a stream."""
    replace_file(stream / "acknowledged", b"%d %d %d\n" % mark)


def pending_events(stream: Path) -> int:
    """Number of unacknowledged events of a stream, computed from their numbers."""
    segments = segments_of(stream)
    if not segments:
        return 0
    mark = read_acknowledged(stream)
    descriptor = os.open(segment_file(stream, segments[-1]), os.O_RDONLY)
    try:
        tail = tail_of(descriptor, size_bytes=os.lseek(descriptor, 0, os.SEEK_END))
    finally:
        os.close(descriptor)
    text = tail.text or b"" if tail is not None else b""
    counters, ended = counters_of(text), parse_end(text)
    if counters:
        return max(0, counters[0] - mark.n)
    return max(0, (ended.following if ended else segments[-1]) - 1 - mark.n)


def _usable(folder: Path, *, segment_bytes: int) -> Stream | None:
    """Open a stream if this process may append to it, else None."""
    if not segments_of(folder):
        return None
    try:
        stream = Stream(folder, segment_bytes=segment_bytes)
    except StreamRetired:
        return None
    try:
        following = stream.catch_up()
        if following <= read_acknowledged(folder).n:
            # The server has numbers that are missing on this disk: they must not be used again.
            stream.retire("events that were delivered are missing from it")
            raise StreamRetired("shortened", subject=str(folder))
    except StreamRetired:
        stream.close()
        return None
    except SpoolError:
        stream.close()
        raise
    return stream
