"""`pilotage status`: how a job or a package stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.output import emit
from pilotage.cli.remote import Place, connect, json_option, place_of, server_option
from pilotage.cli.words import duration, moment, one_line, plural, table

if TYPE_CHECKING:
    from pilotage.client import Server

STAGES_SHOWN_MAX = 50
_COUNTED = ("done", "cleared", "running", "scheduled", "ready", "waiting", "submitted", "aborted", "cancelled")


@click.command()
@click.argument("place", metavar="JOB|PACKAGE")
@json_option
@server_option
def status(place: str, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Show how a job or a package stands.

    Of a package, every attempt is shown. It is written JOB/1.2.1 or JOB/001/002/001.
    """
    from pilotage.client.server import path_of

    where = place_of(place)
    with connect(server, token_file) as connection:
        if where.package is None:
            told = _job(connection, where.job)
            stages = connection.get(path_of("jobs", where.job, "stages"), {"limit": STAGES_SHOWN_MAX})["stages"]
            found, lines = {"job": told, "stages": stages}, _job_lines(told, stages)
        else:
            found = connection.get(path_of("jobs", where.job, "packages", where.package))
            lines = _package_lines(where, found["package"], found["attempts"])
    if as_json:
        from pilotage import app

        emit([app.json_text(found)])
    else:
        emit(lines)


def _job(connection: Server, job: str) -> Any:
    """A job as the server tells of it; of one that was purged, how to see what is kept."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    try:
        return connection.get(path_of("jobs", job))
    except ServerRefused as error:
        if error.status == 410:
            kept = f'its name, owner and counts are kept: pilotage query --jobs "job={job}"'
            error.next_step = f"{kept}\n  {error.next_step}" if error.next_step else kept
        raise


def _job_lines(job: dict[str, Any], stages: list[dict[str, Any]]) -> Iterator[str]:
    from pilotage.model.states import FINAL_NAMES

    # The last attempt so far may have ended long before the job does.
    finished = ("finished",) if job["state"] in FINAL_NAMES else ()
    yield f"{one_line(job['id'])}: {_state(job)}\n"
    facts = [
        ("name", job["name"]),
        ("owner", job["owner"]),
        ("parent", job["parent"]),
        ("packages", _histogram(job)),
        ("why", job["cause"] or job["cleared_by"]),
        ("epoch", job["epoch"] if job["epoch"] > 1 else None),
        ("place", job["place"] if job["place"] != "live" else None),
        *_times(job, ("submitted", "accepted", "started", *finished, "updated")),
        ("tags", _tags(job["tags"])),
    ]
    yield from _facts(facts)
    if len(stages) > 1:
        yield "  stages\n"
        rows = (
            (stage["stage"], stage["state"], "not known yet" if stage["late"] else _histogram(stage))
            for stage in stages
        )
        yield from table(rows, indent="    ")
        if job["stages"] > len(stages):
            yield f"    … and {job['stages'] - len(stages):,} more\n"
    if job["failed"]:
        words = f"job={job['id']} and state in (ABORTED, CANCELLED)"
        yield f'  {plural(job["failed"], "package")} failed; see them with: pilotage query "{one_line(words)}"\n'


def _package_lines(where: Place, package: dict[str, Any], attempts: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{one_line(where)}: {_state(package)}\n"
    facts = [
        ("path", package["path"]),
        ("activity", package["activity"]),
        ("site", package["site"]),
        ("node", package["node"]),
        ("exit", package["exit_code"]),
        ("message", package["exit_message"]),
        ("reason", package["reason"]),
        ("why", package["cause"] or package["cleared_by"]),
        ("epoch", package["epoch"] if package["epoch"] > 1 else None),
        ("heard", None if package["heard"] else "nothing yet"),
        ("inferred", ", ".join(package["inferred"])),
        ("conflict", "events that exclude each other stand in the book" if package["conflict"] else None),
        *_times(package, ("ready", "scheduled", "running", "done", "aborted", "cancelled", "cleared", "updated")),
        ("tags", _tags(package["tags"])),
    ]
    yield from _facts(facts)
    if attempts:
        yield "  attempts\n"
        yield from table(map(_attempt, attempts), indent="    ")


def _attempt(attempt: dict[str, Any]) -> tuple[object, ...]:
    begun, ended = attempt["started_at"], attempt["finished_at"]
    took = duration(round(ended - begun, 3)) if begun is not None and ended is not None and ended >= begun else ""
    doubts = {"lost": attempt["lost_at"], "suspected": attempt["suspected_at"]}
    doubt = next((word for word, at in doubts.items() if at is not None), "")
    how = attempt["exit_code"] or doubt or attempt["phase"] or ""
    return (
        attempt["attempt"],
        f"epoch {attempt['epoch']}" if attempt["epoch"] > 1 else None,
        attempt["site"],
        attempt["node"],
        moment(begun if begun is not None else attempt["created_at"]),
        took,
        f"{how}{' (granted)' if attempt['granted'] else ''}".strip(),
        attempt["reason"] if attempt["exit_code"] else attempt["reason"] or attempt["lost_reason"],
        attempt["exit_message"],
    )


def _state(told: dict[str, Any]) -> str:
    flags = [word for word in ("held", "dropped") if told.get(word)]
    return f"{told['state']} ({', '.join(flags)})" if flags else str(told["state"])


def _histogram(told: dict[str, Any]) -> str:
    counts = told["counts"]
    parts = [f"{counts[word]:,} {word.upper()}" for word in _COUNTED if counts[word]]
    dropped = f"; {counts['dropped']:,} dropped" if counts["dropped"] else ""
    total = sum(counts[word] for word in _COUNTED)
    return (f"{total:,}: {', '.join(parts)}" if parts else "none") + dropped


def _times(told: dict[str, Any], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((name, moment(told[f"{name}_at"])) for name in names)


def _tags(tags: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(tags.items()))


def _facts(facts: Iterable[tuple[str, object]]) -> Iterator[str]:
    return table([fact for fact in facts if fact[1] not in (None, "")], indent="  ")
