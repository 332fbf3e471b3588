"""`pilotage provenance show`, `list`, `annotate` and `keep`: the records of jobs, as a user sees and extends them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.provenance.record_sources import recorded_job, records_options
from pilotage.cli.shared.output import emit, one_line, print_message, table
from pilotage.cli.shared.server import connect_or_start, connect_to_read, json_option, server_option
from pilotage.model.texts import moment, size_text

if TYPE_CHECKING:
    from pilotage.app.provenance.served_records import ScriptResult
    from pilotage.model.records import Annotation, JobRecord, RecordNode

PARTS_SHOWN_MAX = 40
RESULTS_SHOWN_MAX = 20


@click.command()
@click.argument("job")
@click.option("--revision", type=click.IntRange(min=1), help="Show an earlier revision.")
@click.option("--part", metavar="NAME", help="Write the content of a part to standard output.")
@json_option
@server_option
def show(
    job: str, revision: int | None, part: str | None, server: str | None, token_file: str | None, *, as_json: bool
) -> None:
    """Show the record of a job: what was run, where and with what, and what was added later.

    JOB is an id, or a name for the newest job of that name. A job that is over and has no record yet gets it now. NAME is the
    name of a part, or the beginning of its sha256.
    """
    from pilotage.app.provenance.served_records import record_to_show, records_at, script_results_in

    with connect_to_read(server, token_file) as connection:
        records = records_at(connection)
        record = record_to_show(records, recorded_job(connection, job), revision)
        annotations = records.annotations(record.job)
        if part is not None:
            _write(records.content(_digest(record, annotations, part)))
            return
        revisions = records.revisions(record.job)
        results = script_results_in(record, records)
    if as_json:
        from pilotage import app

        told = {"record": record, "revisions": revisions, "annotations": annotations, "custom": results}
        emit([app.json_text(told)])
    else:
        emit(_lines(record, len(revisions), annotations, results))


def _digest(record: JobRecord, annotations: list[Annotation], word: str) -> str:
    """The sha256 of a part, or of a file that was added later; of several of one name, the latest."""
    parts = [*record.parts, *(each.part for each in reversed(annotations) if each.part is not None)]
    for part in parts:
        if part.name == word or (len(word) >= 6 and part.sha256.startswith(word)):
            return part.sha256
    names = ", ".join(part.name for part in parts[:10])
    raise click.UsageError(f"The record of {record.job} has no part {word!r}. Its parts: {names}.")


def _write(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _lines(
    record: JobRecord, revisions: int, annotations: list[Annotation], results: list[ScriptResult]
) -> Iterator[str]:
    yield f"{record.job} ({record.name}): {record.state}, revision {record.revision} of {revisions}\n"
    yield f"  of {record.owner}, submitted {moment(record.submitted_at)}, over {moment(record.ended_at)}\n"
    if record.tags:
        yield f"  tags: {', '.join(f'{name}={one_line(value)}' for name, value in sorted(record.tags.items()))}\n"
    for node in record.nodes:
        yield f"  {_node(node)}\n"
    yield "\n"
    rows = [(each.kind, each.name, size_text(each.size_bytes), each.sha256[:12]) for each in record.parts]
    yield from table(rows[:PARTS_SHOWN_MAX], header=("PART", "NAME", "SIZE", "SHA256"))
    if len(rows) > PARTS_SHOWN_MAX:
        yield f"… and {len(rows) - PARTS_SHOWN_MAX:,} more parts\n"
    if results:
        from pilotage.app.provenance.served_records import result_values

        yield "\nthe provenance script said:\n"
        for result in results[:RESULTS_SHOWN_MAX]:
            said = ", ".join(f"{one_line(name)}={one_line(text)}" for name, text in result_values(result.custom))
            again = f" (attempt {result.attempt})" if result.attempt > 1 else ""
            yield f"  {result.package}{again}: {said}\n"
        if len(results) > RESULTS_SHOWN_MAX:
            yield f"  … and {len(results) - RESULTS_SHOWN_MAX:,} more (--json lists all)\n"
    if annotations:
        yield "\nadded later:\n"
        for each in annotations:
            what = one_line(each.text) if each.part is None else f"a file of {size_text(each.part.size_bytes)}"
            yield f"  {moment(each.at)} {each.author}: {each.name} = {what}\n"


def _node(node: RecordNode) -> str:
    software = ", ".join(f"{name} {version}" for name, version in sorted(node.software.items()))
    parts = [f"{node.node} at {node.site}" if node.site else node.node, node.system, f"{node.cores} cores", software]
    return ", ".join(part for part in parts if part)


@click.command("list")
@click.option("--owner", help="Records of this owner; without it, your own, or all of a folder.")
@click.option("--from", "first", metavar="DATE", help="Jobs submitted on this day or later, such as 2026-01-31.")
@click.option("--before", metavar="DATE", help="Jobs submitted before this day.")
@json_option
@records_options
def list_records(
    owner: str | None,
    first: str | None,
    before: str | None,
    folder: Path | None,
    server: str | None,
    token_file: str | None,
    *,
    as_json: bool,
) -> None:
    """List the records of an owner, by the time of submission."""
    from pilotage.app.provenance.recorded_jobs import records_in
    from pilotage.app.provenance.served_records import records_at

    since, until = _day(first) or 0.0, _day(before) or 0.0
    if folder is not None:
        found = [each for each in records_in(folder, since=since, until=until) if owner in (None, each.owner)]
    else:
        with connect_to_read(server, token_file) as connection:
            found = records_at(connection).find(owner=owner or "", submitted_from=since, submitted_before=until)
    if as_json:
        from pilotage import app

        emit([app.json_text({"records": found})])
    else:
        rows = ((each.job, each.owner, moment(each.submitted_at), each.revision) for each in found)
        emit(table(rows, header=("JOB", "OWNER", "SUBMITTED", "REVISION")))


def _day(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise click.UsageError(f"{text!r} is not a day: write it as 2026-01-31.") from None


@click.command()
@click.argument("job")
@click.argument("words", nargs=-1, required=True, metavar="NAME=VALUE|NAME=@FILE...")
@json_option
@server_option
def annotate(job: str, words: tuple[str, ...], server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Add texts or files to the record of a job, with your name and the time.

    Earlier annotations of the same name stay; `pilotage provenance find` uses the latest. @FILE adds the content of a file.
    """
    from pilotage.app.provenance.served_records import record_to_show, records_at
    from pilotage.client.send import check_tag, split_fields

    given = split_fields(words)
    files = {name: Path(value[1:]) for name, value in given.items() if value.startswith("@")}
    for name, value in given.items():
        check_tag(name, value if name not in files else "")
    contents = {name: _read(file) for name, file in files.items()}
    with connect_or_start(server, token_file) as connection:
        records = records_at(connection)
        record = record_to_show(records, recorded_job(connection, job))
        for name, value in given.items():
            if name in contents:
                records.attach(record.job, name, contents[name])
            else:
                records.annotate(record.job, name, value)
    if as_json:
        from pilotage import app

        emit([app.json_text({"job": record.job, "added": sorted(given)})])
    else:
        print_message(f"added to the record of {record.job}: {', '.join(given)}")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}.") from None


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@json_option
@server_option
def keep(jobs: tuple[str, ...], server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Make the records of jobs that are over now, as soon as their inputs have checksums."""
    from pilotage.app.provenance.served_records import records_at

    with connect_to_read(server, token_file) as connection:
        records = records_at(connection)
        made = [records.make_when_ready(recorded_job(connection, job)) for job in jobs]
    if as_json:
        from pilotage import app

        emit([app.json_text({"records": [{"job": each.job, "revision": each.revision} for each in made]})])
    else:
        for each in made:
            print_message(f"{each.job} is recorded: revision {each.revision}")
