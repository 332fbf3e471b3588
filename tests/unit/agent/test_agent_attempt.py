from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.agent_runs import Place, log_of, open_descriptors, place_in, wait_until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


def test_a_command_that_succeeds_tells_its_phases_and_what_it_used(place: Place) -> None:
    payload = place.shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").payload
    assert payload["exit_code"] == "SUCCESS"
    assert payload["exit_status"] == 0
    assert payload["manifest"] == []
    assert payload["node"] == "here"
    assert [each["phase"] for each in payload["phases"]] == ["setup", "application"] == place.phases
    times = [(each["started_at"], each["seconds"]) for each in payload["phases"]]
    assert all(seconds >= 0 for _, seconds in times)
    assert times == sorted(times)
    assert 0 < payload["cpu_seconds"] < 10


@pytest.mark.parametrize("kind", ["plain", "chained"])
def test_files_are_brought_and_taken_in_phases_of_their_own(place: Place, kind: str) -> None:
    (place.folder / "in.txt").write_text("x")
    given = [{"name": "in.txt", "source": "in.txt"}]
    copies = {"argv": ["/bin/cp", "in.txt", "out.txt"], "outputs": [{"name": "out.txt"}]}
    binaries = [copies] if kind == "plain" else [{"argv": ["/bin/true"]}, copies]
    assert place.run(binaries=binaries, inputs=given).payload["exit_code"] == "SUCCESS"
    assert place.phases == ["setup", "inputs", "application", "outputs"]
    place.phases.clear()
    assert place.run("/bin/echo", "x", binary={"stdout": "said.txt"}).payload["exit_code"] == "SUCCESS"
    assert place.phases == ["setup", "application", "outputs"]


def test_what_was_made_before_is_told_and_nothing_is_run(place: Place) -> None:
    made = [{"name": "a", "size_bytes": 1, "sha256": "0" * 64}]
    payload = place.shell("touch ran; exit 1", adopted=made, message="made before").payload
    assert payload["exit_code"] == "SUCCESS"
    assert payload["manifest"] == made
    assert (payload["reason"], payload["exit_message"]) == ("made-before", "made before")
    assert place.phases == ["setup"]


def test_what_the_service_cannot_say_how_to_run_fails_with_its_words(place: Place) -> None:
    payload = place.shell("true", refused="its definition is gone").payload
    assert payload["reason"] == "platform-failure"
    assert "its definition is gone" in payload["exit_message"]


HARD_WORDS = [
    "a b",
    "it's",
    'say "x"',
    "line\nbreak",
    "$(touch bad)",
    "`touch bad`",
    "*",
    "",
    "-n",
    "é",
    "\\",
    ";touch bad",
]


def test_words_reach_the_command_as_they_are(place: Place) -> None:
    outcome = place.run("/usr/bin/env", "printf", "<%s>", *HARD_WORDS)
    assert log_of(outcome) == "".join(f"<{word}>" for word in HARD_WORDS)
    assert place.scratch_is_empty()


def test_an_application_is_told_who_it_is(tmp_path: Path) -> None:
    own = {"PATH": "/usr/bin:/bin", "PILOTAGE_TOKEN": "secret", "PILOTAGE_SERVER": "old", "HOME": "/home/x"}
    names = "JOB PACKAGE PATH ATTEMPT EPOCH INDEX CORES MEMORY_BYTES GPUS SITE NODE SERVER MARK"
    shown = " ".join(f"{name}=$PILOTAGE_{name}" for name in names.split())
    with place_in(tmp_path, environment=own, site="cluster", server="http://s", ca_file="/c") as place:
        outcome = place.shell(
            f'echo {shown}; echo "$OMP_NUM_THREADS|$HOME|$TINT|$PILOTAGE_TOKEN|$PILOTAGE_CA_FILE"; pwd; echo $PILOTAGE_SCRATCH',
            binary={"environment": {"TINT": "blue", "PILOTAGE_JOB": "forged"}},
            demand={"cores_hundredths": 200, "memory_bytes": 1 << 30},
        )
    first, second, folder, scratch = log_of(outcome).splitlines()
    assert first == (
        "JOB=j1 PACKAGE=1.1.1 PATH=r/001/001/001 ATTEMPT=1 EPOCH=1 INDEX=0 CORES=2 MEMORY_BYTES=1073741824 GPUS=0 "
        f"SITE=cluster NODE=here SERVER=http://s MARK=p.{os.getpid()}"
    )
    assert second == "2|/home/x|blue||/c"
    assert folder == scratch


def test_the_number_of_threads_is_left_alone_where_somebody_said_it(place: Place) -> None:
    demand = {"cores_hundredths": 150}
    assert log_of(place.shell("echo ${OMP_NUM_THREADS-unset}", demand=demand)).strip() == "unset"
    said = place.shell("echo $OMP_NUM_THREADS", binary={"environment": {"OMP_NUM_THREADS": "7"}})
    assert log_of(said).strip() == "7"


@pytest.mark.parametrize(
    "script, reason, code, expected",
    [
        ("echo no good >&2; exit 3", "application-error", "EXECUTION_FAILED", {"exit_status": 3}),
        ("kill -SEGV $$", "segmentation-fault", "EXECUTION_FAILED", {"signal": signal.SIGSEGV}),
        ("kill -BUS $$", "segmentation-fault", "EXECUTION_FAILED", {"signal": signal.SIGBUS}),
        ("kill -FPE $$", "signal", "EXECUTION_FAILED", {"signal": signal.SIGFPE}),
        ("kill -KILL $$", "signal", "EXECUTION_FAILED", {"signal": signal.SIGKILL}),
        ("no-such-command-here", "command-not-found", "EXECUTION_FAILED", {"exit_status": 127}),
        ("echo cp: No space left on device >&2; exit 1", "disk-full", "ERROR_WRITE_LOCAL", {"exit_status": 1}),
        ("/bin/echo x > /dev/full", "disk-full", "ERROR_WRITE_LOCAL", {"exit_status": 1}),
    ],
)
def test_an_end_has_one_reason_and_one_code(
    place: Place, script: str, reason: str, code: str, expected: dict[str, int]
) -> None:
    payload = place.shell(f": > left; {script}").payload
    assert (payload["reason"], payload["exit_code"]) == (reason, code)
    assert expected.items() <= payload.items()
    assert "manifest" not in payload
    assert place.scratch_is_empty()


def test_an_exit_code_that_its_description_names_is_told_by_that_name(place: Place) -> None:
    means = {"error_codes": {"3": "the subject is not there"}}
    message = place.shell("exit 3", binary=means).payload["exit_message"]
    assert message == "'/bin/sh' ended with exit code 3: the subject is not there"
    assert place.shell("exit 4", binary=means).payload["exit_message"] == "'/bin/sh' ended with exit code 4"


def test_a_message_is_a_line_and_the_last_lines_of_stderr(place: Place) -> None:
    payload = place.shell("seq 1 5000 >&2; exit 2").payload
    first, *rest = payload["exit_message"].splitlines()
    assert first == "'/bin/sh' ended with exit code 2"
    assert rest[-1] == "5000"
    assert rest == [str(number) for number in range(5001 - len(rest), 5001)]
    assert 1000 < len(payload["exit_message"]) <= 2000


def test_the_end_of_stdout_is_shown_where_stderr_is_empty(place: Place) -> None:
    assert place.shell("echo only this; exit 1").payload["exit_message"].endswith("only this")


def _script(path: Path, text: str, mode: int = 0o755) -> None:
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize(
    "words, message",
    [
        (["/no/such/program"], "there is no such file"),
        (["no-such-program"], "no folder of PATH has it"),
        (["tool"], "write ./tool"),
        (["./plain"], "the file is not executable"),
        (["./wordless"], "neither a program for this machine nor a script"),
        (["./strange"], "'/no/such/interpreter', which does not exist"),
        (["/usr"], "it is a folder"),
        (["/bin/echo", "x" * 300_000], "exceed the system's limit"),
        ([""], "there is no such file"),
    ],
)
def test_a_command_that_cannot_start_is_told_with_what_is_wrong(place: Place, words: list[str], message: str) -> None:
    _script(place.folder / "tool", "#!/bin/sh\n")
    _script(place.folder / "plain", "#!/bin/sh\n", 0o644)
    _script(place.folder / "wordless", "echo x\n")
    _script(place.folder / "strange", "#!/no/such/interpreter -x\n")
    inputs = [{"name": name} for name in ("tool", "plain", "wordless", "strange")]
    payload = place.run(*words, inputs=inputs).payload
    assert (payload["exit_code"], payload["reason"]) == ("EXECUTION_FAILED", "command-not-found")
    assert message in payload["exit_message"] or (words == [""] and "PATH" in payload["exit_message"])


def test_a_status_of_255_is_an_exit_code_like_another(place: Place) -> None:
    place.run("/no/such/program")
    payload = place.shell("exit 255").payload
    assert (payload["reason"], payload["exit_status"]) == ("application-error", 255)


def test_binaries_run_in_order_and_stop_at_the_first_that_fails(place: Place) -> None:
    shell = ["/bin/sh", "-c"]
    binaries: list[dict[str, Any]] = [
        {"argv": [*shell, "echo one"], "stdout": "sub/one.txt"},
        {"argv": [*shell, "cat; exit 4"], "stdin": "sub/one.txt"},
        {"argv": [*shell, "echo three"]},
    ]
    outcome = place.run(binaries=binaries)
    assert log_of(outcome) == "one\n"
    assert outcome.payload["exit_message"].startswith("binary 2 of 3, '/bin/sh', ended with exit code 4")


def test_of_several_binaries_each_has_a_record_of_its_time_and_its_end(place: Place) -> None:
    shell = ["/bin/sh", "-c"]
    binaries: list[dict[str, Any]] = [
        {"argv": [*shell, "echo one"]},
        {"argv": [*shell, "kill -9 $$"], "name": "second"},
        {"argv": [*shell, "echo three"]},
    ]
    payload = place.run(binaries=binaries).payload
    began = [each["started_at"] for each in payload["binaries"]]
    assert began == sorted(began)
    [application] = [each for each in payload["phases"] if each["phase"] == "application"]
    assert sum(each["seconds"] for each in payload["binaries"]) <= application["seconds"] + 0.01
    told = [
        {name: each[name] for name in each if name not in ("started_at", "seconds")} for each in payload["binaries"]
    ]
    assert told == [{"number": 1, "exit_status": 0}, {"number": 2, "name": "second", "reason": "signal", "signal": 9}]
    assert payload["exit_message"].startswith("binary 2 of 3, second, was ended by signal 9")
    assert "binaries" not in place.run("/bin/true").payload


@pytest.mark.parametrize("output", [{"name": "a"}, {"name": "a*", "pattern": True}, {"expression": "a+"}])
def test_a_missing_output_is_told_of_the_binary_that_should_have_made_it(place: Place, output: dict[str, Any]) -> None:
    binaries = [{"argv": ["/bin/true"]}, {"argv": ["/bin/true"], "outputs": [output]}, {"argv": ["/bin/true"]}]
    payload = place.run(binaries=binaries).payload
    assert (payload["reason"], payload["exit_code"]) == ("missing-output", "ERROR_FILE_NOT_FOUND")
    assert [each.get("reason") for each in payload["binaries"]] == [None, "missing-output", None]


def test_the_startup_script_runs_instead_of_the_binaries(place: Place) -> None:
    outcome = place.run(
        binaries=[{"argv": ["/bin/false"], "environment": {"TINT": "red"}, "outputs": [{"name": "a"}]}],
        startup=["/bin/sh", "-c", "echo $TINT $1 > a", "x", "word"],
    )
    assert place.outputs(outcome) == {"a": b"red word\n"}


def test_a_slot_is_used_again_with_nothing_left_in_it(place: Place) -> None:
    place.shell("echo old; echo older >&2; mkdir -p d/e; : > d/e/f; chmod 0 d; exit 1")
    before = open_descriptors()
    for _ in range(5):
        outcome = place.shell("ls -A; true")
        assert (outcome.payload["exit_code"], outcome.logs) == ("SUCCESS", [])
    assert open_descriptors() == before
    assert [each.name for each in (place.root / "scratch").iterdir() if each.is_dir()] == ["slot-1"]


def test_the_folder_of_a_failed_attempt_is_kept_where_asked(place: Place) -> None:
    payload = place.shell("echo x > clue; exit 1", keep_failed=True).payload
    kept = Path(payload["exit_message"].rpartition("its folder is kept: ")[2])
    assert (kept / "clue").read_text() == "x\n"
    assert place.shell("ls -A", keep_failed=True).logs == []


def test_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with place_in(tmp_path) as place:
        place.close()
    (tmp_path / "b").mkdir()
    with place_in(tmp_path / "b") as place:
        (tmp_path / "b" / "scratch").write_text("in the way")
        payload = place.run("/bin/true").payload
        (tmp_path / "b" / "scratch").unlink()
    assert (payload["exit_code"], payload["reason"]) == ("ERROR_WRITE_LOCAL", "platform-failure")
    assert "making the package's folder" in payload["exit_message"]


def test_a_cancelled_attempt_ends_as_cancelled(place: Place) -> None:
    began = place.folder / "began"
    results: list[dict[str, Any]] = []
    script = f"trap '' TERM; : > {began}; while :; do sleep 0.01; done"
    thread = threading.Thread(target=lambda: results.append(place.shell(script).payload))
    thread.start()
    wait_until(began.exists)
    place.runner.cancel("its job was killed")
    thread.join(20)
    payload = results[0]
    assert payload["exit_code"] == "EXECUTION_CANCELED"
    assert payload["exit_message"].startswith("its job was killed")
    assert payload["signal"] == signal.SIGKILL
    assert "reason" not in payload


def test_a_cancel_that_comes_too_early_or_too_late_stops_nothing(place: Place) -> None:
    place.runner.cancel("too early")
    assert place.run("/bin/true").payload["exit_code"] == "SUCCESS"
    place.runner.cancel("too late")
    assert place.run("/bin/true").payload["exit_code"] == "SUCCESS"


def test_work_that_makes_no_sense_ends_as_a_failure_and_the_slot_goes_on(place: Place) -> None:
    payload = place.run("/bin/true", failure_patterns=[{"pattern": "("}]).payload
    assert payload["reason"] == "platform-failure"
    assert "'(' is invalid" in payload["exit_message"]
    nothing = place.runner.run(
        {"ref": {"job": "j", "package": "1.1.1", "attempt": 1}}, {}, on_phase=lambda *_: None, fetch=place.fetch
    )
    assert nothing.payload["reason"] == "platform-failure"
    assert place.runner.log_texts() == []
    assert place.run("/bin/true").payload["exit_code"] == "SUCCESS"


def test_the_log_of_what_runs_can_be_read_meanwhile(place: Place) -> None:
    go_on = place.folder / "go on"
    thread = threading.Thread(target=lambda: place.shell(f"echo so far; until [ -e '{go_on}' ]; do sleep 0.01; done"))
    thread.start()
    wait_until(lambda: bool(place.runner.log_texts()))
    assert place.runner.log_texts() == [{"stream": "stdout", "head": "so far\n", "final": False}]
    go_on.touch()
    thread.join(20)
    assert place.runner.log_texts() == []


def test_a_pattern_or_an_expression_that_others_try_for_ever_stops_no_agent(place: Place) -> None:
    said = "a" * 2000 + "!"
    patterns = [{"pattern": "(a+)+$"}, {"pattern": "(a|a)*!$"}]
    payload = place.shell(f"echo {said} >&2", failure_patterns=patterns).payload
    assert payload["reason"] == "failure-pattern"
    outputs = [{"expression": "(a+)+", "folder": ""}]
    payload = place.run("/bin/sh", "-c", f": > {'a' * 60}b", binary={"outputs": outputs}).payload
    assert payload["reason"] == "missing-output"
    assert "'(a+)+'" in payload["exit_message"]
