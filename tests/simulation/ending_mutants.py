"""Planted bugs in how a job ends."""

from __future__ import annotations

from pilotage.engine.decisions import job_lifecycle
from pilotage.engine.state import job_queries
from tests.simulation.mutants import Patch, graft, mutant


@mutant(first_seed=72, by="finals")
def what_runs_last_waits_for_nobody(patch: Patch) -> None:
    """A final package begins as soon as there is room for it."""
    graft(patch, job_queries.ends, lambda job: True)


@mutant(first_seed=106, by="finals")
def a_status_that_ends_the_job_leaves_the_others_be(patch: Patch) -> None:
    """A package ends the job, and the others go on."""
    graft(patch, job_lifecycle.end_others, lambda state, job, number, status: None)
