"""Doubts the restarts: nothing is tried beyond its cap, nor again under what made it fail, nor over dead pilots.

A package with rules of its own may count and be restarted in its own way.
"""

from __future__ import annotations

import math

from pilotage.model.outcomes import ExitCodeGasw
from pilotage.simulator.checkers_traces import AttemptTrace, PackageTrace, Record, Rules

RETRIES = "retries"
_KILLED = "pilot-killed"


class Restarts:
    """Each attempt after a failure."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share what the other checkers know."""
        self._record = record
        self._rules = rules

    def cap(self, package: PackageTrace) -> int:
        """How many counted failures of an epoch are too many."""
        own = package.template.retry.attempts_max if package.template is not None else None
        return self._rules.attempts_max if own is None else own

    def on_created(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """One more attempt: what failed before it must allow for it."""
        if not package.attempts:
            return
        self._check_harmless(package, attempt)
        if self.said_by_rules(package) == "give-up":
            message = f"attempt {attempt.number} was created after a failure upon which its own rules give up"
            raise self._record.broken(RETRIES, message, package)
        if package.template is None or package.template.retry.rules:
            return
        cap = self.cap(package)
        if package.counted >= cap:
            message = f"attempt {attempt.number} was created after {package.counted} counted failures of {cap}"
            raise self._record.broken(RETRIES, message, package)
        for earlier in package.attempts.values():
            if earlier.epoch == package.epoch and earlier.finished not in _NO_FAILURES:
                self._check_limit(package, attempt, earlier)

    def said_by_rules(self, package: PackageTrace) -> str:
        """What the package's own rules say of its failures so far: the first that is for one and not used up acts.

        Empty where they say nothing, where that is not known for sure, and where a cap may say something else.
        """
        rules = package.template.retry.rules if package.template is not None else ()
        own = [each for each in package.attempts.values() if each.epoch == package.epoch]
        if not rules or not all(each.reason for each in rules) or any(each.doubted for each in own):
            return ""
        acted = [0] * len(rules)
        said = ""
        for failed in sorted(own, key=_number):
            matching = [at for at, rule in enumerate(rules) if failed.failed_for and rule.reason == failed.failed_for]
            if not matching:
                said = "" if failed.failed_for else said
                continue
            unused = [at for at in matching if (times := rules[at].times) is None or acted[at] < times]
            if not unused or rules[unused[0]].action == "give-up":
                return "give-up"
            acted[unused[0]] += 1
            said = rules[unused[0]].action if rules[unused[0]].times is not None else ""
        return said

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
            # Who says how often to try is tried again where its own limit just fits.
            fits = left == least == had and package.template is not None and package.template.retry.attempts_max
            if left <= least < math.inf and not fits:
                message = (
                    f"attempt {attempt.number} was created where {left:.0f} s are left, "
                    f"and attempt {earlier.number} needed more than {least:.0f} s"
                )
                raise self._record.broken(RETRIES, message, package)

    def _check_harmless(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """A package under which so many pilots died is held before it is tried again."""
        own = [each for each in package.attempts.values() if each.epoch == package.epoch]
        killers = [each for each in own if each.lost and not each.finished and each.reason == _KILLED]
        if len(killers) < self._rules.pilot_kills_max:
            return
        last = max(own, key=_number)
        if last is not killers[-1] or last.lost_while_held or package.held_position > last.lost_position:
            return
        message = f"attempt {attempt.number} was created after {len(killers)} pilots died under it, and nobody held it"
        raise self._record.broken(RETRIES, message, package)


_NO_FAILURES = ("", ExitCodeGasw.SUCCESS.value, ExitCodeGasw.EXECUTION_CANCELED.value)


def _number(attempt: AttemptTrace) -> int:
    return attempt.number


def _limit(package: PackageTrace, attempt: AttemptTrace) -> float:
    if attempt.wall_seconds is not None:
        return attempt.wall_seconds
    return package.template.demand.wall_seconds if package.template is not None else 0.0
