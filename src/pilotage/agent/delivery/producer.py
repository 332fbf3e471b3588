"""Logs events of a program: they are on disk within moments and delivered in the background."""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import threading
import time as clock
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.delivery.courier import EVENTS_PATH, PACKAGE_PATH, Courier, acknowledged
from pilotage.agent.delivery.spool import SOURCES, EventId, Spool, default_spool, is_pilots_own, normal_server
from pilotage.agent.delivery.stream import Stream, StreamRetired
from pilotage.agent.errors import AgentError, BadEvent, BadSetting, EventRefused, NotDelivered, TokenRefused
from pilotage.agent.link.http import Connection
from pilotage.agent.link.tls import CA_FILE_VARIABLE

if TYPE_CHECKING:
    from types import TracebackType


# The identity of events: found in the environment of a running package, or given by the caller.

COUNTER_MAX = 2**53 - 1
TIME_MAX_SECONDS = 253_402_300_800.0  # the year 10000

_TYPE = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PACKAGE = re.compile(r"[1-9][0-9]{0,8}\.[1-9][0-9]{0,8}\.[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}")
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Subject(NamedTuple):
    """The subject of an event: a job, a package, an attempt, a pilot, a site, or (empty) the service."""

    job: str | None = None
    package: str | None = None
    attempt: int | None = None
    pilot: str | None = None
    site: str | None = None

    def check(self) -> None:
        """Raise `BadEvent` if a part is malformed or the parts do not fit together."""
        for name, pattern in (("job", _JOB), ("package", _PACKAGE), ("pilot", _NAME), ("site", _NAME)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
                raise BadEvent(f"the {name} is malformed", expected=pattern.pattern, got=repr(value))
        if self.attempt is not None:
            check_counter("attempt", self.attempt)
        parts = [name for name in self._fields if getattr(self, name) is not None]
        if parts not in ([], ["job"], ["job", "package"], ["job", "package", "attempt"], ["pilot"], ["site"]):
            raise BadEvent(
                "the parts of the subject do not fit together",
                expected="job, job and package, job and package and attempt, pilot, site, or none of them",
                got=", ".join(parts),
            )

    def completed_from(self, environment: Subject) -> Subject:
        """Fill in the missing parts above the first given one from the environment's subject."""
        if self.pilot is not None or self.site is not None or self.job is not None:
            return self
        if self.package is not None:
            return self._replace(job=environment.job)
        if self.attempt is not None:
            return self._replace(job=environment.job, package=environment.package)
        return environment


class PackageEnvironment(NamedTuple):
    """The PILOTAGE_* variables of a running package."""

    server: str | None
    token: str | None
    token_file: str | None
    ca_file: str
    subject: Subject
    epoch: int
    seen: int  # the book's position when the attempt was assigned


def read_environment(environment: dict[str, str]) -> PackageEnvironment:
    """Read the PILOTAGE_* variables; raises `BadSetting` that names an invalid one."""
    values = {name: environment.get(f"PILOTAGE_{name}") or None for name in ("JOB", "PACKAGE", "ATTEMPT", "EPOCH")}
    counters = {}
    for name in ("ATTEMPT", "EPOCH"):
        text = values[name]
        if text is not None and not (text.isdigit() and 1 <= int(text[:20]) <= COUNTER_MAX):
            raise BadSetting("not a positive whole number", subject=f"PILOTAGE_{name}", got=repr(text))
        counters[name] = None if text is None else int(text)
    subject = Subject(values["JOB"], values["PACKAGE"], counters["ATTEMPT"])
    seen = environment.get("PILOTAGE_SEEN", "")
    try:
        subject.check()
    except BadEvent as error:
        raise BadSetting(
            error.what, subject="PILOTAGE_JOB, _PACKAGE, _ATTEMPT", expected=error.expected, got=error.got
        ) from error
    return PackageEnvironment(
        server=environment.get("PILOTAGE_SERVER") or None,
        token=environment.get("PILOTAGE_TOKEN") or None,
        token_file=environment.get("PILOTAGE_TOKEN_FILE") or None,
        ca_file=environment.get(CA_FILE_VARIABLE, ""),
        subject=subject,
        epoch=counters["EPOCH"] or 1,
        seen=int(seen[:16]) if seen.isdigit() else 0,
    )


def check_type(event_type: Any) -> None:
    """Raise `BadEvent` if this cannot name an event type."""
    if not (isinstance(event_type, str) and _TYPE.fullmatch(event_type)):
        raise BadEvent("not the name of an event type", expected="a name such as AttemptStarted", got=repr(event_type))


def check_tag(name: Any, value: Any) -> None:
    """Raise `BadEvent` if a tag's name or value is invalid."""
    if not (isinstance(name, str) and _TAG.fullmatch(name)):
        raise BadEvent("not the name of a tag", expected=_TAG.pattern, got=repr(name))
    if not isinstance(value, str):
        raise BadEvent("the value of a tag must be text", subject=name, expected="a string", got=repr(value))


def check_counter(name: str, value: Any) -> None:
    """Raise `BadEvent` unless this is a positive whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= COUNTER_MAX:
        raise BadEvent(f"the {name} is not a positive whole number", got=repr(value))


def check_time(moment: Any) -> None:
    """Raise `BadEvent` unless this is a time in seconds since 1970."""
    is_number = isinstance(moment, (int, float)) and not isinstance(moment, bool)
    if not is_number or not math.isfinite(moment) or not 0 <= moment < TIME_MAX_SECONDS:
        raise BadEvent("not a time", expected="seconds since 1970, UTC", got=repr(moment))


class TokenSource:
    """Returns the current token; reads a token file each time, since tokens are renewed."""

    def __init__(self, *, token: str | None, token_file: str | None) -> None:
        """Take a token, or the file that holds it, or neither."""
        self._token = token
        self._file = token_file

    def __call__(self) -> str:
        """The token, or empty if there is none; raises `BadSetting` if it cannot be read or used."""
        token, where = self._token, "the token"
        if token is None and self._file:
            where = self._file
            try:
                token = Path(self._file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise BadSetting(f"cannot read the token file: {error}", subject=where) from error
        if token and not _TOKEN.fullmatch(token):
            raise BadSetting("the token contains characters that tokens cannot have", subject=where)
        return token or ""


EVENT_BYTES_MAX = (8 << 20) - 1024  # the largest batch that a server accepts
GROUP_SECONDS = 0.05
CLOSE_SECONDS = 5.0
MARK_VARIABLE = "PILOTAGE_MARK"  # in the environment of all processes that a pilot starts

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Producer:
    """Logs the events of one source to one server through a spool on this host.

    Settings not given come from the environment: PILOTAGE_SERVER, PILOTAGE_TOKEN or PILOTAGE_TOKEN_FILE,
    PILOTAGE_CA_FILE, PILOTAGE_SPOOL, and the subject of events: PILOTAGE_JOB, PILOTAGE_PACKAGE, PILOTAGE_ATTEMPT and
    PILOTAGE_EPOCH. Threads may share a producer, and a forked child may go on with the one it inherited. No file is
    made and no thread started before the first event.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        source: str = "application",
        spool: str | os.PathLike[str] | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        deliver: bool = True,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Override the environment; without `deliver` events stay in the spool until a flush or another courier."""
        variables = dict(os.environ) if environment is None else environment
        package_environment = read_environment(variables)
        address = server or package_environment.server
        if not address:
            raise BadSetting("no server", next_step="give server=, or set PILOTAGE_SERVER to its base URL")
        if source not in SOURCES:
            raise BadSetting("unknown source", subject=source, expected=", ".join(sorted(SOURCES)))
        self.source = source
        self.queue = Spool(Path(spool) if spool is not None else default_spool(variables)).queue(address)
        if token is None and token_file is None:
            token, token_file = package_environment.token, package_environment.token_file
        self._token = TokenSource(token=token, token_file=None if token_file is None else os.fspath(token_file))
        self._ca_file = package_environment.ca_file if ca_file is None else os.fspath(ca_file)
        self._subject = package_environment.subject
        self._epoch = package_environment.epoch
        self._seen_least = package_environment.seen
        self._subject_texts: dict[tuple[Subject, int], str] = {}
        self._usual = self._about(self._subject, self._epoch)
        self._types: set[str] = set()
        # A package may reach the service through its pilot's link, where no other way is open.
        is_pilots = bool(variables.get(MARK_VARIABLE)) and _is_at(package_environment.server, self.queue.server)
        self._path = PACKAGE_PATH if is_pilots else EVENTS_PATH
        self._left_to_pilot = is_pilots_own(self.queue.server)
        self._deliver = deliver and not self._left_to_pilot
        self._closed = False
        self._last: dict[str, EventId] = {}  # last event of each stream that this producer wrote to
        self._begin()
        _producers.add(self)

    def _begin(self) -> None:
        """Set up the state of this process; a forked child starts afresh."""
        self._guard = threading.RLock()
        self._stream: Stream | None = None
        connection = Connection(self.queue.server, ca_file=self._ca_file)
        self._courier = Courier(self.queue, token=self._token, connection=connection, path=self._path)
        self._threads: list[threading.Thread] = []
        self._dirty = threading.Event()
        self._stopping = threading.Event()
        self._failure: AgentError | None = None
        self._seen = 0

    def log(
        self,
        event_type: str,
        data: dict[str, Any] | None = None,
        *,
        job: str | None = None,
        package: str | None = None,
        attempt: int | None = None,
        pilot: str | None = None,
        site: str | None = None,
        epoch: int | None = None,
        time: float | None = None,
        version: int = 1,
    ) -> EventId:
        """Append an event to the spool and return its identity at once; it is on disk a moment later.

        The default subject is the attempt that this program runs in. Raises `BadEvent` for an event that no server
        would accept, and `SpoolFull` if there is no space; then nothing was written.
        """
        if job is None and package is None and attempt is None and pilot is None and site is None and epoch is None:
            about = self._usual
        else:
            subject = Subject(job, package, attempt, pilot, site).completed_from(self._subject)
            inherited = self._epoch if job is None and subject.job is not None else 1
            about = self._about(subject, inherited if epoch is None else epoch)
        if event_type not in self._types:
            check_type(event_type)
            self._types.add(event_type)
        if time is None:
            time = clock.time()
        else:
            check_time(time)
        if version != 1:
            check_counter("version", version)
            about = f'"version":{version},{about}'
        return self._append(f'"type":"{event_type}","time":{time:.6f},{about}"data":{_payload(data)}}}')

    def _about(self, subject: Subject, epoch: int) -> str:
        text = self._subject_texts.get((subject, epoch))
        if text is None:
            subject.check()
            check_counter("epoch", epoch)
            values: dict[str, Any] = {name: value for name, value in subject._asdict().items() if value is not None}
            if epoch != 1:
                values["epoch"] = epoch
            text = _encode(values)[1:-1] + "," if values else ""
            if len(self._subject_texts) > 1000:
                self._subject_texts.clear()
            self._subject_texts[subject, epoch] = text
        return text

    def _append(self, text: str) -> EventId:
        try:
            rest = text.encode()
        except UnicodeEncodeError as error:
            raise BadEvent(
                "the event contains text that is not Unicode", got=repr(error.object[error.start : error.end])
            ) from error
        if len(rest) > EVENT_BYTES_MAX:
            raise BadEvent("the event is too large", expected=f"at most {EVENT_BYTES_MAX} bytes", got=str(len(rest)))
        with self._guard:
            event = self._append_line(rest)
            self._last[event.stream] = event
        if not self._dirty.is_set():
            self._dirty.set()
        if self._deliver:
            self._courier.wake()
        return event

    def _append_line(self, rest: bytes) -> EventId:
        while True:
            stream = self._stream or self._open()
            try:
                return EventId(self.source, stream.name, stream.append(rest, seen=self._seen))
            except StreamRetired:
                self._stream = None
                stream.close()

    def _open(self) -> Stream:
        """The stream to append to; starts the background threads."""
        if self._closed:
            raise AgentError("the producer is closed", subject=self.queue.server)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._stream = self.queue.stream(self.source)
        self._seen = max(self.queue.seen(), self._seen_least)
        if not self._threads:
            self._threads = [threading.Thread(target=self._keep, name="pilotage-spool", daemon=True)]
            if self._deliver:
                self._threads.append(threading.Thread(target=self._courier.run, name="pilotage-courier", daemon=True))
            for thread in self._threads:
                thread.start()
        return self._stream

    def _keep(self) -> None:
        """Sync events to disk in groups, and note the position of the server's book."""
        while not self._stopping.is_set():
            self._dirty.wait()
            if self._stopping.wait(GROUP_SECONDS):
                return
            self._dirty.clear()
            try:
                self._sync()
                self._seen = max(self.queue.seen(), self._seen_least)
            except AgentError as error:
                with self._guard:
                    self._failure = error
                    stream, self._stream = self._stream, None
                if stream is not None:
                    stream.close()

    def _sync(self) -> None:
        stream = self._stream
        if stream is not None and self._courier.synced(stream.folder.name) < stream.place:
            stream.sync()

    def sync(self) -> None:
        """Wait until every event logged so far is on disk."""
        with self._guard:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._stream is not None:
                self._stream.sync()

    def tag(
        self, name: str, value: str, *, job: str | None = None, package: str | None = None, epoch: int | None = None
    ) -> EventId:
        """Tag a job or a package; the default is the package that this program runs in."""
        check_tag(name, value)
        if job is None and package is None:
            job, package = self._subject.job, self._subject.package
            epoch = self._epoch if epoch is None else epoch
        if job is None and self._subject.job is None:
            raise BadEvent("no job to tag", subject=name, next_step="give job=, or set PILOTAGE_JOB")
        return self.log("Tagged", {"name": name, "value": value}, job=job, package=package, epoch=epoch)

    def log_now(
        self, event_type: str, data: dict[str, Any] | None = None, *, timeout_seconds: float = 30.0, **details: Any
    ) -> EventId:
        """Log an event like `log`, and return when the server has acknowledged it.

        Raises `EventRefused` with the server's reason, `NotDelivered` when the time is up, and `TokenRefused` at once
        if the server rejects the token; in the last two cases the event is kept and delivered later.
        """
        event = self.log(event_type, data, **details)
        self._deliver_all([event], timeout_seconds=timeout_seconds)
        refusal = self.queue.refusal(event)
        if refusal is not None:
            raise EventRefused(str(refusal["reason"]), code=str(refusal["code"]), subject=event_type)
        return event

    def flush(self, timeout_seconds: float = 30.0) -> None:
        """Return when the server has acknowledged all our events; raises `NotDelivered` when the time is up.

        A rejected token ends it at once (`TokenRefused`), since waiting does not help. Events that the server refuses
        count as done: they are set aside (`queue.refused()`).
        """
        with self._guard:
            wanted = list(self._last.values())
        self._deliver_all(wanted, timeout_seconds=timeout_seconds)

    def _deliver_all(self, wanted: list[EventId], *, timeout_seconds: float) -> None:
        if self._left_to_pilot and wanted:
            raise NotDelivered(
                "only the pilot of this package can reach the server",
                subject=self.queue.server,
                next_step=f"the events are kept in {self.queue.folder}; the pilot delivers them",
            )
        until = clock.monotonic() + timeout_seconds
        pause_seconds = 0.05

        def done() -> bool:
            return all(acknowledged(self.queue, event) for event in wanted)

        while not done():
            left = until - clock.monotonic()
            if left <= 0:
                raise NotDelivered(
                    f"not acknowledged within {timeout_seconds:g} s: {self.last_error or 'another courier is at work'}",
                    subject=self.queue.server,
                    next_step=f"the events are kept in {self.queue.folder} and delivered when the server answers",
                )
            drained = self._courier.drain_once(timeout_seconds=left, enough=done)
            if drained.denied and not done():
                raise TokenRefused(
                    drained.problem,
                    subject=self.queue.server,
                    next_step=f"the events are kept in {self.queue.folder}; use a token that the server accepts",
                )
            if drained.busy:
                self._courier.wait_for_news(min(0.02, left))
            elif drained.problem:
                self._courier.wait_for_news(min(pause_seconds, max(0.0, until - clock.monotonic())))
                pause_seconds = min(2.0, pause_seconds * 2)

    @property
    def last_error(self) -> str:
        """Why the last delivery failed; empty if it succeeded."""
        return "only the pilot of this package can reach it" if self._left_to_pilot else self._courier.last_error

    @property
    def delivered(self) -> int:
        """Number of events that this producer delivered, including those that others left in the spool."""
        return self._courier.delivered

    @property
    def parked(self) -> int:
        """Number of delivered events whose jobs were not registered yet; they are parked at the server until then."""
        return self._courier.parked

    def close(self, flush_seconds: float = CLOSE_SECONDS) -> None:
        """Sync all events to disk, wait that long for the server, end the threads.

        Unacknowledged events stay in the spool for the next courier of this queue.
        """
        if self._closed:
            return
        self._closed = True
        _producers.discard(self)
        try:
            self.sync()
            if self._deliver and flush_seconds > 0:
                self.flush(flush_seconds)
        except NotDelivered:
            pass  # the events are kept, as the docstring says
        finally:
            self._end()

    def _end(self) -> None:
        self._stopping.set()
        self._dirty.set()
        self._courier.stop()
        for thread in self._threads:
            thread.join()
        self._courier.close()
        with self._guard:
            if self._stream is not None:
                self._stream.close()
            self._stream = None

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def after_fork(self) -> None:
        """Start afresh in a forked child, which has neither the threads nor the locks of its parent."""
        stream = self._stream
        courier = self._courier
        self._begin()
        courier.abandon()
        if stream is not None:
            stream.abandon()


def _is_at(address: str | None, server: str) -> bool:
    """Tell whether two spellings name the same server."""
    try:
        return address is not None and normal_server(address) == server
    except BadSetting:
        return False


def _payload(data: dict[str, Any] | None) -> str:
    if data is None:
        return "{}"
    if not isinstance(data, dict):
        raise BadEvent("the data of an event must be an object", expected="a dictionary", got=type(data).__name__)
    try:
        return _encode(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadEvent(f"the data cannot be encoded as JSON: {error}", got=type(data).__name__) from error


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork() -> None:
    for producer in list(_producers):
        producer.after_fork()


def _at_exit() -> None:
    for producer in list(_producers):
        producer.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
