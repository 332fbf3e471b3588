"""Which job is meant: by its id, by the name that its document gave it, or, where nothing is said, the last one.

Every run of a document is a job of the same name. Who looks means the newest of them; who steers means the one that is not
over, and is asked which where there are several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.output import say_to_reader
from pilotage.cli.shared.server import Place, place_of

if TYPE_CHECKING:
    from pilotage.client import Server, ServerRefused

UNFINISHED = "state in (SUBMITTED, WAITING, READY, SCHEDULED, RUNNING)"
JOBS_AT_ONCE = 1000
_NAMED_MAX = 5
_NAMED_JOB = re.compile(r"""\bjob\s*=\s*["']?([\w.-]+)""")


def looked_at(connection: Server, word: str | None) -> Place:
    """The job or package that a word means to somebody who looks; of no job that is named, the last one."""
    from pilotage.client import ServerRefused
    from pilotage.model.events.events import parse_dotted

    if word is None:
        return Place(last_job(connection))
    place = place_of(word)
    if place.package is None and parse_dotted(word) is not None:
        return Place(last_job(connection), word)
    try:
        job = looked_at_job(connection, place.job)
    except ServerRefused as unknown:
        last = None if place.package is not None else _in_last_job(connection, word)
        if last is None:
            raise unknown from None
        return last
    return Place(job, None if place.package is None else package_named(connection, job, place.package))


def package_named(connection: Server, job: str, word: str) -> str:
    """The dotted place of a package that is named by it, or by its name in its job; raises where there is none of the name."""
    from pilotage.client import ServerRefused
    from pilotage.model.events.events import parse_dotted

    if parse_dotted(word) is not None:
        return word
    found = _with_name(connection, job, word)
    if found is None:
        step = f"see what there is: pilotage query job={job}"
        told = f"{job} has no package called {word!r}"
        raise ServerRefused(told, subject="", status=404, code="unknown_package", next_step=step)
    return found


def _with_name(connection: Server, job: str, name: str) -> str | None:
    from pilotage.client.server import path_of

    found = connection.get(path_of("jobs", job, "packages"), {"name": name, "limit": 1})["packages"]
    return str(found[0]["id"]) if found else None


def _in_last_job(connection: Server, word: str) -> Place | None:
    """The package of the last job that has a name, where it has one."""
    from pilotage.model.errors import PilotageError

    try:
        job = last_job(connection)
    except PilotageError:
        return None
    found = _with_name(connection, job, word)
    return Place(job, found) if found is not None else None


def looked_at_package(connection: Server, word: str | None) -> tuple[Place, str]:
    """The package that a word means, with its dotted place; a job is one where it has a single package."""
    place = looked_at(connection, word)
    if place.package is None:
        place = Place(place.job, _only_package(connection, place.job))
    assert place.package is not None
    return place, place.package


def looked_at_job(connection: Server, word: str) -> str:
    """The id of a job that is named by it, or the newest job of a name; raises `ServerRefused` where there is none."""
    unknown = _unknown(connection, word)
    if unknown is None:
        return word
    called = _called(connection, word)
    if not called:
        raise unknown
    return _newest(called)


def steered_place(word: str) -> Place:
    """The job or package that a word means to somebody who changes it; a job must be named, by its id or its name."""
    from pilotage.model.events.events import parse_dotted

    place = place_of(word)
    if place.package is None and parse_dotted(word) is not None:
        raise click.UsageError(f"{word!r} is a package of which job? Write JOB/{word}.")
    return place


def steered_job(connection: Server, word: str) -> str:
    """The id of a job that is named by it; or the one of a name that is not over, or the newest where all are."""
    unknown = _unknown(connection, word)
    if unknown is None:
        return word
    called = _called(connection, word)
    if not called:
        raise unknown
    unfinished = [job for job in called if not _is_over(job)]
    if len(unfinished) > 1:
        ids = [job["id"] for job in sorted(unfinished, key=_submitted_at, reverse=True)]
        more = ", …" if len(ids) > _NAMED_MAX else ""
        raise click.UsageError(
            f"{len(ids)} jobs of the name {word!r} are not over: which? {', '.join(ids[:_NAMED_MAX])}{more}"
        )
    return _newest(unfinished or called)


def is_known(connection: Server, word: str) -> bool:
    """Whether a word is the id or the name of a job."""
    return _unknown(connection, word) is None or bool(_called(connection, word))


def last_job(connection: Server) -> str:
    """The job that was submitted last of those that are not over, or of all; raises `PilotageError` where there is none."""
    from pilotage.model.errors import PilotageError

    for query in (UNFINISHED, "all"):
        if found := _kept(_jobs(connection, query)):
            return _newest(found)
    raise PilotageError("there is no job yet", next_step="run one: pilotage run")


def hint_at_ids(connections: Sequence[Server], query: str) -> None:
    """Say what became of a job that `job=` names and of which nothing is found."""
    from pilotage.client import ServerRefused

    for word in dict.fromkeys(match.group(1) for match in _NAMED_JOB.finditer(query)):
        for connection in connections:
            with suppress(ServerRefused):
                if hint := _hint_at(connection, word):
                    say_to_reader(hint)
                    break


def _hint_at(connection: Server, word: str) -> str:
    """That the job was purged, or what its id is where `job=` was given the name of a job."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    try:
        connection.get(path_of("jobs", word))
    except ServerRefused as error:
        if error.code == "purged":
            return str(error)
    job = looked_at_job(connection, word)
    return f"job= is an id: the newest job of the name {word} is {job}; name={word} finds all" if job != word else ""


def _unknown(connection: Server, word: str) -> ServerRefused | None:
    """What the server says of a job of this id that it does not know; None where it knows it, if only by its name."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    try:
        connection.get(path_of("jobs", word))
    except ServerRefused as error:
        return error if error.code == "unknown_job" else None
    return None


def _called(connection: Server, name: str) -> list[dict[str, Any]]:
    found = _jobs(connection, f"name={json.dumps(name, ensure_ascii=False)}")
    return _kept(found) or found


def _kept(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those of which nothing is kept any more."""
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
    raise click.UsageError(f"{job} is a job: which package of it? Write {job}/1.2.1; see: pilotage query job={job}")
