"""The mutation tester asks the tests that run a line: in their own process, or in a program that they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.covering import Covering, record
from tests.mutation.operators import Mutation, mutations_of

FILES = {
    "src/pilotage/__init__.py": "",
    "src/pilotage/limits.py": "LIMIT = 3\n",
    "src/pilotage/sizes/__init__.py": "from pilotage.sizes.large import LARGE\n",
    "src/pilotage/sizes/large.py": "LARGE = 7\n",
    "src/pilotage/counting.py": (
        "from pilotage.limits import LIMIT\n"
        "from pilotage.sizes import LARGE\n"
        "STEP = 2\n"
        "def here(n):\n"
        "    return n + STEP\n"
        "def there(n):\n"
        "    return n < LIMIT\n"
    ),
    "src/pilotage/__main__.py": "from pilotage.counting import there\nthere(1)\n",
    "tests/__init__.py": "",
    "tests/test_import.py": "def test_import():\n    import pilotage.counting\n",
    "tests/test_own.py": "from pilotage.counting import here\ndef test_own():\n    assert here(1) == 3\n",
    "tests/test_program.py": (
        "import subprocess, sys\n"
        "def test_program():\n"
        "    subprocess.run([sys.executable, '-m', 'pilotage'], check=True)\n"
    ),
    "tests/test_red.py": "from pilotage.counting import here\ndef test_red():\n    assert here(1) == 4\n",
}
OWN = "tests/test_own.py::test_own"
PROGRAM = "tests/test_program.py::test_program"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Covering, Path]:
    """A small program with its tests, recorded."""
    tree = tmp_path_factory.mktemp("tree")
    (tree / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:schemathesis -p no:hypothesispytest -p no:cacheprovider\n"
    )
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")
    (tree / "tests/mutation").symlink_to(Path(__file__).parents[2] / "mutation")
    file = tree / "notes" / "lines.sqlite"
    record(
        file,
        tree=tree,
        workers=0,
        paths=["tests/test_import.py", "tests/test_own.py", "tests/test_program.py", "tests/test_red.py"],
    )
    return Covering(file, tree=tree), tree


def _mutation(tree: Path, path: str, before: str) -> Mutation:
    return next(each for each in mutations_of(path, (tree / path).read_bytes()) if each.before == before)


def test_a_line_is_asked_of_the_tests_that_run_it_and_pass(recorded: tuple[Covering, Path]) -> None:
    covering, tree = recorded

    mutation = _mutation(tree, "src/pilotage/counting.py", "n + STEP")

    assert covering.tests(mutation) == [OWN]
    assert covering.program_tests(mutation) == []


def test_a_line_that_only_a_program_runs_is_asked_of_the_test_that_starts_it(recorded: tuple[Covering, Path]) -> None:
    covering, tree = recorded

    mutation = _mutation(tree, "src/pilotage/counting.py", "<")

    assert covering.tests(mutation) == []
    assert covering.program_tests(mutation) == [PROGRAM]


def test_a_line_of_the_import_is_asked_of_all_tests_of_the_module_and_not_of_its_first_importer(
    recorded: tuple[Covering, Path],
) -> None:
    covering, tree = recorded

    mutation = _mutation(tree, "src/pilotage/counting.py", "2")

    assert covering.tests(mutation) == [OWN]
    assert covering.program_tests(mutation) == [PROGRAM]


@pytest.mark.parametrize("path, before", [("src/pilotage/limits.py", "3"), ("src/pilotage/sizes/large.py", "7")])
def test_a_module_without_functions_is_asked_of_the_tests_of_its_importers(
    recorded: tuple[Covering, Path], path: str, before: str
) -> None:
    covering, tree = recorded

    mutation = _mutation(tree, path, before)

    assert covering.tests(mutation) == [OWN]
    assert covering.program_tests(mutation) == [PROGRAM]
