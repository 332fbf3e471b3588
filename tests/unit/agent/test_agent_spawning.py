from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.agent.attempt import commands
from pilotage.agent.attempt.commands import Commands, Files, NotStarted, Spawner, quick_way_works
from tests.kit.agent_runs import place_in
from tests.kit.pythons import pythons

SOURCE = Path(commands.__file__).parents[3]


@pytest.fixture(params=["quick", "popen"])
def spawner(request: pytest.FixtureRequest) -> Iterator[Spawner]:
    if request.param == "quick" and not quick_way_works():
        pytest.skip("this Python has no quick way")
    spawner = Spawner(quick=request.param == "quick")
    yield spawner
    spawner.close()


def _run(spawner: Spawner, argv: list[str], folder: Path, environment: list[bytes] | None = None) -> tuple[int, str]:
    """The exit status of a command and what it wrote; raises `NotStarted` whichever way tells it."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(folder / "out", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    try:
        path = f"PATH={os.environ['PATH']}".encode()
        pid = spawner.start(argv, environment=environment or [path], folder=str(folder), files=Files(null, out, out))
        _, status = os.waitpid(pid, 0)
        refused = spawner.failed_to_start(os.waitstatus_to_exitcode(status))
        if refused is not None:
            raise refused
        return os.waitstatus_to_exitcode(status), (folder / "out").read_text()
    finally:
        os.close(null)
        os.close(out)


def test_both_ways_start_a_command_in_its_folder_and_session(spawner: Spawner, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)  # a descriptor that no command may get
    program = (
        "import os,signal;print(os.getcwd(),os.getsid(0)==os.getpid(),os.listdir('/proc/self/fd'),signal.getsignal(13))"
    )
    try:
        status, text = _run(spawner, [sys.executable, "-I", "-c", program], tmp_path)
    finally:
        os.close(read)
        os.close(write)
    assert status == 0
    folder, leads, descriptors = text.split(" ", 2)
    assert (folder, leads) == (str(tmp_path), "True")
    assert descriptors.startswith("['0', '1', '2', '3']")


def test_both_ways_tell_what_does_not_start(spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    (tmp_path / "empty").write_text("x")
    (tmp_path / "empty").chmod(0o755)
    for word, number in (("no-such", errno.ENOENT), ("./plain", errno.EACCES), ("./empty", errno.ENOEXEC)):
        with pytest.raises(NotStarted) as raised:
            _run(spawner, [word], tmp_path)
        assert (raised.value.number, raised.value.where) == (number, "")
    with pytest.raises(NotStarted) as raised:
        _run(spawner, ["a\0b"], tmp_path)
    assert raised.value.number == errno.EINVAL
    assert _run(spawner, ["sh", "-c", "exit 255"], tmp_path)[0] == 255


def test_both_ways_tell_a_folder_that_is_gone(spawner: Spawner, tmp_path: Path) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    files, gone = Files(null, null, null), str(tmp_path / "gone")
    refused: NotStarted | None
    try:
        pid = spawner.start(["true"], environment=[b"PATH=/bin:/usr/bin"], folder=gone, files=files)
    except NotStarted as raised:
        refused = raised
    else:
        _, status = os.waitpid(pid, 0)
        refused = spawner.failed_to_start(os.waitstatus_to_exitcode(status))
    finally:
        os.close(null)
    assert refused is not None
    assert (refused.number, refused.where) == (errno.ENOENT, "its folder")


def test_a_program_that_is_being_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [NotStarted(errno.ETXTBSY)] * 3
    real = Commands._run_once

    def busy(self: Commands, *arguments: object, **named: object) -> int:
        if refusals:
            raise refusals.pop()
        return real(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Commands, "_run_once", busy)
    with place_in(tmp_path) as place:
        assert place.run("/bin/true").payload["exit_code"] == "SUCCESS"
    assert refusals == []


# The package `pilotage` itself needs a newer Python than its agent does.
ON_ITS_OWN = """
    import json, os, sys, types
    for name in ("pilotage", "pilotage.agent"):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(sys.argv[1], *name.split("."))]
        sys.modules[name] = module
    from pilotage.agent.attempt.attempt import AttemptRunner
    from pilotage.agent.attempt.commands import quick_way_works
    from pilotage.agent.attempt.workplace import Workplace
    root = sys.argv[2]
    pilot = "p%d" % os.getpid()  # what it starts is known by this name, and others may be tried out at the same time
    workplace = Workplace(scratch=root + "/scratch", pilot=pilot, sole=True, grace_seconds=0.2, look_seconds=0.02)
    runner = AttemptRunner(workplace, 1)
    def run(script, **said):
        demand = said.pop("demand", {})
        outputs = said.pop("outputs", [])
        binaries = [{"argv": ["/bin/sh", "-c", script], "outputs": outputs}]
        work = {"path": "p", "name": "n", "index": 0, "folder": root, "staged": root + "/staged", "binaries": binaries}
        work["mark"] = "m"
        work.update(said)
        ref = {"job": "j", "package": "1.1.1", "attempt": 1}
        return runner.run({"ref": ref, "demand": demand}, work, on_phase=lambda *_: None, fetch=None)
    open(root + "/in", "w").close()
    os.mkdir(root + "/staged")
    with open(root + "/staged/mark", "w") as mark:
        mark.write("m")
    seen = [
        run("cat in; echo x > a.b; setsid sleep 600 &", inputs=[{"name": "in"}], outputs=[{"name": "*.[b]", "pattern": True}]),
        run("exit 3"),
        run("kill -SEGV $$"),
        run("while :; do sleep 0.01; done", demand={"wall_seconds": 0.1}),
        run("echo bad >&2", failure_patterns=[{"pattern": "^bad"}]),
        run("head -c 3000000 /dev/zero"),
    ]
    os.environ.clear()
    print(json.dumps([sys.version_info[:2], quick_way_works(), [each.payload for each in seen], seen[-1].logs[0]["dropped_bytes"]]))
    runner.close()
    workplace.close()
"""


@pytest.mark.parametrize("python", pythons(range(8, 16)))
def test_an_agent_runs_on_every_python_of_this_machine(python: str, tmp_path: Path) -> None:
    command = [python, "-I", "-W", "error", "-c", textwrap.dedent(ON_ITS_OWN), str(SOURCE), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    version, quick, payloads, dropped = json.loads(run.stdout)
    assert quick or version >= [3, 15]
    assert [each.get("reason", each["exit_code"]) for each in payloads] == [
        "SUCCESS", "application-error", "segmentation-fault", "wall-time", "failure-pattern", "SUCCESS",
    ]  # fmt: skip
    assert [each["name"] for each in payloads[0]["manifest"]] == ["a.b"]
    assert dropped == 3_000_000 - 2 * 32 * 1024


READ_ALL = """
    import importlib, os, sys, types
    for name in ("pilotage", "pilotage.agent"):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(sys.argv[1], *name.split("."))]
        sys.modules[name] = module
    for name in sys.argv[2:]:
        importlib.import_module(name)
"""


@pytest.mark.parametrize("python", pythons(range(8, 16)))
def test_every_module_of_the_agent_is_read_by_every_python_of_this_machine(python: str) -> None:
    files = [each for each in (SOURCE / "pilotage" / "agent").rglob("*.py") if not each.stem.startswith("__")]
    names = sorted(".".join(each.relative_to(SOURCE).with_suffix("").parts) for each in files)
    command = [python, "-I", "-W", "error", "-c", textwrap.dedent(READ_ALL), str(SOURCE), *names]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
