"""Answers many questions to bosh in one process: it is started once, because importing boutiques costs a second.

A question is a line of JSON on stdin, with the text of a descriptor and, unless only the descriptor is in question, of
an invocation; its answer is a line of JSON on stdout.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

REFUSALS = (
    "BoutiquesError",  # how bosh reports the SystemExit of a schema that cannot be made
    "DescriptorValidationError",
    "InvocationValidationError",
    "JSONDecodeError",
    "LoadError",
    "ExecutorError",
)


def main() -> None:
    """Answer everything on stdin."""
    boutiques = importlib.import_module("boutiques.bosh")
    local = importlib.import_module("boutiques.localExec")
    executors: list[Any] = []

    class Remembered(local.LocalExecutor):  # type: ignore[name-defined, misc]  # boutiques has no types
        def __init__(self, *arguments: Any, **options: Any) -> None:
            executors.append(self)
            super().__init__(*arguments, **options)

    setattr(local, "LocalExecutor", Remembered)  # noqa: B010 -- mypy knows no attributes of an imported module
    remember_what_never_changes(boutiques)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for line in sys.stdin:
            executors.clear()
            said = {**answer(boutiques.bosh, json.loads(line)), "directory": str(Path.cwd())}
            if executors and said["verdict"] == "accept":
                said["outputs"] = executors[-1].out_dict
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
        os.chdir("/")


def remember_what_never_changes(boutiques: Any) -> None:
    """Build the parser of the command line once, and check each schema once: two thirds of the time."""
    setattr(boutiques, "parser_bosh", functools.cache(boutiques.parser_bosh))  # noqa: B010 -- as above
    validator = importlib.import_module("jsonschema").Draft4Validator
    check = validator.check_schema
    checked: set[str] = set()

    def check_once(schema: Any, *arguments: Any, **options: Any) -> None:
        text = json.dumps(schema)
        if text not in checked:
            check(schema, *arguments, **options)
            checked.add(text)

    validator.check_schema = check_once


def answer(bosh: Any, question: dict[str, str]) -> dict[str, Any]:
    """What bosh says to one question: accept, refuse, or crash (any exception that it does not mean)."""
    Path("descriptor.json").write_text(question["descriptor"], encoding="utf-8")
    arguments = ["validate", "descriptor.json"]
    if "invocation" in question:
        Path("invocation.json").write_text(question["invocation"], encoding="utf-8")
        arguments = ["exec", "simulate", "-i", "invocation.json", "descriptor.json"]
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            result = bosh(arguments)
    except Exception as fault:  # noqa: BLE001 -- whatever bosh raises is its answer
        verdict = "refuse" if type(fault).__name__ in REFUSALS else "crash"
        return {"verdict": verdict, "error": f"{type(fault).__name__}: {fault}"[:500]}
    return {"verdict": "accept", "command": result.shell_command if result is not None else ""}


if __name__ == "__main__":
    main()
