"""Writes the work order of an attempt: how its agent runs the package.

What all packages of a block have in common is computed once. Inputs come with the checksums of the granted attempts
that made them; files captured at submission are referred to by content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

import msgspec

from pilotage.language import ConcreteBinary, ConcretePackage, Expansion
from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.lists import Column
from pilotage.language.expansion.software import Choose, way_at, way_at_position, ways_of
from pilotage.language.file_plan import brings_files
from pilotage.language.named_files import differing_of, script_file, words_of
from pilotage.language.package_inputs import (
    ManifestOf,
    concrete,
    early_makers,
    early_readers,
    left_out_names,
    open_patterns,
    staged_names,
)
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import matches
from pilotage.language.text.templates import Values, parse_template, render
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import (
    Assignment,
    AttemptRef,
    InputSource,
    Work,
    WorkBinary,
    WorkContainer,
    WorkEarlyInput,
    WorkInput,
    WorkOutput,
    WorkPattern,
    WorkProbe,
    WorkProvenance,
    WorkScript,
)
from pilotage.model.jobs.definition import Definition, Script
from pilotage.model.jobs.graph import EdgeKind
from pilotage.model.jobs.submission import Captured, Origin
from pilotage.model.site import Site
from pilotage.ports import Mark
from pilotage.service.works.plain_orders import PlainBlock, keeps_failed, plain_block
from pilotage.service.works.site_files import NO_SITE, NotAtSite, SiteFiles, cached_inputs

NO_MARK = Mark()
SHOWN_PREFIX = ".growing-"
"""Beginning of the names of files in the cache of a site that say where outputs of running attempts grow."""


class BlockWork:
    """What the work orders of a block's packages have in common."""

    __slots__ = ("brings_files", "brought", "differing", "plain", "takes_files")

    def __init__(self, block: Block, expansion: Expansion, origin: Origin) -> None:
        captured = origin.captured
        names = [name for name in words_of(block, expansion.definition) if name in captured]
        self.brought = {name: _brought(name, captured[name], origin) for name in names}
        self.differing = list(_differing(block, expansion, origin)) if captured else []
        self.takes_files = bool(block.inputs())
        self.brings_files = brings_files(block, expansion.definition)  # to the cache of the site
        # For one package, preparing the fast path takes longer than the normal one.
        self.plain: PlainBlock | None = plain_block(block, expansion.definition) if block.count > 1 else None


class _JobWorks:
    """The blocks of one expansion, on demand; an expansion belongs to one job."""

    __slots__ = ("_blocks", "origin")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._blocks: dict[Block, BlockWork] = {}

    def of(self, block: Block, expansion: Expansion) -> BlockWork:
        found = self._blocks.get(block)
        if found is None:
            found = BlockWork(block, expansion, self.origin)
            if block.count > 1:  # an imported job has as many blocks as packages
                self._blocks[block] = found
        return found


_works: WeakKeyDictionary[Expansion, _JobWorks] = WeakKeyDictionary()


def _works_of(expansion: Expansion, origin: Origin) -> _JobWorks:
    works = _works.get(expansion)
    if works is None or works.origin is not origin:
        works = _works[expansion] = _JobWorks(origin)
    return works


def compose(
    expansion: Expansion,
    number: int,
    assignment: Assignment,
    origin: Origin,
    *,
    staged: str,
    manifest_of: ManifestOf,
    granted: Sequence[int] | None = None,
    kept: str = "",
    mark: Mark = NO_MARK,
    site: Site | None = None,
    way: int | None = None,
    files: SiteFiles = NO_SITE,
) -> Work:
    """The work order of an assignment: `number` is its package in the expansion, `staged` the folder for its outputs.

    `manifest_of` returns the granted manifest of a package by its number; `granted` are the numbers of the packages
    that the assignment names as inputs, in order, if known. `kept` is a folder for outputs of finished binaries, or
    empty; `mark` lets an agent recognize its folders. `site` determines how software is started; `way` overrides that
    choice. `files` has the files that were brought to the site. Raises `NotAtSite`.
    """
    block, position = expansion.locate(number)
    common = _works_of(expansion, origin).of(block, expansion)
    if not common.takes_files:
        granted = ()
    elif granted is None:
        granted = _granted(expansion, assignment) if assignment.inputs else ()
    early = _EarlyFiles(expansion, number, assignment, granted, files)
    left_out = left_out_names(expansion, number, granted, early.running) if common.takes_files else ()
    if common.plain is not None and not left_out:
        written = common.plain.write(position)
        names = early.without(written.inputs)
        inputs = _inputs(names, (), common, position, origin, granted, manifest_of)
        if common.brings_files:
            inputs = (*inputs, *cached_inputs(expansion, number, site, files))
        return Work(
            path=_path(expansion.definition.job, assignment.ref.package),
            name=written.name,
            index=number,
            folder=origin.folder,
            staged=staged,
            mark=mark.text,
            folder_mark=mark.in_folder,
            inputs=inputs,
            early=early.inputs,
            shown=early.shown,
            binaries=written.binaries,
            keep_failed=origin.keep_failed or common.plain.keep_failed,
            cache=files.cache if common.brings_files else "",
            visible_seconds=files.visible_seconds if inputs or early.inputs else 0.0,
        )
    choose: Choose | None = None
    if way is not None:
        choose = way_at_position(way)
    elif site is not None:
        choose = way_at(site, block.package)
    package = concrete(expansion, number, granted=granted, left_out=left_out, manifest_of=manifest_of, choose=choose)
    inside = open_patterns(package, block)
    names = early.without(staged_names(package))
    inputs = _inputs(names, inside, common, position, origin, granted, manifest_of)
    if common.brings_files:
        inputs = (*inputs, *cached_inputs(expansion, number, site, files))
    kept_folder = ""
    if kept and len(package.binaries) > 1 and not package.startup:
        kept_folder = f"{kept}/{assignment.ref.job}-{assignment.ref.package}-{assignment.epoch}"
    work = _work(
        package, block, origin, expansion.definition, inputs=inputs, staged=staged, kept=kept_folder, mark=mark
    )
    if early.inputs or early.shown:
        work = msgspec.structs.replace(work, early=early.inputs, shown=early.shown)
    if (work.inputs or work.early) and (files.visible_seconds or common.brings_files):
        cache = files.cache if common.brings_files else ""
        work = msgspec.structs.replace(work, cache=cache, visible_seconds=files.visible_seconds)
    return work


class _EarlyFiles:
    """What a package reads of running attempts, and whether others may so read of it; nearly always nothing."""

    __slots__ = ("_sources", "inputs", "running", "shown")

    def __init__(
        self, expansion: Expansion, number: int, assignment: Assignment, granted: Sequence[int], files: SiteFiles
    ) -> None:
        self.inputs: tuple[WorkEarlyInput, ...] = ()
        self.running: tuple[int, ...] = ()  # packages that still make some of its inputs
        self.shown = ""
        self._sources: dict[str, str] = {}  # by name of a file: where its agent says where it grows
        if all(segment.common & EdgeKind.AWAITED for segment in expansion.graph.segments if segment.edges):
            return
        if files.cache and early_readers(expansion, number):
            self.shown = _shown_at(files, assignment.ref)
        tried = {_number_of(expansion, each): each for each in assignment.early}
        for maker in early_makers(expansion, number):
            block = expansion.block(maker)
            for name, is_open in block.made(block.position(maker)) if maker in granted or maker in tried else ():
                if not is_open:
                    self._sources[name] = ""
                    if (source := tried.get(maker)) is not None:
                        ref = AttemptRef(assignment.ref.job, source.package, source.attempt)
                        self._sources[name] = _shown_at(files, ref)
        self.running = tuple(maker for maker in tried if maker is not None)

    def without(self, names: Iterable[str]) -> Iterable[str]:
        """The names of inputs without those that still grow; all that it may read early are noted in `inputs`."""
        if not self._sources:
            return names
        known = list(dict.fromkeys(names))
        found = [WorkEarlyInput(name=name, source=self._sources[name]) for name in known if name in self._sources]
        self.inputs = tuple(found)
        growing = {each.name for each in found if each.source}
        return [name for name in known if name not in growing]


def _shown_at(files: SiteFiles, ref: AttemptRef) -> str:
    """Where the agent of an attempt says where its outputs grow: in the folder that all nodes of its site see."""
    if not files.cache and files is not NO_SITE:
        raise NotAtSite("its site has no folder that all its nodes see", subject=ref.package)
    return f"{files.cache}/{SHOWN_PREFIX}{ref.job}-{ref.package}-{ref.attempt}"


def _number_of(expansion: Expansion, source: InputSource) -> int | None:
    place = parse_dotted(source.package)
    layout = expansion.layouts.get(place.stage - 1) if place is not None else None
    return layout.number(place) if layout is not None and place is not None else None


def compose_every_way(
    expansion: Expansion,
    number: int,
    assignment: Assignment,
    origin: Origin,
    *,
    manifest_of: ManifestOf,
    granted: Sequence[int] | None = None,
    site: Site | None = None,
    files: SiteFiles = NO_SITE,
) -> list[Work]:
    """The work orders of an assignment for every way that a site may start it; nearly always one."""
    count = ways_count(expansion, number)
    return [
        compose(
            expansion, number, assignment, origin, staged="", manifest_of=manifest_of, granted=granted,
            site=site, way=way if count > 1 else None, files=files,
        )
        for way in range(count)
    ]  # fmt: skip


def ways_count(expansion: Expansion, number: int) -> int:
    """In how many ways a package may be started, depending on its site."""
    package = expansion.block(number).package
    named = [each for each in package.binaries if each.software]
    return max((len(ways_of(expansion.definition, package, each)) for each in named), default=1) or 1


def _granted(expansion: Expansion, assignment: Assignment) -> list[int]:
    """The numbers of the packages whose granted files an attempt may read, in order."""
    found = {_number_of(expansion, source) for source in assignment.inputs}
    return sorted(number for number in found if number is not None)


def _inputs(
    names: Iterable[str],
    inside: Collection[str],
    common: BlockWork,
    position: int,
    origin: Origin,
    granted: Collection[int],
    manifest_of: ManifestOf,
) -> tuple[WorkInput, ...]:
    """The files needed before the start: programs and scripts, and inputs that the package does not make itself."""
    found = dict(common.brought)
    made: Mapping[str, OutputFile] | None = None
    for name in names:
        if inside and any(matches(pattern, name) for pattern in inside):
            continue
        if made is None:
            made = {file.name: file for maker in granted for file in manifest_of(maker) or ()}
        file = made.get(name)
        if file is not None:
            found[name] = WorkInput(name=name, sha256=file.sha256, size_bytes=file.size_bytes, made=True)
        elif name not in found:
            captured = origin.captured.get(name)
            found[name] = _brought(name, captured, origin) if captured is not None else WorkInput(name=name)
    for column, by_value in common.differing:
        chosen = by_value.get(column.value(position))
        if chosen is not None:
            found.setdefault(chosen.name, chosen)
    return tuple(found.values())


def _differing(
    block: Block, expansion: Expansion, origin: Origin
) -> Iterator[tuple[Column, dict[str | tuple[str, ...], WorkInput]]]:
    """The programs and scripts that vary between the packages of a block, by the values of their variable."""
    captured = origin.captured
    for each in differing_of(block, expansion.definition):
        brought: dict[str | tuple[str, ...], WorkInput] = {
            value: _brought(name, captured[name], origin) for value, name in each.names.items() if name in captured
        }
        column = block.column(each.variable)
        if brought and column is not None:
            yield column, brought


def _brought(name: str, captured: Captured, origin: Origin) -> WorkInput:
    return WorkInput(
        name=name,
        sha256=captured.sha256,
        size_bytes=captured.size_bytes,
        content=captured.content,
        executable=captured.executable,
        stored=bool(origin.sent_from) and not captured.content,
    )


def _path(job: str, dotted: str) -> str:
    stage, line, number = dotted.split(".")
    return f"{job}/{stage.zfill(3)}/{line.zfill(3)}/{number.zfill(3)}"


def _work(
    package: ConcretePackage,
    block: Block,
    origin: Origin,
    definition: Definition,
    *,
    inputs: tuple[WorkInput, ...],
    staged: str,
    kept: str,
    mark: Mark,
) -> Work:
    declared = package.declared
    runs = not (declared.noop or declared.done)
    values = block.values(block.position(package.number))
    scripts = package.scripts
    progress = package.progress
    return Work(
        path=package.path,
        name=package.name,
        index=package.number,
        folder=origin.folder,
        staged=staged,
        mark=mark.text,
        folder_mark=mark.in_folder,
        inputs=inputs if runs else (),
        binaries=_binaries(package, block, values) if runs else (),
        startup=package.startup if runs else (),
        container=(
            WorkContainer(image=package.container.image, engine=package.container.engine)
            if package.container is not None and runs
            else None
        ),
        failure_patterns=tuple(
            WorkPattern(pattern=each.pattern, file=each.file, reason=each.reason) for each in package.failure_patterns
        ),
        watched=progress.files if progress is not None else (),
        stalled_after_seconds=progress.stalled_after_seconds if progress is not None else 0.0,
        pre=_script(scripts.pre, origin) if not declared.done else None,
        post=_script(scripts.post, origin) if not declared.done else None,
        pre_skip_exit_code=scripts.skip_exit_code,
        kept=kept,
        keep_failed=origin.keep_failed or any(keeps_failed(each.environment) for each in package.binaries),
        provenance=_provenance(package, origin, definition) if runs else None,
        software=", ".join(dict.fromkeys(binary.software for binary in package.binaries if binary.software)),
    )


def _provenance(package: ConcretePackage, origin: Origin, definition: Definition) -> WorkProvenance | None:
    """What is collected of the attempts of a package besides outputs; None: nothing."""
    asked = definition.provenance
    probes: dict[str, WorkProbe] = {}
    for binary in package.binaries:
        for each in definition.software if binary.software else ():
            if each.probe and "@".join(filter(None, (each.id, each.version))) == binary.software:
                probes[binary.software] = WorkProbe(argv=each.probe, environment=binary.environment.exported)
    if not (asked.script or asked.core_bytes or probes):
        return None
    name = script_file(asked.script) if asked.script else ""
    files = (_brought(name, origin.captured[name], origin),) if name in origin.captured else ()
    return WorkProvenance(script=asked.script, files=files, core_bytes=asked.core_bytes, probes=probes)


def _binaries(package: ConcretePackage, block: Block, values: Values) -> tuple[WorkBinary, ...]:
    several = len(package.binaries) > 1  # the only one has the name of its package
    return tuple(
        _binary(binary, block, values, name=binary.declared.name if several else "") for binary in package.binaries
    )


def _binary(binary: ConcreteBinary, block: Block, values: Values, *, name: str) -> WorkBinary:
    return WorkBinary(
        argv=binary.argv,
        name=name,
        environment=binary.environment.exported,
        stdin=binary.stdin,
        stdout=binary.stdout,
        stderr=binary.stderr,
        outputs=tuple(
            WorkOutput(
                expression=o.declared.expression,
                folder=_folder(o.declared.folder, values),
                stored=o.declared.stored_as,
            )
            if o.declared.expression
            else WorkOutput(name=o.name, pattern=block.makes_pattern(o.declared), stored=o.declared.stored_as)
            for o in binary.outputs
        ),
        error_codes=dict(binary.error_codes),
    )


def _folder(text: str, values: Values) -> str:
    folder = tidy_name(render(parse_template(text), values)) if text else ""
    return "" if folder == "." else folder


def _script(script: Script | None, origin: Origin) -> WorkScript | None:
    if script is None:
        return None
    name = script_file(script.run)
    return WorkScript(
        argv=script.run,
        defer_exit_code=script.defer_exit_code,
        defer_seconds=script.defer_seconds or 0.0,
        files=(_brought(name, origin.captured[name], origin),) if name in origin.captured else (),
    )
