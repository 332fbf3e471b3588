"""From a grant to files under their names: what cannot be published holds its job and is told, and waits to be tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest

from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import Assignment, AttemptRef, InputSource
from pilotage.ports import JobTree, NotOurs, StoreError
from pilotage.service.errors import Unpublished
from pilotage.service.jobs.publishing import Publisher
from pilotage.service.works.manifests import Manifests

FOLDER = "/data"
ONE, TWO = AttemptRef("j", "1.1.1", 1), AttemptRef("j", "1.2.1", 3)
MANIFEST = (OutputFile(name="a.dat", size_bytes=1, sha256="ab" * 32),)


class FakeTree:
    """Notes what is published and thrown away; refuses what the test says."""

    def __init__(self) -> None:
        self.published: list[tuple[str, AttemptRef, Sequence[OutputFile]]] = []
        self.discarded: list[tuple[str, AttemptRef, int]] = []
        self.rivals: dict[str, bool] = {}
        self.fault: StoreError | None = None

    def publish(
        self,
        folder: str,
        ref: AttemptRef,
        manifest: Sequence[OutputFile],
        *,
        is_rival: Callable[[str], bool],
        in_the_way: str,
    ) -> None:
        self.rivals = {other: is_rival(other) for other in ("k", "l")}
        if self.fault is not None:
            raise self.fault
        self.published.append((folder, ref, manifest))

    def discard(self, folder: str, ref: AttemptRef, count: int) -> None:
        if self.fault is not None:
            raise self.fault
        self.discarded.append((folder, ref, count))


class Desk:
    """A publisher among what the test looks at."""

    def __init__(self) -> None:
        self.tree = FakeTree()
        self.holds: list[tuple[str, str]] = []
        manifests = Manifests(cast("Any", NoJournal()))
        manifests.note(ONE, MANIFEST)
        self.publisher = Publisher(
            cast("JobTree", self.tree),
            manifests,
            hold=lambda job, message: self.holds.append((job, message)),
            were_concurrent=lambda job, other: (job, other) == ("j", "k"),
        )


class NoJournal:
    """A book that knows nobody."""

    def job(self, job: str) -> None:
        return None


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_granted_attempt_is_published_with_what_it_told_of(desk: Desk) -> None:
    desk.publisher.publish(FOLDER, ONE)
    desk.publisher.publish(FOLDER, TWO)  # it told of nothing
    assert desk.tree.published == [(FOLDER, ONE, MANIFEST), (FOLDER, TWO, ())]
    assert (desk.holds, desk.publisher.waiting("j"), desk.publisher.fault("j")) == ([], 0, None)


def test_the_store_is_told_which_jobs_are_rivals_of_this_one(desk: Desk) -> None:
    desk.publisher.publish(FOLDER, ONE)
    assert desk.tree.rivals == {"k": True, "l": False}


def test_what_cannot_be_published_holds_its_job_and_is_tried_again_when_that_is_released(desk: Desk) -> None:
    desk.tree.fault = NotOurs("a file is there", subject="/data/a.dat", next_step="move it away")
    desk.publisher.publish(FOLDER, ONE)
    desk.publisher.publish(FOLDER, TWO)
    told = "the outputs of 1.2.1 cannot be published: /data/a.dat: a file is there"
    assert [job for job, _ in desk.holds] == ["j", "j"]
    assert desk.holds[-1][1] == told
    assert (desk.publisher.waiting("j"), desk.publisher.waiting("other")) == (2, 0)
    assert desk.publisher.fault("j") == Unpublished(
        package="1.2.1", attempt=3, what=told, next_step="move it away", count=2
    )
    assert desk.publisher.take_waiting("j") == [ONE, TWO]
    assert (desk.publisher.waiting("j"), desk.publisher.fault("j"), desk.publisher.take_waiting("j")) == (0, None, [])


def test_who_reads_files_that_wait_for_their_names_is_not_let_begin(desk: Desk) -> None:
    reads = Assignment(ref=AttemptRef("j", "2.1.1", 1), inputs=(InputSource("1.1.1", 1),))
    assert not desk.publisher.holds_back(reads)
    desk.publisher.postpone(FOLDER, ONE, StoreError("a file is there", subject="/data/a.dat"))
    assert desk.publisher.holds_back(reads)
    assert desk.publisher.jobs() == {"j"}
    others = msgspec.structs.replace(reads, inputs=(InputSource("1.2.1", 1), InputSource("1.1.1", 2)))
    assert not desk.publisher.holds_back(others)
    desk.publisher.take_waiting("j")
    assert not desk.publisher.holds_back(reads)
    assert desk.publisher.jobs() == set()


def test_the_same_attempt_waits_once_however_often_it_fails(desk: Desk) -> None:
    for _ in range(2):
        desk.publisher.postpone(FOLDER, ONE, StoreError("no room", subject="/data"))
    assert desk.publisher.waiting("j") == 1


def test_what_nobody_wants_is_thrown_away_and_if_that_fails_nothing_else_does(desk: Desk) -> None:
    desk.publisher.discard(FOLDER, ONE)
    desk.publisher.discard(FOLDER, TWO)
    assert desk.tree.discarded == [(FOLDER, ONE, 1), (FOLDER, TWO, 0)]
    desk.tree.fault = StoreError("read-only", subject="/data")
    desk.publisher.discard(FOLDER, ONE)
    assert desk.holds == []
