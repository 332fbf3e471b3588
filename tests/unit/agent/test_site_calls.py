"""Commands that the agent of a site runs for its batch system, and where the agent works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.agent.batch.values import Answer, Call
from pilotage.agent.site.agent import run_here
from pilotage.agent.site.program import folder_of
from tests.kit.agent_runs import is_alive, open_descriptors, wait_until


def test_a_command_gets_its_input_and_tells_its_output_and_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    script = "cat; echo $LC_ALL$PILOTAGE_TOKEN; echo err >&2; exit 3"
    assert run_here(Call(("sh", "-c", script), "in\udcff\n")) == Answer(3, "in\udcff\nC\n", "err\n")
    assert run_here(Call(("true",))) == Answer(0, "", "")


def test_a_command_that_is_not_there_is_told_as_a_shell_would(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    assert run_here(Call(("no-such-command",))) == Answer(127, "", "no-such-command: No such file or directory")
    plain = str(tmp_path / "plain")
    assert run_here(Call((plain,))) == Answer(127, "", f"{plain}: Permission denied")


def test_a_command_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    before, pid = open_descriptors(), tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {pid}; wait"
    assert run_here(Call(("sh", "-c", script)), seconds=0.5) == Answer(None, "", "sh did not end within 0.5 s")
    assert open_descriptors() == before
    if pid.exists() and pid.read_text():
        wait_until(lambda: not is_alive(int(pid.read_text())))


def test_an_agent_works_where_its_user_says_or_in_a_folder_of_its_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert folder_of("/work", site="-") == Path("/work")
    assert folder_of("~/work", site="lyon") == Path("/home/ada/work")
    assert folder_of("work", site="lyon") == Path(os.path.abspath("work"))  # noqa: PTH100
    found = folder_of("", site="lyon-2")
    assert (found.name, found.is_relative_to("/home/ada")) == ("lyon-2", True)
    for site in ("", "-x", "a/b", "..", "a" * 61):
        with pytest.raises(ValueError, match="not a valid site name"):
            folder_of("", site=site)
    assert folder_of("", site="a" * 60).name == "a" * 60
