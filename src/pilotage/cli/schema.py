"""`pilotage schema`: the JSON Schema of a document, for editors."""

from __future__ import annotations

import click

from pilotage.cli.options import output_option
from pilotage.cli.output import emit


@click.command()
@output_option
def schema(output: str) -> None:
    """Print the JSON Schema of a document, for editors and other programs."""
    from pilotage import app

    emit([app.json_text(app.document_schema())], output=output)
