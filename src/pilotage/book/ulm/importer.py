"""Reads a file of ULM lines into jobs; reports an unreadable line with its position, and goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from pilotage.book.ulm.lines import UlmEvent, parse_line
from pilotage.book.ulm.states import facts_of, with_collections
from pilotage.model.errors import Problem
from pilotage.model.states import State


class ImportedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of L&B: its state, its distinct events, its resubmissions, and its last destination."""

    id: str
    state: State
    events: int
    resubmissions: int
    destination: str | None


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a file by id; `faults` are about ignored lines, `warnings` about lines that count."""

    jobs: tuple[ImportedJob, ...]
    faults: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def read_ulm(text: str | bytes | Iterable[str | bytes], *, file: str) -> Imported:
    """Read a file, given whole or as lines; the order of the lines, or repeated ones, do not change the jobs.

    Events without job id belong to one job, whose id their descriptions tell, or which is called "".
    """
    faults: list[Problem] = []
    warnings: list[Problem] = []
    jobs: dict[str, dict[bytes, UlmEvent]] = {}
    for number, line in enumerate(_lines(text), 1):
        written, is_clean = _text(line)
        if not written or written.isspace():
            continue
        event = parse_line(written, file=file, line=number)
        if isinstance(event, Problem):
            faults.append(event)
            continue
        jobs.setdefault(event.job, {}).setdefault(event.identity, event)
        oddities = event.oddities if is_clean else (*event.oddities, "the line is not UTF-8")
        warnings += [_warning("ulm-oddity", oddity, file=file, line=number) for oddity in oddities]
    _name_the_unnamed(jobs)
    facts, circular = with_collections({name: facts_of(events.values()) for name, events in jobs.items()})
    warnings += [
        _warning("ulm-circle", "the collection is its own ancestor", file=file, line=facts[name].registered_line)
        for name in circular
    ]
    imported = (
        ImportedJob(
            id=name,
            state=each.state,
            events=each.events,
            resubmissions=each.resubmissions,
            destination=each.destination,
        )
        for name, each in sorted(facts.items())
    )
    return Imported(jobs=tuple(imported), faults=tuple(faults), warnings=tuple(warnings))


def _lines(text: str | bytes | Iterable[str | bytes]) -> Iterator[str | bytes]:
    """Split at line feeds only: values may contain every other separator."""
    if isinstance(text, str):
        yield from text.split("\n")
    elif isinstance(text, bytes):
        yield from text.split(b"\n")
    else:
        yield from text


def _text(line: str | bytes) -> tuple[str, bool]:
    """The line as valid text, and whether it was valid."""
    if isinstance(line, str):
        if line.isascii():
            return line, True
        line = line.encode("utf-8", "surrogatepass")
    try:
        return line.decode("utf-8"), True
    except UnicodeDecodeError:
        return line.decode("utf-8", "replace"), False


def _warning(code: str, message: str, *, file: str, line: int) -> Problem:
    return Problem(file=file, line=line, code=code, message=message)


def _name_the_unnamed(jobs: dict[str, dict[bytes, UlmEvent]]) -> None:
    """Give the events without job id to the job that all their descriptions name, if they name one."""
    names = {name for event in jobs.get("", {}).values() for name in event.own_names}
    if len(names) == 1:
        named = jobs.setdefault(names.pop(), {})
        for identity, event in jobs.pop("").items():
            named.setdefault(identity, event)
