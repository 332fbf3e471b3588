"""What an operator limits in `[engine]`, in a file or in the environment, is what the engine keeps to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilotage.adapters.settings.settings_files import load_settings
from pilotage.app.service.serve import engine_settings
from pilotage.model.exchange.operations import Accepted, FetchFile, Refused, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import FileNotFetched
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, site, with_files


class Limits:
    """Sets one of the limits in the way that a test is about; what the engine is told then, to make one with."""

    def __init__(self, folder: Path, *, by: str) -> None:
        self._folder = folder
        self._by = by

    def __call__(self, name: str, value: float) -> dict[str, Any]:
        environment = {"HOME": str(self._folder / "home"), "PATH": "/usr/bin"}
        if self._by == "environment":
            environment[f"PILOTAGE_ENGINE_{name.upper()}"] = str(value)
        else:
            (self._folder / "pilotage.toml").write_text(f"[engine]\n{name} = {value}\n", "utf-8")
        told = engine_settings(load_settings(environment=environment, folder=self._folder, flags={}))
        assert getattr(told, name) == value
        names = ("owner_running_max", "owner_packages_max", "waiting_seconds_max", "flood_packages")
        return {each: getattr(told, each) for each in names}


@pytest.fixture(params=["file", "environment"])
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Limits:
    return Limits(tmp_path, by=request.param)


def test_an_owner_runs_no_more_at_once_than_is_set(limited: Limits) -> None:
    with Small(site(cores=8), **limited("owner_running_max", 3)) as small:
        small.submit(bag(5))
        assert small.pilot().packages == ["1.1.1", "1.2.1", "1.3.1"]


def test_an_owner_has_no_more_packages_in_unfinished_jobs_than_is_set(limited: Limits) -> None:
    with Small(site(mode="bound"), **limited("owner_packages_max", 3)) as small:
        refused = small.submit(bag(4), job="four")
        assert isinstance(refused, Refused)
        assert refused.code == "quota"
        assert isinstance(small.submit(bag(3), job="three"), Accepted)
        small.take(SubmitAttempt)


def test_a_package_waits_for_a_site_no_longer_than_is_set(limited: Limits) -> None:
    limits = limited("waiting_seconds_max", 100)
    with Small(site("b", mode="bound", job_throttle=0.0), submit_again_seconds=1e6, **limits) as small:
        small.submit(bag(2))
        small.take(SubmitAttempt)
        small.wait(99)
        assert small.status("1.2.1") == "ready"
        small.wait(1)
        assert small.status("1.2.1") == "aborted"


def test_a_job_is_held_when_more_packages_are_held_for_one_file_than_are_set(limited: Limits) -> None:
    with Small(site(cores=20), **limited("flood_packages", 3)) as small:
        small.submit(with_files(bag(9), {f"1.{line}.1": ["s3://store/a"] for line in range(1, 10)}))
        small.take(SubmitPilot)
        [wanted] = small.take(FetchFile)
        small.step(FileNotFetched(site="a", key=wanted.key, reason="not-in-store", message="no such key"))
        assert len(small.standings()["held"]) == 3
        assert small.engine.state.jobs.by_id["j"].held
