"""A run that is refused, and a plan that says so before: nothing is started that stays, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.service.announcement import find_service
from tests.kit.real_runs import Place, place_in

SMALL = "pilotage: 1\njob: small\nstages:\n  - run: 'true'\n"
IMPOSSIBLE = "pilotage: 1\njob: large\nstages:\n  - run: 'true'\n    memory: 900 TiB\n    stdout: o.txt\n"
FAULTY = "pilotage: 1\njbo: small\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as made:
        yield made


@pytest.mark.parametrize("text", [FAULTY, IMPOSSIBLE])
def test_a_document_that_is_refused_leaves_nothing_behind(place: Place, text: str) -> None:
    place.document(text)
    before = sorted(place.folder.iterdir())
    place.run("run", code=2)
    assert sorted(place.folder.iterdir()) == before


def test_what_earlier_runs_left_stays_when_one_is_refused(place: Place) -> None:
    place.document(SMALL)
    job = place.told("run")["job"]
    place.document(IMPOSSIBLE)
    place.run("run", code=2)
    assert place.told("status", job)["job"]["state"] == "DONE"


def test_a_run_whose_service_cannot_start_says_why_and_does_not_try_twice(place: Place) -> None:
    place.document(SMALL)
    place.state.mkdir(mode=0o700)
    (place.state / "book.sqlite").write_bytes(b"no book " * 1000)
    assert "the service did not start: " in (told := place.run("run", code=2).stderr)
    assert "file is not a database" in told
    assert place.log().count("file is not a database") == 1


def test_a_plan_is_refused_as_the_run_would_be_with_a_service_and_without(place: Place) -> None:
    place.document(IMPOSSIBLE)
    told = [place.run(command, code=2).stderr for command in ("run", "plan")]
    place.run("serve", "--background")
    told += [place.run(command, code=2).stderr for command in ("plan", "run")]
    assert "no site can run true: it asks for 900 TiB of memory" in told[0]
    assert len({*told}) == 1


def test_a_plan_is_refused_over_the_quota_as_the_run_would_be_and_an_unfinished_run_goes_on(place: Place) -> None:
    (place.folder / "pilotage.toml").write_text("[engine]\nowner_packages_max = 1\n", "utf-8")
    place.document("pilotage: 1\njob: held\nhold: true\nstages:\n  - run: 'true'\n")
    place.run("run", "--detach")
    assert place.told("plan")["would_run"] == 1  # the unfinished job is a run of the same document
    (place.folder / "other.yaml").write_text(SMALL, "utf-8")
    told = [place.run(command, "other.yaml", code=2).stderr for command in ("plan", "run")]
    place.run("serve", "--stop")
    told.append(place.run("plan", "other.yaml", code=2).stderr)
    assert all("1 more packages would exceed the limit of 1 for" in each for each in told)


def test_a_query_that_finds_nothing_starts_no_service(place: Place) -> None:
    place.document(SMALL)
    job = place.told("run")["job"]
    place.run("serve", "--stop")
    for words in (["restart"], ["retry", job], ["release", "--jobs"]):
        told = place.told(*words, "--where", "state = ABORTED")
        assert (told["found"], told["done"], told["refused"]) == (0, 0, 0)
    assert find_service(place.state) is None
    assert place.told("restart", "--where", f"job = {job} and state = DONE")["done"] == 1
    assert find_service(place.state) is not None
