"""Tokens put together: the keys of a state folder, and what they sign."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.adapters.tokens import StoredKeys
from pilotage.app.book import local_user

if TYPE_CHECKING:
    from pilotage.model.configuration import Settings
    from pilotage.service.tokens import Tokens

DAY_SECONDS = 86_400.0


def tokens_of(state: Path, settings: Settings) -> Tokens:
    """What gives out tokens with the keys of a state folder, and knows them again; keys are made when they are needed.

    A pilot of a site gets `for_pilot(site)`, the agent of a site `for_site_agent(site)`; also where no service runs.
    """
    from pilotage.service.tokens import Tokens

    seconds = settings.service.token_days * DAY_SECONDS
    return Tokens(StoredKeys(state), user=local_user(), clock=time.time, pilot_seconds=seconds)
