"""`pilotage tag`: names with values for a job or a package."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.output import emit, say_to_reader
from pilotage.cli.shared.server import (
    Place,
    address_of,
    json_option,
    look,
    looking_at,
    package_of,
    place_of,
    server_option,
)
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.client.send import ComposedEvent, LogOutcome


# `pilotage log`: an event from a script, into the spool and on to the server.

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

SOURCES = ("application", "client", "agent", "site", "service")
NOW_SECONDS = 30.0
SHOW_A_TOKEN = "show a token that it knows: --token-file FILE, PILOTAGE_TOKEN or PILOTAGE_TOKEN_FILE"


def delivery_options(command: Decorated) -> Decorated:
    """How an event goes on its way: kept and sent soon, or acknowledged before the command ends."""
    for option in (
        click.option("--spool", type=click.Path(), metavar="DIR", help="Where events wait; none: PILOTAGE_SPOOL."),
        click.option("--no-deliver", is_flag=True, help="Only keep it: another command or courier delivers it."),
        click.option(
            "--timeout",
            "timeout_seconds",
            type=click.FloatRange(min=0.1),
            default=NOW_SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="How long --now waits.",
        ),
        click.option("--now", is_flag=True, help="End when the server has it, and fail if it does not take it."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("event")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--job", metavar="ID", help="The job it is about; none: PILOTAGE_JOB.")
@click.option(
    "--package", metavar="PACKAGE", help="The package: 1.2.1, NAME, JOB/1.2.1 or JOB/NAME; none: PILOTAGE_PACKAGE."
)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="The attempt; none: PILOTAGE_ATTEMPT.")
@click.option("--pilot", metavar="NAME", help="The pilot it is about.")
@click.option("--site", metavar="NAME", help="The site it is about.")
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="The epoch; none: PILOTAGE_EPOCH, or 1.")
@click.option("--time", "moment", type=float, metavar="SECONDS", help="When it happened, since 1970; none: now.")
@click.option("--data", metavar="JSON", help="Fields as a JSON object; - is standard input.")
@click.option("--source", type=click.Choice(SOURCES), default="application", show_default=True, help="Who says so.")
@delivery_options
@json_option
@server_option
def log(event: str, fields: tuple[str, ...], data: str | None, source: str, **options: Any) -> int:
    """Log an event, from a script or by hand.

    EVENT is a type such as AttemptStarted or Noted. It is checked, kept on this computer's disk, and delivered within a fifth of a second if the server is there;
    otherwise it waits in the spool and goes with a later delivery. In a running package, what it is about is known.
    """
    from pilotage.client.send import Subject, compose, read_environment
    from pilotage.model.events.events import parse_dotted

    job, package = package_of(options["package"], job=options["job"])
    if package is not None and parse_dotted(package) is None:
        package = _place_of(package, job or os.environ["PILOTAGE_JOB"], options["server"], options["token_file"])
    composed = compose(
        event,
        fields=fields,
        data=_object(data),
        subject=Subject(job, package, options["attempt"], options["pilot"], options["site"]),
        environment=read_environment(dict(os.environ)),
        source=source,
        epoch=options["epoch"],
        time=options["moment"],
    )
    return send([composed], source=source, **options)


def _place_of(name: str, job: str, server: str | None, token_file: str | None) -> str:
    """The place of a package that is named: an event has it, and only a server knows it."""
    from pilotage.cli.shared.job_names import package_named
    from pilotage.client import ServerError, ServerRefused

    try:
        connection = look(server, token_file)
        try:
            return package_named(connection, job, name)
        finally:
            connection.close()
    except ServerRefused:
        raise
    except ServerError as fault:
        told = f"nobody can be asked for a package of this name: {fault}"
        raise click.UsageError(
            f"{name!r} is no package by its number, and {told}\nwrite 1.2.1, 001/002/001 or JOB/1.2.1."
        ) from None


def send(
    events: Sequence[ComposedEvent],
    *,
    source: str,
    server: str | None,
    token_file: str | None,
    spool: str | None,
    now: bool,
    no_deliver: bool,
    timeout_seconds: float,
    as_json: bool,
    **_: object,
) -> int:
    """Keep events and deliver them as asked; tells what was refused, and answers the exit code."""
    from pilotage.client.send import QUICKLY_SECONDS, log_events

    if now and no_deliver:
        raise click.UsageError("--now and --no-deliver exclude each other.")
    address = address_of(server, token_file)
    # The token of a service that does not run is shown to nobody.
    wait_seconds = 0.0 if no_deliver or not address.runs else timeout_seconds if now else QUICKLY_SECONDS
    sent = log_events(
        events,
        address=address,
        source=source,
        spool=spool,
        environment=os.environ,
        deliver_seconds=wait_seconds,
    )
    if as_json:
        from pilotage import app

        told = {"server": address.url, "events": sent.events, "problem": sent.problem, "parked": sent.parked}
        emit([app.json_text(told)])
    if sent.parked:
        say_to_reader(_parked(sent, events))
    refused = [each.refused for each in sent.events if each.refused]
    for reason in refused:
        say_to_reader(f"error: {address.url} refused it: {reason}")
    if refused:
        return ExitCode.BAD_INPUT
    if sent.denied:
        word = "error" if now else "warning"
        say_to_reader(f"{word}: {address.url} did not take it: {sent.problem}\n  it is kept; {SHOW_A_TOKEN}")
        return ExitCode.BAD_INPUT if now else ExitCode.COMPLETE
    if now and not all(each.delivered for each in sent.events):
        why = f" within {timeout_seconds:g} s" if address.runs else ", since its service does not run"
        problem = f": {sent.problem}" if sent.problem else ""
        say_to_reader(
            f"error: {address.url} did not take it{why}{problem}\n  it is kept, and goes with the next delivery"
        )
        return ExitCode.STOPPED
    return ExitCode.COMPLETE


def _parked(sent: LogOutcome, events: Sequence[ComposedEvent]) -> str:
    """That events wait at the server: which, as far as its count of all that it got tells."""
    if sent.parked < sent.delivered:
        return f"{sent.parked} of {sent.delivered} events are of jobs that are not registered yet: they wait for that"
    jobs = ", ".join(dict.fromkeys(event.subject.job or "" for event in events))
    return f"job {jobs} is not registered yet: the event{' waits' if len(events) == 1 else 's wait'} for that"


def _object(text: str | None) -> dict[str, Any]:
    """The fields of `--data`."""
    if text is None:
        return {}
    import msgspec

    said = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        return msgspec.json.decode(said, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--data is no JSON object: {error}.") from None


_ASKED_SECONDS = 2.0  # in which a server says which job has a name


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="NAME=VALUE... [JOB|PACKAGE]")
@delivery_options
@json_option
@server_option
def tag(words: tuple[str, ...], **options: Any) -> int:
    """Tag a job or a package, before, during or after its run.

    A package is written JOB/1.2.1, JOB/001/002/001 or JOB/NAME. Without one, in a running package, it is that package.
    """
    from pilotage.client.send import Subject, check_tag, compose, read_environment, split_fields
    from pilotage.model.events.events import parse_dotted

    targets = [word for word in words if "=" not in word]
    tags = split_fields(word for word in words if "=" in word)
    if len(targets) > 1:
        raise click.UsageError(f"There is one job or package to tag, not {len(targets)}: {', '.join(targets)}.")
    if not tags:
        raise click.UsageError("Say which tag: NAME=VALUE.")
    environment = read_environment(dict(os.environ))
    if targets:
        place = _registered(place_of(targets[0]), options)
        if place.package is not None and parse_dotted(place.package) is None:
            raise click.UsageError(
                f"{targets[0]!r} is no package: write JOB/1.2.1. No server is there that could look a name up."
            )
        subject, source = Subject(place.job, place.package), "client"
    else:
        subject, source = environment.subject._replace(attempt=None), "application"
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
                environment=environment,
                source=source,
                epoch=None if targets else environment.epoch,
            )
        )
    return send(composed, source=source, **options)


def _registered(place: Place, options: dict[str, Any]) -> Place:
    """The same with the id of the job that its word names; a job may be tagged before it is there, by its id.

    Whether a server elsewhere answers does not matter to an event that is kept: it is asked for a moment only.
    """
    from pilotage.cli.shared.job_names import package_named, steered_job
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
