"""What a success leaves in its folder that no output declares is told, of few packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt.attempt import Outcome
from pilotage.agent.attempt.workplace import KEEPING, KINDS_MAX, NAMES_MAX, REASON, UndeclaredFiles, undeclared_fields
from pilotage.model.states import UNDECLARED
from tests.kit.agent_runs import Place, place_in

_LONG_WAY: dict[str, Any] = {"stalled_after_seconds": 60.0}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


def _told(outcome: Outcome) -> tuple[str, str | None, str]:
    payload = outcome.payload
    return payload["exit_code"], payload.get("reason"), payload.get("exit_message", "")


@pytest.mark.parametrize("way", [{}, _LONG_WAY], ids=["short", "long"])
def test_what_was_left_behind_is_named_with_the_line_that_would_keep_it(place: Place, way: dict[str, Any]) -> None:
    (place.folder / "in").write_text("data")
    script = "cp in result.dat; echo more > fit.log; mkdir -p plots; echo x > plots/a.png"
    outcome = place.shell(script, inputs=[{"name": "in"}], binary={"outputs": [{"name": "result.dat"}]}, **way)
    assert _told(outcome) == (
        "SUCCESS",
        UNDECLARED,
        f'it left behind fit.log, plots/a.png: no output declares them\n{KEEPING}["fit.log", "plots/a.png"]',
    )
    assert place.scratch_is_empty()


@pytest.mark.parametrize("way", [{}, _LONG_WAY], ids=["short", "long"])
def test_nothing_is_told_where_everything_is_declared_or_cannot_be_meant(place: Place, way: dict[str, Any]) -> None:
    (place.folder / "in").write_text("data")
    script = "cp in out; mkdir -p __pycache__ .cache empty; echo > __pycache__/a.pyc; echo > .cache/b; echo > .hidden"
    outcome = place.shell(script, inputs=[{"name": "in"}], binary={"outputs": [{"name": "out"}]}, **way)
    assert _told(outcome) == ("SUCCESS", None, "")


def test_an_output_that_stays_because_it_has_another_name_is_not_told(place: Place) -> None:
    outcome = place.shell("echo x > out; ln out also", binary={"outputs": [{"name": "out"}, {"name": "also"}]})
    assert _told(outcome) == ("SUCCESS", None, "")


def test_a_failure_tells_of_its_failure_alone(place: Place) -> None:
    outcome = place.shell("echo x > left; exit 3")
    assert outcome.payload["reason"] == "application-error"
    assert "left" not in outcome.payload["exit_message"].split()


def test_what_was_told_of_one_package_of_a_stage_is_not_told_of_its_like(place: Place) -> None:
    assert _told(place.shell("echo > fit-1.log"))[1] == REASON
    assert _told(place.shell("echo > fit-22.log")) == ("SUCCESS", None, "")
    assert _told(place.shell("echo > other.log"))[1] == REASON


def test_few_packages_of_a_stage_are_told_of_whatever_they_leave() -> None:
    undeclared = UndeclaredFiles()

    def look(package: str, name: str) -> list[str]:
        return undeclared.look({"job": "j", "package": package, "attempt": 1}, {}, [], [name])

    found = [look(f"1.{number}.1", f"{'abcdefghij'[number]}.log") for number in range(10)]
    assert len([names for names in found if names]) == KINDS_MAX
    assert look("2.1.1", "a.log") == ["a.log"]


def test_many_files_are_counted_and_the_first_named() -> None:
    left = [f"{number:04}.dat" for number in range(500)]
    message = undeclared_fields(left)["exit_message"]
    assert f"{left[NAMES_MAX - 1]} and {500 - NAMES_MAX} more: no output declares them" in message
    assert len(undeclared_fields(["x" * 3000])["exit_message"]) < 100
