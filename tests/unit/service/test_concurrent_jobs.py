"""Two jobs of one folder that would make the same file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.language import Expansion, MemoryFolder, load
from pilotage.model.events.events import Event
from pilotage.ports import NotOurs
from pilotage.service.jobs.resubmission import refuse_contested_outputs, were_concurrent
from pilotage.service.jobs.submission import prepare
from tests.kit.earlier_work import Place, place
from tests.kit.sqlite_books import keep


def expanded(outputs: str) -> Expansion:
    text = f"pilotage: 1\njob: j\nstages:\n  - each: {{n: 1..9}}\n    run: make {{n}}\n    outputs: [{outputs}]\n"
    return load(text.encode(), file="job.yaml", folder=MemoryFolder(())).job().expansion


def test_a_name_that_another_unfinished_job_makes_is_refused_with_the_job_that_does() -> None:
    with pytest.raises(
        NotOurs, match=r"the unfinished job other makes the same files: a-1, a-2, a-3, a-4, a-5 and 4 more"
    ):
        refuse_contested_outputs(
            expanded("'a-{n}'"), "/data", [("first", expanded("'b-{n}'")), ("other", expanded("'a-{n}'"))]
        )


def test_other_names_and_patterns_are_nobodys_rivals() -> None:
    mine = expanded("'a-{n}'")
    others = [("first", expanded("'b-{n}'")), ("late", expanded("'a-{n}-*'"))]
    for rivals in (others, []):
        refuse_contested_outputs(mine, "/data", rivals)
    with pytest.raises(NotOurs, match="the unfinished job other"):  # these names are looked at
        refuse_contested_outputs(mine, "/data", [*others, ("other", mine)])


# --- when files are published ---


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


def begun(here: Place, job: str, *, at: float, name: str = "", document: str = "job.yaml", owner: str = "ada") -> None:
    """A job of a document, registered at a time."""
    text = f"pilotage: 1\njob: {name or job}\nstages:\n  - run: make\n    outputs: ['*.dat']\n"
    submission = msgspec.structs.replace(here.submission(text, id=job), document=document)
    prepared = prepare(submission, journal=here.journal, tree=here.tree, index=here.index, owner=owner)
    told(here, job, "JobRegistered", at=at, data=msgspec.json.encode(prepared.registered))


def told(here: Place, job: str, kind: str, *, at: float, data: bytes = b"{}") -> None:
    event = Event(source="service", stream=f"{job}-{kind}", n=1, type=kind, time=at, job=job, data=msgspec.Raw(data))
    keep(here.journal, [event], at=at)


def test_two_jobs_that_were_unfinished_at_once_leave_each_others_files_alone(here: Place) -> None:
    begun(here, "one", at=1.0)
    begun(here, "two", at=2.0)
    assert were_concurrent(here.journal, "two", "one")
    assert were_concurrent(here.journal, "one", "two")
    told(here, "one", "CancelAccepted", at=3.0)  # it is over, and was not when the other came
    assert were_concurrent(here.journal, "two", "one")


def test_what_was_over_before_may_be_replaced(here: Place) -> None:
    begun(here, "one", at=1.0)
    told(here, "one", "CancelAccepted", at=2.0)
    begun(here, "two", at=3.0)
    assert not were_concurrent(here.journal, "two", "one")


def test_runs_of_one_document_replace_each_others_files(here: Place) -> None:
    begun(here, "one", at=1.0, name="sweep")
    begun(here, "two", at=2.0, name="sweep")
    assert not were_concurrent(here.journal, "two", "one")
    begun(here, "three", at=2.0, name="sweep", document="other.yaml")
    begun(here, "four", at=2.0, name="sweep", owner="bob")
    assert were_concurrent(here.journal, "three", "one")
    assert were_concurrent(here.journal, "four", "one")


def test_a_job_is_no_rival_of_itself_nor_of_one_that_nobody_knows(here: Place) -> None:
    begun(here, "one", at=1.0)
    assert not were_concurrent(here.journal, "one", "one")
    assert not were_concurrent(here.journal, "one", "unknown")
