"""Site selection as the engine uses it: records what happens, reports what follows, and picks.

filter → status → score → room → pick, each stage in a module of its own. Time and draws are passed in: equal histories and
equal draws give equal choices. What was learned of a site is one value (`learned_state`), from which it is restored exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pilotage.engine.selection.candidates import CANDIDATE, CandidateSet
from pilotage.engine.selection.explain import ChoiceWhy, SiteWhy, explain_choice, explain_site
from pilotage.engine.selection.filters import Requirements, SiteDescription
from pilotage.engine.selection.observations import Observations
from pilotage.engine.selection.picking import choose, left_out_of, next_wake_at
from pilotage.engine.selection.sampling import Draws
from pilotage.engine.selection.scores import Operation
from pilotage.engine.selection.site_profile import LearnedState, SiteProfile, Underway
from pilotage.engine.selection.status import Woken

_ANYTHING = Requirements()


class Selection(Observations):
    """Chooses sites by their behaviour."""

    # --- sites --------------------------------------------------------------------------------------------------------

    def add(self, description: SiteDescription) -> None:
        """Add a site, or update the description of a known one."""
        self._sites.add(description)

    def remove(self, site: str) -> None:
        """Remove a site and everything learned of it."""
        if (profile := self._sites.by_name.get(site)) is not None:
            self._sites.remove(profile)

    def profile(self, site: str) -> SiteProfile:
        """The profile of a site, for frequent callers; raises KeyError if unknown."""
        return self._sites.by_name[site]

    def learned_state(self, site: str) -> LearnedState:
        """What was learned of a site, for the book; raises KeyError if unknown."""
        return self._sites.by_name[site].learned_state()

    def restore(self, learned_state: LearnedState) -> None:
        """Restore what was learned of an added site; `recount` sets its active attempts."""
        if (profile := self._sites.by_name.get(learned_state.site)) is not None:
            self._sites.restore(profile, learned_state)

    def recount(
        self,
        site: str,
        *,
        attempts: Iterable[Underway] = (),
        used: Mapping[int, int] | None = None,
        operations: Mapping[Operation, int] | None = None,
    ) -> None:
        """Set everything active at a site: attempts, used room of each shape, operations."""
        if (profile := self._sites.by_name.get(site)) is None:
            return
        profile.recount(attempts, samples=self.samples)
        profile.used.clear()
        profile.used.update(used or {})
        for operation in ("submission", "transfer", "file-operation"):
            profile.score.recount(operation, (operations or {}).get(operation, 0))
        self._sites.touch(profile)

    # --- picking --------------------------------------------------------------------------------------------------------

    def choose(
        self,
        draws: Draws,
        pool: CandidateSet,
        now: float,
        avoid: Collection[int] = (),
        unfit: Collection[int] = (),
        prefer: int = -1,
        activity: str = "",
    ) -> tuple[SiteProfile, Woken | None, bool] | None:
        """A site with room for these requirements, whether it was woken for this, and whether it was the preferred one; or None.

        Sites are given by index: `prefer` is taken if possible; `avoid` is left out if any other site fits, now or later; `unfit`
        always. If no site can be picked, the first hibernated one that is due is woken.
        """
        sites = self._sites
        if sites.trials:
            sites.end_trials(now)
        if pool.position != sites.changes.end:
            pool.refresh(sites.profiles, sites.changes)
        if prefer < 0 and not avoid and not unfit:
            # The usual case, in short: the same as below.
            candidates = pool.counts[CANDIDATE]
            if candidates == 1 or (candidates and self._draws_once):
                index = pool.status.index(CANDIDATE) if candidates == 1 else pool.weights.pick(draws.uniform())
                if index is not None and (profile := sites.profiles[index]) is not None:
                    return profile, None, False
        return choose(sites, pool, draws, now=now, avoid=avoid, unfit=unfit, prefer=prefer, activity=activity)

    def choose_again_at(
        self, pool: CandidateSet, now: float, avoid: Collection[int] = (), unfit: Collection[int] = ()
    ) -> float | None:
        """When to retry after no site was found, apart from changes of sites; None: only after a change."""
        sites = self._sites
        if not sites.trials and not sites.asleep.queue:
            return None
        trial = sites.end_trials(now)
        sites.refresh(pool)
        wake = next_wake_at(sites, pool, now=now, left_out=left_out_of(pool, avoid=avoid, unfit=unfit))
        return min((each for each in (trial, wake) if each is not None), default=None)

    def pool(self, requirements: Requirements, shape: int = 0) -> CandidateSet:
        """The candidate set for these requirements, to pass to `choose`, until it is forgotten."""
        return self._sites.pool(requirements, shape)

    def forget(self, requirements: Requirements, shape: int = 0) -> None:
        """Drop an unused candidate set."""
        self._sites.forget(requirements, shape)

    def explain(self, site: str, *, now: float, requirements: Requirements = _ANYTHING, shape: int = 0) -> SiteWhy:
        """The result of every stage for a site; raises KeyError if unknown."""
        return explain_site(self._sites, self._sites.by_name[site], self._sites.pool(requirements, shape), now=now)

    def explain_choice(self, *, now: float, requirements: Requirements = _ANYTHING, shape: int = 0) -> ChoiceWhy:
        """How the next choice would be made."""
        return explain_choice(self._sites, self._sites.pool(requirements, shape), now=now)
