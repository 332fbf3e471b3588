"""Rows of packages with a short life: one attempt, which succeeded or has not ended yet.

A life is kept as the values of its events, and encoded as facts when it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pilotage.book.rows.derived_states import DONE, RUNNING
from pilotage.book.rows.registers import Register
from pilotage.book.rows.rows import PackageRow, StoredKey, read_facts
from pilotage.model.states import ExitCodeGasw


class _Life(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The values known from the beginning of a life."""

    attempt: int
    site: str
    activity: str
    pilot: str | None
    lease_seconds: float | None
    remaining_seconds: float | None
    created_at: float
    position: int
    counted_with: tuple[float, float]


class BegunLife(_Life, frozen=True, array_like=True, gc=False):
    """A life that has begun."""

    seen: int  # this and the following: the key of its registers
    source_rank: int
    n: int
    stream: str


class EndedLife(_Life, frozen=True, array_like=True, gc=False):
    """A life whose attempt has ended and was granted."""

    node: str | None
    is_staged: bool
    finished_at: float
    finished_position: int
    granted_at: float
    granted_position: int
    exit_status: int | None = None
    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None
    cpu_seconds: float | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


ShortKey = tuple[int, int, int, int]
"""The package's job_id, stage, line and number."""
ShortRow = tuple[int, int, int, int, str, str, str]
"""A stored package: its job_id, stage, line and number, its state and site, and the text of its facts."""


# These have only the fields that such a package can have, in the order of `PackageFacts`, so that the stored text is the
# same.


class _Attempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Its one attempt: a subset of `AttemptFacts`."""

    site: str
    pilot: str | None = None
    node: str | None = None
    lease_seconds: float | None = None
    remaining_seconds: float | None = None
    created_at: float = 0.0
    staged_at: float | None = None
    staged_position: int | None = None
    finished_at: float | None = None
    finished_position: int | None = None
    granted_at: float | None = None
    exit_code: str | None = None
    exit_status: int | None = None
    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None
    cpu_seconds: float | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    keys: dict[int, StoredKey | int] = {}


class _Facts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The package: a subset of `PackageFacts`."""

    state: str
    activity: str
    site: str
    node: str | None = None
    attempt: int = 0
    exit_code: str | None = None
    started: int = 0
    shaped: int = 0
    ready_at: float = 0.0
    running_at: float = 0.0
    done_at: float | None = None
    entered_at: float = 0.0
    updated_at: float = 0.0
    counted_with: tuple[float, float] | None = None
    attempts: dict[int, _Attempt] = {}
    positions: list[int] = []


_encode_into = msgspec.json.Encoder().encode_into
_SUCCESS = ExitCodeGasw.SUCCESS.value
_CREATED, _PILOT = Register.CREATED, Register.PILOT


def begun_rows(lives: Iterable[tuple[ShortKey, BegunLife]]) -> list[ShortRow]:
    """The rows of lives that have only begun."""
    rows: list[ShortRow] = []
    buffer, encode_into, runs = bytearray(4096), _encode_into, RUNNING
    for (job_id, stage, line, place), begun in lives:
        site, pilot, created, number = begun.site, begun.pilot, begun.created_at, begun.attempt
        key = (1, begun.seen, begun.source_rank, begun.n, begun.stream)
        attempt = _Attempt(
            site, pilot, None, begun.lease_seconds, begun.remaining_seconds, created,
            keys={_CREATED: key} if pilot is None else {_CREATED: key, _PILOT: _CREATED},
        )  # fmt: skip
        facts = _Facts(
            runs, begun.activity, site, None, number, None, 1, 1, created, created, None, created, created,
            begun.counted_with, {number: attempt}, [begun.position],
        )  # fmt: skip
        encode_into(facts, buffer)
        rows.append((job_id, stage, line, place, runs, site, buffer.decode()))
    return rows


def ended_rows(lives: Iterable[tuple[ShortKey, EndedLife]]) -> list[ShortRow]:
    """The rows of lives that have ended, without the keys of their attempts."""
    rows: list[ShortRow] = []
    buffer, encode_into, done = bytearray(4096), _encode_into, DONE
    for (job_id, stage, line, place), ended in lives:
        node, finished, position, granted = ended.node, ended.finished_at, ended.finished_position, ended.granted_at
        site, created, number = ended.site, ended.created_at, ended.attempt
        staged_at, staged_position = (finished, position) if ended.is_staged else (None, None)
        updated = granted if granted >= finished and granted >= created else max(created, finished)
        attempt = _Attempt(
            site, ended.pilot, node, ended.lease_seconds, ended.remaining_seconds, created, staged_at, staged_position,
            finished, position, granted, _SUCCESS, ended.exit_status, ended.peak_memory_bytes,
            ended.peak_memory_below_bytes, ended.cpu_seconds, ended.cpu_user_seconds, ended.cpu_system_seconds,
            ended.read_bytes, ended.written_bytes,
        )  # fmt: skip
        facts = _Facts(
            done, ended.activity, site, node, number, _SUCCESS, 1, 1, created, created, granted, granted,
            updated, ended.counted_with, {number: attempt},
            [ended.position, position, ended.granted_position],
        )  # fmt: skip
        encode_into(facts, buffer)
        rows.append((job_id, stage, line, place, done, site, buffer.decode()))
    return rows


def text_of(life: BegunLife | EndedLife) -> str:
    """The encoded facts of a life."""
    here = (0, 0, 0, 0)
    [row] = ended_rows([(here, life)]) if isinstance(life, EndedLife) else begun_rows([(here, life)])
    return row[-1]


def whole_row(key: ShortKey, life: BegunLife | EndedLife) -> PackageRow:
    """A life as an ordinary row."""
    facts = read_facts(text_of(life))
    assert facts.site is not None
    return PackageRow(*key, facts, stored=(facts.state, facts.site))


# Short lives for statistics: all those of one batch at once, since they are never corrected.

Group = tuple[str, str]
"""A site and an activity."""


class Lives:
    """Short lives of one job in one batch, in columns: when they began and ended, and in which group.

    Each life begins with a lease, so that it enters READY and RUNNING at once, and is DONE when it is granted.
    """

    __slots__ = ("began", "began_in", "finished", "granted", "granted_in", "granted_since", "groups")

    def __init__(self, began: Sequence[BegunLife | EndedLife], granted: Sequence[EndedLife]) -> None:
        """Take those that began and those that were granted in this batch; some may be in both."""
        self.groups: list[Group] = []
        numbers = _Numbers(self.groups)
        self.began = [life.created_at for life in began]
        self.began_in = [numbers[life.activity][life.site] for life in began]  # their groups
        self.finished = [life.finished_at for life in granted]  # end times of granted lives,
        self.granted = [life.granted_at for life in granted]  # when they were granted,
        self.granted_in = [numbers[life.activity][life.site] for life in granted]  # their groups,
        self.granted_since = [life.created_at for life in granted]  # and when they had begun


class _Numbers(dict[str, "_NumbersOfSites"]):
    """The number of each group, by activity and site; a new group gets the next number."""

    def __init__(self, groups: list[Group]) -> None:
        super().__init__()
        self._groups = groups

    def __missing__(self, activity: str) -> _NumbersOfSites:
        found = self[activity] = _NumbersOfSites(self._groups, activity)
        return found


class _NumbersOfSites(dict[str, int]):
    def __init__(self, groups: list[Group], activity: str) -> None:
        super().__init__()
        self._groups = groups
        self._activity = activity

    def __missing__(self, site: str) -> int:
        number = self[site] = len(self._groups)
        self._groups.append((site, self._activity))
        return number
