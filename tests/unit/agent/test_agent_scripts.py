from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.agent_runs import Place, log_of, place_in, wait_until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


def _script(text: str, **said: Any) -> dict[str, Any]:
    return {"argv": ["/bin/sh", "-c", text], **said}


def test_scripts_run_in_the_documents_folder_around_the_package(place: Place) -> None:
    outcome = place.shell(
        "pwd", pre=_script("pwd; echo from pre > made"), post=_script("cat made; echo $PILOTAGE_EXIT_STATUS")
    )
    assert log_of(outcome, "pre-stdout") == f"{place.folder}\n" != log_of(outcome)
    assert log_of(outcome, "post-stdout") == "from pre\n0\n"


def test_what_scripts_write_is_no_output_of_the_application(place: Place) -> None:
    said = {"pre": _script("echo pre; echo early >&2"), "post": _script("echo post; echo late >&2")}
    outcome = place.shell("echo own; echo bad >&2", **said)
    assert {log["stream"]: log["head"] for log in outcome.logs} == {
        "pre-stdout": "pre\n", "pre-stderr": "early\n", "stdout": "own\n", "stderr": "bad\n",
        "post-stdout": "post\n", "post-stderr": "late\n",
    }  # fmt: skip
    assert [log["stream"] for log in place.shell("echo own").logs] == ["stdout"]
    assert not [each.name for each in place.root.rglob("*post-std*")]


def test_a_pre_script_that_fails_fails_the_package_before_it_runs(place: Place) -> None:
    outcome = place.shell("echo ran", pre=_script("echo reason >&2; exit 3"))
    payload = outcome.payload
    assert (payload["reason"], payload["exit_status"]) == ("application-error", 3)
    assert payload["exit_message"] == "its pre script ended with exit code 3\nreason"
    assert log_of(outcome) == ""


def test_a_pre_script_may_say_that_there_is_nothing_to_do(place: Place) -> None:
    outcome = place.shell("exit 1", pre=_script("exit 5"), pre_skip_exit_code=5, post=_script("exit 1"))
    assert (outcome.payload["exit_code"], outcome.payload["manifest"]) == ("SUCCESS", [])


def test_the_post_script_decides(place: Place) -> None:
    forgiven = place.shell(
        "echo x > a; exit 7", post=_script("[ $PILOTAGE_EXIT_STATUS = 7 ]"), binary={"outputs": [{"name": "a"}]}
    )
    assert place.outputs(forgiven) == {"a": b"x\n"}
    refused = place.shell("true", post=_script("exit 9")).payload
    assert (refused["reason"], refused["exit_status"]) == ("application-error", 9)
    assert "its post script" in refused["exit_message"]


@pytest.mark.parametrize("ends, told", [("exit 7", "7"), ("true", "0"), ("kill -9 $$", "-9")])
def test_a_post_script_is_told_how_the_package_ended_where_it_asks_with_a_word(
    place: Place, ends: str, told: str
) -> None:
    argv = ["/bin/echo", "$RETURN", "$RETRY", "x$RETURN"]
    assert log_of(place.shell(ends, post={"argv": argv}), "post-stdout") == f"{told} 0 x$RETURN\n"


def test_a_script_that_does_not_exist_is_told_as_the_script(place: Place) -> None:
    payload = place.run("/bin/true", pre={"argv": ["./absent"]}).payload
    assert payload["reason"] == "command-not-found"
    assert payload["exit_message"].startswith("its pre script: './absent' cannot be started")


def test_a_script_that_asks_for_it_is_run_again(place: Place) -> None:
    pre = _script("echo x >> tries; [ $(wc -l < tries) -ge 3 ] || exit 4", defer_exit_code=4, defer_seconds=0.01)
    assert place.run("/bin/true", pre=pre).payload["exit_code"] == "SUCCESS"
    assert (place.folder / "tries").read_text() == "x\n" * 3


def test_a_deferred_script_can_be_cancelled(place: Place) -> None:
    results: list[dict[str, Any]] = []
    pre = _script(": > tried; exit 4", defer_exit_code=4, defer_seconds=600)
    thread = threading.Thread(target=lambda: results.append(place.run("/bin/true", pre=pre).payload))
    thread.start()
    wait_until((place.folder / "tried").exists)
    place.runner.cancel("enough")
    thread.join(20)
    assert results[0]["exit_code"] == "EXECUTION_CANCELED"


@pytest.mark.parametrize(
    "pattern, script, failed",
    [
        ({"pattern": "^ERROR"}, "echo 'ERROR 5' >&2", True),
        ({"pattern": "^ERROR"}, "echo 'no ERROR' >&2", False),
        ({"pattern": "^ERROR"}, "echo 'ERROR 5'", False),
        ({"pattern": "bad$", "file": "stdout"}, "printf 'good\\nbad'", True),
        ({"pattern": "bad.good", "file": "stdout"}, "printf 'bad\\ngood'", False),
        ({"pattern": "NaN", "file": "sub/run.log"}, "mkdir sub; echo NaN > sub/run.log", True),
        ({"pattern": "NaN", "file": "sub/run.log"}, "true", False),
    ],
)
def test_a_text_in_a_log_means_failure(place: Place, pattern: dict[str, str], script: str, failed: bool) -> None:  # noqa: FBT001
    payload = place.shell(script, failure_patterns=[pattern]).payload
    assert payload.get("reason") == ("failure-pattern" if failed else None)


def test_a_pattern_names_the_failure_whatever_the_exit_code(place: Place) -> None:
    patterns = [{"pattern": "license", "reason": "no-license"}]
    payload = place.shell("echo no license left >&2; exit 6", failure_patterns=patterns).payload
    assert (payload["reason"], payload["exit_code"], payload["exit_status"]) == ("no-license", "EXECUTION_FAILED", 6)


def test_a_pattern_for_a_stream_is_looked_for_in_its_file_too(place: Place) -> None:
    payload = place.shell("echo oops >&2", binary={"stderr": "err.txt"}, failure_patterns=[{"pattern": "oops"}]).payload
    assert payload["exit_message"].startswith("err.txt says 'oops'")


def _chain(*scripts: str) -> list[dict[str, Any]]:
    return [{"argv": ["/bin/sh", "-c", text]} for text in scripts]


def test_a_later_attempt_begins_behind_the_binaries_that_finished(place: Place, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    flag = place.folder / "mended"
    scripts = [
        "echo one >> {0}/ran; echo 1 > a; mkdir d; echo d > d/x",
        "echo two >> {0}/ran; [ -e {0}/mended ]; cat d/x >> a",
    ]
    chain = _chain(*(f"set -e; {text.format(place.folder)}" for text in scripts))
    chain[-1]["outputs"] = [{"name": "a"}]
    assert place.run(binaries=chain, kept=kept).payload["exit_status"] == 1
    flag.touch()
    outcome = place.run(binaries=chain, kept=kept)
    assert place.outputs(outcome) == {"a": b"1\nd\n"}
    assert (place.folder / "ran").read_text() == "one\ntwo\ntwo\n"
    assert list((tmp_path / "kept").iterdir()) == []


def test_what_was_changed_after_it_was_kept_is_made_again(place: Place, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    chain = _chain(f"echo one >> {place.folder}/ran; echo 1 > a", f"echo 2 >> a; [ -e {place.folder}/mended ]")
    chain[-1]["outputs"] = [{"name": "a"}]
    place.run(binaries=chain, kept=kept)
    (place.folder / "mended").touch()
    assert place.outputs(place.run(binaries=chain, kept=kept)) == {"a": b"1\n2\n"}


def test_another_command_or_another_input_begins_at_the_beginning(place: Place, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    count = f"echo x >> {place.folder}/ran"
    place.run(binaries=_chain(count, "exit 1"), kept=kept)
    place.run(binaries=_chain(f"{count}; true", "exit 1"), kept=kept)
    (place.folder / "in").write_text("")
    place.run(binaries=_chain(count, "exit 1"), inputs=[{"name": "in"}], kept=kept)
    assert (place.folder / "ran").read_text() == "x\n" * 3
    place.run(binaries=_chain(count, "exit 1"), kept=kept)
    assert (place.folder / "ran").read_text() == "x\n" * 3
