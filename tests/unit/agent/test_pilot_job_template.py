"""What the entry of a site says reaches its batch system, whether the service submits there or the agent of the site."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.sites.batch import BatchSettings, BatchSite
from pilotage.adapters.sites.commands import LocalCaller
from pilotage.agent.batch import Answer, Call, dialects
from pilotage.agent.batch.submitter import Submitter
from pilotage.agent.link.connect import announced
from pilotage.agent.site.state_folder import SiteFolder
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.resources import Demand
from pilotage.model.sites.entry import SiteEntry
from pilotage.ports import SubmissionRefused

ENTRY = SiteEntry(name="lyon", kind="gridengine", slots=4, queue="long", parallel_environment="orte")
SUBMITTED = {"-pe orte 4", "-q long"}


class Cell(LocalCaller):
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


def test_pilots_are_told_where_to_read_the_address_of_a_service_that_comes_back_elsewhere(tmp_path: Path) -> None:
    job_template = site_of(ENTRY, Cell(tmp_path))._job_template()
    assert f"--announcement={job_template.folder}/service.json" in job_template.pilots("lyon-1").command
    assert announced(job_template.announcement).url == "http://127.0.0.1:9"


def test_the_agent_of_a_site_asks_for_what_the_entry_says(tmp_path: Path) -> None:
    cell, place = Cell(tmp_path), SiteFolder(tmp_path, site="lyon", version="0")
    told = msgspec.json.decode(msgspec.json.encode(ENTRY))
    assert Submitter(dialects()["gridengine"]("p"), cell.run, lambda: place.job_template(told)).submit_pilots(
        "lyon-1"
    ) == ["7"]
    (words,) = cell.submissions
    assert all(asked in words for asked in SUBMITTED)


def test_what_cannot_be_said_is_refused_and_nothing_is_submitted(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    with pytest.raises(SubmissionRefused) as refused:
        site_of(msgspec.structs.replace(ENTRY, directives=("one\ntwo",)), cell).submit_pilots("lyon-1")
    assert (refused.value.reason, cell.submissions) == ("bad-resources", [])


def test_the_nodes_that_a_package_names_reach_the_batch_system(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    ref, demand = AttemptRef("j", "1.1.1", 1), Demand(node_restriction=("n1", "n2*"), wall_seconds=60.0)
    site_of(ENTRY, cell).submit_attempt("j:1.1.1:1", ref=ref, demand=demand)
    assert "-l h_rt=150,hostname=n1|n2* " in cell.submissions[0]


def test_a_batch_system_that_cannot_be_told_of_nodes_is_given_nothing_that_names_some(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    cell_speaks = type("Mute", (dialects()["gridengine"],), {"places": False})
    settings = BatchSettings(entry=ENTRY, prefix="p", server=lambda: "http://127.0.0.1:9")
    site = BatchSite(settings, cell_speaks("p"), cell)
    with pytest.raises(SubmissionRefused, match="cannot restrict a job to certain nodes"):
        site.submit_attempt("j:1.1.1:1", ref=AttemptRef("j", "1.1.1", 1), demand=Demand(node_restriction=("n1",)))
    assert cell.submissions == []
