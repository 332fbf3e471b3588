"""Reads YAML and JSON strictly into a tree of texts: types are not inferred, and ambiguous values are rejected.

The tree is built from the events of libyaml. In one point the reader is more lenient than YAML: a name in braces is
always text. YAML reads the braces in `[sim-{seed}.dat]` as a mapping and fails, and reads `[{seed}]` as a mapping of
`seed` to nothing, which no document means. So before libyaml parses the text, the braces of every `{name}`, `{name.part}`
and `{{name}}` are replaced, one character for one, by two characters that the text does not use, and are put back in
every value. Lines and columns stay the same; quoted texts, block scalars and comments are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from pilotage.language.text.ambiguity import ambiguity
from pilotage.language.text.tree import Mark, Node, Report, Scalar
from pilotage.language.text.tree_builder import (
    PROBLEMS_MAX,
    Kind,
    ReadingStopped,
    TreeBuilder,
    feed_json,
    looks_like_json,
)
from pilotage.language.text.yaml_syntax import explain_syntax

if TYPE_CHECKING:
    from yaml.error import YAMLError


# Feeds the events of libyaml to the tree builder.


def feed_yaml(text: str, *, builder: TreeBuilder, braces: tuple[str, str], last: Mark) -> YAMLError | None:
    """Feed the events of libyaml to `builder`; return the syntax error that ended them, or None.

    `braces` are the two characters that replace `{` and `}` in the text, or empty; `last` is the end of the text.
    """
    import yaml  # takes ten milliseconds; commands that read no YAML do without it

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    feed = _Feed(builder, braces=braces, last=last)
    take: dict[type, Callable[[Any], None]] = {
        yaml.ScalarEvent: feed.scalar,
        yaml.MappingStartEvent: feed.mapping,
        yaml.SequenceStartEvent: feed.sequence,
        yaml.MappingEndEvent: feed.end,
        yaml.SequenceEndEvent: feed.end,
        yaml.AliasEvent: feed.alias,
        yaml.DocumentStartEvent: feed.document,
    }
    following, end = loader.get_event, yaml.StreamEndEvent
    try:
        while (kind := type(event := following())) is not end:
            if kind in take:
                take[kind](event)
    except yaml.YAMLError as error:
        return error
    finally:
        loader.dispose()
    feed.finish()
    return None


class _Feed:
    """Handles the events of libyaml, one method for each kind."""

    def __init__(self, builder: TreeBuilder, *, braces: tuple[str, str], last: Mark) -> None:
        self._builder = builder
        self._left, self._right = braces
        self._last = last
        self._documents = 0

    def scalar(self, event: Any) -> None:
        begin, value = event.start_mark, event.value
        mark = Mark(begin.line + 1, begin.column + 1)
        if self._left and self._left in value:
            value = value.replace(self._left, "{").replace(self._right, "}")
        elif not value and mark.line > self._last.line:  # libyaml puts a missing value at the end after the text
            mark = self._last
        if event.tag is not None:
            self._refuse_tag(event.tag, mark)
        self._builder.scalar(Scalar(value, not event.style, mark), anchor=event.anchor)

    def mapping(self, event: Any) -> None:
        self._open("flow" if event.flow_style else "block", event)

    def sequence(self, event: Any) -> None:
        self._open("list", event)

    def end(self, _event: Any) -> None:
        self._builder.close()

    def alias(self, event: Any) -> None:
        self._builder.alias(event.anchor, _mark_of(event))

    def document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            self._builder.fault(
                "several-documents",
                "a second document begins here; a file contains only one",
                _mark_of(event),
                hint="remove the `---` line, or put the second document into a file of its own",
            )
            raise ReadingStopped

    def finish(self) -> None:
        root = self._builder.root
        if root is None or (isinstance(root, Scalar) and root.plain and root.text == ""):
            self._builder.root = None
            self._builder.fault(
                "empty-document",
                "the document is empty",
                Mark(1, 1),
                hint="begin with `pilotage: 1`; `pilotage init` writes a first document",
            )

    def _open(self, kind: Kind, event: Any) -> None:
        mark = _mark_of(event)
        if event.tag is not None:
            self._refuse_tag(event.tag, mark)
        self._builder.open(kind, mark, anchor=event.anchor)

    def _refuse_tag(self, tag: str, mark: Mark) -> None:
        shown = tag.replace("tag:yaml.org,2002:", "!!")[:40]
        self._builder.fault(
            "tag", f"tags such as `{shown}` are not read", mark, hint="leave it out; quote the value if it is a text"
        )


def _mark_of(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


# Finds tabs in the indentation of block style, where YAML requires spaces.
#
# Tabs are allowed inside quoted texts, block scalars, and flow lists and mappings; the events of libyaml tell where
# those are.

_LED_BY_TAB = re.compile(r"( *)\t[ \t]*[^\s#]")
_SHOWN_MAX = 10


def lines_led_by_tab(lines: Sequence[str]) -> list[int]:
    """The numbers, from 1, of lines whose indentation has a tab, without blank lines and comments."""
    return [number for number, line in enumerate(lines, 1) if _LED_BY_TAB.match(line)]


def refuse_tabs(text: str, candidates: Sequence[int], *, report: Report) -> bool:
    """Report the lines that are in block context; True if that explains why the text cannot be parsed."""
    sheltered, known_to, failed_on = _shelters(text)
    wrong = [line for line in candidates if line <= known_to and line not in sheltered]
    if failed_on in candidates and failed_on not in wrong:
        wrong.append(failed_on)
    for number, line in enumerate(wrong[:_SHOWN_MAX]):
        found = _LED_BY_TAB.match(report.lines[line - 1])
        column = len(found[1]) + 1 if found else 1
        more = f"; {len(candidates)} lines have one" if number == 0 and len(candidates) > 1 else ""
        report.error(
            "tab",
            "a tab indents this line; YAML allows spaces only",
            Mark(line, column),
            hint=f"indent with spaces{more}",
        )
    return failed_on in wrong


def _shelters(text: str) -> tuple[set[int], int, int]:
    """The lines that begin inside a quoted text, block scalar or flow collection, and up to which line this is known.

    The third value is the line where parsing failed because of a tab, or 0.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    sheltered: set[int] = set()
    flow_begins: list[int] = []
    known_to = 0
    try:
        while True:
            event = loader.get_event()
            if isinstance(event, yaml.StreamEndEvent):
                return sheltered, len(text), 0
            begin, end = event.start_mark, event.end_mark
            if isinstance(event, yaml.CollectionStartEvent):
                if event.flow_style or flow_begins:
                    flow_begins.append(begin.line)
            elif isinstance(event, yaml.CollectionEndEvent):
                if flow_begins:
                    sheltered.update(range(flow_begins.pop() + 2, end.line + 2))
            elif isinstance(event, yaml.ScalarEvent) and event.style:
                sheltered.update(range(begin.line + 2, end.line + (2 if end.column else 1)))
            if not flow_begins:
                known_to = end.line + (1 if end.column else 0)
    except yaml.MarkedYAMLError as error:
        return sheltered, known_to, _line_of_tab(error, text)
    except yaml.YAMLError:
        return sheltered, known_to, 0
    finally:
        loader.dispose()


def _line_of_tab(error: Any, text: str) -> int:
    problem, mark = error.problem or "", error.problem_mark
    if mark is None:
        return 0
    if "tab character" in problem or "mapping values are not allowed" in problem:
        return int(mark.line) + 1
    if "cannot start any token" in problem and text[mark.index : mark.index + 1] == "\t":
        return int(mark.line) + 1
    return 0


__all__ = ["SIZE_BYTES_MAX", "ambiguity", "read_json", "read_tree"]

SIZE_BYTES_MAX = 32 * 2**20

_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_NOT_UTF8 = re.compile("[\udc80-\udcff]+")
_NAME_IN_BRACES = re.compile(r"\{([ \t]*\w[\w.\-]*[ \t]*)\}")
_NAME_IN_DOUBLE_BRACES = re.compile(r"\{\{([ \t]*\w[\w.\-]*[ \t]*)\}\}")
_PRIVATE_USE = range(0xE000, 0xF900)
_OTHER_ENCODINGS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def read_tree(data: bytes, *, file: str) -> tuple[Node | None, Report]:
    """The tree of a YAML or JSON document, and a report with all faults in its text; never raises.

    If there are faults, the tree contains what could be read, so that more can be checked; it is None if reading stopped.
    """
    if len(data) > SIZE_BYTES_MAX:
        report = Report(file)
        report.error(
            "too-large",
            f"the document has {len(data):,} bytes; at most {SIZE_BYTES_MAX:,} are read",
            hint="iterate with `each` over a range, a CSV column or the lines of a file instead of writing all out",
        )
        return None, report
    text = data.decode("utf-8", errors="surrogateescape").lstrip("\ufeff")
    if _NOT_UTF8.search(text) or _wide_encoding(data):
        return None, _refuse_encoding(data, text, file=file)
    report = Report(file, _lines_of(text))
    read, tree = read_json(text, report) if looks_like_json(text) else (False, None)
    if not read:
        tree = _read_yaml(text, report)
    report.errors.sort(key=lambda problem: (problem.line, problem.column))
    return tree, report


def read_json(text: str, report: Report) -> tuple[bool, Node | None]:
    """Whether a text is entirely JSON, and if so its tree; faults are reported only then."""
    own = Report(report.file, report.lines)
    builder = TreeBuilder(own)
    line_starts = [0, *(found.end() for found in _BREAK.finditer(text))]
    try:
        if not feed_json(text, line_starts=line_starts, builder=builder):
            return False, None
    except ReadingStopped:
        builder.root = None
    report.errors.extend(own.errors)
    return True, builder.root


def _read_yaml(text: str, report: Report) -> Node | None:
    if _unreadable().search(text):
        text = _refuse_unreadable(text, report)
    text, braces = _mask_names(text)
    tab_lines = lines_led_by_tab(report.lines) if "\t" in text else []
    builder = TreeBuilder(report)
    faults_before = len(report.errors)
    try:
        failure = feed_yaml(text, builder=builder, braces=braces, last=_end_of(report))
        if failure is not None:
            builder.abandon()
    except ReadingStopped:
        return None
    explained = bool(tab_lines) and refuse_tabs(text, tab_lines, report=report)
    if failure is None:
        return builder.root
    if not explained and not faults_before:  # an invalid character also explains a syntax error
        _refuse_syntax(failure, innermost=builder.innermost, report=report)
    return None


def _unreadable() -> re.Pattern[str]:
    """The characters that YAML forbids (YAML 1.1, section 5.1), from PyYAML, which takes time to import."""
    from yaml.reader import Reader

    found: re.Pattern[str] = Reader.NON_PRINTABLE
    return found


def _mask_names(text: str) -> tuple[str, tuple[str, str]]:
    """Replace the braces around names by two unused characters; return the text and these, or empty ones if none are."""
    if _NAME_IN_BRACES.search(text) is None:
        return text, ("", "")
    free = [character for character in map(chr, _PRIVATE_USE) if character not in text][:2]
    if len(free) < 2:  # the text uses all 6,400 of them
        return text, ("", "")
    left, right = free
    if "{{" in text:
        text = _NAME_IN_DOUBLE_BRACES.sub(f"{left * 2}\\1{right * 2}", text)
    text = _NAME_IN_BRACES.sub(f"{left}\\1{right}", text)
    return text, (left, right)


def _wide_encoding(data: bytes) -> str:
    for mark, name in _OTHER_ENCODINGS:
        if data.startswith(mark):
            return name
    even, odd = data[0:64:2], data[1:64:2]
    return "UTF-16" if len(data) >= 4 and any(even) != any(odd) else ""


def _refuse_encoding(data: bytes, text: str, *, file: str) -> Report:
    wide = _wide_encoding(data)
    if wide:
        report = Report(file)
        report.error("not-utf8", f"the text is {wide}, not UTF-8", Mark(1, 1), hint="save it as UTF-8")
        return report
    report = Report(file, [_NOT_UTF8.sub("\ufffd", line) for line in _BREAK.split(text)])
    places = [*_NOT_UTF8.finditer(text)]
    for number, found in enumerate(places[:_SHOWN_MAX]):
        byte = ord(found[0][0]) - 0xDC00
        mark = _mark_at(_NOT_UTF8.sub("\ufffd", text[: found.start()]), report)
        more = (
            f" ({len(places) - _SHOWN_MAX} more places are not shown)"
            if number == _SHOWN_MAX - 1 < len(places) - 1
            else ""
        )
        hint = f"save the text as UTF-8; in Latin-1 this byte is {bytes([byte]).decode('latin-1')!r}"
        offset = len(text[: found.start()].encode("utf-8", errors="surrogateescape")) + (len(data) - _size(text))
        report.error("not-utf8", f"byte 0x{byte:02X} at offset {offset} is not UTF-8{more}", mark, hint=hint)
    return report


def _refuse_unreadable(text: str, report: Report) -> str:
    """Report characters that YAML forbids, and replace each by a visible one so that reading can continue."""
    for found in islice(_unreadable().finditer(text), _SHOWN_MAX):
        name = "a NUL character" if found[0] == "\x00" else f"the control character U+{ord(found[0]):04X}"
        hint = 'remove it; inside double quotes it can be written as an escape, such as "\\x1b"'
        report.error(
            "control-character",
            f"{name} is not allowed in a document",
            _mark_at(text[: found.start()], report),
            hint=hint,
        )
    return _unreadable().sub("\ufffd", text)


def _refuse_syntax(failure: YAMLError, *, innermost: Mark | None, report: Report) -> None:
    if len(report.errors) >= PROBLEMS_MAX:
        return
    problem = explain_syntax(failure, lines=report.lines, innermost=innermost)
    last = _end_of(report)
    report.error(problem.code, problem.message, min(problem.mark, last, key=_by_place), hint=problem.hint)


def _end_of(report: Report) -> Mark:
    return Mark(max(1, len(report.lines)), len(report.lines[-1]) + 1 if report.lines else 1)


def _mark_at(before: str, report: Report) -> Mark:
    """The position after the first part of the text."""
    lines = _BREAK.split(before)
    return min(Mark(len(lines), len(lines[-1]) + 1), _end_of(report), key=_by_place)


def _lines_of(text: str) -> list[str]:
    """The lines as libyaml counts them."""
    return _BREAK.split(text) if any(mark in text for mark in "\r\x85\u2028\u2029") else text.split("\n")


def _by_place(mark: Mark) -> tuple[int, int]:
    return mark.line, mark.column


def _size(text: str) -> int:
    return len(text.encode("utf-8", errors="surrogateescape"))
