"""The JSON Schema of a document, derived from the same tables that read it: records, kinds and short forms.

With this schema, an editor completes field names and marks mistakes. It describes the values of each field at all levels
where its short forms allow it; rules between fields and files are left to `pilotage check`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.language.parsing.iterations import Each
from pilotage.language.parsing.kinds import (
    Anything,
    Choice,
    Expression,
    Kind,
    ListOf,
    MapOf,
    Number,
    Quantity,
    Schema,
    Text,
    YesNo,
)
from pilotage.language.parsing.records import ALONE, CHILDREN, INLINE, Field, Record, fields_of, names_below
from pilotage.model.jobs import definition
from pilotage.model.settings.package_settings import PACKAGE_SETTINGS
from pilotage.model.sites.entry import Location, SiteEntry, SitesFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document_schema() -> Schema:
    """The schema of a document, including short forms."""
    head: Schema = {
        "$schema": DIALECT,
        "title": "a pilotage document",
        "description": "A job: its stages, what they run and iterate over, and the files that they read and write.",
    }
    definitions = {struct.__name__: _record_schema(struct) for struct in _structs(definition.Definition)}
    job = definitions.pop(definition.Definition.__name__)
    return head | job | {"$defs": {"Each": Each().schema(), **definitions}}


def record_schema(struct: type[definition.Value], *, title: str, version: int) -> Schema:
    """The schema of another file that is one record with a version of its language."""
    definitions = {each.__name__: _record_schema(each) for each in _structs(struct)}
    whole = definitions.pop(struct.__name__)
    whole["properties"]["pilotage"] = {"const": version, "description": "The version of the language."}
    whole["required"] = ["pilotage"]
    head: Schema = {"$schema": DIALECT, "title": title}
    return head | whole | {"$defs": definitions}


def _structs(start: type[definition.Value]) -> list[type[definition.Value]]:
    """All records that a document can contain, outer ones first."""
    found, waiting = [start], [start]
    while waiting:
        for field in fields_of(waiting.pop()):
            for struct in _records_in(field.kind):
                if struct not in found:
                    found.append(struct)
                    waiting.append(struct)
    return found


def _records_in(kind: Kind) -> Iterator[type[definition.Value]]:
    if isinstance(kind, Record):
        yield kind.struct
    elif isinstance(kind, ListOf):
        yield from _records_in(kind.item)
    elif isinstance(kind, MapOf):
        yield from _records_in(kind.value)


def _record_schema(struct: type[definition.Value]) -> Schema:
    """The schema of a record: its fields, or one of its short forms."""
    fields = _object_schema(struct)
    alone = ALONE.get(struct)
    if alone:
        kind = next(field.kind for field in fields_of(struct) if field.name == alone)
        return {"anyOf": [kind.schema(), fields]}
    if struct is definition.Environment:
        kinds = {"exported": False, "setting": False}
        return {"anyOf": [fields, {"type": "object", "properties": kinds, "additionalProperties": Text().schema()}]}
    return fields


def _object_schema(struct: type[definition.Value]) -> Schema:
    """The fields of a record, and those of deeper levels that are allowed here if these are not written out."""
    inline = INLINE.get(struct)
    above = {**_properties(struct), **(_properties(inline[1]) if inline else {})}
    deeper = {name: schema for name, schema in _properties_below(struct).items() if name not in above}
    schema: Schema = {
        "type": "object",
        "description": (struct.__doc__ or "").strip(),
        "properties": {**above, **deeper},
        "additionalProperties": False,
    }
    if struct is definition.Definition:
        schema["properties"]["pilotage"] = {
            "const": definition.LANGUAGE_VERSION,
            "description": "The version of the language.",
        }
        schema["properties"]["catalogue"] = _CATALOGUE
        schema["required"] = ["pilotage"]
    rules = [_is_there(field) for field in fields_of(struct) if field.required]
    if rules:
        schema["allOf"] = rules
    if deeper:
        # Fields of a deeper level are allowed here only if that level is not written out.
        schema["dependentSchemas"] = {CHILDREN[struct][0]: {"properties": dict.fromkeys(sorted(deeper), False)}}
    return schema


_CATALOGUE: Schema = {
    "description": "A file of software descriptions, or several.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}


def _properties(struct: type[definition.Value]) -> dict[str, Schema]:
    """All names of the fields of a record, with their schemas."""
    found: dict[str, Schema] = {}
    for field in fields_of(struct):
        found[field.name] = _field_schema(field)
        if field.short_name != field.name:
            found[field.short_name] = found[field.name]
    return found


def _properties_below(struct: type[definition.Value]) -> dict[str, Schema]:
    """The fields of the levels below a record; outer levels win, as in reading."""
    if struct not in CHILDREN:
        return {}
    child = CHILDREN[struct][1]
    inline = INLINE.get(child)
    found = {**_properties_below(child), **(_properties(inline[1]) if inline else {}), **_properties(child)}
    return {name: found[name] for name in sorted(names_below(struct))}


def _field_schema(field: Field) -> Schema:
    schema: Schema = {"$ref": "#/$defs/Each"} if isinstance(field.kind, Each) else field.kind.schema()
    return {"description": field.description, **schema} if field.description else schema


def _is_there(field: Field) -> Schema:
    names = sorted({field.name, field.short_name})
    return {"anyOf": [{"required": [name]} for name in names]} if len(names) > 1 else {"required": names}


# The reference page of the document, generated from the same tables.

SECTIONS: tuple[tuple[type[definition.Value], str], ...] = (
    (definition.Definition, "The job"),
    (definition.Parameter, "Parameter"),
    (definition.Provenance, "Provenance"),
    (definition.Stage, "Stage"),
    (definition.Line, "Line"),
    (definition.Package, "Package"),
    (definition.Resources, "Resources"),
    (definition.Binary, "Binary"),
    (definition.InputFile, "Input file"),
    (definition.OutputFile, "Output file"),
    (definition.Source, "Source of an iteration"),
    (definition.Environment, "Environment"),
    (definition.Software, "Software"),
    (definition.Archive, "Software archive"),
    (definition.Infrastructure, "Infrastructure"),
    (definition.Execution, "Execution"),
    (definition.Container, "Container"),
    (definition.Retry, "Retry"),
    (definition.RetryRule, "Retry rule"),
    (definition.FailurePattern, "Failure pattern"),
    (definition.Progress, "Progress"),
    (definition.Scripts, "Scripts"),
    (definition.Script, "Script"),
    (definition.AbortOn, "Abort on"),
    (definition.Comparison, "Comparison"),
)


SITE_SECTIONS: tuple[tuple[type[definition.Value], str], ...] = (
    (SitesFile, "The file"),
    (SiteEntry, "Site"),
    (Location, "Location"),
)


def sites_tables() -> str:
    """All records of a file of sites with their fields, as Markdown."""
    return "\n".join(_tables(SITE_SECTIONS))


def reference_tables() -> str:
    """All records of a document with their fields, as Markdown."""
    parts = _tables(SECTIONS)
    parts.append("## Settings that a package may override\n")
    parts.append("By `environment: {setting: {…}}`, at any level.\n")
    parts.append("| setting | kind | meaning |\n|---|---|---|")
    parts.extend(f"| `{name}` | {setting.kind} | {setting.description} |" for name, setting in PACKAGE_SETTINGS.items())
    return "\n".join(parts) + "\n"


def _tables(sections: tuple[tuple[type[definition.Value], str], ...]) -> list[str]:
    parts = []
    for struct, title in sections:
        parts.append(f"## {title}\n\n{_sentence(struct)}\n")
        parts.append("| field | value | default | meaning |\n|---|---|---|---|")
        parts.extend(_row(field) for field in fields_of(struct))
        parts.append("")
    return parts


def _sentence(struct: type[definition.Value]) -> str:
    text = (struct.__doc__ or "").strip().replace("\n", " ")
    if struct in ALONE:
        alone = next(field for field in fields_of(struct) if field.name == ALONE[struct])
        text += f" It may be written as its `{alone.short_name}` alone."
    if struct in CHILDREN:
        child = CHILDREN[struct][0]
        text += f" Without `{child}`, the fields of the level below can be written here."
    return text


def _row(field: Field) -> str:
    name = f"`{field.short_name}`"
    if field.short_name != field.name:
        name += f", `{field.name}`"
    default = "required" if field.required else _default(field.default)
    return f"| {name} | {_value(field.kind)} | {default} | {field.description} |".replace("  ", " ")


def _default(value: object) -> str:
    if value in (None, "", (), {}) or isinstance(value, definition.Value):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


def _value(kind: Kind) -> str:
    """The values of a kind, in a few words."""
    if isinstance(kind, ListOf):
        return f"list of {_value(kind.item)}"
    if isinstance(kind, MapOf):
        return f"mapping to {_value(kind.value)}"
    if isinstance(kind, Record):
        title = next(title for struct, title in (*SECTIONS, *SITE_SECTIONS) if struct is kind.struct)
        return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"
    if isinstance(kind, Choice):
        return ", ".join(f"`{word}`" for word in kind.words if word)
    if isinstance(kind, Quantity):
        return "size" if kind.unit == "bytes" else "duration"
    if isinstance(kind, Number):
        return "integer" if kind.integer else "number"
    words: dict[type, str] = {
        Text: "text",
        Expression: "regular expression",
        YesNo: "`true`, `false`",
        Anything: "anything",
        Each: "[iteration](../explanation/iteration.md)",
    }
    return words.get(type(kind), type(kind).__name__.lower())
