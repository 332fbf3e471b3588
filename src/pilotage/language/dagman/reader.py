"""A DAG file to a definition: the way in."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

import msgspec

from pilotage.language.dagman.assemble import assemble
from pilotage.language.dagman.drafts import Draft, DraftFile
from pilotage.language.dagman.lexer import decode
from pilotage.language.dagman.nodes import Dag
from pilotage.language.dagman.scope import EDGES_MAX
from pilotage.language.dagman.settle import settle_makers
from pilotage.language.dagman.stages import sequences, stages_by_depth, stages_by_place, told_places
from pilotage.language.dagman.translate import Translator
from pilotage.language.folder import Folder
from pilotage.language.losses import Losses
from pilotage.language.text.names import FreeNames, job_name_like
from pilotage.language.text.templates import escape_braces
from pilotage.language.text.tree import NOWHERE, Report
from pilotage.model.definition import Binary, Definition, InputFile, OutputFile, Package


def read_dagman(data: bytes, *, file: str, folder: Folder) -> tuple[Definition | None, Report, Losses]:
    """The job of a DAG file, None where it is refused; the report has every fault, the losses what has no meaning here."""
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
    places = told_places([dag.nodes[draft.node].name for draft in drafts])
    # Packages of one line run one after the other, so a line is only believed where the DAG says so too.
    in_line = sequences(places) if places else set()
    if not in_line <= edges.keys():
        places, in_line = None, set()
    packages = _packages(drafts, [edge for edge in edges if edge not in in_line], makers, folder, report)
    if places is not None:
        stages = stages_by_place(places, packages)
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
    """Give packages that came out with one name different ones."""
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
        # Beside a file of that name which a package makes, this one needs a name of its own.
        own = posixpath.join("external", name) if file.path in makers else name
        return InputFile(name=own, locator=escape_braces(file.locator))
    if file.path in makers or folder.exists(file.path):
        return InputFile(name=name)
    report.warn(
        "input-not-found",
        f"nothing makes {file.path!r} and it is not there; {draft.package.name!r} is left to fetch it",
        file.origin.mark,
        file=file.origin.file,
    )
    return InputFile(name=name, acquisition="self")
