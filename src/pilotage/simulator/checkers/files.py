"""Checks the caches of sites: files come once, stay while they are needed or wanted, fit, and go when nobody wants them.

Known are the durable events, the plans of jobs, and the truth about what is in each cache. A need at a site is a package
that is reserved there or has a live attempt there; a need anywhere is a package that has not ended. Wishes are counted from
the first attempt of a job at a site on: before that it is not certain that the job has touched the file there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pilotage.book.codec import Checked
from pilotage.model.events import file_payloads, payloads
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.file_plan import Wish
from pilotage.simulator.checkers.healing import HEALING
from pilotage.simulator.checkers.outputs import Outputs
from pilotage.simulator.checkers.records import AttemptTrace, JobTrace, PackageTrace, Record, Rules, Violation

FETCHES = "fetches"
SPACE = "space"
NEEDS = "needs"
ARRIVALS = "arrivals"
RETENTION = "retention"
LEFTOVERS = "leftovers"


class _Entry:
    """A file at a site: by the events, and in truth."""

    __slots__ = (
        "fetched",
        "fetched_at",
        "key",
        "known_bytes",
        "locator",
        "outdated",
        "pins",
        "removal",
        "site",
        "size_known",
        "there",
        "there_bytes",
        "there_sha256",
        "vanished",
        "wished",
        "wishes",
    )

    def __init__(self, site: str, locator: str) -> None:
        self.site = site
        self.locator = locator
        self.key = ""  # of the fetch under way
        self.known_bytes = 0  # of the fetch under way
        self.size_known = False  # when its last fetch was ordered
        self.fetched: file_payloads.FetchedFile | None = None
        self.fetched_at = 0.0  # when that was durable
        self.outdated = False  # another site got another content since
        self.removal = ""  # the key of the removal under way
        self.wishes: dict[str, tuple[int, str, Wish]] = {}  # by job: since which position, the owner, and the wish
        self.wished: dict[str, int] = {}  # by owner: the position of the last wish, by the events
        self.pins: dict[str, None] = {}  # by owner
        self.there = ""  # the key of the fetch that really brought it; empty: it is not there
        self.there_bytes = 0
        self.there_sha256 = ""
        self.vanished = False  # it was lost, and not by order

    @property
    def subject(self) -> str:
        return f"{self.site}:{self.locator}"

    @property
    def used_bytes(self) -> int:
        """What it takes of the cache, or will."""
        return self.fetched.size_bytes if self.fetched is not None else self.known_bytes


class Files:
    """Every file at every site, and the outputs in stores."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self.outputs = Outputs(record, rules)
        self._record = record
        self._limits = {site.name: site.cache_bytes for site in rules.sites}
        self._entries: dict[str, dict[str, _Entry]] = {}  # by site and locator
        self._owners: dict[str, str] = {}  # of jobs
        self._released: dict[tuple[str, str], int] = {}  # by owner and locator: the position of the last release
        self._purged: dict[tuple[str, str], None] = {}  # by site and locator: people asked for that
        self._numbers: dict[str, tuple[int, dict[str, int]]] = {}  # by job: packages of the plan, and files by locator

    # --- durable events ----------------------------------------------------------------------------------------------

    def on_written(self, checked: Checked) -> None:
        """Check a durable event, after all earlier ones, and after its attempt and package were noted."""
        event, data = checked.event, checked.data
        if event.site is not None:
            self._on_site_event(event.site, data)
            return
        if isinstance(data, payloads.JobRegistered):
            self._owners[event.job or ""] = data.owner
        elif isinstance(data, payloads.AttemptCreated):
            self._on_created(*self._attempt_of(checked), site=data.site)
        elif isinstance(data, payloads.CommitGranted):
            self._on_granted(self._package_of(checked))
        self.outputs.on_written(checked)

    def _on_site_event(self, site: str, data: payloads.Payload) -> None:
        match data:
            case file_payloads.FetchesOrdered():
                for ordered in data.files:
                    self._on_ordered(self._entry(site, ordered.locator), ordered)
            case file_payloads.FilesFetched():
                for fetched in data.files:
                    self._on_fetched(self._entry(site, fetched.locator), fetched)
            case file_payloads.FetchesFailed():
                for failed in data.files:
                    self._on_failed(self._entry(site, failed.locator), failed)
            case file_payloads.RemovalsOrdered():
                for removal in data.files:
                    self._on_removal(self._entry(site, removal.locator), removal)
            case file_payloads.CachedFilesRemoved():
                for locator in data.locators:
                    self._on_removed(self._entry(site, locator))
            case file_payloads.RetentionSet():
                self._on_retention(site, data.files)
            case _:
                pass

    def _on_created(self, package: PackageTrace, attempt: AttemptTrace, *, site: str) -> None:
        """An attempt begins only where all its files are, by the book, and nobody removes them."""
        for number, locator in self._needed_by(package):
            entry = self._entry(site, locator)
            if entry.fetched is None or entry.removal:
                what = "is being removed" if entry.fetched is not None else "has not arrived"
                message = f"attempt {attempt.number} was created at {site}, where {locator} {what}"
                raise self._record.broken(ARRIVALS, message, package)
            owner, wish = self._owners.get(package.job.name, ""), self._own_wish(package.job, number)
            entry.wishes.setdefault(package.job.name, (self._record.position, owner, wish))

    def _on_granted(self, package: PackageTrace) -> None:
        """A package is done: what its job releases is not wanted any more by the owner."""
        plan = package.job.plan
        for number, locator in self._needed_by(package):
            if plan is not None and plan.files is not None and plan.files.released[number]:
                self._released[self._owners.get(package.job.name, ""), locator] = self._record.position

    def _on_ordered(self, entry: _Entry, ordered: file_payloads.OrderedFetch) -> None:
        if ordered.source is not None:
            there = self._entry(ordered.source, ordered.locator)
            if there.fetched is None or there.removal:
                message = f"ordered as {ordered.key} from the cache of {ordered.source}, which does not have it"
                raise self._broken(HEALING, message, entry)
        if entry.key:
            raise self._broken(FETCHES, f"ordered as {ordered.key}, while {entry.key} was under way", entry)
        if entry.fetched is not None and not entry.removal:
            raise self._broken(FETCHES, f"ordered as {ordered.key}, and it was there since {entry.fetched.key}", entry)
        entry.fetched = None
        entry.key, entry.known_bytes = ordered.key, ordered.size_bytes or 0
        entry.size_known = bool(entry.known_bytes)
        if ordered.wish is not None:
            entry.wished[ordered.owner] = self._record.position
        limit = self._limits.get(entry.site)
        used = sum(each.used_bytes for each in self._entries[entry.site].values() if each.size_known)
        if limit is not None and entry.known_bytes and used > limit:
            raise self._broken(SPACE, f"ordered, which takes {used} of {limit} bytes", entry)

    def _on_fetched(self, entry: _Entry, fetched: file_payloads.FetchedFile) -> None:
        if entry.key != fetched.key:
            raise self._broken(FETCHES, f"arrived as {fetched.key}, and {entry.key or 'nothing'} was under way", entry)
        entry.key, entry.known_bytes, entry.fetched, entry.fetched_at = "", 0, fetched, self._record.now
        entry.outdated = False
        for entries in self._entries.values():
            other = entries.get(entry.locator)
            if other is not None and other.fetched is not None and other.fetched.sha256 != fetched.sha256:
                other.outdated = True

    def _on_failed(self, entry: _Entry, failed: file_payloads.FailedFetch) -> None:
        if entry.key != failed.key:
            raise self._broken(FETCHES, f"failed as {failed.key}, and {entry.key or 'nothing'} was under way", entry)
        entry.key, entry.known_bytes = "", 0

    def _on_retention(self, site: str, files: Sequence[file_payloads.Retention]) -> None:
        for retention in files:
            entry = self._entry(site, retention.locator)
            if retention.pinned:
                entry.pins[retention.owner] = None
            elif retention.pinned is not None:
                entry.pins.pop(retention.owner, None)
            if retention.wish is not None:
                entry.wished[retention.owner] = self._record.position

    def _on_removal(self, entry: _Entry, removal: file_payloads.OrderedRemoval) -> None:
        """A file is removed only if nothing needs it there, and nobody wants it there."""
        for package, attempt in self._live_at(entry):
            what = f"removed ({removal.cause}), and attempt {attempt.number} of {package.subject} needs it there"
            raise self._broken(NEEDS, what, entry)
        for package_name in self._needed_anywhere(entry.locator):
            raise self._broken(NEEDS, f"removed ({removal.cause}), and {package_name} still needs it", entry)
        wish = self._wish(entry)
        if removal.cause == "space" and wish == Wish.RETAIN_INDEFINITELY:
            raise self._broken(RETENTION, "removed for space, and a job wants it indefinitely", entry)
        if removal.cause == "deletable" and wish != Wish.DELETABLE:
            raise self._broken(RETENTION, f"removed as deletable, and a job wants it: {wish.name}", entry)
        if removal.cause == "purged" and (entry.site, entry.locator) not in self._purged:
            raise self._broken(RETENTION, "removed as purged, and nobody asked for that", entry)
        if entry.pins and removal.cause != "purged":
            raise self._broken(RETENTION, f"removed ({removal.cause}), and {', '.join(entry.pins)} pinned it", entry)
        entry.removal = removal.key

    def _on_removed(self, entry: _Entry) -> None:
        entry.fetched, entry.removal = None, ""
        entry.key, entry.known_bytes = "", 0

    # --- decisions of one step -----------------------------------------------------------------------------------------

    def on_decided(self, events: Sequence[Checked], reserved: Mapping[tuple[str, str], str]) -> None:
        """Check the removals of a step; `reserved` maps packages to the sites that they are reserved for after it."""
        for checked in events:
            data = checked.data
            if not isinstance(data, file_payloads.RemovalsOrdered):
                continue
            removed = {each.locator: each for each in data.files}
            for (job, place), site in reserved.items():
                if site != checked.event.site:
                    continue
                for _, locator in self._needed_by(self._record.job(job).package(place)):
                    if locator in removed:
                        message = f"removed ({removed[locator].cause}), and {job}/{place} is reserved there"
                        raise self._broken(NEEDS, message, self._entry(site, locator))

    # --- the truth -----------------------------------------------------------------------------------------------------

    def on_cached(self, site: str, locator: str, *, key: str, size_bytes: int, sha256: str) -> None:
        """A file is in a cache; with known sizes, all of them fit."""
        entry = self._entry(site, locator)
        entry.there, entry.there_bytes, entry.there_sha256, entry.vanished = key, size_bytes, sha256, False
        limit = self._limits.get(site)
        used = sum(each.there_bytes for each in self._entries[site].values() if each.there)
        if limit is not None and used > limit and self._sizes_are_known(site):
            raise self._broken(SPACE, f"arrived, and the cache has {used} of {limit} bytes", entry)

    def on_uncached(self, site: str, locator: str, *, key: str, ordered: bool) -> None:
        """A file is no longer in a cache."""
        entry = self._entry(site, locator)
        if entry.there == key:
            entry.there, entry.vanished = "", not ordered

    def on_copied(self, ref: AttemptRef, *, locator: str, sha256: str) -> None:
        """A copy of an output is in a store."""
        self.outputs.on_copied(ref, locator=locator, sha256=sha256)

    def on_purge(self, site: str, locators: Sequence[str]) -> None:
        """A person asks for the removal of files; reported when that is sent."""
        self._purged.update(dict.fromkeys((site, each) for each in locators))

    def on_started(self, ref: AttemptRef) -> None:
        """An attempt really starts: all its files are there as the book says, unless they were lost and nobody knew."""
        package = self._record.job(ref.job).package(ref.package)
        attempt = package.attempts.get(ref.attempt)
        if attempt is None or attempt.lost or package.state or attempt.epoch != package.epoch:
            return
        for _, locator in self._needed_by(package):
            entry = self._entry(attempt.site, locator)
            if not entry.there:
                if entry.vanished:
                    continue  # if somebody had known, it would not have been created
                message = f"attempt {ref.attempt} was started at {attempt.site}, where {locator} is not"
                raise self._record.broken(ARRIVALS, message, package)
            if entry.fetched is not None and entry.fetched.sha256 != entry.there_sha256:
                message = f"attempt {ref.attempt} was started with another {locator} than the book says"
                raise self._record.broken(ARRIVALS, message, package)

    def arrived_at(self, job: str, package: str, *, site: str) -> float:
        """When the last file of a package arrived at a site; infinite if one of them is not there."""
        needed = [self._entry(site, locator) for _, locator in self._needed_by(self._record.job(job).package(package))]
        return max(
            (math.inf if each.fetched is None or each.removal else each.fetched_at for each in needed), default=0.0
        )

    # --- at the end ----------------------------------------------------------------------------------------------------

    def check_finished(self) -> None:
        """Nothing stays for ever that nobody wants or needs, and everything in a cache is known."""
        for entries in self._entries.values():
            for entry in entries.values():
                if entry.there and entry.fetched is None and not entry.key:
                    raise self._broken(LEFTOVERS, "is in the cache, and the book does not know it", entry)
                if entry.fetched is None or entry.removal or entry.pins:
                    continue
                if not (entry.outdated or self._is_surely_deletable(entry)):
                    continue
                if next(self._needed_anywhere(entry.locator), None) is None:
                    what = "its store has another content" if entry.outdated else "nobody wants it"
                    raise self._broken(LEFTOVERS, f"is still there, nobody needs it, and {what}", entry)
        self.outputs.check_finished()

    def check_left_over(self, drafts: Mapping[str, Mapping[str, str]]) -> None:
        """No draft is left by any transfer."""
        for site, names in drafts.items():
            for name, key in names.items():
                raise Violation(LEFTOVERS, f"the draft of {key} is left at {site}", subject=f"{site}:{name}")

    # --- finding -------------------------------------------------------------------------------------------------------

    def _entry(self, site: str | None, locator: str) -> _Entry:
        entries = self._entries.setdefault(site or "", {})
        found = entries.get(locator)
        if found is None:
            found = entries[locator] = _Entry(site or "", locator)
        return found

    def _needed_by(self, package: PackageTrace) -> Iterator[tuple[int, str]]:
        """The files that a package needs at its site: numbers and locators."""
        plan = package.job.plan
        if plan is None or plan.files is None or package.number is None:
            return
        for number in plan.files.needs.of(package.number).tolist():
            yield number, plan.files.locators[number]

    def _users(self, locator: str) -> Iterator[tuple[JobTrace, int]]:
        """All packages that need a file, by job and number."""
        for job in self._record.jobs.values():
            plan = job.plan
            if plan is None or plan.files is None or not job.accepted:
                continue
            number = self._number(job, locator)
            if number is not None:
                for package in plan.files.users.of(number).tolist():
                    yield job, package

    def _number(self, job: JobTrace, locator: str) -> int | None:
        plan = job.plan
        if plan is None or plan.files is None:
            return None
        known = self._numbers.get(job.name)
        if known is None or known[0] != plan.files.count:
            numbers = {each: number for number, each in enumerate(plan.files.locators)}
            known = self._numbers[job.name] = (plan.files.count, numbers)
        return known[1].get(locator)

    def _needed_anywhere(self, locator: str) -> Iterator[str]:
        """The packages that may still run and need a file."""
        for job, number in self._users(locator):
            package = job.by_number.get(number)
            over = job.cancelled or job.aborted if package is None else bool(package.state or package.dropped)
            if not over and not job.cleared:
                yield f"{job.name}/{job.name_of(number)}"

    def _live_at(self, entry: _Entry) -> Iterator[tuple[PackageTrace, AttemptTrace]]:
        """The live attempts at a site that need a file."""
        for job, number in self._users(entry.locator):
            package = job.by_number.get(number)
            if package is None or package.state or package.dropped:
                continue
            for attempt in package.attempts.values():
                if attempt.site == entry.site and package.is_live(attempt, self._record.ended_pilots):
                    yield package, attempt

    def _own_wish(self, job: JobTrace, number: int) -> Wish:
        """The wish of a job about a file of its plan."""
        files = job.plan.files if job.plan is not None else None
        return Wish(int(files.wishes[number])) if files is not None else Wish.DELETABLE

    def _wish(self, entry: _Entry) -> Wish:
        """The stickiest wish of the jobs that have surely touched a file at a site, and that no owner released since."""
        return max(
            (wish for since, owner, wish in entry.wishes.values() if self._released_at(owner, entry.locator) < since),
            default=Wish.DELETABLE,
        )

    def _is_surely_deletable(self, entry: _Entry) -> bool:
        """Whether each job that names a file wants it deletable, or its owner released it after the job had touched it."""
        for job in self._record.jobs.values():
            number = self._number(job, entry.locator)
            if number is None or self._own_wish(job, number) == Wish.DELETABLE:
                continue
            touched = entry.wishes.get(job.name)
            if touched is None:
                return False
            since, owner, _ = touched
            if self._released_at(owner, entry.locator) <= max(since, entry.wished.get(owner, 0)):
                return False  # a package of an earlier job may want it again after its release
        return True

    def _released_at(self, owner: str, locator: str) -> int:
        return self._released.get((owner, locator), 0)

    def _sizes_are_known(self, site: str) -> bool:
        """Whether all files at a site had a known size before they were fetched."""
        return all(
            self._known_bytes(each.locator) == each.there_bytes for each in self._entries[site].values() if each.there
        )

    def _known_bytes(self, locator: str) -> int:
        """The least that the jobs say about the size of a file."""
        sizes = [
            int(job.plan.files.sizes_bytes[number])
            for job in self._record.jobs.values()
            if (number := self._number(job, locator)) is not None
            and job.plan is not None
            and job.plan.files is not None
        ]
        return min(sizes, default=0)

    def _package_of(self, checked: Checked) -> PackageTrace:
        return self._record.job(checked.event.job or "").package(checked.event.package or "")

    def _attempt_of(self, checked: Checked) -> tuple[PackageTrace, AttemptTrace]:
        package = self._package_of(checked)
        return package, package.attempts[checked.event.attempt or 0]

    def _broken(self, checker: str, message: str, entry: _Entry) -> Violation:
        return Violation(checker, message, subject=entry.subject, events=self._record.tape.about(None, None))
