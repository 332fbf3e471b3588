"""What an attempt made is granted only if its files can have their names, where another job may make the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from pilotage.model.events import payloads
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import Hold, Release
from pilotage.ports import JobTree, NotOurs
from pilotage.service.jobs.output_claims import OutputClaims
from pilotage.service.works.manifests import Manifests
from tests.kit.earlier_work import Place, place
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import chain, site

PATTERN = "pilotage: 1\njob: one\nstages:\n  - shell: make\n    outputs: ['{output}']\n"


class FakeGuard:
    """Says what the test wants, and notes what it was asked."""

    def __init__(self) -> None:
        self.contested: set[str] = {JOB}
        self.why = ""
        self.asked: list[AttemptRef] = []
        self.told: list[AttemptRef] = []

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        self.told.append(ref)

    def refusal(self, ref: AttemptRef) -> str:
        self.asked.append(ref)
        return self.why


def test_what_is_refused_is_held_by_its_package_and_asked_about_again_when_that_is_released() -> None:
    guard = FakeGuard()
    guard.why = "a.dat: another has it"
    with Small(site()) as small:
        small.engine.state.output_guard = guard
        small.submit(chain())
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        pilot.succeed("1.1.1")
        assert (guard.told, guard.asked) == ([ref], [ref])
        assert small.standings() == {"held": ["1.1.1"], "blocked": ["2.1.1"]}
        (held,) = small.told(payloads.Held, "1.1.1")
        assert b"another has it" in bytes(held.data)
        assert "it is held: a.dat: another has it" in [why.message for why in small.explain("1.1.1").reasons]
        small.ask(Release(job=JOB, package="1.1.1"))
        assert small.status("1.1.1") == "held"  # it was asked about, and is held again
        assert len(small.told(payloads.Held, "1.1.1")) == 2
        guard.why = ""
        small.ask(Release(job=JOB, package="1.1.1"))
        assert guard.asked == [ref] * 3
        assert len(small.told(payloads.CommitGranted, "1.1.1")) == 1
        pilot.exchange()
        pilot.succeed("2.1.1")
        assert small.standings() == {"done": ["1.1.1", "2.1.1"]}


def test_of_jobs_that_are_not_contested_nothing_is_asked_and_a_hold_keeps_no_grant_back() -> None:
    guard = FakeGuard()
    guard.contested = {"another"}
    with Small(site()) as small:
        small.engine.state.output_guard = guard
        small.submit(chain())
        pilot = small.pilot()
        small.ask(Hold(job=JOB, package="1.1.1"))
        pilot.succeed("1.1.1")
        assert (guard.told, guard.asked) == ([], [])
        assert small.status("1.1.1") == "done"
        pilot.exchange()
        pilot.unread.clear()


class FakeJobs:
    """Every job is of one folder; which are rivals, the test says."""

    folder = "/data"
    in_the_way = "refuse"

    def __init__(self) -> None:
        self.rivals = True
        self.on_let_go: Callable[[str], None] = lambda _: None

    def get(self, job: str) -> FakeJobs:
        return self

    def were_concurrent(self, job: str, other: str) -> bool:
        return self.rivals


class FakeTree:
    """A tree in which nothing is, or something that is in the way."""

    def __init__(self) -> None:
        self.fault: NotOurs | None = None

    def check(
        self, folder: str, manifest: Sequence[OutputFile], *, is_rival: Callable[[str], bool], in_the_way: str
    ) -> None:
        if self.fault is not None:
            raise self.fault


class NoJournal:
    """A book that knows nobody."""

    def job(self, job: str) -> None:
        return None


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


def file(name: str, digit: str = "a") -> OutputFile:
    return OutputFile(name=name, size_bytes=1, sha256=digit * 64)


def test_the_second_of_two_jobs_with_another_file_of_the_same_name_is_refused_until_the_first_is_over() -> None:
    jobs, tree = FakeJobs(), FakeTree()
    claims = OutputClaims(cast("Any", jobs), Manifests(cast("Any", NoJournal())), cast("JobTree", tree))
    one, two = AttemptRef("one", "1.1.1", 1), AttemptRef("two", "1.1.1", 1)
    claims.contested = frozenset({"one", "two"})
    claims.made(one, [file("x"), file("y")])
    claims.made(two, [file("y", "b")])
    assert claims.refusal(one) == ""
    assert claims.refusal(two) == "y: the unfinished job one has made another file of this name"
    jobs.rivals = False
    assert claims.refusal(two) == ""
    jobs.rivals = True
    equal = AttemptRef("two", "1.2.1", 1)
    claims.made(equal, [file("x")])
    assert claims.refusal(equal) == ""  # the same content is no harm
    third = AttemptRef("two", "1.3.1", 1)
    claims.made(third, [file("x", "c")])
    tree.fault = NotOurs("another file is there", subject="/data/x")
    assert claims.refusal(third) == "/data/x: another file is there"
    tree.fault = None
    jobs.on_let_go("one")
    assert (claims.contested, claims.refusal(third)) == (frozenset({"two"}), "")


@pytest.mark.parametrize(
    "first, second, contested",
    [("a-*", "b.dat", True), ("a.dat", "b-*", True), ("a.dat", "b.dat", False)],
)
def test_jobs_are_contested_where_one_of_them_makes_what_is_not_known_before(
    here: Place, first: str, second: str, *, contested: bool
) -> None:
    claims = OutputClaims(cast("Any", FakeJobs()), Manifests(cast("Any", NoJournal())), cast("JobTree", FakeTree()))
    one, two = (here.prepare(PATTERN.format(output=name)) for name in (first, second))
    claims.contest("two", two.expansion, [])
    assert not claims.contested
    claims.contest("two", two.expansion, [("one", one.expansion)])
    assert claims.contested == ({"one", "two"} if contested else set())
