"""`pilotage completion`: scripts that let a shell complete commands, options and file names."""

from __future__ import annotations

import click

from pilotage.cli.output import emit

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes pilotage's words in a shell.

    Read it once per session, for instance with `source <(pilotage completion bash)`.
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click knows no completion for {shell}")
    complete = kind(root.command, {}, "pilotage", "_PILOTAGE_COMPLETE")
    # Not complete.source(): for bash it runs bash to ask its version, and this may be another machine's shell.
    emit([complete.source_template % complete.source_vars(), "\n"])
