"""`pilotage schema`: the JSON Schema of a document, for editors."""

from __future__ import annotations

import click

from pilotage.cli.options import output_option
from pilotage.cli.output import emit


@click.command()
@click.option("--sites", is_flag=True, help="Of a file of sites, sites.yaml, instead.")
@output_option
def schema(output: str, *, sites: bool) -> None:
    """Print the JSON Schema of a document, for editors and other programs."""
    from pilotage import app

    if sites:
        from pilotage.app.site_entries import schema as sites_schema

        emit([app.json_text(sites_schema())], output=output)
        return
    emit([app.json_text(app.document_schema())], output=output)
