from __future__ import annotations

import pytest

from pilotage.model.jobs.layout import PackageId, StageLayout, TemplateLayout, parse_path


def test_paths_are_those_of_the_experiment() -> None:
    assert PackageId(1, 2, 1).path("reco001") == "reco001/001/002/001"
    assert PackageId(1, 1_000_000, 1).path("j") == "j/001/1000000/001"


@pytest.mark.parametrize(
    "path",
    ["", "j", "j/1/1/1", "j/001/001", "j/001/001/001/", "j/aaa/001/001", "j/००१/001/001", "j/0000000001/001/001"],
)
def test_what_is_no_path_is_none(path: str) -> None:
    assert parse_path(path) is None


def test_a_path_may_stand_without_its_job() -> None:
    assert parse_path("001/002/003") == PackageId(1, 2, 3)


def test_templates_repeat_for_each_item_of_the_stage() -> None:
    layout = StageLayout(stage=2, first=10, items=2, templates=[TemplateLayout(2, 1), TemplateLayout(1, 2)])
    places = [layout.id(number) for number in range(10, 18)]
    assert places == [
        PackageId(2, *place) for place in [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (5, 1), (6, 1), (6, 2)]
    ]
    assert (layout.count, layout.lines) == (8, 6)


def test_a_template_without_lines_takes_no_place() -> None:
    layout = StageLayout(
        stage=1, first=0, items=2, templates=[TemplateLayout(0, 3), TemplateLayout(1, 1), TemplateLayout(0, 1)]
    )
    assert [layout.id(number) for number in range(layout.count)] == [PackageId(1, 1, 1), PackageId(1, 2, 1)]
    assert layout.number(PackageId(1, 1, 2)) is None


def test_an_empty_stage_has_no_package() -> None:
    for layout in (
        StageLayout(stage=1, first=5, items=0, templates=[TemplateLayout(1, 1)]),
        StageLayout(stage=1, first=5, items=3, templates=[TemplateLayout(0, 1)]),
    ):
        assert layout.count == layout.lines == 0
        assert layout.number(PackageId(1, 1, 1)) is None
