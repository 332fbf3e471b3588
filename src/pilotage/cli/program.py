"""The program `pilotage`: its commands, and the one place where an error becomes a text and an exit code."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import click

from pilotage import __version__
from pilotage.cli import failures
from pilotage.cli.check import check
from pilotage.cli.completion import completion
from pilotage.cli.convert import convert
from pilotage.cli.graph import graph
from pilotage.cli.init import init
from pilotage.cli.schema import schema
from pilotage.cli.software import software
from pilotage.cli.streams import guard_standard_streams


class Program(click.Group):
    """A group of commands that answers a wrong word with a near one, and every error with its exit code."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command that the arguments name; ends the process unless click is told not to."""
        gc.disable()  # every command of today ends soon, and frees little before: collecting only costs time
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*arguments, standalone_mode=False, **extra)
        guard_standard_streams()
        sys.exit(failures.exit_code_of(lambda: run(*arguments, standalone_mode=False, **extra)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a word that is none is answered with the nearest that is."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            import difflib

            known = self.list_commands(ctx)
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
            ctx.fail(f"No such command {word!r}. {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pilotage", message="%(prog)s %(version)s")
def main() -> None:
    """Carry a job from its definition to provable results across unreliable sites."""


for _command in (check, graph, convert, software, schema, init, completion):
    main.add_command(_command)
