"""Resolved lists: globs, tables and files are read once and become part of the expansion.

`RecordingLists` reads the folder of the document and records each answer; `RecordedLists` replays the recorded answers.
An expansion reads only through these, so a definition with its recorded lists always expands to the same packages.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.language.folder import EarlierJobs, Folder, NoEarlierJobs
from pilotage.language.parsing.iterations import ITEMS_MAX, range_of, range_width
from pilotage.language.text.locators import OF_JOB, cached_value, job_locator, name_in_locator
from pilotage.language.text.patterns import literal, matches
from pilotage.model.errors import PilotageError, near_name
from pilotage.model.jobs.submission import ResolvedLists

_FOLDERS_CHECKED_MAX = 10_000  # names of one input: if one is a folder by mistake, the first ones are
_NEAR_MAX = 2000
_TARGETS = "targets"


class ListFault(Exception):
    """A list could not be read; the expander reports it with its position."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class LateList(msgspec.Struct, frozen=True):
    """The names that a late stage iterates over, and the number of the package that made each."""

    names: tuple[str, ...]
    makers: tuple[int, ...]


class Lists(Protocol):
    """The source of all lists of an expansion."""

    @property
    def resolved(self) -> ResolvedLists:
        """All lists so far, by a key that identifies the question."""
        ...

    def files_read(self, pattern: str) -> tuple[str, ...]:
        """The files that matched if the pattern was looked up on disk before; no new look-up."""
        ...

    def files(self, pattern: str) -> tuple[str, ...]:
        """The matching files on disk, perhaps none."""
        ...

    def lines(self, path: str) -> tuple[str, ...]:
        """The lines of a file."""
        ...

    def columns(self, path: str) -> dict[str, tuple[str, ...]]:
        """The columns of a table, by their names, in order."""
        ...

    def outputs(self, job: str, pattern: str) -> tuple[str, ...]:
        """The outputs of an earlier job."""
        ...

    def cached(self, site: str, pattern: str) -> tuple[str, ...]:
        """The files in the cache of a site, as values with a size."""
        ...

    def late(self, stage: int, pattern: str, within: int | None) -> LateList | None:
        """The list of a late stage; None while it is not known."""
        ...

    def absent(self, names: list[str]) -> list[str]:
        """The names that are not files on disk."""
        ...

    def folders(self, names: list[str]) -> list[str]:
        """The names that are folders on disk."""
        ...

    def near(self, name: str) -> str:
        """A hint at a file on disk with a similar name, or an empty text."""
        ...


class RecordingLists:
    """Reads lists from a folder and records them."""

    def __init__(self, folder: Folder, jobs: EarlierJobs | None = None, *, targets: tuple[str, ...] = ()) -> None:
        """`targets` are the targets of the run; empty means everything."""
        self._folder = folder
        self._jobs = jobs or NoEarlierJobs()
        self._resolved: dict[str, tuple[str, ...]] = {_TARGETS: targets} if targets else {}

    @property
    def resolved(self) -> ResolvedLists:
        """The lists read so far."""
        return ResolvedLists(lists=dict(self._resolved))

    def files_read(self, pattern: str) -> tuple[str, ...]:
        """The files that matched when the pattern was looked up on disk."""
        return files_read(self._resolved, pattern)

    def files(self, pattern: str) -> tuple[str, ...]:
        """The files on disk that match, sorted."""
        key = files_key(pattern)
        if key not in self._resolved:
            names = self._folder.glob(pattern)
            for name in names:
                if not name.isprintable() and any("\ud800" <= c <= "\udfff" for c in name):
                    shown = name.encode("utf-8", "backslashreplace").decode()
                    raise ListFault("not-utf8", f"the name of the file {shown!r} is not UTF-8", "rename it")
            self._resolved[key] = tuple(names)
        return self._resolved[key]

    def lines(self, path: str) -> tuple[str, ...]:
        """The lines of a file, without empty ones."""
        key = f"lines:{path}"
        if key not in self._resolved:
            lines = (line.rstrip("\r") for line in self._text(path).split("\n"))
            self._resolved[key] = tuple(line for line in lines if line.strip())
        return self._resolved[key]

    def columns(self, path: str) -> dict[str, tuple[str, ...]]:
        """The columns of a CSV file with a header."""
        key = f"csv:{_escaped(path)}"
        if key not in self._resolved:
            names, columns = _parse_csv(self._text(path), path)
            self._resolved[key] = names
            self._resolved.update({f"{key}:{name}": column for name, column in zip(names, columns, strict=True)})
        return {name: self._resolved[f"{key}:{name}"] for name in self._resolved[key]}

    def outputs(self, job: str, pattern: str) -> tuple[str, ...]:
        """The outputs of an earlier job that match."""
        key = f"job:{_escaped(job)}:{pattern}"
        if key not in self._resolved:
            try:
                found = self._jobs.outputs(job, pattern)
            except PilotageError as fault:
                raise ListFault("job-outputs", fault.what, fault.next_step) from None
            if found is None:
                message = f"no finished job has the id or the name {job!r}"
                raise ListFault("unknown-job", message, "see: pilotage query")
            self._resolved[key] = tuple(found.names)
            # The id that the name was resolved to, and where its files are if not beside the document.
            self._resolved[f"job:{_escaped(job)}"] = (found.job, found.folder) if found.folder else (found.job,)
        return self._resolved[key]

    def cached(self, site: str, pattern: str) -> tuple[str, ...]:
        """The files in the cache of a site that match, by name."""
        key = f"site:{_escaped(site)}:{pattern}"
        if key not in self._resolved:
            try:
                found = self._jobs.cached_files(site)
            except PilotageError as fault:
                raise ListFault("cached-files", fault.what, fault.next_step) from None
            if found is None:
                raise ListFault("unknown-site", f"no site is called {site!r}", "see: pilotage sites")
            by_locator = "/" in pattern
            named = [(name_in_locator(each.locator), each) for each in found]
            matching = sorted(
                (name, each) for name, each in named if matches(pattern, each.locator if by_locator else name)
            )
            self._resolved[key] = tuple(
                cached_value(site=site, locator=each.locator, size_bytes=each.size_bytes) for _, each in matching
            )
        return self._resolved[key]

    def late(self, stage: int, pattern: str, within: int | None) -> LateList | None:
        """None: a job that is being submitted has made nothing yet."""
        return None

    def absent(self, names: list[str]) -> list[str]:
        """The names that are not in the folder."""
        return [name for name in names if not self._folder.exists(name)]

    def folders(self, names: list[str]) -> list[str]:
        """The names that are folders on disk."""
        return [name for name in names[:_FOLDERS_CHECKED_MAX] if self._folder.is_folder(name)]

    def near(self, name: str) -> str:
        """A hint at a file in the same folder with a similar name."""
        parent, _, _ = name.rpartition("/")
        beside = self._folder.glob(f"{literal(parent)}/*" if parent else "*")
        found = near_name(name, beside[:_NEAR_MAX])
        return f"did you mean {found!r}?" if found else ""

    def _text(self, path: str) -> str:
        data = self._folder.read(path)
        if data is None:
            there = self._folder.exists(path)
            why = "cannot be read" if there else "does not exist"
            raise ListFault("missing-file", f"the file {path!r} {why}", "" if there else self.near(path))
        if b"\0" in data:
            raise ListFault("nul-character", f"the file {path!r} contains a NUL character: is it text?")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ListFault("not-utf8", f"the file {path!r} is not UTF-8: byte {error.start} cannot be read") from None


class RecordedLists:
    """Replays recorded lists; reads nothing."""

    def __init__(self, resolved: ResolvedLists) -> None:
        self._record = resolved
        self._resolved = resolved.lists

    @property
    def resolved(self) -> ResolvedLists:
        """The recorded lists."""
        return self._record

    def files_read(self, pattern: str) -> tuple[str, ...]:
        """The recorded matches, if the pattern was looked up on disk."""
        return files_read(self._resolved, pattern)

    def files(self, pattern: str) -> tuple[str, ...]:
        """The recorded matches."""
        return self._recorded(files_key(pattern))

    def lines(self, path: str) -> tuple[str, ...]:
        """The recorded lines."""
        return self._recorded(f"lines:{path}")

    def columns(self, path: str) -> dict[str, tuple[str, ...]]:
        """The recorded columns."""
        key = f"csv:{_escaped(path)}"
        return {name: self._recorded(f"{key}:{name}") for name in self._recorded(key)}

    def outputs(self, job: str, pattern: str) -> tuple[str, ...]:
        """The recorded outputs."""
        return self._recorded(f"job:{_escaped(job)}:{pattern}")

    def cached(self, site: str, pattern: str) -> tuple[str, ...]:
        """The recorded files of a cache."""
        return self._recorded(f"site:{_escaped(site)}:{pattern}")

    def late(self, stage: int, pattern: str, within: int | None) -> LateList | None:
        """The recorded list of a late stage, or None."""
        key = late_key(stage, pattern, within)
        if key not in self._resolved:
            return None
        return LateList(self._resolved[key], tuple(map(int, self._resolved[makers_key(key)])))

    def absent(self, names: list[str]) -> list[str]:
        """An empty list: the files were checked at submission."""
        return []

    def folders(self, names: list[str]) -> list[str]:
        """An empty list: the files were checked at submission."""
        return []

    def near(self, name: str) -> str:
        """No hint: the disk is not read."""
        return ""

    def _recorded(self, key: str) -> tuple[str, ...]:
        if key not in self._resolved:
            raise ListFault("missing-list", f"the record has no list {key!r}")
        return self._resolved[key]


def _escaped(name: str) -> str:
    """A name with its colons escaped, so that keys are unique."""
    return name.replace("%", "%25").replace(":", "%3A")


def files_read(lists: Mapping[str, tuple[str, ...]], pattern: str) -> tuple[str, ...]:
    """The files on disk at submission that match a pattern, if a pattern that covers it was looked up then.

    A late stage asks for the pattern of each item; the pattern that was looked up at submission is more general.
    """
    known = lists.get(files_key(pattern))
    if known is not None:
        return known
    asked = (names for key, names in lists.items() if key.startswith(files_key("")))
    return tuple(sorted({name for names in asked for name in names if matches(pattern, name)}))


def earlier_outputs(lists: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The outputs of earlier jobs that were listed, by name, with their locators."""
    found: dict[str, str] = {}
    for key, names in lists.items():
        job, colon, _ = key.removeprefix(OF_JOB).partition(":")
        if key.startswith(OF_JOB) and colon:
            known, *folder = lists[f"{OF_JOB}{job}"]
            inner = f"{folder[0]}/" if folder else ""
            found.update((name, job_locator(known, name.removeprefix(inner))) for name in names)
    return found


def targets_of(lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The targets of a run, names or patterns; empty means everything."""
    return lists.get(_TARGETS, ())


def files_key(pattern: str) -> str:
    """The key of the files on disk that match a pattern."""
    return f"files:{pattern}"


def late_key(stage: int, pattern: str, within: int | None) -> str:
    """The key of the list of a late stage, from all earlier stages or from one; both count from 0."""
    return f"late:{stage}:{'' if within is None else within}:{pattern}"


def makers_key(key: str) -> str:
    """The key of the packages that made the names of another key."""
    return f"makers-of-{key}"


def _parse_csv(text: str, path: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header and the columns; all rows must be as long as the header."""
    rows = [(number, row) for number, row in _numbered_rows(text, path) if row]
    if not rows:
        raise ListFault("empty-table", f"the table {path!r} is empty; expected a header and rows")
    names = tuple(name.strip() for name in rows[0][1])
    doubles = {name for name in names if names.count(name) > 1}
    if doubles or "" in names:
        what = f"the column {min(doubles)!r} twice" if doubles else "a column without a name"
        raise ListFault("bad-table", f"the header of {path!r} has {what}")
    for number, row in rows[1:]:
        if len(row) != len(names):
            message = f"line {number} of {path!r} has {len(row)} fields, its header {len(names)}"
            raise ListFault("bad-table", message)
    columns = list(zip(*(row for _, row in rows[1:]), strict=True)) or [() for _ in names]
    return names, columns


def _numbered_rows(text: str, path: str) -> list[tuple[int, list[str]]]:
    import csv  # only a table needs it

    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        rows.extend((reader.line_num, row) for row in reader)
    except csv.Error as error:
        raise ListFault("bad-table", f"line {reader.line_num} of {path!r} is not CSV: {error}") from None
    return rows


# Items: the result of an iteration, as columns over numbered items with tags. Nothing is copied that can be computed.
#
# A tag is a row of integers, written `0_1`. One list has the tags 0, 1, 2 …; `cross` joins tags, `flat-cross`
# numbers from 0 again, `dot` keeps the tags of its first operand, `match` those of the last: it pairs an item with each
# item of the next operand whose tag begins with its own.

Indices = NDArray[np.int32]
Tags = NDArray[np.int32]


class RangeTexts(Sequence[str]):
    """The integers of a range as texts, computed when needed."""

    def __init__(self, text: str) -> None:
        """Parse a range such as `1..1000` or `001..100`."""
        self._range = range_of(text)
        self._width = range_width(text)

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[str]:
        return map(self._text, self._range) if self._width else map(str, self._range)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if isinstance(position, slice):
            return [self._text(value) for value in self._range[position]]
        return self._text(self._range[position])

    def _text(self, value: int) -> str:
        return f"{value:0{self._width + (value < 0)}}" if self._width else str(value)


class Groups(Sequence[tuple[str, ...]]):
    """The values of a list in groups of equal size."""

    def __init__(self, values: Sequence[str], size: int) -> None:
        """Cut `values` into groups of `size`; the last may be shorter."""
        self.values = values
        self.size = size

    def __len__(self) -> int:
        return (len(self.values) + self.size - 1) // self.size

    def sizes(self) -> Indices:
        """The number of values in each group."""
        sizes = np.full(len(self), self.size if len(self) > 1 else len(self.values), np.int64)
        if len(self) > 1:
            sizes[-1] = len(self.values) - (len(self) - 1) * self.size
        return sizes.astype(np.int32)

    @overload
    def __getitem__(self, position: int) -> tuple[str, ...]: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[tuple[str, ...]]: ...
    def __getitem__(self, position: int | slice) -> tuple[str, ...] | Sequence[tuple[str, ...]]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        if not 0 <= position < len(self):
            raise IndexError(position)
        return tuple(self.values[position * self.size : (position + 1) * self.size])


class Column:
    """The values of one variable: a list, and for each item the index of its element."""

    __slots__ = ("take", "values")

    def __init__(self, values: Sequence[str] | Groups, take: Indices | None = None) -> None:
        """Without `take`, item i has element i."""
        self.values = values
        self.take = take

    @property
    def is_list(self) -> bool:
        """Whether each value is itself a list."""
        return isinstance(self.values, Groups)

    def value(self, item: int) -> str | tuple[str, ...]:
        """The value of one item."""
        return self.values[item if self.take is None else int(self.take[item])]

    def texts(self) -> list[str]:
        """The values of all items; raises `TypeError` for a column of lists."""
        if isinstance(self.values, Groups):
            raise TypeError("the values of this column are lists")
        values = list(self.values)
        return values if self.take is None else list(map(values.__getitem__, self.take.tolist()))

    def part(self, start: int, end: int) -> list[str]:
        """The values of the items from `start` to `end`; raises `TypeError` for a column of lists."""
        if isinstance(self.values, Groups):
            raise TypeError("the values of this column are lists")
        if self.take is None:
            return list(self.values[start:end])
        return list(map(self.values.__getitem__, self.take[start:end].tolist()))

    def taken(self, take: Indices) -> Column:
        """The column of new items, each given by the number of an item of this column."""
        return Column(self.values, take if self.take is None else self.take[take])


class Items:
    """Numbered items with their variables and tags."""

    __slots__ = ("_tags", "columns", "count")

    def __init__(self, count: int, columns: Mapping[str, Column], tags: Tags | None = None) -> None:
        """Without `tags` item i has the tag i."""
        self.count = count
        self.columns = dict(columns)
        self._tags = tags

    @property
    def own_tags(self) -> Tags | None:
        """The stored tags; None if item i has the tag i."""
        return self._tags

    @property
    def tags(self) -> Tags:
        """The tags, a row each."""
        return np.arange(self.count, dtype=np.int32)[:, None] if self._tags is None else self._tags

    def tag(self, item: int) -> str:
        """The tag of one item as text."""
        if self._tags is None:
            return str(item)
        return "_".join(map(str, self._tags[item].tolist())) if self._tags.shape[1] else ""

    def values(self, item: int) -> dict[str, str | tuple[str, ...]]:
        """The variables of one item."""
        return {name: column.value(item) for name, column in self.columns.items()}

    def taken(self, take: Indices) -> dict[str, Column]:
        """The columns of new items, each given by the number of one of these items."""
        return {name: column.taken(take) for name, column in self.columns.items()}


ONE = Items(1, {}, np.zeros((1, 0), np.int32))  # without `each` there is one item, without a tag


def dot(operands: Sequence[tuple[str, Items]]) -> Items:
    """Pair by position; all operands must be equally long. Each comes with its name for messages."""
    first_name, first = operands[0]
    for name, other in operands[1:]:
        if other.count != first.count:
            message = f"dot needs lists of equal length: {first_name} has {first.count}, {name} has {other.count}"
            raise ListFault("unequal-lengths", message, "use cross for every pair, or match to pair by tags")
    return Items(first.count, _columns([items for _, items in operands]), first.own_tags)


def cross(operands: Sequence[Items]) -> Items:
    """Every combination, the last operand running fastest; tags are joined."""
    total = 1
    for items in operands:
        total *= items.count
    if total > ITEMS_MAX:
        raise ListFault("too-many-items", f"the combination has {total:,} items; at most {ITEMS_MAX:,} are possible")
    columns: dict[str, Column] = {}
    tags: list[Tags] = []
    inner = total
    for items in operands:
        inner = inner // items.count if items.count else 0
        outer = total // (inner * items.count) if inner and items.count else 0
        take = np.tile(np.repeat(np.arange(items.count, dtype=np.int32), inner), outer)
        _add(columns, items.taken(take))
        tags.append(items.tags[take])
    return Items(total, columns, np.hstack(tags))


def flat_cross(operands: Sequence[Items]) -> Items:
    """Every combination, numbered from 0."""
    crossed = cross(operands)
    return Items(crossed.count, crossed.columns)


def match(operands: Sequence[Items]) -> Items:
    """Pair each item with every item of the next operand whose tag begins with its own."""
    left = operands[0]
    for right in operands[1:]:
        depth = left.tags.shape[1]
        begun: dict[tuple[int, ...], list[int]] = {}
        if right.tags.shape[1] >= depth:
            for position, tag in enumerate(map(tuple, right.tags[:, :depth].tolist())):
                begun.setdefault(tag, []).append(position)
        pairs = [(i, j) for i, tag in enumerate(map(tuple, left.tags.tolist())) for j in begun.get(tag, ())]
        if len(pairs) > ITEMS_MAX:
            raise ListFault("too-many-items", f"match gives {len(pairs):,} items; at most {ITEMS_MAX:,} are possible")
        take = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        columns = left.taken(take[:, 0])
        _add(columns, right.taken(take[:, 1]))
        left = Items(len(pairs), columns, right.tags[take[:, 1]])
    return left


def _columns(operands: Sequence[Items]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for items in operands:
        _add(columns, items.columns)
    return columns


def _add(columns: dict[str, Column], more: Mapping[str, Column]) -> None:
    for name, column in more.items():
        if name in columns:
            raise ListFault("duplicate-variable", f"the variable {name!r} is defined twice in one iteration")
        columns[name] = column
