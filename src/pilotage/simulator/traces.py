"""Other people's traces: the Standard Workload Format, pilots of radical.pilot, and failures of nodes.

A trace is recognised by its first lines. It tells of one site, without its name.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain, islice

from pilotage.model.errors import PilotageError
from pilotage.model.observed import SiteObserved

_HEAD_LINES = 200
_SWF_FIELDS = 18
_LANL_TIME = "%m/%d/%Y %H:%M"
_HOUR = 3600.0
_KNOWN = "the Standard Workload Format, radical.pilot's tables of pilots, units or sessions, LANL's failures, FTA's availability"

Row = Mapping[str, str]


class TraceError(PilotageError):
    """A trace cannot be understood."""


def read_trace(lines: Iterable[str], *, name: str) -> SiteObserved:
    """What a trace tells of its site; raises `TraceError` where it is none that is known, or says nothing."""
    source = iter(lines)
    head = list(islice(source, _HEAD_LINES))
    rest = chain(head, source)
    kind = _kind(head)
    if kind is None:
        raise TraceError("is no trace of a known kind", subject=name, expected=_KNOWN)
    found = SiteObserved()
    try:
        kind(rest, found)
    except _BadLine as fault:
        raise TraceError(f"line {fault.line} cannot be read", subject=name, got=fault.text[:80].strip()) from None
    if not (found.queue_seconds or found.attempts or found.node_hours or found.run_seconds):
        raise TraceError("tells nothing that a world could be made from", subject=name)
    return found


class _BadLine(Exception):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(line)
        self.line = line
        self.text = text


Reader = Callable[[Iterable[str], SiteObserved], None]


def _kind(head: list[str]) -> Reader | None:
    told = [line for line in head if line.strip() and not line.startswith((";", "#"))]
    first = told[0] if told else ""
    columns = {word.strip().strip('"') for word in first.split(",")}
    for marks, reader in _TABLES:
        if marks <= columns:
            return reader
    if len(first.split()) == _SWF_FIELDS and "," not in first:
        return _workload
    if any(line.startswith("# FTA") for line in head) or _is_availability(first):
        return _availability
    return None


# --- the Standard Workload Format: job, submit, wait, run, processors, … status (field 11) ---


def _workload(lines: Iterable[str], found: SiteObserved) -> None:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(";"):
            continue
        words = line.split()
        try:
            wait, run, status = float(words[2]), float(words[3]), int(float(words[10]))
        except (IndexError, ValueError):
            raise _BadLine(number, line) from None
        if run >= 0 and wait >= 0 and status in (0, 1):
            found.queue_seconds.append(wait)
            found.attempts += 1
            if status == 1:
                found.run_seconds.append(run)
            else:
                _count(found, "platform-failure")


# --- radical.pilot, as in the AIMES experiments ---


def _pilots(lines: Iterable[str], found: SiteObserved) -> None:
    for number, row in _rows(lines):
        submitted, active, final = (_number(row, name, number) for name in ("t_submitted", "t_active", "t_final"))
        if submitted is None:
            continue
        found.pilots += 1
        if active is None:
            # Whoever cancels a pilot that still waits learns nothing of how long it would have waited.
            found.dead_pilots += row.get("final_state") == "FAILED"
            continue
        found.queue_seconds.append(max(0.0, active - submitted))
        if final is not None:
            found.node_hours += max(0.0, final - active) / _HOUR
            found.node_failures += row.get("final_state") == "FAILED"


def _units(lines: Iterable[str], found: SiteObserved) -> None:
    for number, row in _rows(lines):
        began, ended = _number(row, "t_exec_start", number), _number(row, "t_exec_end", number)
        if row.get("final_state") not in ("DONE", "FAILED"):
            continue
        tries = max(1, int(_number(row, "n_exec_attempts", number) or 1))
        found.attempts += tries
        failed = tries - (row.get("final_state") == "DONE")
        for _ in range(failed):
            _count(found, "platform-failure")
        if row.get("final_state") == "DONE" and began is not None and ended is not None and tries == 1:
            found.run_seconds.append(max(0.0, ended - began))


def _queues(lines: Iterable[str], found: SiteObserved) -> None:
    """The tables by session or pilot with a column for each state: seconds spent in it."""
    for number, row in _rows(lines):
        waited = _number(row, "P_LRMS_QUEUING", number)
        if waited is not None and waited > 0:
            found.queue_seconds.append(waited)
        done, failed = _number(row, "nunit_done", number), _number(row, "nunit_failed", number)
        if done is not None and failed is not None:
            found.attempts += int(done + failed)
            _count(found, "platform-failure", int(failed))


# --- failures of nodes ---


def _failures(lines: Iterable[str], found: SiteObserved) -> None:
    """LANL's: the rate is that of all systems, each from its first failure to its last."""
    spans: dict[str, tuple[datetime, datetime, int]] = {}
    for number, row in _rows(lines):
        began = row.get("Prob Started", "").strip()
        if not began or not row.get("nodes", "").strip():
            continue  # the file has a few lines with remarks
        try:
            at, nodes = datetime.strptime(began, _LANL_TIME), int(row["nodes"])  # noqa: DTZ007 # no zone is told
        except (KeyError, ValueError):
            raise _BadLine(number, str(dict(row))) from None
        first, last, _ = spans.get(row["System"], (at, at, nodes))
        spans[row["System"]] = (min(first, at), max(last, at), nodes)
        found.node_failures += 1
    found.node_hours += sum((last - first).total_seconds() / _HOUR * nodes for first, last, nodes in spans.values())


def _availability(lines: Iterable[str], found: SiteObserved) -> None:
    """The Failure Trace Archive's: node, name, 0 unavailable or 1 available, from, to."""
    up: dict[str, bool] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if not _is_availability(line):
            raise _BadLine(number, line)
        node, available, begins, ends = words[0], words[2] == "1", float(words[3]), float(words[4])
        if available:
            found.node_hours += max(0.0, ends - begins) / _HOUR
        elif up.get(node):
            found.node_failures += 1
        up[node] = available


def _is_availability(line: str) -> bool:
    words = line.split()
    return len(words) == 5 and words[2] in ("0", "1") and all(_is_number(word) for word in words[3:])


# --- small parts ---


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(lines)
    try:
        for row in reader:
            yield reader.line_num, {name: value or "" for name, value in row.items() if isinstance(name, str)}
    except csv.Error as fault:
        raise _BadLine(reader.line_num, str(fault)) from None


def _number(row: Row, name: str, line: int) -> float | None:
    text = row.get(name, "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise _BadLine(line, f"{name}: {text}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _count(found: SiteObserved, reason: str, count: int = 1) -> None:
    if count:
        found.failures[reason] = found.failures.get(reason, 0) + count


_TABLES: tuple[tuple[frozenset[str], Reader], ...] = (
    (frozenset({"t_submitted", "t_active"}), _pilots),
    (frozenset({"t_exec_start", "t_exec_end"}), _units),
    (frozenset({"P_LRMS_QUEUING"}), _queues),
    (frozenset({"Prob Started", "nodes"}), _failures),
)
