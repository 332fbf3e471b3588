"""`pilotage init`: a first document, from two questions or from a list of commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from pilotage import app
from pilotage.cli.shared.errors import show
from pilotage.cli.shared.output import reason, say_to_reader, write_files
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
    # A question is not worth answering when the answer cannot be kept.
    if Path(NAME).exists() and not force:
        raise click.UsageError(f"{NAME} is there already. --force writes over it.")
    from pilotage.cli.shared.errors import show
    from pilotage.model.errors import PilotageError

    name = job_name(Path.cwd().name) if job is None else job
    found = [*commands, *(_read_commands(listed) if listed is not None else [])]
    if not found and listed is not None:
        raise click.UsageError(f"{listed} has no command in it.")
    try:
        text = document_text(list_of_commands(found, job=name)) if found else ask_for_document(name)
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


# The fields of a first document, from a list of commands or from one command and what it is repeated over.

# Not ${NAME}, which is the shell's, nor {{name}}, which are braces.
_PLACEHOLDER = re.compile(r"(?<![${])\{([A-Za-z_][A-Za-z0-9_-]*)(?:\.[a-z]+)?\}(?!\})")
_RANGE = re.compile(r"-?[0-9]+\.\.-?[0-9]+(?:\.\.-?[0-9]+)?")
_PATTERN = re.compile(r"[*?\[]")
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}\Z")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
_VARIABLE = "item"
_TAKEN = frozenset({"inputs", "outputs", "arguments", "job", "tag", "package"})


def job_name(folder_name: str) -> str:
    """The name of a job after the folder it stands in."""
    return _NOT_IN_A_NAME.sub("-", folder_name).strip("-._+")[:100] or "job"


def list_of_commands(commands: Sequence[str], *, job: str) -> dict[str, object]:
    """A document that runs commands side by side."""
    lines = [_started(_literal(command), original=command) for command in commands]
    stage: dict[str, object] = {"name": "commands", "lines": lines} if len(lines) > 1 else lines[0]
    return {"pilotage": 1, "job": job, "stages": [stage]}


def asked_command(command: str, *, over: str, job: str) -> dict[str, object]:
    """A document that runs one command over what was answered; raises `PilotageError` where the two do not fit."""
    names = list(dict.fromkeys(name for name in _PLACEHOLDER.findall(command) if name not in _TAKEN))
    if not over:
        if names:
            raise PilotageError(
                f"the command has {_in_braces(names)}, and nothing says what to put there",
                next_step="answer the second question, or write {{ and }} for braces that are meant as they are",
            )
        return {"pilotage": 1, "job": job, "stages": [_started(_template(command), original=_bare(command))]}
    if over.lower().endswith(".csv") and Path(over).is_file():
        return _over_table(command, names, over=over, job=job)
    if len(names) > 1:
        raise PilotageError(
            f"the command has {_in_braces(names)}, and this is a list for one of them",
            next_step="answer with a .csv file that has these columns, or with one list for one name",
        )
    return _over_list(command, names[0] if names else "", over=over, job=job)


def _over_table(command: str, names: list[str], *, over: str, job: str) -> dict[str, object]:
    """Every column of a table is a variable, so the command says which it uses."""
    columns = app.table_columns(over)
    absent = [name for name in names if name not in columns]
    if absent or not names:
        missing = (
            f"{over} has no column for {_in_braces(absent)}" if absent else "the command uses no column of the table"
        )
        raise PilotageError(missing, next_step=f"its columns, as a command writes them: {_in_braces(columns)}")
    stage = {"each": {"csv": over}, **_started(_template(command), original=_bare(command))}
    return {"pilotage": 1, "job": job, "stages": [stage]}


def _over_list(command: str, name: str, *, over: str, job: str) -> dict[str, object]:
    """One variable over a range, the files of a pattern, the lines of a file, or some values."""
    variable = name or _VARIABLE
    text = _template(command) if name else f"{_template(command)} {{{variable}}}"
    stage: dict[str, object] = {"each": {variable: _source(over)}, **_started(text, original=_bare(command))}
    if _PATTERN.search(over):
        stage["inputs"] = [f"{{{variable}}}"]
    return {"pilotage": 1, "job": job, "stages": [stage]}


def _source(over: str) -> object:
    """What an answer means as the source of an iteration; raises `PilotageError` for a file that is not there."""
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
    """The text of the document, with a word on what to do next."""
    return app.first_document(fields) + _NEXT


def _started(command: str, *, original: str) -> dict[str, object]:
    """How a command is started: as it stands, or by a shell where it uses one."""
    return {"shell" if app.shell_words(original) else "run": command}


def _template(command: str) -> str:
    """The command with every brace protected that belongs to no placeholder; {{ and }} are protected already."""
    protected = re.compile(rf"{_PLACEHOLDER.pattern}|\{{\{{|\}}\}}|[{{}}]")
    return protected.sub(lambda found: found[0] * 2 if found[0] in "{}" else found[0], command)


def _bare(command: str) -> str:
    """The command without what is put into it, for the eyes of a shell."""
    return _PLACEHOLDER.sub("_", command)


def _in_braces(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _literal(command: str) -> str:
    """The command with its braces protected, since `{name}` stands for a value."""
    return command.replace("{", "{{").replace("}", "}}")


_NEXT = """\
# Say which files each part takes and makes, and the order follows from them:
#   inputs: [data.csv]
#   outputs: [result.dat]
"""


# The two questions of `pilotage init`, asked again where a person is there to answer.


class InputEnded(PilotageError):
    """There is nobody left to ask. Give every answer, or the commands as arguments."""


def is_interactive() -> bool:
    """Whether a person answers."""
    return sys.stdin.isatty()


def ask_for_document(job: str) -> str:
    """The text of a document from the answers; a person is asked again where they make none."""
    while True:
        try:
            return document_text(_ask(job))
        except InputEnded:
            raise
        except PilotageError as refusal:
            if not is_interactive():
                raise
            show(refusal)
            say_to_reader("once more, please; Ctrl-C leaves without writing anything")


def _ask(job: str) -> dict[str, object]:
    command = ""
    while not command:
        command = _answer("What command is to be run")
    over = _answer("Over what is it repeated: 1..100, data/*.csv, a,b,c, a table.csv, a file of lines, or nothing")
    return asked_command(command, over=over, job=job)


def _answer(question: str) -> str:
    """A line of standard input; not click's prompt, which gives up on bytes that are no text."""
    click.echo(f"{question}: ", err=True, nl=False)
    try:
        line = sys.stdin.buffer.readline()
    except OSError as error:
        raise InputEnded(f"the answers cannot be read: {reason(error)}") from None
    if not line:
        say_to_reader("")
        raise InputEnded("the input ended before every question was answered")
    return line.decode("utf-8", errors="replace").strip()
