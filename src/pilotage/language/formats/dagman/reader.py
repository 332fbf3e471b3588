"""Imports a DAG file as a definition."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pilotage.language.folder import Folder
from pilotage.language.formats.dagman.assembly import assemble
from pilotage.language.formats.dagman.lexer import decode
from pilotage.language.formats.dagman.node_commands import EDGES_MAX, Dag
from pilotage.language.formats.dagman.translate import Draft, DraftFile, Translator
from pilotage.language.losses import Losses
from pilotage.language.text.names import FreeNames, is_url, job_name_like
from pilotage.language.text.templates import escape_braces
from pilotage.language.text.tree import NOWHERE, Report
from pilotage.model.jobs.definition import Binary, Definition, InputFile, Line, OutputFile, Package, Stage
from pilotage.model.jobs.graph import depths, find_loop, followers

# Finds the producer of each file. DAGMan does not know producers, so its files may contradict its graph; here they must
# not.
#
# A file has one producer; a file that is needed before it is made counts as existing. Dropped outputs are listed as
# losses, and the edges of the DAG stay as `after`.

_ROUNDS_MAX = 20
Edges = Mapping[tuple[int, int], object]


def settle_makers(drafts: Sequence[Draft], edges: Edges, losses: Losses) -> dict[str, int]:
    """The producer of each path, by its index in `drafts`; other drafts lose that output. `edges` are pairs of drafts."""
    _share_streams(drafts, losses)
    makers: dict[str, int] = {}
    for number, draft in enumerate(drafts):
        needed = {file.path for file in draft.needed()}
        for file in draft.made():
            if file.path in needed:
                _give_up(draft, file.path, losses, f"{file.path!r} is also an input of {draft.package.name!r}")
            elif makers.setdefault(file.path, number) != number:
                first = drafts[makers[file.path]].package.name
                _give_up(draft, file.path, losses, f"{file.path!r} is already made by {first!r}")
    _add_programs(drafts, makers)
    for round_number in range(_ROUNDS_MAX + 1):
        implied = {
            (makers[file.path], number): file.path
            for number, draft in enumerate(drafts)
            for file in draft.needed()
            if file.path in makers and (makers[file.path], number) not in edges
        }
        cycle = find_loop(followers(len(drafts), {**edges, **implied}))
        if not cycle:
            break
        steps = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        # The last round drops every file without a matching edge of the DAG, so that the DAG alone remains.
        guilty = [implied[s] for s in steps if s in implied] if round_number < _ROUNDS_MAX else list(implied.values())
        for path in dict.fromkeys(guilty):
            draft = drafts[makers.pop(path)]
            _give_up(draft, path, losses, f"{path!r} is needed before {draft.package.name!r} makes it")
    return makers


def _share_streams(drafts: Sequence[Draft], losses: Losses) -> None:
    """If several nodes write a standard stream to the same file, each package keeps its own instead."""
    writers: Counter[str] = Counter()
    for draft in drafts:
        writers.update({stream.path for stream in (draft.stdout, draft.stderr) if stream is not None})
    for draft in drafts:
        if draft.stdout is not None and writers[draft.stdout.path] > 1:
            _lose_stream(draft.stdout, "output", losses)
            draft.stdout = None
        if draft.stderr is not None and writers[draft.stderr.path] > 1:
            _lose_stream(draft.stderr, "error", losses)
            draft.stderr = None


def _lose_stream(stream: DraftFile, keyword: str, losses: Losses) -> None:
    losses.add(
        keyword,
        f"several nodes write {stream.path!r}; each package keeps its own",
        file=stream.origin.file,
        mark=stream.origin.mark,
    )


def _give_up(draft: Draft, path: str, losses: Losses, reason: str) -> None:
    for file in draft.outputs:
        if file.path == path:
            losses.add("transfer_output_files", reason, file=file.origin.file, mark=file.origin.mark)
    draft.outputs = [file for file in draft.outputs if file.path != path]
    if draft.stdout is not None and draft.stdout.path == path:
        losses.add("output", reason, file=draft.stdout.origin.file, mark=draft.stdout.origin.mark)
        draft.stdout = None
    if draft.stderr is not None and draft.stderr.path == path:
        losses.add("error", reason, file=draft.stderr.origin.file, mark=draft.stderr.origin.mark)
        draft.stderr = None


def _add_programs(drafts: Sequence[Draft], makers: Mapping[str, int]) -> None:
    """Add programs that other nodes make as inputs."""
    for number, draft in enumerate(drafts):
        path = draft.command[0].removeprefix("./") if draft.command else ""
        if path in makers and makers[path] != number and all(file.path != path for file in draft.inputs):
            draft.inputs.append(DraftFile(path, draft.origin))


# The stage and line of each package: from its name if our own export wrote it, otherwise from its depth in the DAG.

_POSITION = re.compile(r"Stage([1-9][0-9]{0,8})Line([1-9][0-9]{0,8})Package([1-9][0-9]{0,8})(?![0-9]).*", re.DOTALL)


PackagePosition = tuple[int, int, int]


def positions_in_names(names: Sequence[str]) -> list[PackagePosition] | None:
    """The stage, line and number in each node's name; None unless all names have one and none is missing."""
    positions: list[PackagePosition] = []
    for name in names:
        found = _POSITION.fullmatch(name)
        if found is None:
            return None
        positions.append((int(found[1]), int(found[2]), int(found[3])))
    before = (0, 0, 0)
    for stage, line, number in sorted(positions):
        follows = (
            (before[0] + 1, 1, 1) if stage != before[0] else (stage, before[1] + 1, 1) if line != before[1] else None
        )
        if (stage, line, number) != (follows or (stage, line, before[2] + 1)):
            return None
        before = (stage, line, number)
    return positions or None


def sequences(positions: Sequence[PackagePosition]) -> set[tuple[int, int]]:
    """The pairs of list positions whose packages follow one another in a line."""
    at = {place: position for position, place in enumerate(positions)}
    following = (((stage, line, number - 1), i) for (stage, line, number), i in at.items())
    return {(at[before], i) for before, i in following if before in at}


def stages_by_position(positions: Sequence[PackagePosition], packages: Sequence[Package]) -> tuple[Stage, ...]:
    """The stages of packages whose positions are known from their node names."""
    stages: dict[int, dict[int, list[Package]]] = {}
    for (stage, line, _), package in sorted(zip(positions, packages, strict=True), key=lambda entry: entry[0]):
        stages.setdefault(stage, {}).setdefault(line, []).append(package)
    return tuple(Stage(lines=tuple(Line(packages=tuple(line)) for line in lines.values())) for lines in stages.values())


def stages_by_depth(packages: Sequence[Package], edges: Iterable[tuple[int, int]]) -> tuple[Stage, ...]:
    """One stage per depth, one line per package, in the order of the nodes; final packages form the last stage."""
    deep = depths(followers(len(packages), edges))
    last = max((d for d, p in zip(deep, packages, strict=True) if p.role == "work"), default=-1) + 1
    lines: dict[int, list[Line]] = {}
    for depth, package in zip(deep, packages, strict=True):
        place = last if package.role == "final" else depth
        lines.setdefault(place, []).append(Line(packages=(package,)))
    return tuple(Stage(lines=tuple(lines[depth])) for depth in sorted(lines))


def read_dagman(data: bytes, *, file: str, folder: Folder) -> tuple[Definition | None, Report, Losses]:
    """The job of a DAG file, or None if it is rejected; the report has all faults, the losses what cannot be imported."""
    report = Report(file)
    losses = Losses()
    text = decode(data, report, file=file)
    if text is None:
        return None, report, losses
    report.lines = text.split("\n")
    dag = assemble(text, report, losses, file=file, folder=folder)
    translator = Translator(dag, folder, report, losses)
    drafts = [draft for position in range(len(dag.nodes)) for draft in translator.drafts(position)]
    if report.errors:
        return None, report, losses
    _name_apart(drafts)
    edges = _draft_edges(dag, drafts, report)
    if report.errors:
        return None, report, losses
    makers = settle_makers(drafts, edges, losses)
    positions = positions_in_names([dag.nodes[draft.node].name for draft in drafts])
    # Packages of one line run one after the other, so the lines of the names are used only if the DAG has these edges.
    in_line = sequences(positions) if positions else set()
    if not in_line <= edges.keys():
        positions, in_line = None, set()
    packages = _packages(drafts, [edge for edge in edges if edge not in in_line], makers, folder, report)
    if positions is not None:
        stages = stages_by_position(positions, packages)
    else:
        made = ((makers[f.path], i) for i, draft in enumerate(drafts) for f in draft.needed() if f.path in makers)
        stages = stages_by_depth(packages, {**edges, **dict.fromkeys(made)})
    used = {package.category for package in packages}
    limits = {category: limit for category, limit in dag.limits.items() if category in used}
    return Definition(job=_job_name(file), limits=limits, stages=stages), report, losses


def _job_name(file: str) -> str:
    stem = posixpath.splitext(posixpath.basename(file))[0]
    return job_name_like(stem, otherwise="dag")


def _name_apart(drafts: Sequence[Draft]) -> None:
    """Give packages with equal names different ones."""
    free = FreeNames(separator="~")
    for draft in drafts:
        name = free.take(draft.package.name)
        if name != draft.package.name:
            draft.package = msgspec.structs.replace(draft.package, name=name)


def _draft_edges(dag: Dag, drafts: Sequence[Draft], report: Report) -> dict[tuple[int, int], None]:
    """The edges between nodes as edges between their packages."""
    of_node: dict[int, list[int]] = {}
    for number, draft in enumerate(drafts):
        of_node.setdefault(draft.node, []).append(number)
    edges: dict[tuple[int, int], None] = {}
    for parent, child in dag.edges:
        parents, children = of_node.get(parent, []), of_node.get(child, [])
        if len(edges) + len(parents) * len(children) > EDGES_MAX:
            report.error("dag-too-large", f"expected at most {EDGES_MAX} edges between queued jobs", NOWHERE)
            return {}
        for first in parents:
            for second in children:
                edges[(first, second)] = None
    return edges


def _packages(
    drafts: Sequence[Draft],
    edges: Sequence[tuple[int, int]],
    makers: Mapping[str, int],
    folder: Folder,
    report: Report,
) -> list[Package]:
    after: dict[int, list[str]] = {}
    sources = [{makers[file.path] for file in draft.needed() if file.path in makers} for draft in drafts]
    for parent, child in edges:
        if parent not in sources[child]:
            after.setdefault(child, []).append(drafts[parent].package.name)
    packages = []
    for number, draft in enumerate(drafts):
        binaries = (_binary(draft, makers, folder, report),) if draft.command else ()
        packages.append(msgspec.structs.replace(draft.package, binaries=binaries, after=tuple(after.get(number, ()))))
    return packages


def _binary(draft: Draft, makers: Mapping[str, int], folder: Folder, report: Report) -> Binary:
    inputs = list(dict.fromkeys(_input(file, draft, makers, folder, report) for file in draft.inputs))
    if draft.stdin is not None:
        found = _input(draft.stdin, draft, makers, folder, report)
        if found not in inputs:
            inputs.append(found)
    return Binary(
        run=tuple(map(escape_braces, draft.command)),
        inputs=tuple(inputs),
        outputs=tuple(OutputFile(name=_name(file)) for file in draft.outputs),
        stdin=_name(draft.stdin) if draft.stdin is not None else "",
        stdout=_name(draft.stdout) if draft.stdout is not None else "",
        stderr=_name(draft.stderr) if draft.stderr is not None else "",
    )


def _name(file: DraftFile) -> str:
    return escape_braces(file.path)


def _input(file: DraftFile, draft: Draft, makers: Mapping[str, int], folder: Folder, report: Report) -> InputFile:
    name = _name(file)
    if file.locator:
        # If a package makes a file of this name, the external file needs another name.
        own = posixpath.join("external", name) if file.path in makers else name
        locator = escape_braces(file.locator)
        if is_url(file.locator) or file.locator.startswith("/"):
            return InputFile(name=own, locator=locator)
        message = f"{file.locator!r} is outside the folder of the DAG file; {draft.package.name!r} must fetch it"
        report.warn("input-not-found", message, file.origin.mark, file=file.origin.file)
        return InputFile(name=own, locator=locator, acquisition="self")
    if file.path in makers or folder.exists(file.path):
        return InputFile(name=name)
    report.warn(
        "input-not-found",
        f"nothing makes {file.path!r} and it does not exist; {draft.package.name!r} must fetch it",
        file.origin.mark,
        file=file.origin.file,
    )
    return InputFile(name=name, acquisition="self")
