"""Where a job is simulated, and as whose: as a service in the folder would run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.app.simulation import job_to_simulate, sites_to_simulate
from pilotage.app.state_folder import local_user


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def test_the_entry_of_this_computer_is_one_pilot_with_its_slots(tmp_path: Path) -> None:
    assert not sites_to_simulate(named="").written
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites:\n  - {name: local, kind: local, slots: 3}\n")
    found = sites_to_simulate(named="")
    assert ([(each.slots, each.pilots_max) for each in found.entries], found.written) == ([(3, 1)], True)


def test_a_job_is_simulated_as_ones_own_and_as_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "pilotage.toml").write_text("[engine]\nattempts_max = 1\n[selection]\npolicy = 'best'\n")
    (tmp_path / "job.yaml").write_text("pilotage: 1\njob: sweep\nstages:\n  - {each: {n: 1..3}, run: 'work {n}'}\n")
    entry = f"{{name: lyon, kind: slurm, users: [{local_user()}]}}"
    (tmp_path / "sites.yaml").write_text(f"pilotage: 1\nsites:\n  - {entry}\n")
    found = job_to_simulate("job.yaml")
    assert (found.settings.restart.attempts_max, found.settings.selection.policy) == (1, "best")
    assert found.registered.owner == local_user()
    assert [each.name for each in found.sites] == ["lyon"]
    assert "this computer" in " ".join(found.notes)
    (tmp_path / "sites.yaml").write_text(f"pilotage: 1\nsites:\n  - {entry}\n  - {{name: local, kind: local}}\n")
    assert job_to_simulate("job.yaml").notes == ()
