"""Makes templates for the paths of a descriptor's outputs from parameters that contain placeholders.

bosh substitutes value keys as text. Here each placeholder goes through the same substitution as a private character, and
is put back afterwards: as itself, as its name or as its stem, whichever is right for all its known values. If no template
is exactly right, there is none, and the reason is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import cast

import msgspec

from pilotage.language.boutiques import Descriptor, Input, Output, Value, command, output_paths
from pilotage.language.expansion.software import typed
from pilotage.language.text.names import why_outside
from pilotage.language.text.patterns import literal
from pilotage.language.text.templates import Part, Placeholder, parse_template, part_of_name
from pilotage.model.jobs.definition import OutputFile

KnownValues = Callable[[str], Collection[str] | None]
"""The values of a placeholder over all packages; None if they are not known yet."""

_FIRST_STAND_IN = 0xF0000  # private-use planes of Unicode; characters that the document uses are skipped
_LAST_STAND_IN = 0x10FFFF
_STAND_IN = re.compile(f"[{chr(_FIRST_STAND_IN)}-{chr(_LAST_STAND_IN)}]")
_INTEGERS = re.compile(r"(?:(?:0|-?[1-9][0-9]*)\n)*+")  # checks a million at once
_SPECIAL = re.compile(r"[*?\[]")
_NUMBERED = frozenset({"tag", "package"})  # digits separated by `_` or `.`, for any iteration


class NotExpressible(Exception):
    """The path of an output cannot be expressed as a template; the text says why."""


class OutputTemplates(msgspec.Struct, frozen=True):
    """The outputs of a descriptor as templates, and the reasons for those that have none."""

    outputs: tuple[OutputFile, ...]
    unsupported: tuple[str, ...]


class _Gap(msgspec.Struct, frozen=True):
    """One placeholder during the substitution of value keys, as `folder/name` or as `name`."""

    placeholder: Placeholder
    input: Input
    texts: Collection[str] | None
    alone: bool  # it is the whole value
    begins: bool  # it begins a path component, so that its own file name begins that of the file
    may_have_folders: bool  # its value may contain a slash


def nothing_known(_name: str) -> None:
    """The values of no placeholder are known."""


def boutiques_values(descriptor: Descriptor, parameters: Mapping[str, object]) -> dict[str, Value]:
    """Parameters as an invocation, with numbers where the descriptor has the type Number."""
    values = typed(parameters, {given.id for given in descriptor.inputs if given.type == "Number"})
    # Parameters are plain data already; the cast is only for the recursive type of invocation values.
    return cast("dict[str, Value]", values)


def escaped(text: str) -> str:
    """A text as a template without placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def literal_name(text: str) -> str:
    """The template of a literal file name."""
    return escaped(literal(text))


def bound(value: object, known: KnownValues) -> object:
    """A parameter with those placeholders filled in that have the same value for all packages."""
    if isinstance(value, list):
        return [bound(item, known) for item in value]
    if not isinstance(value, str):
        return value
    parts: list[str] = []
    for part in parse_template(value).parts:
        texts = known(part.name) if isinstance(part, Placeholder) else None
        if isinstance(part, str):
            parts.append(escaped(part))
        elif texts is not None and len(texts) == 1:
            parts.append(escaped(part_of_name(next(iter(texts)), part.attribute)))
        else:
            parts.append(str(part))
    return "".join(parts)


def plain_value(value: object) -> object | None:
    """The value of a parameter without placeholders; None if it has some."""
    texts = value if isinstance(value, list) else [value]
    templates = [parse_template(text) for text in texts if isinstance(text, str)]
    if any(template.placeholders for template in templates):
        return None
    plain = ["".join(map(str, parse_template(t).parts)) if isinstance(t, str) else t for t in texts]
    return plain if isinstance(value, list) else plain[0]


def output_templates(descriptor: Descriptor, parameters: Mapping[str, object], known: KnownValues) -> OutputTemplates:
    """The outputs of a descriptor for parameters with placeholders."""
    try:
        return _Paths(descriptor, parameters, known).templates()
    except NotExpressible as reason:
        return OutputTemplates((), tuple(f"{output.id!r} {reason}" for output in descriptor.outputs))


class _Paths:
    def __init__(self, descriptor: Descriptor, parameters: Mapping[str, object], known: KnownValues) -> None:
        self.descriptor = descriptor
        self.known = known
        self.gaps: dict[str, _Gap] = {}  # by the character of the name
        self.folders: dict[str, str] = {}  # the character of a folder, and the name that follows it
        self.specials: dict[str, str] = {}
        given = {name: bound(value, known) for name, value in parameters.items() if value is not None}
        self.open = {name for name, value in given.items() if plain_value(value) is None}
        plain = {name: plain_value(value) for name, value in given.items()}
        defaults = {i.id: i.default_value for i in descriptor.inputs if i.default_value is not None}
        self.plain = {**defaults, **boutiques_values(descriptor, plain)}
        inputs = {i.id: i for i in descriptor.inputs}
        self.values: dict[str, Value] = {
            name: self._open(given[name], inputs[name]) if name in self.open else self._closed(value)
            for name, value in self.plain.items()
            if name in inputs
        }

    def templates(self) -> OutputTemplates:
        """All outputs, with a template or a reason."""
        chosen: dict[str, Output] = {}
        reasons: dict[str, str] = {}
        for output in self.descriptor.outputs:
            try:
                template = self._chosen(output)
            except NotExpressible as reason:
                reasons[output.id] = str(reason)
                continue
            if template is not None:
                chosen[output.id] = msgspec.structs.replace(
                    output, path_template=template, conditional_path_template=()
                )
        pruned = msgspec.structs.replace(self.descriptor, outputs=tuple(chosen.values()))
        paths = {path.id: path.path or "" for path in output_paths(pruned, self.values)}
        expressed: dict[str, OutputFile] = {}
        for id_, output in chosen.items():
            if output.file_template is not None:
                continue  # written before the tool starts, not by it
            try:
                name = self._template(output, paths)
            except NotExpressible as reason:
                reasons[id_] = str(reason)
            else:
                expressed.setdefault(name, OutputFile(name=name))
        unsupported = [f"{o.id!r} {reasons[o.id]}" for o in self.descriptor.outputs if o.id in reasons]
        return OutputTemplates(tuple(expressed.values()), tuple(unsupported))

    def _chosen(self, output: Output) -> str | None:
        """The path template of an output, chosen by its conditions if it has some."""
        outputs = {other.id for other in self.descriptor.outputs}
        ids = {item.id for item in self.descriptor.inputs} | outputs
        for entry in output.conditional_path_template:
            text, template = next(iter(entry.items()))
            if text.split() == [command.DEFAULT]:
                return template
            try:
                condition = command.parsed(text, ids)
                asked = set(condition.stand_ins.values())
                undecided = sorted(asked & (self.open | outputs))
                if undecided:
                    raise NotExpressible(f"depends on {', '.join(map(repr, undecided))}")
                if condition.holds(cast("dict[str, Value]", self.plain)):
                    return template
            except command.ConditionError as fault:
                raise NotExpressible(f"depends on a condition that cannot be evaluated: {fault}") from None
        return output.path_template

    def _template(self, output: Output, paths: Mapping[str, str]) -> str:
        """The name of one output as a template."""
        if output.optional:
            raise NotExpressible("is optional")
        template, path = output.path_template or "", paths[output.id]
        for item in self.descriptor.inputs:
            if item.value_key and item.value_key in template and self.values.get(item.id) is None:
                raise NotExpressible(f"has {item.id!r} in its path, which is not given")
            if item.value_key and item.value_key in path:
                raise NotExpressible(f"keeps the key of {item.id!r} in its path, since its value is a folder or empty")
        for other in self.descriptor.outputs:
            if (
                other.value_key
                and other.value_key in template
                and _STAND_IN.search(paths.get(other.id, chr(_FIRST_STAND_IN)))
            ):
                raise NotExpressible(f"has the path of the output {other.id!r} in its own")
        reason = why_outside(_STAND_IN.sub("x", path))
        if reason:
            raise NotExpressible(f"is outside the job's tree: {reason}")
        return "".join(self._parts(path, output))

    def _parts(self, path: str, output: Output) -> Iterator[str]:
        end = 0
        for found in _STAND_IN.finditer(path):
            start, character = found.start(), found.group()
            if start < end:
                continue
            # bosh expands patterns within one folder: to it, `**` means `*`
            yield escaped(re.sub(r"\*\*+", "*", path[end:start]))
            end = found.end()
            if character in self.specials:
                yield self.specials[character]
            elif character not in self.folders and character not in self.gaps:
                raise NotExpressible("has an invalid character in its path")
            elif character in self.folders:
                if path[end : end + 2] != f"/{self.folders[character]}":
                    raise NotExpressible("has '..' in its path")
                end += 2
                yield self._whole(self.gaps[self.folders[character]], output, before=path[:start])
            else:
                gap = self.gaps[character]
                whole = not gap.may_have_folders
                yield self._whole(gap, output, before=path[:start]) if whole else self._base(gap, output)
        yield escaped(re.sub(r"\*\*+", "*", path[end:]))

    def _whole(self, gap: _Gap, output: Output, *, before: str) -> str:
        """The template of a placeholder that kept its folders, perhaps without extensions."""
        placeholder, texts = gap.placeholder, gap.texts
        if not before and texts is not None and any(text.startswith(("/", "../")) for text in texts):
            raise NotExpressible(f"is outside the job's tree for some values of {placeholder}")
        if not self._loses_suffix(gap, output):
            return str(placeholder)
        stem = Placeholder(placeholder.name, "stem")
        if not gap.may_have_folders:
            return str(stem)
        if before and not before.endswith("/") and not all("/" in text for text in texts or ()):
            raise NotExpressible(f"needs a part of {placeholder} that no placeholder provides")
        return f"{Placeholder(placeholder.name, 'parent')}/{stem}"

    def _base(self, gap: _Gap, output: Output) -> str:
        """The template of a placeholder that lost its folders."""
        placeholder = gap.placeholder
        if placeholder.attribute or not gap.begins:
            raise NotExpressible(f"needs the file name in {gap.input.id!r}, where {placeholder} may contain folders")
        if any(text.endswith("/") for text in gap.texts or ()):
            raise NotExpressible(f"needs the file name in {gap.input.id!r}, where {placeholder} may be a folder")
        return str(Placeholder(placeholder.name, "stem" if self._loses_suffix(gap, output) else "name"))

    def _loses_suffix(self, gap: _Gap, output: Output) -> bool:
        """Whether the descriptor strips exactly the last suffix of every value; False if it strips nothing."""
        placeholder, texts = gap.placeholder, gap.texts
        if gap.input.type == "Number":
            self._check_number(gap)
            return False
        stripped = output.path_template_stripped_extensions
        if placeholder.name in _NUMBERED or gap.input.type not in ("File", "String"):
            return False
        if texts is not None and "" in texts:
            raise NotExpressible(f"has {placeholder} in its path, which is empty for some packages")
        if not stripped:
            return False
        if texts is None:
            raise NotExpressible(f"has extensions stripped from {placeholder}, whose values are not known yet")
        left = {text: _without(text, stripped) for text in texts}
        if all(text == rest for text, rest in left.items()):
            return False
        by_suffix = placeholder.attribute in ("", "name") and all(
            part_of_name(text, "suffix") and rest + part_of_name(text, "suffix") == text for text, rest in left.items()
        )
        if not by_suffix:
            raise NotExpressible(f"has extensions stripped from {placeholder} that are not its last suffix")
        return True

    def _check_number(self, gap: _Gap) -> None:
        """Raise if bosh would write a number differently: 007 becomes 7."""
        known = gap.placeholder.name in _NUMBERED or (gap.texts is not None and _all_stay_numbers(gap.texts))
        if not (known and gap.alone):
            raise NotExpressible(f"has the number {gap.placeholder} in its path, which bosh may write differently")

    def _open(self, value: object, item: Input) -> Value:
        """A parameter with its placeholders and special characters replaced by stand-ins."""
        if isinstance(value, list):
            lead = item.list_separator
            return [self._text(text, item, lead="" if not n else lead) for n, text in enumerate(value)]
        return self._text(value, item, lead="")

    def _text(self, value: object, item: Input, *, lead: str) -> Value:
        if not isinstance(value, str):
            return self._closed(value)
        parts = parse_template(value).parts
        written: list[str] = []
        for number, part in enumerate(parts):
            if isinstance(part, str):
                written.append(str(self._closed(part)))
                continue
            before: Part = parts[number - 1] if number else lead
            begins = isinstance(before, str) and (not before or before.endswith("/"))
            texts = self.known(part.name)
            if texts is not None and part.attribute:
                texts = {part_of_name(text, part.attribute) for text in texts}
            one_name = part.attribute in ("name", "stem", "suffix") or part.name in _NUMBERED
            folders = not one_name and (texts is None or any("/" in text for text in texts))
            alone = len(parts) == 1
            gap = _Gap(part, item, texts, alone=alone, begins=begins, may_have_folders=folders)
            written.append(self._stand_in(gap))
        return "".join(written)

    def _stand_in(self, gap: _Gap) -> str:
        """The private characters for a placeholder."""
        name = self._character()
        self.gaps[name] = gap
        if not gap.may_have_folders:
            return name
        folder = self._character()
        self.folders[folder] = name
        return f"{folder}/{name}"

    def _closed(self, value: object) -> Value:
        """A value without placeholders, whose special characters are literal."""
        if isinstance(value, list):
            return [self._closed(item) for item in value]
        if not isinstance(value, str):
            return cast("Value", value)
        return _SPECIAL.sub(lambda found: self._special(found.group()), _STAND_IN.sub("\ufffd", value))

    def _special(self, character: str) -> str:
        for stand_in, written in self.specials.items():
            if written == literal(character):
                return stand_in
        stand_in = self._character()
        self.specials[stand_in] = literal(character)
        return stand_in

    def _character(self) -> str:
        number = _FIRST_STAND_IN + len(self.gaps) + len(self.folders) + len(self.specials)
        if number > _LAST_STAND_IN:
            raise NotExpressible("has too many placeholders in its path")
        return chr(number)


def _all_stay_numbers(texts: Collection[str]) -> bool:
    """Whether each text is the canonical form of its number."""
    if _INTEGERS.fullmatch("".join(f"{text}\n" for text in texts)):
        return True
    return all(str(typed({"n": text}, {"n"})["n"]) == text for text in texts)


def _without(text: str, extensions: Collection[str]) -> str:
    for extension in extensions:
        text = text.replace(extension, "")
    return text
