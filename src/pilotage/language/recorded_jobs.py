"""Expands a job again from what was stored of it: its definition, its lists, its origin, and how its late stages grew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordedLists
from pilotage.language.folder import MemoryFolder
from pilotage.language.parsing.document import read_definition
from pilotage.language.text.tree import Node, Report, tree_of
from pilotage.model.errors import DocumentError
from pilotage.model.events.payloads import StageExpanded
from pilotage.model.jobs.definition import Definition
from pilotage.model.jobs.submission import CAPTURED, ORIGIN, RESOLVED, Captured, Origin, ResolvedLists

_lists = msgspec.json.Decoder(dict[str, tuple[str, ...]])
_resolved = msgspec.json.Decoder(ResolvedLists)
_captured = msgspec.json.Decoder(dict[str, Captured])
_origin = msgspec.json.Decoder(Origin)


class RecordedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was submitted, with every late stage that was expanded since."""

    definition: Definition
    lists: ResolvedLists
    origin: Origin
    expansion: Expansion


def recall_job(
    job: str,
    *,
    definition: str | None,
    lists: Mapping[str, str],
    late: int,
    content: Callable[[str | None], bytes],
    growth: Callable[[], Iterable[StageExpanded]],
) -> RecordedJob:
    """A job from its stored contents, which the digests of its registration name.

    `late` stages are not expanded yet; `growth` returns how the others were, in order, and the later lists of a stage that was
    expanded twice. Raises what `content` does, `DocumentError`, and `msgspec.DecodeError`.
    """
    read = read_canonical(tree_of(msgspec.json.decode(content(definition))), job)
    resolved = _resolved.decode(content(lists.get(RESOLVED)))
    captured = _captured.decode(content(lists.get(CAPTURED)))
    origin = msgspec.structs.replace(_origin.decode(content(lists.get(ORIGIN))), captured=captured)
    asked = without_executors(read, origin.unknown_executors)
    expansion = expand_recorded(asked, resolved, job)
    grown = len(expansion.late) - late  # late stages that are expanded by now
    for event in growth() if grown > 0 else ():
        if event.lists:  # otherwise it became known with another stage, whose lists include it
            more = _lists.decode(content(event.lists.get(f"stage-{event.stage}")))
            resolved = resolved.with_growth(event.stage, more)
            expansion = expand_recorded(asked, resolved, job)
        grown -= 1
        if not grown:
            break
    return RecordedJob(definition=read, lists=resolved, origin=origin, expansion=expansion)


def read_canonical(document: Node, file: str) -> Definition:
    """Decode a canonical definition; raises `DocumentError`, as for any document."""
    found, report = read_definition(document, Report(file), folder=MemoryFolder())
    if found is None:
        raise DocumentError(report.errors)
    return found.definition


def without_executors(definition: Definition, unknown: Collection[str]) -> Definition:
    """The definition without unknown executors: packages that name one run by default."""
    if not unknown:
        return definition
    replace = msgspec.structs.replace
    stages = []
    for stage in definition.stages:
        lines = []
        for line in stage.lines:
            packages = [replace(each, executor="") if each.executor in unknown else each for each in line.packages]
            lines.append(replace(line, packages=tuple(packages)))
        stages.append(replace(stage, lines=tuple(lines)))
    return replace(definition, stages=tuple(stages))


def expand_recorded(definition: Definition, lists: ResolvedLists, file: str) -> Expansion:
    """The packages of a definition with its recorded lists; nothing is read. Raises `DocumentError`."""
    report = Report(file)
    expansion = expand(definition, RecordedLists(lists), report)
    if expansion is None:
        raise DocumentError(report.errors)
    return expansion
