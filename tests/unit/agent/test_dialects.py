"""Dialects that somebody else wrote: what is packed is found, and what is not as it should be is refused and named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.adapters.sites.zipapp import archive, digest
from pilotage.agent import batch
from pilotage.agent.batch import dialects
from pilotage.agent.batch.registry import faults_of
from pilotage.app.sites.dialects import BadDialect, add_dialects, pack

GOOD = re.compile(r"<!-- file: processes.py -->\n```python\n(.*?)```", re.DOTALL)
LINES_MAX = 150


@pytest.fixture(autouse=True)
def own_path() -> Iterator[None]:
    """What a test adds to the package is not there for the next one."""
    before = list(batch.__path__)
    yield
    batch.__path__[:] = before
    for name in ("processes", "broken"):
        sys.modules.pop(f"pilotage.agent.batch.{name}", None)


@pytest.fixture
def example(root: Path, tmp_path: Path) -> Path:
    """The dialect that the documentation shows."""
    found = GOOD.search((root / "docs/howto/dialects.md").read_text("utf-8"))
    assert found is not None
    file = tmp_path / "processes.py"
    file.write_text(found[1], "utf-8")
    return file


def broken(folder: Path, text: str, *, name: str = "broken.py") -> Path:
    file = folder / name
    file.write_text(text, "utf-8")
    return file


@pytest.mark.parametrize("name", sorted(dialects()))
def test_our_own_dialects_pass_the_check(name: str) -> None:
    assert faults_of(name) == []


def test_the_one_of_the_documentation_is_packed_and_found_and_short(example: Path, tmp_path: Path) -> None:
    state, before = tmp_path / "state", digest()
    packed = pack([example], state=state)
    assert (packed.dialects, "processes" in dialects(), digest() != before) == (("processes",), True, True)
    assert example.read_text().count("\n") < LINES_MAX
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LISTED, packed.archive], capture_output=True, text=True, check=True
    )
    assert {*json.loads(told.stdout)} == {*dialects()}


_LISTED = """\
import json, sys
sys.path.insert(0, sys.argv[1])
from pilotage.agent.batch import dialects
print(json.dumps(list(dialects())))
"""


def test_another_process_finds_what_is_kept_in_the_state_folder(example: Path, tmp_path: Path) -> None:
    pack([example], state=tmp_path / "state")
    batch.__path__[:] = batch.__path__[:1]
    assert "processes" not in dialects()
    add_dialects(tmp_path / "elsewhere")
    add_dialects(tmp_path / "state")
    add_dialects(tmp_path / "state")
    assert (len(batch.__path__), "processes" in dialects()) == (2, True)
    assert b"processes.py" in archive()


def test_one_that_is_mended_takes_the_place_of_the_one_before(example: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    pack([example], state=state)
    example.write_text(example.read_text().replace("1000, 1000", "2000, 2000"), "utf-8")
    packed = pack([example], state=state)
    assert "2000, 2000" in (state / "dialects" / "processes.py").read_text()
    seen = subprocess.run(
        ["unzip", "-p", packed.archive, "pilotage/agent/batch/processes.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2000, 2000" in seen.stdout


CLASS = "from pilotage.agent.batch import Dialect\n\n\nclass Broken(Dialect):\n    name = 'broken'\n"


@pytest.mark.parametrize(
    "text, why",
    [
        ("x = 1\n", "it defines no dialect"),
        ("def f(x):\n    match x:\n        case 1: pass\n", "not Python 3.8: line 3"),
        ("import nosuch\n\n\nclass Broken:\n    name = 'broken'\n", "No module named 'nosuch'"),
        ("import msgspec\n\n\nclass Broken:\n    name = 'broken'\n", "No module named 'msgspec'"),
        (CLASS, "it cannot be instantiated"),
        (CLASS.replace("broken", "slurm"), "one of our own dialects"),
        ("class Broken:\n    name = 'broken'\n", "there is no dialect of this name"),
    ],
)
def test_what_is_no_dialect_is_refused_and_nothing_is_kept(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(BadDialect, match=re.escape(why)):
        pack([broken(tmp_path, text)], state=tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_module_of_ours_is_not_replaced(tmp_path: Path) -> None:
    for name, why in (("slurm.py", "one of our own modules"), ("Bad-Name.py", "needs the name of a module")):
        with pytest.raises(BadDialect, match=why):
            pack([broken(tmp_path, CLASS, name=name)], state=tmp_path / "state")


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("self.job_name(wanted.key), str(wanted.count)", "'x', str(wanted.count)", "missing from the submission"),
        ("self.script(wanted))", "'sleep 1')", "does not get its key"),
        ("raise Unknown(answer.stderr or \"the list has no end\")", "return {}", "an unknown list is not an empty one"),
        ("if answers[0].exit_status != 0 or not cores.isdigit():", "if False:", "limited raises ValueError"),
        ('return Call(("sh", "-c", LIST, "sh", self.prefix))', 'return ["sh"]', "not a Call with words"),
    ],
)  # fmt: skip
def test_a_promise_that_is_broken_is_named(example: Path, tmp_path: Path, old: str, new: str, why: str) -> None:
    text = example.read_text("utf-8")
    assert old in text
    example.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(BadDialect, match=why):
        pack([example], state=tmp_path / "state")
