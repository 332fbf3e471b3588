"""Finds the dialects: all modules in this package, in a folder or in an archive."""

from __future__ import annotations

import base64
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

from pilotage.agent.batch.dialect import Dialect
from pilotage.agent.batch.values import Answer, BatchError, BatchRequest, Call, Limits


def dialects() -> dict[str, type[Dialect]]:
    """All dialects by name; a module that defines one need only exist."""
    package = import_module("pilotage.agent.batch")
    found = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(import_module(module.name)).values():
            if (
                isinstance(value, type)
                and issubclass(value, Dialect)
                and value.name
                and value.__module__ == module.name
            ):
                found[value.name] = value
    return dict(sorted(found.items()))


# A check of a new dialect before it is used at a cluster.
#
# It runs no command. It tests the contract of a dialect: calls are words, our keys can be read back from job names, and
# no answer, whatever it contains, raises anything but the declared errors.

PREFIX = "pilotage-check"
KEYS = ("lyon-1", "job:1.2.3:4", "with space/and \u00e9-7")
ANSWERS = (
    Answer(None, "", ""),
    Answer(0, "", ""),
    Answer(1, "", "no such thing"),
    Answer(127, "", "command not found"),
    Answer(0, "\x00\xff garbage | { [ < \n 17 \n", "more"),
    Answer(0, "12345\n", ""),
    Answer(1, "x" * 10_000, "y" * 10_000),
)
FAULTS_TOLD_MAX = 10
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_ENCODED = re.compile(r"[A-Za-z0-9+/=]{40,}")
_KINDS = {"submitted": dict, "listed": dict, "remembered": dict, "limited": Limits, "version": str}


def faults_of(name: str) -> list[str]:
    """The faults of a dialect; empty if there are none."""
    found = dialects().get(name)
    if found is None:
        return [f"there is no dialect of this name; known: {', '.join(dialects())}"]
    if not _NAME.fullmatch(name):
        return [f"its name must be lower-case letters, digits, '_' and '-', not {name!r}"]
    try:
        dialect = found(PREFIX)
    except Exception as error:  # noqa: BLE001 # any exception is a fault to report
        return [f"it cannot be instantiated: {_text_of(error)}"]
    faults = []
    for what, check in _CHECKS.items():
        try:
            faults += [f"{what}: {fault}" for fault in check(dialect)]
        except Exception as error:  # noqa: BLE001 # any exception is a fault to report
            faults.append(f"{what}: {_text_of(error)}")
    return faults


def main(name: str) -> int:
    """Check one dialect and print its faults; returns the exit status."""
    faults = list(dict.fromkeys(faults_of(name)))
    sys.stderr.write("".join(f"{fault}\n" for fault in faults[:FAULTS_TOLD_MAX]))
    return 1 if faults else 0


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _wanted(key: str, count: int = 1) -> BatchRequest:
    return BatchRequest(key, ["python3", "a b", "$(c)"], count=count, wall_seconds=60, folder="/f", output="/f/output")


def _is_call(call: object) -> Iterator[str]:
    if not isinstance(call, Call) or not call.argv or not all(isinstance(word, str) for word in call.argv):
        yield f"not a Call with words: {call!r}"


def _names(dialect: Dialect) -> Iterator[str]:
    for key in KEYS:
        back = dialect.key(dialect.job_name(key))
        if back != key:
            yield f"the key {key!r} is read back as {back!r}"


def _calls(dialect: Dialect) -> Iterator[str]:
    for call in (dialect.listing(), dialect.is_here(), dialect.cancel({"lyon-1": "17"}), *dialect.limits()):
        yield from _is_call(call)


def _submissions(dialect: Dialect) -> Iterator[str]:
    for key, count in (*((key, 1) for key in KEYS), ("lyon-1", 3)):
        call = dialect.submit(_wanted(key, count))
        yield from _is_call(call)
        text = f"{' '.join(call.argv)} {call.stdin}"
        if dialect.job_name(key) not in text:
            yield f"the name {dialect.job_name(key)!r} is missing from the submission: its job could not be found again"
        if "PILOTAGE_REQUEST" not in text and not any(map(_tells_key, _ENCODED.findall(text))):
            yield "the job does not get its key: submit `self.script(wanted)`"


def _tells_key(word: str) -> bool:
    """Tell whether a base64 word contains the script, for systems that take an argument instead of a script."""
    try:
        return b"PILOTAGE_REQUEST" in base64.b64decode(word)
    except ValueError:
        return False


def _answers(dialect: Dialect) -> Iterator[str]:
    readers: dict[str, Callable[[Answer], object]] = {
        "submitted": lambda answer: dialect.submitted(_wanted("lyon-1"), answer),
        "listed": dialect.listed,
        "remembered": dialect.remembered,
        "cancelled": dialect.cancelled,
        "limited": lambda answer: dialect.limited([answer] * max(1, len(dialect.limits()))),
        "version": dialect.version,
    }
    for name, read in readers.items():
        for answer in ANSWERS:
            try:
                result = read(answer)
            except BatchError:
                continue
            except Exception as error:  # noqa: BLE001 # any other exception is a fault to report
                yield f"{name} raises {_text_of(error)} for {repr(answer)[:120]}"
                continue
            if not isinstance(result, _KINDS.get(name, object)):
                yield f"{name} returns {result!r} for {repr(answer)[:120]}"
            elif name == "listed" and answer.exit_status is None:
                yield "listed must raise Unknown without an answer: an unknown list is not an empty one"


_CHECKS: dict[str, Callable[[Dialect], Iterator[str]]] = {
    "names": _names,
    "calls": _calls,
    "submissions": _submissions,
    "answers": _answers,
}
