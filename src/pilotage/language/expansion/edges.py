"""Finds the producer of each input: the edges of the graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pilotage.language.expansion.blocks import Block, binary_of
from pilotage.language.expansion.lists import Groups, Indices, ListFault
from pilotage.language.expansion.producers import NO_PRODUCER, MatchedNames, general_pattern, has_list
from pilotage.language.expansion.resolve import ProducedNames
from pilotage.language.expansion.stage_layout import ExpansionBuilder
from pilotage.language.parsing.kinds import FieldPath
from pilotage.language.text.names import first_own, outside, tidy_name, tidy_names
from pilotage.language.text.patterns import can_both_match, is_pattern, literal, matches
from pilotage.language.text.templates import Template, literal_text, part_of_name, render_column
from pilotage.model.errors import did_you_mean, near_name
from pilotage.model.jobs.definition import InputFile
from pilotage.model.jobs.graph import EDGES_MAX, EdgeKind, Kinds

_NEAR_MAX = 200

IMAGE_FILES = (".sif", ".simg")


class EdgeCollector:
    """Collects the edges of a job, block by block."""

    def __init__(self, builder: ExpansionBuilder) -> None:
        self._builder = builder
        self._makers = builder.makers
        self._edges: list[tuple[Indices, Indices, int]] = []
        self._singles: list[tuple[int, int, int]] = []
        self._count = 0
        self._matched: dict[tuple[str, int], MatchedNames | None] = {}
        self._by_package_name: dict[str, list[int]] | None = None
        self._stood_before = False  # whether the current block existed before the job grew
        self._has_early = False  # whether the current block has edges that allow an early start
        self.late_waits: dict[int, tuple[int, ...]] = {}  # block → late stages, counted from 0, that it waits for

    def add_block(self, position: int, block: Block) -> None:
        """Add the edges of all packages of a block; `position` is its index among the blocks."""
        packages = block.package_array()
        self._stood_before = position < self._builder.new_blocks
        if block.number:
            self._add(packages - 1, packages, EdgeKind.SEQUENCE | EdgeKind.AWAITED)
        late: set[int] = set()
        self._has_early = False
        for place, given in block.inputs():
            late |= self._of_input(block, packages, place, given)
        if block.package.container is not None:
            self._check_image(block, block.package.container.image)
        for index, _ in enumerate(block.package.after):
            late |= self._of_after(block, packages, index)
        if late:
            self.late_waits[position] = tuple(sorted(late))
        if self._starts_early(block) and not self._has_early and not self._stood_before:
            message = "early_start has no effect: no package of the job makes an input of its first package under a fixed name"
            hint = (
                "only a named output of an earlier package can be read while it grows, not one that matches a pattern"
            )
            place = ("stages", block.stage, "lines", block.template, "early_start")
            self._builder.report.warn("early-start-unused", message, self._builder.mark(place), hint=hint)

    def check_late_block(self, block: Block) -> None:
        """Report inputs that packages of a late stage can never get; files on disk are looked up now."""
        everywhere = len(self._builder.definition.stages)
        for place, given in block.inputs():
            template = block.bound(given.name)
            text = tidy_name(general_pattern(template) if template.placeholders else literal_text(template))
            named = not is_pattern(text) and not template.placeholders
            if has_list(template, block) or (template.placeholders and not is_pattern(literal_text(template))):
                continue
            before = everywhere if named else block.stage + 1
            if (
                self._makers.awaits(text, before_stage=before)
                or self._makers.patterns.makers_of(text, before_stage=before)
                or (
                    self._makers.of_names([text])[0] != NO_PRODUCER
                    if named
                    else self._makers.matching(text, before_stage=before)
                )
            ):
                continue
            if not named:
                self._refuse_unmatched(text, given, place)
            elif not _comes_from_outside(given) and self._refuse_outside([text], place):
                if absent := self._builder.lists.absent([text]):
                    self._refuse_missing(absent, place)
                self._refuse_folders([text], place)

    def edges(self, *, first_source: int | None) -> tuple[Indices, Indices, Kinds]:
        """All edges; when a graph grows, edges between two older packages are left out."""
        if self._singles:
            columns = np.array(self._singles, dtype=np.int32)
            self._singles.clear()
            for kind in np.flatnonzero(np.bincount(columns[:, 2])).tolist():
                alike = columns[columns[:, 2] == kind]
                self._edges.append((alike[:, 0], alike[:, 1], kind))
        if not self._edges:
            return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8)
        sources = np.concatenate([sources for sources, _, _ in self._edges])
        targets = np.concatenate([targets for _, targets, _ in self._edges])
        kinds = np.concatenate([np.full(len(s), kind, np.uint8) for s, _, kind in self._edges])
        self._edges.clear()
        if first_source is not None:
            new = (sources >= first_source) | (targets >= first_source)
            sources, targets, kinds = sources[new], targets[new], kinds[new]
        return sources, targets, kinds

    def _add(self, sources: Indices, targets: Indices, kind: EdgeKind) -> None:
        """Add edges, without those from a package to itself."""
        different = sources != targets
        if not different.all():
            sources, targets = sources[different], targets[different]
        self._count += len(sources)
        self._has_early |= bool(len(sources)) and not kind & EdgeKind.AWAITED
        self._edges.append((sources.astype(np.int32), targets.astype(np.int32), int(kind)))

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _of_input(self, block: Block, packages: Indices, place: FieldPath, given: InputFile) -> set[int]:
        """Add the edges of one input; return the late stages that it waits for."""
        # Who reads a pattern, or fetches its input itself, cannot be told how far a file has grown.
        early = self._starts_early(block) and given.acquisition != "self"
        awaited = EdgeKind(0) if early else EdgeKind.AWAITED
        template = block.bound(given.name)
        fixed = literal_text(template)
        if (is_pattern(fixed) or not template.placeholders) and self._refuse_own_files([tidy_name(fixed)], place):
            return set()
        if has_list(template, block):
            names, targets, sources = self._listed(block, packages, template)
            self._refuse_own_files(names, place)
            if sources is not None and given.locator and given.brought:
                self._refuse_made(given.name, place)
                return set()
            if sources is not None:
                self._add(sources, targets, EdgeKind.FILE | awaited)
                return set()
        elif is_pattern(literal_text(template)):
            return self._of_pattern(block, packages, place, given, template)
        elif (_comes_from_outside(given) and self._makers.makes_nothing_like(general_pattern(template))) or (
            not template.placeholders
            and block.count == 1
            and not (given.locator and given.brought)
            and self._single(template, packages, awaited)
        ):
            return set()
        else:
            names = tidy_names(render_column(template, self._builder.block_columns(block), block.count))
            targets = packages
            if self._refuse_own_files(names, place):
                return set()
        sources = self._makers.of_names(names)
        own = np.flatnonzero(sources == targets)
        if len(own) and not _comes_from_outside(given) and not _made_by_earlier_binary(block, place, given):
            self._refuse_own([names[i] for i in own.tolist()], targets[own], block, place)
        made = sources != NO_PRODUCER
        if given.locator and given.brought and made.any():
            self._refuse_made(names[int(np.argmax(made))], place)
            return set()
        self._add(sources[made], targets[made], EdgeKind.FILE | awaited)
        if made.all():
            return set()
        unmade = np.flatnonzero(~made)
        return self._of_unmade(block, [names[i] for i in unmade.tolist()], targets[unmade], place, given)

    def _refuse_made(self, name: str, place: FieldPath) -> None:
        """Report an input that a package of the job makes, and that is also to come from a store."""
        message = f"the input {name!r} has a locator, but a package of this job makes it"
        hint = "give it another name, or leave out the locator: outputs are handed on to later packages"
        self._builder.error("made-and-fetched", message, place, hint)

    def _refuse_own_files(self, names: list[str], place: FieldPath) -> bool:
        """Report an input that is a file of pilotage itself; return whether there is one."""
        own = first_own(names)
        if own is not None:
            self._builder.error("outside-tree", f"the input {own[0]!r} is not allowed: {own[1]}", place)
        return own is not None

    def _single(self, template: Template, packages: Indices, awaited: EdgeKind) -> bool:
        """Add the edge of a plain name, the common case in imported jobs; False if it needs a closer look."""
        maker = self._makers.by_name.get(tidy_name(literal_text(template)))
        target = int(packages[0])
        if maker is None or maker == target:
            return False
        self._singles.append((maker, target, int(EdgeKind.FILE | awaited)))
        self._has_early |= not awaited
        self._count += 1
        return True

    def _of_unmade(
        self, block: Block, names: list[str], targets: Indices, place: FieldPath, given: InputFile
    ) -> set[int]:
        """Inputs that no output names: they match an output pattern, come from a late stage, or from outside."""
        late: set[int] = set()
        if self._makers.patterns or self._makers.late:
            nowhere: list[str] = []
            for name, target in zip(names, targets.tolist(), strict=True):
                exact = literal(name)
                makers = self._makers.patterns.makers_of(exact, before_stage=block.stage)
                makers += self._open_in_line(exact, block, target, binary_of(place))
                if makers:
                    sources = np.array(makers, np.int32)
                    self._add(sources, np.full(len(makers), target, np.int32), EdgeKind.PATTERN | EdgeKind.AWAITED)
                stages = self._makers.awaits(exact, before_stage=block.stage)
                late.update(stages)
                if not makers and not stages:
                    nowhere.append(name)
            names = nowhere
        if names and not _comes_from_outside(given):
            names = self._refuse_outside(names, place)
            if self._stood_before and names:
                message = f"the input {names[0]!r} was expected from a late stage, which has not made it"
                self._builder.report.warn("missing-input", message, self._builder.mark(place))
            absent = self._builder.lists.absent(names)
            if absent:
                self._refuse_missing(absent, place)
            self._refuse_folders(names, place)
        return late

    def _open_in_line(self, pattern: str, block: Block, target: int, binary: int) -> list[int]:
        """Packages earlier in the line, or the package itself by an earlier binary, whose output patterns match."""
        return [
            before
            for before, made in self._made_in_line(block, target, binary)
            if any(can_both_match(pattern, name) for name, is_open in made if is_open)
        ]

    def _made_in_line(self, block: Block, target: int, binary: int) -> Iterator[tuple[int, list[tuple[str, bool]]]]:
        """The outputs of packages earlier in the line, and of earlier binaries of the package."""
        for before in range(target - block.number, target):
            other = self._builder.block_of(before)
            yield before, other.made(other.position(before))
        if binary:
            yield target, block.made(block.position(target), before_binary=binary)

    def _refuse_own(self, names: list[str], packages: Indices, block: Block, place: FieldPath) -> None:
        """Report an input that the package makes itself, unless an earlier binary makes it or it exists."""
        outputs = [output for where, output in block.outputs() if binary_of(where) < binary_of(place)]
        for name, package in zip(names, packages.tolist(), strict=True):
            values = block.values(block.position(package))
            if any(block.written_output(output, values) == name for output in outputs):
                continue
            if self._builder.lists.absent([name]):
                called = self._builder.package_name(package)
                message = f"a package waits for itself: {called} ─[{name}]→ {called}"
                self._builder.error(
                    "cycle", message, place, "the package makes this file itself, and nothing makes it before"
                )
                return

    def _refuse_outside(self, names: list[str], place: FieldPath) -> list[str]:
        """Report inputs outside the folder of the document, which cannot be transferred; return the others."""
        found = outside(names)
        if found:
            (name, reason), more = found[0], f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
            message = f"the input {name!r}{more} is not allowed: {reason}"
            hint = (
                "inputs are files in the folder of the document: put it there, or a link to it (ln -s), and name that; a file that"
                " the command reads by its absolute path need not be an input"
            )
            self._builder.error("outside-tree", message, place, hint)
        refused = {name for name, _ in found}
        return [name for name in names if name not in refused] if refused else names

    def _check_image(self, block: Block, image: str) -> None:
        """Report a container image that is a missing file of the folder; images to pull are not checked."""
        template = block.bound(image)
        name = literal_text(template)
        if template.placeholders or not name.endswith(IMAGE_FILES) or "://" in name or name.startswith("/"):
            return
        if self._makers.of_names([tidy_name(name)])[0] == NO_PRODUCER and self._builder.lists.absent([tidy_name(name)]):
            message = f"the container image {name!r} is a file that is not in the folder"
            hint = self._builder.lists.near(name) or "put it there, or name one that an engine can pull"
            mark = self._builder.mark((*block.place, "container"))
            self._builder.report.warn("missing-image", message, mark, hint=hint)

    def _refuse_folders(self, names: list[str], place: FieldPath) -> None:
        found = self._builder.lists.folders(names)
        if found:
            more = f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
            message = f"the input {found[0]!r}{more} is a folder, but inputs are files"
            hint = f"name the files in it: {found[0]}/*, or {found[0]}/** to include all folders below"
            self._builder.error("folder-as-input", message, place, hint)

    def _refuse_missing(self, absent: list[str], place: FieldPath) -> None:
        more = f" (and {len(absent) - 1:,} more)" if len(absent) > 1 else ""
        near = near_name(absent[0], self._near_names(absent[0]))
        hint = f"did you mean {near!r}?" if near else self._builder.lists.near(absent[0])
        hint = hint or "make it in a stage, give it a locator, or let acquisition be self"
        message = f"the input {absent[0]!r}{more} is made by no package and is not in the folder"
        self._builder.error("missing-input", message, place, hint)

    def _near_names(self, name: str) -> list[str]:
        """Some output names with the same prefix; comparing a name with a million would take minutes."""
        near = [made for made in self._makers.by_name if made[:2] == name[:2]]
        return near[:200]

    def _listed(self, block: Block, packages: Indices, template: Template) -> tuple[list[str], Indices, Indices | None]:
        """The names in a list variable of all packages, the package of each name, and its producer if known."""
        placeholder = template.placeholders[0]
        column = block.column(placeholder.name)
        if column is None or not isinstance(column.values, Groups):
            raise TypeError(f"{placeholder} is not a list")
        groups = column.values
        if isinstance(groups.values, ProducedNames) and column.take is None and not placeholder.attribute:
            makers = groups.values.packages
            return [], np.repeat(packages, groups.sizes()), makers
        names = list(groups.values)
        if placeholder.attribute:
            names = [part_of_name(name, placeholder.attribute) for name in names]
        names = tidy_names(names)
        if column.take is None:
            return names, np.repeat(packages, groups.sizes()), None
        taken = [names[i * groups.size : (i + 1) * groups.size] for i in column.take.tolist()]
        sizes = np.array([len(group) for group in taken])
        return [name for group in taken for name in group], np.repeat(packages, sizes), None

    # --- patterns ---------------------------------------------------------------------------------------------------

    def _of_pattern(
        self, block: Block, packages: Indices, place: FieldPath, given: InputFile, template: Template
    ) -> set[int]:
        if not template.placeholders and not block.number and not binary_of(place):
            pattern = tidy_name(literal_text(template))
            return self._match(pattern, block, packages, place, given)
        patterns = render_column(template, self._builder.block_columns(block), block.count, escape=literal)
        late: set[int] = set()
        faults = len(self._builder.report.errors)
        for pattern, target in zip(patterns, packages, strict=True):
            late |= self._match(tidy_name(pattern), block, target[None], place, given)
            if len(self._builder.report.errors) > faults:
                break
        return late

    def _match(self, pattern: str, block: Block, targets: Indices, place: FieldPath, given: InputFile) -> set[int]:
        """Add the edges of packages with the same input pattern; return the late stages that may make further files."""
        found, makers = self._made_before(pattern, block, int(targets[0]), binary_of(place))
        waiting = self._makers.awaits(pattern, before_stage=block.stage)
        if self._count + (len(found) + len(makers)) * len(targets) > EDGES_MAX:
            message = f"the graph would have more than {EDGES_MAX:,} edges"
            hint = "merge in groups: each: {part: {files: …, group: 1000}}"
            self._builder.error("too-many-edges", message, place, hint)
            return set()
        for sources, kind in ((found, EdgeKind.FILE), (makers, EdgeKind.PATTERN)):
            if len(sources):
                self._add(np.tile(sources, len(targets)), np.repeat(targets, len(sources)), kind | EdgeKind.AWAITED)
        if not len(found) and not len(makers) and not waiting:
            self._refuse_unmatched(pattern, given, place)
        return set(waiting)

    def _refuse_unmatched(self, pattern: str, given: InputFile, place: FieldPath) -> None:
        """Report an input pattern that no output matches, unless its files come from outside."""
        try:
            if _comes_from_outside(given):
                return
            if found := self._builder.lists.files_read(pattern) or self._builder.lists.files(pattern):
                self._refuse_outside(list(found), place)
                return
        except ListFault:
            # A late stage was expanded, and no producer made a matching file; the disk was checked at submission.
            message = f"no file matches the input {pattern!r}: none was made"
            self._builder.report.warn("no-match", message, self._builder.mark(place))
            return
        message = f"no file matches the input {pattern!r}, and no earlier stage makes any"
        made = [chunk.general.replace("**", "*") for chunk in self._makers.chunks[:_NEAR_MAX]]
        near = near_name(pattern, made)
        self._builder.error("no-match", message, place, f"did you mean {near!r}?" if near else "")

    def _made_before(self, pattern: str, block: Block, target: int, binary: int) -> tuple[Indices, Indices]:
        """The producers of matching names, and of patterns: in earlier stages, earlier in the line, or the package itself."""
        key = (pattern, block.stage)
        if key not in self._matched:
            self._matched[key] = self._makers.matching(pattern, before_stage=block.stage)
        found = self._matched[key]
        own: list[int] = []
        makers = self._makers.patterns.makers_of(pattern, before_stage=block.stage)
        for before, made in self._made_in_line(block, target, binary):
            if any(matches(pattern, name) for name, is_open in made if not is_open):
                own.append(before)
            if any(can_both_match(pattern, name) for name, is_open in made if is_open):
                makers.append(before)
        packages: NDArray[np.int32] = found.packages if found is not None else np.zeros(0, np.int32)
        return np.concatenate([packages, np.array(own, np.int32)]) if own else packages, np.array(makers, np.int32)

    # --- control ----------------------------------------------------------------------------------------------------

    def _of_after(self, block: Block, packages: Indices, index: int) -> set[int]:
        """Add the edges of `after`, which have no files; return the late stages among them."""
        template = block.bound(block.package.after[index])
        names = render_column(template, self._builder.block_columns(block), block.count)
        if self._by_package_name is None:
            self._by_package_name = {}
            for other in self._builder.blocks:
                for position, package in enumerate(other.packages()):
                    self._by_package_name.setdefault(other.package_name(position), []).append(package)
            whole: dict[int, list[int]] = {}
            for other in self._builder.blocks:
                whole.setdefault(other.stage, []).extend(other.packages())
            for stage, name in enumerate(self._builder.names):
                self._by_package_name.setdefault(name, whole.get(stage, []))
        late = {self._builder.names[stage]: stage for stage in self._builder.late}
        lengths: list[int] = []
        sources: list[int] = []
        for name in names:
            found = self._by_package_name.get(name)
            if found is None:
                if not self._builder.faulty:  # otherwise it may be a package of a faulty stage
                    hint = did_you_mean(name, list(self._by_package_name)[:2000])
                    place = (*block.place, "after", index)
                    self._builder.error("unknown-package", f"no package or stage is called {name!r}", place, hint)
                return set()
            lengths.append(len(found))
            sources.extend(found)
        self._add(np.array(sources, np.int32), np.repeat(packages, lengths), EdgeKind.AFTER | EdgeKind.AWAITED)
        return {late[name] for name in names if name in late}

    def _starts_early(self, block: Block) -> bool:
        line = self._builder.definition.stages[block.stage].lines[block.template]
        return line.early_start and block.number == 0


def _made_by_earlier_binary(block: Block, place: FieldPath, given: InputFile) -> bool:
    """Whether an earlier binary of the package has an output with the same text, as is common in a chain."""
    earlier = block.package.binaries[: binary_of(place)]
    return any(given.name in (binary.stdout, *(output.name for output in binary.outputs)) for binary in earlier)


def _comes_from_outside(given: InputFile) -> bool:
    """Whether an input may exist without a producer."""
    return bool(given.locator) or given.acquisition == "self"
