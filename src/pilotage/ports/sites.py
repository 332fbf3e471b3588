"""How work gets to a site."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.reports import Noticed
from pilotage.model.resources import Demand

if TYPE_CHECKING:
    from pilotage.model.sites.entry import SiteEntry


class SiteUnreachable(PilotageError):
    """The site does not answer: nothing is known, which is not the same as nothing being there. Try again."""

    retryable = True


class SubmissionRefused(PilotageError):
    """The site answered and did not take it; nothing was queued."""

    def __init__(self, what: str, *, reason: str, subject: str = "", next_step: str = "") -> None:
        """Say why, with a reason that is one of the words of the book."""
        super().__init__(what, subject=subject, next_step=next_step)
        self.reason = reason


class SiteBusy(PilotageError):
    """The site answered that it takes no more now, and nothing was queued: its limits are not faults. Try later."""

    retryable = True
    reason = "queue-full"


class SeenAtSite(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing says of one key."""

    native_id: str
    ended: bool = False
    reason: str = ""  # why it ended, where that is known
    stderr: str = ""  # the last lines that it wrote


class SiteAccess(Protocol):
    """A way to start pilots and bound attempts at one site. Our key is the name of what is started: it is told by that."""

    @property
    def look_seconds(self) -> float:
        """How long to wait between two listings."""
        ...

    def submit_pilots(self, key: str, *, count: int = 1) -> Sequence[str]:
        """Start pilots, unless they are there: under a key, and under those whose number is greater by 1, 2, ….

        Their native ids, in this order; fewer than asked for where the rest has to wait. Where not one could be started it
        raises `SiteUnreachable`, `SiteBusy` or `SubmissionRefused`.
        """
        ...

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        """Start an agent for one attempt, unless there is one; its native id. Raises as `submit_pilots`."""
        ...

    def cancel(self, *keys: str) -> None:
        """End what was started under these keys; nothing happens where there is nothing. Raises `SiteUnreachable`."""
        ...

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        """Everything of ours that is there or ended since the last listing, by key. Raises `SiteUnreachable`.

        What is `expected` and not there is asked for elsewhere, where the site remembers what ended.
        """
        ...

    def notice(self, unheard: Collection[str]) -> Sequence[Noticed]:
        """What somebody should know of things that have not spoken, as they were in the last listing.

        What will not begin by itself is told with the site's own word, and what runs for a while with the last that it
        printed. It costs the site next to nothing, however often it is asked. Raises `SiteUnreachable`.
        """
        ...

    def close(self) -> None:
        """Let go of what is held, and break off a call that is under way in another thread; what was started goes on."""
        ...


class SiteSurroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a service has for a site: where its agents find it, and what they show. Nothing is made before it is asked for."""

    state: str  # the folder of the service
    folder: str  # where this site may keep something of its own; it need not be there
    agent: Callable[[], str]  # the archive that is started as an agent
    server: Callable[[], str]  # the address for agents elsewhere; raises `SiteUnreachable` or `SubmissionRefused`
    socket: str  # the address for agents of this computer
    announcement: str  # the file where the service says its address to those
    token: Callable[[], str]  # what agents of this site show
    token_file: str  # the file of what agents of this computer show
    ca_file: Callable[[], str]  # of the authority of the service; empty where it has none of its own


class MakesSiteAccess(Protocol):
    """What makes the way to a site of one kind. It is found by its entry point in `pilotage.sites`."""

    def __call__(self, entry: SiteEntry, around: SiteSurroundings, /) -> SiteAccess:
        """The way to the site of an entry; nothing is called there yet."""
        ...
