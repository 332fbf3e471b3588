"""Logs events for scripts: into the spool, and from there to the server, at once or soon."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, get_args

import msgspec

from pilotage.agent import AgentError, EventId, NotDelivered, Producer
from pilotage.agent.delivery.courier import acknowledged
from pilotage.agent.delivery.producer import PackageEnvironment, Subject, check_tag, read_environment
from pilotage.agent.delivery.spool import is_pilots_own
from pilotage.agent.errors import TokenRefused
from pilotage.client.finding import Address
from pilotage.client.server import Server, path_of
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.events.events import EVENT_TYPES, EventType

# Composes an event from its type, fields as `name=value`, and its subject, and checks it before writing it anywhere.
# The server would refuse a faulty event as well, but later, when the script that logged it has moved on.

__all__ = [
    "SUBJECTS",
    "BadEventWords",
    "ComposedEvent",
    "Subject",
    "check_tag",
    "compose",
    "read_environment",
    "split_fields",
]

SUBJECTS: Mapping[str, str] = {
    "job": "--job",
    "package": "--job and --package",
    "attempt": "--job, --package and --attempt",
    "pilot": "--pilot",
    "site": "--site",
    "service": "no subject",
}
"""The subjects an event may have, the widest first, and the options that name each."""


class BadEventWords(PilotageError):
    """These words are not a valid event. Nothing was logged; correct what is named and try again."""


class ComposedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A checked event, ready to be logged."""

    type: str
    version: int
    subject: Subject
    epoch: int
    data: dict[str, Any]
    time: float | None = None


def compose(
    name: str,
    *,
    fields: Sequence[str],
    data: Mapping[str, Any],
    subject: Subject,
    environment: PackageEnvironment,
    source: str,
    epoch: int | None = None,
    time: float | None = None,
) -> ComposedEvent:
    """Check an event against its type; raises `BadEventWords` with every fault of its fields."""
    kind = EVENT_TYPES.get(name)
    if kind is None:
        raise BadEventWords("there is no such event", subject=name, next_step=did_you_mean(name, EVENT_TYPES))
    if source not in kind.sources:
        raise BadEventWords(
            f"the {source} may not log this event",
            subject=name,
            expected=f"--source {' or '.join(sorted(kind.sources))}",
        )
    about = _subject(kind, subject, environment)
    inherited = environment.epoch if subject.job is None and about.job is not None else 1
    return ComposedEvent(
        type=name,
        version=kind.version,
        subject=about,
        epoch=inherited if epoch is None else epoch,
        data=_payload(kind, split_fields(fields), data),
        time=time,
    )


def split_fields(fields: Iterable[str]) -> dict[str, str]:
    """`name=value` words by name; raises `BadEventWords` for a word without `=`, or a repeated name."""
    found: dict[str, str] = {}
    for word in fields:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise BadEventWords("this is not a field", subject=word, expected="NAME=VALUE")
        if name in found:
            raise BadEventWords("this field is given twice", subject=name)
        found[name] = value
    return found


def _subject(kind: EventType, given: Subject, environment: PackageEnvironment) -> Subject:
    """The subject as given, or the part of the surrounding package that such an event can be about."""
    about = given.completed_from(environment.subject)
    if about is environment.subject:
        # In a running package most events are about its attempt; the others are about its package or its job.
        if "attempt" not in kind.subjects:
            about = about._replace(attempt=None)
        if not kind.subjects & {"attempt", "package"}:
            about = about._replace(package=None)
        if not kind.subjects & {"attempt", "package", "job"}:
            about = about._replace(job=None)
    about.check()
    named = [name for name in ("job", "package", "attempt", "pilot", "site") if getattr(about, name) is not None]
    got = named[-1] if named else "service"
    if got not in kind.subjects:
        wanted = [SUBJECTS[word] for word in SUBJECTS if word in kind.subjects]
        raise BadEventWords(
            "the event has no subject" if not named else f"this event cannot be about a {got}",
            subject=kind.name,
            expected=", or ".join(wanted),
            got=", ".join(f"{name} {getattr(about, name)}" for name in named),
        )
    return about


def _payload(kind: EventType, fields: Mapping[str, str], data: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.encode_name: field for field in msgspec.structs.fields(kind.payload)}
    values: dict[str, Any] = dict(data)
    faults = [f"{name} is in --data, too" for name in fields if name in data]
    faults += list(_unknown(kind.name, [*fields, *data], known))
    for name, text in fields.items():
        if name in known:
            try:
                values[name] = _read(text, known[name].type)
            except msgspec.ValidationError as error:
                faults.append(f"{name}: {_wrong_word(text, known[name].type) or _reason(error)}")
    given = {*values, *fields}
    faults += [f"{name} is missing" for name, field in known.items() if field.required and name not in given]
    if not faults:
        try:
            checked = msgspec.convert(values, kind.payload)
        except msgspec.ValidationError as error:
            faults.append(_reason(error))
        else:
            plain: dict[str, Any] = msgspec.to_builtins(checked)
            return plain
    raise BadEventWords("; ".join(faults), subject=kind.name, next_step=f"fields of {kind.name}: {_listed(known)}")


def _unknown(event: str, names: Iterable[str], known: Mapping[str, Any]) -> Iterator[str]:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            yield f"{event} has no field {name!r}" + (f" ({hint})" if hint.startswith("did") else "")


def _read(text: str, wanted: Any) -> Any:
    """The value of a field: its text, or that text as JSON if plain text does not fit the type."""
    try:
        return msgspec.convert(text, wanted, strict=False)
    except msgspec.ValidationError:
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
        if isinstance(value, str):
            raise
        return msgspec.convert(value, wanted)


def _wrong_word(text: str, wanted: Any) -> str:
    """The message for a word that is not one of the allowed ones; empty if any word is allowed."""
    for kind in (wanted, *get_args(wanted)):
        if isinstance(kind, type) and issubclass(kind, Enum):
            words = [str(member.value) for member in kind]
            near = next((word for word in words if word.lower() == text.lower()), "")
            hint = f"did you mean {near!r}?" if near else did_you_mean(text, words)
            message = f"{text!r} is none of {', '.join(words)}"
            return f"{message} ({hint})" if hint.startswith("did") else message
    return ""


_TYPE = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def _reason(error: msgspec.ValidationError) -> str:
    """What is wrong with a value, without terms of Python."""

    def spoken(found: re.Match[str]) -> str:
        names = found[1].split(" | ")
        kept = [name for name in names if name != "null"] or names
        return " or ".join(_TYPE_WORDS[name] for name in kept) if set(names) <= _TYPE_WORDS.keys() else found[0]

    text = _TYPE.sub(spoken, str(error))
    return text[0].lower() + text[1:]


def _listed(known: Mapping[str, Any]) -> str:
    return ", ".join(name if field.required else f"[{name}]" for name, field in known.items()) or "none"


POSITION_SECONDS = 2.0
QUICKLY_SECONDS = 0.2
"""How long a script waits for a delivery when it did not ask to."""


REGISTERS = frozenset({"Tagged", "OwnerSet", "AccessSet"})
"""Events that replace an older value: they must record having seen it, or the older value wins."""


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A spooled event: whether the server has it, or why the server refused it."""

    source: str
    stream: str
    n: int
    delivered: bool
    refused: str = ""


class LogOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of logging: each event, why some were not delivered, and totals from the server."""

    events: list[LoggedEvent]
    problem: str
    denied: bool  # the token was rejected: waiting does not help
    delivered: int  # including events that waited in the spool
    parked: int  # delivered events whose jobs are not registered yet


def log_events(
    events: Sequence[ComposedEvent],
    *,
    address: Address,
    source: str,
    spool: str | None,
    environment: Mapping[str, str],
    deliver_seconds: float,
) -> LogOutcome:
    """Write events to the local spool, then give the server this long to take them.

    Events not delivered by then stay in the spool, and go with the next delivery to that server.
    """
    producer = Producer(
        address.url,
        source=source,
        spool=spool,
        token=address.token,
        token_file=address.token_file,
        ca_file=address.ca_file,
        deliver=False,
        environment=dict(environment),
    )
    try:
        is_reached = not is_pilots_own(address.url)
        if (
            deliver_seconds > 0
            and is_reached
            and (not producer.queue.seen() or any(event.type in REGISTERS for event in events))
        ):
            _learn_position(producer, address, seconds=deliver_seconds)
        logged = [_log(producer, event) for event in events]
        producer.sync()
        problem, denied = "", False
        if deliver_seconds > 0:
            try:
                producer.flush(deliver_seconds)
            except NotDelivered as error:  # each event says itself whether it was delivered
                problem = producer.last_error.removeprefix(f"{address.url}: ")
                denied = isinstance(error, TokenRefused)
        return LogOutcome(
            events=[_outcome(producer, each) for each in logged],
            problem=problem,
            denied=denied,
            delivered=producer.delivered,
            parked=producer.parked,
        )
    finally:
        producer.close(flush_seconds=0)


def _learn_position(producer: Producer, address: Address, *, seconds: float) -> None:
    """Record the position of the server's book, if it answers: events logged now come after it."""
    limit_seconds = min(seconds, POSITION_SECONDS)
    server = Server(address.url, token=address.token_source(), answer_seconds=limit_seconds, ca_file=address.ca_file)
    with contextlib.suppress(PilotageError, AgentError, OSError), server:
        producer.queue.note_seen(int(server.get(path_of("position"))["position"]))


def _log(producer: Producer, event: ComposedEvent) -> EventId:
    about = event.subject
    return producer.log(
        event.type,
        event.data,
        job=about.job,
        package=about.package,
        attempt=about.attempt,
        pilot=about.pilot,
        site=about.site,
        epoch=event.epoch,
        time=event.time,
        version=event.version,
    )


def _outcome(producer: Producer, event: EventId) -> LoggedEvent:
    done = acknowledged(producer.queue, event)
    refusal = producer.queue.refusal(event) if done else None
    return LoggedEvent(
        source=event.source,
        stream=event.stream,
        n=event.n,
        delivered=done and refusal is None,
        refused="" if refusal is None else f"{refusal['reason']} [{refusal['code']}]",
    )
