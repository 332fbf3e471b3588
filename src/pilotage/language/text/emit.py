"""Writes plain data as YAML that all YAML readers understand in the same way.

A text is written unquoted only if our own loader, YAML 1.1 and YAML 1.2 all read it back as the same text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

# The union of YAML 1.1 (types int, float, timestamp) and the core schema of YAML 1.2, and a little more: an unneeded
# quote costs nothing, a missing one changes a value.
_OTHER_THAN_TEXT = re.compile(
    r"""
      ~ | null | true | false | yes | no | on | off | y | n | = | <<
    | [-+]? 0x [0-9a-f_]+ | [-+]? 0o [0-7_]+ | [-+]? 0b [01_]+
    | [-+]? \.? [0-9] [0-9_]* (?: \. [0-9_]* )? (?: e [-+]? [0-9]+ )?
    | [-+]? [0-9] [0-9_]* (?: : [0-9]{1,2} )+ (?: \. [0-9_]* )?
    | [-+]? \. (?: inf | nan )
    | [0-9]{4} - [0-9]{1,2} - [0-9]{1,2} (?: (?: t | [ \t]+ ) [0-9: .+\-tz]* )?
    """,
    re.IGNORECASE | re.VERBOSE,
)


def is_text_everywhere(text: str) -> bool:
    """Whether no version of YAML reads the unquoted text as a number, a truth value, a date or null."""
    return text != "" and _OTHER_THAN_TEXT.fullmatch(text) is None


COLUMNS_MAX = 100
_STEP = 2
_SIMPLE_KEY_CHARACTERS_MAX = 1000  # YAML allows longer keys only after a `?`

_NOT_ON_ONE_LINE = re.compile("[^ -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_NOT_IN_LITERAL = re.compile("[^\t\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_PLAIN = re.compile(r"""(?:[^\s\-?:,\[\]{}#&*!|>'"%@`]|-(?=[^\s,\[\]{}]))(?:[^\s]|\s(?![#\s]))*(?<![:\s])""")
_PLAIN_IN_FLOW = re.compile(
    r"""(?:[^\s\-?:,\[\]{}#&*!|>'"%@`]|-(?=[^\s,\[\]{}]))(?:[^\s,\[\]{}?#:]|:(?=\w)|[ ](?![#\s]))*(?<!\s)"""
)
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\x00": "\\0"}


def write_yaml(value: object) -> str:
    """Mappings, sequences, texts, numbers, truth values and None as YAML, in block style and in the given order."""
    lines: list[str] = []
    _write(value, head="", indent=0, lines=lines)
    return "\n".join(lines) + "\n"


def _write(value: object, *, head: str, indent: int, lines: list[str]) -> None:
    """Append a value; `head` is the beginning of its line: the indentation, and `- ` or a key with its colon."""
    line = _on_one_line(value, head=head)
    if line is not None:
        lines.append(line)
    elif isinstance(value, str):
        _write_literal(value, head=head, indent=indent, lines=lines)
    elif isinstance(value, Mapping):
        _write_mapping(value, head=head, indent=indent, lines=lines)
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        _write_sequence(value, head=head, indent=indent, lines=lines)
    else:
        raise TypeError(f"a document can contain text, numbers, lists and mappings, not {type(value).__name__}")


def _write_mapping(value: Mapping[object, object], *, head: str, indent: int, lines: list[str]) -> None:
    if head and not head.endswith("- "):
        lines.append(head.rstrip(" "))
        head = ""
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"the keys of a document are texts, not {type(key).__name__}")
        start = head or " " * indent
        head = ""
        written = _quoted(key) if "\n" in key else _scalar(key)
        if len(written) > _SIMPLE_KEY_CHARACTERS_MAX:
            lines.append(f"{start}? {written}")
            start, written = " " * indent, ""
        _write(item, head=f"{start}{written}: ", indent=indent + _STEP, lines=lines)


def _write_sequence(value: Sequence[object], *, head: str, indent: int, lines: list[str]) -> None:
    if head and not head.endswith("- "):
        lines.append(head.rstrip(" "))
        head = ""
    for item in value:
        start = head or " " * indent
        head = ""
        _write(item, head=f"{start}- ", indent=indent + _STEP, lines=lines)


def _write_literal(text: str, *, head: str, indent: int, lines: list[str]) -> None:
    body = text.rstrip("\n")
    ends = len(text) - len(body)
    chomping = "-" if ends == 0 else "" if ends == 1 else "+"
    margin = " " * max(indent, _STEP)
    lines.append(f"{head}|{chomping}")
    lines.extend(margin + line if line else "" for line in body.split("\n"))
    lines.extend([""] * (ends - 1))


def _on_one_line(value: object, *, head: str) -> str | None:
    """The line of a value, or None if it does not fit on one."""
    if isinstance(value, str):
        return None if _fits_literal(value) else head + _scalar(value)
    if value is None or isinstance(value, (bool, int, float)):
        return head + _scalar(value)
    if isinstance(value, Mapping):
        return head + "{}" if not value else None
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return _flow_list(value, head=head)
    return None


def _flow_list(value: Sequence[object], *, head: str) -> str | None:
    width = len(head) + 2
    parts: list[str] = []
    for item in value:
        if not (item is None or isinstance(item, (str, bool, int, float))) or (isinstance(item, str) and "\n" in item):
            return None
        part = _scalar_in_flow(item)
        width += len(part) + 2
        if width - 2 > COLUMNS_MAX:
            return None
        parts.append(part)
    return f"{head}[{', '.join(parts)}]"


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return value if _is_plain(value, _PLAIN) else _quoted(value)
    return _literal_of(value)


def _scalar_in_flow(value: object) -> str:
    if isinstance(value, str):
        return value if _is_plain(value, _PLAIN_IN_FLOW) else _quoted(value)
    return _literal_of(value)


def _literal_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return ".nan"
        if math.isinf(value):
            return ".inf" if value > 0 else "-.inf"
        # YAML 1.1 reads a number with an exponent as text unless it has a point and a sign.
        written = repr(float(value))
        return written.replace("e", ".0e") if "e" in written and "." not in written else written
    assert isinstance(value, int)
    return repr(int(value))


def _is_plain(text: str, pattern: re.Pattern[str]) -> bool:
    return (
        pattern.fullmatch(text) is not None
        and _NOT_ON_ONE_LINE.search(text) is None
        and ": " not in text
        and not text.startswith(("---", "..."))
        and is_text_everywhere(text)
    )


def _quoted(text: str) -> str:
    if _NOT_ON_ONE_LINE.search(text) is None and "'" not in text and ("\\" in text or '"' in text):
        return f"'{text}'"
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return f'"{_NOT_ON_ONE_LINE.sub(_escape, escaped)}"'


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _fits_literal(text: str) -> bool:
    """Whether a literal block preserves the text exactly: it has several lines, and none of spaces only."""
    if "\n" not in text or _NOT_IN_LITERAL.search(text) or text[0] in " \t\n":
        return False
    return not any(line.isspace() for line in text.split("\n"))
