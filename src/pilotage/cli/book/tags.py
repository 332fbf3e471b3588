"""`pilotage log` and `pilotage tag`: log an event, and tag a job or a package."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.output import emit, print_message
from pilotage.cli.shared.server import (
    JobOrPackage,
    address_of,
    connect_address_to_read,
    connect_to_read,
    json_option,
    parse_job_or_package,
    parse_package_options,
    server_option,
)
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.client.send import ComposedEvent, LogOutcome


# `pilotage log`: spools an event and delivers it.

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

SOURCES = ("application", "client", "agent", "site", "service")
NOW_SECONDS = 30.0
SHOW_A_TOKEN = "use a token that it accepts: --token-file FILE, PILOTAGE_TOKEN or PILOTAGE_TOKEN_FILE"


def delivery_options(command: Decorated) -> Decorated:
    """Options that say how an event is spooled and delivered."""
    for option in (
        click.option("--spool", type=click.Path(), metavar="DIR", help="The spool folder; without it, PILOTAGE_SPOOL."),
        click.option("--no-deliver", is_flag=True, help="Only spool it; a later command or the courier delivers it."),
        click.option(
            "--timeout",
            "timeout_seconds",
            type=click.FloatRange(min=0.1),
            default=NOW_SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="With --now, wait at most this long.",
        ),
        click.option("--now", is_flag=True, help="Wait until the server has accepted it; fail if it does not."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("event")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--job", metavar="ID", help="The job of the event; without it, PILOTAGE_JOB.")
@click.option(
    "--package",
    metavar="PACKAGE",
    help="Its package: 1.2.1, NAME, JOB/1.2.1 or JOB/NAME; without it, PILOTAGE_PACKAGE.",
)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Its attempt; without it, PILOTAGE_ATTEMPT.")
@click.option("--pilot", metavar="NAME", help="The pilot of the event.")
@click.option("--site", metavar="NAME", help="The site of the event.")
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="Its epoch; without it, PILOTAGE_EPOCH, or 1.")
@click.option(
    "--time", "moment", type=float, metavar="SECONDS", help="When it happened, in seconds since 1970; without it, now."
)
@click.option("--data", metavar="JSON", help="Its fields as a JSON object; - is standard input.")
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    default="application",
    show_default=True,
    help="What kind of sender logs it.",
)
@delivery_options
@json_option
@server_option
def log(event: str, fields: tuple[str, ...], data: str | None, source: str, **options: Any) -> int:
    """Log an event, from a script or by hand.

    EVENT is a type such as AttemptStarted or Noted. The event is checked, spooled on the local disk, and delivered within a
    fifth of a second if the server answers; otherwise it waits in the spool for a later delivery. Inside a running package,
    job, package, attempt and epoch are filled in.
    """
    from pilotage.client.send import Subject, compose, read_environment
    from pilotage.model.events.events import parse_dotted

    job, package = parse_package_options(options["package"], job=options["job"])
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
    """Look up the number of a package by its name, which only a server knows."""
    from pilotage.cli.shared.job_names import package_number
    from pilotage.client import ServerError, ServerRefused

    try:
        connection = connect_to_read(server, token_file)
        try:
            return package_number(connection, job, name)
        finally:
            connection.close()
    except ServerRefused:
        raise
    except ServerError as fault:
        reason = f"its name cannot be looked up: {fault}"
        raise click.UsageError(
            f"{name!r} is not the number of a package, and {reason}\nwrite 1.2.1, 001/002/001 or JOB/1.2.1."
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
    """Spool events, deliver them as the options say, print what was rejected, and return the exit code."""
    from pilotage.client.send import QUICKLY_SECONDS, log_events

    if now and no_deliver:
        raise click.UsageError("--now and --no-deliver exclude each other.")
    address = address_of(server, token_file)
    # A token is only sent to a service that runs.
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

        report = {"server": address.url, "events": sent.events, "problem": sent.problem, "parked": sent.parked}
        emit([app.json_text(report)])
    if sent.parked:
        print_message(_parked(sent, events))
    refused = [each.refused for each in sent.events if each.refused]
    for reason in refused:
        print_message(f"error: {address.url} rejected it: {reason}")
    if refused:
        return ExitCode.BAD_INPUT
    if sent.denied:
        word = "error" if now else "warning"
        print_message(
            f"{word}: {address.url} did not accept it: {sent.problem}\n  it stays in the spool; {SHOW_A_TOKEN}"
        )
        return ExitCode.BAD_INPUT if now else ExitCode.COMPLETE
    if now and not all(each.delivered for each in sent.events):
        why = f" within {timeout_seconds:g} s" if address.runs else ", since its service does not run"
        problem = f": {sent.problem}" if sent.problem else ""
        print_message(
            f"error: {address.url} did not accept it{why}{problem}\n  it stays in the spool for the next delivery"
        )
        return ExitCode.STOPPED
    return ExitCode.COMPLETE


def _parked(sent: LogOutcome, events: Sequence[ComposedEvent]) -> str:
    """The notice that the server parked events, and of which jobs if its count shows that."""
    if sent.parked < sent.delivered:
        return f"{sent.parked} of {sent.delivered} events wait at the server until their jobs are registered"
    jobs = ", ".join(dict.fromkeys(event.subject.job or "" for event in events))
    return f"job {jobs} is not registered yet: the event{' waits' if len(events) == 1 else 's wait'} at the server"


def _object(text: str | None) -> dict[str, Any]:
    """The fields of `--data`."""
    if text is None:
        return {}
    import msgspec

    data = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--data is not a JSON object: {error}.") from None


_LOOKUP_SECONDS = 2.0  # longest wait for a server that looks up the name of a job


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="NAME=VALUE... [JOB|PACKAGE]")
@delivery_options
@json_option
@server_option
def tag(words: tuple[str, ...], **options: Any) -> int:
    """Tag a job or a package, before, during or after its run.

    PACKAGE is JOB/1.2.1, JOB/001/002/001 or JOB/NAME. Inside a running package, the default is that package.
    """
    from pilotage.client.send import Subject, check_tag, compose, read_environment, split_fields
    from pilotage.model.events.events import parse_dotted

    targets = [word for word in words if "=" not in word]
    tags = split_fields(word for word in words if "=" in word)
    if len(targets) > 1:
        raise click.UsageError(f"Tag one job or package at a time, not {len(targets)}: {', '.join(targets)}.")
    if not tags:
        raise click.UsageError("Name a tag: NAME=VALUE.")
    environment = read_environment(dict(os.environ))
    if targets:
        place = _registered(parse_job_or_package(targets[0]), options)
        if place.package is not None and parse_dotted(place.package) is None:
            raise click.UsageError(
                f"{targets[0]!r} is not the number of a package, and no server runs that could look up a name: write JOB/1.2.1."
            )
        subject, source = Subject(place.job, place.package), "client"
    else:
        subject, source = environment.subject._replace(attempt=None), "application"
    if subject.job is None:
        raise click.UsageError(
            "Name the job or package to tag; only a running package knows its own (PILOTAGE_JOB is not set)."
        )
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


def _registered(place: JobOrPackage, options: dict[str, Any]) -> JobOrPackage:
    """Replace the name of a job by its id; an unknown word is taken as the id of a job that is not registered yet.

    The event is spooled anyway, so the server gets only a moment to answer.
    """
    from pilotage.cli.shared.job_names import find_job_to_change, package_number
    from pilotage.client import ServerError
    from pilotage.client.errors import ServerUnreachable

    address = address_of(options["server"], options["token_file"])
    if not address.origin and (options["no_deliver"] or place.job == os.environ.get("PILOTAGE_JOB")):
        return place
    try:
        with connect_address_to_read(address, answer_seconds=_LOOKUP_SECONDS) as connection:
            job = find_job_to_change(connection, place.job)
            return JobOrPackage(job, None if place.package is None else package_number(connection, job, place.package))
    except ServerUnreachable as error:
        if not address.origin:
            print_message(f"warning: {place.job} is used as the id of a job, not as a name: {error.what}")
    except ServerError:
        pass  # unknown there, or not visible with this token: the word is used as an id
    return place
