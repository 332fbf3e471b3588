"""Explains syntax errors of libyaml in plain words, with their position and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pilotage.language.text.tree import Mark

if TYPE_CHECKING:
    from yaml.error import YAMLError

_NO_SPACE_AFTER_COLON = re.compile(r"\s*(?:- +)*([\w.\-]+):([^\s:/].*)")
_KEY_AND_VALUE = re.compile(r"\s*(?:- +)*([^\s:#][^:#]*): +(\S.*?)\s*")
_WORD_BEFORE = re.compile(r"[^\s,]*$")
_WORD_AFTER = re.compile(r"(?:[\[{][^\[\]{}]*[\]}])?[^\s,]*")
_SHOWN_CHARACTERS_MAX = 60


class SyntaxProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A syntax error: message, position and hint."""

    message: str
    mark: Mark
    hint: str = ""
    code: str = "syntax"


def explain_syntax(error: YAMLError, *, lines: Sequence[str], innermost: Mark | None) -> SyntaxProblem:
    """Explain an error of libyaml, or of PyYAML's own parser.

    `innermost` is the start of the innermost collection that was open when the parser failed.
    """
    from yaml.error import MarkedYAMLError

    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        first = " ".join(str(error).split())[:200]
        return SyntaxProblem(message=f"not YAML: {first}", mark=Mark(1, 1))
    return _Complaint(error, lines=lines, innermost=innermost).explain()


_Methods = Mapping[str, "Callable[[_Complaint], SyntaxProblem]"]


class _Complaint:
    """One error of the parser with the text around it."""

    def __init__(self, error: Any, *, lines: Sequence[str], innermost: Mark | None) -> None:
        self.problem = str(error.problem or "")
        self.context = str(error.context or "")
        self.lines = lines
        self.innermost = innermost
        self.mark = self._inside(error.problem_mark)
        self.begin = self._inside(error.context_mark) if error.context_mark is not None else self.mark
        line = lines[self.mark.line - 1] if lines else ""
        self.before, self.after = line[: self.mark.column - 1], line[self.mark.column - 1 :]
        self.line = line

    def explain(self) -> SyntaxProblem:
        """Explain the frequent errors; otherwise use libyaml's own message."""
        for sign, method in self._BY_CONTEXT.items():
            if sign in self.context:
                return method(self)
        for sign, method in self._BY_PROBLEM.items():
            if sign in self.problem:
                return method(self)
        for sign, method in self._BY_OUTER_CONTEXT.items():
            if sign in self.context:
                return method(self)
        words = " ".join(f"{self.context} {self.problem}".split())
        return self._here(f"not YAML: {words}" if words else "not YAML")

    def _tag(self) -> SyntaxProblem:
        return self._at_begin("a value that begins with `!` is a tag, and tags are not read", "quote it", code="tag")

    def _block_text(self) -> SyntaxProblem:
        if self.after.startswith("\t"):
            return self._here("a tab is not allowed here; YAML allows only spaces", "indent with spaces", code="tab")
        return self._here(
            "a text after `|` or `>` begins on the next line, indented with spaces",
            "if the value itself begins with that sign, quote it",
        )

    def _list_after_key(self) -> SyntaxProblem:
        return self._here("a list cannot begin here, after its key", "put `- ` on the next line, or write [a, b]")

    def _no_value(self) -> SyntaxProblem:
        sign = self.after[:1]
        opening = self._sign_at(self.innermost) if self.innermost else ""
        if self.innermost and opening in ("[", "{") and self._nothing_follows():
            closing = "]" if opening == "[" else "}"
            message = f"the {'list' if opening == '[' else 'mapping'} opened here with `{opening}` is not closed"
            return SyntaxProblem(message=message, mark=self.innermost, hint=f"close it with `{closing}`")
        if not sign:
            return self._here("a value is missing here")
        return self._here(f"a value cannot begin with `{sign}`", "quote the value, or check the brackets above")

    def _no_item(self) -> SyntaxProblem:
        return self._here(
            f"expected a further `- ` of the list that begins on line {self.begin.line}",
            f"items of one list are in one column, here {self.begin.column}; the key of a list is left of it",
        )

    def _ended(self) -> SyntaxProblem:
        return self._here("the document has already ended here", "check the indentation and the brackets above")

    def _in_quotes(self) -> SyntaxProblem:
        if "end of stream" in self.problem or "document indicator" in self.problem:
            sign = self._sign_at(self.begin) or "quote"
            return self._at_begin(f"the quote opened here with `{sign}` is never closed", f"close it with `{sign}`")
        if "escape" in self.problem or "hex" in self.problem:
            shown = re.match(r"\\(?:[uUx][0-9a-fA-F]{0,8}|.)", self.line[max(0, self.before.rfind("\\")) :])
            found = f" (`{shown[0]}`)" if shown else ""
            return self._here(
                f"not an escape sequence of double quotes{found}",
                "write \\\\ for a backslash, the character itself for any other, or use single quotes",
            )
        return self._here(f"not a quoted text: {self.problem}")

    def _alias_sign(self) -> SyntaxProblem:
        sign = self._sign_at(self.begin)
        meaning = "an alias" if sign == "*" else "an anchor"
        rest = self.lines[self.begin.line - 1][self.begin.column - 1 :]
        word = re.match(r"[^\s,\]}]*", rest)
        return self._at_begin(
            f"an unquoted value that begins with `{sign}` is {meaning} in YAML",
            f"quote it: {_in_quotes(word[0] if word else rest)}",
        )

    def _in_flow(self) -> SyntaxProblem:
        sequence = "flow sequence" in self.context
        opened, what, closing = ("[", "list", "]") if sequence else ("{", "mapping", "}")
        place = f"line {self.begin.line}, column {self.begin.column}"
        rest_is_empty = self._nothing_follows()
        if rest_is_empty or (self.after.startswith((":", "-")) and self.mark.line > self.begin.line):
            end = "" if rest_is_empty else f" before line {self.mark.line}"
            return self._at_begin(
                f"the {what} opened here with `{opened}` is not closed{end}", f"close it with `{closing}`"
            )
        if self.after.startswith(("[", "{")):
            return self._here(
                f"`{self.after[0]}` inside an unquoted value of the {what} opened at {place}",
                f"quote the value: {self._quoted_word()}",
            )
        if self.after[:1] == ":":
            return self._here(f"`: ` inside an unquoted value of the {what} opened at {place}", "quote the value")
        if self.before.rstrip()[-1:] in ("'", '"'):
            return self._after_quote()
        if self.before.rstrip()[-1:] in ("]", "}"):
            return self._here(
                f"text right after `{self.before.rstrip()[-1]}`; expected `,` or `{closing}`",
                f"quote the value, or close the {what} opened at {place}",
            )
        return self._here(f"expected `,` or `{closing}` in the {what} opened at {place}", "separate values with commas")

    def _colon_in_value(self) -> SyntaxProblem:
        found = _KEY_AND_VALUE.fullmatch(self.line)
        if found and ": " in self.before + " " and self.before.count(": "):
            return self._here(
                "`: ` inside an unquoted value",
                f"quote the value: {_cut(found[1])}: {_in_quotes(found[2])}",
            )
        above = next((n for n in range(self.mark.line - 1, 0, -1) if self.lines[n - 1].strip()), 0)
        no_space = _NO_SPACE_AFTER_COLON.fullmatch(self.lines[above - 1]) if above else None
        if no_space:
            message = f"a key is not allowed here: line {above} has no space after its colon"
            return self._here(message, f"write `{_cut(no_space[1])}: {_cut(no_space[2])}` on line {above}")
        return self._here(
            "a key is not allowed here: this line is read as part of the value above it",
            "indent it like its sibling keys; quote the value if the colon is part of a text",
        )

    def _sign_first(self) -> SyntaxProblem:
        sign = self.after[:1]
        if sign == "\t":
            return self._here("a tab is not allowed here; YAML allows only spaces", "use a space", code="tab")
        return self._here(f"an unquoted value cannot begin with `{sign}`", f"quote it: {self._quoted_word()}")

    def _no_colon(self) -> SyntaxProblem:
        line = self.lines[self.begin.line - 1]
        no_space = _NO_SPACE_AFTER_COLON.fullmatch(line)
        if no_space:
            hint = f"write `{_cut(no_space[1])}: {_cut(no_space[2])}`"
            return self._at_begin("expected a key: a space must follow its colon", hint)
        return self._at_begin(
            "expected a key followed by `: `", "a value over several lines is indented more than its key, or quoted"
        )

    def _no_key(self) -> SyntaxProblem:
        last = self.before.rstrip()[-1:]
        if last in ("'", '"') and self.after.strip():
            return self._after_quote()
        if last in ("]", "}") and self.after.strip():
            return self._here(f"text after the closing `{last}`", f"quote the whole value: {self._quoted_value()}")
        if self.after.startswith(("- ", "-\n")) or self.after.rstrip() == "-":
            return self._here(
                f"a list item among the keys of the mapping that begins on line {self.begin.line}",
                "put the item under the key of its list, not left of it",
            )
        if self.after[:1] == ":":
            return self._here(
                "a key is missing before `:`", "write the key; quote the value if the colon is part of it"
            )
        return self._here(
            f"expected a further key of the mapping that begins on line {self.begin.line}",
            f"keys of one mapping are in one column, here {self.begin.column}",
        )

    def _after_quote(self) -> SyntaxProblem:
        return self._here(
            "text after the closing quote",
            "quote the whole value; inside single quotes a quote is written twice ('')",
        )

    def _here(self, message: str, hint: str = "", *, code: str = "syntax") -> SyntaxProblem:
        return SyntaxProblem(message=message, mark=self.mark, hint=hint, code=code)

    def _at_begin(self, message: str, hint: str, *, code: str = "syntax") -> SyntaxProblem:
        return SyntaxProblem(message=message, mark=self.begin, hint=hint, code=code)

    def _nothing_follows(self) -> bool:
        return not self.after.strip() and not any(line.strip() for line in self.lines[self.mark.line :])

    def _sign_at(self, mark: Mark) -> str:
        return self.lines[mark.line - 1][mark.column - 1 : mark.column]

    def _quoted_word(self) -> str:
        """The word at the position, quoted, without brackets that only open the collection."""
        before, after = _WORD_BEFORE.search(self.before), _WORD_AFTER.match(self.after)
        head = (before[0] if before else "").lstrip("[{")
        tail = after[0] if after else ""
        while tail and tail[-1] in "]}" and _surplus(head + tail):
            tail = tail[:-1]
        return _in_quotes(head + tail)

    def _quoted_value(self) -> str:
        found = _KEY_AND_VALUE.fullmatch(self.line)
        return _in_quotes(found[2] if found else self.line.strip())

    def _inside(self, mark: Any) -> Mark:
        """Convert a position of the parser, which counts from 0 and may be past the end."""
        if not self.lines:
            return Mark(1, 1)
        if mark.line >= len(self.lines):
            return Mark(len(self.lines), len(self.lines[-1]) + 1)
        return Mark(mark.line + 1, min(mark.column, len(self.lines[mark.line])) + 1)

    _BY_CONTEXT: ClassVar[_Methods] = {
        " tag": _tag,
        "quoted scalar": _in_quotes,
        "an alias": _alias_sign,
        "an anchor": _alias_sign,
        "flow sequence": _in_flow,
        "flow mapping": _in_flow,
        "block scalar": _block_text,
    }
    _BY_PROBLEM: ClassVar[_Methods] = {
        "tag handle": _tag,
        "mapping values are not allowed": _colon_in_value,
        "sequence entries are not allowed": _list_after_key,
        "cannot start any token": _sign_first,
        "node content": _no_value,
        "could not find expected ':'": _no_colon,
        "<document start>": _ended,
    }
    _BY_OUTER_CONTEXT: ClassVar[_Methods] = {  # the surrounding collection says less than the problem
        "block mapping": _no_key,
        "block collection": _no_item,
        "block sequence": _no_item,
    }


def _surplus(text: str) -> bool:
    """Whether more brackets are closed than opened."""
    return text.count("]") > text.count("[") or text.count("}") > text.count("{")


def _in_quotes(text: str) -> str:
    if len(text) > _SHOWN_CHARACTERS_MAX:
        return '"…"'
    return f"'{text}'" if '"' in text or "\\" in text else f'"{text}"'


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 1] + "…"
