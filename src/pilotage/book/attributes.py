"""A job or a package as queries see it: its attributes by name."""

from __future__ import annotations

from typing import Any

from pilotage.book.facts import read_tags, tags_of
from pilotage.book.rows import JobRow, PackageFacts
from pilotage.model.layout import PackageId


def job_attributes(job: JobRow) -> dict[str, Any]:
    """The attributes of a job."""
    return _shared(job) | {
        "state": job.state,
        "held": bool(job.held),
        "cause": job.cause,
        "entered": job.entered_at,
        "updated": job.updated_at,
        "tags": tags_of(read_tags(job.tags)) if job.tags not in ("", "{}") else {},
    }


def package_attributes(job: JobRow, place: PackageId, facts: PackageFacts) -> dict[str, Any]:
    """The attributes of a package, whether anything was heard of it or not."""
    shown = facts.attempts.get(facts.attempt) if facts.attempt is not None else None
    return _shared(job) | {
        "package": place.dotted,
        "state": facts.state,
        "site": facts.site,
        "node": facts.node,
        "pilot": shown.pilot if shown is not None else None,
        "exit_code": facts.exit_code,
        "reason": facts.reason,
        "cause": facts.cause,
        "activity": facts.activity or None,
        "entered": facts.entered_at,
        "updated": facts.updated_at,
        "attempts": len(facts.attempts),
        "held": bool(facts.held),
        "dropped": bool(facts.dropped),
        "tags": tags_of(facts.tags),
    }


def _shared(job: JobRow) -> dict[str, Any]:
    return {
        "job": job.job,
        "name": job.name,
        "parent": job.parent,
        "owner": job.owner,
        "submitted": job.submitted_at,
    }
