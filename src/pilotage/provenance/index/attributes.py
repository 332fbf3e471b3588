"""The attributes of a record, by which indexes find it: of the job, its tags, its files, and the nodes where it ran."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from pilotage.model.errors import did_you_mean, near_name
from pilotage.model.records import Annotation, JobRecord, RecordNode
from pilotage.ports.record_index import PREFIXES, IndexedAttributes, UnknownAttribute, Value

NODE_PREFIX = "node."
SCRIPT_NAMES_MAX = 1000
"""Names of a job by which what its scripts printed is found: a script may invent a name for each package."""
_FAMILIES = {"software": "software", "environment": "variable"}
"""Fields of a node with a name and a text each, and what they are called in queries."""


class RecordAttribute(msgspec.Struct, frozen=True, kw_only=True):
    """An attribute: the kind of its values (text, number or time), and what it says."""

    name: str
    kind: str = "text"
    description: str


_TABLE = (
    RecordAttribute(name="job", description="The id of the job."),
    RecordAttribute(name="name", description="The short name of the job."),
    RecordAttribute(name="owner", description="Who the job belongs to."),
    RecordAttribute(name="state", description="The state in which the job ended."),
    RecordAttribute(name="submitted", kind="time", description="When the job was submitted."),
    RecordAttribute(name="ended", kind="time", description="When the job was over."),
    RecordAttribute(name="recorded", kind="time", description="When its record was made."),
    RecordAttribute(name="revision", kind="number", description="The revision of the record."),
    RecordAttribute(name="definition", description="The sha256 of the definition as submitted."),
    RecordAttribute(name="site", description="A site where attempts ran."),
    RecordAttribute(name="activity", description="An activity of its packages."),
    RecordAttribute(name="software", description="A software that its packages ran, as `ID` and as `ID@VERSION`."),
    RecordAttribute(name="packages", kind="number", description="How many packages ran."),
    RecordAttribute(name="attempts", kind="number", description="How many attempts there were."),
    RecordAttribute(name="exit_code", description="How an attempt ended, in the words of GASW."),
    RecordAttribute(name="reason", description="The finer reason of an exit code, such as `out-of-memory`."),
    RecordAttribute(name="consumed", description="The name of a file that the job used."),
    RecordAttribute(name="consumed.sha256", description="The sha256 of a file that the job used."),
    RecordAttribute(name="produced", description="The name of a file that the job made."),
    RecordAttribute(name="produced.sha256", description="The sha256 of a file that the job made."),
    RecordAttribute(name="custom", description="The name of custom data that came with the job or later."),
    RecordAttribute(name="node", description="The name of a node where attempts ran."),
)
_FAMILY_TABLE = (
    RecordAttribute(
        name="tag.NAME", description="The value of a user tag or of a later annotation; the latest counts."
    ),
    RecordAttribute(
        name="custom.NAME",
        description="A value that the provenance script of the document printed; `a.b` is the value `b` of the object `a`.",
    ),
    RecordAttribute(name="node.software.NAME", description="The version of a software on a node."),
    RecordAttribute(name="node.variable.NAME", description="An environment variable of a node."),
)


_NODE_WORDS = {
    "system": "The system of a node, as its agent described it.",
    "cores": "The cores of a node.",
    "memory_bytes": "The memory of a node.",
    "os_release": "The operating system of a node and its release.",
    "kernel": "The kernel of a node.",
    "cpu_model": "The CPU model of a node.",
    "libc": "The C library of a node.",
}


def _node_attributes() -> Iterator[RecordAttribute]:
    """One attribute for each plain field of a node, so that new fields come by themselves."""
    for field, hint in get_type_hints(RecordNode).items():
        if field in ("node", "site", *_FAMILIES) or (kind := _kind(hint)) is None:
            continue
        description = _NODE_WORDS.get(field, f"The {field.replace('_', ' ')} of a node.")
        yield RecordAttribute(name=NODE_PREFIX + field, kind=kind, description=description)


def _kind(hint: Any) -> str | None:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = {_kind(each) for each in get_args(hint) if each is not type(None)}
        return kinds.pop() if len(kinds) == 1 else None
    if hint in (int, float):
        return "number"
    return "text" if hint in (str, bool) or get_origin(hint) is tuple else None


ATTRIBUTES: Mapping[str, RecordAttribute] = {each.name: each for each in (*_TABLE, *_node_attributes())}
"""Every attribute that is no member of a family, by name."""
FAMILIES: Mapping[str, RecordAttribute] = {each.name.removesuffix("NAME"): each for each in _FAMILY_TABLE}
"""Families of attributes whose names users choose, by their prefix."""

ALIASES = {
    "jobid": "job", "job_name": "name", "user": "owner", "status": "state", "submitted_at": "submitted",
    "submit_time": "submitted", "ended_at": "ended", "destination": "site", "host": "node", "exit": "exit_code",
    "exitcode": "exit_code", "sha256": "file.sha256",
}  # fmt: skip
"""Other names, those of the book's queries among them."""

EITHER = {"file": ("consumed", "produced"), "file.sha256": ("consumed.sha256", "produced.sha256")}
"""Names that stand for two attributes: a condition holds if it does for one of them."""

DEFAULT = IndexedAttributes(
    queryable=(*ATTRIBUTES, "tag", "node.software", "node.variable"),
    indexed=tuple(
        name
        for name in (*ATTRIBUTES, "tag", "node.software")
        if name not in ("revision", "recorded", "packages", "attempts")
    ),
)
"""What an index keeps unless it is told otherwise."""


def attribute_table() -> str:
    """Every attribute, for the reference."""
    rows = ["| attribute | values | indexed | what it is |", "|---|---|---|---|"]
    for each in (*ATTRIBUTES.values(), *FAMILIES.values()):
        indexed = "yes" if DEFAULT.serves(each.name) else ""
        rows.append(f"| `{each.name}` | {each.kind} | {indexed} | {each.description} |")
    return "\n".join([*rows, ""])


def find_attribute(name: str) -> RecordAttribute | None:
    """The attribute of a name, in any case and with `-` for `_`; the name of a family's member is as the user wrote it."""
    plain = name.lower().replace("-", "_")
    found = ATTRIBUTES.get(ALIASES.get(plain, plain))
    if found is not None:
        return found
    for prefix, family in FAMILIES.items():
        if name[: len(prefix)].lower() == prefix and len(name) > len(prefix):
            return msgspec.structs.replace(family, name=prefix + name[len(prefix) :])
    return None


def either(name: str) -> tuple[str, ...]:
    """The attributes that a name stands for, if it stands for several."""
    plain = name.lower().replace("-", "_")
    return EITHER.get(ALIASES.get(plain, plain), ())


def attribute_names() -> list[str]:
    """The names that queries may use."""
    return [*ATTRIBUTES, *EITHER, *(each.name for each in FAMILIES.values())]


def name_hint(name: str, attributes: IndexedAttributes = DEFAULT) -> str:
    """A suggestion for an unknown name: the nearest one, or the list of an index."""
    near = near_name(name[:40].lower(), {*ATTRIBUTES, *EITHER, *ALIASES}) if name else ""
    return (
        f"did you mean {near}?" if near else f"attributes of this index: {', '.join(shown_names(attributes.queryable))}"
    )


def shown_names(names: Iterable[str]) -> list[str]:
    """Names of attributes as a user would write them: a family with its NAME."""
    shown = []
    for name in names:
        if name in ATTRIBUTES or f"{name}." not in PREFIXES:
            shown.append(name)
        if f"{name}." in PREFIXES:
            shown.append(f"{name}.NAME")
    return shown


def chosen_attributes(
    queryable: Iterable[str] | None = None, indexed: Iterable[str] | None = None
) -> IndexedAttributes:
    """Attributes of an index by names; `tag` means every tag, and `custom` every value of a script, too. Raises `UnknownAttribute`.

    Without names: all; of those that are chosen, the ones that are indexed by default.
    """
    kept = DEFAULT.queryable if queryable is None else tuple(dict.fromkeys(map(_checked, queryable)))
    both = IndexedAttributes(queryable=kept, indexed=kept)
    if indexed is None:
        served = tuple(name for name in kept if DEFAULT.serves(name))
    else:
        served = tuple(dict.fromkeys(map(_checked, indexed)))
        for name in served:
            if not both.keeps(name):
                raise UnknownAttribute(
                    "an indexed attribute must be queryable, too",
                    subject=name,
                    next_step=f"add it to the queryable ones: {', '.join(shown_names(kept))}",
                )
    return IndexedAttributes(queryable=("job", *(name for name in kept if name != "job")), indexed=served)


def _checked(name: str) -> str:
    plain = name.removesuffix(".NAME").lower()
    if f"{plain}." in PREFIXES:
        return plain
    found = find_attribute(name)
    if found is None:
        raise UnknownAttribute(
            "there is no such attribute", subject=name, next_step=did_you_mean(name, [*ATTRIBUTES, "tag", *FAMILIES])
        )
    return found.name


class FileFact(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a job used or made; without a checksum where none is known."""

    name: str
    sha256: str = ""


class LifeLogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the life log of a record adds to its attributes."""

    activities: tuple[str, ...] = ()
    software: tuple[str, ...] = ()
    packages: int = 0
    attempts: int = 0
    exit_codes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    consumed: tuple[FileFact, ...] = ()
    produced: tuple[FileFact, ...] = ()
    script_values: tuple[tuple[str, str], ...] = ()  # names and texts of what the provenance script printed


def attributes_of(
    record: JobRecord,
    annotations: Iterable[Annotation],
    facts: LifeLogFacts,
    tagged_at: Mapping[str, float] | None = None,
) -> dict[str, tuple[Value, ...]]:
    """The attributes of a record, each with its distinct values in order.

    Of a tag and an annotation of the same name the later one counts; `tagged_at` says when such tags were set.
    """
    found: dict[str, set[Value]] = {}

    def add(name: str, *values: Value | None) -> None:
        for value in values:
            if value is not None and value != "":
                found.setdefault(name, set()).add(_storable(value))

    add("job", record.job)
    add("name", record.name)
    add("owner", record.owner)
    add("state", record.state)
    add("submitted", record.submitted_at)
    add("ended", record.ended_at)
    add("recorded", record.made_at)
    add("revision", float(record.revision))
    add("site", *record.sites)
    add("activity", *facts.activities)
    add("software", *facts.software)
    add("packages", float(facts.packages))
    add("attempts", float(facts.attempts))
    add("exit_code", *facts.exit_codes)
    add("reason", *facts.reasons)
    given = [FileFact(name=part.name, sha256=part.sha256) for part in record.parts if part.kind == "file"]
    left = [FileFact(name=part.name, sha256=part.sha256) for part in record.parts if part.kind == "output"]
    for name, files in (("consumed", (*given, *facts.consumed)), ("produced", (*left, *facts.produced))):
        add(name, *(file.name for file in files))
        add(f"{name}.sha256", *(file.sha256 for file in files))
    for part in record.parts:
        if part.kind in ("definition", "custom"):
            add(part.kind, part.sha256 if part.kind == "definition" else part.name)
    add("custom", *(each.name for each in annotations if each.part is not None))
    names = set(sorted({name for name, _ in facts.script_values})[:SCRIPT_NAMES_MAX])
    for name, text in facts.script_values:
        if name in names:
            add(f"custom.{_storable_text(name)}", text)
    for tag, text in _latest_tags(record, annotations, tagged_at).items():
        found[f"tag.{_storable_text(tag)}"] = {_storable_text(text)}
    for node in record.nodes:
        _add_node(add, node)
    return {
        name: tuple(sorted(values, key=lambda each: (str(type(each)), each))) for name, values in sorted(found.items())
    }


def _latest_tags(
    record: JobRecord, annotations: Iterable[Annotation], tagged_at: Mapping[str, float] | None
) -> dict[str, str]:
    latest = dict(record.tags)
    for each in sorted(annotations, key=lambda one: one.at):
        if each.text is not None and each.at >= (tagged_at or {}).get(each.name, 0.0):
            latest[each.name] = each.text
    return latest


def _add_node(add: Any, node: RecordNode) -> None:
    for field in node.__struct_fields__:
        value = getattr(node, field)
        if field == "node":
            add("node", value)
        elif field in _FAMILIES:
            for name, text in value.items():
                add(f"{NODE_PREFIX}{_FAMILIES[field]}.{_storable_text(name)}", text)
        elif (about := ATTRIBUTES.get(NODE_PREFIX + field)) is not None and value:
            many = value if isinstance(value, tuple) else (value,)
            add(about.name, *(float(each) if about.kind == "number" else str(each) for each in many))


def _storable(value: Value) -> Value:
    return _storable_text(value) if isinstance(value, str) else value


def _storable_text(text: str) -> str:
    """A text that every database stores: without NUL and lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
