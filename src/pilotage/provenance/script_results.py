"""What the provenance script of a document said of each attempt: the JSON objects that it printed, and their values by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from pilotage.model.records import JobRecord

TEXT_MAX = 1000
"""Characters of a text by which a record is found; longer ones are only shown."""
DEPTH_MAX = 8
"""Objects within each other whose values have names."""


class ScriptResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the script said after an attempt."""

    package: str
    attempt: int
    custom: dict[str, Any]


class _Finished(msgspec.Struct, frozen=True, kw_only=True):
    custom: str | None = None


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    package: str | None = None
    attempt: int | None = None
    data: msgspec.Raw


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    event: _Event


_line = msgspec.json.Decoder(_Line).decode
_finished = msgspec.json.Decoder(_Finished).decode


def script_results(record: JobRecord, read_part: Callable[[str], bytes]) -> Iterator[ScriptResult]:
    """What the script said, in the order of the life log, which is read only if the definition has a script."""
    definition = record.part("definition")
    if definition is None or b'"script"' not in read_part(definition.sha256):
        return
    for part in record.parts:
        if part.kind != "life-log":
            continue
        for line in read_part(part.sha256).splitlines():
            if b'"type":"AttemptFinished"' not in line or b'"custom":' not in line:
                continue
            event = _line(line).event
            found = result_object(_finished(event.data).custom)
            if found is not None:
                yield ScriptResult(package=event.package or "", attempt=event.attempt or 0, custom=found)


def result_object(text: str | None) -> dict[str, Any] | None:
    """The JSON object that a script printed; None where there is none."""
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # a record of another service may say anything
        return None
    return found if isinstance(found, dict) else None


def result_values(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The values of an object as texts, those of an object within it under a name with a dot, and each value of a list."""
    yield from _values("", found, DEPTH_MAX)


def _values(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, (dict, list)):
        inner = value.items() if isinstance(value, dict) else (("", each) for each in value)
        for key, each in inner if depth else ():
            yield from _values(".".join(filter(None, (name, key))), each, depth - 1)
    elif value is not None and name:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if len(text) <= TEXT_MAX and len(name) <= TEXT_MAX:
            yield name, text
