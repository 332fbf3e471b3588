"""The script that batch systems are given, run by a real shell; and keys in names."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.agent.batch import (
    ANOTHER_AGENT_STATUS,
    CANNOT_WRITE_STATUS,
    BatchRequest,
    Dialect,
    dialects,
    element_key,
    output_of,
)
from pilotage.agent.batch.dialect import decoded, encoded

# What a process can be given: anything but a null; bytes that are no text are surrogates.
words = st.text(
    st.one_of(st.characters(exclude_characters="\0", codec="utf-8"), st.sampled_from("\n\r'\"\\$`#!*~ \udc80\udcff"))
)
keys = st.text(st.one_of(st.characters(exclude_characters="\0", codec="utf-8"), st.sampled_from("-_./:0123456789")))
TELL = "import os, sys; print(ascii((os.environ['PILOTAGE_REQUEST'], sys.argv[1:])))"


@pytest.fixture
def slurm() -> Dialect:
    return dialects()["slurm"]("pilotage")


def run(script: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Let the shell read a script as batch systems do: from a file of its own."""
    read, write = os.pipe()
    with os.fdopen(write, "wb") as file:
        file.write(script.encode("utf-8", "surrogateescape"))
    try:
        words = ["/bin/sh", f"/dev/fd/{read}"]
        return subprocess.run(words, pass_fds=[read], env={**os.environ, **variables}, capture_output=True, check=False)
    finally:
        os.close(read)


@given(keys)
def test_a_key_comes_back_from_its_name(key: str) -> None:
    name = encoded(key)
    assert name.isascii()
    assert not set(name) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_")
    assert decoded(name) == key


@given(st.text())
def test_a_name_that_none_of_ours_could_have_is_nobodys(name: str) -> None:
    key = decoded(name)
    assert key is None or encoded(key) == name


@pytest.mark.parametrize("name", ["_41", "_5", "_g0", "a_", "_5f", "a b", "_"])
def test_there_is_one_name_for_a_key(name: str) -> None:
    assert decoded(name) is None


@given(keys, st.integers(min_value=0, max_value=10**6))
def test_the_keys_of_an_array_follow_from_each_other(key: str, offset: int) -> None:
    element = element_key(key, offset)
    if element is not None:
        assert element_key(element, -offset) == key


def test_numbers_are_counted_without_padding() -> None:
    assert element_key("lyon-1201", 3) == "lyon-1204"
    assert element_key("lyon-9", 1) == "lyon-10"
    assert element_key("lyon-009", 1) == "lyon-0010"
    assert element_key("lyon", 1) is None
    assert element_key("lyon", 0) == "lyon"
    assert element_key("lyon-1", -2) is None


@given(st.data())
def test_different_keys_have_different_names_and_files(data: st.DataObject) -> None:
    one, two = data.draw(st.lists(keys, min_size=2, max_size=2, unique=True))
    assert encoded(one) != encoded(two)
    assert output_of("/out", one) != output_of("/out", two)


@settings(max_examples=25)
@given(key=keys, arguments=st.lists(words, max_size=6))
def test_every_word_arrives_as_it_is(key: str, arguments: list[str]) -> None:
    dialect = dialects()["slurm"]("pilotage")
    wanted = BatchRequest(key=key, command=[sys.executable, "-S", "-I", "-c", TELL, *arguments])
    script = dialect.script(wanted)
    assert [line for line in script.split("\n")[1:] if line.startswith("#")] == []
    done = run(script)
    assert ast.literal_eval(done.stdout.decode()) == (key, arguments), done.stderr


def test_no_word_can_speak_to_the_batch_system(slurm: Dialect) -> None:
    script = slurm.script(BatchRequest(key="a\n#SBATCH --x", command=["true", "b\n#SBATCH --y\r\n#$ -z", "#PBS"]))
    assert [line for line in script.split("\n") if line.startswith("#")] == ["#!/bin/sh"]
    assert "\r" not in script  # which sbatch would not take


def test_an_element_is_told_its_own_key_and_prints_to_its_own_file(slurm: Dialect, tmp_path: Path) -> None:
    wanted = BatchRequest(key="a b-9", command=["sh", "-c", 'echo "$PILOTAGE_REQUEST"'], count=3, output=str(tmp_path))
    for index, key in enumerate(["a b-9", "a b-10", "a b-11"]):
        assert run(slurm.script(wanted), SLURM_ARRAY_TASK_ID=str(index)).returncode == 0
        assert Path(output_of(str(tmp_path), key)).read_text() == f"{key}\n"


def test_indices_that_begin_with_one_begin_with_the_first_key() -> None:
    wanted = BatchRequest(key="lyon-7", command=["sh", "-c", 'echo "$PILOTAGE_REQUEST"'], count=2)
    done = run(dialects()["gridengine"]("pilotage").script(wanted), SGE_TASK_ID="1")
    assert done.stdout == b"lyon-7\n"


def test_without_a_place_to_print_nothing_is_started(slurm: Dialect, tmp_path: Path) -> None:
    wanted = BatchRequest(key="a-1", command=["touch", str(tmp_path / "started")], output=str(tmp_path / "absent"))
    assert run(slurm.script(wanted)).returncode == CANNOT_WRITE_STATUS
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_is_not_what_was_put_there_is_not_started_and_that_is_said(
    slurm: Dialect, tmp_path: Path
) -> None:
    agent = tmp_path / "it's $HOME's agent.pyz"
    agent.write_text("echo started\n")
    known = hashlib.sha256(agent.read_bytes()).hexdigest()
    wanted = BatchRequest(
        key="a-1", command=["sh", str(agent)], output=str(tmp_path), agent=str(agent), agent_sha256=known
    )
    printed = Path(output_of(str(tmp_path), "a-1"))
    assert run(slurm.script(wanted)).returncode == 0
    assert printed.read_text() == "started\n"
    agent.write_text("echo something else\n")
    printed.unlink()
    another = hashlib.sha256(agent.read_bytes()).hexdigest()
    assert run(slurm.script(wanted)).returncode == ANOTHER_AGENT_STATUS
    said = f"pilotage: {agent} has changed since it was installed, and is not started: its sha256 is {another}\n"
    assert printed.read_text() == said
    # Where nobody can tell, it is started; one that is gone its interpreter misses.
    assert run(slurm.script(wanted), PATH=str(_only(tmp_path / "bin", "sh", "printf"))).returncode == 0
    agent.unlink()
    assert run(slurm.script(wanted)).returncode not in (0, ANOTHER_AGENT_STATUS)


def _only(folder: Path, *programs: str) -> Path:
    """A folder with no programs but these."""
    folder.mkdir()
    for program in programs:
        found = shutil.which(program)
        assert found is not None
        (folder / program).symlink_to(found)
    return folder


def test_directives_stand_before_everything_else(slurm: Dialect) -> None:
    script = slurm.script(BatchRequest(key="a-1", command=["true"], directives=["--constraint=ib", "--exclusive"]))
    assert script.split("\n")[:3] == ["#!/bin/sh", "#SBATCH --constraint=ib", "#SBATCH --exclusive"]


@pytest.mark.parametrize(
    "options",
    [
        {"command": []},
        {"count": 0},
        {"cores": 0},
        {"directives": ["--hold\n#SBATCH --uid=0"]},
        {"queue": "a\nb"},
        {"folder": "a\rb"},
        {"output": "a\0b"},
    ],
)
def test_what_would_be_read_as_something_else_is_not_wanted(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be one line|a command, and at least"):
        BatchRequest(**{"key": "a-1", "command": ["true"], **options})  # type: ignore[arg-type]


def test_an_array_needs_a_number_to_count_from(slurm: Dialect) -> None:
    with pytest.raises(ValueError, match="ends in a number"):
        slurm.submit(BatchRequest(key="lyon", command=["true"], count=2))


@pytest.mark.parametrize("prefix", ["", "1a", "a.b", "a b", "a" * 41, "é"])
def test_a_prefix_begins_every_systems_names(prefix: str) -> None:
    with pytest.raises(ValueError, match="a prefix is"):
        dialects()["slurm"](prefix)
