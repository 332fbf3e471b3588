"""The tables and the drawing of `bench.selection`, also of a single run, of which nobody can say how sure it is."""

from __future__ import annotations

import re

import pytest

from bench.selection import FREEZE, VARIANTS, WORLDS, settings_of, worlds
from bench.selection_report import drawing, tables
from pilotage.simulator.runs.comparison import POLICIES, Summary, makespan_of


def summary(policy: str, *makespans: float) -> Summary:
    return Summary(
        variant=policy, runs=len(makespans), finished=len(makespans), unfinished=0, held=0, makespan=makespan_of(makespans),
        mean_method="", attempts=3.0, packages_done=2.0, packages_failed=0.0, wasted_share=0.1, failures={}, phases={},
        sites={}, makespans=makespans,
    )  # fmt: skip


@pytest.mark.parametrize(
    "makespans, row",
    [
        ([(600.0,), (660.0,)], "| equal | 10.0 min | +10.0 % |"),
        ([(600.0, 600.0), (660.0, 660.0)], "| equal | 10.0 ± 0.0 min | **+10.0 % (+10.0 to +10.0)** |"),
    ],
)
def test_a_policy_stands_beside_the_first_with_as_much_certainty_as_there_is(
    makespans: list[tuple[float, ...]], row: str
) -> None:
    found = {
        ("equal", "bag", "pilots", policy): summary(policy, *each)
        for policy, each in zip(("first", "best"), makespans, strict=True)
    }
    assert row in tables(found).splitlines()
    assert drawing(found).startswith("<svg ")


def test_every_policy_and_the_freeze_of_the_paper_are_compared_and_drawn() -> None:
    assert set(VARIANTS) == {*POLICIES, FREEZE}
    found = {("equal", "bag", "pilots", variant): summary(variant, 600.0, 660.0) for variant in VARIANTS}
    drawn = drawing(found)
    assert all(f">{variant}</text>" in drawn for variant in VARIANTS[1:])


def test_the_freeze_of_the_paper_differs_from_the_first_variant_in_one_setting() -> None:
    assert tuple(worlds()) == WORLDS
    usual, frozen = (settings_of(variant, worlds()["equal"]).selection for variant in (VARIANTS[0], FREEZE))
    fields = [name for name in usual.__struct_fields__ if getattr(usual, name) != getattr(frozen, name)]
    assert fields == ["freeze_on"]


def test_panels_have_one_scale_that_holds_all_that_is_drawn() -> None:
    found = {
        ("equal", job, "pilots", variant): summary(variant, *spans)
        for job, spans in (("bag", (600.0, 612.0)), ("lines", (600.0, 1530.0)))
        for variant, spans in (("weighted-random", (600.0, 600.0)), ("best", spans))
    }
    drawn = drawing(found)
    assert drawn.count(">+160 %</text>") == drawn.count(">0 %</text>") == 2
    places = [float(x) for x in re.findall(r'<circle cx="([0-9.]+)"', drawn)]
    assert max(places) <= 900
