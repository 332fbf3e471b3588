"""Jobs carried from a document to results by the installed program: real services, real agents, real processes."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotage
from pilotage.service.announcement import find_service
from tests.kit.command_line import can_be_typed, typed
from tests.kit.real_runs import end_all

PROGRAM = Path(sys.executable).with_name("pilotage")
SECONDS_MAX = 120

# Each package says that it runs, then waits for a line: a test decides when it goes on.
WAITING = """\
pilotage: 1
job: waiting
stages:
  - each: {n: 1..3}
    shell: |
      echo {n} > $PILOTAGE_FOLDER/started
      read line < $PILOTAGE_FOLDER/go
      echo $line > out-{n}.txt
    outputs: ["out-{n}.txt"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not PROGRAM.exists():
        pytest.skip("the program pilotage: install the project into this environment")
    yield tmp_path
    for file in tmp_path.rglob("service.json"):
        end_all(file.parent)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
    return kept | {"NO_COLOR": "1", "COLUMNS": "100"}


def run(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    if arguments[0] != "run" and can_be_typed(arguments, environment()):
        done = typed(arguments, folder=folder, environment=environment())
    else:
        done = subprocess.run(
            [str(PROGRAM), *arguments],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PROGRAM), *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=SECONDS_MAX)
    assert "Traceback" not in stderr
    return process.returncode, stdout, stderr


class Gate:
    """Two pipes between a test and the packages of a job: who has started, and who may go on."""

    def __init__(self, folder: Path) -> None:
        self.started, self.go = folder / "started", folder / "go"
        os.mkfifo(self.started)
        os.mkfifo(self.go)

    def one_started(self) -> str:
        """Wait until some package runs; its number."""
        with self.started.open() as pipe:
            return pipe.readline().strip()

    def open_for(self, process: subprocess.Popen[str], *, count: int) -> None:
        """Let packages go on, as many as are to come."""
        for _ in range(count):
            self.one_started()
            self.go.write_text("made\n")


def anything_lives(folder: Path) -> bool:
    """Whether a service or an agent of a folder is there."""
    state = folder / ".pilotage"
    listed = subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout
    return find_service(state) is not None or f"--state={state}" in listed


@pytest.fixture
def gated(folder: Path) -> Gate:
    (folder / "pilotage.yaml").write_text(WAITING)
    return Gate(folder)


# --- results ----------------------------------------------------------------------------------------------------------


def test_the_reconstruction_example_runs_from_raw_files_to_histograms(root: Path, folder: Path) -> None:
    place = folder / "reconstruction"
    shutil.copytree(root / "examples" / "reconstruction", place)
    done = run(place, "run", "--json")
    told = json.loads(done.stdout)
    assert (told["state"], told["packages"], told["done"], told["failed"]) == ("DONE", 12, 12, 0)
    assert (place / "all-run001.root").read_text().endswith("total 9\n")
    assert sorted(path.name for path in (place / "tape").iterdir()) == ["run001", "run002", "run003"]
    again = run(place, "run")
    assert "nothing to do: all 12 packages are there already" in again.stdout
    assert run(place, "plan").stdout.startswith("reco001: nothing would run")


def test_only_what_changed_is_run_again_and_the_plan_says_why(root: Path, folder: Path) -> None:
    document = folder / "pilotage.yaml"
    document.write_text(
        "pilotage: 1\njob: few\nstages:\n"
        "  - each: {n: 1..3}\n    shell: echo {n} > {n}.txt\n    outputs: ['{n}.txt']\n"
        "  - run: cat {inputs}\n    inputs: ['*.txt']\n    stdout: all.dat\n"
    )
    planned = json.loads(run(folder, "plan", "--json").stdout)
    assert (planned["would_run"], planned["there"]) == (4, 0)
    assert not (folder / ".pilotage").exists()
    run(folder, "run", "--slots", "2")
    assert (folder / "all.dat").read_text() == "1\n2\n3\n"
    document.write_text(document.read_text().replace("1..3", "1..4"))
    planned = json.loads(run(folder, "plan", "--json").stdout)
    assert [(each["package"], each["changed"]) for each in planned["listed"]] == [
        ("1.4.1", "never made"),
        ("2.1.1", "waits for 1.4.1"),
    ]
    assert "3 of them made by an earlier run" in run(folder, "run").stderr
    assert (folder / "all.dat").read_text() == "1\n2\n3\n4\n"


def test_a_failure_ends_in_a_card_with_its_last_words(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(
        "pilotage: 1\njob: bad\nstages:\n  - each: {n: 1..2}\n"
        "    shell: 'echo about to fail >&2; exit {n}'\n    retry: {attempts_max: 1}\n"
    )
    done = run(folder, "run", code=1)
    assert "2 of 2 packages done" not in done.stdout
    assert "exit status 1" in done.stdout
    assert "| about to fail" in done.stdout
    assert "pilotage logs bad-" in done.stdout


def test_a_file_that_is_not_ours_is_refused_before_anything_is_spent(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text(
        "pilotage: 1\njob: mine\nstages:\n  - shell: echo x > out.txt\n    outputs: [out.txt]\n"
    )
    (folder / "out.txt").write_text("precious")
    done = run(folder, "run", code=2)
    assert "out.txt" in done.stderr
    assert (folder / "out.txt").read_text() == "precious"
    assert not anything_lives(folder)


def test_a_faulty_document_leaves_nothing_running(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text("pilotage: 1\njob: bad\nstages:\n  - rum: x\n")
    assert "unknown-field" in run(folder, "run", code=2).stderr
    assert not anything_lives(folder)


def test_commands_that_begin_at_once_share_one_service(folder: Path) -> None:
    for name in "abc":
        (folder / f"{name}.yaml").write_text(
            f"pilotage: 1\njob: {name}\nstages:\n  - shell: echo x > {name}.txt\n    outputs: [{name}.txt]\n"
        )
    begun = [begin(folder, "run", f"{name}.yaml") for name in "abc"]
    assert [ended(each)[0] for each in begun] == [0, 0, 0]
    assert sorted(path.name for path in folder.glob("*.txt")) == ["a.txt", "b.txt", "c.txt"]


# --- signals ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_stops_everything_and_the_same_command_goes_on(folder: Path, gated: Gate) -> None:
    process = begin(folder, "run", "--slots", "1")
    gated.open_for(process, count=1)
    gated.one_started()
    process.send_signal(signal.SIGINT)
    code, _, said = ended(process)
    assert (code, "the same command continues" in said) == (3, True)
    assert not anything_lives(folder)
    assert len(list(folder.glob("out-*.txt"))) == 1
    again = begin(folder, "run", "--slots", "1")
    gated.open_for(again, count=2)
    code, told, said = ended(again)
    assert (code, "it was started before and continues" in said) == (0, True)
    assert "3 of 3 packages done" in told


def test_a_hang_up_ends_nothing_and_attach_comes_back(folder: Path, gated: Gate) -> None:
    process = begin(folder, "run", "--slots", "1")
    gated.one_started()
    process.send_signal(signal.SIGHUP)
    assert ended(process)[0] == 3
    back = begin(folder, "attach")
    gated.go.write_text("made\n")
    gated.open_for(back, count=2)
    code, told, _ = ended(back)
    assert (code, "3 of 3 packages done" in told) == (0, True)


@pytest.mark.parametrize("was_there", [False, True])
def test_a_service_that_is_killed_is_started_again_and_no_package_is_run_twice(
    folder: Path, gated: Gate, *, was_there: bool
) -> None:
    if was_there:
        assert run(folder, "map", "--slots", "1", "true", "x").returncode == 0
    process = begin(folder, "run", "--slots", "1")
    gated.one_started()
    service = find_service(folder / ".pilotage")
    assert service is not None
    os.kill(service.pid, signal.SIGKILL)
    gated.go.write_text("made\n")
    gated.open_for(process, count=2)
    code, told, said = ended(process)
    assert (code, "3 of 3 packages done\n" in told) == (0, True), said


def test_a_changed_document_takes_the_place_of_the_earlier_run(folder: Path, gated: Gate) -> None:
    (folder / "pilotage.toml").write_text(
        "[engine]\ninterval_seconds = 1\n"
    )  # an agent that has enough is heard so often
    process = begin(folder, "run", "--slots", "1")
    gated.one_started()
    process.send_signal(signal.SIGHUP)
    ended(process)
    (folder / "pilotage.yaml").write_text(
        "pilotage: 1\njob: waiting\nstages:\n  - shell: echo x > y\n    outputs: [y]\n"
    )
    done = run(folder, "run")
    assert "had not ended and is killed: its document has changed" in done.stderr
    found = json.loads(run(folder, "query", "--jobs", "all", "--json").stdout)["jobs"]
    assert sorted(each["state"] for each in found) == ["CANCELLED", "DONE"]


# --- without a document -----------------------------------------------------------------------------------------------


def test_map_runs_a_script_over_files_with_any_name(folder: Path) -> None:
    names = ["plain.in", "two words.in", "quo'te.in", "$(touch evil).in", "new\nline.in"]
    for name in names:
        (folder / name).write_text(name)
    script = folder / "copy.sh"
    script.write_text('#!/bin/sh\ncat "$1" > "$2"\n')
    script.chmod(0o755)
    run(folder, "map", "./copy.sh {} {/.}.out", *names)
    for name in names:
        assert (folder / name.replace(".in", ".out")).read_text() == name
    assert not (folder / "evil").exists()
    assert "5 of 5 packages done" in run(folder, "map", "true", *names).stdout  # that makes no file at all


def test_map_gives_lines_to_a_shell_only_where_that_is_asked_for(folder: Path) -> None:
    (folder / "lines.txt").write_text("echo one | tr a-z A-Z > one.txt\necho two > two.txt\n")
    assert "--shell" in run(folder, "map", "--each-line", "lines.txt", code=2).stderr
    run(folder, "map", "--each-line", "lines.txt", "--shell")
    assert ((folder / "one.txt").read_text(), (folder / "two.txt").read_text()) == ("ONE\n", "two\n")


# --- Python and terminals ---------------------------------------------------------------------------------------------


def test_python_runs_a_job_and_hears_of_each_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    job = pilotage.Job("squares").stage(
        each={"n": range(1, 4)}, shell="echo $(({n} * {n})) | tee {n}.txt", outputs=["{n}.txt"]
    )
    heard: list[pilotage.Output] = []
    result = pilotage.run(job, on_finished=heard.append)
    assert (result.ok, result.counts["done"]) == (True, 3)
    assert sorted(each.standard_output for each in heard) == ["1\n", "4\n", "9\n"]
    assert {path for each in result.outputs for path in each.uploaded} == {folder / f"{n}.txt" for n in (1, 2, 3)}
    assert "<table>" in result._repr_html_()


def test_python_that_is_run_again_gets_the_outputs_that_were_made_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    job = pilotage.Job("kept").stage(each={"n": range(1, 3)}, shell="echo {n} > {n}.txt", outputs=["{n}.txt"])
    first = pilotage.run(job)
    heard: list[str] = []
    again = pilotage.run(job, on_finished=lambda each: heard.append(each.package))
    assert (again.ok, again.counts["adopted"], again.job != first.job) == (True, 2, True)
    assert [each.uploaded for each in again.outputs] == [(folder / "1.txt",), (folder / "2.txt",)]
    assert heard == [each.package for each in pilotage.stream(job)] == ["1.1.1", "1.2.1"]
    assert again.output("1.1.1").exit_message == f"made before, by attempt 1 of {first.job}/1.1.1"
    assert "2 of 2 done, 2 adopted" in again._repr_html_()


def test_on_a_terminal_there_are_bars(folder: Path) -> None:
    (folder / "pilotage.yaml").write_text("pilotage: 1\njob: drawn\nstages:\n  - {each: {n: 1..3}, run: 'true {n}'}\n")
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover # another process
        os.chdir(folder)
        os.execve(PROGRAM, [str(PROGRAM), "run"], environment() | {"TERM": "xterm", "LC_ALL": "C.UTF-8"})
    found = b""
    try:
        while select.select([terminal], [], [], SECONDS_MAX)[0]:
            found += os.read(terminal, 65536)
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, found
    text = found.decode()
    assert "━" in text
    assert "3/3" in text
    assert "3 of 3 packages done" in text
