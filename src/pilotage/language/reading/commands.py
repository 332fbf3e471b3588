"""Commands: a text split into arguments once, when it is read, and never given to a shell."""

from __future__ import annotations

import re
import shlex

import msgspec

from pilotage.language.reading.kinds import MISSING, ListOf, Place, Reading, Schema, Text
from pilotage.language.text.tree import Listing, Node, Scalar

_SHELL_WORD = re.compile(r"\|\|?|&&?|;|[0-9]?>>?(&[0-9])?|<|[0-9]?>&[0-9]")


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
        lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            arguments = tuple(lexer)
        except ValueError as error:
            return reading.fault("bad-command", node, f"the command cannot be split into arguments: {error}".lower())
        for word in text.split():
            if _SHELL_WORD.fullmatch(word) or word.startswith(("$(", "`")):
                reading.report.warn(
                    "shell-syntax",
                    f"{word!r} is given to the program as it stands: no shell reads this command",
                    node.mark,
                    hint="use shell: instead of run: for pipes and redirection, or quote the word",
                )
                break
        return arguments

    def schema(self) -> Schema:
        """A text, or a list of arguments."""
        return {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]
        }
