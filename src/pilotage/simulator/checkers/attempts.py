"""Checks attempts: each is created only for unfinished work, fits where it goes, and runs alone.

Two attempts of one package may be live at once only if a replica was requested, or if the earlier one was suspect, lost or
given up before; a package with side effects never has two that could both run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from pilotage.model.events import payloads
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Demand, lacking
from pilotage.model.site import Site, fitting_start
from pilotage.model.states import ExitCodeGasw
from pilotage.simulator.checkers.early import EarlyStarts
from pilotage.simulator.checkers.inputs import Inputs
from pilotage.simulator.checkers.records import AttemptTrace, JobTrace, PackageTrace, Record, Rules

# Checks restarts: no attempt beyond the cap, none under the same limit that failed before, none after too many dead pilots.
#
# A package with its own rules may count and restart in its own way.

RETRIES = "retries"
_KILLED = "pilot-killed"


class Restarts:
    """Checks each attempt after a failure."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._rules = rules

    def cap(self, package: PackageTrace) -> int:
        """How many counted failures of an epoch are too many."""
        own = package.template.retry.attempts_max if package.template is not None else None
        return self._rules.attempts_max if own is None else own

    def on_created(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """Check that the earlier failures allow one more attempt."""
        if not package.attempts:
            return
        self._check_harmless(package, attempt)
        if self.action_by_rules(package) == "give-up":
            message = f"attempt {attempt.number} was created after a failure upon which its own rules give up"
            raise self._record.broken(RETRIES, message, package)
        if package.template is None or package.template.retry.rules:
            return
        cap = self.cap(package)
        if package.counted >= cap:
            message = f"attempt {attempt.number} was created after {package.counted} counted failures of {cap}"
            raise self._record.broken(RETRIES, message, package)
        for earlier in package.attempts.values():
            if earlier.epoch == package.epoch and earlier.finished not in _NO_FAILURES and not earlier.early:
                self._check_limit(package, attempt, earlier)

    def action_by_rules(self, package: PackageTrace) -> str:
        """The action of the package's own rules after its failures so far: the first matching one with budget left.

        Empty if no rule matches, if that is not certain, or if a cap may decide otherwise.
        """
        rules = package.template.retry.rules if package.template is not None else ()
        own = [each for each in package.attempts.values() if each.epoch == package.epoch and not each.early]
        if not rules or not all(each.reason for each in rules) or any(each.doubted for each in own):
            return ""
        acted = [0] * len(rules)
        action = ""
        for failed in sorted(own, key=_number):
            matching = [at for at, rule in enumerate(rules) if failed.failed_for and rule.reason == failed.failed_for]
            if not matching:
                action = "" if failed.failed_for else action
                continue
            unused = [at for at in matching if (times := rules[at].times) is None or acted[at] < times]
            if not unused or rules[unused[0]].action == "give-up":
                return "give-up"
            acted[unused[0]] += 1
            action = rules[unused[0]].action if rules[unused[0]].times is not None else ""
        return action

    def _check_limit(self, package: PackageTrace, attempt: AttemptTrace, earlier: AttemptTrace) -> None:
        limit, had = _limit(package, attempt), _limit(package, earlier)
        if earlier.failed_for == "looping" and limit <= had:
            what = f"with a limit of {limit:.0f} s" if limit else "without a limit"
            message = (
                f"attempt {attempt.number} was created {what}, and attempt {earlier.number} looped with {had:.0f} s"
            )
            raise self._record.broken(RETRIES, message, package)
        if earlier.failed_for == "wall-time":
            known = (had or math.inf, math.inf if earlier.remaining_seconds is None else earlier.remaining_seconds)
            left = math.inf if attempt.remaining_seconds is None else attempt.remaining_seconds
            least = min(known)
            # A package with an explicit number of attempts may be retried where its own limit just fits.
            fits = left == least == had and package.template is not None and package.template.retry.attempts_max
            if left <= least < math.inf and not fits:
                message = (
                    f"attempt {attempt.number} was created where {left:.0f} s are left, "
                    f"and attempt {earlier.number} needed more than {least:.0f} s"
                )
                raise self._record.broken(RETRIES, message, package)

    def _check_harmless(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """A package that killed too many pilots is held before another attempt."""
        own = [each for each in package.attempts.values() if each.epoch == package.epoch]
        killers = [each for each in own if each.lost and not each.finished and each.reason == _KILLED]
        if len(killers) < self._rules.pilot_kills_max:
            return
        last = max(own, key=_number)
        if last is not killers[-1] or last.lost_while_held or package.held_position > last.lost_position:
            return
        message = f"attempt {attempt.number} was created after {len(killers)} pilots died while running it, and it was not held"
        raise self._record.broken(RETRIES, message, package)


_NO_FAILURES = ("", ExitCodeGasw.SUCCESS.value, ExitCodeGasw.EXECUTION_CANCELED.value)


def _number(attempt: AttemptTrace) -> int:
    return attempt.number


def _limit(package: PackageTrace, attempt: AttemptTrace) -> float:
    if attempt.wall_seconds is not None:
        return attempt.wall_seconds
    return package.template.demand.wall_seconds if package.template is not None else 0.0


# Checks the site selection: each site has one status, a hibernated site gets nothing, and none gets more than its score
# allows.
#
# The room of a site follows from its score, which only the engine knows; this checker uses the largest score that is
# possible by the recorded events: every attempt is worth five successes at most, its submission, its end, and three scored
# phases.

SITES = "sites"
_FLOOR, _CEILING = -10.0, 50.0
_WORTH = 0.5  # of a successful attempt, with its submission and every long phase
_STEP = 1 / 64  # TScore is rounded in steps


class _SiteStatus:
    __slots__ = ("asleep", "removed", "score_max")

    def __init__(self, site: Site) -> None:
        self.asleep = False
        self.removed = False
        self.score_max = site.initial_score or 0.0


class Sites:
    """Checks the recorded events of sites."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._sites = {site.name: site for site in rules.sites}
        self._standings = {site.name: _SiteStatus(site) for site in rules.sites}

    def on_event(self, name: str, data: payloads.Payload) -> None:
        """Check a recorded event of a site."""
        standing = self._standings.get(name)
        if standing is None:
            return
        match data:
            case payloads.SiteHibernated():
                if standing.asleep:
                    raise self._record.broken_stream(SITES, "was hibernated twice", name)
                standing.asleep = True
                self._check_score(name, data.score)
            case payloads.SiteWoken():
                if not standing.asleep:
                    raise self._record.broken_stream(SITES, "was woken, and was not hibernated", name)
                standing.asleep = False
                standing.score_max = max(standing.score_max, data.score)
                self._check_score(name, data.score)
            case payloads.SiteStanding():
                if standing.asleep != (data.status == "hibernated"):
                    raise self._record.broken_stream(SITES, f"is said to be {data.status}, and is not", name)
                self._check_score(name, data.score)
            case _:
                pass

    def on_created(self, name: str) -> str:
        """Check one more attempt at a site; returns the objection, if any."""
        standing = self._standings.get(name)
        if standing is None:
            return ""
        standing.score_max = min(_CEILING, standing.score_max + _WORTH)
        return "which hibernates" if standing.asleep else ""

    def bound_room(self, name: str) -> int:
        """The most attempts of one demand that may be queued or running at a bound site."""
        score = self._standings[name].score_max
        tscore = math.exp(2.0 * math.log(100.0) / math.pi * math.atan(0.2 * score) + _STEP)
        return 1 + math.floor(self._sites[name].job_throttle * tscore)

    def _check_score(self, name: str, score: float) -> None:
        if not _FLOOR <= score <= _CEILING:
            raise self._record.broken_stream(SITES, f"has a score of {score}", name)


# Checks attempts that share a batch job: alike, no more than allowed, and begun by its agents one after another.

GROUPS = "groups"


class _BatchJob:
    __slots__ = ("attempts", "demand", "job", "site")

    def __init__(self, site: str, job: JobTrace, demand: Demand | None) -> None:
        self.site = site
        self.job = job
        self.demand = demand
        self.attempts: list[tuple[PackageTrace, AttemptTrace]] = []


class Groups:
    """The batch jobs that several attempts share, by key."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._most = rules.group_packages_max
        self._batch_jobs: dict[str, _BatchJob] = {}

    def on_created(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """A new attempt may share a batch job with equal ones, while nothing in it has begun, up to the limit."""
        if not attempt.group:
            return
        template = package.template
        demand = template.demand if template is not None else None
        found = self._batch_jobs.setdefault(attempt.group, _BatchJob(attempt.site, package.job, demand))
        found.attempts.append((package, attempt))
        why = ""
        if attempt.leased:
            why = "and has a pilot"
        elif (found.site, found.demand) != (attempt.site, demand) or found.job is not package.job:
            why = "with attempts of another site, job or demand"
        elif template is not None and template.side_effects:
            why = "and its package has side effects"
        elif any(each.leased for _, each in found.attempts):
            why = "after one in it had begun"
        elif 0 < self._most < len(found.attempts):
            why = f"as number {len(found.attempts)}, and {self._most} may"
        if why:
            raise self._record.broken(
                GROUPS, f"attempt {attempt.number} shares the batch job {attempt.group} {why}", package
            )

    def on_started(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """An attempt begins only in its own batch job, only if it was not taken back, and only when the one before it is over there."""
        found = self._batch_jobs.get(attempt.group)
        if found is None:
            return
        why = ""
        if (attempt.pilot or "").rpartition(".")[0] != attempt.group:
            why = f"was begun by {attempt.pilot}, which is no agent of its batch job"
        elif attempt.reason == "regrouped":
            why = "was begun after it was taken back from its batch job"
        elif any(each is not attempt and self._runs(other, each, attempt.pilot) for other, each in found.attempts):
            why = f"was begun by {attempt.pilot}, which runs another one"
        if why:
            raise self._record.broken(GROUPS, f"attempt {attempt.number} {why}", package)

    def _runs(self, package: PackageTrace, attempt: AttemptTrace, pilot: str | None) -> bool:
        """Whether a pilot is believed to run an attempt."""
        over = attempt.finished or attempt.staged or attempt.lost or attempt.epoch != package.epoch or package.state
        return attempt.pilot == pilot and attempt.leased and not over

    def on_lost(self, package: PackageTrace, attempt: AttemptTrace, data: payloads.AttemptLost) -> None:
        """Only an attempt that shares a batch job and has not begun is taken back from it."""
        if data.reason == "regrouped" and (not attempt.group or attempt.leased):
            message = f"attempt {attempt.number} was taken back from its batch job after it had begun"
            raise self._record.broken(GROUPS, message, package)


CREATIONS = "creations"
ROOMS = "rooms"
LEASES = "leases"


def demand_of(template: Template, attempt: AttemptTrace) -> Demand:
    """The demand of an attempt: that of its package, or more after a failure."""
    asked = template.demand
    if attempt.memory_bytes is None and attempt.wall_seconds is None:
        return asked
    return msgspec.structs.replace(
        asked,
        memory_bytes=asked.memory_bytes if attempt.memory_bytes is None else attempt.memory_bytes,
        wall_seconds=asked.wall_seconds if attempt.wall_seconds is None else attempt.wall_seconds,
    )


class Attempts:
    """Checks the recorded events of attempts."""

    def __init__(self, record: Record, *, inputs: Inputs, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._inputs = inputs
        self.restarts = Restarts(record, rules)
        self.early = EarlyStarts(record)
        self._uncounted = frozenset(rules.uncounted)
        self._sites = {site.name: site for site in rules.sites}
        self.sites = Sites(record, rules)
        self.groups = Groups(record, rules)
        # By bound site and demand: the attempts there that were not over at the last check.
        self._bound: dict[tuple[str, Demand], list[tuple[PackageTrace, AttemptTrace]]] = {}

    def on_created(self, package: PackageTrace, number: int, data: payloads.AttemptCreated) -> None:
        """Check a new attempt of the current epoch."""
        attempt = AttemptTrace(number, epoch=package.epoch, created=self._record.position)
        attempt.site, attempt.pilot, attempt.leased = data.site, data.pilot, data.lease_seconds is not None
        attempt.revision = data.drop_revision
        attempt.memory_bytes, attempt.wall_seconds = data.memory_bytes, data.wall_seconds
        attempt.remaining_seconds = data.remaining_seconds
        attempt.group = data.group or ""
        self._check_wanted(package, attempt)
        self.restarts.on_created(package, attempt)
        self._inputs.on_created(package, attempt)
        self.early.on_created(package, attempt, data)
        if against := self.sites.on_created(data.site):
            message = f"attempt {number} was created at {data.site}, {against}"
            raise self._record.broken(SITES, message, package)
        self._check_site(package, attempt)
        self._check_alone(package, attempt, replaces=data.replaces)
        package.attempts[number] = attempt
        package.last_attempt = number
        package.replicated += data.replica
        self._check_category(package)
        self._check_bound_room(package, attempt)
        self.groups.on_created(package, attempt)

    def _check_wanted(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        job = package.job
        why = ""
        if not job.accepted:
            why = "and its job was never accepted"
        elif job.cleared:
            why = "after its job was cleared"
        elif package.state:
            why = f"in epoch {package.epoch}, which had ended as {package.state}"
        elif package.kept_back:
            why = f"while {'it' if package.held else 'its job'} was held"
        elif package.dropped:
            why = "while it was dropped"
        elif package.success:
            why = f"although attempt {package.success} had succeeded"
        if why:
            raise self._record.broken(CREATIONS, f"attempt {attempt.number} was created {why}", package)

    def _check_site(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        site, template = self._sites.get(attempt.site), package.template
        if not self._sites or template is None:
            return
        message = f"attempt {attempt.number} was created at {attempt.site}"
        if site is None:
            raise self._record.broken(ROOMS, f"{message}, which is no site", package)
        if template.executor and template.executor not in (site.name, site.kind):
            raise self._record.broken(ROOMS, f"{message}, and may only run on {template.executor}", package)
        for starts in template.starts:
            if fitting_start(starts, site, platform=template.platform) is None:
                raise self._record.broken(ROOMS, f"{message}, where its software is not described", package)
        demand = demand_of(template, attempt)
        short = [f"{name} {asked} of {given}" for name, asked, given in lacking(demand, site.capacity)]
        if demand.nodes > site.nodes:
            short.append(f"nodes {demand.nodes} of {site.nodes}")
        if site.wall_seconds and demand.wall_seconds > site.wall_seconds:
            short.append(f"wall_seconds {demand.wall_seconds} of {site.wall_seconds}")
        if short:
            raise self._record.broken(ROOMS, f"{message}, which cannot hold it: {', '.join(short)}", package)

    def _check_alone(self, package: PackageTrace, attempt: AttemptTrace, *, replaces: int | None) -> None:
        if not package.attempts:
            return
        if package.template is not None and package.template.side_effects:
            beside = [each for each in package.attempts.values() if self._could_run(package, each)]
        else:
            live = [
                each
                for each in package.attempts.values()
                if not each.doubted and package.is_live(each, self._record.ended_pilots)
            ]
            beside = [each for each in live if each.leased or each.number != replaces]
            if len(beside) <= package.wanted:
                return
        if beside:
            names = ", ".join(str(each.number) for each in beside)
            raise self._record.broken(LEASES, f"attempt {attempt.number} was created beside {names}, unasked", package)

    def _could_run(self, package: PackageTrace, attempt: AttemptTrace) -> bool:
        """Whether an attempt with side effects may still act; for earlier epochs only the physical state counts."""
        if attempt.finished or attempt.over or attempt.pilot in self._record.ended_pilots:
            return False
        if attempt.lost:
            return (
                attempt.running and attempt.reason == "rescheduled"
            )  # its pilot may exist, and must make contact first
        if attempt.epoch == package.epoch and attempt.created >= package.job.cancelled_position:
            return True
        return attempt.running and not attempt.doubted

    def _check_category(self, package: PackageTrace) -> None:
        job, template = package.job, package.template
        limit = job.plan.limits.get(template.category) if template is not None and job.plan is not None else None
        if template is None or limit is None:
            return
        live = job.live_of_category.setdefault(template.category, {})
        live[package.place] = None
        if len(live) > limit:
            # Ends are not recorded one by one; they are looked up only here.
            for place in [place for place in live if not self._lives(job.packages[place])]:
                del live[place]
            if len(live) > limit:
                raise self._record.broken(
                    ROOMS,
                    f"{len(live)} packages of category {template.category} are live, at most {limit} may be",
                    package,
                )

    def _check_bound_room(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """A bound site has at most 1 + jobThrottle · TScore queued or running batch jobs of attempts with one demand."""
        site, template = self._sites.get(attempt.site), package.template
        if site is None or template is None or site.mode != "bound":
            return
        key, room = (site.name, demand_of(template, attempt)), self.sites.bound_room(site.name)
        there = self._bound.setdefault(key, [])
        there.append((package, attempt))
        if _batch_jobs(there) > room:
            there[:] = [(each, one) for each, one in there if _takes_room(each, one)]
            if (count := _batch_jobs(there)) > room:
                message = (
                    f"attempt {attempt.number} is number {count} of its kind at {site.name}, which has room for {room}"
                )
                raise self._record.broken(ROOMS, message, package)

    def _lives(self, package: PackageTrace) -> bool:
        ended = self._record.ended_pilots
        return any(package.is_live(each, ended) for each in package.attempts.values())

    def on_event(self, package: PackageTrace, attempt: AttemptTrace, data: payloads.Payload) -> bool:
        """Check a recorded event of an attempt; returns whether it is a new success."""
        match data:
            case payloads.AttemptFinished():
                return self._on_finished(package, attempt, data)
            case payloads.AttemptStarted():
                if attempt.pilot is not None and data.pilot not in (None, attempt.pilot):
                    message = f"attempt {attempt.number} was started by {data.pilot}, and {attempt.pilot} has it"
                    raise self._record.broken(LEASES, message, package)
                attempt.leased = True
                attempt.pilot = data.pilot or attempt.pilot
                self.groups.on_started(package, attempt)
            case payloads.AttemptSuspected():
                attempt.suspected = attempt.doubted = True
            case payloads.AttemptLost():
                if data.reason == "rescheduled" and not package.reschedules:
                    message = f"attempt {attempt.number} was given up as rescheduled without a request"
                    raise self._record.broken(LEASES, message, package)
                self.groups.on_lost(package, attempt, data)
                attempt.lost = attempt.doubted = True
                attempt.lost_position, attempt.lost_while_held = self._record.position, package.held
                if not attempt.finished:
                    attempt.reason = data.reason
            case payloads.AttemptRecovered():
                attempt.suspected = attempt.lost = False
                attempt.reason = ""
                if package.template is not None and package.template.category in package.job.live_of_category:
                    package.job.live_of_category[package.template.category][package.place] = None
            case payloads.OutputsStaged():
                attempt.staged = True
            case payloads.PhaseEntered():
                attempt.applying = data.phase == "application"
            case _:
                pass
        return False

    def _on_finished(self, package: PackageTrace, attempt: AttemptTrace, data: payloads.AttemptFinished) -> bool:
        if attempt.finished:
            return False  # a repeated question gets a repeated answer
        attempt.finished = data.exit_code.value
        if data.exit_code == ExitCodeGasw.SUCCESS:
            attempt.reason = ""
            attempt.staged = attempt.staged or data.manifest is not None
            return attempt.staged
        if data.exit_code == ExitCodeGasw.EXECUTION_CANCELED:
            return False
        attempt.failed_for = data.reason or "application-error"
        if not attempt.lost:
            attempt.reason = attempt.failed_for
            # Losses are not counted here: counting fewer failures than the engine does no harm, more would accuse it falsely.
            package.counted += (
                attempt.epoch == package.epoch and not attempt.early and attempt.reason not in self._uncounted
            )
        return False


def _batch_jobs(attempts: Iterable[tuple[PackageTrace, AttemptTrace]]) -> int:
    """The batch jobs of attempts: some share one."""
    shared: set[str] = set()
    own = 0
    for _, attempt in attempts:
        if attempt.group:
            shared.add(attempt.group)
        else:
            own += 1
    return own + len(shared)


def _takes_room(package: PackageTrace, attempt: AttemptTrace) -> bool:
    over = attempt.finished or attempt.staged or attempt.lost
    return not over and attempt.epoch == package.epoch and not package.state
