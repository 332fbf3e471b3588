"""The choice of sites, as the engine holds it: it is told what happens, says what follows, and picks.

filter → status → score → room → pick, each stage in a module of its own. Time and chance are handed in: the same history and the same
draws give the same choices. What was learned of a site comes out as one value (`learned_state`) from which it is restored exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pilotage.engine.selection.candidates import CANDIDATE, CandidateSet
from pilotage.engine.selection.explain import ChoiceWhy, SiteWhy, explain_choice, explain_site
from pilotage.engine.selection.filters import Asked, SiteDescription
from pilotage.engine.selection.observations import Observations
from pilotage.engine.selection.picking import choose, left_out_of, next_wake_at
from pilotage.engine.selection.sampling import Draws
from pilotage.engine.selection.scores import Operation
from pilotage.engine.selection.site_profile import LearnedState, SiteProfile, Underway
from pilotage.engine.selection.status import Woken

_ANYTHING = Asked()


class Selection(Observations):
    """Sites by how they behave."""

    # --- sites --------------------------------------------------------------------------------------------------------

    def add(self, description: SiteDescription) -> None:
        """One more site, or another description of one that is known."""
        self._sites.add(description)

    def remove(self, site: str) -> None:
        """One less: all that was learned of it goes with it."""
        if (place := self._sites.by_name.get(site)) is not None:
            self._sites.remove(place)

    def place(self, site: str) -> SiteProfile:
        """A site itself, for who tells of it very often; raises KeyError for one that is not known."""
        return self._sites.by_name[site]

    def learned_state(self, site: str) -> LearnedState:
        """What was learned of a site, to be written down; raises KeyError for one that is not known."""
        return self._sites.by_name[site].learned_state()

    def restore(self, learned_state: LearnedState) -> None:
        """Know of a site that was added what was learned of it before; what is under way there is told by `recount`."""
        if (place := self._sites.by_name.get(learned_state.site)) is not None:
            self._sites.restore(place, learned_state)

    def recount(
        self,
        site: str,
        *,
        attempts: Iterable[Underway] = (),
        used: Mapping[int, int] | None = None,
        operations: Mapping[Operation, int] | None = None,
    ) -> None:
        """All that is under way at a site, whatever was thought: attempts, what is used of each shape, operations."""
        if (place := self._sites.by_name.get(site)) is None:
            return
        place.recount(attempts, samples=self.samples)
        place.used.clear()
        place.used.update(used or {})
        for operation in ("submission", "transfer", "file-operation"):
            place.score.recount(operation, (operations or {}).get(operation, 0))
        self._sites.touch(place)

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
        """A site with room for what is asked, whether it was woken for it, and whether it was the preferred one; or None.

        Sites are known by their indices: `prefer` is taken where it can be; `avoid` is left out where any other site could do
        it, now or later; `unfit` always. Where no site can be picked, the first that sleeps and whose time has come is woken.
        """
        sites = self._sites
        if sites.trials:
            sites.end_trials(now)
        if pool.position != sites.changes.end:
            pool.refresh(sites.places, sites.changes)
        if prefer < 0 and not avoid and not unfit:
            # What mostly happens, in short: the same as what follows.
            candidates = pool.counts[CANDIDATE]
            if candidates == 1 or (candidates and self._draws_once):
                index = pool.status.index(CANDIDATE) if candidates == 1 else pool.weights.pick(draws.uniform())
                if index is not None and (place := sites.places[index]) is not None:
                    return place, None, False
        return choose(sites, pool, draws, now=now, avoid=avoid, unfit=unfit, prefer=prefer, activity=activity)

    def choose_again_at(
        self, pool: CandidateSet, now: float, avoid: Collection[int] = (), unfit: Collection[int] = ()
    ) -> float | None:
        """When to ask again where nothing could be chosen, besides when something happens; None: only then."""
        sites = self._sites
        if not sites.trials and not sites.asleep.queue:
            return None
        trial = sites.end_trials(now)
        sites.refresh(pool)
        wake = next_wake_at(sites, pool, now=now, left_out=left_out_of(pool, avoid=avoid, unfit=unfit))
        return min((each for each in (trial, wake) if each is not None), default=None)

    def pool(self, asked: Asked, shape: int = 0) -> CandidateSet:
        """The sites for what is asked, to be handed in to `choose`; until it is forgotten."""
        return self._sites.pool(asked, shape)

    def forget(self, asked: Asked, shape: int = 0) -> None:
        """Nobody asks for this any more."""
        self._sites.forget(asked, shape)

    def explain(self, site: str, *, now: float, asked: Asked = _ANYTHING, shape: int = 0) -> SiteWhy:
        """What every stage says of a site; raises KeyError for one that is not known."""
        return explain_site(self._sites, self._sites.by_name[site], self._sites.pool(asked, shape), now=now)

    def explain_choice(self, *, now: float, asked: Asked = _ANYTHING, shape: int = 0) -> ChoiceWhy:
        """How the next choice stands."""
        return explain_choice(self._sites, self._sites.pool(asked, shape), now=now)
