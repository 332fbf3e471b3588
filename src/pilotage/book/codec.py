"""Decodes and checks events: each event of a batch on its own, so that a bad one does not reject the good ones.

A payload has a version. Every version ever written can still be read: one upcaster per old version turns it into the
next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from pilotage.model.errors import did_you_mean
from pilotage.model.events.events import (
    ATTEMPT_MAX,
    COUNTER_MAX,
    DOTTED,
    EVENT_TYPES,
    JOB_ID,
    NAME,
    PLACE_MAX,
    STREAM,
    TIME_MAX,
    Event,
    EventType,
    SubjectKind,
    subject_kind,
)
from pilotage.model.events.payloads import (
    AccessSet,
    JobRegistered,
    OwnerSet,
    Payload,
    StageExpanded,
    StageShape,
    Tagged,
)

# Splits a batch into the texts of its events if one of them makes the strict decoder fail.

CUT_BYTES_MAX = 1_100_000
"""A longer body is not split: that would block the server too long, and couriers send shorter ones."""

_BLANKS = b" \t\n\r"
_HEAD = re.compile(rb'[ \t\n\r]*\{[ \t\n\r]*"events"[ \t\n\r]*:[ \t\n\r]*\[')
_TAIL = re.compile(rb"[ \t\n\r]*\}[ \t\n\r]*")
# A quoted string is one piece, whatever it contains; a single quote begins one that does not end.
_PIECE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]++|[\]},"]', re.DOTALL)


def lenient_texts(body: bytes) -> list[bytes] | None:
    """The text of each event of `{"events": […]}`, by a lenient decoder; None if the body has another form.

    If an event is nested too deeply for any decoder, the body is split without decoding.
    """
    try:
        found = json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError:
        return None
    except RecursionError:
        return event_texts(body)
    if not isinstance(found, dict) or found.keys() != {"events"} or not isinstance(found["events"], list):
        return None
    plain = [json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in found["events"]]
    return [text.encode("utf-8", "surrogatepass") for text in plain]


def event_texts(body: bytes) -> list[bytes] | None:
    """The text of each event of `{"events": […]}`, in order; None if the body has another form, or is too long.

    It only matches brackets and quotes; whether a text is JSON is checked later.
    """
    head = _HEAD.match(body)
    if head is None or len(body) > CUT_BYTES_MAX:
        return None
    texts: list[bytes] = []
    opened, start = bytearray(), head.end()
    for piece in _PIECE.finditer(body, start):
        mark = piece[0]
        if mark[0] in b"[{":
            opened += mark
        elif mark in b"]}" and opened:
            if opened.pop() + 2 != mark[0]:  # the distance of the two brackets of a pair in ASCII
                return None
        elif mark in (b",", b"]") and not opened:
            texts.append(body[start : piece.start()].strip(_BLANKS))
            start = piece.end()
            if mark == b"]":
                if texts == [b""]:
                    texts = []
                return texts if _TAIL.fullmatch(body, start) else None
        elif mark in (b"}", b'"'):
            return None
    return None


RefusalCode = Literal[
    "conflict", "unknown_type", "unknown_version", "malformed", "too_large", "purged", "forbidden", "jumped"
]
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: Mapping[tuple[str, int], Upcaster] = {}
"""For each type and old version, the function that makes the next version."""


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why one event of a batch was refused."""

    index: int
    code: RefusalCode
    message: str


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Size limits of events, and checks that older versions did not have."""

    event_bytes_max: int = 4 * 1024 * 1024
    tag_bytes_max: int = 64 * 1024
    line_breaks_in_names: bool = False  # at their ends


DEFAULT_LIMITS = Limits()

PLACES_MAX = 8192  # packages in the cache, at most twice as many

PackagePlace = tuple[int, int, int]
"""The stage, line and number of a package."""


class Checked(msgspec.Struct, frozen=True, gc=False):
    """A well-formed event, with its decoded subject and payload."""

    index: int
    event: Event
    kind: SubjectKind
    place: PackagePlace | None
    data: Payload


_EventKind = tuple[str, bool, str, int, str, str | None]
"""Key of events about packages that are checked alike: type, whether without an attempt, source, version, stream, job."""


class _Refused(Exception):
    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code: RefusalCode = code
        self.message = message


class _BatchOfEvents(msgspec.Struct, forbid_unknown_fields=True):
    events: list[Event]


class _BatchOfText(msgspec.Struct, forbid_unknown_fields=True):
    events: list[msgspec.Raw]


class MalformedBatch(Exception):
    """The body is not a batch: nothing in it could be decoded."""


class Codec:
    """Decodes batches. Caches well-formed names, since the same few come again and again."""

    def __init__(
        self,
        *,
        limits: Limits = DEFAULT_LIMITS,
        types: Mapping[str, EventType] = EVENT_TYPES,
        upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS,
    ) -> None:
        """Take the table of types and the upcasters; tests bring their own."""
        self._limits = limits
        self._types = types
        self._upcasters = upcasters
        self._event = msgspec.json.Decoder(Event)
        self._whole = msgspec.json.Decoder(_BatchOfEvents)
        self._batch = msgspec.json.Decoder(_BatchOfText)
        self._payloads: dict[str, msgspec.json.Decoder[Payload]] = {
            name: msgspec.json.Decoder(each.payload) for name, each in types.items()
        }
        # Events of an agent about an attempt, without other limits: the current version, and its decoder.
        self._own: dict[str, tuple[int, Callable[[msgspec.Raw], Payload]]] = {
            name: (each.version, self._payloads[name].decode)
            for name, each in types.items()
            if "attempt" in each.subjects and "agent" in each.sources and name != "Tagged"
        }
        self._jobs: set[str] = set()
        self._streams: set[str] = set()
        self._names: set[str] = set()
        self._places: dict[str, PackagePlace] = {}
        self._readers: dict[tuple[str, str, str, int], msgspec.json.Decoder[Payload]] = {}
        self._voices: dict[_EventKind, tuple[Callable[[msgspec.Raw], Payload], SubjectKind]] = {}

    def read_batch(
        self, body: bytes | bytearray | memoryview, *, count_max: int = COUNTER_MAX
    ) -> tuple[list[Checked], list[Refusal], int]:
        """The well-formed events of `{"events": […]}`, the refusals of others, and the total number.

        If there are more than `count_max` and one is bad, the others are not decoded.
        """
        limit = self._limits.event_bytes_max
        try:
            events = self._whole.decode(body).events
        except _UNREADABLE:
            pass  # one of them is bad: decode each on its own
        else:
            if len(body) <= limit or all(len(memoryview(event.data)) <= limit for event in events):
                return *self._check_decoded(events), len(events)
        texts = self._texts(body)
        checked, refused = [], []
        for index, text in enumerate(texts if len(texts) <= count_max else ()):
            found = self.read(text, index)
            if isinstance(found, Checked):
                checked.append(found)
            else:
                refused.append(found)
        return checked, refused, len(texts)

    def _texts(self, body: bytes | bytearray | memoryview) -> Sequence[bytes | msgspec.Raw]:
        """The text of each event.

        Text that only a lenient decoder accepts (half a surrogate pair, NaN) must only reject its own event.
        """
        try:
            return self._batch.decode(body).events
        except _UNREADABLE as fault:
            texts = lenient_texts(bytes(body))
            if texts is None:
                raise MalformedBatch(f"the body is not a batch of events: {fault}") from None
            return texts

    def without_limits(self) -> Codec:
        """A codec for events that were accepted before, whatever the limits are now."""
        limits = Limits(event_bytes_max=COUNTER_MAX, tag_bytes_max=COUNTER_MAX, line_breaks_in_names=True)
        return Codec(limits=limits, types=self._types, upcasters=self._upcasters)

    def read(self, text: bytes | msgspec.Raw, index: int) -> Checked | Refusal:
        """Decode one event, at an index of its batch."""
        try:
            if len(bytes(text)) > self._limits.event_bytes_max:
                return _too_large(index, "an event", self._limits.event_bytes_max)
            event = self._event.decode(text)
        except _UNREADABLE as fault:
            return Refusal(index=index, code="malformed", message=_plain(fault))
        return self.check(event, index)

    def check_own(self, event: Event, place: PackagePlace) -> Checked | Refusal:
        """Like `check`, for an agent's event about an attempt and epoch that were found at a place.

        The caller has checked its number.
        """
        known = self._own.get(event.type)
        if (
            known is not None
            and event.version == known[0]
            and event.source == "agent"
            and event.pilot is event.site is None
            and event.stream in self._streams
            and 0 <= event.seen <= COUNTER_MAX
            and 0 <= event.time < TIME_MAX
        ):  # its subject was checked when the attempt was made
            try:
                return Checked(0, event, "attempt", place, known[1](event.data))
            except _UNREADABLE:
                pass  # `check` below reports the fault
        return self.check(event)

    def check(self, event: Event, index: int = 0) -> Checked | Refusal:
        """Check one decoded event."""
        package, attempt = event.package, event.attempt
        kind: SubjectKind
        try:
            if (
                package is not None
                and attempt is not None
                and event.job in self._jobs
                and event.stream in self._streams
                and event.pilot is event.site is None
                and 1 <= attempt <= ATTEMPT_MAX
                and 1 <= event.n <= COUNTER_MAX
                and 1 <= event.epoch <= COUNTER_MAX
                and 0 <= event.seen <= COUNTER_MAX
                and 0 <= event.time < TIME_MAX
                and (place := self._places.get(package) or self._place_of(package)) is not None
            ):  # the usual case: only its payload may be wrong
                kind = "attempt"
            else:
                kind, place = self._subject(event)
            reader = self._readers.get((event.type, kind, event.source, event.version))
            if reader is None:
                data = self._payload(event, kind)
            else:
                data = reader.decode(event.data)
                if kind != "attempt" or event.type == "Tagged":
                    self._check_size(data)
        except _Refused as refused:
            return Refusal(index=index, code=refused.code, message=refused.message)
        except _UNREADABLE as fault:
            return Refusal(index=index, code="malformed", message=f"data of {event.type}: {_plain(fault)}")
        return Checked(index, event, kind, place, data)

    def _check_decoded(self, events: Sequence[Event]) -> tuple[list[Checked], list[Refusal]]:
        """Like `check`, for events from the decoder, which checked their numbers; takes a fast path for repeated kinds."""
        checked: list[Checked] = []
        refused: list[Refusal] = []
        places, voices = self._places, self._voices
        keep = checked.append
        for index, event in enumerate(events):
            package, attempt = event.package, event.attempt
            known = voices.get((event.type, attempt is None, event.source, event.version, event.stream, event.job))
            if known is not None and package is not None and event.pilot is event.site is None:
                place = places.get(package) or self._place_of(package)
                if place is not None:
                    decode, kind = known
                    try:
                        keep(Checked(index, event, kind, place, decode(event.data)))
                    except _UNREADABLE:
                        pass  # `check` below reports the fault
                    else:
                        continue
            found = self.check(event, index)
            if isinstance(found, Checked):
                checked.append(found)
                self._hear(found)
            else:
                refused.append(found)
        return checked, refused

    def _hear(self, one: Checked) -> None:
        """Cache an event's kind for the fast path, unless other limits apply to it."""
        event = one.event
        reader = self._readers.get((event.type, one.kind, event.source, event.version))
        if one.place is None or reader is None or event.type == "Tagged":
            return
        if len(self._voices) >= 65_536:
            self._voices.clear()
        manner = (event.type, event.attempt is None, event.source, event.version, event.stream, event.job)
        self._voices[manner] = (reader.decode, one.kind)

    def check_all(self, events: Sequence[Event]) -> tuple[list[Checked], list[Refusal]]:
        """Check events that were not decoded from text."""
        found = [self.check(event, index) for index, event in enumerate(events)]
        return [one for one in found if isinstance(one, Checked)], [one for one in found if isinstance(one, Refusal)]

    def _subject(self, event: Event) -> tuple[SubjectKind, PackagePlace | None]:
        self._clock(event)
        kind = subject_kind(event)
        if kind is None:
            raise _Refused(
                "malformed", "the subject must be: job; job and package; job, package and attempt; pilot; site; or none"
            )
        if event.job is not None and event.job not in self._jobs:
            _remember(self._jobs, event.job, JOB_ID, "job id")
        name = event.pilot if event.pilot is not None else event.site
        if name is not None and name not in self._names:
            _remember(self._names, name, NAME, f"{kind} name")
        if event.attempt is not None and not (1 <= event.attempt <= ATTEMPT_MAX):
            raise _Refused("malformed", f"attempt {event.attempt}: attempts are numbered from 1")
        text = event.package
        if text is None:
            return kind, None
        place = self._places.get(text) or self._place_of(text)
        if place is None:
            raise _Refused("malformed", f"package {_short(text)!r} is not stage.line.n, each from 1")
        return kind, place

    def _place_of(self, text: str) -> PackagePlace | None:
        found = DOTTED.fullmatch(text)
        if found is None:
            return None
        if len(self._places) >= 2 * PLACES_MAX:
            for older in list(self._places)[:PLACES_MAX]:
                self._places.pop(older, None)  # another thread may have removed it
        stage, line, number = found.groups()
        place = self._places[text] = (int(stage), int(line), int(number))
        return place

    def _clock(self, event: Event) -> None:
        if not (1 <= event.n <= COUNTER_MAX):
            raise _Refused("malformed", f"n is {event.n}: it must be from 1 to {COUNTER_MAX}")
        if event.stream not in self._streams:
            _remember(self._streams, event.stream, STREAM, "stream")
        if not (1 <= event.epoch <= COUNTER_MAX) or not (0 <= event.seen <= COUNTER_MAX):
            clock = f"clock ({event.epoch}, {event.seen})"
            raise _Refused("malformed", f"{clock}: an epoch is at least 1, a position at least 0")
        if not (0 <= event.time < TIME_MAX):  # also true for NaN
            raise _Refused("malformed", f"time {event.time} is not in seconds since 1970")

    def _payload(self, event: Event, kind: SubjectKind) -> Payload:
        known = self._types.get(event.type)
        if known is None:
            hint = did_you_mean(event.type[:64], self._types)
            raise _Refused("unknown_type", f"unknown event type {_short(event.type)!r}{f'; {hint}' if hint else ''}")
        if kind not in known.subjects:
            about = " or ".join(sorted(known.subjects))
            raise _Refused("malformed", f"{event.type} is about a {about}, but this one is about a {kind}")
        if event.source not in known.sources:
            writers = " or ".join(sorted(known.sources))
            raise _Refused("forbidden", f"only the {writers} may send {event.type}, not {event.source}")
        if event.version != known.version:
            data = self._payloads[event.type].decode(self._upcast(event, known))
        else:
            gist = (event.type, kind, event.source, event.version)
            reader = self._readers[gist] = self._payloads[event.type]
            data = reader.decode(event.data)
        self._check_size(data)
        return data

    def _check_size(self, data: Payload) -> None:
        if not self._limits.line_breaks_in_names:
            _check_line_breaks(data)
        if isinstance(data, JobRegistered):
            for shape in data.stages:
                _check_shape(shape)
            for value in data.tags.values():
                self._check_tag(value)
        elif isinstance(data, StageExpanded):
            _check_shape(data.shape)
        elif isinstance(data, Tagged):
            self._check_tag(data.value)

    def _check_tag(self, value: str) -> None:
        if len(value.encode()) > self._limits.tag_bytes_max:
            raise _Refused("too_large", f"a tag's value has at most {self._limits.tag_bytes_max:,} bytes")

    def _upcast(self, event: Event, known: EventType) -> bytes:
        if not 1 <= event.version < known.version:
            versions = f"1 to {known.version}" if known.version > 1 else "1"
            raise _Refused("unknown_version", f"{event.type} has version {versions}, not {event.version}")
        try:
            data = msgspec.json.decode(event.data, type=dict[str, Any])
        except _UNREADABLE as fault:
            raise _Refused("malformed", f"data of {event.type}: {_plain(fault)}") from None
        for version in range(event.version, known.version):
            try:
                data = self._upcasters[event.type, version](data)
            except (KeyError, TypeError, ValueError, AttributeError) as fault:
                raise _Refused("malformed", f"data of {event.type}, version {event.version}: {fault!r}") from None
        return msgspec.json.encode(data)


def _check_line_breaks(data: Payload) -> None:
    """Refuse a name that ends with a line break: the `$` of a pattern accepts it, and people do not see it."""
    names: tuple[str, ...] = ()
    if isinstance(data, Tagged):
        names = (data.name,)
    elif isinstance(data, JobRegistered):
        names = (data.owner, data.name, *data.tags)
    elif isinstance(data, OwnerSet):
        names = (data.owner,)
    elif isinstance(data, AccessSet):
        names = tuple(name for rule in data.rules for name in (rule.principal, *rule.rights))
    for name in names:
        if name.endswith("\n"):
            raise _Refused("malformed", f"{_short(name)!r} must not end with a line break")


def _remember(names: set[str], name: str, pattern: re.Pattern[str], what: str) -> None:
    if pattern.fullmatch(name) is None:
        raise _Refused("malformed", f"{what} {_short(name)!r} is malformed")
    if len(names) >= 65_536:
        names.clear()
    names.add(name)


def _check_shape(shape: StageShape) -> None:
    if shape.lines > PLACE_MAX or shape.packages > COUNTER_MAX:
        raise _Refused("too_large", f"a stage has at most {PLACE_MAX:,} lines")


def _too_large(index: int, what: str, limit: int) -> Refusal:
    return Refusal(index=index, code="too_large", message=f"{what} has at most {limit:,} bytes")


def _plain(fault: Exception) -> str:
    return str(fault)[:500]


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
