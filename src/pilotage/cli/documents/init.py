"""`pilotage init`: writes a first document from a list of commands, or from the answers to two questions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from pilotage import app
from pilotage.cli.shared.errors import show_error
from pilotage.cli.shared.output import print_message, reason, write_files
from pilotage.model.errors import PilotageError

NAME = "pilotage.yaml"


@click.command()
@click.argument("commands", nargs=-1)
@click.option(
    "--commands",
    "listed",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Read commands from FILE, one on each line; - is standard input.",
)
@click.option("--job", metavar="NAME", help="Name the job NAME, instead of after the folder.")
@click.option("--force", is_flag=True, help=f"Overwrite an existing {NAME}.")
def init(commands: tuple[str, ...], listed: str | None, job: str | None, *, force: bool) -> int:
    """Write a first pilotage.yaml into the current folder.

    The document runs COMMANDS, or the commands in a file, side by side. Without any command, `init` asks two questions: what to
    run, and over what. The document passes `pilotage check`.
    """
    # Checked before any question is asked.
    if Path(NAME).exists() and not force:
        raise click.UsageError(f"{NAME} exists already. --force overwrites it.")
    from pilotage.cli.shared.errors import show_error
    from pilotage.model.errors import PilotageError

    name = job_name(Path.cwd().name) if job is None else job
    found = [*commands, *(_read_commands(listed) if listed is not None else [])]
    if not found and listed is not None:
        raise click.UsageError(f"{listed} contains no command.")
    try:
        text = document_text(list_of_commands(found, job=name)) if found else ask_for_document(name)
    except PilotageError as refusal:
        code, _ = show_error(refusal)
        print_message("nothing was written")
        return code
    write_files({NAME: [text]})
    print_message(f"wrote {NAME}; next: pilotage check")
    return 0


def _read_commands(file: str) -> list[str]:
    """The commands of a file, one per line, without empty lines and comments (#)."""
    from pilotage import app

    text, report = app.text_of(file)
    report.refuse_if_faulty()
    lines = (text or "").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


# The fields of a first document: a list of commands, or one command and its items.

# Neither ${NAME}, a shell variable, nor {{name}}, escaped braces.
_PLACEHOLDER = re.compile(r"(?<![${])\{([A-Za-z_][A-Za-z0-9_-]*)(?:\.[a-z]+)?\}(?!\})")
_RANGE = re.compile(r"-?[0-9]+\.\.-?[0-9]+(?:\.\.-?[0-9]+)?")
_PATTERN = re.compile(r"[*?\[]")
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}\Z")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
_VARIABLE = "item"
_TAKEN = frozenset({"inputs", "outputs", "arguments", "job", "tag", "package"})


def job_name(folder_name: str) -> str:
    """A job name made from the name of its folder."""
    return _NOT_IN_A_NAME.sub("-", folder_name).strip("-._+")[:100] or "job"


def list_of_commands(commands: Sequence[str], *, job: str) -> dict[str, object]:
    """A document that runs commands in parallel."""
    lines = [_started(_escaped(command), original=command) for command in commands]
    stage: dict[str, object] = {"name": "commands", "lines": lines} if len(lines) > 1 else lines[0]
    return {"pilotage": 1, "job": job, "stages": [stage]}


def asked_command(command: str, *, over: str, job: str) -> dict[str, object]:
    """A document that runs one command for each item of `over`; raises `PilotageError` if the two do not fit."""
    names = list(dict.fromkeys(name for name in _PLACEHOLDER.findall(command) if name not in _TAKEN))
    if not over:
        if names:
            raise PilotageError(
                f"the command has {_in_braces(names)}, but no values to put there",
                next_step="answer the second question, or write {{ and }} for literal braces",
            )
        return {
            "pilotage": 1,
            "job": job,
            "stages": [_started(_template(command), original=_without_placeholders(command))],
        }
    if over.lower().endswith(".csv") and Path(over).is_file():
        return _over_table(command, names, over=over, job=job)
    if len(names) > 1:
        raise PilotageError(
            f"the command has {_in_braces(names)}, but the list has values for only one of them",
            next_step="answer with a .csv file that has these columns, or use only one name in the command",
        )
    return _over_list(command, names[0] if names else "", over=over, job=job)


def _over_table(command: str, names: list[str], *, over: str, job: str) -> dict[str, object]:
    """A command over the rows of a table: each column is a variable, and the command must use at least one."""
    columns = app.table_columns(over)
    absent = [name for name in names if name not in columns]
    if absent or not names:
        missing = (
            f"{over} has no column for {_in_braces(absent)}" if absent else "the command uses no column of the table"
        )
        raise PilotageError(missing, next_step=f"its columns, as a command writes them: {_in_braces(columns)}")
    stage = {"each": {"csv": over}, **_started(_template(command), original=_without_placeholders(command))}
    return {"pilotage": 1, "job": job, "stages": [stage]}


def _over_list(command: str, name: str, *, over: str, job: str) -> dict[str, object]:
    """A command over one variable: a range, the files of a pattern, the lines of a file, or some values."""
    variable = name or _VARIABLE
    text = _template(command) if name else f"{_template(command)} {{{variable}}}"
    stage: dict[str, object] = {
        "each": {variable: _source(over)},
        **_started(text, original=_without_placeholders(command)),
    }
    if _PATTERN.search(over):
        stage["inputs"] = [f"{{{variable}}}"]
    return {"pilotage": 1, "job": job, "stages": [stage]}


def _source(over: str) -> object:
    """The iteration source that an answer describes; raises `PilotageError` if its file is missing."""
    path = Path(over)
    if _RANGE.fullmatch(over) or _PATTERN.search(over):
        return over
    if path.is_file():
        return {"lines": over}
    if path.is_dir():
        raise PilotageError(f"{over} is a folder", next_step=f"its files are {path}/*")
    if "," not in over and ("/" in over or _ENDING.search(over)):
        raise PilotageError(f"there is no file {over}", next_step=app.missing_file_hint(over))
    return [value.strip() for value in over.split(",")]


def document_text(fields: dict[str, object]) -> str:
    """The text of the document, with a comment on what to add next."""
    return app.first_document(fields) + _NEXT


def _started(command: str, *, original: str) -> dict[str, object]:
    """Run a command directly, or through a shell if it uses shell syntax."""
    return {"shell" if app.shell_words(original) else "run": command}


def _template(command: str) -> str:
    """The command with each brace escaped that belongs to no placeholder; {{ and }} are escaped already."""
    protected = re.compile(rf"{_PLACEHOLDER.pattern}|\{{\{{|\}}\}}|[{{}}]")
    return protected.sub(lambda found: found[0] * 2 if found[0] in "{}" else found[0], command)


def _without_placeholders(command: str) -> str:
    """The command without its placeholders, to look for shell syntax."""
    return _PLACEHOLDER.sub("_", command)


def _in_braces(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _escaped(command: str) -> str:
    """The command with all braces escaped, so that none is a placeholder."""
    return command.replace("{", "{{").replace("}", "}}")


_NEXT = """\
# Declare the files that each stage reads and writes; pilotage derives the order from them:
#   inputs: [data.csv]
#   outputs: [result.dat]
"""


# The two questions of `pilotage init`; after a wrong answer a person is asked again.


class InputEnded(PilotageError):
    """Standard input ended before all questions were answered. Answer all, or give the commands as arguments."""


def is_interactive() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin.isatty()


def ask_for_document(job: str) -> str:
    """Ask for a document and return its text; on a terminal, ask again after a wrong answer."""
    while True:
        try:
            return document_text(_ask(job))
        except InputEnded:
            raise
        except PilotageError as refusal:
            if not is_interactive():
                raise
            show_error(refusal)
            print_message("please try again; Ctrl-C exits without writing anything")


def _ask(job: str) -> dict[str, object]:
    command = ""
    while not command:
        command = _answer("Which command should run")
    over = _answer("For which items: 1..100, data/*.csv, a,b,c, a table.csv, a file of lines, or nothing")
    return asked_command(command, over=over, job=job)


def _answer(question: str) -> str:
    """Read one line of standard input; click's prompt would fail on bytes that are not UTF-8."""
    click.echo(f"{question}: ", err=True, nl=False)
    try:
        line = sys.stdin.buffer.readline()
    except OSError as error:
        raise InputEnded(f"the answers cannot be read: {reason(error)}") from None
    if not line:
        print_message("")
        raise InputEnded("the input ended before every question was answered")
    return line.decode("utf-8", errors="replace").strip()
