"""What other readers of YAML would make of an unquoted text.

pilotage keeps every value as the text that was written and lets the schema decide. YAML 1.1 and 1.2 guess instead, and
differ; these rules know their guesses, so that readers can refuse the dangerous ones and the writer can quote them.
"""

from __future__ import annotations

import re

from pilotage.language.text.tree import Scalar

_TRUTHS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_NULLS = frozenset({"~", "null", "Null", "NULL"})
_CODED_INTEGER = re.compile(r"[-+]?0(?:x[0-9a-fA-F_]+|o[0-7_]+|b[01_]+)", re.IGNORECASE)
_ZEROS_FIRST = re.compile(r"[-+]?0[0-9_]+(?:\.[0-9_]*)?")
_UNDERSCORED = re.compile(r"[-+]?[0-9][0-9]*_[0-9_]*(?:\.[0-9_]*)?")

# YAML 1.1 (types int, float, timestamp) and the core schema of YAML 1.2, taken together and a little wider than either:
# an unneeded quote costs nothing, a missing one changes a value.
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


def ambiguity(scalar: Scalar) -> str:
    """Why an unquoted value would be another one elsewhere, and what to write instead; empty when it is clear.

    Sexagesimals such as `1:30:00`, and numbers such as `1.10`, are not reported: the schema takes their text.
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


def is_text_everywhere(text: str) -> bool:
    """Whether no version of YAML would read the text, unquoted, as a number, a truth value, a date or null."""
    return text != "" and _OTHER_THAN_TEXT.fullmatch(text) is None
