"""The reference pages say what the program does."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

CODE = re.compile(r'(?:\.|_)(?:error|warn|fault|note_fault)\(\s*"([a-z0-9]+(?:-[a-z0-9]+)*)"')
OTHER_CODES = re.compile(r'(?:ListFault\(\s*|yield \(?\s*|return )"([a-z0-9]+(?:-[a-z0-9]+)+)",')
FILE_CODES = re.compile(r'_unreadable\(\s*[^"]*?"([a-z0-9]+(?:-[a-z0-9]+)+)"')
LITERAL = re.compile(r'"([a-z0-9]+(?:-[a-z0-9]+)*)"')

WALK_STEP = re.compile(r"^\| (\d+) \| `([\w/]+\.py)`[^|]* \| `(\w+)` \| [^|]+ \| ([^|]*)\|$", re.MULTILINE)


def generator(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", root / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate(root: Path) -> ModuleType:
    """What writes the generated parts; it reads every module once."""
    return generator(root)


def test_the_generated_parts_of_every_page_are_up_to_date(generate: ModuleType) -> None:
    shown = set()
    for page in generate.PAGES:
        text = page.read_text("utf-8")
        assert "<!-- generated: " in text, page
        shown |= set(re.findall(r"<!-- generated: ([a-z ]+) -->", text))
        assert generate.with_tables(text) == text, f"{page.name}: run make docs"
    assert shown == set(generate.PARTS)


def test_the_picture_of_the_rooms_is_drawn_from_their_imports(generate: ModuleType) -> None:
    assert generate.arrows()["reading"] == {"book", "forecast", "model", "ports"}
    assert "    reading --> ports\n" in generate.drawing()
    assert "    reading --> model\n" not in generate.drawing()


def test_every_step_of_the_walks_is_a_function_of_its_file(root: Path) -> None:
    page = (root / "docs/architecture/walks.md").read_text("utf-8")
    walks = [WALK_STEP.findall(walk) for walk in page.split("\n## ")[1:]]
    assert [len(walk) > 15 for walk in walks] == [True, True]
    for walk in walks:
        assert [int(number) for number, *_ in walk] == list(range(1, len(walk) + 1))
        seen = set()
        for number, file, function, again in walk:
            tree = ast.parse((root / "src/pilotage" / file).read_text("utf-8"))
            functions = {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert function in functions, f"step {number}: {file} has no function {function}"
            assert bool(again.strip()) == (file in seen), f"step {number}: {file} is entered again, or for no reason"
            seen.add(file)


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
