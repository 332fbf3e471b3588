"""`pilotage statistics`: how work flows through the states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.remote import json_option, look, server_option
from pilotage.cli.words import duration, one_line, table

WINDOWS = ("1m", "1h", "1d")


@click.command()
@click.option("--window", type=click.Choice(WINDOWS), default="1h", show_default=True, help="The time before now.")
@click.option("--site", metavar="NAME", help="Only this site.")
@click.option("--activity", metavar="NAME", help="Only this activity.")
@json_option
@server_option
def statistics(
    window: str,
    site: str | None,
    activity: str | None,
    server: str | None,
    token_file: str | None,
    *,
    as_json: bool,
) -> None:
    """Show how work flows through the states.

    For each site and activity: rates into each state, and mean, median and 95th percentile of the time between two.
    Median and percentile are approximate, within 5 %.
    """
    from pilotage.client.server import path_of

    with look(server, token_file) as connection:
        told = connection.get(path_of("statistics"), {"window": window, "site": site, "activity": activity})
    if as_json:
        from pilotage import app

        emit([app.json_text(told)])
        return
    if not told["flows"]:
        say_to_reader(f"nothing moved within {window}")
    emit(line for flow in told["flows"] for line in _flow_lines(flow))


def _flow_lines(flow: dict[str, Any]) -> Iterator[str]:
    yield f"site {one_line(flow['site']) or '-'}, activity {one_line(flow['activity']) or '-'}\n"
    entries = [
        (f"into {state}", f"{count:,}", f"{flow['per_second'][state]:.3g}/s")
        for state, count in flow["entries"].items()
    ]
    yield from table(entries, indent="  ")
    times = [
        (
            pair.replace("-", " to "),
            f"{each['count']:,}",
            *(_seconds(each[f"{name}_seconds"]) for name in ("mean", "median", "p95")),
        )
        for pair, each in flow["intervals"].items()
    ]
    yield from table(times, header=("BETWEEN", "COUNT", "MEAN", "MEDIAN", "95 %"), indent="  ")


def _seconds(seconds: float) -> str:
    return duration(float(f"{seconds:.3g}"))
