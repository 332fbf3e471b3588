"""`pilotage explain`: why a package is where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from pilotage.cli.cards import called
from pilotage.cli.naming import looked_at_package
from pilotage.cli.output import emit
from pilotage.cli.remote import Place, json_option, look, server_option
from pilotage.cli.words import no_service, one_line
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.model.explanations import Explanation, Why

_NAMED_MAX = 5
_ABLE = ("site-unknown", "site-hibernated", "site-avoided", "site-closed", "site-full", "next")


@click.command()
@click.argument("package", metavar="[PACKAGE]", required=False)
@json_option
@server_option
def explain(package: str | None, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Say why a package is where it is: why it does not run, above all.

    It is written JOB/1.2.1, JOB/001/002/001 or JOB/NAME, with the id of its job or its name, which means the newest job of that
    name; 1.2.1 alone is one of the last job. Of a job with a single package, the job is enough. The reason that matters
    most stands first.
    """
    from pilotage.client.jobs import Jobs

    with look(server, token_file) as connection:
        where, dotted = looked_at_package(connection, package)
        told = Jobs(connection).explain(where.job, dotted)
        if connection.resting:
            told = without_service(told, where.job, ended=connection.ended)
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text(msgspec.to_builtins(told))])
    else:
        emit(explanation_lines(where, told))


def without_service(told: Explanation, job: str, *, ended: str) -> Explanation:
    """An explanation by the book alone, which takes the job for somebody else's; but it is only that no service runs."""
    import msgspec

    known = {"message": f"{no_service(ended)}: nothing of it begins", "code": "no-service"}
    step = f"go on with: pilotage attach {job}"
    reasons = (
        msgspec.structs.replace(why, **known, next_step=step) if why.code == "elsewhere" else why
        for why in told.reasons
    )
    return msgspec.structs.replace(told, reasons=tuple(reasons))


def explanation_lines(where: Place, told: Explanation) -> Iterator[str]:
    """An explanation in words, the first reason first."""
    import msgspec

    epoch = f", epoch {told.epoch}" if told.epoch > 1 else ""
    yield f"{one_line(called(where.job, told.package, told.words))}: {one_line(told.standing)}{epoch}\n"
    if told.words is not None and told.words.command:
        yield f"  $ {one_line(told.words.command)}\n"
    for why in _in_order(told.reasons):
        yield f"  {one_line(_reason(why))}\n"
        if why.next_step:
            yield f"    next: {one_line(why.next_step)}\n"
    if told.binaries:
        from pilotage.cli.cards import binary_lines

        yield from binary_lines(told.ended, [msgspec.to_builtins(each) for each in told.binaries])


def _in_order(reasons: Sequence[Why]) -> list[Why]:
    """The reasons, those of sites that could never run it behind those that could, and what is alike of them in one line."""
    import msgspec

    unable: dict[str, list[str]] = {}
    for why in reasons:
        if why.code == "site-unable":
            unable.setdefault(why.message, []).append(why.subject)
    places = [at for at, why in enumerate(reasons) if why.code == "site-unable" or why.code in _ABLE]
    told: list[Why] = []
    for at, why in enumerate(reasons):
        if why.code != "site-unable":
            told.append(why)
        if unable and at == places[-1]:
            first = next(each for each in reasons if each.code == "site-unable")
            for message, names in unable.items():
                told.append(msgspec.structs.replace(first, message=f"{_listed(names)}: {message}", subject=names[0]))
    return told


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _reason(why: Why) -> str:
    times = [f"{word} {moment(at)}" for word, at in (("since", why.since), ("until", why.until)) if at is not None]
    more = [f"{why.count:,} such in all"] if why.code == "waits-for-package" and why.count > 1 else []
    beside = ", ".join([*times, *more])
    return f"{why.message} ({beside})" if beside else why.message
