"""`pilotage forecast score JOB`: how good the forecasts were that the book recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pilotage.cli.shared.job_names import find_job_to_show
from pilotage.cli.shared.output import emit, one_line, plural, table, write_files
from pilotage.cli.shared.server import connect_to_read

if TYPE_CHECKING:
    from pilotage.app.forecasts.job_scores import JobScores
    from pilotage.client.server import Server

JOBS_MAX = 1_000_000


def show_job_scores(
    jobs: tuple[str, ...], server: str | None, token_file: str | None, *, plot: str | None, as_json: bool
) -> None:
    """Print, and draw, how good the forecasts of some jobs were; without a name, of all jobs."""
    from pilotage.app.forecasts.job_scores import draw_scores, score_jobs

    with connect_to_read(server, token_file) as connection:
        found = score_jobs(_recorded(connection, jobs))
    if plot is not None:
        write_files({plot: [draw_scores(found)]})
    if as_json:
        from pilotage import app

        emit([app.json_text(found)])
        return
    emit(_score_lines(found))


def _recorded(connection: Server, jobs: tuple[str, ...]) -> dict[str, list[Any]]:
    """The forecasts and outcomes in the book, by job; without a name, those of all jobs that have some."""
    if jobs:
        return {job: _events_of(connection, job) for job in (find_job_to_show(connection, word) for word in jobs)}
    from pilotage.client.queries import Question, find

    every = find([connection], Question(target="jobs", query="all", limit=JOBS_MAX))
    found = {each["id"]: _events_of(connection, each["id"]) for each in every.items if each["place"] != "purged"}
    return {job: events for job, events in found.items() if events}


def _events_of(connection: Server, job: str) -> list[Any]:
    from pilotage.app.forecasts.job_scores import EVENTS_QUERY
    from pilotage.client.server import path_of

    found: list[Any] = []
    after, more = 0, True
    while more:
        page = connection.get(path_of("jobs", job, "events"), {"query": EVENTS_QUERY, "after": after, "limit": 1000})
        found += page["events"]
        after, more = page["after"], page["more"]
    return found


def _score_lines(found: JobScores) -> Iterator[str]:
    if found.inside is None or found.mean_absolute_error is None or found.bias is None:
        yield "no forecast of a job that is over\n"
    else:
        jobs = len({each.job for each in found.jobs})
        yield f"{plural(found.forecasts, 'forecast')} of {plural(jobs, 'job')}\n"
        yield from table(
            (
                ("mean error of the median", f"{100 * found.mean_absolute_error:.1f} % of the time left"),
                ("on average", f"{100 * abs(found.bias):.1f} % {'too late' if found.bias > 0 else 'too early'}"),
                (
                    f"intervals of {100 * found.nominal:.0f} %",
                    f"{100 * found.inside:.1f} % held the end; {100 * (found.inside_by_job or 0.0):.1f} % where each job counts once",
                ),
            ),
            indent="  ",
        )
        rows = (
            (
                f"{100 * each.from_share:.0f} to {100 * each.to_share:.0f} %",
                f"{each.forecasts:,}",
                f"{100 * each.mean_absolute_error:.1f} %",
                f"{100 * each.inside:.1f} %",
            )
            for each in found.parts
        )
        yield from table(
            rows,
            header=("of the time from the first forecast to the end", "forecasts", "mean error", "held the end"),
            indent="  ",
        )
    for each in found.unscored:
        yield f"  not scored: {one_line(each.job)}: {each.why}\n"
