"""The words of WfFormat 1.5: what each holds, whether it must be there, and what becomes of it here.

The reader checks documents against these tables, the loss report takes its reasons from them, and the reference page
lists them all.
"""

from __future__ import annotations

import re

import msgspec

SCHEMA_VERSION = "1.5"
TASK_REFERENCE = re.compile(r"[0-9a-zA-Z\-_.#]*")
FILE_REFERENCE = re.compile(r"[0-9a-zA-Z\-_./:#]*")


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text of at least so many characters, made of some characters only, or one of some words."""

    least: int = 1
    characters: re.Pattern[str] | None = None
    expected: str = "a text"
    words: tuple[str, ...] = ()


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A number, not below `least`."""

    least: int | None = None
    whole: bool = False


class ListOf(msgspec.Struct, frozen=True, kw_only=True):
    """A list of at least so many values of one kind."""

    of: Kind
    least: int = 0


class Anything(msgspec.Struct, frozen=True):
    """Whatever: the schema does not say."""


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object with named fields; further ones may stand beside them."""

    fields: dict[str, Field]


Kind = Text | Number | ListOf | Object | Anything


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One word: what it holds, and either what it becomes here (`kept`) or why it is lost (`lost`)."""

    kind: Kind
    kept: str = ""
    lost: str = ""
    required: bool = False


_TASK_ID = Text(least=0, characters=TASK_REFERENCE, expected="the id of a task: letters, digits, '-', '_', '.', '#'")
_FILE_ID = Text(characters=FILE_REFERENCE, expected="the id of a file: letters, digits, '-', '_', '.', '/', ':', '#'")
_ABOUT_RUN = "it tells of a run that was, not of what is to be done"
_MEASURED = "it was measured in a run that was, and no estimate here takes it"
_MACHINE = "where it ran then says nothing about where it will run"

TASK = Object(
    fields={
        "name": Field(kind=Text(), kept="the activity", required=True),
        "id": Field(kind=Text(), kept="the name of the package", required=True),
        "parents": Field(
            kind=ListOf(of=_TASK_ID),
            kept="`after`, where no file says the same; else nothing is left to say",
            required=True,
        ),
        "children": Field(
            kind=ListOf(of=_TASK_ID), kept="the same as `parents`, seen from the other side", required=True
        ),
        "inputFiles": Field(kind=ListOf(of=_FILE_ID), kept="`inputs`"),
        "outputFiles": Field(kind=ListOf(of=_FILE_ID), kept="`outputs`"),
    }
)

FILE = Object(
    fields={
        "id": Field(kind=_FILE_ID, kept="the name of the file in the job's tree", required=True),
        "sizeInBytes": Field(kind=Number(least=0, whole=True), kept="`size_bytes`", required=True),
    }
)

COMMAND = Object(
    fields={
        "program": Field(kind=Text(), kept="the first word of `run`, or `shell` if it is a script"),
        "arguments": Field(kind=ListOf(of=Text()), kept="the rest of `run`"),
    }
)

EXECUTED_TASK = Object(
    fields={
        "id": Field(kind=Text(), kept="which package this is about", required=True),
        "runtimeInSeconds": Field(kind=Number(), kept="`run_time_seconds`", required=True),
        "executedAt": Field(kind=Text(), lost=_ABOUT_RUN),
        "command": Field(kind=COMMAND, kept="`run` or `shell`"),
        "coreCount": Field(kind=Number(least=1), kept="`cores`"),
        "avgCPU": Field(kind=Number(), kept="`cpu_percent`, at most 100"),
        "readBytes": Field(kind=Number(), lost=_MEASURED),
        "writtenBytes": Field(kind=Number(), lost=_MEASURED),
        "memoryInBytes": Field(kind=Number(), kept="`memory_bytes`"),
        "energyInKWh": Field(kind=Number(), lost=_MEASURED),
        "avgPowerInW": Field(kind=Number(), lost=_MEASURED),
        "priority": Field(kind=Number(), kept="`priority`, if it is a whole number"),
        "machines": Field(kind=ListOf(of=Text()), lost=_MACHINE),
    }
)

MACHINE = Object(
    fields={
        "system": Field(kind=Text(words=("linux", "macos", "windows"), expected="linux, macos or windows")),
        "architecture": Field(kind=Text()),
        "nodeName": Field(kind=Text(), required=True),
        "release": Field(kind=Text()),
        "memoryInBytes": Field(kind=Number(least=1, whole=True)),
        "cpu": Field(
            kind=Object(
                fields={
                    "coreCount": Field(kind=Number(least=1, whole=True)),
                    "speedInMHz": Field(kind=Number(least=1, whole=True)),
                    "vendor": Field(kind=Text()),
                }
            )
        ),
    }
)

SPECIFICATION = Object(
    fields={
        "tasks": Field(kind=ListOf(of=TASK, least=1), kept="one line with one package each", required=True),
        "files": Field(kind=ListOf(of=FILE), kept="names and sizes of inputs and outputs"),
    }
)

EXECUTION = Object(
    fields={
        "makespanInSeconds": Field(kind=Number(), lost=_ABOUT_RUN, required=True),
        "executedAt": Field(kind=Text(), lost=_ABOUT_RUN, required=True),
        "tasks": Field(kind=ListOf(of=EXECUTED_TASK, least=1), kept="what each package runs and takes", required=True),
        "machines": Field(kind=ListOf(of=MACHINE, least=1), lost=_MACHINE),
    }
)

WORKFLOW = Object(
    fields={
        "specification": Field(kind=SPECIFICATION, kept="stages, lines and packages", required=True),
        "execution": Field(kind=EXECUTION, kept="commands and estimates"),
        # Not in the schema, which allows more than it names; written by the tracer of Nextflow.
        "repo": Field(kind=Anything(), lost="the source of the workflow has no place here"),
        "runName": Field(kind=Anything(), lost=_ABOUT_RUN),
    }
)

INSTANCE = Object(
    fields={
        "name": Field(kind=Text(), kept="the job's name", required=True),
        "description": Field(kind=Text(), kept="`description`"),
        "createdAt": Field(kind=Text(), kept="`created`, if it has a zone"),
        "schemaVersion": Field(
            kind=Text(words=(SCHEMA_VERSION,), expected=SCHEMA_VERSION), kept="must be 1.5", required=True
        ),
        "runtimeSystem": Field(
            kind=Object(
                fields={
                    "name": Field(kind=Text(), required=True),
                    "version": Field(kind=Text(), required=True),
                    "url": Field(kind=Text()),
                }
            ),
            lost="which system ran it then is not part of what is to be done",
        ),
        "author": Field(
            kind=Object(
                fields={
                    "name": Field(kind=Text(), required=True),
                    "email": Field(kind=Text(), required=True),
                    "institution": Field(kind=Text()),
                    "country": Field(kind=Text()),
                }
            ),
            lost="the author of the instance need not be the owner of the job",
        ),
        "workflow": Field(kind=WORKFLOW, kept="the job", required=True),
    }
)


def keywords(kind: Kind = INSTANCE, path: str = "") -> dict[str, Field]:
    """Every word of the format by its path from the top, lists left out; what is inside a lost word goes with it."""
    if isinstance(kind, ListOf):
        return keywords(kind.of, path)
    found: dict[str, Field] = {}
    if isinstance(kind, Object):
        for name, field in kind.fields.items():
            inner = f"{path}.{name}" if path else name
            found[inner] = field
            if not field.lost:
                found.update(keywords(field.kind, inner))
    return found
