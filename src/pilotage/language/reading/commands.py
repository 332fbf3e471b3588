"""Commands: a text split into arguments once, when it is read, and never given to a shell."""

from __future__ import annotations

import re
import shlex

import msgspec

from pilotage.language.reading.kinds import MISSING, ListOf, Place, Reading, Schema, Text
from pilotage.language.text.tree import Listing, Node, Scalar

_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_FOR_A_SHELL = re.compile(r"[|&;<>`*?]|\$[({A-Za-z_]|^~(?:/|$)|\[[^\]]*\]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_BUILT_IN = frozenset({".", "alias", "cd", "export", "set", "source", "ulimit", "umask", "unset"})


def shell_words(text: str) -> list[str]:
    """The words of a command that only a shell would understand; what is quoted is not among them."""
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
    """A command as one text, split as a shell would split it and nothing more, or as a list of arguments."""

    def read(self, node: Node, place: Place, reading: Reading) -> object:
        """The arguments."""
        if isinstance(node, Listing):
            arguments = ListOf(Text()).read(node, place, reading)
        else:
            arguments = self._split(node, place, reading)
        if arguments == ():
            return reading.fault("empty-command", node, "expected a command, got nothing")
        return arguments

    def _split(self, node: Node, place: Place, reading: Reading) -> object:
        text = Text().read(node, place, reading)
        if not isinstance(text, str) or not isinstance(node, Scalar):
            return MISSING
        text = text.replace("\\\n", " ")  # a command may go on in the next line
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
                f"no shell reads this command: {_listed(words)} {'is' if len(words) == 1 else 'are'} taken as plain text",
                reading.report.found(node.mark, words[0].strip()),
                hint="use shell: instead of run:, or quote what is meant as it stands",
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
