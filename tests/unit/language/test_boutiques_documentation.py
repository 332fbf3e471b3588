from __future__ import annotations

import re
from pathlib import Path

CODE = re.compile(r'(?:error|warn|_Fault)\(\s*"([a-z-]+)"|code(?:: str)?="([a-z-]+)"|code: str = "([a-z-]+)"')


def test_every_code_that_boutiques_reports_is_documented_and_no_other(root: Path) -> None:
    sources = (root / "src/pilotage/language/boutiques").glob("*.py")
    used = {next(filter(None, groups)) for source in sources for groups in CODE.findall(source.read_text("utf-8"))}
    text = (root / "docs/reference/boutiques.md").read_text("utf-8")
    refusals = text[text.index("## Refusals") : text.index("## Where we differ")]
    fields = {
        "path-template",
        "conditional-path-template",
        "command-line-flag",
        "value-requires",
        "value-disables",
        "index",
    }
    used |= {"duplicate-key"}  # the common reader of JSON reports it
    named = set(re.findall(r"`([a-z-]+)`", refusals))
    assert named - fields == used - fields
    assert len(used) > 50
