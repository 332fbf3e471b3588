"""The reference pages say what the program does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

CODE = re.compile(r'(?:\.|_)(?:error|warn|fault|note_fault)\(\s*"([a-z0-9]+(?:-[a-z0-9]+)*)"')
OTHER_CODES = re.compile(r'(?:ListFault\(\s*|yield \(?\s*|return )"([a-z0-9]+(?:-[a-z0-9]+)+)",')
FILE_CODES = re.compile(r'_unreadable\(\s*[^"]*?"([a-z0-9]+(?:-[a-z0-9]+)+)"')
LITERAL = re.compile(r'"([a-z0-9]+(?:-[a-z0-9]+)*)"')


def generator(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", root / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_document_page_are_up_to_date(root: Path) -> None:
    page = (root / "docs/reference/document.md").read_text("utf-8")
    assert generator(root).with_tables(page) == page, "run make docs"


def test_every_code_of_the_language_and_of_its_files_is_explained(root: Path) -> None:
    rooms = ("", "text", "parsing", "expansion")  # the formats explain their own codes
    sources = [path for room in rooms for path in sorted((root / "src/pilotage/language" / room).glob("*.py"))]
    sources += [*(root / "src/pilotage/app/documents").glob("*.py"), *(root / "src/pilotage/cli").rglob("*.py")]
    text = "\n".join(path.read_text("utf-8") for path in sources)
    used = {*CODE.findall(text), *OTHER_CODES.findall(text), *FILE_CODES.findall(text)}
    page = (root / "docs/reference/messages.md").read_text("utf-8")
    explained = set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE))
    assert len(used) > 60
    assert {"is-directory", "no-document", "not-a-file", "not-text", "too-large", "unreadable-file"} <= used
    assert used - explained == set()
    assert explained - set(LITERAL.findall(text)) == set()
