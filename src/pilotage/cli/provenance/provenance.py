"""`pilotage provenance`: the group of commands about the records of jobs that are over."""

from __future__ import annotations

import click

from pilotage.cli.provenance.diff import diff
from pilotage.cli.provenance.export import export_record, import_record
from pilotage.cli.provenance.find import find, index
from pilotage.cli.provenance.rerun import rerun
from pilotage.cli.provenance.show import annotate, keep, list_records, show
from pilotage.cli.provenance.storage import delete, fsck, gc, take_over
from pilotage.cli.provenance.trace import trace
from pilotage.cli.shared.options import WholeHelp


@click.group(cls=WholeHelp)
def provenance() -> None:
    """Show, find, compare and repeat what was run: the records of jobs that are over."""


for _command in (
    annotate,
    delete,
    diff,
    export_record,
    find,
    fsck,
    gc,
    import_record,
    index,
    keep,
    list_records,
    rerun,
    show,
    take_over,
    trace,
):
    provenance.add_command(_command)
