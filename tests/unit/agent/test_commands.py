"""What a slot does with a command: how it is started, why it is not, and what it used."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from pilotage.agent.attempt import commands
from pilotage.agent.attempt.commands import Commands, Files, NotStarted, Spawner, quick_way_works
from pilotage.agent.attempt.diagnosis import Failure
from tests.kit.agent_runs import open_descriptors

# By the source of CPython: how many arguments `fork_exec` takes behind its eight descriptors.
_ARGUMENTS = {(3, 8): 3, (3, 9): 7, (3, 10): 7, (3, 11): 9, (3, 12): 9, (3, 13): 9, (3, 14): 8}
_KIB = 1024


def _used(**said: float) -> resource.struct_rusage:
    names = [name for name in dir(resource.struct_rusage) if name.startswith("ru_")]
    order = sorted(names, key=lambda name: getattr(resource.struct_rusage(range(16)), name))
    return resource.struct_rusage([said.get(name, 0) for name in order])


def _commands(*used: resource.struct_rusage) -> Commands:
    nobody = cast("Any", None)
    made = Commands(nobody, nobody, nobody)
    made._used = list(used)
    return made


def test_each_python_is_given_as_many_arguments_as_it_takes() -> None:
    assert {version: len(tail) for version, tail in commands._TAILS.items()} == _ARGUMENTS
    for tail in commands._TAILS.values():
        assert tail[:2] == (True, True), "signals as they are by default, and a session of its own"
        assert set(tail[2:]) <= {None, -1, True}


def test_this_python_is_given_what_its_own_library_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, ...]] = []

    def fork_exec(*arguments: Any) -> int:
        given.append(arguments)
        raise OSError(errno.EAGAIN, "seen")

    monkeypatch.setattr(subprocess, "_fork_exec", fork_exec)
    with pytest.raises(BlockingIOError):
        subprocess.Popen(["true"], start_new_session=True)
    assert given[0][-len(commands._TAIL) :] == commands._TAIL


def test_a_python_that_we_know_has_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_proved", [])
    before = open_descriptors()
    assert quick_way_works() is (sys.version_info[:2] in commands._TAILS)
    assert open_descriptors() == before
    assert len(commands._proved) == 1
    monkeypatch.setattr(commands, "_fork_exec", None)
    assert quick_way_works() is (sys.version_info[:2] in commands._TAILS), "it is tried once"
    monkeypatch.setattr(commands, "_proved", [])
    assert quick_way_works() is False


@pytest.mark.parametrize("broken", [{"_TAIL": ()}, {"_TAIL": (True,)}, {"_TAIL": (True, False, *commands._TAIL[2:])}])
def test_a_python_that_is_not_as_we_know_it_has_no_quick_way(
    broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not quick_way_works():
        pytest.skip("this Python has no quick way")
    for name, value in broken.items():
        monkeypatch.setattr(commands, name, value)
    expected = len(broken["_TAIL"]) > 1  # a session is not what the trial looks at
    assert commands._prove() is expected


@pytest.mark.parametrize("quick", [True, False])
def test_a_command_dies_of_a_closed_pipe_as_it_does_in_a_shell(*, quick: bool) -> None:
    spawner = Spawner(quick=quick)
    null = os.open(os.devnull, os.O_RDWR)
    argv, files = ["sh", "-c", "kill -PIPE $$; exit 3"], Files(null, null, null)
    pid = spawner.start(argv, environment=[b"A=b"], folder="/", files=files)  # found without a PATH, too
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -13
    spawner.close()
    os.close(null)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("argv, number", [([], errno.ENOENT), ([""], errno.ENOENT), (["a", "\0"], errno.EINVAL)])
def test_what_is_no_command_is_refused(argv: list[str], number: int, *, quick: bool) -> None:
    with pytest.raises(NotStarted) as raised:
        Spawner(quick=quick).start(argv, environment=[], folder="/", files=Files(0, 1, 2))
    assert (raised.value.number, raised.value.where) == (number, "")


def test_a_spawner_holds_two_files_until_it_is_closed() -> None:
    before = open_descriptors()
    spawner = Spawner(quick=True)
    null = os.open(os.devnull, os.O_RDWR)
    for _ in range(2):
        os.waitpid(spawner.start(["true"], environment=[], folder="/", files=Files(null, null, null)), 0)
    assert open_descriptors() == before + 3
    os.close(null)
    spawner.close()
    spawner.close()
    assert open_descriptors() == before


def test_only_a_child_that_ended_as_such_did_not_become_its_command(tmp_path: Path) -> None:
    spawner = Spawner(quick=True)
    assert spawner.failed_to_start(255) is None, "none was started"
    null = os.open(os.devnull, os.O_RDWR)
    files = Files(null, null, null)
    os.waitpid(spawner.start(["/no such command"], environment=[], folder="/", files=files), 0)
    assert spawner.failed_to_start(254) is None
    refused = spawner.failed_to_start(255)
    assert refused is not None
    assert (refused.number, refused.where, str(refused)) == (errno.ENOENT, "", os.strerror(errno.ENOENT))
    assert spawner.failed_to_start(255) is None, "it was told"
    os.close(null)
    spawner.close()


def test_what_commands_used_is_added_up() -> None:
    first = _used(ru_utime=1.0, ru_stime=0.5, ru_maxrss=30, ru_inblock=3, ru_oublock=5)
    second = _used(ru_utime=2.0, ru_stime=0.25, ru_maxrss=20, ru_inblock=4, ru_oublock=6)
    assert _commands(first, second).measured(0) == {
        "cpu_seconds": 3.75,
        "cpu_user_seconds": 3.0,
        "cpu_system_seconds": 0.75,
        "read_bytes": 7 * 512,
        "written_bytes": 11 * 512,
        "peak_memory_below_bytes": 30 * _KIB,
    }


def test_what_is_not_known_is_not_told() -> None:
    nothing = {"cpu_seconds": 0.0, "cpu_user_seconds": 0.0, "cpu_system_seconds": 0.0}
    assert _commands().measured(0) == nothing
    assert _commands(_used()).measured(0) == nothing
    assert _commands(_used(ru_inblock=1, ru_maxrss=1)).measured(0) == {
        **nothing, "read_bytes": 512, "peak_memory_below_bytes": _KIB,
    }  # fmt: skip
    assert _commands(_used(ru_oublock=1)).measured(0) == {**nothing, "written_bytes": 512}


@pytest.mark.parametrize("counted, seen, told", [(0, 7, 7), (9, 0, 9), (9, 7, 9), (7, 9, 9)])
def test_the_largest_memory_that_is_known_is_told(counted: int, seen: int, told: int) -> None:
    measured = _commands(_used(ru_maxrss=1))
    measured.peak_bytes = counted
    payload = measured.measured(seen)
    assert payload["peak_memory_bytes"] == told
    assert "peak_memory_below_bytes" not in payload


def test_the_kernel_is_believed_where_it_tells_more_than_this_process_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "own_peak_bytes", lambda: 1000 * _KIB)
    made, margin = _commands(), 4 * 1024
    peaks = []
    for maxrss in (999, 1000 + margin, 1001 + margin, 1000, 5000 + margin, 2000 + margin):
        made._count(_used(ru_maxrss=maxrss))
        peaks.append(made.peak_bytes // _KIB)
    assert peaks == [0, 0, 1001 + margin, 1001 + margin, 5000 + margin, 5000 + margin]
    assert len(made._used) == 6
    made.reset()
    assert (made.peak_bytes, made._used, made.left_behind) == (0, [], False)


def test_a_file_that_is_written_to_all_the_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def busy(*_: Any, **__: Any) -> int:
        tries.append(1)
        raise NotStarted(errno.ETXTBSY)

    monkeypatch.setattr(commands, "_BUSY_SECONDS", 0.0)
    monkeypatch.setattr(Commands, "_run_once", busy)
    with pytest.raises(Failure, match="another process is writing to the file") as raised:
        _commands().run(["prog"], environment=[], folder="/", files=Files(0, 1, 2), marks=())
    assert (raised.value.reason, len(tries)) == ("command-not-found", 40)


@pytest.mark.parametrize(
    "status, ended",
    [(0, (0, None)), (3 << 8, (3, None)), (255 << 8, (255, None)), (9, (None, 9)), (11 | 0x80, (None, 11))],
)
def test_an_end_is_an_exit_status_or_a_signal(
    status: int, ended: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Commands, "_run_once", lambda *_, **__: status)
    assert _commands().run(["prog"], environment=[], folder="/", files=Files(0, 1, 2), marks=()) == ended
