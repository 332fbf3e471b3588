"""Matches subscriptions with the changes of a batch.

The earlier state of a package is known. Earlier values of other attributes are not, once the batch is written: a
subscription keeps digests of the values that it last reported, for the packages that it reported. The first value of
such an attribute counts as a change, unless it is missing, zero or false.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pilotage.book.fold.facts import read_tags, tags_of
from pilotage.book.fold.join import Change, Joined
from pilotage.book.query import ATTRIBUTES, EVERYTHING, STATES, Kind, Operator, Query, Target, matches, parse, resolve
from pilotage.book.query.attributes import TAG, TAG_PREFIX, find_attribute
from pilotage.book.rows.derived_states import default_state
from pilotage.book.rows.ledger import PackageKey
from pilotage.book.rows.rows import JobRow, PackageFacts
from pilotage.book.rows.tables import NoticeRow, WatchedRow
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.jobs.layout import PackageId

# The attributes of jobs and packages, as queries see them.


def job_attributes(job: JobRow) -> dict[str, Any]:
    """The attributes of a job."""
    return _shared(job) | {
        "state": job.state,
        "held": bool(job.held),
        "cause": job.cause,
        "entered": job.entered_at,
        "updated": job.updated_at,
        "tags": tags_of(read_tags(job.tags)) if job.tags not in ("", "{}") else {},
    }


def package_attributes(job: JobRow, place: PackageId, facts: PackageFacts) -> dict[str, Any]:
    """The attributes of a package, with or without events."""
    shown = facts.attempts.get(facts.attempt) if facts.attempt is not None else None
    return _shared(job) | {
        "package": place.dotted,
        "state": facts.state,
        "site": facts.site,
        "node": facts.node,
        "pilot": shown.pilot if shown is not None else None,
        "exit_code": facts.exit_code,
        "reason": facts.reason,
        "cause": facts.cause,
        "activity": facts.activity or None,
        "entered": facts.entered_at,
        "updated": facts.updated_at,
        "attempts": len(facts.attempts),
        "held": bool(facts.held),
        "dropped": bool(facts.dropped),
        "tags": tags_of(facts.tags),
    }


def _shared(job: JobRow) -> dict[str, Any]:
    return {
        "job": job.job,
        "name": job.name,
        "parent": job.parent,
        "owner": job.owner,
        "submitted": job.submitted_at,
    }


ATTRIBUTES_MAX = 20
STATE = "state"
TYPES = {
    (Target.PACKAGES, True): "io.pilotage.package.state",
    (Target.PACKAGES, False): "io.pilotage.package.changed",
    (Target.JOBS, True): "io.pilotage.job.state",
    (Target.JOBS, False): "io.pilotage.job.changed",
}
"""The types of notices: about packages or jobs, and about the state or another attribute."""

_TEXT_MAX = 40  # a longer value is stored as a digest
_MESSAGE_MAX = 1000
_encode = msgspec.json.Encoder().encode
_watched_decoder = msgspec.json.Decoder(dict[str, Any])


class SubscriptionError(PilotageError):
    """The subscription is not possible; the message names the field."""


class ChangeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A checked subscription: entering one of the states, or a change of one of the attributes."""

    target: Target
    query: Query
    states: frozenset[str]
    attributes: tuple[str, ...]


class ActiveSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """An active subscription; `may_read` tells which jobs its owner may read."""

    subscription: str
    wanted: ChangeFilter
    expires_at: float
    may_read: Callable[[JobRow], bool]


def watchable(target: Target) -> list[str]:
    """The attributes that can be watched; a package's job attributes change with the job."""
    return [
        each.name
        for each in ATTRIBUTES.values()
        if target in each.targets
        and each.kind not in (Kind.TIME, Kind.JOB, Kind.PACKAGE)
        and not (each.through_job and target is Target.PACKAGES)
    ]


def wanted(*, target: str, query: str, states: Sequence[str], attributes: Sequence[str]) -> ChangeFilter:
    """Check a subscription; without states and attributes, every change of state counts."""
    if target not in (Target.PACKAGES, Target.JOBS):
        raise SubscriptionError("unknown `target`", expected="packages or jobs", got=repr(target[:40]))
    about = Target(target)
    names = tuple(dict.fromkeys(_attribute(name, about) for name in attributes[: ATTRIBUTES_MAX + 1]))
    if len(attributes) > ATTRIBUTES_MAX:
        raise SubscriptionError("too many attributes", expected=f"at most {ATTRIBUTES_MAX}", got=str(len(attributes)))
    entered = frozenset(_state(state) for state in states[: len(STATES) + 1])
    if not entered and (not names or STATE in names):
        entered = frozenset(STATES)
    text = query.strip()
    return ChangeFilter(
        target=about,
        query=parse(text, target=about) if text else EVERYTHING,
        states=entered,
        attributes=tuple(name for name in names if name != STATE),
    )


def _state(text: str) -> str:
    if text.upper() not in STATES:
        raise SubscriptionError(
            f"unknown state {text[:40]!r}", subject="states", next_step=did_you_mean(text[:40].upper(), STATES)
        )
    return text.upper()


def _attribute(text: str, target: Target) -> str:
    known = watchable(target)
    if text.startswith(TAG_PREFIX) and 0 < len(text) - len(TAG_PREFIX) <= 128 and text.isprintable():
        return text
    found = find_attribute(text)
    if found is None or found.name not in known or found.name == TAG:
        raise SubscriptionError(
            f"changes of {text[:40]!r} cannot be watched",
            subject="attributes",
            next_step=did_you_mean(text[:40].lower(), [f"{TAG}.NAME" if name == TAG else name for name in known]),
        )
    return found.name


def attributes_of(change: Change) -> dict[str, Any]:
    """The attributes of a changed job or package."""
    package = change.package
    if package is None:
        return job_attributes(change.job)
    return package_attributes(change.job, PackageId(package.stage, package.line, package.number), package.facts)


class _Candidate(msgspec.Struct, frozen=True):
    """A change that matches a query, and whether it entered a wanted state."""

    live: ActiveSubscription
    change: Change
    row: dict[str, Any]
    before: str | None
    entered: bool


class Matching:
    """Active subscriptions, indexed so that a batch is compared with few of them."""

    def __init__(self, subscriptions: Iterable[ActiveSubscription]) -> None:
        """Index subscriptions by the jobs they name; the others see every change."""
        self._everywhere: list[ActiveSubscription] = []
        self._by_job: dict[str, list[ActiveSubscription]] = {}
        for live in subscriptions:
            jobs = _named_jobs(live.wanted.query)
            if jobs is None:
                self._everywhere.append(live)
            for job in jobs or ():
                self._by_job.setdefault(job, []).append(live)

    def __bool__(self) -> bool:
        """Tell whether there are any subscriptions."""
        return bool(self._everywhere or self._by_job)

    def notices(
        self,
        joined: Joined,
        *,
        find_watched: Callable[[list[tuple[str, *PackageKey]]], Iterable[WatchedRow]],
    ) -> tuple[list[NoticeRow], list[WatchedRow]]:
        """The notices of a batch, and the reported values of watched attributes.

        `find_watched` returns the existing rows of some subscriptions and packages.
        """
        position, now = joined.receipt.position, joined.changes.received
        candidates = list(self._candidates(joined, now=now))
        watched = [(each.live.subscription, *_key(each.change)) for each in candidates if each.live.wanted.attributes]
        before = {_watched_key(row): row for row in find_watched(watched)} if watched else {}
        notices: list[NoticeRow] = []
        remembered: list[WatchedRow] = []
        parts: dict[str, int] = {}
        for each in candidates:
            changed = [STATE] if each.entered else []
            if each.live.wanted.attributes:
                values = {name: _digest(_value(each.row, name)) for name in each.live.wanted.attributes}
                key = (each.live.subscription, *_key(each.change))
                known = _watched_decoder.decode(before[key].told) if key in before else {}
                differing = [name for name, value in values.items() if value != known.get(name)]
                changed += differing
                if differing:
                    remembered.append(_watched_row(key, values))
            if changed:
                part = parts[each.live.subscription] = parts.get(each.live.subscription, 0) + 1
                notices.append(_notice(each, changed, position=position, part=part, now=now))
        return notices, remembered

    def _candidates(self, joined: Joined, *, now: float) -> Iterable[_Candidate]:
        queries: dict[str, Query] = {}
        readable: dict[tuple[str, int], bool] = {}
        for change in joined.moved():
            row: dict[str, Any] | None = None
            state, before = _states(change)
            for live in (*self._by_job.get(change.job.job, ()), *self._everywhere):
                wanted = live.wanted
                if (wanted.target is Target.JOBS) != (change.package is None) or live.expires_at <= now:
                    continue
                entered = state != before and state in wanted.states
                if not entered and not wanted.attributes:
                    continue
                row = attributes_of(change) if row is None else row
                query = queries.get(live.subscription)
                if query is None:
                    query = queries[live.subscription] = resolve(wanted.query, now=now)
                if not matches(query, row):
                    continue
                pair = (live.subscription, change.job.job_id)
                if pair not in readable:
                    readable[pair] = live.may_read(change.job)
                if readable[pair]:
                    yield _Candidate(live, change, row, before, entered)


def _named_jobs(query: Query) -> frozenset[str] | None:
    """The jobs that a query is limited to, or None."""
    for clause in query.clauses:
        if all(one.attribute == "job" and one.operator in (Operator.EQUAL, Operator.IN) for one in clause):
            return frozenset(str(value) for one in clause for value in one.values)
    return None


def _states(change: Change) -> tuple[str, str | None]:
    """The state now and before; a package without events has the state of its job."""
    if change.package is None:
        return change.job.state, change.state_before
    before = change.state_before if change.state_before is not None else default_state(change.job)
    return change.package.facts.state, before


def _key(change: Change) -> PackageKey:
    package = change.package
    if package is None:
        return change.job.job_id, 0, 0, 0
    return package.job_id, package.stage, package.line, package.number


def _watched_key(row: WatchedRow) -> tuple[str, int, int, int, int]:
    return row.subscription, row.job_id, row.stage, row.line, row.number


def _watched_row(key: tuple[str, int, int, int, int], values: Mapping[str, Any]) -> WatchedRow:
    subscription, job_id, stage, line, number = key
    text = _encode(values).decode()
    return WatchedRow(subscription=subscription, job_id=job_id, stage=stage, line=line, number=number, told=text)


def _value(row: Mapping[str, Any], name: str) -> Any:
    return row["tags"].get(name.removeprefix(TAG_PREFIX)) if name.startswith(TAG_PREFIX) else row.get(name)


def _digest(value: Any) -> Any:
    """The stored form of a value; None for missing, zero or false."""
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return "sha256:" + hashlib.sha256(value.encode()).hexdigest()
    return value or None


def _notice(each: _Candidate, changed: list[str], *, position: int, part: int, now: float) -> NoticeRow:
    live, change, row = each.live, each.change, each.row
    data = {name: value for name, value in row.items() if value is not None and name != "tags"}
    data |= {"state_before": each.before, "changed": changed, "position": position}
    if (tags := {name: _value(row, name) for name in live.wanted.attributes if name.startswith(TAG_PREFIX)}) != {}:
        data["tags"] = {name.removeprefix(TAG_PREFIX): value for name, value in tags.items()}
    if change.package is None:
        counts = {name: getattr(change.job, name) for name in ("done", "aborted", "cancelled", "failed")}
        data |= {"epoch": change.job.epoch, "counts": {"packages": change.job.expected, **counts}}
    else:
        facts = change.package.facts
        data["epoch"] = facts.epoch
        details = {"attempt": facts.attempt, "exit_message": (facts.exit_message or "")[:_MESSAGE_MAX] or None}
        data |= {name: value for name, value in details.items() if value is not None}
    time = row["entered"] if each.entered else row["updated"]
    return NoticeRow(
        subscription=live.subscription,
        position=position,
        part=part,
        type=TYPES[live.wanted.target, each.entered],
        job=change.job.job,
        package=row.get("package", ""),
        time=time if time is not None else now,
        data=_encode(data).decode(),
    )
