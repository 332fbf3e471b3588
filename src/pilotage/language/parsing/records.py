"""Records of the language, derived from the classes of `model.jobs.definition`: their fields, kinds and short forms.

Short forms are resolved on nodes, so that positions stay right:
- fields of a deeper level may be written higher if that level is not written out: a stage with `run:` is a stage of one
  line of one package of one binary;
- `cores:` and other resources may be written directly in a package, outside `resources:`;
- a quantity may have its unit in the value instead of the name: `memory: 2 GiB` for `memory_bytes`;
- a record may be written as its main field alone: an input is its name.
"""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from pilotage.language.parsing.iterations import Each, Values
from pilotage.language.parsing.kinds import (
    MISSING,
    Anything,
    Choice,
    Descriptor,
    DocumentParse,
    Expression,
    FieldPath,
    Kind,
    ListOf,
    MapOf,
    Number,
    Quantity,
    Schema,
    Text,
    YesNo,
    describe,
)
from pilotage.language.text.tree import Listing, Node, Scalar, Table
from pilotage.model.errors import did_you_mean
from pilotage.model.jobs import definition

# Commands: a text is split into arguments once, when it is read, and never passed to a shell.

_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_FOR_A_SHELL = re.compile(r"[|&;<>`*?]|\$[({A-Za-z_]|^~(?:/|$)|\[[^\]]*\]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_BUILT_IN = frozenset({".", "alias", "cd", "export", "set", "source", "ulimit", "umask", "unset"})


def shell_words(text: str) -> list[str]:
    """The unquoted words of a command that only a shell would interpret."""
    bare = _QUOTED.sub(lambda found: "_" * len(found[0]), text)
    found = []
    for match in re.finditer(r"\S+", bare):
        word = match[0]
        first = not bare[: match.start()].strip()
        if _FOR_A_SHELL.search(word) or (first and (_ASSIGNMENT.match(word) or word in _BUILT_IN)):
            found.append(text[match.start() : match.end()])
    if "\n" in bare.strip():
        found.append("\n")
    return found


class Command(msgspec.Struct, frozen=True):
    """A command as one text, which is split like in a shell but not expanded, or as a list of arguments."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The arguments."""
        if isinstance(node, Listing):
            arguments = ListOf(Text()).read(node, place, reading)
        else:
            arguments = self._split(node, place, reading)
        if arguments == ():
            return reading.fault("empty-command", node, "expected a command, got nothing")
        return arguments

    def _split(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        text = Text().read(node, place, reading)
        if not isinstance(text, str) or not isinstance(node, Scalar):
            return MISSING
        text = text.replace("\\\n", " ")  # a command may continue on the next line
        lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            arguments = tuple(lexer)
        except ValueError as error:
            return reading.fault("bad-command", node, f"the command cannot be split into arguments: {error}".lower())
        words = shell_words(text)
        if words:
            reading.report.warn(
                "shell-syntax",
                f"no shell reads this command: {_listed(words)} {'is' if len(words) == 1 else 'are'} plain text",
                reading.report.found(node.mark, words[0].strip()),
                hint="use shell: instead of run:, or quote what is meant literally",
            )
        return arguments

    def schema(self) -> Schema:
        """A text, or a list of arguments."""
        return {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]
        }


def _listed(words: list[str]) -> str:
    shown = ["the end of a line" if word == "\n" else repr(word) for word in words]
    return ", ".join(shown[:5]) + (" …" if len(shown) > 5 else "")


# Points in time: ISO 8601 with a zone, since a time without one means something different at each site.


class Time(msgspec.Struct, frozen=True):
    """An ISO 8601 time with its zone, kept as written."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The text, if it is a time with a zone."""
        text = Text().read(node, place, reading)
        if not isinstance(text, str):
            return text
        expected = "expected a time such as 2026-03-05T14:00:00Z"
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return reading.fault("wrong-type", node, f"{expected}, got {text!r}")
        if moment.tzinfo is None:
            return reading.fault(
                "wrong-type", node, f"{expected}, got {text!r}", hint="add Z or an offset such as +01:00"
            )
        return text

    def schema(self) -> Schema:
        """A date-time text."""
        return {"type": "string", "format": "date-time"}


CHILDREN: dict[type, tuple[str, type]] = {
    definition.Definition: ("stages", definition.Stage),
    definition.Stage: ("lines", definition.Line),
    definition.Line: ("packages", definition.Package),
    definition.Package: ("binaries", definition.Binary),
    definition.Software: ("infrastructures", definition.Infrastructure),
    definition.Infrastructure: ("executions", definition.Execution),
}
INLINE: dict[type, tuple[str, type]] = {definition.Package: ("resources", definition.Resources)}
ALONE: dict[type, str] = {
    definition.Archive: "locator",
    definition.InputFile: "name",
    definition.OutputFile: "name",
    definition.Container: "image",
    definition.FailurePattern: "pattern",
    definition.Parameter: "default",
    definition.Progress: "stalled_after_seconds",
    definition.Script: "run",
    definition.AbortOn: "exit_code",
}
SHORT: dict[tuple[type, str], str] = {
    (definition.Comparison, "compared_as"): "as"
}  # a word of Python cannot name a field
SPECIAL: dict[tuple[type, str], Kind] = {
    (definition.Binary, "run"): Command(),
    (definition.Execution, "run"): Command(),
    (definition.Script, "run"): Command(),
    (definition.Software, "probe"): Command(),
    (definition.Provenance, "script"): Command(),
    (definition.Stage, "each"): Each(),
    (definition.Line, "each"): Each(),
    (definition.Source, "values"): Values(),
    (definition.Definition, "created"): Time(),
    (definition.Software, "boutiques"): Descriptor(),
}


class Field(msgspec.Struct, frozen=True):
    """One field of a record: its names, its kind and its description."""

    name: str
    short_name: str  # without the unit, or the same
    kind: Kind
    required: bool
    default: object
    description: str
    marks: frozenset[str]  # the use of its text: "template", "path", "expression"


class Record(msgspec.Struct, frozen=True):
    """A mapping with known fields, read into a class."""

    struct: type[definition.Value]

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The value, or `MISSING`; all faults inside are reported."""
        table = self._table(node)
        if table is None:
            names = ", ".join(field.short_name for field in fields_of(self.struct)[:6])
            message = f"expected {_article(self.struct)} with fields such as {names}; got {describe(node)}"
            return reading.fault("wrong-type", node, message)
        if self.struct is definition.Environment and not set(table.keys()) & {"exported", "setting"}:
            table = Table(((Scalar("exported", plain=False, mark=table.mark), table),), table.mark)
        faults = len(reading.report.errors)
        unknown: list[str] = []
        table = self._settle(table, reading, unknown)
        reading.unknown.update((*place, name) for name in unknown)
        values: dict[str, object] = {}
        written: dict[str, str] = {}  # field → its first key
        faulty = len(reading.report.errors) > faults
        if faulty:
            reading.with_unknown_fields.add(place)
        fields = {name: field for field in fields_of(self.struct) for name in (field.name, field.short_name)}
        for key, item in table.entries:
            field = fields[key.text]
            if field.name in values:
                faulty = True
                reading.lost.add((*place, field.name))
                reading.fault("duplicate-key", key, f"{key.text!r} is the same field as {written[field.name]!r}")
                continue
            written[field.name] = key.text
            reading.marks[(*place, field.name)] = item.mark
            before = len(reading.report.errors), len(reading.lost)
            values[field.name] = field.kind.read(item, (*place, field.name), reading)
            if values[field.name] is MISSING:
                faulty = True
                reading.lost.add((*place, field.name))
            elif len(reading.report.errors) > before[0] and len(reading.lost) == before[1]:
                reading.lost.add((*place, field.name))
        unread = False
        for field in fields_of(self.struct):
            if field.required and values.get(field.name) is MISSING:
                unread = True
            elif field.required and field.name not in values:
                faulty = unread = True
                reading.lost.add((*place, field.name))
                reading.fault("missing-field", node, f"{_article(self.struct)} needs the field {field.short_name!r}")
        reading.marks[place] = node.mark
        if faulty:
            reading.spoil(place)
        read = {name: value for name, value in values.items() if value is not MISSING}
        return MISSING if unread else self.struct(**read)

    def schema(self) -> Schema:
        """A reference to the record's own definition."""
        return {"$ref": f"#/$defs/{self.struct.__name__}"}

    def _table(self, node: Node) -> Table | None:
        if isinstance(node, Table):
            return node
        alone = ALONE.get(self.struct)
        if alone and (isinstance(node, Scalar) or self.struct is definition.Script):
            return Table(((Scalar(alone, plain=False, mark=node.mark), node),), node.mark)
        return None

    def _settle(self, table: Table, reading: DocumentParse, unknown: list[str]) -> Table:
        """Move each entry to its level: this record, the inline record, or the implied child; report unknown ones."""
        own = {name for field in fields_of(self.struct) for name in (field.name, field.short_name)}
        inline = INLINE.get(self.struct)
        inline_names = names_of(inline[1]) if inline else frozenset()
        below = names_below(self.struct)
        here: list[tuple[Scalar, Node]] = []
        moved: list[tuple[Scalar, Node]] = []
        inlined: list[tuple[Scalar, Node]] = []
        for key, item in table.entries:
            if key.text in own:
                here.append((key, item))
            elif key.text in inline_names:
                inlined.append((key, item))
            elif key.text in below:
                moved.append((key, item))
            else:
                unknown.append(key.text)
                hint = _hint(key, item, own | inline_names | below)
                reading.fault("unknown-field", key, f"{_article(self.struct)} has no field {key.text!r}", hint=hint)
        if inlined and inline:
            here = _merge(here, inline[0], inlined, reading)
        if self.struct in CHILDREN:
            child = CHILDREN[self.struct][0]
            written = any(key.text == child for key, _ in here)
            if moved and written:
                unknown.extend(key.text for key, _ in moved)
                for key, _ in moved:
                    message = f"{key.text!r} belongs to a deeper level, but {child!r} is written out here"
                    reading.fault("misplaced-field", key, message, hint=f"move it below {child!r}")
            elif moved:
                mark = moved[0][0].mark
                here.append(
                    (Scalar(child, plain=False, mark=mark), Listing((Table(tuple(moved), table.mark),), table.mark))
                )
        return Table(tuple(here), table.mark)


def _hint(key: Scalar, item: Node, known: frozenset[str] | set[str]) -> str:
    """A hint for an unknown field."""
    longer = sorted(name for name in known if len(key.text) > 2 and name.startswith(key.text))
    if longer:
        return f"did you mean {longer[0]!r}?"
    hint = did_you_mean(key.text, known)
    if isinstance(item, Table) and not hint.startswith("did you"):
        return f"if {key.text!r} is a name, write a list: each element begins with '- name: {key.text}'"
    return hint


def _merge(
    here: list[tuple[Scalar, Node]], name: str, inlined: list[tuple[Scalar, Node]], reading: DocumentParse
) -> list[tuple[Scalar, Node]]:
    """Merge inline fields into the inline record if that is written, too."""
    rest = [(key, item) for key, item in here if key.text != name]
    written = [(key, item) for key, item in here if key.text == name]
    entries = list(inlined)
    for _, item in written:
        if not isinstance(item, Table):
            return here
        for key, value in item.entries:
            if any(key.text == other.text for other, _ in inlined):
                reading.fault("duplicate-key", key, f"{key.text!r} is both here and in {name!r}")
            else:
                entries.append((key, value))
    return [*rest, (Scalar(name, plain=False, mark=inlined[0][0].mark), Table(tuple(entries), inlined[0][0].mark))]


@cache
def fields_of(struct: type[definition.Value]) -> tuple[Field, ...]:
    """The fields of a record in their order."""
    hints = _hints(struct)
    found = []
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        short = SHORT.get((struct, field.name), field.name)
        for suffix in ("_bytes", "_seconds"):
            short = short.removesuffix(suffix)
        if short != field.name and short in struct.__struct_fields__:
            short = field.name  # the shorter name is that of another field
        default = (
            field.default_factory() if field.default is msgspec.NODEFAULT and not field.required else field.default
        )
        kind = SPECIAL.get((struct, field.name)) or _kind(hint, field.name)
        description = next((m.description for m in _metas(hint) if m.description), "")
        marks = frozenset(key for meta in _metas(hint) for key in meta.extra or {})
        found.append(Field(field.name, short, kind, field.required, default, description, marks))
    return tuple(found)


@cache
def names_of(struct: type[definition.Value]) -> frozenset[str]:
    """All names of all fields of a record."""
    return frozenset(name for field in fields_of(struct) for name in (field.name, field.short_name))


@cache
def names_below(struct: type[definition.Value]) -> frozenset[str]:
    """The names of the fields of the levels below a record."""
    if struct not in CHILDREN:
        return frozenset()
    child = CHILDREN[struct][1]
    inline = INLINE.get(child)
    return names_of(child) | names_below(child) | (names_of(inline[1]) if inline else frozenset())


def _hints(struct: type[definition.Value]) -> dict[str, Any]:
    return struct.__annotations__  # evaluated when the class was made


def _metas(hint: Any) -> list[Meta]:
    """The metadata of a type, the outer one first; for a list also that of its elements."""
    if get_origin(hint) is tuple:
        return _metas(get_args(hint)[0])
    if get_origin(hint) is dict:
        return _metas(get_args(hint)[1])
    if get_origin(hint) is not Annotated:
        return []
    inner, *extras = get_args(hint)
    return [extra for extra in extras if isinstance(extra, Meta)] + _metas(inner)


def _kind(hint: Any, name: str) -> Kind:
    """The kind for the type of a field."""
    metas = _metas(hint)
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        inner = [arg for arg in get_args(hint) if arg is not type(None)]
        return _kind(inner[0], name)
    if name.endswith(("_bytes", "_seconds")):
        return Quantity(name.rpartition("_")[2])
    if get_origin(hint) is Literal:
        return Choice(get_args(hint))
    if get_origin(hint) is tuple:
        return ListOf(_kind(get_args(hint)[0], ""))
    if get_origin(hint) is dict:
        return MapOf(_kind(get_args(hint)[1], ""))
    if hint is Any:
        return Anything()
    if hint is bool:
        return YesNo()
    if hint in (int, float):
        ge = next((m.ge for m in metas if m.ge is not None), None)
        gt = next((m.gt for m in metas if m.gt is not None), None)
        le = next((m.le for m in metas if m.le is not None), None)
        return Number(hint is int, least=ge, above=gt, most=le)
    if hint is str:
        return Expression() if any((m.extra or {}).get("expression") for m in metas) else Text()
    return Record(hint)


def _article(struct: type) -> str:
    word = {"InputFile": "input", "OutputFile": "output", "Definition": "job"}.get(struct.__name__)
    if word is None:
        word = "".join(f" {c.lower()}" if c.isupper() else c for c in struct.__name__).strip()
    return f"an {word}" if word[0] in "aeio" else f"a {word}"
