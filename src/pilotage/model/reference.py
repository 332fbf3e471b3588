"""The table of states as a diagram and as tables, for the documentation: generated from what the book does.

A forward move is drawn from the nearest state in which it can begin; the table below the diagram lists the earlier ones,
which are possible because a later fact implies the earlier ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect as kinds

from pilotage.model.events.events import ANYONE, EVENT_TYPES, EventType
from pilotage.model.states import ADVANCE, COMPOUND_RULES, FINAL_STATES, MEANINGS, TRANSITIONS, State, Transition

UNFINISHED = tuple(state for state in State if state not in FINAL_STATES)
_GROUP = "UNFINISHED"


def state_diagram() -> str:
    """The moves of a package as a Mermaid state diagram."""
    labels: dict[tuple[str, str], list[str]] = {}
    for transition in TRANSITIONS:
        for source in _drawn_from(transition):
            words = labels.setdefault((source, transition.target.value), [])
            if _label(transition) not in words:
                words.append(_label(transition))
    inside = {state.value for state in UNFINISHED}
    edges = [(source, target, ", ".join(words)) for (source, target), words in labels.items()]
    lines = ["stateDiagram-v2", f'    state "not finished" as {_GROUP} {{']
    lines += ["        [*] --> SUBMITTED: JobRegistered"]
    lines += [f"        {one} --> {two}: {words}" for one, two, words in edges if {one, two} <= inside]
    lines += ["    }"]
    lines += [f"    {one} --> {two}: {words}" for one, two, words in edges if not {one, two} <= inside]
    return "\n".join(["```mermaid", *lines, "```"]) + "\n"


def _drawn_from(transition: Transition) -> Iterator[str]:
    """The states from which a move is drawn."""
    sources = [state for state in transition.sources if state != transition.target]
    target = transition.target
    if target not in UNFINISHED and set(UNFINISHED) <= set(sources):
        yield _GROUP
        yield from (state.value for state in sources if state not in UNFINISHED)
        return
    back = [state for state in sources if ADVANCE[state] > ADVANCE[target]]
    if back:
        yield from (state.value for state in back)
    elif sources:
        yield max(sources, key=ADVANCE.__getitem__).value


def _label(transition: Transition) -> str:
    # A colon or a semicolon would end the label.
    note = transition.note.partition(";")[0].replace(":", ",")
    return f"{transition.event} ({note})" if note else transition.event


def state_table() -> str:
    """Every state with its meaning."""
    lines = ["| state | meaning | final | DØ status |", "|---|---|---|---|"]
    lines += [
        f"| `{state.value}` | {meaning.meaning} | {'yes' if meaning.final else ''} | {meaning.dzero} |"
        for state, meaning in MEANINGS.items()
    ]
    return "\n".join(lines) + "\n"


def transition_table() -> str:
    """Every move, with all states in which it can begin."""
    lines = ["| event | from | to | |", "|---|---|---|---|"]
    lines += [
        f"| `{each.event}` | {_states(each.sources)} | `{each.target.value}` | {each.note} |" for each in TRANSITIONS
    ]
    return "\n".join(lines) + "\n"


def _states(states: tuple[State, ...]) -> str:
    if set(states) == set(State):
        return "any"
    if set(states) == set(UNFINISHED):
        return "any that is not final"
    return ", ".join(f"`{state.value}`" for state in states)


def compound_table() -> str:
    """The rule for lines, stages and jobs, in its order."""
    lines = ["| | first that holds | state |", "|---|---|---|"]
    lines += [
        f"| {number} | {rule.condition} | `{rule.state.value}` |" for number, rule in enumerate(COMPOUND_RULES, 1)
    ]
    return "\n".join(lines) + "\n"


# The types of events as tables for the reference page, generated from their classes.

_ORDER = ("job", "package", "attempt", "pilot", "site", "service")


def event_tables() -> str:
    """Every type of event: its meaning, its subjects, its sources, and its fields."""
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
    senders = "by anyone" if known.sources == ANYONE else f"by the {' or '.join(sorted(known.sources))} alone"
    return f"About {subjects}; said {senders}. Version {known.version}."


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
