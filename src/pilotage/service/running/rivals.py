"""Two jobs of one folder must not make the same file: whoever came last would take the place of the other's results."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.engine.engine import Engine
from pilotage.language import Expansion
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import Journal, NotOurs
from pilotage.service.running.resuming import origin_of
from pilotage.service.running.submission import plain_outputs

_SHOWN_MAX = 5


def refuse_rivals(expansion: Expansion, folder: str, others: Iterable[tuple[str, Expansion]]) -> None:
    """Refuse a job that makes a name which an unfinished job of the same folder makes, too; raises `NotOurs`.

    Only plain names are compared: what a pattern will make is not known, and is found out when it is published.
    """
    made: set[str] | None = None
    for job, other in others:
        if made is None:
            made = set(plain_outputs(expansion))
        both = sorted(made.intersection(plain_outputs(other)))
        if both:
            more = f" and {len(both) - _SHOWN_MAX} more" if len(both) > _SHOWN_MAX else ""
            raise NotOurs(
                f"the job {job} is not over and makes the same: {', '.join(both[:_SHOWN_MAX])}{more}",
                subject=folder,
                next_step=f"wait for its end, or kill it: pilotage kill {job}",
            )


def unfinished_jobs(engine: Engine) -> set[str]:
    """The jobs of which something will still be made."""
    jobs = engine.state.jobs.by_id.values()
    return {job.id for job in jobs if (job.unfinished or job.late) and not (job.cancelled or job.aborted)}


def are_rivals(journal: Journal, job: str, other: str) -> bool:
    """Whether a job must not replace what another has made: both were unfinished at once.

    What was over before may be replaced, and so may what an earlier run of the same document made.
    """
    row, before = journal.job(job), journal.job(other)
    if job == other or row is None or before is None:
        return False
    ended_at = max(at or 0.0 for at in (before.finished_at, before.cancelled_at, before.aborted_at))
    if before.state in FINAL_NAMES and ended_at <= (row.submitted_at or 0.0):
        return False
    if (row.name, row.owner) != (before.name, before.owner):
        return True
    mine, its = origin_of(journal, row), origin_of(journal, before)
    return mine is None or its is None or mine.document != its.document
