"""The program `pilotage`: its commands, and the one place where an error becomes a text and an exit code."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from pilotage import __version__
from pilotage.cli.shared import errors
from pilotage.cli.shared.streams import guard_standard_streams

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Jobs as documents": {
        "check": ("documents.check", "Check a document and count what it comes to."),
        "completion": ("documents.rules", "Print a script that completes pilotage's words in a shell."),
        "convert": ("documents.check", "Write a document in another format, or in the canonical form of our own."),
        "graph": ("documents.check", "Draw the graph that a document's files imply."),
        "init": ("documents.init", "Write a first pilotage.yaml into the current folder."),
        "rules": ("documents.rules", "Show what is done when attempts fail."),
        "schema": ("documents.rules", "Print the JSON Schema of a document, for editors and other programs."),
        "software": ("documents.rules", "Work with descriptions of software."),
    },
    "Running jobs": {
        "run": ("run.run", "Run a document here, or only what some of its outputs need, and wait for its end."),
        "map": ("run.run", "Run one command for each of many files or values, without a document."),
        "plan": ("run.run", "Say what a run would do, why, and what it would cost; nothing is run."),
        "submit": (
            "run.submit",
            "Have a document run by a service, or only what some of its outputs need, and do not wait for it.",
        ),
        "attach": ("run.submit", "Come back to a job that goes on without a terminal."),
        "watch": ("run.submit", "Show how far a job is, until it is over."),
        "explain": ("jobs.status", "Say why a package is where it is: why it does not run, above all."),
        "logs": ("jobs.logs", "Show what the programs of a package wrote."),
        "outputs": ("jobs.outputs", "Verify the outputs of a job or a package, and hand them over."),
        "clean": ("jobs.outputs", "Remove, after showing, what earlier runs made and the document no longer makes."),
        "doctor": ("service.serve", "Find out what is broken between here and a result."),
    },
    "Steering jobs": {
        "kill": ("jobs.operations", "Cancel a job, a line, a package, or everything that a query finds."),
        "hold": ("jobs.operations", "Start nothing more of a job or a package."),
        "release": ("jobs.operations", "Go on with what was held."),
        "restart": ("jobs.operations", "Begin a package, or all that failed of a job, anew."),
        "retry": ("jobs.operations", "Try again what failed."),
        "reschedule": ("jobs.operations", "Give up the live attempts of a package, and try it again."),
        "replicate": ("jobs.operations", "Start one more attempt beside those of a running package."),
        "drop": ("jobs.operations", "Leave a line out of a job."),
        "restore": ("jobs.operations", "Take a dropped line back in."),
    },
    "Sites": {
        "site": ("sites.site", "Look after the places that run packages: add, test, list, hibernate, wake."),
    },
    "The book": {
        "book": ("service.book", "Look after a book: back it up, rebuild, check, seal, dump, load, purge."),
        "courier": ("service.book", "Deliver events that wait in the spool, to each server its own."),
        "events": ("jobs.query", "Show what happened to a job or a package, in the order of the book."),
        "log": ("jobs.tags", "Log an event, from a script or by hand."),
        "query": ("jobs.query", "Find packages, jobs or events."),
        "serve": ("service.serve", "Run the service: jobs of many, and the book over HTTP."),
        "statistics": ("jobs.query", "Show how work flows through the states."),
        "status": ("jobs.status", "Show how a job or a package stands."),
        "subscriptions": ("service.subscriptions", "Be told of changes: by following them, by a webhook or by mail."),
        "tag": ("jobs.tags", "Give a job or a package names with values, before, during or after its run."),
    },
    "pilotage itself": {
        "simulate": (
            "run.simulate",
            "Say how long a job would take at your sites; or, without one, put pilotage itself to the test.",
        ),
        "tls": ("service.serve", "Make the service speak TLS: an authority of its own, and a certificate."),
    },
}
"""Every command by name: the module of `pilotage.cli` that has it, and what `--help` says of it.

A module is imported when its command is used: `pilotage --help` must be quick, however many there are.
"""

_NAMES = {"map": "map_command"}
_HOMES = {name: module for section in COMMANDS.values() for name, (module, _) in section.items()}


class Program(click.Group):
    """A group of commands that answers a wrong word with a near one, and every error with its exit code."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command that the arguments name; ends the process unless click is told not to."""
        gc.disable()  # most commands end soon, and free little before: collecting only costs time
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*arguments, standalone_mode=False, **extra)
        atexit.register(gc.freeze)  # nor is all there is looked through once more at the end, where it goes anyway
        guard_standard_streams()
        words = arguments[0] if arguments and arguments[0] is not None else extra.get("args")
        as_json = errors.wants_json(sys.argv[1:] if words is None else list(words))
        sys.exit(errors.exit_code_of(lambda: run(*arguments, standalone_mode=False, **extra), as_json=as_json))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, its module imported now."""
        if cmd_name not in _HOMES:
            return None
        module = import_module(f"pilotage.cli.{_HOMES[cmd_name]}")
        # A command whose name is one of Python's own has another one there.
        command: click.Command = getattr(module, _NAMES.get(cmd_name, cmd_name))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help text, without importing any."""
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(name, told) for name, (_, told) in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a word that is none is answered with the nearest that is."""
        word = args[0]
        if word not in _HOMES and not word.startswith("-"):
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
