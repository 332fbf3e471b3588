"""Parses a shell script as dash and bash do, to find the context of each placeholder ("gap") in it.

A gap is rejected where the two shells disagree, or would evaluate its value as code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import msgspec

from pilotage.language.text.here_documents import HereDocument, ends, ends_evenly, joined_lines

Context = Literal["word", "single", "double", "comment", "document", "literal-document", "arithmetic"]

GAP = "\0"

_WAY_OUT = 'write value={gap} on a line of its own, and then "$value" where it is needed'
_END_OF_WORD = frozenset(" \t\n;&|<>()")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_BEFORE_REDIRECTION = re.compile(r"[\0A-Za-z0-9_}]*[<>]")
_QUOTES = re.compile(r"[\\'\"]|\\\n")
_INDEX_BEGUN = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*)?\[")
_INDEX_ENDS = re.compile(r"\S*\]\+?=")
_OF_A_NUMBER = re.compile(r"[A-Za-z0-9_.#$\0]")

_THEN_A_COMMAND = frozenset(
    {"then", "do", "else", "elif", "if", "while", "until", "!", "{", "time", "command", "builtin"}
)
_READ_AGAIN = frozenset({"eval", "let", "trap", "alias"})
_NAMES_VARIABLES = frozenset(
    {"declare", "export", "getopts", "local", "mapfile", "read", "readarray", "readonly", "typeset", "unset"}
)
_TESTS = frozenset({"[", "[[", "test", "printf"})
_NUMBER_TESTS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


class Slot(msgspec.Struct, frozen=True):
    """A gap of a script: its context, and whether a harmless value needs no quotes there."""

    context: Context
    plain: bool = False


class RefusedGap(Exception):
    """A gap that cannot be filled, given by its position."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


_Kind = Literal["code", "single", "double", "arithmetic", "brace", "backtick", "ansi", "document"]
_Position = Literal["command", "assigned", "arguments", "name", "after-name", "case-subject", "case-in"]

_REFUSING: dict[_Kind, str] = {
    "brace": "is inside ${ … }, where no value can be quoted",
    "backtick": "is between backticks, where no value can be quoted: write $( … ) instead",
    "ansi": "is inside $'…', which dash and bash read differently",
}


class _Frame:
    """An open construct of a script: its kind and, for code, the state of the current command."""

    def __init__(self, kind: _Kind, begun: int, *, substitution: bool = False) -> None:
        self.kind: _Kind = kind
        self.begun = begun  # its position in the script
        self.substitution = substitution  # whether it is a $( ), which is part of a word
        self.depth = 0  # of brackets, in arithmetic
        self.pending: list[tuple[str, bool, bool]] = []  # announced here-documents: end word, literal, strips tabs
        self.position: _Position = "command"
        self.command = ""  # the first word of the command, if it is known
        self.previous = ""  # the word before this one
        self.again = ""  # a command that evaluates its arguments as code
        self.integer = False  # `declare -i`
        self.redirects = False  # the next word is a file
        self.duplicates = False  # and follows >& or another operator with an ampersand
        self.numbers = False  # [[ … ]] compares numbers
        self.test_gap = -1  # a gap inside [[ … ]]
        self.word = -1  # where the word begins, or -1 between words
        self.literal = True  # nothing in the word is quoted or filled in
        self.is_array = False  # name=( … )
        self.cases: list[bool] = []  # open `case … in`: whether a pattern comes next


class ScriptReader:
    """Parses a script from left to right and tracks the context."""

    def __init__(self, text: str, start: int, end: int, frames: tuple[_Frame, ...]) -> None:
        self.text = text
        self.at = start
        self.end = end
        self.frames: list[_Frame] = list(frames) or [_Frame("code", start)]
        self.slots: list[Slot] = []
        self.documents: list[HereDocument] = []
        self.unsure = ""  # why it is no longer certain how a shell parses the rest
        self._steps: dict[_Kind, Callable[[_Frame, str], None]] = {
            "code": self._in_code,
            "single": self._in_single,
            "double": self._in_double,
            "arithmetic": self._in_arithmetic,
            "brace": self._in_brace,
            "backtick": self._in_backtick,
            "ansi": self._in_ansi,
            "document": self._in_document,
        }

    def read(self) -> None:
        """Find every gap; raises `RefusedGap` at the first that cannot be filled."""
        while self.at < self.end:
            frame, character = self.frames[-1], self.text[self.at]
            if character == GAP and frame.kind in _REFUSING:
                self._slot("double")  # which rejects it
            self._steps[frame.kind](frame, character)
        for frame in self.frames:
            if frame.kind == "code" and frame.word >= 0:
                self._end_word(frame)
            if frame.kind == "arithmetic":
                self._not_arithmetic(frame)

    # --- gaps -------------------------------------------------------------------------------------------------------

    def _slot(self, context: Context, *, plain: bool = False) -> None:
        if self.unsure:
            raise RefusedGap(self.at, f"comes after {self.unsure}: {_WAY_OUT}")
        for frame in self.frames:
            reason = _REFUSING.get(frame.kind)
            if reason is not None:
                hint = "" if frame.kind == "backtick" else f": {_WAY_OUT}"
                raise RefusedGap(self.at, f"{reason}{hint}")
        if self.frames[0].kind == "document" and not (
            len(self.frames) == 1 or (len(self.frames) == 2 and context == "arithmetic")
        ):
            raise RefusedGap(self.at, f"is in a command inside a here-document: {_WAY_OUT}")
        self.slots.append(Slot(context, plain))
        self.at += 1

    def _escape(self) -> bool:
        """Skip a backslash and the character it escapes; return whether that was a newline."""
        following = self.text[self.at + 1 : self.at + 2]
        if following == GAP and self.at + 1 < self.end:
            raise RefusedGap(self.at + 1, "comes after a backslash: write two of them for one before the value")
        self.at += 2
        return following == "\n"

    # --- code -------------------------------------------------------------------------------------------------------

    def _in_code(self, frame: _Frame, character: str) -> None:
        if character in _END_OF_WORD:
            self._operator(frame, character)
        elif character == "#" and frame.word < 0:
            self._comment()
        elif self.text.startswith("\\\n", self.at):
            self.at += 2  # a continued line
        else:
            if frame.word < 0:
                frame.word, frame.literal = self.at, True
            self._in_word(frame, character)

    def _in_word(self, frame: _Frame, character: str) -> None:
        if character == GAP:
            self._gap_in_code(frame)
        elif character == "\\":
            frame.literal = False
            self._escape()
        elif character == "'":
            self._push("single", frame)
        elif character == '"':
            self._push("double", frame)
        elif character == "`":
            self._push("backtick", frame)
        elif character == "$":
            frame.literal = False
            if self.text.startswith("$'", self.at):
                self.at += 1
                self._push("ansi", frame)
            else:
                self._dollar()
        else:
            self.at += 1

    def _push(self, kind: _Kind, frame: _Frame) -> None:
        frame.literal = False
        self.frames.append(_Frame(kind, self.at))
        self.at += 1

    def _comment(self) -> None:
        while self.at < self.end and self.text[self.at] != "\n":
            if self.text[self.at] == GAP:
                self._slot("comment")
            else:
                self.at += 1

    def _gap_in_code(self, frame: _Frame) -> None:
        begun = self.text[frame.word : self.at]
        assigns = _ASSIGNMENT.match(begun) is not None
        if frame.again:
            raise RefusedGap(self.at, f"is an argument of {frame.again}, which evaluates it as code: {_WAY_OUT}")
        if frame.redirects and frame.duplicates:
            raise RefusedGap(self.at, "comes after >&, where bash expands it twice: write > {gap} 2>&1 instead")
        if frame.command in _NAMES_VARIABLES and (not assigns or frame.integer):
            raise RefusedGap(self.at, f"would name a variable for {frame.command}, which bash may evaluate as code")
        if frame.command in _TESTS and frame.previous == "-v":
            raise RefusedGap(self.at, f"would name a variable for {frame.command} -v, which bash may evaluate as code")
        if frame.command == "[[":
            frame.test_gap = self.at
            self._check_numbers(frame)
        if _INDEX_BEGUN.match(begun) and _INDEX_ENDS.match(self.text, self.at, self.end):
            raise RefusedGap(self.at, f"is in the index of an array, which bash evaluates as code: {_WAY_OUT}")
        plain = (
            (assigns or frame.redirects or frame.position not in ("command", "assigned"))
            and "{" not in begun
            and not _BEFORE_REDIRECTION.match(self.text, self.at, self.end)
        )
        frame.literal = False
        self._slot("word", plain=plain)

    def _check_numbers(self, frame: _Frame) -> None:
        if frame.numbers and frame.test_gap >= 0:
            raise RefusedGap(frame.test_gap, "is compared as a number by [[, which may run it as code: use [ instead")

    def _operator(self, frame: _Frame, character: str) -> None:
        if frame.word >= 0:
            if character in "<>" and self.text[frame.word : self.at].isdigit():
                frame.word = -1  # the number of a stream
            else:
                self._end_word(frame)
        if frame.is_array and character not in " \t\n()":
            self._lose(f"{character} inside the elements of an array")
        if character in " \t":
            self.at += 1
        elif character == "\n":
            self.at += 1
            if frame.position not in ("name", "after-name", "case-subject", "case-in"):
                self._next_command(frame)
            self._end_line(frame)
        elif character == "(":
            self._open_bracket(frame)
        elif character == ")":
            self._close_bracket(frame)
        elif character in "<>":
            self._redirection(frame)
        else:
            doubled = self.text.startswith((";;", ";&"), self.at)
            self.at += 2 if doubled else 1
            if doubled and frame.cases:
                frame.cases[-1] = True
            if frame.command != "[[":
                self._next_command(frame)

    def _next_command(self, frame: _Frame) -> None:
        frame.position, frame.command, frame.again, frame.previous = "command", "", "", ""
        frame.integer = frame.redirects = frame.numbers = False
        frame.test_gap = -1

    def _open_bracket(self, frame: _Frame) -> None:
        if frame.cases and frame.cases[-1]:
            self.at += 1  # before a pattern, where it has no meaning
            return
        if self.text.startswith("((", self.at) and frame.position in ("command", "name"):
            self.frames.append(_Frame("arithmetic", self.at))
            frame.position = "command"
            self.at += 2
            return
        if frame.is_array:
            self._lose("a bracket inside the elements of an array")
        inner = _Frame("code", self.at, substitution=frame.redirects)  # <( … ) is a file
        frame.redirects = False
        inner.is_array = self.text[self.at - 1 : self.at] == "="
        if frame.command == "[[":
            inner.position, inner.command = "arguments", "[["
        self.frames.append(inner)
        self.at += 1

    def _close_bracket(self, frame: _Frame) -> None:
        self.at += 1
        if frame.cases and frame.cases[-1]:
            frame.cases[-1] = False
            self._next_command(frame)
        elif len(self.frames) > 1:
            if frame.pending or frame.cases:
                self._lose("a bracket that closes before its here-document or its case does")
            self.frames.pop()
            below = self.frames[-1]
            if below.kind == "code" and not frame.substitution and below.command != "[[":
                self._next_command(below)
        else:
            self._lose("a bracket that closes and was not opened")

    def _redirection(self, frame: _Frame) -> None:
        text = self.text
        if text.startswith("<<", self.at) and not text.startswith("<<<", self.at):
            self._announce(frame)
            return
        begun = self.at
        while self.at < self.end and text[self.at] in "<>&|":
            self.at += 1
        frame.redirects = True
        frame.duplicates = "&" in text[max(begun - 1, 0) : self.at]

    def _end_word(self, frame: _Frame) -> None:
        """Update the state at the end of a word."""
        word = self.text[frame.word : self.at] if frame.literal else ""
        begun = self.text[frame.word : self.at]
        frame.word = -1
        if frame.redirects:
            frame.redirects = False
            if frame.position == "command":
                frame.position = "assigned"  # no reserved word follows a redirection
            return
        if _INDEX_BEGUN.match(begun) and begun[0] != "[" and "]" not in begun:
            self._lose("the index of an array, which bash reads on over spaces")
        if frame.cases and frame.cases[-1]:
            if word == "esac":
                frame.cases.pop()
                frame.position = "arguments"
            return
        position = frame.position
        if position == "command" and self._keyword(frame, word):
            return
        if position in ("command", "assigned"):
            if _ASSIGNMENT.match(begun):
                frame.position = "assigned"
                return
            frame.position, frame.command = "arguments", _QUOTES.sub("", begun)
            frame.again = frame.command if frame.command in _READ_AGAIN else ""
        else:
            self._later_word(frame, word, begun)
        frame.previous = word

    def _later_word(self, frame: _Frame, word: str, begun: str) -> None:
        """Update the state after a word that follows the first one of a command."""
        position = frame.position
        if position == "name":
            frame.position = "after-name"
        elif position == "after-name":
            frame.position = "command" if word in ("do", "{") else "arguments"
        elif position == "case-subject":
            frame.position = "case-in"
        elif position == "case-in":
            frame.cases.append(True)
            frame.position = "command"
        elif frame.command == "[[":
            frame.numbers = frame.numbers or word in _NUMBER_TESTS
            self._check_numbers(frame)
            if word == "]]":
                self._next_command(frame)
                frame.position = "arguments"
        elif begun.startswith("-") and "i" in begun and frame.command in ("declare", "typeset", "local"):
            frame.integer = True

    def _keyword(self, frame: _Frame, word: str) -> bool:
        """Whether a word at the start of a command is a reserved word of the shell."""
        if word in _THEN_A_COMMAND:
            return True
        if word == "case":
            frame.position = "case-subject"
        elif word in ("for", "select", "function"):
            frame.position = "name"
        elif word in ("fi", "done", "}", "esac"):
            if word == "esac" and frame.cases:
                frame.cases.pop()
            frame.position = "arguments"
        else:
            return False
        return True

    # --- quotes and expansions --------------------------------------------------------------------------------------

    def _in_single(self, _: _Frame, character: str) -> None:
        if character == GAP:
            self._gap_in_quotes("single")
        elif character == "'":
            self._pop()
        else:
            self._pass(character)

    def _in_double(self, frame: _Frame, character: str) -> None:
        if character == GAP:
            self._gap_in_quotes("double")
        elif character == '"':
            self._pop()
        else:
            self._in_expanded(frame, character)

    def _gap_in_quotes(self, context: Context) -> None:
        """A gap in quotes; quotes do not help if a command evaluates its arguments as code."""
        code = next((frame for frame in reversed(self.frames) if frame.kind == "code"), None)
        if code is None:
            self._slot(context)
            return
        before = len(self.slots)
        self._gap_in_code(code)
        self.slots[before] = Slot(context)

    def _in_expanded(self, frame: _Frame, character: str) -> None:
        """Handle characters with the same meaning in double quotes, here-documents, arithmetic and ${ }."""
        if character == "\\":
            if self._escape():
                self._note_newline()
        elif character == "`":
            self._push("backtick", frame)
        elif character == "$":
            self._dollar()
        else:
            self._pass(character)

    def _dollar(self) -> None:
        text = self.text
        if text.startswith("$((", self.at):
            self.frames.append(_Frame("arithmetic", self.at))
            self.at += 3
        elif text.startswith("$(", self.at):
            self.frames.append(_Frame("code", self.at, substitution=True))
            self.at += 2
        elif text.startswith("${", self.at):
            self.frames.append(_Frame("brace", self.at))
            self.at += 2
        else:
            if text.startswith("$[", self.at):
                self._lose("$[, which is arithmetic for bash alone")
            self.at += 1

    def _in_arithmetic(self, frame: _Frame, character: str) -> None:
        if character == GAP:
            neighbours = self.text[frame.begun : self.at][-1:] + self.text[self.at + 1 : self.at + 2]
            if _OF_A_NUMBER.search(neighbours):
                raise RefusedGap(self.at, "is in the middle of a number or a name between $(( and ))")
            frame.test_gap = self.at
            self._slot("arithmetic")
        elif character == "(":
            frame.depth += 1
            self.at += 1
        elif character == ")" and frame.depth:
            frame.depth -= 1
            self.at += 1
        elif character == ")":
            if self.text.startswith("))", self.at):
                self.at += 1
            else:
                self._not_arithmetic(frame)
            self._pop()
        elif character == "'" or (character == '"' and self.text.startswith("((", frame.begun)):
            self._lose("a quote inside (( ))")
            self.at += 1
        else:
            self._in_expanded(frame, character)

    def _not_arithmetic(self, frame: _Frame) -> None:
        """Handle a construct that began like arithmetic but does not end like it."""
        if frame.test_gap >= 0:
            reason = "is between (( and a single bracket: write $( ( … ) ) for a command in brackets"
            raise RefusedGap(frame.test_gap, reason)
        self._lose("$(( … that does not end with ))")

    def _in_brace(self, frame: _Frame, character: str) -> None:
        if character == "}":
            self._pop()
        elif character == '"':
            self._push("double", frame)
        elif character == "'":
            if any(outer.kind in ("double", "document") for outer in self.frames):
                self._lose("a quote inside ${ … }, which dash and bash read differently")
                self.at += 1
            else:
                self._push("single", frame)
        else:
            self._in_expanded(frame, character)

    def _in_backtick(self, _: _Frame, character: str) -> None:
        if character == "`":
            self._pop()
        elif character == "\\":
            self._pass(character)
            if self.at < self.end and self.text[self.at] != GAP:
                self._pass(self.text[self.at])
        else:
            self._pass(character)

    def _in_ansi(self, _: _Frame, character: str) -> None:
        if character == "'":
            self._pop()
        elif character == "\\":
            self._lose("$'…' with a backslash, which dash and bash read differently")
            self.at += 1
        else:
            self._pass(character)

    def _pop(self) -> None:
        self.frames.pop()
        self.at += 1

    def _pass(self, character: str) -> None:
        self.at += 1
        if character == "\n":
            self._note_newline()

    def _note_newline(self) -> None:
        """Handle a newline inside quotes or an expansion."""
        if any(frame.pending for frame in self.frames):
            self._lose("a here-document that was announced before the end of a line in quotes")

    def _lose(self, reason: str) -> None:
        self.unsure = self.unsure or reason
        for frame in self.frames:
            frame.pending.clear()

    # --- here-documents ---------------------------------------------------------------------------------------------

    def _in_document(self, frame: _Frame, character: str) -> None:
        if character == GAP:
            self._slot("document")
        else:
            self._in_expanded(frame, character)

    def _announce(self, frame: _Frame) -> None:
        """Parse `<<END`: the end word, whether it is quoted, and whether tabs are stripped."""
        text = self.text
        self.at += 2
        strips_tabs = text.startswith("-", self.at)
        self.at += strips_tabs
        while self.at < self.end and text[self.at] in " \t":
            self.at += 1
        word, literal = "", False
        while self.at < self.end and text[self.at] not in _END_OF_WORD:
            character = text[self.at]
            if character == GAP:
                raise RefusedGap(self.at, "cannot be the end word of a here-document")
            if character in "$`":
                self._lose("a here-document whose end word contains $ or a backtick")
            if character in "'\"":
                literal = True
                close = text.find(character, self.at + 1, self.end)
                quoted = text[self.at + 1 : close] if close >= 0 else ""
                if close < 0 or GAP in quoted or "\n" in quoted or "\\" in quoted:
                    self._lose("a here-document whose end word cannot be read")
                    return
                word += quoted
                self.at = close + 1
                continue
            if character == "\\":
                literal = True
                self.at += 1
                character = text[self.at : self.at + 1]
                if character in (GAP, "\n", ""):
                    self._lose("a here-document whose end word cannot be read")
                    return
            word += character
            self.at += 1
        frame.pending.append((word, literal, strips_tabs))

    def _end_line(self, frame: _Frame) -> None:
        """At the end of a line of code, parse the here-documents that were announced in it."""
        if any(outer.pending for outer in self.frames if outer is not frame):
            self._lose("a here-document whose line ends inside brackets")
        pending, frame.pending = frame.pending, []
        for word, literal, strips_tabs in pending:
            self._document(word, literal=literal, strips_tabs=strips_tabs)

    def _document(self, word: str, *, literal: bool, strips_tabs: bool) -> None:
        start = self.at
        document = HereDocument(
            word=word, literal=literal, strips_tabs=strips_tabs, start=start, end=self.end, first_slot=0, slots=0
        )
        end, following = self.end, self.end
        position = start
        while position < self.end:
            line_end = self.text.find("\n", position, self.end)
            line_end = self.end if line_end < 0 else line_end
            if ends(self.text[position:line_end], document):
                end, following = position, min(line_end + 1, self.end)
                break
            position = line_end + 1
        body = self.text[start:end]
        first = len(self.slots)
        if literal:
            for _ in range(body.count(GAP)):
                self.at = self.text.index(GAP, self.at)
                self._slot("literal-document")
        else:
            inner = ScriptReader(self.text, start, end, (_Frame("document", start),))
            inner.unsure = self.unsure
            refusing = next((frame.kind for frame in self.frames if frame.kind in _REFUSING), None)
            if refusing is not None and GAP in body:
                raise RefusedGap(start + body.index(GAP), f"{_REFUSING[refusing]}: {_WAY_OUT}")
            inner.read()
            self.slots += inner.slots
            joined = joined_lines(body.split("\n"))
            if inner.unsure or len(inner.frames) > 1 or any(ends(line, document) for line in joined):
                self._lose(inner.unsure or "a here-document that ends before what was opened in it")
            if not ends_evenly(body):
                self._lose("a here-document whose last line ends with a backslash")
        if GAP in body:
            count = len(self.slots) - first
            self.documents.append(msgspec.structs.replace(document, end=end, first_slot=first, slots=count))
        self.at = following
