"""How the service starts pilots and attempts at a site."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.reports import Noticed
from pilotage.model.resources import Demand

if TYPE_CHECKING:
    from pilotage.model.sites.entry import SiteEntry


class SiteUnreachable(PilotageError):
    """The site does not answer. What runs there is unknown; try again."""

    retryable = True


class SubmissionRefused(PilotageError):
    """The site rejected the submission; nothing was queued."""

    def __init__(self, what: str, *, reason: str, subject: str = "", next_step: str = "") -> None:
        """Say why, with a reason code of the book."""
        super().__init__(what, subject=subject, next_step=next_step)
        self.reason = reason


class SiteBusy(PilotageError):
    """The site accepts no more jobs now, and nothing was queued. A limit is not a fault: try later."""

    retryable = True
    reason = "queue-full"


class SeenAtSite(msgspec.Struct, frozen=True, kw_only=True):
    """One batch job or process in a listing."""

    native_id: str
    ended: bool = False
    reason: str = ""  # why it ended, if known
    stderr: str = ""  # the last lines it wrote


class SiteAccess(Protocol):
    """Starts pilots and bound attempts at one site. Our key is the name of the batch job, which identifies it."""

    @property
    def look_seconds(self) -> float:
        """How long to wait between two listings."""
        ...

    def submit_pilots(self, key: str, *, count: int = 1) -> Sequence[str]:
        """Start pilots that do not run yet, under a key and the next higher numbers of it.

        Returns their native ids in order; fewer than asked for if the rest has to wait. Raises `SiteUnreachable`,
        `SiteBusy` or `SubmissionRefused` if none could be started.
        """
        ...

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        """Start an agent for one attempt, unless one runs already; return its native id. Raises as `submit_pilots`."""
        ...

    def cancel(self, *keys: str) -> None:
        """Cancel the batch jobs of these keys; unknown keys are ignored. Raises `SiteUnreachable`."""
        ...

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        """Our batch jobs that are there, or ended since the last listing, by key. Raises `SiteUnreachable`.

        An `expected` key that is missing is looked up in the site's accounting, if it has one.
        """
        ...

    def notice(self, unheard: Collection[str]) -> Sequence[Noticed]:
        """Batch jobs that need attention, of those that have not contacted the service, as in the last listing.

        A job that cannot start by itself comes with the site's reason, a running one with the last lines it printed.
        This is cheap for the site, however often it is called. Raises `SiteUnreachable`.
        """
        ...

    def close(self) -> None:
        """Close connections and interrupt a call in another thread; what was started keeps running."""
        ...


@runtime_checkable
class TellsScheduler(Protocol):
    """An access to a site whose batch system tells its version."""

    def scheduler(self) -> str:
        """The batch system and its version, such as `slurm 23.02.6`. Raises `SiteUnreachable`."""
        ...


class SiteContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a service provides to a site's access: addresses and tokens for its agents. Each is made on demand."""

    state: str  # the state folder of the service
    folder: str  # this site's own folder; may not exist
    agent: Callable[[], str]  # the agent's archive
    server: Callable[[], str]  # the address for agents elsewhere; raises `SiteUnreachable` or `SubmissionRefused`
    socket: str  # the address for agents on this computer
    announcement: str  # the file in which the service announces its address to them
    token: Callable[[], str]  # for agents of this site
    token_file: str  # the token file for agents on this computer
    ca_file: Callable[[], str]  # the service's own certificate authority; empty if it has none


class MakesSiteAccess(Protocol):
    """Makes the access to sites of one kind. Found by its entry point in `pilotage.sites`."""

    def __call__(self, entry: SiteEntry, context: SiteContext, /) -> SiteAccess:
        """The access to the site of an entry; contacts nothing yet."""
        ...
