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
from pilotage.agent.delivery.producer import Subject, Surroundings, check_tag, read_environment
from pilotage.agent.delivery.spool import is_pilots_own
from pilotage.agent.errors import TokenRefused
from pilotage.client.finding import Address
from pilotage.client.server import Server, path_of
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.events.events import EVENT_TYPES, EventType

# An event from words: its type, its fields as `name=value`, and what it is about, checked before it is written
# anywhere.
#
# The server would refuse the same, but later, when the script that said it has long gone on.

__all__ = [
    "SUBJECTS",
    "BadEventWords",
    "Composed",
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
"""What an event may be about, the widest first, and how that is said."""


class BadEventWords(PilotageError):
    """These words make no event. Nothing was logged; mend what is named and say it again."""


class Composed(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is ready to be logged."""

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
    surroundings: Surroundings,
    source: str,
    epoch: int | None = None,
    time: float | None = None,
) -> Composed:
    """Check the words of an event against its type; raises `BadEventWords` with everything that is wrong with its fields."""
    kind = EVENT_TYPES.get(name)
    if kind is None:
        raise BadEventWords("there is no such event", subject=name, next_step=did_you_mean(name, EVENT_TYPES))
    if source not in kind.sources:
        raise BadEventWords(
            f"the {source} does not say this",
            subject=name,
            expected=f"--source {' or '.join(sorted(kind.sources))}",
        )
    about = _subject(kind, subject, surroundings)
    inherited = surroundings.epoch if subject.job is None and about.job is not None else 1
    return Composed(
        type=name,
        version=kind.version,
        subject=about,
        epoch=inherited if epoch is None else epoch,
        data=_payload(kind, split_fields(fields), data),
        time=time,
    )


def split_fields(fields: Iterable[str]) -> dict[str, str]:
    """`name=value` words by name; raises `BadEventWords` for a word without sign, or a name that is said twice."""
    found: dict[str, str] = {}
    for word in fields:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise BadEventWords("this is no field", subject=word, expected="NAME=VALUE")
        if name in found:
            raise BadEventWords("this is said twice", subject=name)
        found[name] = value
    return found


def _subject(kind: EventType, said: Subject, surroundings: Surroundings) -> Subject:
    """What the event is about: as said, or the part of the surroundings that such an event can be about."""
    about = said.over(surroundings.subject)
    if about is surroundings.subject:
        # In a running package most events are about its attempt; those that are not are about what it is part of.
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
            "it is not said what this is about" if not named else f"this is not about a {got}",
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
    said = {*values, *fields}
    faults += [f"{name} is missing" for name, field in known.items() if field.required and name not in said]
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
    """A value from its words: as they stand, or as the JSON they are where the words alone do not fit."""
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
    """What to say of a word where only some are possible; empty where any may be."""
    for kind in (wanted, *get_args(wanted)):
        if isinstance(kind, type) and issubclass(kind, Enum):
            words = [str(member.value) for member in kind]
            near = next((word for word in words if word.lower() == text.lower()), "")
            hint = f"did you mean {near!r}?" if near else did_you_mean(text, words)
            told = f"{text!r} is none of {', '.join(words)}"
            return f"{told} ({hint})" if hint.startswith("did") else told
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
    """What is wrong with a value, in words that are not those of a programming language."""

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
"""How long a script is kept waiting for a delivery that it did not ask to wait for."""


REGISTERS = frozenset({"Tagged", "OwnerSet", "AccessSet"})
"""What takes the place of an older value: it must have seen that one, or the older one stands."""


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the spool: whether the server has it by now, or why it will not have it."""

    source: str
    stream: str
    n: int
    delivered: bool
    refused: str = ""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of events: each of them, why some did not go, and what the server said of all that went."""

    events: list[Logged]
    problem: str
    denied: bool  # the token is the problem: waiting does not help
    delivered: int  # with those that waited in the spool before
    parked: int  # how many of the delivered are of jobs that are not registered yet


def log_events(
    events: Sequence[Composed],
    *,
    address: Address,
    source: str,
    spool: str | None,
    environment: Mapping[str, str],
    deliver_seconds: float,
) -> Sent:
    """Bring events to the disk of this host, then give the server that long to take them.

    What it has not taken by then is kept, and goes with the next delivery to that server.
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
            except NotDelivered as error:  # each event tells for itself whether it went
                problem = producer.last_error.removeprefix(f"{address.url}: ")
                denied = isinstance(error, TokenRefused)
        return Sent(
            events=[_outcome(producer, each) for each in logged],
            problem=problem,
            denied=denied,
            delivered=producer.delivered,
            parked=producer.parked,
        )
    finally:
        producer.close(flush_seconds=0)


def _learn_position(producer: Producer, address: Address, *, seconds: float) -> None:
    """Note how far the book of the server is, if it answers: what is logged now comes after all of that."""
    limit_seconds = min(seconds, POSITION_SECONDS)
    server = Server(address.url, token=address.token_source(), answer_seconds=limit_seconds, ca_file=address.ca_file)
    with contextlib.suppress(PilotageError, AgentError, OSError), server:
        producer.queue.note_seen(int(server.get(path_of("position"))["position"]))


def _log(producer: Producer, event: Composed) -> EventId:
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


def _outcome(producer: Producer, event: EventId) -> Logged:
    done = acknowledged(producer.queue, event)
    refusal = producer.queue.refusal(event) if done else None
    return Logged(
        source=event.source,
        stream=event.stream,
        n=event.n,
        delivered=done and refusal is None,
        refused="" if refusal is None else f"{refusal['reason']} [{refusal['code']}]",
    )
