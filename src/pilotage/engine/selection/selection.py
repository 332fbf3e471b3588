"""The choice of sites, as the engine holds it: it is told what happens, says what follows, and picks.

filter → status → score → room → pick, each stage in a module of its own. Time and chance are handed in: the same history and the same
draws give the same choices. What was learned of a site comes out as one value (`standing`) from which it is restored exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pilotage.engine.selection.draws import Draws
from pilotage.engine.selection.explaining import ChoiceWhy, SiteWhy, explain_choice, explain_site
from pilotage.engine.selection.filters import Asked, SiteDescription
from pilotage.engine.selection.happenings import Happenings
from pilotage.engine.selection.picking import Choice, choose, indices_of, left_out_of, next_wake_at, pick
from pilotage.engine.selection.place import Place, Standing, Underway
from pilotage.engine.selection.pools import CANDIDATE, NAMES, Pool
from pilotage.engine.selection.room import Room
from pilotage.engine.selection.scores import Operation
from pilotage.engine.selection.status import Woken

_ANYTHING = Asked()


class Selection(Happenings):
    """Sites by how they behave."""

    # --- sites --------------------------------------------------------------------------------------------------------

    def add(self, description: SiteDescription) -> None:
        """One more site, or another description of one that is known."""
        self._sites.add(description)

    def remove(self, site: str) -> None:
        """One less: all that was learned of it goes with it."""
        if (place := self._sites.by_name.get(site)) is not None:
            self._sites.remove(place)

    def names(self) -> list[str]:
        """The sites, in the order of their picking: the same draws give the same choices only in the same order."""
        return [place.name for place in self._sites.places if place is not None]

    def place(self, site: str) -> Place:
        """A site itself, for who tells of it very often; raises KeyError for one that is not known."""
        return self._sites.by_name[site]

    def standing(self, site: str) -> Standing:
        """What was learned of a site, to be written down; raises KeyError for one that is not known."""
        return self._sites.by_name[site].standing()

    def restore(self, standing: Standing) -> None:
        """Know of a site that was added what was learned of it before; what is under way there is told by `recount`."""
        if (place := self._sites.by_name.get(standing.site)) is not None:
            self._sites.restore(place, standing)

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

    # --- room ---------------------------------------------------------------------------------------------------------

    def use(self, site: str, shape: int = 0) -> None:
        """One more of a shape is reserved or under way."""
        if (place := self._sites.by_name.get(site)) is not None:
            self._sites.use(place, shape)

    def free(self, site: str, shape: int = 0) -> None:
        """One less."""
        if (place := self._sites.by_name.get(site)) is not None:
            self._sites.free(place, shape)

    def room_changed(
        self,
        site: str,
        *,
        slots: Mapping[int, int] | None = None,
        backlog: int | None = None,
        answers: bool | None = None,
    ) -> None:
        """Its live slots of some shapes, what its pilots let wait besides, or whether it answers: what is given."""
        if (place := self._sites.by_name.get(site)) is None:
            return
        place.slots.update(slots or {})
        place.backlog = place.backlog if backlog is None else backlog
        place.answers = place.answers if answers is None else answers
        self._sites.touch(place)

    def room(self, site: str, shape: int = 0) -> Room:
        """How much of a shape may be at a site at once; raises KeyError for one that is not known."""
        return self._sites.by_name[site].room(shape)

    # --- picking --------------------------------------------------------------------------------------------------------

    def pick(
        self,
        draws: Draws,
        *,
        now: float,
        pool: Pool | None = None,
        asked: Asked = _ANYTHING,
        shape: int = 0,
        activity: str = "",
        prefer: str = "",
        avoid: Collection[str] = (),
        unfit: Collection[str] = (),
    ) -> Choice | None:
        """A site with room for what is asked, or None as things stand.

        `prefer` is taken where it can be; `avoid` is left out where any other site could do it, now or later; `unfit` always.
        Where no site can be picked, the first that sleeps and whose time has come is woken and picked: the choice says so.
        Who asks the same again and again hands the pool in, which spares looking it up.
        """
        self._sites.end_trials(now)
        pool = self._fresh(pool, asked, shape)
        return pick(self._sites, pool, draws, now=now, avoid=avoid, unfit=unfit, prefer=prefer, activity=activity)

    def choose(
        self,
        draws: Draws,
        pool: Pool,
        now: float,
        avoid: Collection[int] = (),
        unfit: Collection[int] = (),
        prefer: int = -1,
        activity: str = "",
    ) -> tuple[Place, Woken | None, bool] | None:
        """As `pick`, for who knows sites by their indices and asks very often."""
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
        self, pool: Pool, now: float, avoid: Collection[int] = (), unfit: Collection[int] = ()
    ) -> float | None:
        """When to ask again where nothing could be chosen, besides when something happens; None: only then."""
        sites = self._sites
        if not sites.trials and not sites.asleep.queue:
            return None
        trial = sites.end_trials(now)
        sites.refresh(pool)
        wake = next_wake_at(sites, pool, now=now, left_out=left_out_of(pool, avoid=avoid, unfit=unfit))
        return min((each for each in (trial, wake) if each is not None), default=None)

    def _fresh(self, pool: Pool | None, asked: Asked, shape: int) -> Pool:
        if pool is None:
            return self._sites.pool(asked, shape)
        self._sites.refresh(pool)
        return pool

    def pool(self, asked: Asked, shape: int = 0) -> Pool:
        """The sites for what is asked, to be handed in to `pick`; until it is forgotten."""
        return self._sites.pool(asked, shape)

    def ask_again_at(
        self,
        *,
        now: float,
        pool: Pool | None = None,
        asked: Asked = _ANYTHING,
        shape: int = 0,
        avoid: Collection[str] = (),
        unfit: Collection[str] = (),
    ) -> float | None:
        """When to ask again where nothing could be picked, besides when something happens; None: only then."""
        trial = self._sites.end_trials(now)
        pool = self._fresh(pool, asked, shape)
        sites = self._sites
        left_out = left_out_of(pool, avoid=indices_of(sites, avoid), unfit=indices_of(sites, unfit))
        times = (trial, next_wake_at(self._sites, pool, now=now, left_out=left_out))
        return min((each for each in times if each is not None), default=None)

    def forget(self, asked: Asked, shape: int = 0) -> None:
        """Nobody asks for this any more."""
        self._sites.forget(asked, shape)

    def status(self, site: str, *, asked: Asked = _ANYTHING, shape: int = 0) -> str:
        """The set a site is in for what is asked; empty where it could not do it or is not known."""
        place = self._sites.by_name.get(site)
        return NAMES[self._sites.pool(asked, shape).status[place.index]] if place is not None else ""

    def explain(self, site: str, *, now: float, asked: Asked = _ANYTHING, shape: int = 0) -> SiteWhy:
        """What every stage says of a site; raises KeyError for one that is not known."""
        return explain_site(self._sites, self._sites.by_name[site], self._sites.pool(asked, shape), now=now)

    def explain_choice(self, *, now: float, asked: Asked = _ANYTHING, shape: int = 0) -> ChoiceWhy:
        """How the next choice stands."""
        return explain_choice(self._sites, self._sites.pool(asked, shape), now=now)
