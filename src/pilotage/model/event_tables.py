"""The types of events as tables, for the reference page: written from the classes that read them."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
from msgspec import inspect as kinds

from pilotage.model.events import ANYONE, EVENT_TYPES, EventType

_ORDER = ("job", "package", "attempt", "pilot", "site", "service")


def event_tables() -> str:
    """Every type of event: what it says, what it is about, who may say it, and what it carries."""
    parts: list[str] = []
    values: dict[str, type[msgspec.Struct]] = {}
    for name, known in EVENT_TYPES.items():
        parts.append(f"### {name}\n\n{_sentence(known.payload)}\n")
        parts.append(f"{_about(known)}\n")
        parts.append(_fields(known.payload, values) or "It carries nothing more.\n")
    parts.append("### Values inside payloads\n")
    shown: set[str] = set()
    while pending := [name for name in values if name not in shown]:
        for name in pending:
            shown.add(name)
            parts.append(f"**{name}.** {_sentence(values[name])}\n")
            parts.append(_fields(values[name], values))
    return "\n".join(parts)


def _about(known: EventType) -> str:
    subjects = " or ".join(
        f"a {kind}" if kind != "attempt" else "an attempt" for kind in _ORDER if kind in known.subjects
    )
    subjects = subjects.replace("a service", "the service itself")
    said = "by anyone" if known.sources == ANYONE else f"by the {' or '.join(sorted(known.sources))} alone"
    return f"About {subjects}; said {said}. Version {known.version}."


def _sentence(struct: type[msgspec.Struct]) -> str:
    return " ".join((inspect.getdoc(struct) or "").split())


def _fields(struct: type[msgspec.Struct], values: dict[str, type[msgspec.Struct]]) -> str:
    fields = msgspec.structs.fields(struct)
    if not fields:
        return ""
    info = kinds.type_info(struct)
    assert isinstance(info, kinds.StructType)
    lines = ["| field | value | default |", "|---|---|---|"]
    lines += [f"| `{field.name}` | {_kind(field.type, values)} | {_default(field)} |" for field in info.fields]
    return "\n".join(lines) + "\n"


def _default(field: kinds.Field) -> str:
    if field.required:
        return "required"
    value: Any = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is None or value in ("", (), {}, []):
        return "none"
    return f"`{msgspec.json.encode(value).decode()}`"


def _kind(kind: kinds.Type, values: dict[str, type[msgspec.Struct]]) -> str:
    match kind:
        case kinds.UnionType(types=members):
            return " or ".join(_kind(one, values) for one in members if not isinstance(one, kinds.NoneType))
        case kinds.LiteralType(values=words):
            return " or ".join(f"`{word}`" for word in words)
        case kinds.EnumType(cls=choices):
            return " or ".join(f"`{one.value}`" for one in choices)
        case kinds.StructType(cls=struct):
            values.setdefault(struct.__name__, struct)
            return struct.__name__
        case kinds.VarTupleType(item_type=item):
            return f"list of {_kind(item, values)}"
        case kinds.DictType(value_type=value):
            return f"map of names to {_kind(value, values)}"
        case kinds.BoolType():
            return "yes or no"
        case kinds.IntType():
            return f"integer{_range(kind.ge, kind.le)}"
        case kinds.FloatType():
            return f"number{_range(kind.ge, kind.le)}"
        case kinds.Metadata(extra_json_schema={"pattern": "^[0-9a-f]{64}$"}):
            return "sha256"
        case kinds.StrType():
            return _text(kind)
    return "text"


def _text(kind: kinds.StrType) -> str:
    if kind.pattern is not None:
        return f"text like `{kind.pattern}`".replace("|", r"\|")
    return "text" if kind.max_length is None else f"text of at most {kind.max_length:,} characters"


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if high is None or high >= 2**53 - 1:
        return f" from {low:,}" if low is not None and low > -(2**53) + 1 else ""
    return f" up to {high:,}" if low is None else f" from {low:,} to {high:,}"
