"""Reads YAML (and so JSON) strictly into a tree of text: no value is guessed, and what is doubtful is refused.

libyaml delivers events; the tree grows from them without recursion. One thing is read more kindly than YAML does: a
name in braces is text wherever it stands. YAML takes the braces in `[sim-{seed}.dat]` for a mapping and gives up, and
reads `[{seed}]` as a mapping of `seed` to nothing, which no document of ours ever means. So before libyaml sees the
text, the braces of every `{name}`, `{name.part}` and `{{name}}` are exchanged, one character for one, for two that the
text does not use, and every value is changed back. Lines and columns stay what they were, and quoted texts, block
scalars and comments notice nothing.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from pilotage.language.text.growth import PROBLEMS_MAX, GrowthStopped, TreeGrowth
from pilotage.language.text.json_text import feed_json, looks_like_json
from pilotage.language.text.scalars import ambiguity
from pilotage.language.text.tree import Mark, Node, Report
from pilotage.language.text.yaml_events import feed_yaml
from pilotage.language.text.yaml_syntax import explain_syntax
from pilotage.language.text.yaml_tabs import lines_led_by_tab, refuse_tabs

if TYPE_CHECKING:
    from yaml.error import YAMLError

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
_SHOWN_MAX = 10


def read_tree(data: bytes, *, file: str) -> tuple[Node | None, Report]:
    """The tree of a YAML or JSON document, and every fault found in its text; it never raises, whatever the bytes.

    Beside faults the tree holds what could be understood, so that more can be checked; it is None where reading stopped.
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
    """Whether a text is JSON from end to end, and if so its tree; faults are noted only for what is JSON."""
    own = Report(report.file, report.lines)
    growth = TreeGrowth(own)
    line_starts = [0, *(found.end() for found in _BREAK.finditer(text))]
    try:
        if not feed_json(text, line_starts=line_starts, growth=growth):
            return False, None
    except GrowthStopped:
        growth.root = None
    report.errors.extend(own.errors)
    return True, growth.root


def _read_yaml(text: str, report: Report) -> Node | None:
    if _unreadable().search(text):
        text = _refuse_unreadable(text, report)
    text, braces = _mask_names(text)
    tab_lines = lines_led_by_tab(report.lines) if "\t" in text else []
    growth = TreeGrowth(report)
    faults_before = len(report.errors)
    try:
        failure = feed_yaml(text, growth=growth, braces=braces, last=_end_of(report))
        if failure is not None:
            growth.abandon()
    except GrowthStopped:
        return None
    explained = bool(tab_lines) and refuse_tabs(text, tab_lines, report=report)
    if failure is None:
        return growth.root
    if not explained and not faults_before:  # an unreadable character explains a syntax error, too
        _refuse_syntax(failure, innermost=growth.innermost, report=report)
    return None


def _unreadable() -> re.Pattern[str]:
    """What no YAML may hold (YAML 1.1, section 5.1); PyYAML has it compiled, which takes a while."""
    from yaml.reader import Reader

    found: re.Pattern[str] = Reader.NON_PRINTABLE
    return found


def _mask_names(text: str) -> tuple[str, tuple[str, str]]:
    """Exchange the braces around names for two characters that the text does not use, given with it (empty: none)."""
    if _NAME_IN_BRACES.search(text) is None:
        return text, ("", "")
    free = [character for character in map(chr, _PRIVATE_USE) if character not in text][:2]
    if len(free) < 2:  # a text that uses all 6,400 of them was not written by a person
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
    """Report characters that YAML forbids, and put a visible one in the place of each so that reading can go on."""
    for found in islice(_unreadable().finditer(text), _SHOWN_MAX):
        name = "a NUL character" if found[0] == "\x00" else f"the control character U+{ord(found[0]):04X}"
        hint = 'remove it; inside double quotes it can be written as an escape, such as "\\x1b"'
        report.error(
            "control-character",
            f"{name} cannot stand in a document",
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
    """The place right after a beginning of the text."""
    lines = _BREAK.split(before)
    return min(Mark(len(lines), len(lines[-1]) + 1), _end_of(report), key=_by_place)


def _lines_of(text: str) -> list[str]:
    """The lines as libyaml counts them."""
    return _BREAK.split(text) if any(mark in text for mark in "\r\x85\u2028\u2029") else text.split("\n")


def _by_place(mark: Mark) -> tuple[int, int]:
    return mark.line, mark.column


def _size(text: str) -> int:
    return len(text.encode("utf-8", errors="surrogateescape"))
