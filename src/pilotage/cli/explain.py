"""`pilotage explain`: why a package is where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.output import emit
from pilotage.cli.remote import Place, connect, json_option, named_package, server_option
from pilotage.cli.words import moment, one_line

if TYPE_CHECKING:
    from pilotage.model.explanations import Explanation, Why


@click.command()
@click.argument("package", metavar="PACKAGE")
@json_option
@server_option
def explain(package: str, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Say why a package is where it is: why it does not run, above all.

    It is written JOB/1.2.1 or JOB/001/002/001. The reason that matters most stands first.
    """
    from pilotage.client.jobs import Jobs

    where, dotted = named_package(package)
    with connect(server, token_file) as connection:
        told = Jobs(connection).explain(where.job, dotted)
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text(msgspec.to_builtins(told))])
    else:
        emit(explanation_lines(where, told))


def explanation_lines(where: Place, told: Explanation) -> Iterator[str]:
    """An explanation in words, the first reason first."""
    epoch = f", epoch {told.epoch}" if told.epoch > 1 else ""
    yield f"{one_line(where)}: {one_line(told.standing)}{epoch}\n"
    for why in told.reasons:
        yield f"  {one_line(_reason(why))}\n"
        if why.next_step:
            yield f"    next: {one_line(why.next_step)}\n"


def _reason(why: Why) -> str:
    times = [f"{word} {moment(at)}" for word, at in (("since", why.since), ("until", why.until)) if at is not None]
    more = [f"{why.count:,} such in all"] if why.code == "waits-for-package" and why.count > 1 else []
    beside = ", ".join([*times, *more])
    return f"{why.message} ({beside})" if beside else why.message
