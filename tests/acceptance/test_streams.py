"""The program with streams that are closed, full, pipes or terminals: an exit code and never a traceback."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("pilotage")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not PROGRAM.exists():
        pytest.skip("the program pilotage: install the project into this environment")
    monkeypatch.chdir(tmp_path)
    Path("ok.yaml").write_text("pilotage: 1\njob: x\nrun: ./a\noutputs: [b]\n")
    Path("a").touch()
    Path("bad.yaml").write_text("pilotage: 1\njob: x\nrunn: ./a\n")
    return tmp_path


def shell(text: str) -> subprocess.CompletedProcess[str]:
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False, timeout=120
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


@pytest.mark.parametrize("command", ["check ok.yaml", "graph ok.yaml", "--help", "--version", "check --help"])
@pytest.mark.parametrize("where, why", [(">&-", "it is closed"), ("> /dev/full", "no space left on device")])
def test_an_output_that_cannot_be_written_is_said(command: str, where: str, why: str) -> None:
    done = shell(f"pilotage {command} {where}")
    assert (done.returncode, done.stderr) == (2, f"error: standard output: cannot be written: {why}\n")


@pytest.mark.parametrize("where", ["2>&-", "2> /dev/full"])
@pytest.mark.parametrize(
    "command, code", [("check ok.yaml", 0), ("check bad.yaml", 2), ("graph bad.yaml", 2), ("chek", 2), ("", 2)]
)
def test_a_reader_who_is_gone_changes_no_exit_code(command: str, where: str, code: int) -> None:
    assert shell(f"pilotage {command} {where}").returncode == code


def test_nobody_to_tell_anything_is_no_traceback() -> None:
    assert shell("pilotage check ok.yaml >&- 2>&-").returncode == 2


def test_an_output_that_is_not_used_may_be_closed() -> None:
    assert shell("pilotage graph ok.yaml -o out.svg >&-").returncode == 0
    assert Path("out.svg").read_text().startswith("<svg")


def test_a_closed_input_is_said() -> None:
    done = shell("pilotage check - <&-")
    assert done.returncode == 2
    assert "it cannot be read: it is closed [unreadable-file]" in done.stderr
    assert "the answers cannot be read: it is closed" in shell("pilotage init <&-").stderr


@pytest.mark.parametrize("command", ["--help", "--version", "schema"])
def test_a_reader_who_has_enough_is_no_failure(command: str) -> None:
    assert shell(f"pilotage {command} | true; exit ${{PIPESTATUS[0]}}").returncode == 0


@pytest.mark.parametrize("command", ["-o /dev/stdout | cat", "-o /dev/fd/1 | cat", "-o >(cat > out); wait $!; cat out"])
def test_an_open_stream_may_be_the_output_file(command: str) -> None:
    done = shell(f"pilotage graph ok.yaml {command}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("x: 1 package in 1 stage")


def test_an_output_that_is_appended_to_keeps_its_beginning() -> None:
    shell("echo before > out; pilotage graph ok.yaml -o /dev/stdout >> out")
    assert Path("out").read_text().startswith("before\nx: 1 package")


def test_a_link_to_an_open_stream_is_written_to() -> None:
    done = shell("ln -s /dev/stdout link; pilotage graph ok.yaml -o link | cat")
    assert (done.returncode, done.stdout[:12]) == (0, "x: 1 package")


def test_a_stream_that_is_not_open_cannot_be_the_output() -> None:
    done = shell("pilotage graph ok.yaml -o /dev/fd/77")
    assert (done.returncode, "/dev/fd/77: cannot be written" in done.stderr) == (2, True)


def test_a_folder_that_is_gone_is_an_error() -> None:
    assert shell("mkdir gone; cd gone; rmdir ../gone; pilotage init ./a").returncode == 2


# --- terminals --------------------------------------------------------------------------------------------------------


def on_a_terminal(*arguments: str, answers: bytes = b"") -> tuple[int, bytes]:
    """The exit code and everything that a terminal sees."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(PROGRAM), *arguments], env=os.environ | {"NO_COLOR": "1"}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answers)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:
        pass  # how a terminal ends on Linux
    os.close(ours)
    return process.wait(timeout=60), seen


STEERING = 'pilotage: 1\njob: x\neach: {v: ["\\e[2J\\x9b2J"]}\nrun: [echo, "{v}"]\noutputs: ["\\e]0;t{v}"]\n'


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["check", "--json"],
        ["graph"],
        ["graph", "--format", "dot"],
        ["graph", "--format", "json"],
        ["graph", "--format", "svg"],
        ["convert", "--to", "yaml"],
        ["convert", "--to", "dagman"],
        ["convert", "--to", "wfformat"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "text", [STEERING, STEERING + '"\\e[31mfield": 1\n', "JOB a \x1b[31m.sub\n"], ids=["valid", "field", "dag"]
)
def test_nothing_in_a_document_steers_the_terminal(command: list[str], text: str) -> None:
    name = "\x1b[31m\x9b.yaml"
    Path(name).write_text(text)
    _, seen = on_a_terminal(command[0], name, *command[1:])
    assert b"\x1b" not in seen
    assert b"\xc2\x9b" not in seen


def test_a_pipe_gets_the_bytes_as_they_are() -> None:
    Path("greet.json").write_text(
        '{"name": "g", "description": "d", "tool-version": "1", "schema-version": "0.5", "command-line": "g [N]",'
        ' "inputs": [{"id": "n", "name": "N", "type": "String", "value-key": "[N]"}]}'
    )
    Path("values.json").write_text('{"n": "\\u001b[31m"}')
    assert "\x1b[31m" in shell("pilotage software command greet.json values.json").stdout
    assert b"\x1b" not in on_a_terminal("software", "command", "greet.json", "values.json")[1]


def test_a_person_is_asked_again() -> None:
    code, seen = on_a_terminal("init", answers=b"wc {f}\nabsent.txt\nwc {f}\n1..3\n")
    assert code == 0
    assert b"there is no file absent.txt" in seen
    assert "f: 1..3" in Path("pilotage.yaml").read_text()
