"""Inputs in place: each is described once for every content, with who made it, and never with a checksum of something else."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from pilotage.book.codec import Codec
from pilotage.model.events.payloads import InputInPlace, OutputFile
from pilotage.service.jobs.resubmission import later_tags
from pilotage.service.jobs.submission import SubmissionError
from pilotage.service.journal.writer import BatchCommitter
from pilotage.service.works.consumed import InputsInPlace, described_inputs, description, undescribed_inputs
from tests.kit.earlier_work import Place, place
from tests.kit.events import StandingClock

JOB = "pilotage: 1\njob: read\nstages: [{shell: cat *, inputs: [large.dat, small.txt]}]\n"
LARGE = "x" * 100_000


class Told:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.files: list[tuple[str, InputInPlace]] = []
        self.inputs = InputsInPlace(place.tree, place.index, self.tell)

    def tell(self, job: str, files: Sequence[InputInPlace]) -> None:
        self.files += [(job, file) for file in files]

    def read(self, *names: str, job: str = "j") -> None:
        self.inputs.read(job, str(self.place.folder), self.place.tree.look_up(str(self.place.folder), names))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    with place(tmp_path) as made:
        found = Told(made)
        yield found
        found.inputs.stop()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_file_that_many_packages_read_is_described_once_and_again_when_it_changed(told: Told) -> None:
    told.place.write(a_dat="one")
    for _ in range(3):
        told.read("a.dat")
    told.inputs.settle()
    told.place.write(a_dat="other")
    told.read("a.dat")
    told.inputs.settle()
    assert [(job, file.sha256, file.size_bytes) for job, file in told.files] == [
        ("j", sha256("one"), 3),
        ("j", sha256("other"), 5),
    ]


def test_what_was_brought_to_a_site_is_described_once_with_its_locator(told: Told) -> None:
    told.place.write(a_dat="one")
    brought = InputInPlace(name="b c", size_bytes=7, sha256="ab" * 32, locator="s3://bucket/b c")
    for _ in range(3):
        told.inputs.know("j", [brought])
        told.inputs.know("j", [])
        told.read("a.dat")
    told.inputs.settle()
    assert sorted(told.files, key=lambda each: each[1].name) == [
        ("j", InputInPlace(name="a.dat", size_bytes=3, sha256=sha256("one"))),
        ("j", brought),
    ]


def test_a_file_that_was_replaced_before_it_could_be_read_has_no_checksum(told: Told) -> None:
    told.place.write(a_dat="one")
    before = told.place.tree.look_up(str(told.place.folder), ["a.dat"])
    (told.place.folder / "a.dat").unlink()
    told.inputs.read("j", str(told.place.folder), before)
    told.inputs.settle()
    assert [file for _, file in told.files] == [InputInPlace(name="a.dat", size_bytes=3)]


def test_the_job_that_made_an_input_is_told(told: Told) -> None:
    told.place.write(a_dat="one")
    made = OutputFile(name="a.dat", size_bytes=3, sha256=sha256("one"))
    told.place.index.claim(str(told.place.folder), "earlier", [made])
    told.read("a.dat")
    told.read("a.dat", job="earlier")
    told.inputs.settle()
    assert [(job, file.origin, file.job) for job, file in told.files] == [
        ("j", "job", "earlier"),
        ("earlier", "folder", None),
    ]


def test_a_job_is_pending_until_its_inputs_are_written(told: Told) -> None:
    told.place.write(a_dat="one")
    may_write, writes = threading.Event(), threading.Event()

    def tell(job: str, files: Sequence[InputInPlace]) -> None:
        writes.set()
        may_write.wait()
        told.tell(job, files)

    inputs = InputsInPlace(told.place.tree, told.place.index, tell)
    inputs.read("j", str(told.place.folder), told.place.tree.look_up(str(told.place.folder), ["a.dat"]))
    writes.wait()
    assert inputs.is_pending("j")
    assert not inputs.is_pending("k")
    may_write.set()
    inputs.settle()
    assert not inputs.is_pending("j")
    assert told.files
    inputs.stop()


def test_what_an_earlier_service_left_out_is_found_again(told: Told) -> None:
    told.place.write(large_dat=LARGE, small_txt="small")
    prepared = told.place.prepare(JOB)
    clock = StandingClock((told.place.folder / "large.dat").stat().st_mtime + 10.0)
    keep = BatchCommitter(told.place.journal, clock=clock)
    data = msgspec.Raw(msgspec.json.encode(prepared.registered))
    event = {"source": "service", "stream": "s", "time": clock.now(), "seen": 0, "job": prepared.job}
    begun = {"package": "1.1.1", "attempt": 1, "data": {"site": "here", "lease_seconds": 60.0}}
    registered = {**event, "n": 1, "type": "JobRegistered", "data": data}
    keep.take_batch(msgspec.json.encode({"events": [registered, {**event, **begun, "n": 2, "type": "AttemptCreated"}]}))

    def undescribed() -> dict[str, object]:
        row = told.place.journal.job(prepared.job)
        assert row is not None
        found = undescribed_inputs(told.place.journal, row, prepared.expansion, prepared.origin, told.place.tree)
        return {**found}

    found = undescribed()
    assert set(found) == {"large.dat"}  # the small one came with the job
    assert found["large.dat"] is not None
    told.read("large.dat", job=prepared.job)
    told.inputs.settle()
    row = told.place.journal.job(prepared.job)
    assert row is not None
    files = [file for _, file in told.files]
    checked, refused = Codec().check_all([description(row, files, journal=told.place.journal, clock=clock)])
    keep.keep(checked, refused)
    assert [file.sha256 for file in described_inputs(told.place.journal, row)] == [sha256(LARGE)]
    assert undescribed() == {}


def test_a_document_that_is_submitted_again_tags_its_unfinished_job_but_takes_no_further_files(told: Told) -> None:
    told.place.write(large_dat=LARGE, small_txt="small")
    prepared = told.place.prepare(JOB, annotations={"group": "A", "study": "B"})
    clock = StandingClock()
    keep = BatchCommitter(told.place.journal, clock=clock)
    data = msgspec.Raw(msgspec.json.encode(prepared.registered))
    event = {"source": "service", "stream": "s", "n": 1, "time": clock.now(), "job": prepared.job}
    keep.take_batch(msgspec.json.encode({"events": [{**event, "type": "JobRegistered", "data": data}]}))
    row = told.place.journal.job(prepared.job)
    assert row is not None
    again = told.place.prepare(JOB, annotations={"group": "C", "study": "B"}).registered
    events = later_tags(row, again, told.place.journal, now=clock.now())
    assert [msgspec.json.decode(each.data) for each in events] == [{"name": "group", "value": "C"}]
    content = told.place.journal.put_content(b"notes")
    more = told.place.prepare(JOB, custom={"notes": content}).registered
    with pytest.raises(SubmissionError, match="takes no further files"):
        later_tags(row, more, told.place.journal, now=clock.now())


def test_a_name_that_cannot_be_a_tag_is_refused(told: Told) -> None:
    told.place.write(large_dat=LARGE, small_txt="small")
    with pytest.raises(SubmissionError, match="cannot name an annotation"):
        told.place.prepare(JOB, annotations={"a b": "A"})


def test_a_file_whose_checksum_two_threads_want_is_read_by_one_at_a_time(told: Told) -> None:
    told.place.write(a_dat="one")
    with told.inputs.reading:
        told.read("a.dat")
        assert told.inputs.is_pending("j")
        assert told.files == []
    told.inputs.settle()
    assert [file.sha256 for _, file in told.files] == [sha256("one")]
