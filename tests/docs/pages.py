"""The executor of the documentation, part one: what a page says.

Every fenced block names its language. What is shown in README.md and below docs/ is executed, page by page, from top to
bottom, in a temporary folder; comments in the page, invisible to its readers, steer it:

- ```` ```console ````: lines that begin with `$ ` are commands (`> ` continues one), the lines below each are what it
  prints, to the last line; a line `...` stands for any number of lines, and `...` within a line for any part of it. Nothing shown means nothing printed. `cd` lasts for the page, variables do not. Blocks called sh, bash or shell
  are refused: their commands would go unseen.
- `<!-- exit: 2 -->` before a console block: its last command ends with that code. Otherwise every command ends with 0.
- `<!-- folder: examples/reconstruction -->`: from here on commands run in a fresh copy of that folder, or of the whole
  `examples` tree. Before the first of these, in an empty one.
- `<!-- file: NAME -->` before a block of any language: it is written to that file.
- `<!-- run -->` before a ```` ```python ```` block: it is executed as a script; `<!-- output -->` before the next
  ```` ```text ```` block says that this is what it printed. Without one it must print nothing.
- `make demo` shows what the demo prints: it is made in a copy of the Makefile and the examples. Other targets of make and
  the words of `ELSEWHERE` are for the reader's own machine and are not run, but the targets must exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*([\w+-]*)[^`]*$")
DIRECTIVE = re.compile(r"^\s*<!--\s*(folder|file|exit|run|output)\s*(?::\s*(\S.*?))?\s*-->\s*$")
UNSEEN = {"sh", "bash", "shell", "zsh", "shell-session"}


class Command(msgspec.Struct, frozen=True):
    """A command and what the page says it prints."""

    line: int
    text: str
    output: tuple[str, ...]
    exit_code: int = 0


class Script(msgspec.Struct, frozen=True):
    """A Python program and what the page says it prints."""

    line: int
    text: str
    output: tuple[str, ...] = ()


class Write(msgspec.Struct, frozen=True):
    """A file the reader is told to make."""

    line: int
    name: str
    text: str


class Enter(msgspec.Struct, frozen=True):
    """From here on the reader stands in a copy of this folder."""

    line: int
    folder: str


Step = Command | Script | Write | Enter


class BadPage(ValueError):
    """A page breaks the conventions of this module; the message says where and how."""


class _Block(msgspec.Struct, frozen=True):
    line: int
    language: str
    body: tuple[str, ...]


_Directive = tuple[int, str, str]  # its line, what it is called, its value


def steps(text: str) -> list[Step]:
    """Everything a reader of this page would do, in order."""
    found: list[Step] = []
    pending: dict[str, tuple[int, str]] = {}
    for part in _parts(text):
        if isinstance(part, _Block):
            _take(part, pending, found)
            pending = {}
        elif part[1] == "folder":
            found.append(Enter(part[0], part[2]))
        else:
            pending[part[1]] = (part[0], part[2])
    if pending:
        name, (line, _) = next(iter(pending.items()))
        raise BadPage(f"line {line}: no block follows <!-- {name} -->")
    return found


def _take(block: _Block, pending: dict[str, tuple[int, str]], found: list[Step]) -> None:
    """Add what one block says, given the comments before it."""
    text = "".join(f"{line}\n" for line in block.body)
    if not block.language:
        raise BadPage(f"line {block.line}: the block does not name its language (text, console, yaml, ...)")
    if block.language in UNSEEN or (block.language == "text" and text.startswith("$ ")):
        raise BadPage(f"line {block.line}: show commands as ```console with `$ ` before each, so that they are run")
    wanted = {"exit": "console", "run": "python", "output": "text"}
    for name, language in wanted.items():
        if name in pending and block.language != language:
            raise BadPage(f"line {block.line}: <!-- {name} --> goes before a {language} block, not {block.language}")
    if "file" in pending:
        found.append(Write(block.line, pending["file"][1], text))
    if "run" in pending:
        found.append(Script(block.line, text))
    if "output" in pending:
        if not found or not isinstance(found[-1], Script):
            raise BadPage(f"line {block.line}: <!-- output --> belongs after a python block marked <!-- run -->")
        found[-1] = msgspec.structs.replace(found[-1], output=block.body)
    if block.language == "console":
        commands = list(_commands(block))
        commands[-1] = msgspec.structs.replace(commands[-1], exit_code=int(pending.get("exit", (0, "0"))[1]))
        found += commands


def _commands(block: _Block) -> Iterator[Command]:
    if not block.body or not block.body[0].startswith("$ "):
        raise BadPage(f"line {block.line}: a console block begins with a command: `$ ` and what to type")
    line, typed, printed = 0, list[str](), list[str]()
    for number, shown in enumerate(block.body, block.line + 1):
        if shown.startswith("$ "):
            if typed:
                yield Command(line, "\n".join(typed), tuple(printed))
            line, typed, printed = number, [shown[2:]], []
        elif not printed and (shown.startswith("> ") or typed[-1].endswith("\\")):
            typed.append(shown.removeprefix("> "))
        else:
            printed.append(shown)
    yield Command(line, "\n".join(typed), tuple(printed))


def _parts(text: str) -> Iterator[_Block | _Directive]:
    """The fenced blocks and steering comments of a page, in order."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if directive := DIRECTIVE.match(line):
            yield number, directive[1], directive[2] or ""
        elif fence := FENCE.match(line):
            indent, mark, language = len(fence[1]), fence[2], fence[3]
            body = []
            for _, inner in lines:
                if re.fullmatch(rf" *{re.escape(mark[0])}{{{len(mark)},}}\s*", inner):
                    break
                body.append(inner)
            else:
                raise BadPage(f"line {number}: the block never ends")
            yield _Block(number, language, tuple(re.sub(rf"^ {{0,{indent}}}", "", inner) for inner in body))
