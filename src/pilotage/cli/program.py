"""The program `pilotage`: its table of commands, its help, and the entry point."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import takewhile
from typing import Any

import click

from pilotage import __version__
from pilotage.cli.shared import errors
from pilotage.cli.shared.streams import guard_standard_streams

EVERYDAY = ("init", "check", "plan", "run", "map", "status", "logs", "explain", "retry", "kill", "outputs", "site")
"""The commands that `pilotage --help` explains, in this order; it lists the others by name and group."""

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "documents": {
        "check": ("check", "Check a document and count its stages, packages and files."),
        "completion": ("rules", "Print a completion script for your shell."),
        "convert": ("check", "Convert a document to another format, or to its canonical form."),
        "graph": ("check", "Draw the dependency graph of a document."),
        "init": ("init", "Write a first pilotage.yaml into the current folder."),
        "rules": ("rules", "Show how failed attempts are retried."),
        "schema": ("rules", "Print the JSON Schema of documents."),
        "software": ("rules", "Work with descriptions of software."),
    },
    "jobs": {
        "attach": ("submit", "Reattach to a job that runs without a terminal."),
        "clean": ("outputs", "Remove files that earlier runs made and the document no longer makes."),
        "drop": ("operations", "Leave a line out of a job."),
        "explain": ("status", "Explain why a package waits, where it runs, or how it ended."),
        "healing": ("healing", "Show the incidents of a job, and what was done about them."),
        "hold": ("operations", "Start no further attempts of a job or a package."),
        "kill": ("operations", "Cancel a job, a line, a package, or everything that a query finds."),
        "logs": ("logs", "Show what the programs of a package wrote."),
        "map": ("run", "Run one command for each of many files or values."),
        "outputs": ("outputs", "Verify the outputs of a job or a package, and hand them over."),
        "plan": ("run", "Show what a run would do, why, and what it would cost."),
        "release": ("operations", "Continue held jobs or packages."),
        "replicate": ("operations", "Start one more attempt of a running package."),
        "restore": ("operations", "Take a dropped line back into its job."),
        "retry": ("operations", "Retry failed packages; on request also done or running ones."),
        "run": ("run", "Run a document here and wait until it ends."),
        "status": ("status", "Show the state of a job or a package."),
        "submit": ("submit", "Submit a document to a service and return at once."),
        "watch": ("submit", "Show the progress of a job until it ends."),
    },
    "sites": {
        "files": (
            "files",
            "Show the files that were brought to sites, and pin and purge them; keep files in the service.",
        ),
        "site": ("site", "Manage sites: add, test, list, hibernate, wake."),
    },
    "book": {
        "book": ("book", "Maintain a book: back up, check, rebuild, seal, dump, load, purge."),
        "courier": ("book", "Deliver spooled events to their servers."),
        "events": ("query", "Show the events of a job or a package, in the order of the book."),
        "log": ("tags", "Log an event, from a script or by hand."),
        "query": ("query", "Find packages, jobs or events."),
        "statistics": ("query", "Show how packages flow through the states."),
        "subscriptions": ("subscriptions", "Subscribe to changes: follow them, or get them by webhook or mail."),
        "tag": ("tags", "Tag a job or a package, before, during or after its run."),
    },
    "provenance": {
        "provenance": ("provenance", "Show, find, compare and repeat what was run: the records of jobs that are over."),
    },
    "service": {
        "doctor": ("serve", "Check every step between this computer and a result."),
        "serve": ("serve", "Run the service: it runs jobs and answers over HTTP."),
        "tls": ("serve", "Create certificates for the service."),
    },
    "forecast": {
        "forecast": ("forecast", "Forecast how many pilots start by when, and how long work takes on them."),
    },
    "simulation": {
        "reproduce": ("reproduce", "Run published experiments again in the simulator."),
        "simulate": ("simulate", "Forecast how long a job takes at your sites; without a job, test pilotage itself."),
    },
}
"""Every command by group and name: its module and its line in the help. A group is a folder of `pilotage.cli`.

A module is imported only when its command is used, so `pilotage --help` stays quick.
"""

ALIASES = {
    "reschedule": ("jobs", "operations"),  # retry --elsewhere
    "restart": ("jobs", "operations"),  # retry --force
    "why": ("jobs", "status"),  # explain
}
"""Commands that still work but are not shown in the help: the group and the module of each."""

_FUNCTIONS = {"map": "map_command"}
_MODULES = ALIASES | {
    name: (group, module) for group, commands in COMMANDS.items() for name, (module, _) in commands.items()
}
_ALL = "pilotage.all-commands"
_LINE_MAX = 1000  # never cut a help line; long ones are wrapped


class Program(click.Group):
    """The group of all commands: suggests the nearest command for a typo, and turns errors into exit codes."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command that the arguments name; exit the process in standalone mode."""
        gc.disable()  # most commands end soon and free little: collecting only costs time
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*arguments, standalone_mode=False, **extra)
        atexit.register(gc.freeze)  # skips the last collection at exit, where the memory is freed anyway
        guard_standard_streams()
        words = arguments[0] if arguments and arguments[0] is not None else extra.get("args")
        as_json = errors.wants_json(sys.argv[1:] if words is None else list(words))
        sys.exit(errors.exit_code_of(lambda: run(*arguments, standalone_mode=False, **extra), as_json=as_json))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command; `--all`, before or after `--help`, shows all commands."""
        if "--all" in takewhile(lambda word: word.startswith("-"), args):
            ctx.meta[_ALL] = True
            args = ["--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, without aliases."""
        return sorted({*_MODULES, "help"} - {*ALIASES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and return the command."""
        if cmd_name == "help":
            return help_command
        if cmd_name not in _MODULES:
            return None
        group, module = _MODULES[cmd_name]
        # `map` is a builtin of Python, so its function has another name.
        function = _FUNCTIONS.get(cmd_name, cmd_name)
        command: click.Command = getattr(import_module(f"pilotage.cli.{group}.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help without importing their modules."""
        if ctx.meta.get(_ALL):
            for group, commands in COMMANDS.items():
                with formatter.section(group.capitalize()):
                    formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])
            return
        known = {name: summary for commands in COMMANDS.values() for name, (_, summary) in commands.items()}
        with formatter.section("Everyday commands"):
            formatter.write_dl([(name, known[name]) for name in EVERYDAY])
        with formatter.section("More commands, by group"):
            others = {group: [name for name in names if name not in EVERYDAY] for group, names in COMMANDS.items()}
            formatter.write_dl([(group, ", ".join(others[group] or COMMANDS[group])) for group in COMMANDS])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write how to get further help."""
        more = [("pilotage help GROUP", "the commands of a group"), ("pilotage help COMMAND", "all about a command")]
        if not ctx.meta.get(_ALL):
            more.append(("pilotage help --all", "all commands"))
        with formatter.section("Further help"):
            formatter.write_dl(more)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown word, fail and suggest the nearest one."""
        word = args[0]
        if word in COMMANDS and word not in _MODULES:
            ctx.fail(f"{word!r} is a group of commands. See them with: pilotage help {word}")
        if word not in _MODULES and word != "help" and not word.startswith("-"):
            import difflib

            known = self.list_commands(ctx)
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"Commands: {', '.join(known)}."
            ctx.fail(f"No such command {word!r}. {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--all", is_flag=True, expose_value=False, help="Show all commands and exit.")
@click.version_option(__version__, prog_name="pilotage", message="%(prog)s %(version)s")
def main() -> None:
    """Carry a job from its definition to provable results across unreliable sites."""


def _complete_help(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completions after `pilotage help`: groups and commands, then subcommands."""
    given: tuple[str, ...] = ctx.params.get("words") or ()
    known = {*COMMANDS, *main.list_commands(ctx)}
    if given:
        command = main.get_command(ctx, given[0]) if len(given) == 1 else None
        known = set(command.commands) if isinstance(command, click.Group) else set()
    return sorted(word for word in known if word.startswith(incomplete))


@click.command(name="help")
@click.argument("words", nargs=-1, metavar="[GROUP|COMMAND]...", shell_complete=_complete_help)
@click.option("--all", "all_commands", is_flag=True, help="Show all commands.")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...], *, all_commands: bool) -> None:
    """Show help on a command or on a group of commands.

    Without arguments, the same as `pilotage --help`.
    """
    assert ctx.parent is not None
    place: click.Context = ctx.parent
    if all_commands:
        place.meta[_ALL] = True
    elif len(words) == 1 and words[0] in COMMANDS:
        click.echo(_group_help(place, words[0]))
        return
    for word in () if all_commands else words:
        if not isinstance(place.command, click.Group):
            ctx.fail(f"{place.command_path!r} has no subcommands.")
        name, command, _ = place.command.resolve_command(place, [word])
        assert command is not None
        place = click.Context(command, info_name=name, parent=place, **command.context_settings)
    click.echo(place.command.get_help(place))


def _group_help(ctx: click.Context, group: str) -> str:
    """The help of a group: its commands and their subcommands, each with its first sentence."""
    formatter = ctx.make_formatter()
    formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] [ARGS]...")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(import_module(f"pilotage.cli.{group}").__doc__ or "")
    rows: list[tuple[str, str]] = []
    for name, (_, summary) in COMMANDS[group].items():
        command = main.get_command(ctx, name)
        below = command.commands if isinstance(command, click.Group) else {}
        rows += [(f"{name} {each}", below[each].get_short_help_str(_LINE_MAX)) for each in sorted(below)]
        rows += [] if below else [(name, summary)]
    with formatter.section("Commands"):
        formatter.write_dl(rows)
    with formatter.section("Further help"):
        formatter.write_dl([("pilotage help COMMAND", "all about a command")])
    return formatter.getvalue().rstrip("\n")
