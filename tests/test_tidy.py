"""The house rules, held over the whole tree, and a proof for each rule that it can fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.model.jobs import definition
from pilotage.model.resources import BESIDES_CORES
from pilotage.model.settings import settings
from pilotage.model.settings.package_settings import PACKAGE_SETTINGS
from pilotage.model.version import VERSION
from tests.kit import tidy
from tests.kit.field_readers import readers_of
from tests.kit.import_circles import circle

ROOT = Path(__file__).resolve().parent.parent
LEFT_BY_TOOLS = re.compile(r"\.(?!ci$|gitignore$).*|__pycache__|build|dist|.*\.egg-info")

# The only modules of pure layers that may touch the disk: they implement the port that the rest is given.
EDGES = {"src/pilotage/language/folder.py"}
PURE = (
    "src/pilotage/model/",
    "src/pilotage/language/",
    "src/pilotage/book/",
    "src/pilotage/engine/",
    "src/pilotage/forecast/",
    "src/pilotage/service/core.py",
    "src/pilotage/ports/",
)


@cache
def tree() -> dict[str, str]:
    """The text of every file that is or would be under version control."""
    texts = {}
    for path in sorted(_paths()):
        file = ROOT / path
        if file.is_file() and b"\0" not in (content := file.read_bytes()):
            texts[path] = content.decode("utf-8", errors="replace")
    return texts


def _paths() -> Iterable[str]:
    if (ROOT / ".git").exists() and (git := shutil.which("git")):
        command = [git, "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [path for path in listed.stdout.split("\0") if path]
    # An unpacked archive: everything but what tools leave behind.
    files = (file.relative_to(ROOT) for file in ROOT.rglob("*") if file.is_file())
    return [str(file) for file in files if not any(LEFT_BY_TOOLS.fullmatch(part) for part in file.parts)]


def python(*folders: str) -> dict[str, str]:
    """The Python files below some folders."""
    return {path: text for path, text in tree().items() if path.endswith(".py") and path.startswith(folders)}


def pyproject() -> dict[str, Any]:
    """The project's own description."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def obey(faults: list[str]) -> None:
    """Fail with every place that breaks a rule."""
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_the_tree_is_seen_at_all() -> None:
    assert {"pyproject.toml", "src/pilotage/__init__.py", "tests/test_tidy.py"} <= tree().keys()


def test_pure_layers_touch_nothing_outside() -> None:
    obey(tidy.impurities({path: text for path, text in python(*PURE).items() if path not in EDGES}))


@pytest.mark.parametrize(
    "snippet",
    [
        "import time",
        "import os.path",
        "import concurrent.futures",
        "from os import path",
        "from random import Random",
        "from urllib import request",
        "from pathlib import Path",
        "import pathlib\npathlib.Path('x').read_text()",
        "import numpy as np\nnp.random.default_rng()",
        "from numpy import random",
        "import sys\nsys.stdin.read()",
        "open('x')",
        "def inner():\n    import socket",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.date.today()",
    ],
)
def test_an_impurity_is_seen(snippet: str) -> None:
    assert tidy.impurities({"bad.py": snippet})


@pytest.mark.parametrize(
    "snippet",
    [
        "from datetime import datetime\ndatetime.fromisoformat('2024-01-01T00:00:00Z')",
        "from pathlib import PurePosixPath",
        "from urllib.parse import urlsplit",
        "import io\nio.StringIO('x')",
        "import numpy as np\nnp.zeros(3)",
    ],
)
def test_a_pure_module_is_left_alone(snippet: str) -> None:
    assert tidy.impurities({"good.py": snippet}) == []


def test_files_are_short() -> None:
    obey(tidy.too_long(python("src/"), lines_max=600) + tidy.too_long(python("tests/", "bench/"), lines_max=600))


def test_a_long_file_is_seen() -> None:
    assert tidy.too_long({"a.py": "\n" * 3, "b.py": "\n" * 2}, lines_max=2) == [
        "a.py:3: 3 lines, at most 2: a file is one idea"
    ]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(python("src/")) == []


def test_a_circle_is_seen() -> None:
    lazily = "def look() -> None:\n    from house import cellar\n"
    for_types = "if TYPE_CHECKING:\n    from house.roof import Tile\n"
    tree = {"src/house/__init__.py": "", "src/house/roof.py": lazily, "src/house/cellar.py": for_types}
    assert circle(tree) in (
        ["house.roof", "house.cellar", "house.roof"],
        ["house.cellar", "house.roof", "house.cellar"],
    )
    assert circle(tree | {"src/house/cellar.py": "import os\n"}) == []


def test_no_tool_left_its_drafts_behind() -> None:
    obey([f"{path}:1: left behind by a tool" for path in tree() if path.endswith((".orig", ".rej", ".bak", "~"))])


def test_nothing_is_left_for_later() -> None:
    obey(tidy.leftovers({path: text for path, text in tree().items() if not path.endswith(".md")}))


def test_a_leftover_is_seen() -> None:
    assert len(tidy.leftovers({"a.py": "x = 1\n# TO" + "DO: y\n", "b.py": "mkdtemp('XXXXXX')"})) == 1


def test_every_folder_says_in_a_sentence_what_it_hides() -> None:
    obey(tidy.folders_without_sentence(python("src/")))


def test_a_silent_or_riddling_folder_is_seen() -> None:
    good = {"x/__init__.py": '"""Keeps one thing."""', "x/y.py": ""}
    assert tidy.folders_without_sentence(good) == []
    for bad in ("", '"""One two three"""', '"""Things."""', '"""What follows from that."""'):
        assert tidy.folders_without_sentence(good | {"x/z/__init__.py": bad})


def test_a_folder_has_few_modules() -> None:
    obey(tidy.crowded(python("src/"), modules_max=16))


def test_a_crowded_folder_is_seen() -> None:
    tree = {"x/__init__.py": "", "x/a.py": "", "x/b.py": "", "x/c/__init__.py": "", "x/c/d.py": ""}
    assert tidy.crowded(tree, modules_max=2) == []
    assert tidy.crowded(tree, modules_max=1) == ["x/__init__.py:1: 2 modules, at most 1: a folder is one room"]


def test_a_folder_names_the_modules_that_others_use() -> None:
    obey(tidy.closed_doors(python("src/")))


def test_a_closed_door_is_seen() -> None:
    tree = {
        "src/house/__init__.py": "__all__ = ['cellar', 'roof']",
        "src/house/roof.py": "from house.cellar import wine",
        "src/house/cellar/__init__.py": "__all__ = ['wine']",
        "src/house/cellar/wine.py": "from house.cellar import rats",
        "src/house/cellar/rats.py": "",
        "src/face/__init__.py": "from house.roof import tile\n__all__ = ['tile']",
    }
    assert tidy.closed_doors(tree) == []
    door = "src/house/cellar/__init__.py"
    assert tidy.closed_doors(tree | {door: "__all__ = []"}) == [
        f"{door}:1: others import wine, so __all__ names it, or they import another"
    ]
    assert tidy.closed_doors(tree | {door: "__all__ = ['beer', 'wine']"}) == [
        f"{door}:1: __all__ names beer, and there is no such module"
    ]
    assert tidy.closed_doors(tree | {door: ""}) == [
        f"{door}:1: the folder has no __all__: it names the modules that others may use"
    ]


def test_every_file_that_the_architecture_names_is_there() -> None:
    told = ("docs/ARCHITECTURE.md", "docs/architecture/", "docs/decisions.md", "CONTRIBUTING.md")
    obey(tidy.missing_files({path: text for path, text in tree().items() if path.startswith(told)}, tree()))


def test_a_missing_file_is_seen() -> None:
    paths = ["src/pilotage/cellar/wine.py", "tests/roof/tile.py"]
    good = "`cellar/wine.py`, `src/pilotage/cellar/wine.py`, `cellar/`, `tests/roof/`, `__init__.py` and `yaml`"
    assert tidy.missing_files({"p.md": good}, paths) == []
    bad = "`wine.py`, `beer.py`, `roof/`, `roof/tile.py`"
    assert len(tidy.missing_files({"p.md": bad}, paths)) == 4


def test_no_module_has_a_riddle_for_a_name() -> None:
    obey(tidy.riddles(python("src/", "tests/kit/")))


def test_a_riddle_is_seen() -> None:
    assert len(tidy.riddles({"x/aftermath.py": "", "x/publishing.py": "", "x/desk/y.py": ""})) == 1


def test_every_word_of_the_glossary_is_used() -> None:
    used = {path: text for path, text in tree().items() if path.startswith(("src/", "docs/"))}
    glossary = used.pop("docs/GLOSSARY.md")
    obey(tidy.unused_words(glossary, used))


def test_a_word_that_nobody_uses_is_seen() -> None:
    glossary = "| Word | Meaning |\n|---|---|\n| bound mode, spool | x |\n| gizmo | y |\n"
    assert tidy.unused_words(glossary, {"a.py": "class Spool: ...\nbound_mode = gizmos = 1"}) == []
    assert len(tidy.unused_words(glossary, {"a.py": "spooled, gizmology"})) == 3


def test_everything_public_is_documented() -> None:
    obey(tidy.undocumented({p: text for p, text in python("src/", "bench/").items() if not p.endswith("__init__.py")}))


def test_a_missing_docstring_is_seen() -> None:
    bad = '"""M."""\nclass A:\n    """A."""\n    def b(self): ...\n    def _c(self): ...\nasync def d(): ...\nclass E: ...'
    assert [fault.split()[1] for fault in tidy.undocumented({"bad.py": bad})] == ["b", "d", "E"]


def test_everything_public_is_typed() -> None:
    obey(tidy.untyped(python("src/", "bench/")))


def test_a_missing_type_is_seen() -> None:
    bad = "def f(a, *b: int, c=1) -> None: ...\nclass A:\n    def g(self): ..."
    assert tidy.untyped({"bad.py": bad}) == [
        "bad.py:1: f has no type for a, c",
        "bad.py:3: g has no type for the result",
    ]


def test_no_path_of_one_machine() -> None:
    obey(tidy.machine_paths(tree()))


def test_a_machine_path_is_seen() -> None:
    assert len(tidy.machine_paths({"a": "see /wo" + "rk/x and '/ro" + "ot/y'", "b": "net/work/x, ./root/y"})) == 2


def test_no_package_index_is_named() -> None:
    obey(tidy.index_hosts(tree()))


@pytest.mark.parametrize(
    "line", ["https://py" + "pi.org", "http://mirror.example/si" + "mple/", "pip --index" + "-url x"]
)
def test_a_package_index_is_seen(line: str) -> None:
    assert tidy.index_hosts({"a": line})


def test_only_ci_names_the_reference_folder() -> None:
    obey(tidy.reference_folders({path: text for path, text in tree().items() if path != ".ci/run"}))


def test_a_reference_folder_is_seen() -> None:
    assert tidy.reference_folders({"a": "open('../shared" + "/data/x')"})


def test_nobody_says_task() -> None:
    # WfFormat's own key is "tasks"; there, and only there, the word is right.
    obey(tidy.said_task({path: text for path, text in python("src/").items() if "wfformat" not in path}))


def test_a_task_is_seen() -> None:
    bad = "class TaskList: ...\ndef run_task(tasks): ...\nx.task = 1\nf(task=2)\nmultitasking = 3"
    assert len(tidy.said_task({"bad.py": bad})) == 5


def test_tests_do_not_sleep() -> None:
    obey(tidy.sleeps(python("tests/")))


def test_a_sleeping_test_is_seen() -> None:
    assert tidy.sleeps({"bad.py": "import time\ntime.sleep(1)"})


def test_every_version_is_pinned() -> None:
    project = pyproject()
    required = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        required += [requirement for requirement in extra if not requirement.startswith("pilotage[")]
    obey(tidy.unpinned((ROOT / "constraints.txt").read_text(), required=required))


def test_a_loose_version_is_seen() -> None:
    assert len(tidy.unpinned("a==1.0\nb>=2\n--pre\n", required=["A>=1", "c"])) == 3


def test_every_part_of_the_house_has_a_contract() -> None:
    house = ROOT / "src" / "pilotage"
    modules = {file.stem for file in house.glob("*.py")} - {"__init__", "__main__"}
    packages = {folder.parent.name for folder in house.glob("*/*.py")}
    obey(tidy.strangers(sorted(modules | packages), contracts=pyproject()["tool"]["importlinter"]["contracts"]))


def test_a_part_without_contract_is_seen() -> None:
    contracts: list[dict[str, object]] = [
        {"layers": ["cli", "app | client", "(book)", "model"]},
        {"protected_modules": ["pilotage.app", "pilotage.book"]},
    ]
    assert tidy.strangers(["app", "book", "client", "engine", "model"], contracts=contracts) == [
        "pyproject.toml:1: engine is in no layer of the import contracts",
        "pyproject.toml:1: no protected contract says who may import client",
    ]


def test_the_changelog_speaks_of_this_version() -> None:
    changelog = tree().get("CHANGELOG.md", "")
    assert VERSION in changelog or "Unreleased" in changelog


# What reads a document, checks it, draws it or writes it in another format honours nothing of it; nor do tables of it.
READS_ONLY = (
    "parsing/",
    "formats/",
    "boutiques/",
    "drawing/",
    "text/",
    "builder.py",
    "expansion/advice.py",
)
NO_READERS = (
    *(f"src/pilotage/language/{each}" for each in READS_ONLY),
    *(f"src/pilotage/{each}/" for each in ("simulator", "agent", "book", "client")),
)
PACKAGE_SETTINGS_TABLE = "src/pilotage/model/settings/package_settings.py"
TABLES = ("src/pilotage/model/jobs/definition.py", PACKAGE_SETTINGS_TABLE, "src/pilotage/model/settings/layers.py")
# Whose other values are refused by name where the text is read: language/parsing/document.py.
REFUSED_WHEN_READ = {("Definition", "pilotage")}
# Which `language.job_plan` reads by their names in the table of kinds: each is tried in tests/unit/language/test_planning.py.
READ_BY_THE_TABLE = {("Resources", kind.name) for kind in BESIDES_CORES}


@cache
def fields() -> dict[tuple[str, str], list[str]]:
    """Every field of the document and every setting of the program, and where it is read."""
    records = [each for each in vars(definition).values() if _is_record(each, definition.Value)]
    records += settings.SECTIONS.values()
    texts = {path: text for path, text in python("src").items() if not path.startswith(NO_READERS)}
    readers = readers_of(texts, [each.__name__ for each in records])
    return {
        (record.__name__, field.name): [
            place for place in readers.get((record.__name__, field.name), []) if not place.startswith(TABLES)
        ]
        for record in records
        for field in msgspec.structs.fields(record)
    }


def _is_record(found: object, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base) and found is not base


@pytest.mark.parametrize("path", [*NO_READERS, *TABLES])
def test_what_counts_as_no_reader_is_there(path: str) -> None:
    assert any(each.startswith(path) for each in python("src")), "it was moved, and counts as a reader now"


def test_every_field_of_the_document_and_every_setting_is_read_somewhere() -> None:
    known = REFUSED_WHEN_READ | READ_BY_THE_TABLE
    unread = [name for name, places in fields().items() if not places and name not in known]
    assert unread == [], "a field that nothing reads is a lie: honour it, or refuse it by name"


def test_every_setting_of_a_package_is_read_somewhere() -> None:
    texts = [text for path, text in python("src").items() if path != PACKAGE_SETTINGS_TABLE]
    unread = [name for name in PACKAGE_SETTINGS if not any(f'"{name}"' in text for text in texts)]
    assert unread == []


def test_a_field_that_is_only_checked_or_written_is_not_read() -> None:
    record = "class Package(Value):\n    name: str = ''\n    colour: str = ''\n    others: tuple[Package, ...] = ()\n"
    using = """\
class Block:
    def __init__(self, package: Package) -> None:
        self.first, self.number = package.others[0], 1

def use(block: Block, said: dict[str, str]) -> Iterator[str]:
    colour = said.colour
    yield block.first.name
    yield from (each.name for each in block.first.others if colour)
"""
    found = readers_of({"model.py": record, "use.py": using}, ["Package"])
    assert found == {
        ("Package", "name"): ["use.py:7", "use.py:8"],
        ("Package", "others"): ["use.py:3", "use.py:8"],
    }
