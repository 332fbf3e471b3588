"""`pilotage provenance export` and `import`: records in the formats of others, and back from a crate."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from pilotage.cli.provenance.record_sources import recorded_job
from pilotage.cli.shared.output import emit, plural, print_message
from pilotage.cli.shared.server import connect_or_start, connect_to_read, json_option, server_option

if TYPE_CHECKING:
    from pilotage.app.provenance.exports import ExportFormat
    from pilotage.client import Server

_CRATE = "ro-crate"
_FORMATS = (_CRATE, "prov-json", "wfformat", "openlineage")


@click.command("export")
@click.argument("job")
@click.option(
    "--format", "export_format", type=click.Choice(_FORMATS), default=_CRATE, show_default=True, help="What to write."
)
@click.option(
    "--to",
    "target",
    metavar="PATH",
    help="Where to write it. A crate is a folder, or an archive if PATH ends with .zip; by default it is JOB.crate.zip. The other "
    "formats are printed by default.",
)
@click.option(
    "--with-contents",
    is_flag=True,
    help="With ro-crate: also the files of the job that its record does not have, as far as they are there.",
)
@json_option
@server_option
def export_record(
    job: str,
    export_format: str,
    target: str | None,
    server: str | None,
    token_file: str | None,
    *,
    with_contents: bool,
    as_json: bool,
) -> None:
    """Write the record of a job in a format that other programs read.

    ro-crate: a Workflow Run RO-Crate (Provenance Run Crate profile 0.5) with the record and its parts, from which `pilotage
    provenance import` makes the record again. prov-json: W3C PROV-JSON. wfformat: a WfFormat 1.5 trace with measured times.
    openlineage: OpenLineage run events, one on each line.
    """
    from pilotage.app.provenance import exports
    from pilotage.app.provenance.served_records import record_to_show, records_at

    if with_contents and export_format != _CRATE:
        raise click.UsageError("--with-contents is for --format ro-crate.")
    chosen = cast("ExportFormat", export_format)
    with connect_to_read(server, token_file) as connection:
        records = records_at(connection)
        record = record_to_show(records, recorded_job(connection, job))
        if export_format == _CRATE:
            path = Path(target or f"{record.job}.crate.zip")
            written = exports.export_crate(records, record, path=path, with_contents=with_contents)
        elif target is not None:
            written = exports.export_file(records, record, export_format=chosen, path=Path(target))
        else:
            for piece in exports.export_text(records, record, export_format=chosen):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
    if as_json:
        from pilotage import app

        emit([app.json_text({"path": written.path, "files": written.files, "missing": written.missing})])
        return
    print_message(
        f"{written.path} written" + (f", with {plural(written.files, 'file')} of the job" if with_contents else "")
    )
    if not written.licensed:
        print_message(
            f"it states no licence; to state one: pilotage provenance annotate {record.job} license=CC-BY-4.0, then export again"
        )
    for name in written.missing:
        print_message(f"left out, since it is not there as it was recorded: {name}")


@click.command("import")
@click.argument("crate", metavar="CRATE", type=click.Path(exists=True))
@json_option
@server_option
def import_record(crate: str, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Put the record of a crate into the storage of a service, after all its digests were checked.

    CRATE is a folder or an archive that `pilotage provenance export` wrote. In a folder without a service one is started, as for
    a run.
    """
    from pilotage.app.provenance.exports import import_crate
    from pilotage.app.provenance.served_records import records_at

    with _server_here(server, token_file) as connection:
        found = import_crate(records_at(connection), Path(crate))
    if as_json:
        from pilotage import app

        told = {"job": found.job, "revision": found.revision, "parts": found.parts, "new": found.new}
        emit([app.json_text({**told, "files": found.files})])
        return
    if found.new:
        print_message(f"the record of {found.job} is here now, with {plural(found.parts, 'part')}")
    else:
        print_message(f"the record of {found.job} was here already")
    if found.files:
        unpacked = shlex.quote(str(Path(crate) / "files")) if Path(crate).is_dir() else "FOLDER/files"
        print_message(
            f"{plural(len(found.files), 'file')} of the job stay{'s' if len(found.files) == 1 else ''} in the crate, since the record"
            f" has only {'its checksum' if len(found.files) == 1 else 'their checksums'}; to run the job again"
            f"{'' if Path(crate).is_dir() else ', unpack the crate into FOLDER, then'}:"
            f" pilotage provenance rerun {found.job} --inputs {unpacked}"
        )


def _server_here(server: str | None, token_file: str | None) -> Server:
    """The server that is named or known here, or else a service that is started in this folder."""
    from pilotage.client import NoServer

    try:
        return connect_or_start(server, token_file)
    except NoServer:
        from pilotage.app.service.session import Session

        return Session(Path.cwd()).server()
