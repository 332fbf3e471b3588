"""The files that packages bring to the cache of their site: the plan of a job's files, and those of one package.

A file is a locator; packages that name the same one share it, whatever they call it. Locators are computed block by block
in pieces, and kept as checksums: a million of them are texts only one at a time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import Column
from pilotage.language.expansion.packages import LocatedFile, list_in, located_files
from pilotage.language.expansion.software import find_software
from pilotage.language.text.locators import (
    OF_JOB,
    cached_part,
    is_folder,
    job_of,
    locator_of,
    origin_of,
    scheme_of,
)
from pilotage.language.text.names import tidy_name, tidy_names
from pilotage.language.text.templates import Template, Values, literal_text, render_column
from pilotage.model.jobs.definition import Archive, Definition, InputFile, OutputFile
from pilotage.model.jobs.file_plan import FilePlan, Wish
from pilotage.model.jobs.graph import Rows

_AT_ONCE = 1 << 16  # locators that are texts at the same time
_WISHES = {
    "": Wish.RETAIN_TEMPORARILY,
    "retain-temporarily": Wish.RETAIN_TEMPORARILY,
    "retain-indefinitely": Wish.RETAIN_INDEFINITELY,
    "deletable": Wish.DELETABLE,
    "release": Wish.DELETABLE,
}

Digests = NDArray[np.uint64]  # two numbers for each locator


class BroughtFile(NamedTuple):
    """A file that must be in the folder of a package before it starts, and comes from the cache of its site."""

    name: str  # in the folder of the package; for software, the folder of its unpacked files
    locator: str
    sha256: str = ""  # that the document requires; empty: any
    unpacked: bool = False  # an archive of software
    in_place: bool = False  # it must be at this path on the node, and comes from there


def brought_files(expansion: Expansion, package: int, *, platform: str = "") -> list[BroughtFile]:
    """The files that a package brings to a site of this platform; empty: an unknown one."""
    block, position = expansion.locate(package)
    if not brings_files(block, expansion.definition):
        return []
    found: dict[str, BroughtFile] = {}
    values = block.values(position)
    for given in _brought(block):
        for each in located_files(block, given, values):
            in_place = given.present and scheme_of(each.locator) == "file"
            found.setdefault(each.name, BroughtFile(each.name, each.locator, each.sha256, in_place=in_place))
    for use in archives_of(block, expansion.definition):
        if not use.platforms or platform in use.platforms:
            archive = use.archive
            file = BroughtFile(use.folder, origin_of(archive.locator), archive.sha256.lower(), unpacked=True)
            found.setdefault(file.name, file)
    return list(found.values())


def brings_files(block: Block, definition: Definition) -> bool:
    """Whether the packages of a block bring files to their site."""
    if block.package.noop or block.package.done:
        return False
    return bool(_brought(block)) or next(archives_of(block, definition), None) is not None


def _brought(block: Block) -> list[InputFile]:
    return [given for _, given in block.inputs() if given.locator and (given.brought or given.present)]


def _is_in_place(block: Block, given: InputFile) -> bool:
    """Whether an input is at its place on the node, so that no cache has a part in it; the first locator says it for all."""
    if not given.present:
        return False
    first = next(located_files(block, given, block.values(0)), None)
    return first is not None and scheme_of(first.locator) == "file"


class ArchiveUse(NamedTuple):
    """An archive of software that the packages of a block use: where, and under which name."""

    archive: Archive
    folder: str
    platforms: tuple[str, ...]  # of the sites that need it; none: all


def archives_of(block: Block, definition: Definition) -> Iterator[ArchiveUse]:
    """The archives of the software of a block; a site whose platform is unknown needs the first of each software."""
    for binary in block.package.binaries:
        software = find_software(definition, binary) if binary.software else None
        if software is None:
            continue
        asked = block.package.platform
        fitting = [each for each in software.archives if not asked or each.platform in ("", asked)]
        for position, archive in enumerate(fitting):
            platforms: tuple[str, ...] = ()
            if archive.platform:
                platforms = (archive.platform, "") if position == 0 else (archive.platform,)
            yield ArchiveUse(archive, archive.folder or tidy_name(software.id), platforms)


# The plan of a job: its files are numbered in the order in which packages name them first, so that it can grow.


def file_plan_of(expansion: Expansion) -> FilePlan | None:
    """The files that the packages of a job bring to sites; None if there are none."""
    uses = _uses(expansion)
    return _numbered(uses, expansion.left_out) if uses else None


def locators_with(scheme: str, expansion: Expansion) -> frozenset[str]:
    """The locators of a scheme among those of the files that the packages of a job bring to sites."""
    found: set[str] = set()
    for use in _uses(expansion):
        begins = use.template.parts[0] if use.template.parts else ""
        if isinstance(begins, str) and scheme_of(begins) not in ("", scheme, "cache"):
            continue
        for part in use.locators():
            found.update(each for each in part if each.startswith(f"{scheme}:"))
    return frozenset(found)


def _uses(expansion: Expansion) -> list[_Use]:
    uses: list[_Use] = []
    for block in expansion.blocks:
        if not block.count or not brings_files(block, expansion.definition):
            continue
        uses.extend(_use_of(block, given) for given in _brought(block) if not _is_in_place(block, given))
        uses.extend(
            _ArchiveUse(block, _of_archive(each.archive), platforms=each.platforms)
            for each in archives_of(block, expansion.definition)
        )
    return uses


def jobs_read(expansion: Expansion, *, disposition: str | None = None) -> set[str]:
    """The jobs whose files are named by the locators of a job's inputs; of late stages, as far as they are known now.

    With a disposition, only inputs that have it count.
    """
    found: set[str] = set()
    for block in (*expansion.blocks, *expansion.late_blocks):
        for given in (each for each in _brought(block) if disposition in (None, each.disposition)):
            begins = next(iter(block.bound(given.locator).parts), "")
            if not isinstance(begins, str):  # a value brings the scheme
                found.update(job for part in locators_in_parts(block, given) for each in part if (job := job_of(each)))
            elif begins.startswith(OF_JOB):
                many = "/" not in begins
                parts = locators_in_parts(block, given) if many else [[begins]]
                found.update(job_of(each) for part in parts for each in part)
    return found


def _of_archive(archive: Archive) -> InputFile:
    return InputFile(
        name="-",
        locator=archive.locator.replace("{", "{{").replace("}", "}}"),
        size_bytes=archive.size_bytes,
        sha256=archive.sha256,
    )


class _Use:
    """An input of a block: the locators of all its packages, as keys."""

    platforms: tuple[str, ...] = ()

    def __init__(self, block: Block, given: InputFile) -> None:
        self.block = block
        self.given = given
        self.name = block.bound(given.name)
        self.template = block.bound(given.locator)

    def digests(self) -> Digests:
        """The checksum of each key's locator."""
        raise NotImplementedError

    def packages(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """All needs: the package of each, and its key."""
        raise NotImplementedError

    def sizes(self) -> NDArray[np.int64] | int:
        """The size of each key, or of all; 0: unknown."""
        return self.given.size_bytes or 0

    def locator(self, key: int) -> str:
        """The locator of a key."""
        raise NotImplementedError

    def sha256(self, key: int) -> str:
        """The checksum that the document requires of a key's file; empty: any."""
        raise NotImplementedError

    def locators(self) -> Iterator[list[str]]:
        """The locators of all keys, some at a time."""
        for part in locators_in_parts(self.block, self.given):
            yield list(map(origin_of, part))


class _ConstantUse(_Use):
    """One locator for all packages."""

    def digests(self) -> Digests:
        return locator_digests([self.locator(0)])

    def packages(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return self.block.package_array(), np.zeros(self.block.count, np.int64)

    def sizes(self) -> int:
        value = literal_text(self.template)
        return self.given.size_bytes or int(cached_part(value, "size") or 0)

    def locator(self, key: int) -> str:
        return origin_of(locator_of(literal_text(self.template), tidy_name(literal_text(self.name))))

    def sha256(self, key: int) -> str:
        # The same file of all packages: where their checksums differ, each package is compared when it starts.
        checksum = self.block.bound(self.given.sha256)
        return "" if checksum.placeholders else literal_text(checksum).lower()

    def locators(self) -> Iterator[list[str]]:
        yield [self.locator(0)]


class _ArchiveUse(_ConstantUse):
    """An archive of software."""

    def __init__(self, block: Block, given: InputFile, *, platforms: tuple[str, ...]) -> None:
        super().__init__(block, given)
        self.platforms = platforms


class _ColumnUse(_Use):
    """A locator for each package."""

    def __init__(self, block: Block, given: InputFile) -> None:
        super().__init__(block, given)
        self._sizes: NDArray[np.int64] | int = given.size_bytes or 0
        self._form = "".join(each.replace("%", "%%") if isinstance(each, str) else "%s" for each in self.template.parts)
        self._columns = _columns_of(block, self.template)

    def digests(self) -> Digests:
        found: Digests = np.empty((self.block.count, 2), np.uint64)
        start = 0
        for part in locators_in_parts(self.block, self.given):
            if any(each.startswith("cache:") for each in part):
                self._note_sizes(part, start)
            found[start : start + len(part)] = locator_digests(list(map(origin_of, part)))
            start += len(part)
        return found

    def _note_sizes(self, values: Sequence[str], start: int) -> None:
        if self.given.size_bytes is None:
            if isinstance(self._sizes, int):
                self._sizes = np.zeros(self.block.count, np.int64)
            self._sizes[start : start + len(values)] = [int(cached_part(each, "size") or 0) for each in values]

    def packages(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return self.block.package_array(), np.arange(self.block.count, dtype=np.int64)

    def sizes(self) -> NDArray[np.int64] | int:
        return self._sizes

    def locator(self, key: int) -> str:
        # The engine asks several times for each input of each package.
        if self._columns is not None:
            place = divmod(key, self.block.line_items.count)
            locator = self._form % tuple([column.value(place[level]) for column, level in self._columns])
            if not is_folder(locator):
                return origin_of(locator)
        return self._file(key).locator

    def sha256(self, key: int) -> str:
        return self._file(key).sha256

    def _file(self, key: int) -> LocatedFile:
        return next(located_files(self.block, self.given, self.block.values(key)))


def _columns_of(block: Block, template: Template) -> list[tuple[Column, int]] | None:
    """The columns that fill in a template, each with its level: 0 for items, 1 for lines; None if that takes more."""
    found: list[tuple[Column, int]] = []
    for gap in template.placeholders:
        level = 1 if gap.name in block.line_items.columns else 0
        column = (block.items, block.line_items)[level].columns.get(gap.name)
        if column is None or gap.attribute:
            return None
        found.append((column, level))
    return found


class _ListUse(_Use):
    """Several locators for each package: one for each value of a list."""

    def __init__(self, block: Block, given: InputFile, variable: str) -> None:
        super().__init__(block, given)
        column = block.column(variable)
        assert column is not None  # the expansion knows all variables
        self._variable = variable
        lengths = [len(column.value(item)) for item in range(block.count)]
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._sizes: NDArray[np.int64] | int = given.size_bytes or 0

    def digests(self) -> Digests:
        found: Digests = np.empty((int(self._ends[-1]), 2), np.uint64)
        at = 0
        for position in range(self.block.count):
            values = self.block.values(position)
            files = [each.locator for each in located_files(self.block, self.given, values)]
            if self.given.size_bytes is None:
                self._note_sizes(values, at)
            found[at : at + len(files)] = locator_digests(files)
            at += len(files)
        return found

    def _note_sizes(self, values: Values, start: int) -> None:
        """A list over the cache of a site knows the sizes of its files."""
        listed = values[self._variable]
        if str(self.template.parts[0]) == f"{{{self._variable}}}" and listed and listed[0].startswith("cache:"):
            if isinstance(self._sizes, int):
                self._sizes = np.zeros(int(self._ends[-1]), np.int64)
            self._sizes[start : start + len(listed)] = [int(cached_part(each, "size") or 0) for each in listed]

    def packages(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        lengths = np.diff(self._ends, prepend=0)
        return np.repeat(self.block.package_array(), lengths), np.arange(int(self._ends[-1]), dtype=np.int64)

    def sizes(self) -> NDArray[np.int64] | int:
        return self._sizes

    def locator(self, key: int) -> str:
        return self._file(key).locator

    def sha256(self, key: int) -> str:
        return self._file(key).sha256

    def _file(self, key: int) -> LocatedFile:
        position = int(np.searchsorted(self._ends, key, side="right"))
        within = key - (int(self._ends[position - 1]) if position else 0)
        return list(located_files(self.block, self.given, self.block.values(position)))[within]


def _use_of(block: Block, given: InputFile) -> _Use:
    name, locator = block.bound(given.name), block.bound(given.locator)
    variable = list_in(block, (name, locator))
    if variable:
        return _ListUse(block, given, variable)
    named = is_folder(literal_text(locator)) and bool(name.placeholders)
    return _ColumnUse(block, given) if locator.placeholders or named else _ConstantUse(block, given)


def locators_in_parts(block: Block, file: InputFile | OutputFile) -> Iterator[list[str]]:
    """The locators of a file of all packages of a block, some at a time; of lists, those of all their values."""
    name, template = block.bound(file.name), block.bound(file.locator)
    if list_in(block, (name, template)):
        if isinstance(file, InputFile):
            for position in range(block.count):
                yield [each.locator for each in located_files(block, file, block.values(position))]
        return
    gaps = {gap.name for each in (name, template) for gap in each.placeholders}
    columns = {name: block.column(name) for name in gaps}
    for start in range(0, block.count, _AT_ONCE):
        end = min(start + _AT_ONCE, block.count)
        texts: dict[str, Sequence[str]] = {}
        for gap, column in columns.items():
            if column is not None:
                texts[gap] = column.part(start, end)
            else:
                texts[gap] = list(map(block.tag if gap == "tag" else block.dotted, range(start, end)))
        locators = render_column(template, texts, end - start)
        if any(map(is_folder, locators)):
            names = tidy_names(render_column(name, texts, end - start))
            locators = list(map(locator_of, locators, names))
        yield locators


def locator_digests(locators: Sequence[str]) -> Digests:
    """The checksums of some locators."""
    from hashlib import blake2b  # only a job with locators needs it

    joined = b"".join([blake2b(each.encode("utf-8", "surrogatepass"), digest_size=16).digest() for each in locators])
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


class _Locators(Sequence[str]):
    """The locators of files, each computed when it is asked for."""

    __slots__ = ("_first_keys", "_starts", "_uses")

    def __init__(self, uses: Sequence[_Use], starts: Sequence[int], first_keys: NDArray[np.int64]) -> None:
        """`first_keys` has the key of each file's first use; `starts` the first key of each use."""
        self._uses = uses
        self._starts = starts
        self._first_keys = first_keys

    def __len__(self) -> int:
        return len(self._first_keys)

    def __iter__(self) -> Iterator[str]:
        """All of them in order, much faster than one by one: first uses are in order, too."""
        key = 0
        for use in self._uses:
            for part in use.locators():
                first, last = np.searchsorted(self._first_keys, (key, key + len(part)))
                yield from map(part.__getitem__, (self._first_keys[first:last] - key).tolist())
                key += len(part)

    @overload
    def __getitem__(self, file: int) -> str: ...
    @overload
    def __getitem__(self, file: slice) -> Sequence[str]: ...
    def __getitem__(self, file: int | slice) -> str | Sequence[str]:
        if isinstance(file, slice):
            return [self[each] for each in range(*file.indices(len(self)))]
        key = int(self._first_keys[file])
        use = bisect.bisect_right(self._starts, key) - 1
        return self._uses[use].locator(key - self._starts[use])


class _Checksums(Sequence[str]):
    """The checksums that the document requires of files, each computed when it is asked for."""

    __slots__ = ("_keys", "_starts", "_uses")

    def __init__(self, uses: Sequence[_Use], starts: Sequence[int], keys: NDArray[np.int64]) -> None:
        """`keys` has, for each file, the key of its first use with a checksum, or -1; `starts` the first key of each use."""
        self._uses = uses
        self._starts = starts
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, file: int) -> str: ...
    @overload
    def __getitem__(self, file: slice) -> Sequence[str]: ...
    def __getitem__(self, file: int | slice) -> str | Sequence[str]:
        if isinstance(file, slice):
            return [self[each] for each in range(*file.indices(len(self)))]
        key = int(self._keys[file])
        if key < 0:
            return ""
        use = bisect.bisect_right(self._starts, key) - 1
        return self._uses[use].sha256(key - self._starts[use])


def _checksums(uses: Sequence[_Use], starts: Sequence[int], file_of_key: NDArray[np.int32]) -> _Checksums | None:
    if not any(use.given.sha256 for use in uses):
        return None
    keys = np.full(int(file_of_key.max()) + 1, -1, np.int64)
    for use, start, end in reversed(list(zip(uses, starts, starts[1:], strict=False))):  # the first use is written last
        if use.given.sha256:
            keys[file_of_key[start:end]] = np.arange(start, end)
    return _Checksums(uses, starts, keys)


def _numbered(uses: Sequence[_Use], left_out: frozenset[int]) -> FilePlan:
    """Give a number to each locator, in the order of their first use."""
    digests = [use.digests() for use in uses]
    starts = [0, *np.cumsum([len(each) for each in digests]).tolist()]
    file_of_key, first_keys = _distinct(np.concatenate(digests))
    del digests
    count = len(first_keys)
    sizes, wishes = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    released, software, present = np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.ones(count, np.bool_)
    pairs: list[NDArray[np.int64]] = []
    platforms: dict[int, tuple[str, ...]] = {}
    anywhere: set[int] = set()
    for use, start, end in zip(uses, starts, starts[1:], strict=False):
        files = file_of_key[start:end]
        np.maximum.at(sizes, files, use.sizes())
        np.maximum.at(wishes, files, np.uint8(_WISHES[use.given.disposition]))
        released[files] |= use.given.disposition == "release"
        software[files] |= isinstance(use, _ArchiveUse)
        present[files] &= use.given.present
        packages, keys = use.packages()
        pairs.append(packages.astype(np.int64) * count + files[keys])
        for file in files.tolist() if isinstance(use, _ConstantUse) else ():
            if use.platforms:
                platforms[file] = tuple(dict.fromkeys((*platforms.get(file, ()), *use.platforms)))
            else:
                anywhere.add(file)
    joined = np.concatenate(pairs) if len(pairs) > 1 else pairs[0]
    if not np.all(joined[1:] > joined[:-1]):
        joined = np.unique(joined)
    packages, files = (joined // count).astype(np.int32), (joined % count).astype(np.int32)
    if left_out:
        wanted = ~np.isin(packages, np.fromiter(left_out, np.int32, len(left_out)))
        packages, files = packages[wanted], files[wanted]
    by_file = np.argsort(files, kind="stable")
    only: Mapping[int, tuple[str, ...]] = {file: each for file, each in platforms.items() if file not in anywhere}
    return FilePlan(
        needs=Rows(packages, files),
        users=Rows(files[by_file], packages[by_file]),
        locators=_Locators(uses, starts, first_keys),
        sizes_bytes=sizes,
        wishes=wishes,
        released=released,
        software=software if software.any() else None,
        present=present if present.any() else None,
        checksums=_checksums(uses, starts, file_of_key),
        platforms=only,
    )


def _distinct(digests: Digests) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The file of each key, numbered by first occurrence, and the first key of each file."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: the first of equal ones comes first
    ordered = digests[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = order[new]
    by_first = np.argsort(firsts)
    number = np.empty(len(firsts), np.int32)
    number[by_first] = np.arange(len(firsts), dtype=np.int32)
    files = np.empty(len(order), np.int32)
    files[order] = number[np.cumsum(new) - 1]
    return files, firsts[by_first].astype(np.int64)
