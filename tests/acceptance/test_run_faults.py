"""Commands that behave badly, and names that look bad, through the real program: each does the right thing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, own_seconds, place_in, processes_with, size_bytes, wait_until

BAD_WORDS = ["two words", 'quo"te', "it's", "new\nline", "$(touch evil)", "`touch evil`", "; touch evil", "", "*", "\\"]
LARGE_BYTES = 2_000_000_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One folder, and so one service, for all: every test has a job and files of its own."""
    with place_in(tmp_path_factory.mktemp("faults")) as place:
        yield place


def test_arguments_reach_the_command_as_they_are_written(place: Place) -> None:
    show = place.folder / "show.sh"
    show.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
    show.chmod(0o755)
    words = [msg.replace("{", "{{") for msg in BAD_WORDS]
    written = "".join(f"      - {quoted(word)}\n" for word in words)
    place.document(f"pilotage: 1\njob: words\nstages:\n  - stdout: words.dat\n    run:\n      - ./show.sh\n{written}")
    place.run("run")
    assert (place.folder / "words.dat").read_bytes().decode().split("\0")[:-1] == BAD_WORDS
    assert not list(place.folder.rglob("evil"))


def quoted(word: str) -> str:
    """A word as YAML writes it between double quotes."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def test_daemons_that_a_command_leaves_are_ended_and_keep_nobody_waiting(place: Place) -> None:
    # One in its session, one in a session of its own, and one that also drops its whole environment.
    seconds = own_seconds()
    place.document(
        "pilotage: 1\njob: daemons\nstages:\n  - outputs: [daemons.txt]\n    shell: |\n"
        f"      sleep {seconds}.1 &\n"
        f"      setsid sleep {seconds}.2 &\n"
        f"      (setsid env -i sh -c 'sleep {seconds}.3; true' &)\n"
        "      echo made > daemons.txt\n"
    )
    place.run("run")
    assert (place.folder / "daemons.txt").read_text() == "made\n"
    assert processes_with(seconds) == []


def test_a_command_that_prints_two_gigabytes_fills_neither_disk_nor_memory(place: Place) -> None:
    place.document(
        "pilotage: 1\njob: loud\nstages:\n  - outputs: [loud.txt]\n    shell: |\n"
        f"      echo the first line; head -c {LARGE_BYTES} /dev/zero | tr '\\0' '\\n'; echo the last line\n"
        "      echo made > loud.txt\n"
    )
    told = place.told("run")
    assert told["done"] == 1
    assert size_bytes(place.state) < 100_000_000
    logs = place.run("logs", f"{told['job']}/1.1.1").stdout
    assert "the last line" in logs
    assert len(logs) < 20_000_000


def test_a_command_that_closes_its_streams_runs_to_its_end(place: Place) -> None:
    place.document(
        "pilotage: 1\njob: quiet\nstages:\n  - outputs: [quiet.txt]\n    shell: |\n"
        "      exec <&- >&- 2>&-\n      /bin/true\n      echo made > quiet.txt\n"
    )
    place.run("run")
    assert (place.folder / "quiet.txt").read_text() == "made\n"


def test_a_command_that_ignores_the_request_to_end_is_killed_and_its_limit_is_named(place: Place) -> None:
    seconds = own_seconds()
    place.document(
        "pilotage: 1\njob: stubborn\nstages:\n  - retry: {attempts_max: 1}\n    resources: {wall_time: 1s}\n"
        f"    shell: |\n      trap '' TERM INT HUP\n      while true; do sleep {seconds}; done\n"
    )
    done = place.run("run", code=1)
    assert "wall-time" in done.stdout
    assert "it ran longer than its 1 s" in done.stdout
    assert processes_with(seconds) == []


def test_outputs_are_written_with_the_umask_of_the_user(tmp_path: Path) -> None:
    document = (
        "pilotage: 1\njob: modes\nstages:\n  - each: {{n: [{name}]}}\n    outputs: ['{{n}}/out.txt', '{{n}}/run.sh']\n"
        "    shell: mkdir {{n}}; echo x > {{n}}/out.txt; echo x > {{n}}/run.sh; chmod +x {{n}}/run.sh\n"
    )
    for umask, modes in (("027", (0o750, 0o640, 0o750)), ("002", (0o775, 0o664, 0o775))):
        name = f"with-{umask}"
        with place_in(tmp_path) as place:  # each with a service of its own, which has the umask of who started it
            place.umask = umask
            place.document(document.format(name=name))
            place.run("run")
        made = [tmp_path / name, tmp_path / name / "out.txt", tmp_path / name / "run.sh"]
        assert tuple(stat.S_IMODE(each.stat().st_mode) for each in made) == modes
    assert stat.S_IMODE((tmp_path / ".pilotage").stat().st_mode) == 0o700


def test_a_file_that_is_not_ours_and_comes_in_between_holds_the_job_until_it_is_moved(place: Place) -> None:
    os.mkfifo(place.folder / "started")
    os.mkfifo(place.folder / "go")
    place.document(
        "pilotage: 1\njob: between\nstages:\n  - outputs: [between.txt]\n"
        "    shell: 'echo x > $PILOTAGE_FOLDER/started; cat $PILOTAGE_FOLDER/go > between.txt'\n"
    )
    process = place.begin("run")
    assert (place.folder / "started").read_text() == "x\n"
    (place.folder / "between.txt").write_text("precious")
    (place.folder / "go").write_text("made\n")
    done = place.ended(process, code=3)
    assert "this file exists, and pilotage did not make it" in done.stdout
    assert "pilotage release between-" in done.stdout
    assert (place.folder / "between.txt").read_text() == "precious"
    (place.folder / "between.txt").rename(place.folder / "kept.txt")
    job = done.stdout.partition(":")[0]
    place.run("release", job)
    wait_until((place.folder / "between.txt").exists, "the output")
    assert (place.folder / "between.txt").read_text() == "made\n"
    assert "1 of 1 package done" in place.run("attach", job).stdout


def test_a_failed_attempt_of_a_moment_tells_its_peak_memory(place: Place) -> None:
    place.document("pilotage: 1\njob: small\nstages:\n  - retry: {attempts_max: 1}\n    shell: 'sleep 0.7; exit 3'\n")
    done = place.run("run", code=1)
    assert "exit status 3, peak memory" in done.stdout


def test_a_failed_attempt_that_nobody_saw_tells_what_it_used_and_that_it_was_cleaned_up_before_the_next(
    place: Place,
) -> None:
    place.document(
        "pilotage: 1\njob: untidy\nstages:\n  - retry: {attempts_max: 2}\n"
        "    shell: 'ls -A > $PILOTAGE_FOLDER/found-$PILOTAGE_ATTEMPT; echo x > left; exit 3'\n"
    )
    done = place.run("run", code=1)
    assert "exit status 3, peak memory " in done.stdout
    package = f"{done.stdout.partition(':')[0]}/1.1.1"
    first, second = place.told("status", package, "--json")["attempts"]
    assert [each["phase"] for each in first["phases"]] == ["setup", "application", "cleaning"]
    cleaning = first["phases"][-1]
    assert cleaning["seconds"] > 0
    over_at = cleaning["started_at"] + cleaning["seconds"]
    assert over_at - 0.001 <= first["finished_at"] < second["created_at"]
    assert (place.folder / "found-2").read_text() == ""
    told = place.told("outputs", package, "--json")["measured"]
    assert told["cpu_seconds"] == pytest.approx(told["cpu_user_seconds"] + told["cpu_system_seconds"], abs=2e-6)
    assert told.get("peak_memory_below_bytes") or told.get("peak_memory_bytes")
