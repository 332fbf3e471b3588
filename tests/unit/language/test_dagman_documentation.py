"""The reference page of DAGMan lists every keyword of a loss report and every code, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilotage.language.formats.dagman.parser import KEYWORDS
from pilotage.language.formats.dagman.values import DOCUMENTED_LOSSES
from pilotage.language.formats.dagman.writer import DOCUMENTED_EXPORT_LOSSES

_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
_CODE = re.compile(r"(?:error|warn|Fault)\(\s*\"([a-z0-9-]+)\"")
_BUILT = {"unknown-node", "unknown-splice"}  # made of a prefix and a kind


@pytest.fixture(scope="module")
def sections(root: Path) -> dict[str, str]:
    """The parts of the page by their titles."""
    page = (root / "docs" / "reference" / "dagman.md").read_text("utf-8")
    return {part.split("\n", 1)[0]: part for part in page.split("\n## ")}


def test_every_loss_of_an_import_is_listed(sections: dict[str, str]) -> None:
    assert set(_ROW.findall(sections["What is lost on import"])) == DOCUMENTED_LOSSES


def test_every_loss_of_an_export_is_listed(sections: dict[str, str]) -> None:
    assert set(_ROW.findall(sections["Export"])) == DOCUMENTED_EXPORT_LOSSES


def test_every_code_is_listed(sections: dict[str, str], root: Path) -> None:
    sources = (root / "src" / "pilotage" / "language" / "formats" / "dagman").glob("*.py")
    used = {code for path in sources for code in _CODE.findall(path.read_text("utf-8"))} | _BUILT
    assert set(_ROW.findall(sections["Codes"])) == used


def test_every_command_of_a_dag_file_is_told_of(sections: dict[str, str]) -> None:
    page = sections["Import"] + sections["What is lost on import"]
    assert [k for k in sorted(KEYWORDS) if k not in page and k.replace("_", "-") not in page] == []
