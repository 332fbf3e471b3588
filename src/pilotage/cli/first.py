"""The fields of a first document, from a list of commands or from one command and what it is repeated over."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pilotage import app

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)(?:\.[a-z]+)?\}")
_FOR_A_SHELL = re.compile(r"[|&;<>`$*?~()\n\\]|^\s*\w+=|\s#")
_RANGE = re.compile(r"-?[0-9]+\.\.-?[0-9]+(?:\.\.-?[0-9]+)?")
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


def repeated_command(command: str, *, over: str, job: str, is_file: bool) -> dict[str, object]:
    """A document that runs one command over a range, the files of a pattern, the lines of a file, or some values."""
    names = [name for name in _PLACEHOLDER.findall(command) if name not in _TAKEN]
    variable = names[0] if names else _VARIABLE
    if not names:
        command = f"{_literal(command)} {{{variable}}}"
    each: object = [value.strip() for value in over.split(",")]
    if is_file:
        each = {"lines": over}
    elif _RANGE.fullmatch(over) or re.search(r"[*?\[]", over):
        each = over
    inputs = {"inputs": [f"{{{variable}}}"]} if isinstance(each, str) and not _RANGE.fullmatch(over) else {}
    stage = {"each": {variable: each}, **_started(command, original=_PLACEHOLDER.sub("", command)), **inputs}
    return {"pilotage": 1, "job": job, "stages": [stage]}


def document_text(fields: dict[str, object]) -> str:
    """The text of the document, with a word on what to do next."""
    return app.first_document(fields) + _NEXT


def _started(command: str, *, original: str) -> dict[str, object]:
    """How a command is started: as it stands, or by a shell where it uses one."""
    return {"shell" if _FOR_A_SHELL.search(original) else "run": command}


def _literal(command: str) -> str:
    """The command with its braces protected, since `{name}` stands for a value."""
    return command.replace("{", "{{").replace("}", "}}")


_NEXT = """\
# Say which files each part takes and makes, and the order follows from them:
#   inputs: [data.csv]
#   outputs: [result.dat]
"""
