"""Which tests run a line: recorded once, and asked for the cheapest first."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from coverage import CoverageData

from tests.mutation.operators import Mutation
from tests.mutation.recorder_files import FILE_VARIABLE, WORKER_VARIABLE, programs_folder, reports_file

TESTS_MAX = 400
"""More tests than this that run one line would repeat each other."""

PROGRAM_SECONDS_MAX = 150.0
"""So long may the tests take, together, whose programs run a line: nearly every command runs the lines of its start."""

RECORDED = ("tests/unit", "tests/property", "tests/conformance", "tests/acceptance", "tests/docs")
"""The rest is tried by name (`broad.py`): a simulated world runs nearly every line of the engine."""

STARTUP = Path(__file__).with_name("startup")


def record(file: Path, *, tree: Path, workers: int, paths: Sequence[str] = RECORDED) -> None:
    """Run the tests once with every line noted; what an earlier run noted is forgotten."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in file.parent.glob(f"{file.name}*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    programs_folder(file).mkdir()
    arguments = [sys.executable, "-m", "pytest", "--quiet", "-p", "tests.mutation.recorder", f"-n{workers}"]
    modules = os.pathsep.join(str(each) for each in (tree / "src", STARTUP))
    environment = os.environ | {"PYTHONPATH": modules, FILE_VARIABLE: str(file)}
    environment.pop(WORKER_VARIABLE, None)
    subprocess.run([*arguments, "--timeout=900", *paths], cwd=tree, env=environment, check=False)
    parts = [str(each) for each in file.parent.glob(f"{file.name}.*")]
    whole = CoverageData(basename=str(file))
    for part in parts:
        data = CoverageData(basename=part)
        data.read()
        whole.update(data)
        Path(part).unlink()
    _join_programs(file)


def _join_programs(file: Path) -> None:
    """One file of what programs ran, a context for each test, as for the tests themselves."""
    by_test: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for each in programs_folder(file).glob("*.json"):
        noted = json.loads(each.read_text(encoding="utf-8"))
        for path, lines in noted["lines"].items():
            by_test[noted["test"]][path].update(lines)
    joined = CoverageData(basename=str(_joined_programs(file)))
    for test, files in by_test.items():
        joined.set_context(test)
        joined.add_lines(files)
    joined.write()


def _joined_programs(file: Path) -> Path:
    return file.with_name(f"{file.name}-programs.sqlite")


class Covering:
    """The tests that run each line of the program, as they were recorded."""

    def __init__(self, file: Path, *, tree: Path) -> None:
        self._tree = tree
        self._failed: set[str] = set()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        for line in reports_file(file).read_text(encoding="utf-8").splitlines():
            test, seconds, passed = json.loads(line)
            self._seconds[test] += seconds
            if not passed:
                self._failed.add(test)
        self._own = _Lines(file)
        self._programs = _Lines(_joined_programs(file))
        self._breadth = self._own.breadth()

    def tests(self, mutation: Mutation) -> list[str]:
        """Those that run the line in their own process, the ones that run the fewest files of the program first."""
        found = self._running(mutation, self._own)
        return sorted(found, key=lambda test: (self._breadth[test], test))[:TESTS_MAX]

    def program_tests(self, mutation: Mutation) -> list[str]:
        """Those that start a program which runs the line: the quickest of each test file in turn, as many as there is time for."""
        by_file: defaultdict[str, list[str]] = defaultdict(list)
        for test in sorted(self._running(mutation, self._programs), key=lambda test: (self._seconds[test], test)):
            by_file[test.partition("::")[0]].append(test)
        chosen: list[str] = []
        left = PROGRAM_SECONDS_MAX
        for test in (each for turn in zip_longest(*by_file.values()) for each in turn if each):
            left -= self._seconds[test]
            if left < 0:
                break
            chosen.append(test)
        return chosen

    def _running(self, mutation: Mutation, noted: _Lines) -> set[str]:
        """What runs when a module is imported belongs to all tests that run its functions, or else those of its importers."""
        lines = range(mutation.line, mutation.last_line + 1)
        inside = _lines_of_functions(self._tree / mutation.path)
        if inside.intersection(lines):
            found = noted.tests(self._tree / mutation.path, lines=lines)
        else:
            found = noted.tests(self._tree / mutation.path, lines=inside)
            for importer in () if found else _importers(self._tree, mutation.path):
                found |= noted.tests(importer, lines=_lines_of_functions(importer))
        return {test for test in found if test in self._seconds} - self._failed


class _Lines:
    """Tests by file and line, read from one file of recorded coverage."""

    def __init__(self, file: Path) -> None:
        self._data = CoverageData(basename=str(file))
        self._data.read()
        self._files: dict[Path, dict[int, list[str]]] = {}

    def tests(self, path: Path, *, lines: Sequence[int] | set[int]) -> set[str]:
        if path not in self._files:
            self._files[path] = self._data.contexts_by_lineno(str(path))
        return {test for line in lines for test in self._files[path].get(line, ()) if test}

    def breadth(self) -> Counter[str]:
        """How many files of the program each test runs something of."""
        counted: Counter[str] = Counter()
        for measured in self._data.measured_files():
            contexts = self._data.contexts_by_lineno(measured)
            counted.update({context for each in contexts.values() for context in each})
        return counted


def _lines_of_functions(file: Path) -> set[int]:
    """Lines that run when something is called, not when the module is imported."""
    functions = [
        each
        for each in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {line for each in functions for line in range(each.body[0].lineno, (each.end_lineno or 0) + 1)}


def _importers(tree: Path, path: str) -> Iterator[Path]:
    """The modules of the program that import this one, or what its folder passes on from it."""
    name = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    folder, _, module = name.rpartition(".")
    face = tree / "src" / Path(*folder.split(".")) / "__init__.py"
    passed_on = {module} | {each for node in _imports(face) if node.module == name for each in _names(node)}
    for file in sorted((tree / "src").rglob("*.py")):
        if any(
            node.module == name or (node.module == folder and not passed_on.isdisjoint(_names(node)))
            for node in _imports(file)
        ):
            yield file


def _imports(file: Path) -> list[ast.ImportFrom]:
    if not file.is_file():
        return []
    return [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.ImportFrom)]


def _names(node: ast.ImportFrom) -> set[str]:
    return {each.name for each in node.names}
