"""Text on its way into PostgreSQL and back: a NUL, which PostgreSQL can keep in no text and in no JSON, is written otherwise.

People and programs do write NULs, into what they print and into tags. A NUL is stored as SUB and `0`, a SUB, which nobody
writes, as SUB and `1`: what is read back is exactly what was said, and equal texts stay equal.
"""

from __future__ import annotations

import re

_NUL, _SUB = "\x00", "\x1a"
_SPELT = {_NUL: _SUB + "0", _SUB: _SUB + "1"}
_MEANT = {spelt: meant for meant, spelt in _SPELT.items()}
_TO_SPELL = re.compile("[\x00\x1a]")
_TO_READ = re.compile("\x1a[01]")
# In JSON both are escapes already. An even number of backslashes before one are themselves escaped.
_JSON_TO_SPELL = re.compile(r"(?<!\\)((?:\\\\)*)\\u(0000|001[aA])")
_JSON_TO_READ = re.compile(r"(?<!\\)((?:\\\\)*)\\u(001[aA])([01])")


def stored_text(text: str) -> str:
    """A text as it is stored."""
    if _NUL in text or _SUB in text:
        return _TO_SPELL.sub(lambda found: _SPELT[found[0]], text)
    return text


def told_text(stored: str) -> str:
    """The text that was stored."""
    return _TO_READ.sub(lambda found: _MEANT[found[0]], stored) if _SUB in stored else stored


def stored_json(text: str) -> str:
    """A JSON text as it is stored: the same document, whose strings are stored texts."""
    if "\\u00" not in text:
        return text
    return _JSON_TO_SPELL.sub(lambda found: found[1] + ("\\u001a0" if found[2] == "0000" else f"\\u{found[2]}1"), text)


def told_json(stored: str) -> str:
    """The JSON text that was stored."""
    if "\\u001" not in stored:
        return stored
    return _JSON_TO_READ.sub(lambda found: found[1] + ("\\u0000" if found[3] == "0" else f"\\u{found[2]}"), stored)
