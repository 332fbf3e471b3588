"""What an agent with a token of its own or of its site may not do: speak for another one, or have what it does not run.

The token of a site is what its pilots are started with, and all of them can read it. So it lets a pilot introduce itself whom
nobody knows yet, and nothing else: such a pilot is given a token of its own, and is heard when it shows that. Its name, which
nobody can guess, is known from then on, and only its own token speaks in it; whoever settles a pilot that died finds that beside
its events. The agent of a site, which started them all, may speak for each of them.

The engine is asked once for each pilot, and about once a minute for each job or content that is fetched: exchanges cost
nothing more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from pilotage.book.rows import AttemptFacts
from pilotage.engine.engine import Engine
from pilotage.model.exchange import Exchange
from pilotage.model.site_exchange import SiteSays
from pilotage.model.work import AgentSays
from pilotage.service.access import SITE_AGENT, Forbidden, Principal
from pilotage.service.http.errors import Malformed
from pilotage.service.http.running import Running

BELIEVED_SECONDS = 60.0
REMEMBERED_MAX = 10_000
JOBS_MAX = 100
"""Whose files are remembered; they may be many."""
SEQUENCE_MAX = 2**41
"""Whoever settles a dead pilot counts from 2**40 on, beyond all that it said itself."""

Told = TypeVar("Told")


class _Sited(msgspec.Struct):
    site: str = ""
    request: str | None = None


_sited = msgspec.json.Decoder(_Sited)


class SiteBounds:
    """Holds agents to the site that their token names."""

    def __init__(
        self, running: Running, *, told: Callable[[str], Awaitable[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take what knows who runs what, and who knows by the book at which site a pilot was, if anybody does."""
        self._running = running
        self._told = told
        self._clock = clock
        self._sites: dict[str, str] = {}  # of pilots that the engine or the book knows
        # Until when a site is believed to read some files of a job.
        self._files: dict[tuple[str, str], tuple[float, frozenset[str]]] = {}
        self._contents: dict[tuple[str, str], float] = {}  # … and to need some content

    async def check_exchange(self, principal: Principal, says: AgentSays, ended: Principal | None = None) -> bool:
        """Whether an agent is to be heard: one that is new, or whose own token has ended, is first given a token of its own.

        The one that has ended shows that it is the same agent as before; that it may still speak, the token of its site does.
        Refuse an exchange for another site, or in the name of another pilot.
        """
        exchange = says.exchange
        if exchange.site != principal.site:
            raise _forbidden(principal, f"site {exchange.site[:64]}")
        name = exchange.pilot
        if principal.pilot not in ("", name):
            raise _not_its_own(principal, f"pilot {name[:64]}")
        known = self._sites.get(name)
        if known is None:
            # One that nobody knows tells who it is in this very exchange, which is looked at below. One that has ended may
            # still have something to tell of what it ran, and nobody of another site has.
            known = await self._ask(lambda engine: _site_of(engine, name)) or await self._told(name)
            if known:
                if len(self._sites) >= REMEMBERED_MAX:
                    self._sites.clear()
                self._sites[name] = known
        if known not in ("", principal.site):
            raise _forbidden(principal, f"pilot {name[:64]} of site {known}")
        if not principal.pilot:
            if not known or (ended is not None and (ended.site, ended.pilot) == (principal.site, name)):
                return False
            self.check_holder(principal, name)
        await self._check_events(principal, exchange)
        return True

    async def _check_events(self, principal: Principal, exchange: Exchange) -> None:
        """Refuse who says that it is at another site, or was asked for there."""
        for event in exchange.events:
            if event.type == "PilotStarted" and (request := _told_of(event.data).request):
                asked = await self._ask(partial(_asked_at, request))
                if asked not in ("", principal.site):
                    raise _forbidden(principal, f"pilot {request[:64]}, asked for at site {asked}")
            if event.type in ("PilotStarted", "NodeDescribed") or event.site is not None:
                told = event.site or _told_of(event.data).site
                if told not in ("", principal.site):
                    raise _forbidden(principal, f"site {told[:64]}")

    def check_holder(self, principal: Principal, pilot: str | None) -> None:
        """Refuse who may not speak for a pilot of its site, or do what is that pilot's: only itself and its site's agent may."""
        if principal.site and principal.pilot != pilot and SITE_AGENT not in principal.scopes:
            raise _not_its_own(principal, f"pilot {pilot[:64]}" if pilot else "no pilot")

    def has_attempt(self, principal: Principal, attempt: AttemptFacts) -> bool:
        """Whether an attempt is no other pilot's, and at no other site."""
        if not principal.site:
            return True
        return attempt.site == principal.site and (SITE_AGENT in principal.scopes or attempt.pilot == principal.pilot)

    def check_introduced(self, principal: Principal) -> None:
        """Refuse the token that pilots of a site are started with, and which is good for no more than an introduction."""
        if principal.site and not principal.pilot and SITE_AGENT not in principal.scopes:
            raise _not_its_own(principal, "the token that all pilots of its site have")

    def check_site(self, principal: Principal, says: SiteSays) -> None:
        """Refuse the agent of a site that speaks for another one."""
        told = {says.site, *(each.site for each in says.reports)}
        if principal.site and told != {principal.site}:
            raise _forbidden(principal, f"site {next(iter(told - {principal.site}))[:64]}")

    async def check_file(self, principal: Principal, job: str, name: str) -> None:
        """Refuse a file that nothing reads of what the site runs now of a job.

        Each question brings the names of all that it runs, so that few are asked for many files.
        """
        site, now = principal.site, self._clock()
        until, names = self._files.get((site, job), (0.0, frozenset()))
        if until > now and name in names:
            return
        names = await self._ask(lambda engine: self._running.jobs.reads(engine, site, job))
        if name not in names:
            raise _forbidden(principal, f"file {name[:256]} of job {job[:64]}, which nothing reads that it runs")
        if len(self._files) >= JOBS_MAX:
            self._files.clear()
        self._files[site, job] = (now + BELIEVED_SECONDS, names)

    async def check_content(
        self, principal: Principal, sha256: str, brought_by: Callable[[str], Awaitable[frozenset[str]]]
    ) -> None:
        """Refuse content that no job brought along of which the site runs something now."""
        key, now = (principal.site, sha256), self._clock()
        if self._contents.get(key, 0.0) > now:
            return
        for job in await self._ask(lambda engine: _jobs_at(engine, principal.site)):
            if sha256 in await brought_by(job):
                break
        else:
            raise _forbidden(principal, f"content {sha256[:64]}, which nothing that it runs needs")
        if len(self._contents) >= REMEMBERED_MAX:
            self._contents.clear()
        self._contents[key] = now + BELIEVED_SECONDS

    async def _ask(self, question: Callable[[Engine], Told]) -> Told:
        return await asyncio.wrap_future(self._running.jobs.ask(question))


def check_numbers(exchange: Exchange) -> None:
    """Refuse an exchange under a number that no agent comes to: one that is believed would make all others old."""
    if exchange.sequence > SEQUENCE_MAX:
        raise Malformed("no exchange has such a number", expected=f"at most {SEQUENCE_MAX}", got=str(exchange.sequence))


def _site_of(engine: Engine, pilot: str) -> str:
    """Where a pilot is, or was asked for: nobody introduces itself under the name of what was asked for."""
    found = engine.state.pilots.by_name.get(pilot) or engine.state.pilots.requests.get(pilot)
    return found.site.name if found is not None else ""


def _jobs_at(engine: Engine, site: str) -> list[str]:
    """The jobs of which the pilots of a site hold something."""
    pilots = [each for each in engine.state.pilots.by_name.values() if each.site.name == site]
    return list(dict.fromkeys(ref.job for pilot in pilots for ref in (*pilot.assigned, *pilot.owed)))


def _asked_at(key: str, engine: Engine) -> str:
    """The site at which something was asked for that may still come."""
    found = engine.state.pilots.requests.get(key)
    return found.site.name if found is not None else ""


def _told_of(data: msgspec.Raw) -> _Sited:
    try:
        return _sited.decode(data)
    except msgspec.DecodeError:
        return _Sited()  # the engine refuses it by itself


def _not_its_own(principal: Principal, got: str) -> Forbidden:
    return Forbidden(
        "only the pilot itself may do this, with the token that it was given in answer to its first exchange",
        subject=f"site {principal.site}",
        expected=f"pilot {principal.pilot}" if principal.pilot else "the token of one pilot",
        got=got,
        next_step="ask `POST /agent/exchange` for one under a new name: the answer has it in `Pilotage-Token`",
    )


def _forbidden(principal: Principal, got: str) -> Forbidden:
    return Forbidden(
        "this token is for the agents of one site",
        subject=principal.user,
        expected=f"site {principal.site}",
        got=got,
        next_step="show the token of that site",
    )
