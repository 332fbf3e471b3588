"""Which tests run a line: recorded once, and asked for the cheapest first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from coverage import CoverageData

from tests.mutation.operators import Mutation
from tests.mutation.recorder_files import FILE_VARIABLE, failed_files

TESTS_MAX = 400
"""More tests than this that run one line would repeat each other."""

RECORDED = ("tests/unit", "tests/property", "tests/conformance")
"""What runs in its own process, mostly. The rest is tried by name (`broad.py`): a simulated world runs nearly every line of the engine."""


def record(file: Path, *, tree: Path, workers: int, options: Sequence[str] = ()) -> None:
    """Run the tests once with every line noted; what an earlier run noted is forgotten."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    arguments = [sys.executable, "-m", "pytest", "--quiet", "-p", "tests.mutation.recorder", f"-n{workers}", *options]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), FILE_VARIABLE: str(file)}
    subprocess.run([*arguments, "--timeout=900", *RECORDED], cwd=tree, env=environment, check=False)
    parts = [str(each) for each in file.parent.glob(f"{file.name}.*")]
    whole = CoverageData(basename=str(file))
    for part in parts:
        data = CoverageData(basename=part)
        data.read()
        whole.update(data)
        Path(part).unlink()


class Covering:
    """The tests that run each line of the program, as they were recorded."""

    def __init__(self, file: Path, *, tree: Path) -> None:
        self._data = CoverageData(basename=str(file))
        self._data.read()
        self._tree = tree
        self._failed = {line for each in failed_files(file) for line in each.read_text(encoding="utf-8").splitlines()}
        self._files: dict[str, dict[int, list[str]]] = {}
        self._breadth: Counter[str] = Counter()
        for measured in self._data.measured_files():
            contexts = self._data.contexts_by_lineno(measured)
            self._breadth.update({context for each in contexts.values() for context in each})

    def tests(self, mutation: Mutation) -> list[str]:
        """Those that run the line of a mutation, the ones that run the fewest files of the program first.

        What runs when the module is imported belongs to no test: then it is all those that run anything of the module.
        """
        lines = self._lines(mutation.path)
        found = {test for line in range(mutation.line, mutation.last_line + 1) for test in lines.get(line, ())}
        if found == {""}:
            found = {test for tests in lines.values() for test in tests}
        return sorted(found - {""} - self._failed, key=lambda test: (self._breadth[test], test))[:TESTS_MAX]

    def _lines(self, path: str) -> dict[int, list[str]]:
        if path not in self._files:
            self._files[path] = self._data.contexts_by_lineno(str(self._tree / path))
        return self._files[path]
