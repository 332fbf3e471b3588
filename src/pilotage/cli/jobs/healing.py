"""`pilotage healing`: the incidents of a job, what was drawn and done, the times that are known, and the waste."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.job_names import find_to_show
from pilotage.cli.shared.output import duration, emit, one_line, plural, table
from pilotage.cli.shared.server import connect_to_read, json_option, server_option
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.model.answers import HealingDecision, HealingHistory
    from pilotage.model.events.healing_payloads import Treated

DECISIONS_SHOWN = 20
TREATED_SHOWN_MAX = 10
"""Treatments of one decision that the table shows; `--json` has all."""
Cells = tuple[str, str, str, str, str, str]


@click.command()
@click.argument("job", metavar="[JOB]", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=DECISIONS_SHOWN,
    show_default=True,
    help="Show the last N decisions.",
)
@json_option
@server_option
def healing(job: str | None, limit: int, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Show the incidents of a job, and what was done about them.

    Each decision shows the incidents with their level and degree, the chance of each to be drawn, which one was drawn, or
    treated instead since it is the likely cause, and every treatment; the newest decision comes last. Also the median times
    of the phases of each activity, and the share of slot time that healing has wasted. JOB is an id, or a name for the newest
    job of that name; without JOB, the last job that has not ended, or else the last one.
    """
    from pilotage.client.jobs import Jobs

    with connect_to_read(server, token_file) as connection:
        where = find_to_show(connection, job)
        history = Jobs(connection).healing(where.job, limit=limit)
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text(msgspec.to_builtins(history))])
    else:
        emit(history_lines(history))


def history_lines(history: HealingHistory) -> Iterator[str]:
    """The history as lines of text."""
    from pilotage.cli.shared.progress import stopped_lines

    name = one_line(history.job)
    if history.why:
        yield f"{name}: {one_line(history.why)}\n"
    else:
        last = "last " if history.more else ""
        yield f"{name}: {last}{plural(len(history.decisions), 'decision')}, healing {history.healing}\n"
    yield from (f"  {line}" for line in stopped_lines(history.stopped))
    if history.learned_at is not None:
        yield f"  waste {_waste(history)}\n"
    if history.activities:
        yield "  median times\n"
        rows = [
            (
                each.activity,
                plural(each.count, "package"),
                *(f"{one.phase} {duration(one.seconds)}" for one in each.medians),
            )
            for each in history.activities
        ]
        width = max(map(len, rows))
        yield from table([(*row, *("",) * (width - len(row))) for row in rows], indent="    ")
    if history.decisions:
        header = ("DECISION", "TIME", "INCIDENT OR TREATMENT", "LEVEL", "DEGREE", "CHANCE", "")
        yield from table([cells for each in history.decisions for cells in _decision(each)], header=header, indent="  ")
    if history.more:
        yield f"  earlier ones: pilotage healing {name} --limit {max(2 * len(history.decisions), 100)}\n"


def _waste(history: HealingHistory) -> str:
    bound = (
        f"at most {history.waste_max:.3g} of it"
        if history.waste is None
        else f"at most {100 * history.waste_max:.3g} %"
    )
    if history.waste is None:
        return f"none: no slot time was used by {moment(history.learned_at)}; {bound}"
    part, whole = duration(round(history.healing_seconds)), duration(round(history.slot_seconds))
    return f"{100 * history.waste:.3g} % of slot time ({part} of {whole}) by {moment(history.learned_at)}; {bound}"


def _decision(decision: HealingDecision) -> Iterator[tuple[str, ...]]:
    first = (str(decision.decision), moment(decision.at))
    for place, incident in enumerate(decision.incidents, 1):
        yield (
            *first,
            f"{incident.kind} {incident.subject}".strip(),
            str(incident.level),
            f"{incident.degree:.2f}",
            f"{100 * incident.share:.0f} %" if incident.share else "",
            _mark(place, decision),
        )
        first = ("", "")
    for treated in decision.treated[:TREATED_SHOWN_MAX]:
        yield (*first, f"  {_treated(treated)}", "", "", "", "")
        first = ("", "")
    more = decision.more + max(len(decision.treated) - TREATED_SHOWN_MAX, 0)
    if more:
        yield (*first, f"  and {plural(more, 'more treatment')}", "", "", "", "")
    if decision.message:
        yield (*first, f"  {decision.message}", "", "", "", "")


def _mark(place: int, decision: HealingDecision) -> str:
    if place == decision.instead:
        return f"treated instead: the cause with confidence {decision.confidence:.2f}"
    return "drawn" if place == decision.drawn else ""


def _treated(treated: Treated) -> str:
    attempt = f" attempt {treated.attempt}" if treated.attempt is not None else ""
    package = f" {treated.package}" if treated.package is not None else ""
    site = f" at {treated.site}" if treated.site is not None else ""
    message = f": {treated.message}" if treated.message else ""
    return f"{treated.treatment}{package}{attempt}{site}{message}"
