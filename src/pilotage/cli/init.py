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
def init(commands: tuple[str, ...], listed: str | None, job: str | None, *, force: bool) -> None:
    """Write a first pilotage.yaml into the current folder.

    From COMMANDS, which run side by side, or from a file of them; without any it asks two questions: what to run, and
    over what. What is written passes `pilotage check`.
    """
    # A question is not worth answering when the answer cannot be kept.
    if Path(NAME).exists() and not force:
        raise click.UsageError(f"{NAME} is there already. --force writes over it.")
    from pilotage.cli import first

    name = job or first.job_name(Path.cwd().name)
    found = [*commands, *(_read_commands(listed) if listed is not None else [])]
    if found:
        fields = first.list_of_commands(found, job=name)
    elif listed is not None:
        raise click.UsageError(f"{listed} has no command in it.")
    else:
        fields = _ask(name)
    write_files({NAME: [first.document_text(fields)]})
    say_to_reader(f"wrote {NAME}; next: pilotage check")


def _ask(job: str) -> dict[str, object]:
    from pilotage.cli import first

    command = click.prompt("What command is to be run", err=True).strip()
    over = click.prompt(
        "Over what is it repeated: 1..100, data/*.csv, a,b,c, a file of lines, or nothing",
        default="",
        show_default=False,
        err=True,
    ).strip()
    if over:
        return first.repeated_command(command, over=over, job=job, is_file=Path(over).is_file())
    return first.list_of_commands([command], job=job)


def _read_commands(file: str) -> list[str]:
    """The commands of a file, one on each line; empty lines and lines that begin with # are none."""
    from pilotage import app

    lines = app.read_source(file).decode("utf-8", errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
