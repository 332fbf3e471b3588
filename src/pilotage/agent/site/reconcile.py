"""Reconciles wanted batch jobs with listed ones, by key: the site agent submits, cancels and records the results."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from pilotage.agent.batch import Busy, Refused, Unknown, element_key
from pilotage.agent.site.state_folder import ASKED, FAILED, GONE, SUBMITTED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pilotage.agent.batch.submitter import Listed, Submitter
    from pilotage.agent.silent_pilots import BatchJobNotice
    from pilotage.agent.site.state_folder import SiteRecords

EARLIER_SECONDS = 30.0
"""How long a submission of an earlier process may take to show up in a listing."""
BUSY_SECONDS = (5.0, 300.0)
CANCEL_SECONDS = 30.0
TOGETHER_MAX = 100
AGAIN_SECONDS = 5.0
UNSPOKEN_OF_MAX = 1000

SUBMIT_PILOT, SUBMIT_ATTEMPT, CANCEL = "submit-pilot", "submit-attempt", "cancel-submitted"


class BatchAccess(Protocol):
    """The part of `Submitter` that is used here."""

    def submit_pilots(self, key: str, count: int = 1) -> list[str]:
        """Submit pilots."""
        ...

    def submit_attempt(self, key: str, *, serves: str, demand: Mapping[str, Any]) -> str:
        """Submit an agent for one attempt."""
        ...

    def cancel(self, *keys: str) -> None:
        """Cancel batch jobs."""
        ...

    def listing(self, expected: Collection[str] = ()) -> dict[str, Any]:
        """List present and ended batch jobs."""
        ...

    def notice(self, unheard: Collection[str]) -> list[BatchJobNotice]:
        """Report held and silent batch jobs."""
        ...


class Reconciler:
    """Submits and cancels as the service wants; its records make it safe to die at any moment."""

    def __init__(self, memory: SiteRecords, *, settle_seconds: float = EARLIER_SECONDS) -> None:
        self._memory = memory
        self._settle_seconds = settle_seconds
        self._busy_until = 0.0
        self._busy_seconds = BUSY_SECONDS[0]
        self._cancelled_at: dict[str, float] = {}
        self.message = ""  # why wanted submissions wait
        self.noticed: list[BatchJobNotice] = []  # in the last listing

    def look(self, submitter: BatchAccess) -> None:
        """Record which batch jobs are present and which have ended; raises `Unknown`."""
        memory = self._memory
        submitted = {key for key, record in memory.records.items() if record.state == SUBMITTED}
        over = {key for key, record in memory.records.items() if record.state in (GONE, ASKED)}
        for key, job in submitter.listing((memory.expected | submitted) - over).items():
            if job.ended:
                memory.note(key, GONE, native_id=job.native_id, reason=job.reason or "ended", text=job.stderr)
            else:
                memory.note(key, SUBMITTED, native_id=job.native_id)
        self.noticed = submitter.notice(memory.unheard)
        memory.save()

    def act(self, submitter: BatchAccess) -> None:
        """Submit and cancel as wanted; raises `Unknown`, and `OSError` if nothing can be recorded."""
        memory = self._memory
        cancelled = [str(each["key"]) for each in memory.effects if each.get("type") == CANCEL]
        self._submit(submitter, [each for each in memory.effects if each.get("type") != CANCEL], {*cancelled})
        due = []
        for key in cancelled:
            record = memory.records.get(key)
            if record is None:
                memory.note(key, GONE, reason="cancelled")
            elif record.state == SUBMITTED and time.monotonic() >= self._cancelled_at.get(key, 0.0):
                due.append(key)
        for start in range(0, len(due), TOGETHER_MAX):
            some = due[start : start + TOGETHER_MAX]
            submitter.cancel(*some)
            self._cancelled_at.update((key, time.monotonic() + CANCEL_SECONDS) for key in some)
        self._cancelled_at = {key: at for key, at in self._cancelled_at.items() if key in cancelled}
        memory.save()

    def _submit(self, submitter: BatchAccess, effects: Sequence[Mapping[str, Any]], cancelled: Collection[str]) -> None:
        wanted = []
        for effect in effects:
            key = str(effect["key"])
            record = self._memory.records.get(key)
            if record is not None and record.state == ASKED and self._memory.age_seconds(key) < self._settle_seconds:
                continue  # it may be queued: wait for a listing
            if record is not None and record.state != ASKED:
                continue
            if key in cancelled:
                self._memory.note(key, GONE, reason="cancelled")
            else:
                wanted.append(effect)
        if not wanted:
            self.message = ""
        if time.monotonic() < self._busy_until:
            return
        try:
            for group in _together(wanted):
                self._start(submitter, group)
        except Busy as busy:
            self.message = f"the batch system accepts no more now: {busy}"
            self._busy_until = time.monotonic() + self._busy_seconds
            self._busy_seconds = min(2.0 * self._busy_seconds, BUSY_SECONDS[1])
        else:
            self._busy_seconds = BUSY_SECONDS[0]

    def _start(self, submitter: BatchAccess, group: Sequence[Mapping[str, Any]]) -> None:
        memory, keys = self._memory, [str(each["key"]) for each in group]
        for key in keys:
            memory.note(key, ASKED)
        memory.save()  # before the submission: our successor must know of it
        first, begun = group[0], time.monotonic()
        try:
            if first.get("type") == SUBMIT_PILOT:
                native_ids = submitter.submit_pilots(keys[0], len(keys))
            else:
                ref = first["ref"]
                serves = f"{ref['job']}:{ref['package']}:{ref['attempt']}"
                native_ids = [submitter.submit_attempt(keys[0], serves=serves, demand=first.get("demand") or {})]
        except Refused as refused:
            seconds = (time.monotonic() - begun) / len(keys)
            for key in keys:
                memory.note(key, FAILED, reason=refused.reason, text=str(refused), seconds=seconds)
        except Busy:
            for key in keys:  # nothing was queued
                del memory.records[key]
            memory.save()
            raise
        else:
            seconds = (time.monotonic() - begun) / max(1, len(native_ids))  # one call submitted all of them
            for key, native_id in zip(keys, native_ids):  # noqa: B905 # may be fewer; Python 3.8 has no `strict`
                memory.note(key, SUBMITTED, native_id=native_id, seconds=seconds)
        memory.save()


def _together(effects: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Groups pilots with consecutive keys; everything else stays alone."""
    groups: list[list[Mapping[str, Any]]] = []
    for effect in effects:
        last = groups[-1] if groups else []
        if (
            last
            and len(last) < TOGETHER_MAX
            and effect.get("type") == last[-1].get("type") == SUBMIT_PILOT
            and element_key(str(last[-1]["key"]), 1) == effect["key"]
        ):
            last.append(effect)
        else:
            groups.append([effect])
    return groups


class Reports:
    """Reports to the service: everything known that it wants or expects, without repeating it at once."""

    def __init__(self, memory: SiteRecords, site: str) -> None:
        self._memory = memory
        self._site = site
        self._again_at: dict[tuple[str, str], float] = {}

    def due(self) -> list[dict[str, Any]]:
        """The reports to send now."""
        memory, now = self._memory, time.monotonic()
        asked = {str(each["key"]) for each in memory.effects if each.get("type") != CANCEL}
        cancelled = {str(each["key"]) for each in memory.effects if each.get("type") == CANCEL}
        again_at_by_key: dict[tuple[str, str], float] = {}
        reports = []
        for key, record in memory.records.items():
            report: dict[str, Any] = {"site": self._site, "key": key}
            if record.state == SUBMITTED and key in asked:
                report.update(report="submitted", native_id=record.native_id)
            elif record.state == FAILED and key in asked:
                report.update({"report": "submission-failed", "reason": record.reason, "message": record.text})
            elif record.state == GONE and (key in asked or key in cancelled or key in memory.expected):
                report.update({"report": "gone", "reason": record.reason, "stderr": record.text})
            else:
                continue
            if record.seconds and record.state in (SUBMITTED, FAILED):
                report["seconds"] = record.seconds
            again_at = self._again_at.get((key, record.state), 0.0)
            if now >= again_at:
                reports.append(report)
                again_at = now + AGAIN_SECONDS
            again_at_by_key[key, record.state] = again_at
        self._again_at = again_at_by_key
        return reports

    def unspoken_of(self) -> list[str]:
        """Batch jobs that the service neither wants nor expects: it may want to cancel them."""
        records = self._memory.records.items()
        return [key for key, record in records if record.state == SUBMITTED and record.absent_at][:UNSPOKEN_OF_MAX]

    def forget(self) -> None:
        """Report everything again: the last message was lost, or another service listens now."""
        self._again_at.clear()


# The batch systems with jobs of ours: the one that the site's entry names, and those that it named before.
#
# Jobs submitted before the entry changed are listed and cancelled there as long as any is left. A former batch system
# that does not answer delays nothing: it is asked at growing intervals.

LOOK_AGAIN_SECONDS = (10.0, 600.0)


class _Former:
    """A batch system that the site's entry named before."""

    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter
        self.again_at = -math.inf
        self.pause_seconds = LOOK_AGAIN_SECONDS[0]


class SiteSubmitters:
    """Submits to the batch system of the entry; lists and cancels also at former ones. See `Submitter`."""

    def __init__(
        self,
        current: Submitter,
        *,
        memory: SiteRecords,
        others: Mapping[str, Callable[[], Submitter]],
        say: Callable[[str], None],
    ) -> None:
        """Take the submitter of the entry's system, and for every other known system a function that makes one."""
        self._current = current
        self._memory = memory
        self._others = others
        self._say = say
        self._formers: dict[str, _Former] = {}

    def submit_pilots(self, key: str, count: int = 1) -> list[str]:
        """Submit pilots to the entry's system."""
        return self._current.submit_pilots(key, count)

    def submit_attempt(self, key: str, *, serves: str, demand: Mapping[str, Any]) -> str:
        """Submit an agent for one attempt to the entry's system."""
        return self._current.submit_attempt(key, serves=serves, demand=demand)

    def cancel(self, *keys: str) -> None:
        """Cancel batch jobs, each where it was submitted. Raises `Unknown`."""
        elsewhere = self._elsewhere()
        for name, submitter in self._due():
            some = [key for key in keys if elsewhere.get(key) == name]
            if some:
                with self._tried(name):
                    submitter.cancel(*some)
        here = [key for key in keys if key not in elsewhere]
        if here:
            self._current.cancel(*here)

    def listing(self, expected: Collection[str] = ()) -> dict[str, Listed]:
        """List present and ended batch jobs. Raises `Unknown` if the entry's own system does not answer."""
        elsewhere = self._elsewhere()
        for name in {*elsewhere.values()} - self._formers.keys():
            self._formers[name] = _Former(self._others[name]())
        found: dict[str, Listed] = {}
        for name, submitter in self._due():
            with self._tried(name):
                listed = submitter.listing([key for key in expected if elsewhere.get(key) == name])
                found.update((key, job) for key, job in listed.items() if elsewhere.get(key) == name)
        found.update(self._current.listing([key for key in expected if key not in elsewhere]))
        return found

    def notice(self, unheard: Collection[str]) -> list[BatchJobNotice]:
        """Report held and silent batch jobs."""
        elsewhere = self._elsewhere()
        return self._current.notice([key for key in unheard if key not in elsewhere])

    def _elsewhere(self) -> dict[str, str]:
        """Unfinished batch jobs at former systems: the name of the system by key."""
        return {
            key: record.scheduler
            for key, record in self._memory.records.items()
            if record.state == SUBMITTED and record.scheduler in self._others
        }

    def _due(self) -> list[tuple[str, Submitter]]:
        """Former systems with unfinished batch jobs that are due to be asked."""
        left, now = {*self._elsewhere().values()}, time.monotonic()
        return [
            (name, former.submitter)
            for name, former in self._formers.items()
            if name in left and now >= former.again_at
        ]

    @contextmanager
    def _tried(self, name: str) -> Iterator[None]:
        """Call a former system; log an error and back off if it does not answer."""
        former = self._formers[name]
        try:
            yield
        except Unknown as unknown:
            former.again_at = time.monotonic() + former.pause_seconds
            former.pause_seconds = min(2.0 * former.pause_seconds, LOOK_AGAIN_SECONDS[1])
            self._say(f"{name}, the batch system of an earlier entry, has jobs of ours but does not answer: {unknown}")
        else:
            former.pause_seconds = LOOK_AGAIN_SECONDS[0]
