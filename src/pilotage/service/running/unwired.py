"""What the engine is told of sites by people, as far as it knows how to hear it: each kind of message in one place.

The words are those of the core and of the operations; where this engine has none of a name, whoever asks is told so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pilotage.engine.engine import Engine
from pilotage.engine.parts import QueueClass
from pilotage.model import operations
from pilotage.model.operations import Refused
from pilotage.model.site import Site
from pilotage.service import messages
from pilotage.service.messages import Input
from pilotage.service.running.driver import OperationRefused

SiteDeed = Literal["hibernate", "wake", "probe"]
_PROBE = re.compile(r"-probe-[0-9]+$")  # the end of the key of a pilot that is only to show that it comes
_DEEDS = {"hibernate": "HibernateSite", "wake": "WakeSite", "probe": "ProbeSite"}


def sites_changed(sites: Sequence[Site]) -> Input | None:
    """What tells the core that these are the sites from now on; None where it takes them at its start only."""
    made: Any = getattr(messages, "SitesChanged", None)
    return None if made is None else made(sites=tuple(sites))


def asked_of_site(deed: SiteDeed, site: str, *, message: str = "") -> Callable[[int], Input]:
    """What makes, of a token, the message that asks for something at a site; raises `OperationRefused` where none can."""
    made: Any = getattr(operations, _DEEDS[deed], None)
    asked: Any = getattr(messages, "AskedOfSite", None)
    if made is None or asked is None:
        told = f"this engine cannot {deed} sites"
        raise OperationRefused(Refused(code="malformed", message=told, subject=f"site {site}"))
    known = {"site": site, "message": message}
    operation = made(**{name: value for name, value in known.items() if name in made.__struct_fields__})
    return lambda token: asked(token=token, operation=operation)


def probes_under_way(engine: Engine) -> list[str]:
    """The sites that are being probed."""
    return [site.name for site in engine.sites.values() if any(map(_PROBE.search, site.requests))]


def executor_of(queue: QueueClass) -> str:
    """The site, or kind of site, that packages ask for; nothing where any will do."""
    asked: Any = getattr(queue, "asked", queue)
    return str(asked.executor)
