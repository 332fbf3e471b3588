"""What the entry of a site says reaches its batch system, whether the service submits there or the agent of the site."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.sites.batch import BatchSettings, BatchSite
from pilotage.adapters.sites.callers import Here
from pilotage.agent.batch import Answer, Call, dialects
from pilotage.agent.batch.desk import Desk
from pilotage.agent.site_place import SitePlace
from pilotage.model.site_entry import SiteEntry
from pilotage.ports import SubmissionRefused

ENTRY = SiteEntry(name="lyon", kind="gridengine", slots=4, queue="long", parallel_environment="orte")
SUBMITTED = {"-pe orte 4", "-q long"}


class Cell(Here):
    """A Grid Engine in which nothing is, and that takes everything; all else is run."""

    def __init__(self, home: Path) -> None:
        super().__init__(environment={"HOME": str(home)})
        self.submissions: list[str] = []

    def run(self, call: Call) -> Answer:
        if call.argv[0] == "qstat":
            return Answer(0, "<job_info/>")
        if call.argv[0] != "qsub":
            return super().run(call)
        self.submissions.append(" ".join(call.argv))
        return Answer(0, "7\n")


def site_of(entry: SiteEntry, cell: Cell) -> BatchSite:
    settings = BatchSettings(entry=entry, prefix="p", server=lambda: "http://127.0.0.1:9")
    return BatchSite(settings, dialects()[entry.kind]("p"), cell)


def test_the_service_asks_for_what_the_entry_says(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    assert site_of(ENTRY, cell).submit_pilots("lyon-1") == ["7"]
    (words,) = cell.submissions
    assert all(asked in words for asked in SUBMITTED)


def test_the_agent_of_a_site_asks_for_what_the_entry_says(tmp_path: Path) -> None:
    cell, place = Cell(tmp_path), SitePlace(tmp_path, site="lyon", version="0")
    told = msgspec.json.decode(msgspec.json.encode(ENTRY))
    assert Desk(dialects()["gridengine"]("p"), cell.run, lambda: place.berth(told)).submit_pilots("lyon-1") == ["7"]
    (words,) = cell.submissions
    assert all(asked in words for asked in SUBMITTED)


def test_what_cannot_be_said_is_refused_and_nothing_is_submitted(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    with pytest.raises(SubmissionRefused) as refused:
        site_of(msgspec.structs.replace(ENTRY, directives=("one\ntwo",)), cell).submit_pilots("lyon-1")
    assert (refused.value.reason, cell.submissions) == ("bad-resources", [])
