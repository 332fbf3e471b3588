"""Tables in CSV that forecasts start from; whatever is wrong in one is told with its line."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pilotage.forecast.conditioning import ObservedPilots
from pilotage.forecast.steps import Floats
from pilotage.model.errors import PilotageError, near_name

SECONDS_MAX = 1e9
"""More than thirty years: whoever waits longer gave another unit."""
PILOTS_MAX = 1_000_000
COLUMNS_MAX = 100
CELL_CHARACTERS_MAX = 200
LATENCIES_MIN = 2
STANDARD_INPUT = "-"


@dataclass(frozen=True, eq=False)
class Latencies:
    """Measured latencies: infinite for a fault; the submission's part of each, where the file tells it.

    The submission's part is not a number for a fault whose submission is not known. The latency is not a number for a
    pilot that was still queued after `censored_at_seconds`, which is not a number for all others, and None where all are known.
    """

    file: str
    latencies_seconds: Floats
    submissions_seconds: Floats | None
    censored_at_seconds: Floats | None

    @property
    def observations(self) -> int:
        """How many pilots were observed."""
        return len(self.latencies_seconds)


class Run(NamedTuple):
    """A run of an application: how many pilots it had, how long it took, and the file of its own latencies, if any."""

    line: int
    pilots: int
    makespan_seconds: float
    latencies: str


class FinishedRun(NamedTuple):
    """A run of a campaign: how many pilots and packages it had, and how long it took."""

    campaign: str
    pilots: int
    packages: int
    makespan_seconds: float


@dataclass(frozen=True, eq=False)
class Measured:
    """How many pilots were available at some times."""

    at_seconds: Floats
    available: Floats

    def kept(self, rows: NDArray[np.int64]) -> Measured:
        """Some of the samples."""
        return Measured(self.at_seconds[rows], self.available[rows])


def read_latencies(file: str) -> Latencies:
    """Latencies of pilots: `latency_seconds` (empty or `inf`: a fault) and, if there, the part of the submission.

    `censored_at_seconds` says after which time a pilot without latency was still queued.
    Raises `PilotageError` that names the line.
    """
    optional = ("submission_seconds", "censored_at_seconds")
    table = _Table(file, required=("latency_seconds",), optional=optional)
    latencies: list[float] = []
    submissions: list[float] = []
    censored: list[float] = []
    lines: list[int] = []
    for row in table.rows():
        censored.append(row.seconds("censored_at_seconds", empty=math.nan))
        queued = not math.isnan(censored[-1])
        if queued and row.text("latency_seconds"):
            raise row.wrong(
                "has both a latency and the time after which the pilot was still queued", expected="one of them"
            )
        latencies.append(row.seconds("latency_seconds", empty=math.nan if queued else math.inf, infinite=True))
        lines.append(row.line)
        if "submission_seconds" in table.columns:
            # A pilot may have failed before it was submitted.
            is_fault = math.isinf(latencies[-1])
            submission = row.seconds("submission_seconds", empty=math.nan if is_fault else None)
            whole = censored[-1] if queued else latencies[-1]
            if submission > whole:
                raise row.wrong(
                    "the submission takes longer than the whole latency",
                    expected=f"at most {whole:g}",
                    got=f"{submission:g}",
                )
            submissions.append(submission)
    _refuse_too_few(file, lines)
    if not any(map(math.isfinite, latencies)):
        raise PilotageError(
            f"none of {len(lines):,} pilots started: every row from here to line {lines[-1]} is a fault or still queued",
            subject=f"{file}:{lines[0]}",
            next_step="forecast from pilots of which some started",
        )
    known = all(map(math.isnan, censored))
    return Latencies(
        file,
        np.array(latencies),
        np.array(submissions) if submissions else None,
        None if known else np.array(censored),
    )


def read_runs(file: str) -> list[Run]:
    """Runs of an application: `n`, `makespan_seconds` and, if there, `latencies`: the file of that run."""
    table = _Table(file, required=("n", "makespan_seconds"), optional=("latencies",))
    runs = [
        Run(row.line, row.count("n"), row.seconds("makespan_seconds", above=0.0), row.text("latencies"))
        for row in table.rows()
    ]
    if not runs:
        raise PilotageError("has no run", subject=f"{file}:1", expected="a row for each run below the header")
    return runs


def read_finished_runs(file: str) -> list[FinishedRun]:
    """Past runs: `n`, `packages`, `makespan_seconds` and, if there, `campaign`: runs that belong together."""
    table = _Table(file, required=("n", "packages", "makespan_seconds"), optional=("campaign",))
    runs = [
        FinishedRun(
            row.text("campaign"), row.count("n"), row.count("packages"), row.seconds("makespan_seconds", above=0.0)
        )
        for row in table.rows()
    ]
    if not runs:
        raise PilotageError("has no run", subject=f"{file}:1", expected="a row for each run below the header")
    return runs


def read_measured(file: str) -> Measured:
    """Measured pilots over time: `t` and `n_available`."""
    table = _Table(file, required=("t", "n_available"))
    rows = [(row.seconds("t"), row.number("n_available", most=PILOTS_MAX)) for row in table.rows()]
    if not rows:
        raise PilotageError("has no sample", subject=f"{file}:1", expected="a row for each time below the header")
    at, available = np.array(rows).T
    return Measured(at, available)


def read_observed(file: str, *, now_seconds: float) -> ObservedPilots:
    """Pilots of today: `submitted_seconds` and `started_seconds`, empty where one is still queued.

    What is after `now_seconds` is not known yet: a later start is no start.
    """
    table = _Table(file, required=("submitted_seconds", "started_seconds"))
    rows = []
    for row in table.rows():
        submitted = row.seconds("submitted_seconds")
        started = row.seconds("started_seconds", empty=math.inf)
        if started < submitted:
            raise row.wrong(
                "the pilot started before it was submitted", expected=f"from {submitted:g} on", got=f"{started:g}"
            )
        rows.append((submitted, started))
    if not rows:
        raise PilotageError("has no pilot", subject=f"{file}:1", expected="a row for each pilot below the header")
    submitted_at, started_at = np.array(rows).T
    return ObservedPilots(now_seconds, submitted_at, started_at)


def _refuse_too_few(file: str, lines: Sequence[int]) -> None:
    if len(lines) < LATENCIES_MIN:
        raise PilotageError(
            "has no latency" if not lines else "has one latency only",
            subject=f"{file}:{lines[-1] if lines else 1}",
            expected=f"at least {LATENCIES_MIN} rows below the header",
        )


class _Table:
    """The rows of a CSV file under the columns of its header."""

    def __init__(self, file: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        self.file = file
        self._lines = csv.reader(io.StringIO(_text_of(file), newline=""), strict=True)
        header = next(self._read(), None)
        if not header or not any(header):
            raise self.wrong(1, "is empty", expected=f"a header with {' and '.join(required)}")
        if len(header) > COLUMNS_MAX:
            raise self.wrong(1, f"has {len(header):,} columns", expected=f"at most {COLUMNS_MAX}")
        names = [name.strip() for name in header]
        self.columns = {name: names.index(name) for name in (*required, *optional) if name in names}
        self._width = len(names)
        for name in self.columns:
            if names.count(name) > 1:
                raise self.wrong(1, f"has the column {name} twice")
        self._refuse_unknown(names, required=required, optional=optional)

    def _refuse_unknown(self, names: Sequence[str], *, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        """Other columns are left alone, but for one whose name is nearly that of a column that would count."""
        known = (*required, *optional)
        for name in names:
            meant = near_name(name[:CELL_CHARACTERS_MAX], [each for each in known if each not in names], cutoff=0.8)
            if meant:
                raise self.wrong(1, f"has no column {meant}", got=shown(name), next_step=f"did you mean {meant!r}?")
        for name in required:
            if name not in names:
                listed = ", ".join(shown(each) for each in names[:5]) + (", …" if len(names) > 5 else "")
                raise self.wrong(1, f"has no column {name}", got=listed)

    def wrong(self, line: int, what: str, *, expected: str = "", got: str = "", next_step: str = "") -> PilotageError:
        """An error that names a line."""
        return PilotageError(what, subject=f"{self.file}:{line}", expected=expected, got=got, next_step=next_step)

    def rows(self) -> Iterator[_Row]:
        """Every row that is not blank. In a table of one column a blank line is an empty cell, but at the end."""
        blank: list[int] = []
        for cells in self._read():
            line = self._lines.line_num
            if not cells:
                blank.append(line)
                continue
            if self._width == 1:
                yield from (_Row(self, each, [""]) for each in blank)
            blank.clear()
            if len(cells) != self._width:
                raise self.wrong(line, f"has {len(cells):,} columns", expected=f"{self._width}, as the header")
            yield _Row(self, line, cells)

    def _read(self) -> Iterator[list[str]]:
        try:
            yield from self._lines
        except csv.Error as error:
            raise self.wrong(max(1, self._lines.line_num), f"is no CSV: {error}") from None


class _Row:
    """One row, and what its cells mean."""

    def __init__(self, table: _Table, line: int, cells: Sequence[str]) -> None:
        self.line = line
        self._table = table
        self._cells = cells

    def text(self, name: str) -> str:
        """The text of a cell; empty where there is no such column."""
        place = self._table.columns.get(name)
        return "" if place is None else self._cells[place].strip()

    def number(self, name: str, *, most: float) -> float:
        """A number from 0 to a bound."""
        text = self.text(name)
        try:
            found = float(text if "_" not in text else "no number")
        except ValueError:
            raise self.wrong(f"{name} is no number", got=shown(text) if text else "nothing") from None
        if not 0.0 <= found <= most:
            raise self.wrong(f"{name} is out of range", expected=f"0 to {most:,.0f}", got=shown(text))
        return found

    def seconds(
        self, name: str, *, empty: float | None = None, infinite: bool = False, above: float | None = None
    ) -> float:
        """A time; `empty` is what an empty cell means, `infinite` allows for `inf`, and `above` excludes a bound."""
        text = self.text(name)
        if not text and empty is not None:
            return empty
        if infinite and text.lower().lstrip("+") in ("inf", "infinity"):
            return math.inf
        found = self.number(name, most=SECONDS_MAX)
        if above is not None and not found > above:
            raise self.wrong(f"{name} is out of range", expected=f"more than {above:g}", got=shown(text))
        return found

    def count(self, name: str) -> int:
        """A whole number from 1 on."""
        found = self.number(name, most=PILOTS_MAX)
        if found < 1 or found != int(found):
            raise self.wrong(f"{name} is no count", expected="a whole number from 1 on", got=shown(self.text(name)))
        return int(found)

    def wrong(self, what: str, *, expected: str = "", got: str = "") -> PilotageError:
        """An error that names this line."""
        return self._table.wrong(self.line, what, expected=expected, got=got)


def shown(text: str) -> str:
    """A cell as an error quotes it."""
    return repr(text if len(text) <= CELL_CHARACTERS_MAX else f"{text[:CELL_CHARACTERS_MAX]}…")


def _text_of(file: str) -> str:
    data = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PilotageError("is no text in UTF-8", subject=f"{file}:{line}") from None
