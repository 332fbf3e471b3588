"""`pilotage explain`: why a package is where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.naming import looked_at_package
from pilotage.cli.output import emit
from pilotage.cli.remote import Place, json_option, look, server_option
from pilotage.cli.words import moment, one_line

if TYPE_CHECKING:
    from pilotage.model.explanations import Explanation, Why


@click.command()
@click.argument("package", metavar="[PACKAGE]", required=False)
@json_option
@server_option
def explain(package: str | None, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Say why a package is where it is: why it does not run, above all.

    It is written JOB/1.2.1 or JOB/001/002/001, with the id of its job or its name, which means the newest job of that
    name; 1.2.1 alone is one of the last job. Of a job with a single package, the job is enough. The reason that matters
    most stands first.
    """
    from pilotage.client.jobs import Jobs

    with look(server, token_file) as connection:
        where, dotted = looked_at_package(connection, package)
        told = Jobs(connection).explain(where.job, dotted)
        if connection.resting:
            told = without_service(told, where.job)
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text(msgspec.to_builtins(told))])
    else:
        emit(explanation_lines(where, told))


def without_service(told: Explanation, job: str) -> Explanation:
    """An explanation by the book alone, which takes the job for somebody else's; but it is only that no service runs."""
    import msgspec

    known = {"message": "no service runs here: nothing of it begins", "code": "no-service"}
    step = f"go on with: pilotage attach {job}"
    reasons = (
        msgspec.structs.replace(why, **known, next_step=step) if why.code == "elsewhere" else why
        for why in told.reasons
    )
    return msgspec.structs.replace(told, reasons=tuple(reasons))


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
