"""The reference page of the document, written from the same tables that read it."""

from __future__ import annotations

from pilotage.language.reading.iterations import Each
from pilotage.language.reading.kinds import (
    Anything,
    Choice,
    Expression,
    Kind,
    ListOf,
    MapOf,
    Number,
    Quantity,
    Text,
    YesNo,
)
from pilotage.language.reading.records import ALONE, CHILDREN, Field, Record, fields_of
from pilotage.model import definition as d
from pilotage.model.settings import PACKAGE_SETTINGS
from pilotage.model.site_entry import Location, SiteEntry, SitesFile

SECTIONS: tuple[tuple[type[d.Value], str], ...] = (
    (d.Definition, "The job"),
    (d.Parameter, "Parameter"),
    (d.Stage, "Stage"),
    (d.Line, "Line"),
    (d.Package, "Package"),
    (d.Resources, "Resources"),
    (d.Binary, "Binary"),
    (d.InputFile, "Input file"),
    (d.OutputFile, "Output file"),
    (d.Source, "Source of an iteration"),
    (d.Environment, "Environment"),
    (d.Software, "Software"),
    (d.Infrastructure, "Infrastructure"),
    (d.Execution, "Execution"),
    (d.Container, "Container"),
    (d.Retry, "Retry"),
    (d.RetryRule, "Retry rule"),
    (d.FailurePattern, "Failure pattern"),
    (d.Progress, "Progress"),
    (d.Scripts, "Scripts"),
    (d.Script, "Script"),
    (d.AbortOn, "Abort on"),
)


SITE_SECTIONS: tuple[tuple[type[d.Value], str], ...] = (
    (SitesFile, "The file"),
    (SiteEntry, "Site"),
    (Location, "Location"),
)


def sites_tables() -> str:
    """Every record of a file of sites with its fields, as Markdown."""
    return "\n".join(_tables(SITE_SECTIONS))


def reference_tables() -> str:
    """Every record with its fields, as Markdown."""
    parts = _tables(SECTIONS)
    parts.append("## Settings that a package may override\n")
    parts.append("By `environment: {setting: {…}}`, at any level.\n")
    parts.append("| setting | kind | meaning |\n|---|---|---|")
    parts.extend(f"| `{name}` | {setting.kind} | {setting.description} |" for name, setting in PACKAGE_SETTINGS.items())
    return "\n".join(parts) + "\n"


def _tables(sections: tuple[tuple[type[d.Value], str], ...]) -> list[str]:
    parts = []
    for struct, title in sections:
        parts.append(f"## {title}\n\n{_sentence(struct)}\n")
        parts.append("| field | value | default | meaning |\n|---|---|---|---|")
        parts.extend(_row(field) for field in fields_of(struct))
        parts.append("")
    return parts


def _sentence(struct: type[d.Value]) -> str:
    text = (struct.__doc__ or "").strip().replace("\n", " ")
    if struct in ALONE:
        alone = next(field for field in fields_of(struct) if field.name == ALONE[struct])
        text += f" It may be written as its `{alone.short_name}` alone."
    if struct in CHILDREN:
        child = CHILDREN[struct][0]
        text += f" Without `{child}`, the fields of the one below may stand here."
    return text


def _row(field: Field) -> str:
    name = f"`{field.short_name}`"
    if field.short_name != field.name:
        name += f", `{field.name}`"
    default = "required" if field.required else _default(field.default)
    return f"| {name} | {_value(field.kind)} | {default} | {field.description} |".replace("  ", " ")


def _default(value: object) -> str:
    if value in (None, "", (), {}) or isinstance(value, d.Value):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


def _value(kind: Kind) -> str:
    """What a kind accepts, in a few words."""
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
