"""Texts with placeholders: `sim-{seed}.dat`, `{raw.stem}`, `{inputs}`.

`{{` and `}}` are literal braces. In a command or a file name every other brace must belong to a placeholder; in a `shell:`
script, where braces are common, only `{name}` is a placeholder and all other braces are literal.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from pilotage.language.text.here_documents import HereDocument, ends, joined_lines
from pilotage.language.text.locators import cached_part
from pilotage.language.text.shell_syntax import GAP, RefusedGap, ScriptReader, Slot

# Fills values into a shell script, quoted for their context.
#
# A script is parsed once, with a NUL for each gap. A value outside quotes is quoted as a whole; inside double quotes, single
# quotes or a here-document it is escaped for that context; inside `$(( ))` it must be an integer.

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_NUMBER = re.compile(r"[+-]?[0-9]+|0[xX][0-9a-fA-F]+")
_NUMBER_MAX = 2**63 - 1


class ShellScript(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed script: its gaps in order, or the reason why one of them (`at_fault`) cannot be filled."""

    text: str  # with a NUL for each gap
    slots: tuple[Slot, ...] = ()
    documents: tuple[HereDocument, ...] = ()  # those with gaps inside
    fault: str = ""
    at_fault: int = 0

    @property
    def takes_any_value(self) -> bool:
        """Whether every value can be quoted in its context, so that none must be checked beforehand."""
        return not self.documents and all(slot.context != "arithmetic" for slot in self.slots)

    def fill(self, values: Sequence[tuple[str, ...]]) -> str:
        """Fill in the values of each gap, one or a list; raises `UnfitValue` if one is not allowed there."""
        quoted = [
            " ".join([_quoted(value, slot, gap) for value in items])
            for gap, (slot, items) in enumerate(zip(self.slots, values, strict=True))
        ]
        for document in self.documents:
            _check_document(document, self.text, values, quoted)
        return _woven(self.text, quoted)


class UnfitValue(Exception):
    """A value that is not allowed in its gap."""

    def __init__(self, gap: int, reason: str) -> None:
        super().__init__(reason)
        self.gap = gap
        self.reason = reason


def _woven(text: str, quoted: Sequence[str]) -> str:
    pieces = text.split(GAP)
    return "".join([part for pair in zip(pieces, (*quoted, ""), strict=True) for part in pair])


def _quoted(value: str, slot: Slot, gap: int) -> str:
    """A value, quoted so that the shell reads it back unchanged in this context."""
    if GAP in value:
        raise UnfitValue(gap, "it contains a NUL character, which no argument can contain")
    context = slot.context
    if context == "word":
        if slot.plain and _PLAIN.fullmatch(value):
            return value
        return "'" + value.replace("'", "'\"'\"'") + "'"
    if context == "double":
        return re.sub(r'([\\"$`])', r"\\\1", value)
    if context == "single":
        return value.replace("'", "'\\''")
    if context == "document":
        return re.sub(r"([\\$`])", r"\\\1", value)
    if context == "arithmetic":
        return _number(value, gap)
    return re.sub(r"[\r\n]", " ", value) if context == "comment" else value


def _number(value: str, gap: int) -> str:
    """An integer for `$(( ))`: in decimal, without leading zeros; a negative one in parentheses."""
    if not _NUMBER.fullmatch(value):
        raise UnfitValue(gap, f"only an integer is allowed between $(( and )), not {value!r}")
    number = int(value, 16 if value[:2] in ("0x", "0X") else 10)
    if abs(number) > _NUMBER_MAX:
        raise UnfitValue(gap, f"{value} is too large for shell arithmetic")
    return f"({number})" if number < 0 else str(number)


def _check_document(
    document: HereDocument, text: str, values: Sequence[tuple[str, ...]], quoted: Sequence[str]
) -> None:
    """Raise `UnfitValue` for a value that would end a here-document, or lose tabs in it."""
    within = range(document.first_slot, document.first_slot + document.slots)
    body = text[document.start : document.end]
    lines = _woven(body, [quoted[gap] for gap in within]).split("\n")
    if body.endswith("\n"):
        lines.pop()
    joined = lines if document.literal else joined_lines(lines)
    if any(ends(line, document) for line in (*lines, *joined)):
        reason = f"it would end the here-document, whose last line is {document.word!r}"
        raise UnfitValue(_culprit(within, values, document.word), f"{reason}: choose another end word")
    for gap in within if document.strips_tabs else ():
        if any(value.startswith("\t") or "\n\t" in value for value in values[gap]):
            raise UnfitValue(gap, "it contains a tab that the here-document would strip: write << instead of <<-")


def _culprit(within: range, values: Sequence[tuple[str, ...]], word: str) -> int:
    """The gap whose value most likely contains the end word."""
    return next((gap for gap in within if any(word in value for value in values[gap])), within[0])


def read_script(text: str) -> ShellScript:
    """Parse a script that has a NUL for each gap."""
    if GAP not in text:
        return ShellScript(text=text)
    reader = ScriptReader(text, 0, len(text), ())
    try:
        reader.read()
    except RefusedGap as refused:
        at_fault = min(text[: refused.position].count(GAP), text.count(GAP) - 1)
        return ShellScript(text=text, fault=f"{{gap}} {refused.reason}", at_fault=at_fault)
    return ShellScript(text=text, slots=tuple(reader.slots), documents=tuple(reader.documents))


Style = Literal["strict", "shell"]
ATTRIBUTES = ("name", "stem", "suffix", "parent", "size")

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_PLACEHOLDER = re.compile(rf"\{{({_NAME})(?:\.({_NAME}))?\}}")
_SHELL = re.compile(rf"\{{\{{|\}}\}}|(?<!\$)\{{({_NAME})(?:\.({_NAME}))?\}}")


class Placeholder(msgspec.Struct, frozen=True):
    """A named placeholder in a text, perhaps for a part of a file name: `{raw.stem}`."""

    name: str
    attribute: str = ""

    def __str__(self) -> str:
        return f"{{{self.name}.{self.attribute}}}" if self.attribute else f"{{{self.name}}}"


Part = str | Placeholder


class Template(msgspec.Struct, frozen=True):
    """A parsed text: literal parts and placeholders."""

    parts: tuple[Part, ...]
    fault: str = ""  # what is wrong with it, or empty
    placeholders: tuple[Placeholder, ...] = ()  # in order; computed from the parts

    def __post_init__(self) -> None:
        """Find the placeholders once, since they are used often."""
        gaps = tuple(part for part in self.parts if isinstance(part, Placeholder))
        msgspec.structs.force_setattr(self, "placeholders", gaps)


def literal_text(template: Template) -> str:
    """The text without its placeholders."""
    return "".join(part for part in template.parts if isinstance(part, str))


@lru_cache(maxsize=8192)
def parse_template(text: str, style: Style = "strict") -> Template:
    """Parse a text; a stray brace is its `fault`."""
    return _parse_shell(text) if style == "shell" else _parse_strict(text)


def _parse_strict(text: str) -> Template:
    if "{" not in text and "}" not in text:
        return Template((text,) if text else ())
    parts: list[Part] = []
    run: list[str] = []
    i = 0
    while i < len(text):
        c = text[i]
        if c not in "{}":
            run.append(c)
            i += 1
        elif text.startswith(c * 2, i):
            run.append(c)
            i += 2
        else:
            found = _PLACEHOLDER.match(text, i)
            if found is None:
                return Template((text,), fault=f"a stray {c!r} at character {i + 1}: write {c * 2!r} for a brace")
            if run:
                parts.append("".join(run))
                run = []
            parts.append(Placeholder(found[1], found[2] or ""))
            i = found.end()
    if run:
        parts.append("".join(run))
    return Template(tuple(parts))


def _parse_shell(text: str) -> Template:
    parts: list[Part] = []
    end = 0
    for found in _SHELL.finditer(text):
        if found.start() > end:
            parts.append(text[end : found.start()])
        parts.append(Placeholder(found[1], found[2] or "") if found[1] else found[0][0])
        end = found.end()
    if end < len(text):
        parts.append(text[end:])
    return Template(tuple(parts), fault=_shell_fault(parts))


def _shell_fault(parts: Sequence[Part]) -> str:
    """Why values cannot be filled into a script safely, or an empty text."""
    gaps = [part for part in parts if isinstance(part, Placeholder)]
    if not gaps:
        return ""
    if any(GAP in part for part in parts if isinstance(part, str)):
        return "it contains a NUL character, which no argument can contain"
    script = _script_of(parts)
    return script.fault.replace("{gap}", str(gaps[script.at_fault])) if script.fault else ""


def _script_of(parts: Sequence[Part]) -> ShellScript:
    return read_script("".join([part if isinstance(part, str) else GAP for part in parts]))


@lru_cache(maxsize=8192)
def shell_script(text: str) -> ShellScript:
    """A parsed `shell:` script, with its gaps in the order of its placeholders."""
    return _script_of(parse_template(text, "shell").parts)


def part_of_name(value: str, attribute: str) -> str:
    """A part of a file name: `raw/a.tar.gz` has name `a.tar.gz`, stem `a.tar`, suffix `.gz`, parent `raw`.

    Only a file in the cache of a site has a size.
    """
    if not attribute:
        return value
    if attribute == "size":
        return cached_part(value, "size") or ""
    if attribute != "parent" and value.startswith("cache:"):
        value = cached_part(value, "name") or value
    parent, _, name = value.rpartition("/")
    if attribute == "name":
        return name
    if attribute == "parent":
        return parent or "."
    dot = name.rfind(".")
    stem, suffix = (name[:dot], name[dot:]) if dot > 0 else (name, "")
    return stem if attribute == "stem" else suffix


Values = Mapping[str, str | tuple[str, ...]]


def render(template: Template, values: Values, *, quote: Callable[[str], str] | None = None) -> str:
    """The text with its placeholders filled in; a list is joined with spaces."""
    filled: list[str] = []
    for part in template.parts:
        if isinstance(part, str):
            filled.append(part)
            continue
        value = values[part.name]
        items = value if isinstance(value, tuple) else (value,)
        texts = [part_of_name(item, part.attribute) for item in items]
        filled.append(" ".join(map(quote, texts) if quote else texts))
    return "".join(filled)


def render_arguments(templates: Sequence[str], values: Values) -> tuple[str, ...]:
    """The arguments of a command; an argument that is just a list becomes one argument per element."""
    arguments: list[str] = []
    for text in templates:
        template = parse_template(text)
        if len(template.parts) == 1 and isinstance(template.parts[0], Placeholder):
            only = template.parts[0]
            value = values[only.name]
            items = value if isinstance(value, tuple) else (value,)
            arguments.extend(part_of_name(item, only.attribute) for item in items)
        else:
            arguments.append(render(template, values))
    return tuple(arguments)


def render_shell(text: str, values: Values) -> str:
    """A shell script with its placeholders filled in, each value quoted for its context.

    The expansion rejects values that are not allowed in their context. For a value that is known only later, the result is
    a script that prints the reason and fails.
    """
    template, script = parse_template(text, "shell"), shell_script(text)
    try:
        return script.fill([_items(gap, values) for gap in template.placeholders])
    except UnfitValue as unfit:
        return f"printf '%s\\n' {shlex.quote(_unfit(template, unfit))} >&2; exit 2"


def unfit_value(text: str, values: Values) -> str:
    """Why one of the values is not allowed in its context, or an empty text."""
    template, script = parse_template(text, "shell"), shell_script(text)
    try:
        script.fill([_items(gap, values) for gap in template.placeholders])
    except UnfitValue as unfit:
        return _unfit(template, unfit)
    return ""


def _unfit(template: Template, unfit: UnfitValue) -> str:
    return f"{template.placeholders[unfit.gap]} cannot be filled in: {unfit.reason}"


def _items(gap: Placeholder, values: Values) -> tuple[str, ...]:
    """The values of one placeholder: a single one, or those of a list."""
    value = values[gap.name]
    items = value if isinstance(value, tuple) else (value,)
    return tuple([part_of_name(item, gap.attribute) for item in items]) if gap.attribute else items


def render_column(
    template: Template, columns: Mapping[str, Sequence[str]], count: int, *, escape: Callable[[str], str] | None = None
) -> list[str]:
    """The texts of one template for many items at once; `columns` has the values of each placeholder by item."""
    parts = template.parts
    if not template.placeholders:
        return ["".join(part for part in parts if isinstance(part, str))] * count

    def column(part: Placeholder) -> Sequence[str]:
        values = columns[part.name]
        if part.attribute:
            values = [part_of_name(value, part.attribute) for value in values]
        return [escape(value) for value in values] if escape else values

    if len(template.placeholders) == 1:
        position = next(i for i, part in enumerate(parts) if isinstance(part, Placeholder))
        before = "".join(str(part) for part in parts[:position])
        after = "".join(str(part) for part in parts[position + 1 :])
        return [f"{before}{value}{after}" for value in column(template.placeholders[0])]
    form = "".join("%s" if isinstance(part, Placeholder) else part.replace("%", "%%") for part in parts)
    return [form % row for row in zip(*(column(part) for part in template.placeholders), strict=True)]


def escape_braces(text: str) -> str:
    """A text as a template without placeholders."""
    return text.replace("{", "{{").replace("}", "}}") if "{" in text or "}" in text else text
