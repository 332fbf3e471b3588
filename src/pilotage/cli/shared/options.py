"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.numpy_loader import import_numpy_quickly

if TYPE_CHECKING:
    from pilotage.app import Format, LoadedJob

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FORMATS: tuple[Format, ...] = ("yaml", "dagman", "wfformat")


class QueryCommand(click.Command):
    """A command with a query: explains missing quotes and options that exclude each other."""

    targets: tuple[str, ...] = ("--packages", "--jobs", "--events")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        given = [word for word in self.targets if word in args]
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(given)} exclude each other.", ctx=ctx)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as fault:
            if "extra argument" not in fault.message:
                raise
            message = f'{fault.message} Put the query in quotes: "state=RUNNING and site=lyon".'
            raise click.UsageError(message, ctx=ctx) from None


def document_argument(command: Decorated) -> Decorated:
    """FILE: `-` is standard input, and the default is the document of the current folder."""
    return click.argument("file", required=False, type=click.Path(allow_dash=True))(command)


def target_arguments(command: Decorated) -> Decorated:
    """FILE, as for `document_argument`, and TARGETs."""
    return click.argument("words", nargs=-1, type=click.Path(allow_dash=True), metavar="[FILE] [TARGET]...")(command)


def format_option(command: Decorated) -> Decorated:
    """`--from`."""
    return click.option(
        "--from",
        "source_format",
        type=click.Choice(["auto", *FORMATS]),
        default="auto",
        show_default=True,
        help="Read FILE in this format; auto detects it from the name and the first words.",
    )(command)


def parameter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--set` and `--parameters`; the command receives their values as `parameters`."""

    @functools.wraps(command)
    def with_parameters(*words: Any, settings: tuple[str, ...], parameters_file: str | None, **more: Any) -> Any:
        from pilotage.app.documents.parameters import chosen_parameters

        return command(*words, parameters=chosen_parameters(settings, parameters_file), **more)

    by_file = click.option(
        "--parameters",
        "parameters_file",
        type=click.Path(),
        metavar="FILE",
        help="Set parameters of the document from a file of names and values: YAML, JSON or TOML.",
    )
    one = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a parameter of the document; may be repeated, and overrides --parameters.",
    )
    return one(by_file(with_parameters))


def output_option(command: Decorated) -> Decorated:
    """`-o`."""
    return click.option(
        "-o",
        "--output",
        default="-",
        type=click.Path(allow_dash=True),
        metavar="OUT",
        help="Write to the file OUT instead of standard output; a failure leaves no partial file.",
    )(command)


def chosen_format(word: str) -> Format | None:
    """The format that `--from` or `--to` names; None for `auto`."""
    return next((known for known in FORMATS if known == word), None)


def load_document(file: str | None, source_format: str, parameters: Mapping[str, str] | None = None) -> LoadedJob:
    """Load FILE or the document of the current folder, and print the number of its warnings."""
    import_numpy_quickly()
    from pilotage import app

    source = app.find_document() if file is None else file
    loaded = app.load(source, source_format=chosen_format(source_format), parameters=parameters)
    say_warnings(loaded, source)
    return loaded


def say_warnings(loaded: LoadedJob, source: str) -> None:
    """Print the number of warnings, without those of undeclared outputs, which a run lists at its end."""
    from pilotage.cli.shared.output import print_message

    count = sum(warning.code != "no-outputs" for warning in loaded.warnings)
    if count:
        hint = "1 warning; see it" if count == 1 else f"{count:,} warnings; see them"
        print_message(f"{hint} with: {command_with('pilotage check', source)}")


def command_with(command: str, name: str) -> str:
    """A command with the name of a file, quoted for the shell."""
    import shlex

    return f"{command} {shlex.quote(name)}"


# Groups of commands whose help does not cut the descriptions of their commands.

_LINE_MAX = 1000  # never cut a help line; long ones are wrapped


class WholeHelp(click.Group):
    """A group whose help shows the whole first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands into the help."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, each.get_short_help_str(_LINE_MAX)) for name, each in found if each is not None and not each.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


# Arguments of the commands that control jobs: names or a query, and a message.

CONFIRMED_ABOVE = 100
"""An operation on more jobs or packages than this needs a confirmation."""


def where_options(*, jobs: bool) -> Callable[[Decorated], Decorated]:
    """`--where`, which replaces names; also `--jobs` if the command works on whole jobs."""

    def decorate(command: Decorated) -> Decorated:
        command = click.option(
            "--yes", is_flag=True, help=f"Do not ask for confirmation, even for more than {CONFIRMED_ABOVE}."
        )(command)
        if jobs:
            command = click.option("--jobs", "target", flag_value="jobs", help="Let QUERY find whole jobs.")(command)
            command = click.option(
                "--packages",
                "target",
                flag_value="packages",
                default="packages",
                help="Let QUERY find packages. [default]",
            )(command)
        return click.option(
            "--where",
            "query",
            metavar="QUERY",
            help="Act on everything that QUERY finds, such as 'state=RUNNING and site=lyon'.",
        )(command)

    return decorate


def message_option(command: Decorated) -> Decorated:
    """`--message`."""
    return click.option("--message", default="", metavar="TEXT", help="Record TEXT in the book as the reason.")(command)


def names_argument(*, name: str) -> Callable[[Decorated], Decorated]:
    """The names of jobs or packages."""
    return click.argument("names", nargs=-1, metavar=f"[{name}]...")
