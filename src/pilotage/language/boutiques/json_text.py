"""JSON and nothing but JSON: what bosh reads. Our own documents may be YAML; a descriptor may not."""

from __future__ import annotations

import json
import re

from pilotage.language.text import yaml
from pilotage.language.text.tree import Mark, Node, Report

# Texts are passed over, so that what is found stands outside them; half a pair is found in the text that holds it.
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_STRANGE = re.compile(
    rf"""(?P<half>"(?:{_PAIR}|\\(?!u[dD][89a-fA-F])[^\n]|[^"\\\n])*\\u[dD][89a-fA-F][0-9a-fA-F]{{2}})
    |"(?:\\.|[^"\\])*"|(?P<constant>-?Infinity|NaN)""",
    re.VERBOSE,
)
_WORDS = {"half": "a text holds half of a surrogate pair", "constant": "{} is no number of it"}


def read_json(text: str, report: Report) -> Node | None:
    """The nodes of a JSON text; the first fault of its grammar, and every key given twice, are reported."""
    is_json, node = yaml.read_json(text, report)
    if not is_json:
        message, mark = _explain(text)
        report.error("not-json", f"this is no JSON: {message}", mark)
    return node


def _explain(text: str) -> tuple[str, Mark]:
    """What the standard library says about a text that is no JSON, and where."""
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as fault:
        return fault.msg.lower(), Mark(fault.lineno, fault.colno)
    except RecursionError:
        return "it is nested too deep and not closed", Mark()
    for found in _STRANGE.finditer(text):
        if found.lastgroup:
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - (text.rfind("\n", 0, found.start()) + 1) + 1
            return _WORDS[found.lastgroup].format(found[0]), Mark(line, column)
    return "it is not what JSON allows", Mark()
