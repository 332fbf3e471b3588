"""What the engine is told of sites by people: each kind of message in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pilotage.model.operations import AnySiteOperation, HibernateSite, ProbeSite, SiteDeed, TrySite, WakeSite
from pilotage.model.site import Site
from pilotage.service.messages import AskedOfSite, Input, SitesChanged


def sites_changed(sites: Sequence[Site], *, rewritten: Iterable[str] = (), renewed: Iterable[str] = ()) -> Input:
    """What tells the core that these are the sites from now on, of which something is said anew, and which start others."""
    return SitesChanged(sites=tuple(sites), rewritten=tuple(rewritten), renewed=tuple(renewed))


def asked_of_site(deed: SiteDeed, site: str, *, message: str = "") -> Callable[[int], Input]:
    """What makes, of a token, the message that asks for something at a site."""
    operation: AnySiteOperation
    match deed:
        case "hibernate":
            operation = HibernateSite(site=site, message=message)
        case "wake":
            operation = WakeSite(site=site, message=message)
        case "probe":
            operation = ProbeSite(site=site)
        case "try":
            operation = TrySite(site=site)
    return lambda token: AskedOfSite(token=token, operation=operation)
