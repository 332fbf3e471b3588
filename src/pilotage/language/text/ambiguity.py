"""Tells unquoted values that other YAML readers would interpret differently.

pilotage keeps every value as text and lets the schema decide its type. YAML 1.1 and 1.2 infer types, and differ; these
rules know their inferences, so that the reader can reject ambiguous texts. Apart from the writer (`emit.py`), whose
regular expressions take longer to compile than all of a small document takes to read.
"""

from __future__ import annotations

import re

from pilotage.language.text.tree import Scalar

_TRUTHS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_NULLS = frozenset({"~", "null", "Null", "NULL"})
_CODED_INTEGER = re.compile(r"[-+]?0(?:x[0-9a-fA-F_]+|o[0-7_]+|b[01_]+)", re.IGNORECASE)
_ZEROS_FIRST = re.compile(r"[-+]?0[0-9_]+(?:\.[0-9_]*)?")
_UNDERSCORED = re.compile(r"[-+]?[0-9][0-9]*_[0-9_]*(?:\.[0-9_]*)?")


def ambiguity(scalar: Scalar) -> str:
    """Why other readers would read an unquoted value differently, and what to write instead; empty if it is clear.

    Sexagesimals such as `1:30:00` and numbers such as `1.10` are not reported, since the schema uses their text.
    """
    if not scalar.plain:
        return ""
    text = scalar.text
    if text == "":
        return 'YAML reads an absent value as null: write it, or "" for an empty text'
    if text in _NULLS:
        return f'YAML reads `{text}` as null: quote it ("{text}"), or leave the key out'
    truth = _TRUTHS.get(text.lower())
    if truth:
        return f'YAML 1.1 reads `{text}` as {truth}: quote it ("{text}"), or write {truth}'
    if not (text[0] in "-+" or text[0].isdigit()):
        return ""
    if _CODED_INTEGER.fullmatch(text):
        return f'YAML reads `{text}` as a number in another base: quote it ("{text}"), or write it in decimal'
    if _ZEROS_FIRST.fullmatch(text):
        return (
            f"YAML 1.1 and 1.2 read the leading zero of `{text}` differently (octal or not): "
            f'quote it ("{text}"), or leave the zero out'
        )
    if _UNDERSCORED.fullmatch(text):
        digits = text.replace("_", "")
        return f'YAML 1.1 reads `{text}` as the number {digits}: quote it ("{text}"), or write {digits}'
    return ""
