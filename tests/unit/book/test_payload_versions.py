"""A payload that changes gets a new version and an upcaster: what was ever written can be read for ever.

`payloads.json` holds every version of every payload there ever was, with an example. After a change that raised the
version, `python tests/unit/book/test_payload_versions.py` adds the new one. A version that is there only ever gets fields with
defaults, which its earlier example lacks, and further values of an enumeration.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.book.codec import UPCASTERS, Checked, Codec
from pilotage.model.events.events import EVENT_TYPES, EventType

SNAPSHOT = Path(__file__).parent / "payloads.json"
TEXTS = {"^[0-9a-f]{64}$": "0f" * 32, "^[A-Za-z_][A-Za-z0-9_.-]*$": "study", "^(read|modify|cancel)$": "read"}


def schema_of(known: EventType) -> dict[str, Any]:
    """The JSON Schema of a payload, without its prose."""
    return dict(_without_prose(json.loads(json.dumps(msgspec.json.schema(known.payload)))))


def _without_prose(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_prose(part)
            for name, part in value.items()
            if name not in ("description", "title") or not isinstance(part, str)
        }
    return [_without_prose(part) for part in value] if isinstance(value, list) else value


def example_of(schema: dict[str, Any], parts: dict[str, Any]) -> Any:
    """A value with every field that a schema tells of."""
    if "$ref" in schema:
        return example_of(parts[schema["$ref"].rpartition("/")[2]], parts)
    for names in ("anyOf", "enum"):
        if names in schema:
            first = next(one for one in schema[names] if one is not None and one != {"type": "null"})
            return first if names == "enum" else example_of(first, parts)
    match schema["type"]:
        case "object" if "properties" in schema:
            return {name: example_of(part, parts) for name, part in schema["properties"].items()}
        case "object":
            return {"key": example_of(schema["additionalProperties"], parts)}
        case "array":
            return [example_of(schema["items"], parts)]
        case "string":
            return TEXTS.get(schema.get("pattern", ""), "text")
        case kind:
            return {"integer": 3, "number": min(1.5, schema.get("maximum", 1.5)), "boolean": True}[kind]


def snapshot() -> dict[str, dict[str, dict[str, Any]]]:
    recorded: dict[str, dict[str, dict[str, Any]]] = (
        json.loads(SNAPSHOT.read_text("utf-8")) if SNAPSHOT.exists() else {}
    )
    return recorded


def completed(recorded: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The snapshot with the present version of every payload that it lacks."""
    for name, known in EVENT_TYPES.items():
        versions = recorded.setdefault(name, {})
        schema = schema_of(known)
        if str(known.version) not in versions or _is_wider(schema, versions[str(known.version)]["schema"]):
            versions[str(known.version)] = {"schema": schema, "example": example_of(schema, schema.get("$defs", {}))}
    return dict(sorted(recorded.items()))


def _is_wider(schema: dict[str, Any], than: dict[str, Any]) -> bool:
    """Whether a schema is another one with more fields that may be left out, or with more values to choose from."""
    parts, others = schema["$defs"], than["$defs"]
    if schema == than or not parts.keys() >= others.keys():
        return False
    for name, other in others.items():
        part = parts[name]
        kept = {field: part["properties"].get(field) for field in other.get("properties", {})}
        if not all(_takes_all(kept[field], taken) for field, taken in other.get("properties", {}).items()) or part.get(
            "required"
        ) != other.get("required"):
            return False
    return True


def _takes_all(schema: dict[str, Any] | None, taken: dict[str, Any]) -> bool:
    """Whether a field takes every value that it took before."""
    if schema == taken:
        return True
    if schema is None or "enum" not in schema or "enum" not in taken:
        return False
    others = ({**each, "enum": None} for each in (schema, taken))
    return next(others) == next(others) and set(schema["enum"]) >= set(taken["enum"])


@pytest.mark.parametrize("name", sorted(EVENT_TYPES))
def test_a_payload_is_what_its_version_always_was(name: str) -> None:
    known = EVENT_TYPES[name]
    recorded = snapshot().get(name, {}).get(str(known.version))
    assert recorded is not None, f"{name}, version {known.version}, is new: run {Path(__file__).name} to record it"
    assert schema_of(known) == recorded["schema"], (
        f"the payload of {name} has changed: raise its version in events.py and add an upcaster to UPCASTERS"
    )


@pytest.mark.parametrize("name", sorted(snapshot()))
def test_every_version_there_ever_was_is_still_read(name: str) -> None:
    assert name in EVENT_TYPES, f"events called {name} were written once, and must still be read"
    known = EVENT_TYPES[name]
    assert sorted(map(int, snapshot()[name])) == list(range(1, known.version + 1))
    subject: dict[str, dict[str, Any]] = {
        "job": {"job": "j"},
        "package": {"job": "j", "package": "1.1.1"},
        "attempt": {"job": "j", "package": "1.1.1", "attempt": 1},
        "pilot": {"pilot": "p"},
        "site": {"site": "s"},
        "service": {},
    }
    for version, recorded in snapshot()[name].items():
        for kind in known.subjects:
            event = {
                "source": "service", "stream": "s", "n": 1, "type": name, "time": 1.0, "version": int(version),
                "data": recorded["example"], **subject[kind],
            }  # fmt: skip
            found = Codec().read(json.dumps(event).encode(), 0)
            assert isinstance(found, Checked), found
            assert type(found.data) is known.payload


def test_every_old_version_has_an_upcaster_and_no_other_has() -> None:
    old = {(name, int(version)) for name, versions in snapshot().items() for version in versions}
    present = {(name, known.version) for name, known in EVENT_TYPES.items()}
    assert set(UPCASTERS) == old - present


def test_a_change_of_a_payload_is_noticed() -> None:
    wider = msgspec.defstruct("Tagged", [("colour", str, "red")], bases=(EVENT_TYPES["Tagged"].payload,), kw_only=True)
    changed = msgspec.structs.replace(EVENT_TYPES["Tagged"], payload=wider)
    assert schema_of(changed) != snapshot()["Tagged"]["1"]["schema"]


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(completed(snapshot()), indent=1, ensure_ascii=False) + "\n", "utf-8")
