"""`pilotage tag`: names with values for a job or a package."""

from __future__ import annotations

import os
from typing import Any

import click

from pilotage.cli.log_event import delivery_options, send
from pilotage.cli.output import say_to_reader
from pilotage.cli.remote import Place, address_of, json_option, looking_at, place_of, server_option

_ASKED_SECONDS = 2.0  # in which a server says which job has a name


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="NAME=VALUE... [JOB|PACKAGE]")
@delivery_options
@json_option
@server_option
def tag(words: tuple[str, ...], **options: Any) -> int:
    """Give a job or a package names with values, before, during or after its run.

    A package is written JOB/1.2.1, JOB/001/002/001 or JOB/NAME. Without one, in a running package, it is that package.
    """
    from pilotage.client.composing import Subject, check_tag, compose, read_environment, split_fields
    from pilotage.model.events import parse_dotted

    targets = [word for word in words if "=" not in word]
    tags = split_fields(word for word in words if "=" in word)
    if len(targets) > 1:
        raise click.UsageError(f"There is one job or package to tag, not {len(targets)}: {', '.join(targets)}.")
    if not tags:
        raise click.UsageError("Say which tag: NAME=VALUE.")
    surroundings = read_environment(dict(os.environ))
    if targets:
        place = _registered(place_of(targets[0]), options)
        if place.package is not None and parse_dotted(place.package) is None:
            raise click.UsageError(
                f"{targets[0]!r} is no package: write JOB/1.2.1. No server is there that could look a name up."
            )
        subject, source = Subject(place.job, place.package), "client"
    else:
        subject, source = surroundings.subject._replace(attempt=None), "application"
    if subject.job is None:
        raise click.UsageError("Say which job or package to tag: this is no running package (PILOTAGE_JOB is not set).")
    composed = []
    for name, value in tags.items():
        check_tag(name, value)
        composed.append(
            compose(
                "Tagged",
                fields=(),
                data={"name": name, "value": value},
                subject=subject,
                surroundings=surroundings,
                source=source,
                epoch=None if targets else surroundings.epoch,
            )
        )
    return send(composed, source=source, **options)


def _registered(place: Place, options: dict[str, Any]) -> Place:
    """The same with the id of the job that its word names; a job may be tagged before it is there, by its id.

    Whether a server elsewhere answers does not matter to an event that is kept: it is asked for a moment only.
    """
    from pilotage.cli.naming import package_named, steered_job
    from pilotage.client import ServerError
    from pilotage.client.errors import ServerUnreachable

    address = address_of(options["server"], options["token_file"])
    if not address.origin and (options["no_deliver"] or place.job == os.environ.get("PILOTAGE_JOB")):
        return place
    try:
        with looking_at(address, answer_seconds=_ASKED_SECONDS) as connection:
            job = steered_job(connection, place.job)
            return Place(job, None if place.package is None else package_named(connection, job, place.package))
    except ServerUnreachable as error:
        if not address.origin:
            say_to_reader(f"warning: {place.job} is taken for the id of a job, and not for a name: {error.what}")
    except ServerError:
        pass  # it is not known there, or not to this token: the event says which job it means by its id
    return place
