"""`pilotage site agent`, `token` and `pack`: what runs in your account on a cluster, and what it needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pilotage.cli.output import emit
from pilotage.cli.remote import json_option
from pilotage.cli.words import one_line, plural
from pilotage.model.exit_codes import ExitCode


@click.command("agent", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="--server URL --site NAME [--folder DIR] [...]")
@click.option(
    "--json", "as_json", is_flag=True, help="Say what would be started, as one JSON object, and start nothing."
)
def agent(words: tuple[str, ...], *, as_json: bool) -> int:
    """Run the agent of a site: on the cluster, in your own account.

    It submits and withdraws pilots as the service wants, and passes on what nodes without a way out have to say. It
    works in ~/.pilotage-site/NAME unless --folder names another folder that all nodes see. The
    same is in the one file that `pilotage site pack --output agent.pyz` writes, which needs nothing but Python 3.8:
    `python3 agent.pyz site --help` shows all options.
    """
    from pilotage.app.agent_file import agent_command

    command = agent_command(words)
    if as_json:
        from pilotage import app

        emit([app.json_text({"command": command})])
        return ExitCode.COMPLETE
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(command[0], command)


@click.command("token")
@click.argument("name", metavar="NAME")
@click.option("--output", required=True, metavar="FILE", help="The file to write it to; only you can read it.")
@json_option
def token(name: str, output: str, *, as_json: bool) -> int:
    """Write the token that the agent of a site shows to the service of this folder.

    Copy the file to the cluster, where nobody else can read it; the agent renews it by itself.
    """
    from pilotage.app.agent_file import write_agent_token

    file = write_agent_token(name, Path(output))
    if as_json:
        from pilotage import app

        emit([app.json_text({"site": name, "token_file": str(file)})])
    else:
        emit([f"{file}: the token of the agent of {one_line(name)}\n"])
    return ExitCode.COMPLETE


@click.command("pack")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE.py]...")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the agent in one file there, too."
)
@json_option
def pack(files: tuple[Path, ...], output: Path | None, *, as_json: bool) -> int:
    """Put dialects of batch systems into the agent, beside our own.

    Each FILE has a class of Dialect: it is checked, kept in the state folder of this project, and known to the next
    service that starts here. Without a FILE the agent is only written to --output.
    """
    from pilotage.app.agent_file import pack_here

    if not files and output is None:
        raise click.UsageError("What? Name files with dialects, or an --output for the agent.")
    packed = pack_here(files, output)
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text(msgspec.to_builtins(packed))])
        return ExitCode.COMPLETE
    if packed.dialects:
        emit(
            [
                f"{plural(len(packed.dialects), 'dialect')} checked and kept in {packed.folder}: {', '.join(packed.dialects)}\n"
            ]
        )
    emit([f"{packed.archive}: the agent in one file\n"])
    return ExitCode.COMPLETE
