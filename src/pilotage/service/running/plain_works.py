"""The quick way to write out packages that are nothing but commands with named files: most of a large job.

It gives the same as the language does for any package, in a third of the time: what differs between the packages of a
block is filled in, everything else is made once.
"""

from __future__ import annotations

import msgspec

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.packages import command_of
from pilotage.language.expansion.software import environment_levels
from pilotage.language.text.paths import tidy_name
from pilotage.language.text.patterns import is_pattern
from pilotage.language.text.templates import Template, Values, literal_text, parse_template, render, render_arguments
from pilotage.model.definition import Binary, Definition, Scripts
from pilotage.model.work import WorkBinary, WorkOutput


class PlainWork(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What differs between the packages of a plain block."""

    name: str
    inputs: tuple[str, ...]
    binaries: tuple[WorkBinary, ...]


class _Text:
    """A name with its gaps; where it has none, it is tidied once."""

    __slots__ = ("_constant", "_template")

    def __init__(self, template: Template) -> None:
        self._template = template
        self._constant = None if template.placeholders else tidy_name(literal_text(template))

    def write(self, values: Values) -> str:
        return tidy_name(render(self._template, values)) if self._constant is None else self._constant


class PlainBlock:
    """A block of one binary, started directly, with named files only."""

    __slots__ = (
        "_binary",
        "_block",
        "_constants",
        "_definition",
        "_environment",
        "_inputs",
        "_needs_places",
        "_outputs",
        "_staged",
        "_streams",
    )

    def __init__(self, block: Block, definition: Definition, binary: Binary) -> None:
        """Work out what all packages share."""
        self._block = block
        self._definition = definition
        self._binary = binary
        self._constants = dict(block.constants)
        self._inputs = tuple(_Text(block.bound(given.name)) for given in binary.inputs)
        self._staged = tuple(given.acquisition != "self" for given in binary.inputs)
        self._outputs = tuple(_Text(block.bound(output.name)) for output in binary.outputs)
        self._streams = tuple(
            _Text(block.bound(stream)) if stream else None for stream in (binary.stdin, binary.stdout, binary.stderr)
        )
        self._environment = environment_levels(definition, block.package, binary, {}).exported
        self._needs_places = _speaks_of_places(binary)

    def write(self, number: int) -> PlainWork:
        """One package of the block."""
        block, binary = self._block, self._binary
        position = block.position(number)
        item, line = divmod(position, block.line_items.count)
        tag = block.tag(position)
        values: dict[str, str | tuple[str, ...]] = {
            **self._constants,
            **block.items.values(item),
            **block.line_items.values(line),
        }
        if self._needs_places:
            values["tag"] = tag
            values["package"] = block.dotted(position)
        inputs = tuple([text.write(values) for text in self._inputs])
        outputs = tuple([text.write(values) for text in self._outputs])
        stdin, stdout, stderr = [text.write(values) if text is not None else "" for text in self._streams]
        named = values.copy()
        named["inputs"] = inputs
        named["outputs"] = outputs
        named["arguments"] = render_arguments(binary.arguments, named) if binary.arguments else ()
        command = WorkBinary(
            argv=command_of(binary, block.package, named, self._definition),
            environment=self._environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            outputs=tuple([WorkOutput(name=name) for name in outputs]),
        )
        staged = inputs if all(self._staged) else tuple(n for n, s in zip(inputs, self._staged, strict=True) if s)
        name = f"{block.name}-{tag}" if tag else block.name
        return PlainWork(name=name, inputs=(*staged, stdin) if stdin else staged, binaries=(command,))


def plain_block(block: Block, definition: Definition) -> PlainBlock | None:
    """The quick way for a block, or None where it asks for more than a command with named files."""
    package = block.package
    if package.startup_script or package.container or package.progress or package.failure_patterns or package.name:
        return None
    if package.scripts != Scripts() or package.noop or package.done or len(package.binaries) != 1:
        return None
    binary = package.binaries[0]
    if binary.software or any(output.expression for output in binary.outputs):
        return None
    named = [block.bound(name) for name in _file_names(binary)]
    if any(is_pattern(literal_text(template)) for template in named):
        return None
    if any(block.is_list(gap.name) for template in named for gap in template.placeholders):
        return None
    levels = (definition.environment, package.environment, binary.environment)
    if any(parse_template(text).placeholders for level in levels for text in level.exported.values()):
        return None
    return PlainBlock(block, definition, binary)


def _speaks_of_places(binary: Binary) -> bool:
    """Whether a text asks for the tag or the place of its package."""
    streams = (binary.stdin, binary.stdout, binary.stderr)
    texts = [*binary.run, binary.invoking_script, *binary.arguments, *_file_names(binary), *streams]
    gaps = [gap for text in texts for gap in parse_template(text).placeholders]
    gaps += parse_template(binary.shell, "shell").placeholders
    return any(gap.name in ("tag", "package") for gap in gaps)


def _file_names(binary: Binary) -> list[str]:
    return [*(given.name for given in binary.inputs), *(output.name for output in binary.outputs)]
