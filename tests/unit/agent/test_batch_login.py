"""Commands of batch systems in a login shell, run by real shells."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.agent.batch import Answer, Call
from pilotage.agent.batch.submitter import in_login_shell
from pilotage.agent.site.agent import run_here


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a profile, as users have it, and whatever it does."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "our-queue").write_text(
        '#!/bin/sh\necho "the queue of $CLUSTER"; cat; echo a word >&2; exit 3\n'
    )
    (tmp_path / "bin" / "our-queue").chmod(0o755)
    (tmp_path / ".profile").write_text(
        "echo Welcome; echo 'a quota is exceeded' >&2; read -r line; export LC_ALL=de_DE.UTF-8 CLUSTER=lyon\n"
        f"export PATH={tmp_path}/bin:$PATH\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_command_is_found_as_a_login_shell_finds_it_and_its_answer_is_its_own(home: Path) -> None:
    assert run_here(Call(("our-queue",))).exit_status == 127
    run = in_login_shell(run_here)
    assert run(Call(("our-queue",), "its input\n")) == Answer(3, "the queue of lyon\nits input\n", "a word\n")


def test_lines_of_setup_come_after_the_profile_and_before_the_command(home: Path) -> None:
    run = in_login_shell(
        run_here, ["echo loaded", "CLUSTER=$CLUSTER-2", "[ -n x ] &&", "  cat  # nothing is there for it"]
    )
    assert run(Call(("our-queue",), "its input\n")) == Answer(3, "the queue of lyon-2\nits input\n", "a word\n")


def test_messages_are_in_a_language_that_we_read_whatever_the_profile_says(home: Path) -> None:
    words = ("sh", "-c", 'echo "$LC_MESSAGES,${LC_ALL-none},$LANG"')
    assert in_login_shell(run_here)(Call(words)).stdout == "C,none,de_DE.UTF-8\n"


def test_where_a_command_is_not_found_what_the_setup_said_tells_why(home: Path) -> None:
    answer = in_login_shell(run_here, ["module-of-ours load slurm"])(Call(("our-limits",)))
    assert answer.exit_status == 127
    assert "our-limits: not found" in answer.stderr
    assert "module-of-ours: command not found" in answer.stderr


def test_a_setup_that_ends_the_shell_is_told_as_it_is(home: Path) -> None:
    answer = in_login_shell(run_here, ["echo no such module >&2; exit 5"])(Call(("our-queue",)))
    assert (answer.exit_status, answer.stdout) == (5, "")
    assert answer.stderr.endswith("no such module\n")
