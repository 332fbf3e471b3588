from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotage.model.jobs.layout import PackageId, StageLayout, TemplateLayout, parse_path

templates = st.lists(st.builds(TemplateLayout, st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=4)
layouts = st.builds(
    lambda stage, first, items, parts: StageLayout(stage=stage, first=first, items=items, templates=parts),
    st.integers(1, 1500),
    st.integers(0, 10_000),
    st.integers(0, 5),
    templates,
)


def naive(layout: StageLayout) -> list[PackageId]:
    """The places of all packages, counted one by one in document order."""
    places: list[PackageId] = []
    line = 0
    for _ in range(layout.items):
        for template in layout.templates:
            for _ in range(template.lines):
                line += 1
                places.extend(PackageId(layout.stage, line, number + 1) for number in range(template.packages))
    return places


@given(layouts)
def test_numbers_and_places_belong_to_each_other(layout: StageLayout) -> None:
    places = naive(layout)
    numbers = range(layout.first, layout.first + layout.count)
    assert [layout.id(number) for number in numbers] == places
    assert [layout.number(place) for place in places] == list(numbers)
    assert layout.lines == len({place.line for place in places})


@given(layouts)
def test_locating_a_package_and_asking_for_it_are_inverse(layout: StageLayout) -> None:
    for number in range(layout.first, layout.first + layout.count):
        template, item, line, position = layout.locate(number)
        assert layout.package(template=template, item=item, line=line, number=position) == number


@given(layouts, st.integers(-2, 60), st.integers(-2, 6))
def test_a_place_that_is_not_there_has_no_number(layout: StageLayout, line: int, number: int) -> None:
    place = PackageId(layout.stage, line, number)
    assert (layout.number(place) is not None) == (place in naive(layout))


@given(st.integers(1, 10**6), st.integers(1, 10**8), st.integers(1, 10**6), st.text(min_size=1, max_size=8))
def test_a_path_is_read_back(stage: int, line: int, number: int, job: str) -> None:
    place = PackageId(stage, line, number)
    if "\n" not in job:
        assert parse_path(place.path(job)) == place
