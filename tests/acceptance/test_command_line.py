"""The installed program as a user meets it: a process with pipes, signals, terminals and full disks."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.jobs import SWEEP

PROGRAM = Path(sys.executable).with_name("pilotage")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if not PROGRAM.exists():
        pytest.skip("the program pilotage: install the project into this environment")
    (tmp_path / "pilotage.yaml").write_text(SWEEP)
    for program in ("simulate", "merge"):
        (tmp_path / program).touch()
    return tmp_path


def run(folder: Path, *arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "PYTHONUNBUFFERED")
    }
    done = subprocess.run(
        [str(PROGRAM), *arguments],
        cwd=folder,
        input=stdin,
        env=kept | environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert b"Traceback" not in done.stderr
    return done


def shell(folder: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=os.environ | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_document_of_the_issue_is_checked(folder: Path) -> None:
    done = run(folder, "check", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "valid": True,
        "errors": [],
        "warnings": [],
        "job": "sweep",
        "stages": 2,
        "lines": 1001,
        "packages": 1001,
        "binaries": 1001,
        "files": 1001,
        "edges": 1000,
        "critical_path_seconds": None,
    }


def test_a_reader_who_has_enough_is_no_error(folder: Path) -> None:
    done = shell(folder, "set -o pipefail; pilotage graph --format json | head -n 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"packages":[\n', "")


@pytest.mark.parametrize("command", ["check", "graph --format json", "schema", "convert --to yaml", "completion bash"])
def test_a_full_disk_behind_standard_output_is_an_error(folder: Path, command: str) -> None:
    done = shell(folder, f"pilotage {command} > /dev/full")
    assert done.returncode == 2
    assert "standard output: cannot be written: no space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_full_disk_behind_an_output_file_is_an_error(folder: Path) -> None:
    done = run(folder, "graph", "-o", "/dev/full")
    assert done.returncode == 2
    assert done.stderr == b"error: /dev/full: cannot be written: no space left on device\n"


def test_an_interrupt_ends_with_130(folder: Path) -> None:
    started = subprocess.Popen(
        [str(PROGRAM), "check", "-"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdin is not None
    # More than a pipe holds: when all of it is written, the program has started to read, and waits for the rest.
    started.stdin.write(b"# more\n" * 100_000)
    started.stdin.flush()
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out, err.strip()) == (130, b"", b"interrupted")


def test_colours_are_for_terminals(folder: Path) -> None:
    assert b"\x1b" in on_a_terminal(folder)


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_a_terminal_may_ask_for_no_colours(folder: Path, environment: dict[str, str]) -> None:
    assert b"\x1b" not in on_a_terminal(folder, **environment)


def test_a_pipe_gets_no_colours(folder: Path) -> None:
    (folder / "bad.yaml").write_text("pilotage: 1\njob: x\nrunn: a\n")
    done = run(folder, "check", "bad.yaml", TERM="xterm")
    assert b": error: " in done.stderr
    assert b"\x1b" not in done.stderr + done.stdout


def on_a_terminal(folder: Path, **environment: str) -> bytes:
    """What `check` prints of a bad document on a terminal."""
    (folder / "bad.yaml").write_text("pilotage: 1\njob: x\nrunn: a\n")
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [str(PROGRAM), "check", "bad.yaml"],
        cwd=folder,
        env=kept | {"TERM": "xterm"} | environment,
        stdout=theirs,
        stderr=theirs,
        check=False,
        timeout=60,
    )
    printed = os.read(ours, 65536)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    return printed


def test_a_locale_without_arrows_gets_a_drawing_all_the_same(folder: Path) -> None:
    assert run(folder, "graph", LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="latin-1").returncode == 0


def test_a_file_name_that_is_no_text_is_no_trouble(folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.yaml")).write_text(SWEEP)
    done = shell(
        folder, "pilotage check $'\\xff.yaml'; pilotage check $'\\xff.yaml' --json; pilotage graph $'\\xff.yam'"
    )
    assert "Traceback" not in done.stderr
    assert '"valid": true' in done.stdout


def test_a_substituted_process_is_read(folder: Path) -> None:
    done = shell(folder, "pilotage check <(cat pilotage.yaml)")
    assert (done.returncode, "1,001 packages" in done.stdout) == (0, True)


def test_bash_completes_commands_and_options(folder: Path) -> None:
    done = shell(
        folder,
        """
        source <(pilotage completion bash)
        complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _pilotage_completion pilotage; echo "${COMPREPLY[@]}"; }
        complete_words pilotage ch
        complete_words pilotage graph --form
        complete_words pilotage graph --format s
        complete_words pilotage graph --format = s
        complete_words pilotage check --from =
        complete_words pilotage check "'a b'" --from = d
        complete_words pilotage ret
        complete_words pilotage res
        complete_words pilotage retry --e
        complete_words pilotage help jo
        complete_words pilotage help site to
        """,
    )
    assert done.stdout.splitlines() == [
        "check",
        "--format",
        "svg",
        "svg",
        "auto yaml dagman wfformat",
        "dagman",
        "retry",
        "restore",
        "--elsewhere",
        "jobs",
        "token",
    ], done.stderr


def test_bash_sorts_what_it_completes(folder: Path) -> None:
    assert "nosort" not in shell(folder, "source <(pilotage completion bash); complete -p pilotage").stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["completion", "bash"]], ids=lambda words: words[0])
def test_what_needs_little_imports_little(folder: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(PROGRAM), *arguments], cwd=folder, capture_output=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert imported.isdisjoint({"numpy", "msgspec", "yaml", "rich", "pilotage.language", "pilotage.app"})


def test_what_numpy_is_told_is_not_left_in_the_environment() -> None:
    told = "import os; from pilotage.cli.shared.numpy_loader import import_numpy_quickly as go; go(); print(os.environ.get(NAME))"
    for given, left in (({}, "None"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")):
        kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        command = [sys.executable, "-c", f"NAME = 'OPENBLAS_NUM_THREADS'; {told}"]
        done = subprocess.run(command, env=kept | given, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == left


def test_a_large_job_is_drawn_as_its_activities(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(SWEEP.replace("1..1000}", "1..100000}"))
    done = run(folder, "graph", COLUMNS="80")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) < 10
