"""JSON and nothing but JSON: what bosh reads. Our own documents may be YAML; a descriptor may not."""

from __future__ import annotations

import json

from pilotage.language.text import yaml
from pilotage.language.text.tree import Mark, Node, Report


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
    return "it holds NaN, an infinity, or half of a surrogate pair", Mark()
