"""Finds a job by its id or by the name in its document; without either, the last job.

Every run of a document is a job of the same name. Commands that show a job take the newest of that name. Commands that
change a job take the unfinished one; if there are several, the user must choose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.output import print_message
from pilotage.cli.shared.server import JobOrPackage, parse_job_or_package

if TYPE_CHECKING:
    from pilotage.client import Server, ServerRefused

UNFINISHED = "state in (SUBMITTED, WAITING, READY, SCHEDULED, RUNNING)"
JOBS_AT_ONCE = 1000
_NAMED_MAX = 5
_NAMED_JOB = re.compile(r"""\bjob\s*=\s*["']?([\w.-]+)""")


def find_to_show(connection: Server, word: str | None) -> JobOrPackage:
    """Find the job or package to show; without a job, take the last one."""
    from pilotage.client import ServerRefused
    from pilotage.model.events.events import parse_dotted

    if word is None:
        return JobOrPackage(last_job(connection))
    place = parse_job_or_package(word)
    if place.package is None and parse_dotted(word) is not None:
        return JobOrPackage(last_job(connection), word)
    try:
        job = find_job_to_show(connection, place.job)
    except ServerRefused as unknown:
        last = None if place.package is not None else _package_of_last_job(connection, word)
        if last is None:
            raise unknown from None
        return last
    return JobOrPackage(job, None if place.package is None else package_number(connection, job, place.package))


def package_number(connection: Server, job: str, word: str) -> str:
    """The number of a package, such as 1.2.1, from its number or its name; raises `ServerRefused` for an unknown name."""
    from pilotage.client import ServerRefused
    from pilotage.model.events.events import parse_dotted

    if parse_dotted(word) is not None:
        return word
    found = _package_named(connection, job, word)
    if found is None:
        step = f"list its packages: pilotage query job={job}"
        message = f"{job} has no package called {word!r}"
        raise ServerRefused(message, subject="", status=404, code="unknown_package", next_step=step)
    return found


def _package_named(connection: Server, job: str, name: str) -> str | None:
    from pilotage.client.server import path_of

    found = connection.get(path_of("jobs", job, "packages"), {"name": name, "limit": 1})["packages"]
    return str(found[0]["id"]) if found else None


def _package_of_last_job(connection: Server, word: str) -> JobOrPackage | None:
    """The package of this name in the last job, or None."""
    from pilotage.model.errors import PilotageError

    try:
        job = last_job(connection)
    except PilotageError:
        return None
    found = _package_named(connection, job, word)
    return JobOrPackage(job, found) if found is not None else None


def find_package_to_show(connection: Server, word: str | None) -> tuple[JobOrPackage, str]:
    """Find the package to show, and its number; the name of a job is enough if it has a single package."""
    place = find_to_show(connection, word)
    if place.package is None:
        place = JobOrPackage(place.job, _only_package(connection, place.job))
    assert place.package is not None
    return place, place.package


def find_job_to_show(connection: Server, word: str) -> str:
    """Find the job to show, by its id or as the newest of a name; raises `ServerRefused` if there is none."""
    unknown = _unknown_job_error(connection, word)
    if unknown is None:
        return word
    of_that_name = _jobs_named(connection, word)
    if not of_that_name:
        raise unknown
    return _newest(of_that_name)


def parse_to_change(word: str) -> JobOrPackage:
    """Parse the job or package to change; unlike for commands that show, the job must be named."""
    from pilotage.model.events.events import parse_dotted

    place = parse_job_or_package(word)
    if place.package is None and parse_dotted(word) is not None:
        raise click.UsageError(f"{word!r} is a package, but of which job? Write JOB/{word}.")
    return place


def find_job_to_change(connection: Server, word: str) -> str:
    """Find the job to change, by its id or as the unfinished one of a name, or the newest if all have ended."""
    unknown = _unknown_job_error(connection, word)
    if unknown is None:
        return word
    of_that_name = _jobs_named(connection, word)
    if not of_that_name:
        raise unknown
    unfinished = [job for job in of_that_name if not _is_over(job)]
    if len(unfinished) > 1:
        ids = [job["id"] for job in sorted(unfinished, key=_submitted_at, reverse=True)]
        more = ", …" if len(ids) > _NAMED_MAX else ""
        raise click.UsageError(
            f"{len(ids)} jobs named {word!r} have not ended; name one by its id: {', '.join(ids[:_NAMED_MAX])}{more}"
        )
    return _newest(unfinished or of_that_name)


def is_known(connection: Server, word: str) -> bool:
    """Whether a word is the id or the name of a job."""
    return _unknown_job_error(connection, word) is None or bool(_jobs_named(connection, word))


def last_job(connection: Server) -> str:
    """The newest unfinished job, or else the newest of all; raises `PilotageError` if there is none."""
    from pilotage.model.errors import PilotageError

    for query in (UNFINISHED, "all"):
        if found := _not_purged(_jobs(connection, query)):
            return _newest(found)
    raise PilotageError("there is no job yet", next_step="run one: pilotage run")


def hint_unknown_jobs(connections: Sequence[Server], query: str) -> None:
    """After a query with `job=` that found nothing, print whether that job was purged or what its id is."""
    from pilotage.client import ServerRefused

    for word in dict.fromkeys(match.group(1) for match in _NAMED_JOB.finditer(query)):
        for connection in connections:
            with suppress(ServerRefused):
                if hint := _hint_at(connection, word):
                    print_message(hint)
                    break


def _hint_at(connection: Server, word: str) -> str:
    """The hint that a job was purged, or the id of the job if `job=` was given a name."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    try:
        connection.get(path_of("jobs", word))
    except ServerRefused as error:
        if error.code == "purged":
            return str(error)
    job = find_job_to_show(connection, word)
    return f"job= takes an id: the newest job named {word} is {job}; name={word} finds all" if job != word else ""


def _unknown_job_error(connection: Server, word: str) -> ServerRefused | None:
    """The error of the server if it has no job of this id, otherwise None."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    try:
        connection.get(path_of("jobs", word))
    except ServerRefused as error:
        return error if error.code == "unknown_job" else None
    return None


def _jobs_named(connection: Server, name: str) -> list[dict[str, Any]]:
    found = _jobs(connection, f"name={json.dumps(name, ensure_ascii=False)}")
    return _not_purged(found) or found


def _not_purged(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs that were not purged."""
    return [job for job in jobs if job["place"] != "purged"]


def _jobs(connection: Server, query: str) -> list[dict[str, Any]]:
    from pilotage.client.server import path_of

    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = connection.get(path_of("jobs"), {"query": query, "limit": JOBS_AT_ONCE, "cursor": cursor})
        found += page["jobs"]
        cursor = page["next"]
        if cursor is None:
            return found


def _newest(jobs: list[dict[str, Any]]) -> str:
    newest: str = max(jobs, key=_submitted_at)["id"]
    return newest


def _submitted_at(job: dict[str, Any]) -> float:
    return float(job["submitted_at"] or 0.0)


def _is_over(job: dict[str, Any]) -> bool:
    from pilotage.model.states import FINAL_NAMES

    return job["state"] in FINAL_NAMES


def _only_package(connection: Server, job: str) -> str:
    from pilotage.client.server import path_of

    found = connection.get(path_of("jobs", job, "packages"), {"limit": 2})["packages"]
    if len(found) == 1:
        only: str = found[0]["id"]
        return only
    raise click.UsageError(
        f"{job} is a job with several packages. Name one, such as {job}/1.2.1; see: pilotage query job={job}"
    )
