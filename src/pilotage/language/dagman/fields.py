"""The values of submit commands: argument and environment quoting, lists, sizes. A text in return says what is wrong."""

from __future__ import annotations

import re

import msgspec

_SPACE = " \t\r\n\v\f"
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGTP]?)(B?)", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


class Wrong(msgspec.Struct, frozen=True):
    """What is wrong with a value."""

    message: str


def split_arguments(text: str) -> tuple[str, ...] | Wrong:
    """The arguments of either syntax: in double quotes the new one, else the old one."""
    text = text.strip(_SPACE)
    if not text.startswith('"'):
        return _split_old(text)
    inner = unquoted(text)
    return inner if isinstance(inner, Wrong) else split_quoted(inner)


def _split_old(text: str) -> tuple[str, ...] | Wrong:
    bare = text.replace('\\"', "\0")
    if '"' in bare:
        return Wrong('expected \\" for a double quote, or the whole value in double quotes')
    return tuple(word.replace("\0", '"') for word in bare.split())


def unquoted(text: str) -> str | Wrong:
    """A value in double quotes without them; `""` inside stands for one."""
    if len(text) < 2 or not text.endswith('"'):
        return Wrong("expected a double quote at the end, as at the beginning")
    inner = text[1:-1].replace('""', "\0")
    if '"' in inner:
        return Wrong('expected "" for a double quote inside the value')
    return inner.replace("\0", '"')


def split_quoted(text: str) -> tuple[str, ...] | Wrong:
    """Words in which single quotes hold white space together and `''` inside them stands for one quote."""
    words: list[str] = []
    word: list[str] | None = None
    at, quoted = 0, False
    while at < len(text):
        character = text[at]
        if quoted and character == "'" and text.startswith("''", at):
            word = _appended(word, "'")
            at += 1
        elif character == "'":
            quoted = not quoted
            word = [] if word is None else word
        elif character in _SPACE and not quoted:
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = _appended(word, character)
        at += 1
    if quoted:
        return Wrong("expected a closing single quote")
    if word is not None:
        words.append("".join(word))
    return tuple(words)


def _appended(word: list[str] | None, character: str) -> list[str]:
    if word is None:
        return [character]
    word.append(character)
    return word


def join_arguments(arguments: tuple[str, ...]) -> str:
    """The arguments in the new syntax, as they stand between its double quotes."""
    words = [
        word if word and not set(word) & set(_SPACE + "'") else "'" + word.replace("'", "''") + "'"
        for word in arguments
    ]
    return " ".join(words).replace('"', '""')


def split_environment(text: str) -> dict[str, str] | Wrong:
    """The variables of either syntax: in double quotes the new one, else `A=1;B=2`."""
    text = text.strip(_SPACE)
    if text.startswith('"'):
        inner = unquoted(text)
        words = inner if isinstance(inner, Wrong) else split_quoted(inner)
    else:
        words = tuple(part.strip() for part in text.split(";") if part.strip())
    if isinstance(words, Wrong):
        return words
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            return Wrong(f"expected NAME=VALUE, found {word!r}")
        found[name] = value
    return found


def split_list(text: str) -> tuple[str, ...]:
    """The items of a list with commas."""
    text = text.strip(_SPACE)
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return tuple(item.strip(_SPACE) for item in text.split(",") if item.strip(_SPACE))


def split_remaps(text: str) -> dict[str, str] | Wrong:
    """`"a = b; c = d"` as a mapping; a backslash protects `;` and `=`."""
    text = text.strip(_SPACE)
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    found: dict[str, str] = {}
    for part in re.split(r"(?<!\\);", text):
        if not part.strip():
            continue
        sides = re.split(r"(?<!\\)=", part, maxsplit=1)
        if len(sides) != 2:
            return Wrong(f"expected NAME = NEW_NAME, found {part.strip()!r}")
        name, target = (re.sub(r"\\([;=])", r"\1", side).strip() for side in sides)
        found[name] = target
    return found


def size_bytes(text: str, *, unit: int) -> int | None:
    """A size in bytes; a bare number counts in `unit`. None for an expression that only HTCondor can work out."""
    found = _SIZE.fullmatch(text.strip(_SPACE))
    if found is None:
        return None
    power = found[2].upper()
    factor = 1024 ** _POWERS[power] if power else 1 if found[3] else unit
    return int(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor


def is_yes(text: str) -> bool | None:
    """A truth value, or None for an expression."""
    lower = text.strip(_SPACE).lower()
    if lower in ("true", "yes", "t", "y", "1"):
        return True
    return False if lower in ("false", "no", "f", "n", "0", "") else None
