"""Association rules between kinds of incidents: what often comes before another one may be the cause that must be treated.

A rule X ⇒ Y has a confidence, P(Y | X): of the latest times that X began in a job, how often Y began with it or within ten
minutes. Y may begin that often anyway. So every ten minutes of each job count as an occasion without a reason, and a rule
counts only if Y is clearly more frequent after X than after these; the paper does not say how it tells the two apart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

PAIRS_MAX = 1000
"""As many of the latest beginnings of incidents count, and of the occasions without a reason."""
WITHIN_SECONDS = 600.0
"""An incident follows another one if it begins with it, or at most so long after it."""
SUPPORT_MIN = 20
"""A rule needs so many beginnings of its first incident that the second one followed."""
_SURE_DEVIATIONS = 2.0  # by which the confidence exceeds the share of Y in general
_NOTHING = ""  # the kind of an occasion without a reason


class Beginning(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An incident began in a job: when, its kind, and the kinds that began then, too, or within ten minutes."""

    at: float
    job: str
    kind: str
    others: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """If the first begins, so does the second, with this confidence."""

    first: str
    second: str
    confidence: float
    support: int


class AssociationRules:
    """The latest beginnings of incidents, and the rules that follow from them."""

    __slots__ = ("_beginnings", "_occasions", "_rules")

    def __init__(self, beginnings: Iterable[Beginning] = ()) -> None:
        """Start with what is known."""
        known = list(beginnings)
        self._beginnings: deque[Beginning] = deque((each for each in known if each.kind), maxlen=PAIRS_MAX)
        self._occasions: deque[Beginning] = deque((each for each in known if not each.kind), maxlen=PAIRS_MAX)
        self._rules: dict[str, list[Rule]] | None = None

    @property
    def beginnings(self) -> tuple[Beginning, ...]:
        """What is known, for the book."""
        return (*self._beginnings, *self._occasions)

    def observe(self, kinds: Iterable[str], *, job: str, at: float) -> None:
        """A job was looked at: these kinds of incidents began there, perhaps none."""
        new = tuple(sorted(set(kinds)))
        if new:
            self._rules = None
            _follow(self._beginnings, new, job=job, at=at)
            _follow(self._occasions, new, job=job, at=at)
            for kind in new:
                self._beginnings.append(Beginning(at, job, kind, tuple(each for each in new if each != kind)))
        if not any(each.job == job for each in _recent(self._occasions, at)):
            self._rules = None
            self._occasions.append(Beginning(at, job, _NOTHING))

    def causes(self, kind: str) -> Sequence[Rule]:
        """The rules that lead to a kind of incident, the most confident first."""
        if self._rules is None:
            self._rules = self._found()
        return self._rules.get(kind, ())

    def _found(self) -> dict[str, list[Rule]]:
        count: dict[str, int] = {}
        together: dict[tuple[str, str], int] = {}
        for each in (*self._beginnings, *self._occasions):
            count[each.kind] = count.get(each.kind, 0) + 1
            for other in each.others:
                together[each.kind, other] = together.get((each.kind, other), 0) + 1
        rules: dict[str, list[Rule]] = {}
        for (first, second), support in sorted(together.items()):
            if not first or support < SUPPORT_MIN:
                continue
            if support <= together.get((second, first), 0):
                continue  # it does not begin first: those that begin at once are counted both ways, and say nothing
            confidence, anyway = support / count[first], together.get((_NOTHING, second), 0)
            share = (anyway + 0.5) / (count.get(_NOTHING, 0) + 1.0)
            if confidence > share + _SURE_DEVIATIONS * math.sqrt(share * (1.0 - share) / count[first]):
                rule = Rule(first=first, second=second, confidence=confidence, support=support)
                rules.setdefault(second, []).append(rule)
        for found in rules.values():
            found.sort(key=lambda rule: (-rule.confidence, rule.first))
        return rules


def _recent(beginnings: deque[Beginning], at: float) -> Iterable[Beginning]:
    """Those of the last ten minutes, the latest first."""
    for each in reversed(beginnings):
        if at - each.at > WITHIN_SECONDS:
            return
        yield each


def _follow(beginnings: deque[Beginning], new: tuple[str, ...], *, job: str, at: float) -> None:
    """Note that incidents follow the recent beginnings of their job."""
    for place in range(len(beginnings) - 1, -1, -1):
        known = beginnings[place]
        if at - known.at > WITHIN_SECONDS:
            break
        if known.job == job and (more := set(new) - {known.kind, *known.others}):
            others = tuple(sorted({*known.others, *more}))
            beginnings[place] = msgspec.structs.replace(known, others=others)
