"""What the book knows of queues says what is too long, before the sites there are have shown it themselves."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.book.rows.rows import PilotRow, SiteRow
from pilotage.engine.restore import OBSERVED_MAX, Snapshot, observed_queue_seconds, restore
from pilotage.engine.selection import SelectionSettings
from pilotage.engine.selection.site_profile import LearnedState
from pilotage.model.settings.engine import EngineSettings
from tests.kit.small_plans import site

SETTINGS = SelectionSettings()


def pilots(name: str, *waits: float, at: float = 1000.0) -> list[PilotRow]:
    """Rows of pilots that queued for so long, one after the other; and of one that is in the queue."""
    rows = [PilotRow(pilot=f"{name}-0", site=name, requested_at=at)]
    for n, wait in enumerate(waits, 1):
        rows.append(PilotRow(pilot=f"{name}-{n}", site=name, requested_at=at + n, ended_at=at + n + wait + 60))
        rows.append(
            PilotRow(
                pilot=f"{name}-{n}.1", request=f"{name}-{n}", site=name, started_at=at + n + wait, ended_at=at + 1e6
            )
        )
    return rows


def gone(name: str, *waits: float, kind: str = "slurm") -> SiteRow:
    """The row of a site that is no more, with what was learned of it."""
    learned = LearnedState(site=name, earned=0.0, waits=tuple(int(each * 1e6) for each in waits))
    return SiteRow(
        site=name, kind=kind, status="removed", learned=msgspec.json.encode(learned).decode(), updated_at=9.0
    )


def test_pilots_count_by_when_they_were_asked_for_and_when_they_came() -> None:
    rows = [SiteRow(site="lyon", kind="slurm")]
    waits = [400.0 + 10 * n for n in range(12)]
    assert sorted(observed_queue_seconds(rows, pilots("lyon", *waits), SETTINGS)) == waits


def test_where_attempts_queue_themselves_what_was_learned_of_the_site_counts_and_pilots_are_not_counted_twice() -> None:
    found = observed_queue_seconds([gone("lyon", *[500.0] * 12)], [], SETTINGS)
    assert found == [500.0] * 12
    found = observed_queue_seconds([gone("lyon", *[500.0] * 12)], pilots("lyon", *[600.0] * 10), SETTINGS)
    assert found == [600.0] * 10


def test_a_computer_has_no_queue_and_too_few_say_nothing() -> None:
    rows = [SiteRow(site="local", kind="local"), SiteRow(site="lyon", kind="slurm")]
    few = [*pilots("local", *[0.2] * 50), *pilots("lyon", *[900.0] * 9)]
    assert observed_queue_seconds(rows, few, SETTINGS) == []


def test_for_less_than_the_margin_no_site_is_left() -> None:
    rows = [SiteRow(site="lyon", kind="slurm")]
    assert set(observed_queue_seconds(rows, pilots("lyon", *[3.0] * 20), SETTINGS)) == {300.0}


def test_only_the_latest_count() -> None:
    rows = [SiteRow(site="lyon", kind="slurm"), SiteRow(site="nice", kind="slurm")]
    old, new = pilots("lyon", *[9000.0] * 50), pilots("nice", *[600.0] * OBSERVED_MAX, at=1e6)
    assert observed_queue_seconds(rows, [*old, *new], SETTINGS) == [600.0] * OBSERVED_MAX


@pytest.mark.parametrize("known", [True, False])
def test_the_first_throttle_of_an_engine_that_starts_is_a_quantile_of_them(*, known: bool) -> None:
    waits = [float(100 * n) for n in range(1, 21)]
    rows = pilots("lyon", *waits) if known else []
    snapshot = Snapshot(
        pilots=[each for each in rows if each.pilot != "lyon-0"], sites=[SiteRow(site="lyon", kind="slurm")]
    )
    engine = restore(snapshot, sites=[site("nice", kind="slurm")], settings=EngineSettings(), now=1e7)
    assert engine.state.selection.queue_throttle_seconds == (1900.0 if known else 3600.0)
