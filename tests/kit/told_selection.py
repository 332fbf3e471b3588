"""The choice of sites, spoken with by the names of sites: the engine has the sites at hand, tests have their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from pilotage.engine.selection import Cause, Change, Draws, Requirements, Woken
from pilotage.engine.selection import Selection as ByPlace
from pilotage.engine.selection.candidates import CANDIDATE, NAMES, CandidateSet
from pilotage.engine.selection.site_profile import Room
from pilotage.model.settings.engine import Policy

_ANYTHING = Requirements()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The site that was picked, and how it came to that."""

    site: str
    policy: Policy
    tscore: float
    weight: int
    total: int  # of all candidates with room, its own included
    candidates: int
    preferred: bool = False  # it was asked for by name
    woken: Woken | None = None  # it slept until now


class Selection(ByPlace):
    """What the engine tells and asks of a place, told and asked by name; nothing is told of a site that is not known."""

    # --- attempts -------------------------------------------------------------------------------------------------------

    def attempt_created(self, site: str, *, at: float, activity: str = "") -> None:
        """An attempt was handed over to a site."""
        if (profile := self.sites.by_name.get(site)) is not None:
            self.created_at(profile, at, activity)

    def attempt_began(self, site: str, *, at: float, queued_seconds: float | None = None) -> None:
        """It takes a slot; how long it was in the queue of the site, where it was in one of its own."""
        if (profile := self.sites.by_name.get(site)) is not None:
            self.began_at(profile, at, queued_seconds)

    def attempt_ended(
        self,
        site: str,
        *,
        cause: Cause,
        at: float,
        created_at: float,
        began_at: float | None = None,
        queued_seconds: float | None = None,
        activity: str = "",
        pilot: str = "",
        node: str = "",
    ) -> list[Change]:
        """It is over, or nobody waits for it."""
        if (profile := self.sites.by_name.get(site)) is None:
            return []
        return self.ended_at(profile, cause, at, created_at, began_at, queued_seconds, activity, pilot, node)

    # --- room -----------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The sites, in the order of their picking: the same draws give the same choices only in the same order."""
        return [profile.name for profile in self.sites.profiles if profile is not None]

    def use(self, site: str, shape: int = 0) -> None:
        """One more of a shape is reserved or under way."""
        if (profile := self.sites.by_name.get(site)) is not None:
            self.sites.use(profile, shape)

    def free(self, site: str, shape: int = 0) -> None:
        """One less."""
        if (profile := self.sites.by_name.get(site)) is not None:
            self.sites.free(profile, shape)

    def room_changed(
        self,
        site: str,
        *,
        slots: Mapping[int, int] | None = None,
        backlog: int | None = None,
        answers: bool | None = None,
    ) -> None:
        """Its live slots of some shapes, what its pilots let wait besides, or whether it answers: what is given."""
        if (profile := self.sites.by_name.get(site)) is None:
            return
        profile.slots.update(slots or {})
        profile.backlog = profile.backlog if backlog is None else backlog
        profile.answers = profile.answers if answers is None else answers
        self.sites.touch(profile)

    def room(self, site: str, shape: int = 0) -> Room:
        """How much of a shape may be at a site at once; raises KeyError for one that is not known."""
        return self.sites.by_name[site].room(shape)

    def status(self, site: str, *, requirements: Requirements = _ANYTHING, shape: int = 0) -> str:
        """The set a site is in for what is asked; empty where it could not do it or is not known."""
        profile = self.sites.by_name.get(site)
        return NAMES[self.sites.pool(requirements, shape).status[profile.index]] if profile is not None else ""

    # --- picking --------------------------------------------------------------------------------------------------------

    def pick(
        self,
        draws: Draws,
        *,
        now: float,
        pool: CandidateSet | None = None,
        requirements: Requirements = _ANYTHING,
        shape: int = 0,
        activity: str = "",
        prefer: str = "",
        avoid: Collection[str] = (),
        unfit: Collection[str] = (),
    ) -> Choice | None:
        """What `choose` answers, with how it came to that."""
        self.sites.end_trials(now)
        pool = self._fresh(pool, requirements, shape)
        preferred = self.sites.by_name.get(prefer) if prefer else None
        wished = -1 if preferred is None else preferred.index
        found = self.choose(draws, pool, now, self._indices(avoid), self._indices(unfit), wished, activity)
        if found is None:
            return None
        profile, woken, is_preferred = found
        pool = self._fresh(pool, requirements, shape)
        return Choice(
            site=profile.name,
            policy=self.settings.policy,
            tscore=profile.score.tscore,
            weight=pool.weights[profile.index],
            total=pool.weights.total,
            candidates=pool.counts[CANDIDATE],
            preferred=is_preferred,
            woken=woken,
        )

    def ask_again_at(
        self,
        *,
        now: float,
        pool: CandidateSet | None = None,
        requirements: Requirements = _ANYTHING,
        shape: int = 0,
        avoid: Collection[str] = (),
        unfit: Collection[str] = (),
    ) -> float | None:
        """When to ask again where nothing could be picked, besides when something happens; None: only then."""
        self.sites.end_trials(now)
        return self.choose_again_at(
            self._fresh(pool, requirements, shape), now, self._indices(avoid), self._indices(unfit)
        )

    def _fresh(self, pool: CandidateSet | None, requirements: Requirements, shape: int) -> CandidateSet:
        if pool is None:
            return self.sites.pool(requirements, shape)
        self.sites.refresh(pool)
        return pool

    def _indices(self, names: Collection[str]) -> set[int]:
        return {profile.index for name in names if (profile := self.sites.by_name.get(name)) is not None}
