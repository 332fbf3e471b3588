"""Resolved lists: globs, tables and files are read once, and what was read is part of the result.

`RecordingLists` looks at the document's folder and remembers each answer; `RecordedLists` gives the remembered answers
back. An expansion asks only through these, so a definition with its recorded lists expands the same for ever.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Protocol

import msgspec

from pilotage.language.folder import EarlierJobs, Folder, NoEarlierJobs
from pilotage.language.text.patterns import literal, matches
from pilotage.model.errors import PilotageError, near_name
from pilotage.model.resolved import ResolvedLists

_FOLDERS_LOOKED_FOR = 10_000  # names of one input: who takes a folder for a file does so from the first on
_NEAR_MAX = 2000
_TARGETS = "targets"


class ListFault(Exception):
    """A list could not be had; the expander notes it with its place."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        """Say what was asked for and why there is no answer."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class LateList(msgspec.Struct, frozen=True):
    """Names that appeared, and the number of the package that made each."""

    names: tuple[str, ...]
    makers: tuple[int, ...]


class Lists(Protocol):
    """Where an expansion gets its lists."""

    @property
    def resolved(self) -> ResolvedLists:
        """Every list given so far, by a key that says what was asked."""
        ...

    def files_read(self, pattern: str) -> tuple[str, ...]:
        """The files that matched if the disk was asked for them, without asking it now."""
        ...

    def files(self, pattern: str) -> tuple[str, ...]:
        """The files on disk that match; empty if none does."""
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

    def late(self, stage: int, pattern: str, within: int | None) -> LateList | None:
        """What appeared for a stage that had to wait for it; None while it is not known."""
        ...

    def absent(self, names: list[str]) -> list[str]:
        """Those of the names that are no files on disk."""
        ...

    def folders(self, names: list[str]) -> list[str]:
        """Those of the names that are folders on disk."""
        ...

    def near(self, name: str) -> str:
        """A hint at a file on disk with nearly this name, if there is one."""
        ...


class RecordingLists:
    """Reads through a folder and keeps what it read, by a key that says what was asked."""

    def __init__(self, folder: Folder, jobs: EarlierJobs | None = None, *, targets: tuple[str, ...] = ()) -> None:
        """Nothing is read until it is asked for; `targets` are the files that the job is run for, none: all."""
        self._folder = folder
        self._jobs = jobs or NoEarlierJobs()
        self._resolved: dict[str, tuple[str, ...]] = {_TARGETS: targets} if targets else {}

    @property
    def resolved(self) -> ResolvedLists:
        """What was read so far."""
        return ResolvedLists(lists=dict(self._resolved))

    def files_read(self, pattern: str) -> tuple[str, ...]:
        """The files that matched when the disk was asked for them."""
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
        """The lines of a file; empty ones do not count."""
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
                message = f"no job {job!r} that is over is known here, neither by its id nor by its name"
                raise ListFault("unknown-job", message, "see: pilotage query")
            self._resolved[key] = tuple(found.names)
            self._resolved[f"job:{_escaped(job)}"] = (found.job,)  # which one a name meant
        return self._resolved[key]

    def late(self, stage: int, pattern: str, within: int | None) -> LateList | None:
        """None: what is being submitted has made nothing yet."""
        return None

    def absent(self, names: list[str]) -> list[str]:
        """Those of the names that the folder does not have."""
        return [name for name in names if not self._folder.exists(name)]

    def folders(self, names: list[str]) -> list[str]:
        """Those of the names that are folders on disk."""
        return [name for name in names[:_FOLDERS_LOOKED_FOR] if self._folder.is_folder(name)]

    def near(self, name: str) -> str:
        """A hint at a file in the same folder with nearly this name."""
        parent, _, _ = name.rpartition("/")
        beside = self._folder.glob(f"{literal(parent)}/*" if parent else "*")
        found = near_name(name, beside[:_NEAR_MAX])
        return f"did you mean {found!r}?" if found else ""

    def _text(self, path: str) -> str:
        data = self._folder.read(path)
        if data is None:
            there = self._folder.exists(path)
            why = "is no file that can be read" if there else "is not there"
            raise ListFault("missing-file", f"the file {path!r} {why}", "" if there else self.near(path))
        if b"\0" in data:
            raise ListFault("nul-character", f"the file {path!r} holds a NUL character: is it text?")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ListFault("not-utf8", f"the file {path!r} is not UTF-8: byte {error.start} cannot be read") from None


class RecordedLists:
    """Gives recorded lists back and looks at nothing."""

    def __init__(self, resolved: ResolvedLists) -> None:
        """Answer from these."""
        self._record = resolved
        self._resolved = resolved.lists

    @property
    def resolved(self) -> ResolvedLists:
        """The record."""
        return self._record

    def files_read(self, pattern: str) -> tuple[str, ...]:
        """The recorded matches, if the disk was asked for them."""
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

    def late(self, stage: int, pattern: str, within: int | None) -> LateList | None:
        """What appeared for a stage that had to wait, if that is recorded."""
        key = late_key(stage, pattern, within)
        if key not in self._resolved:
            return None
        return LateList(self._resolved[key], tuple(map(int, self._resolved[makers_key(key)])))

    def absent(self, names: list[str]) -> list[str]:
        """None of them: what was there at submission was checked then."""
        return []

    def folders(self, names: list[str]) -> list[str]:
        """None of them: what was there at submission was checked then."""
        return []

    def near(self, name: str) -> str:
        """No hint: the disk is not looked at."""
        return ""

    def _recorded(self, key: str) -> tuple[str, ...]:
        if key not in self._resolved:
            raise ListFault("missing-list", f"the record has no list {key!r}")
        return self._resolved[key]


def _escaped(name: str) -> str:
    """A name without a colon, so that no two questions share a key."""
    return name.replace("%", "%25").replace(":", "%3A")


def files_read(lists: Mapping[str, tuple[str, ...]], pattern: str) -> tuple[str, ...]:
    """The files on disk at submission that match a pattern, as far as the disk was asked for them then.

    A stage that was laid out late asks for each of its items; what was asked at submission is more general.
    """
    known = lists.get(files_key(pattern))
    if known is not None:
        return known
    asked = (names for key, names in lists.items() if key.startswith(files_key("")))
    return tuple(sorted({name for names in asked for name in names if matches(pattern, name)}))


def targets_of(lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The files that a job is run for, by their names or patterns; empty: for everything that it makes."""
    return lists.get(_TARGETS, ())


def files_key(pattern: str) -> str:
    """The key of the files on disk that match a pattern."""
    return f"files:{pattern}"


def late_key(stage: int, pattern: str, within: int | None) -> str:
    """The key of what appeared for a stage, of all earlier stages or within one; both count from 0."""
    return f"late:{stage}:{'' if within is None else within}:{pattern}"


def makers_key(key: str) -> str:
    """The key of the packages that made what another key lists."""
    return f"makers-of-{key}"


def _parse_csv(text: str, path: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header and the columns; every row must be as long as the header."""
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
        raise ListFault("bad-table", f"line {reader.line_num} of {path!r} is no CSV: {error}") from None
    return rows
