from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.agent_runs import Place, is_alive, pids_of, place_in, wait_until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


def _left(place: Place, count: int) -> list[int]:
    """The processes that wrote down their ids in the job's folder."""
    files = [place.folder / f"pid-{number}" for number in range(1, count + 1)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return pids_of(files)


def test_what_a_command_leaves_in_the_background_is_ended(place: Place) -> None:
    payload = place.shell(f"sleep 600 & echo $! > {place.folder}/pid-1").payload
    assert payload["exit_code"] == "SUCCESS"
    assert not any(map(is_alive, _left(place, 1)))


def test_a_daemon_that_ignores_requests_is_killed_before_outputs_are_taken(place: Place) -> None:
    body = f"trap '' TERM HUP; echo $$ > {place.folder}/pid-1; while :; do echo x >> out; sleep 0.01; done"
    wait = f"until [ -s {place.folder}/pid-1 ] && [ -s out ]; do sleep 0.01; done"
    outcome = place.shell(
        f'setsid sh -c "{body}" & {wait}'.replace("$$", "\\$\\$"), binary={"outputs": [{"name": "out"}]}
    )
    assert outcome.payload["exit_code"] == "SUCCESS"
    assert set(place.outputs(outcome)["out"]) == set(b"x\n")
    assert not any(map(is_alive, _left(place, 1)))


def test_processes_of_others_are_left_alone(place: Place) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        place.shell("sleep 600 &")
        place.shell("true")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_everything_of_a_stopped_command_is_ended(place: Place) -> None:
    script = f"""
        sh -c 'trap "" TERM; echo $$ > {place.folder}/pid-1; while :; do sleep 0.01; done' &
        setsid sh -c 'trap "" TERM; echo $$ > {place.folder}/pid-2; while :; do sleep 0.01; done' &
        while :; do sleep 0.01; done
    """
    assert place.shell(script, demand={"wall_seconds": 0.4}).payload["reason"] == "wall-time"
    assert not any(map(is_alive, _left(place, 2)))


# An agent of its own: it adopts orphans, which a process that runs tests must not.
SOLE_AGENT = """
    import os, sys, threading
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from tests.kit.agent_runs import Place, is_alive, wait_until
    folder = Path({folder!r})
    place = Place(folder, sole=True, grace_seconds=0.2)
    results = []
    def in_slot(script):
        thread = threading.Thread(target=lambda: results.append(place.shell(script).payload["exit_code"]))
        thread.start()
        return thread
    {body}
    place.close()
"""


def _sole_agent(folder: Path, body: str) -> str:
    root = str(Path(__file__).parents[3])
    program = textwrap.dedent(SOLE_AGENT).format(root=root, folder=str(folder), body=textwrap.dedent(body).strip())
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


NAMELESS = (
    "setsid env -i sh -c 'trap \"\" TERM; echo $$ > {folder}/pid; while :; do /bin/sleep 0.01; done' >/dev/null 2>&1 &"
)
UNTIL = "; until [ -s {folder}/pid ]; do sleep 0.01; done"


def test_an_orphan_without_any_mark_is_ended_by_an_agent_that_adopts(tmp_path: Path) -> None:
    script = (NAMELESS + UNTIL[1:]).format(folder=tmp_path)
    told = _sole_agent(
        tmp_path,
        f"""
in_slot({script!r}).join()
pid = int((folder / "pid").read_text())
print(results, is_alive(pid), os.path.exists(f"/proc/{{pid}}"))
""",
    )
    assert told.split("\n")[0] == "['SUCCESS'] False False"


def test_an_orphan_that_may_be_of_a_running_attempt_waits_for_its_end(tmp_path: Path) -> None:
    script = (NAMELESS + UNTIL[1:]).format(folder=tmp_path) + f"; until [ -e {tmp_path}/go ]; do sleep 0.01; done"
    told = _sole_agent(
        tmp_path,
        f"""
from pilotage.agent.attempt.attempt import AttemptRunner
long = in_slot({script!r})
wait_until(lambda: (folder / "pid").exists() and bool((folder / "pid").read_text()))
pid = int((folder / "pid").read_text())
other = AttemptRunner(place.workplace, 2)
place.runner, first = other, place.runner
in_slot("true").join()
print(is_alive(pid))
(folder / "go").touch()
long.join()
print(is_alive(pid), results)
other.close()
place.runner = first
""",
    )
    assert told.split("\n")[:2] == ["True", "False ['SUCCESS', 'SUCCESS']"]


def test_an_agent_that_adopts_buries_what_died_by_itself(tmp_path: Path) -> None:
    told = _sole_agent(
        tmp_path,
        """
in_slot("setsid sh -c 'exit 0' & sleep 0.2").join()
in_slot("true").join()
print(open(f"/proc/self/task/{os.getpid()}/children").read().split())
""",
    )
    assert told == "[]\n"


def test_a_slot_whose_commands_cannot_be_ended_takes_another_folder(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.shell("true")
    monkeypatch.setattr(type(place.workplace.cleanup), "clear", lambda *_, **__: False)
    place.shell("echo x; pwd; : > left")
    monkeypatch.undo()
    assert (place.root / "scratch" / "slot-1" / "left").exists()
    assert place.shell("ls -A").logs == []
    assert (place.root / "scratch" / "slot-1.1").is_dir()
    assert sorted(each.name for each in (place.root / "scratch").glob("*.std*")) == [
        "slot-1.1.stderr",
        "slot-1.1.stdout",
    ]


def test_this_process_adopts_nothing_by_itself(place: Place) -> None:
    assert not place.workplace.cleanup._adopts
    assert os.getpid() > 0


@pytest.mark.parametrize("outputs", [[], [{"name": "out"}]], ids=["nothing", "a file"])
def test_a_command_that_puts_a_link_in_the_place_of_its_folder_has_nothing_removed_behind_it(
    place: Place, tmp_path: Path, outputs: list[dict[str, str]]
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "out").write_text("x")
    (precious / "other").write_text("y")
    place.shell(f'here=$PWD; cd ..; rm -rf "$here"; ln -s {precious} "$here"', binary={"outputs": outputs})
    again = place.shell("ls -A; echo z > out", binary={"outputs": [{"name": "out"}]})
    assert again.payload["exit_code"] == "SUCCESS"
    assert place.outputs(again)["out"] == b"z\n"
    assert (precious / "other").read_text() == "y"
