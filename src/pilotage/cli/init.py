"""`pilotage init`: a first document, from two questions or from a list of commands."""

from __future__ import annotations

from pathlib import Path

import click

from pilotage.cli.output import say_to_reader, write_files

NAME = "pilotage.yaml"


@click.command()
@click.argument("commands", nargs=-1)
@click.option(
    "--commands",
    "listed",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="A file with a command on each line; - is standard input.",
)
@click.option("--job", metavar="NAME", help="What to call the job; none: as the folder is called.")
@click.option("--force", is_flag=True, help=f"Write over a {NAME} that is there already.")
def init(commands: tuple[str, ...], listed: str | None, job: str | None, *, force: bool) -> int:
    """Write a first pilotage.yaml into the current folder.

    From COMMANDS, which run side by side, or from a file of them; without any it asks two questions: what to run, and
    over what. What is written passes `pilotage check`.
    """
    # A question is not worth answering when the answer cannot be kept.
    if Path(NAME).exists() and not force:
        raise click.UsageError(f"{NAME} is there already. --force writes over it.")
    from pilotage.cli import first
    from pilotage.cli.failures import show
    from pilotage.cli.questions import ask_for_document
    from pilotage.model.errors import PilotageError

    name = first.job_name(Path.cwd().name) if job is None else job
    found = [*commands, *(_read_commands(listed) if listed is not None else [])]
    if not found and listed is not None:
        raise click.UsageError(f"{listed} has no command in it.")
    try:
        text = first.document_text(first.list_of_commands(found, job=name)) if found else ask_for_document(name)
    except PilotageError as refusal:
        code, _ = show(refusal)
        say_to_reader("nothing was written")
        return code
    write_files({NAME: [text]})
    say_to_reader(f"wrote {NAME}; next: pilotage check")
    return 0


def _read_commands(file: str) -> list[str]:
    """The commands of a file, one on each line; empty lines and lines that begin with # are none."""
    from pilotage import app

    text, report = app.text_of(file)
    report.refuse_if_faulty()
    lines = (text or "").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
