"""The two questions of `pilotage init`, asked again where a person is there to answer."""

from __future__ import annotations

import sys

import click

from pilotage.cli import first
from pilotage.cli.failures import show
from pilotage.cli.output import reason, say_to_reader
from pilotage.model.errors import PilotageError


class InputEnded(PilotageError):
    """There is nobody left to ask. Give every answer, or the commands as arguments."""


def is_interactive() -> bool:
    """Whether a person answers."""
    return sys.stdin.isatty()


def ask_for_document(job: str) -> str:
    """The text of a document from the answers; a person is asked again where they make none."""
    while True:
        try:
            return first.document_text(_ask(job))
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
    return first.asked_command(command, over=over, job=job)


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
