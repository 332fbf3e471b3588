"""Texts with placeholders: `sim-{seed}.dat`, `{raw.stem}`, `{inputs}`.

`{{` and `}}` stand for braces. In a command or a file name every brace must belong to a placeholder; in a `shell:`
script, where braces are everyday, only `{name}` is one and everything else is left alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from pilotage.language.text.shell import ShellScript, UnfitValue, read_script
from pilotage.language.text.shell_reading import GAP

Style = Literal["strict", "shell"]
ATTRIBUTES = ("name", "stem", "suffix", "parent")

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_PLACEHOLDER = re.compile(rf"\{{({_NAME})(?:\.({_NAME}))?\}}")
_SHELL = re.compile(rf"\{{\{{|\}}\}}|(?<!\$)\{{({_NAME})(?:\.({_NAME}))?\}}")


class Placeholder(msgspec.Struct, frozen=True):
    """A named gap in a text, with the part of a file name that is wanted: `{raw.stem}`."""

    name: str
    attribute: str = ""

    def __str__(self) -> str:
        """As it is written."""
        return f"{{{self.name}.{self.attribute}}}" if self.attribute else f"{{{self.name}}}"


Part = str | Placeholder


class Template(msgspec.Struct, frozen=True):
    """A parsed text."""

    parts: tuple[Part, ...]
    fault: str = ""  # what is wrong with it, if anything
    placeholders: tuple[Placeholder, ...] = ()  # the gaps, in order; found from the parts

    def __post_init__(self) -> None:
        """Find the gaps once: they are asked for again and again."""
        gaps = tuple(part for part in self.parts if isinstance(part, Placeholder))
        msgspec.structs.force_setattr(self, "placeholders", gaps)


def literal_text(template: Template) -> str:
    """What stands between the gaps."""
    return "".join(part for part in template.parts if isinstance(part, str))


@lru_cache(maxsize=8192)
def parse_template(text: str, style: Style = "strict") -> Template:
    """The parts of a text; a brace that belongs to nothing is its `fault`."""
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
    """What keeps a value from being put into a script safely, if anything does."""
    gaps = [part for part in parts if isinstance(part, Placeholder)]
    if not gaps:
        return ""
    if any(GAP in part for part in parts if isinstance(part, str)):
        return "it holds a NUL character, which no command can be given"
    script = _script_of(parts)
    return script.fault.replace("{gap}", str(gaps[script.at_fault])) if script.fault else ""


def _script_of(parts: Sequence[Part]) -> ShellScript:
    return read_script("".join([part if isinstance(part, str) else GAP for part in parts]))


@lru_cache(maxsize=8192)
def shell_script(text: str) -> ShellScript:
    """A `shell:` script as a shell reads it, with its gaps in the order of its placeholders."""
    return _script_of(parse_template(text, "shell").parts)


def part_of_name(value: str, attribute: str) -> str:
    """The asked-for part of a file name: `raw/a.tar.gz` has name `a.tar.gz`, stem `a.tar`, suffix `.gz`, parent `raw`."""
    if not attribute:
        return value
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
    """The text with its gaps filled; a list is joined by spaces."""
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
    """The arguments of a command; a list that stands alone becomes one argument per element."""
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
    """A shell script with its gaps filled, every value quoted for the place it stands in.

    A value that cannot stand in its place is refused when a job is expanded. One that shows itself only later gives a
    script that says so and fails.
    """
    template, script = parse_template(text, "shell"), shell_script(text)
    try:
        return script.fill([_items(gap, values) for gap in template.placeholders])
    except UnfitValue as unfit:
        return f"printf '%s\\n' {shlex.quote(_unfit(template, unfit))} >&2; exit 2"


def unfit_value(text: str, values: Values) -> str:
    """Why one of the values cannot stand where a script has it, or an empty text."""
    template, script = parse_template(text, "shell"), shell_script(text)
    try:
        script.fill([_items(gap, values) for gap in template.placeholders])
    except UnfitValue as unfit:
        return _unfit(template, unfit)
    return ""


def _unfit(template: Template, unfit: UnfitValue) -> str:
    return f"{template.placeholders[unfit.gap]} cannot be filled in: {unfit.reason}"


def _items(gap: Placeholder, values: Values) -> tuple[str, ...]:
    """The texts of one gap: one, or as many as a list has."""
    value = values[gap.name]
    items = value if isinstance(value, tuple) else (value,)
    return tuple([part_of_name(item, gap.attribute) for item in items]) if gap.attribute else items


def render_column(
    template: Template, columns: Mapping[str, Sequence[str]], count: int, *, escape: Callable[[str], str] | None = None
) -> list[str]:
    """The texts of one template for many items at once; `columns` gives each placeholder's value per item."""
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
    """A text as a template that stands for itself: no placeholder is looked for in it."""
    return text.replace("{", "{{").replace("}", "}}") if "{" in text or "}" in text else text
