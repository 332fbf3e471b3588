"""Checks early starts: beside one running attempt of each missing producer, at its site, and granted only after these attempts."""

from __future__ import annotations

from typing import NoReturn

from pilotage.model.events import payloads
from pilotage.model.jobs.graph import EdgeKind
from pilotage.simulator.checkers.records import AttemptTrace, PackageTrace, Record

EARLY = "early"
_AWAITED = int(EdgeKind.AWAITED)


class EarlyStarts:
    """Checks the attempts that read what others still write."""

    def __init__(self, record: Record) -> None:
        """Share the record of the other checkers."""
        self._record = record

    def on_created(self, package: PackageTrace, attempt: AttemptTrace, data: payloads.AttemptCreated) -> None:
        """An attempt was recorded: what it reads early is being made at its site, by one attempt, and nothing else is missing."""
        job = package.job
        attempt.early = {each.package: each.attempt for each in data.early}
        if data.replica:
            self._check_unread(package, attempt)
        may_grow = set()
        for number, kinds in job.producers(package.number) if package.number is not None else ():
            producer, name = job.by_number.get(number), job.name_of(number)
            if not kinds & _AWAITED:
                may_grow.add(name)
            if producer is not None and (producer.dropped or producer.granted):
                if name in attempt.early:
                    self._fail(package, f"attempt {attempt.number} started beside {name}, which was over")
            elif name not in attempt.early:
                self._fail(package, f"attempt {attempt.number} was created before its producer {name} was granted")
        for name, tried in attempt.early.items():
            producer = job.packages.get(name)
            if name not in may_grow or producer is None:
                self._fail(package, f"attempt {attempt.number} started beside {name}, which it must wait for")
            self._check_running(package, attempt, producer, tried)

    def _check_running(self, package: PackageTrace, attempt: AttemptTrace, producer: PackageTrace, tried: int) -> None:
        ended = self._record.ended_pilots
        live = [each for each in producer.attempts.values() if producer.is_live(each, ended)]
        found = producer.attempts.get(tried)
        beside = f"attempt {attempt.number} started beside attempt {tried} of {producer.place}"
        if found is None or found not in live or not found.leased or not found.applying:
            self._fail(package, f"{beside}, which did not run")
        if len(live) > 1:
            self._fail(package, f"{beside}, which was not its only one")
        if found.site != attempt.site:
            self._fail(package, f"{beside} at another site: {attempt.site}, and not {found.site}")

    def _check_unread(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        ended = self._record.ended_pilots
        for reader in package.job.packages.values():
            for each in reader.attempts.values():
                if package.place in each.early and reader.is_live(each, ended):
                    message = f"attempt {attempt.number} is a replica, and {reader.place} reads from attempt {each.early[package.place]}"
                    self._fail(package, message)

    def on_granted(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """An attempt was granted: so were those that it read from."""
        for name, tried in attempt.early.items():
            producer = package.job.packages.get(name)
            if producer is None or producer.granted != tried:
                granted = producer.granted if producer is not None else 0
                message = (
                    f"attempt {attempt.number} was granted, which read from attempt {tried} of {name}; "
                    f"{f'attempt {granted}' if granted else 'none'} of it was granted"
                )
                self._fail(package, message)

    def on_discarded(self, package: PackageTrace, lost: payloads.EarlyInput) -> None:
        """What a package has read is said to be void: it was read, and is not the result of its package."""
        read = [each for each in package.attempts.values() if each.epoch == package.epoch]
        if not any(each.early.get(lost.package) == lost.attempt for each in read):
            self._fail(package, f"discarded because of attempt {lost.attempt} of {lost.package}, which it did not read")
        producer = package.job.packages.get(lost.package)
        if producer is None or producer.granted == lost.attempt:
            self._fail(package, f"discarded although attempt {lost.attempt} of {lost.package} was granted")
        source = producer.attempts.get(lost.attempt)
        over = producer.granted or producer.dropped
        if source is not None and not over and producer.is_live(source, self._record.ended_pilots):
            self._fail(package, f"discarded although attempt {lost.attempt} of {lost.package} runs")

    def _fail(self, package: PackageTrace, message: str) -> NoReturn:
        raise self._record.broken(EARLY, message, package)
