"""The paths of a descriptor's outputs as templates, for parameters whose placeholders are not filled in yet.

bosh fills value keys in as text. Here each placeholder goes through the same filling as a character that no text
holds, and is put back afterwards: as it was, as its name, or as its stem, whichever means the same for every value that
it is known to take. What cannot be said exactly is not said at all, and the reason is kept.
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
"""The texts that a placeholder's name stands for over all packages; None where that is not known yet."""

_FIRST_STAND_IN = 0xF0000  # a plane of Unicode for private use; what documents hold of it is not taken
_LAST_STAND_IN = 0x10FFFF
_STAND_IN = re.compile(f"[{chr(_FIRST_STAND_IN)}-{chr(_LAST_STAND_IN)}]")
_INTEGERS = re.compile(r"(?:(?:0|-?[1-9][0-9]*)\n)*+")  # a million are looked at in one go
_SPECIAL = re.compile(r"[*?\[]")
_NUMBERED = frozenset({"tag", "package"})  # digits with `_` or `.` between them, whatever is iterated


class NotSaid(Exception):
    """The path of an output cannot be said as a template; the text says why."""


class OutputTemplates(msgspec.Struct, frozen=True):
    """What came of the outputs of a descriptor: those that can be said, and why the others cannot."""

    said: tuple[OutputFile, ...]
    unsaid: tuple[str, ...]


class _Gap(msgspec.Struct, frozen=True):
    """One placeholder on its way through the filling of value keys, as `folder/name`, or as `name` alone."""

    placeholder: Placeholder
    input: Input
    texts: Collection[str] | None
    alone: bool  # nothing else stands in the value
    begins: bool  # nothing stands before it in its folder, so that its own name is the name of the file
    may_have_folders: bool  # its text may hold a slash


def nothing_known(_name: str) -> None:
    """Of no placeholder is anything known."""


def boutiques_values(descriptor: Descriptor, parameters: Mapping[str, object]) -> dict[str, Value]:
    """Parameters as an invocation: what a placeholder gave for a number is that number."""
    values = typed(parameters, {given.id for given in descriptor.inputs if given.type == "Number"})
    # Parameters are plain data already, and the type of an invocation's values contains itself: nothing to convert.
    return cast("dict[str, Value]", values)


def escaped(text: str) -> str:
    """A text as a template that stands for nothing but itself."""
    return text.replace("{", "{{").replace("}", "}}")


def literal_name(text: str) -> str:
    """The template of a file name in which no character is special."""
    return escaped(literal(text))


def bound(value: object, known: KnownValues) -> object:
    """A parameter in which a placeholder that has one value for all packages is that value."""
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
    """A parameter without placeholders as the value it is; None where it has some."""
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
    except NotSaid as reason:
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
        """Every output, said or not."""
        chosen: dict[str, Output] = {}
        reasons: dict[str, str] = {}
        for output in self.descriptor.outputs:
            try:
                template = self._chosen(output)
            except NotSaid as reason:
                reasons[output.id] = str(reason)
                continue
            if template is not None:
                chosen[output.id] = msgspec.structs.replace(
                    output, path_template=template, conditional_path_template=()
                )
        pruned = msgspec.structs.replace(self.descriptor, outputs=tuple(chosen.values()))
        paths = {path.id: path.path or "" for path in output_paths(pruned, self.values)}
        said: dict[str, OutputFile] = {}
        for id_, output in chosen.items():
            if output.file_template is not None:
                continue  # made before the tool starts, and not by it
            try:
                name = self._said(output, paths)
            except NotSaid as reason:
                reasons[id_] = str(reason)
            else:
                said.setdefault(name, OutputFile(name=name))
        unsaid = [f"{o.id!r} {reasons[o.id]}" for o in self.descriptor.outputs if o.id in reasons]
        return OutputTemplates(tuple(said.values()), tuple(unsaid))

    def _chosen(self, output: Output) -> str | None:
        """The path of an output before its keys are filled in, by its conditions where it has some."""
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
                    raise NotSaid(f"depends on {', '.join(map(repr, undecided))}")
                if condition.holds(cast("dict[str, Value]", self.plain)):
                    return template
            except command.ConditionError as fault:
                raise NotSaid(f"depends on a condition that cannot be decided: {fault}") from None
        return output.path_template

    def _said(self, output: Output, paths: Mapping[str, str]) -> str:
        """The name of one output as a template of the language."""
        if output.optional:
            raise NotSaid("is optional")
        template, path = output.path_template or "", paths[output.id]
        for item in self.descriptor.inputs:
            if item.value_key and item.value_key in template and self.values.get(item.id) is None:
                raise NotSaid(f"has {item.id!r} in its path, which is not given")
            if item.value_key and item.value_key in path:
                raise NotSaid(f"keeps the key of {item.id!r} in its path: its value is a folder, or empty")
        for other in self.descriptor.outputs:
            if (
                other.value_key
                and other.value_key in template
                and _STAND_IN.search(paths.get(other.id, chr(_FIRST_STAND_IN)))
            ):
                raise NotSaid(f"has the path of the output {other.id!r} in its own")
        reason = why_outside(_STAND_IN.sub("x", path))
        if reason:
            raise NotSaid(f"is outside of the job's tree: {reason}")
        return "".join(self._parts(path, output))

    def _parts(self, path: str, output: Output) -> Iterator[str]:
        end = 0
        for found in _STAND_IN.finditer(path):
            start, character = found.start(), found.group()
            if start < end:
                continue
            # bosh looks for outputs in one folder at a time: `**` is no more than `*` to it
            yield escaped(re.sub(r"\*\*+", "*", path[end:start]))
            end = found.end()
            if character in self.specials:
                yield self.specials[character]
            elif character not in self.folders and character not in self.gaps:
                raise NotSaid("has a character in its path that no file name should have")
            elif character in self.folders:
                if path[end : end + 2] != f"/{self.folders[character]}":
                    raise NotSaid("has a path that leads through '..'")
                end += 2
                yield self._whole(self.gaps[self.folders[character]], output, before=path[:start])
            else:
                gap = self.gaps[character]
                whole = not gap.may_have_folders
                yield self._whole(gap, output, before=path[:start]) if whole else self._base(gap, output)
        yield escaped(re.sub(r"\*\*+", "*", path[end:]))

    def _whole(self, gap: _Gap, output: Output, *, before: str) -> str:
        """A placeholder that came through whole, but for extensions."""
        placeholder, texts = gap.placeholder, gap.texts
        if not before and texts is not None and any(text.startswith(("/", "../")) for text in texts):
            raise NotSaid(f"is outside of the job's tree for some values of {placeholder}")
        if not self._loses_suffix(gap, output):
            return str(placeholder)
        stem = Placeholder(placeholder.name, "stem")
        if not gap.may_have_folders:
            return str(stem)
        if before and not before.endswith("/") and not all("/" in text for text in texts or ()):
            raise NotSaid(f"needs a part of {placeholder} that no placeholder gives")
        return f"{Placeholder(placeholder.name, 'parent')}/{stem}"

    def _base(self, gap: _Gap, output: Output) -> str:
        """A placeholder that lost its folders."""
        placeholder = gap.placeholder
        if placeholder.attribute or not gap.begins:
            raise NotSaid(f"needs the file name in {gap.input.id!r}, where {placeholder} may hold folders")
        if any(text.endswith("/") for text in gap.texts or ()):
            raise NotSaid(f"needs the file name in {gap.input.id!r}, where {placeholder} may be a folder")
        return str(Placeholder(placeholder.name, "stem" if self._loses_suffix(gap, output) else "name"))

    def _loses_suffix(self, gap: _Gap, output: Output) -> bool:
        """Whether what the descriptor strips is exactly the last suffix, for every value; or nothing at all."""
        placeholder, texts = gap.placeholder, gap.texts
        if gap.input.type == "Number":
            self._check_number(gap)
            return False
        stripped = output.path_template_stripped_extensions
        if placeholder.name in _NUMBERED or gap.input.type not in ("File", "String"):
            return False
        if texts is not None and "" in texts:
            raise NotSaid(f"has {placeholder} in its path, which is empty for some packages")
        if not stripped:
            return False
        if texts is None:
            raise NotSaid(f"has extensions stripped from {placeholder}, whose values are not known yet")
        left = {text: _without(text, stripped) for text in texts}
        if all(text == rest for text, rest in left.items()):
            return False
        by_suffix = placeholder.attribute in ("", "name") and all(
            part_of_name(text, "suffix") and rest + part_of_name(text, "suffix") == text for text, rest in left.items()
        )
        if not by_suffix:
            raise NotSaid(f"has extensions stripped from {placeholder} that are not its last suffix")
        return True

    def _check_number(self, gap: _Gap) -> None:
        """A number is written anew by bosh: 007 becomes 7."""
        known = gap.placeholder.name in _NUMBERED or (gap.texts is not None and _all_stay_numbers(gap.texts))
        if not (known and gap.alone):
            raise NotSaid(f"has the number {gap.placeholder} in its path, which may be written otherwise there")

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
        """The characters that stand for a gap on its way."""
        name = self._character()
        self.gaps[name] = gap
        if not gap.may_have_folders:
            return name
        folder = self._character()
        self.folders[folder] = name
        return f"{folder}/{name}"

    def _closed(self, value: object) -> Value:
        """A value without placeholders: its special characters are meant as they stand."""
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
            raise NotSaid("has too many placeholders in its path")
        return chr(number)


def _all_stay_numbers(texts: Collection[str]) -> bool:
    """Whether each text is what is written for the number it stands for."""
    if _INTEGERS.fullmatch("".join(f"{text}\n" for text in texts)):
        return True
    return all(str(typed({"n": text}, {"n"})["n"]) == text for text in texts)


def _without(text: str, extensions: Collection[str]) -> str:
    for extension in extensions:
        text = text.replace(extension, "")
    return text
