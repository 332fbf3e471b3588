"""What is done with outputs: copies in stores, removal, and a place in the cache of the site."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.language.stored_outputs import HandledOutput, archives_beside, handled_outputs
from pilotage.model.jobs.file_plan import Wish
from tests.kit.jobs import expanded, only_fault

ARCHIVES = ["s3://one/keep", "sftp://two/keep/", "https://three/"]


def handled(output: str, *names: str, archives: list[str] = ARCHIVES) -> list[HandledOutput]:
    """What is done with the outputs of the second of two packages."""
    stages = f"stages:\n  - each: {{i: 1..2}}\n    run: a\n    outputs: [{{{output}}}]\n"
    return handled_outputs(expanded(stages), 1, names, job="J7", archives=archives)


def test_a_plain_output_is_handed_on_and_kept() -> None:
    assert handled("name: 'x-{i}'", "x-2") == [HandledOutput("x-2")]


def test_the_locator_of_the_document_comes_first() -> None:
    (found,) = handled("name: 'x-{i}', locator: 's3://b/{i}/out', replicas: 3", "x-2")
    assert found.copies == ("s3://b/2/out", "s3://one/keep/J7/x-2", "sftp://two/keep/J7/x-2")
    assert (found.replicas, found.disposed, found.retained) == (3, False, None)


def test_store_without_a_locator_copies_to_the_first_archive() -> None:
    (found,) = handled("name: 'x {i}%', dispositions: [store, deletable]", "x 2%")
    assert (found.copies, found.disposed) == (("s3://one/keep/J7/x%202%25",), True)


def test_missing_stores_are_seen_by_the_number_of_copies() -> None:
    (found,) = handled("name: 'x-{i}', replicas: 3", "x-2", archives=["s3://one/keep"])
    assert (len(found.copies), found.replicas) == (1, 3)


def test_an_archive_that_has_the_locator_itself_holds_no_second_copy() -> None:
    (found,) = handled("name: 'x-{i}', locator: 's3://one/keep/{i}', replicas: 2", "x-2")
    assert found.copies == ("s3://one/keep/2", "sftp://two/keep/J7/x-2")
    assert archives_beside("s3://one/keeper/x", ARCHIVES) == ARCHIVES
    assert archives_beside("", ["s3://a", "s3://a/", "s3://b"]) == ["s3://a", "s3://b"]


def test_names_of_a_pattern_are_added_to_the_folder_of_the_locator() -> None:
    found = handled("name: 'd/{i}-*', locator: '/far/', dispositions: [forward, store]", "d/2-a", "d/2-b")
    assert [each.copies for each in found] == [("/far/d/2-a",), ("/far/d/2-b",)]


def test_names_of_an_expression_are_those_in_its_folder() -> None:
    output = "expression: '.*[.]root', folder: 'out/{i}', dispositions: [forward, store, retain-temporarily]"
    found = handled(output, "out/2/a.root", "out/1/a.root", "out/2/a.txt", "a.root")
    assert [len(each.copies) for each in found] == [1, 0, 0, 0]
    assert found[0].retained == Wish.RETAIN_TEMPORARILY


def test_a_name_goes_before_a_pattern_and_a_pattern_before_an_expression() -> None:
    stages = """\
stages:
  - run: a
    outputs:
      - {expression: '.*', dispositions: [deletable]}
      - {name: "*.dat", dispositions: [store]}
      - {name: b.dat, dispositions: [retain-indefinitely]}
"""
    found = handled_outputs(expanded(stages), 0, ["a.txt", "a.dat", "b.dat"], job="J", archives=ARCHIVES)
    assert [each.disposed for each in found] == [True, False, False]
    assert [each.replicas for each in found] == [0, 1, 0]
    assert found[2].retained == Wish.RETAIN_INDEFINITELY


stores = st.lists(st.sampled_from(["s3://a", "s3://a/", "s3://b/x", "sftp://h/y", "https://w/z/", "/disk"]), max_size=5)
names = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name not in (".", "..") and not name.endswith("\n")
)


@given(stores, st.integers(1, 5), st.sampled_from(["", "s3://a/k/{i}", "s3://c/", "/disk/{i}"]), names)
def test_copies_are_in_different_stores_and_never_more_than_asked(
    archives: list[str], replicas: int, locator: str, name: str
) -> None:
    given = f"locator: '{locator}', " if locator else ""
    (found,) = handled(
        f"expression: '(.|\\n)*', {given}replicas: {replicas}".replace("{i}", "{i}/"), name, archives=archives
    )
    wanted = replicas if locator or replicas > 1 else 0
    assert found.replicas == wanted
    assert len(found.copies) <= wanted
    assert len(set(found.copies)) == len(found.copies)
    assert not locator or found.copies[0].startswith(locator.split("{", maxsplit=1)[0])
    different = len(archives_beside(locator.replace("{i}", "2/"), archives)) + bool(locator)
    assert len(found.copies) == min(wanted, different)


@pytest.mark.parametrize(
    "outputs",
    [
        "[{name: 'x-{i}', locator: 's3://b/one'}]",
        "[{name: 'x-{i}', locator: 's3://b/{k}'}]",
        "[{name: 'x-{i}', locator: 's3://b/{i}'}, {name: 'y-{i}', locator: 's3://b/{i}'}]",
    ],
)
def test_two_outputs_are_not_stored_at_one_locator(outputs: str) -> None:
    stages = f"stages:\n  - each: {{dot: {{i: [1, 2], k: [a, a]}}}}\n    run: a {{k}}\n    outputs: {outputs}\n"
    fault = only_fault(stages)
    assert (fault.code, bool(fault.hint)) == ("same-locator", True)
