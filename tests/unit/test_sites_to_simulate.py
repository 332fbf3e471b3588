"""Where a job is simulated: this computer has the slots that are written of it, as for a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.app.simulating import sites_to_simulate


def test_the_entry_of_this_computer_is_one_pilot_with_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert not sites_to_simulate(named="").written
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites:\n  - {name: local, kind: local, slots: 3}\n")
    found = sites_to_simulate(named="")
    assert ([(each.slots, each.pilots_max) for each in found.entries], found.written) == ([(3, 1)], True)
