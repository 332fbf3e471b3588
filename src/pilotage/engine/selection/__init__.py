"""Chooses sites by their behaviour: filter → status → score → room → pick; the engine holds a `Selection`."""

from pilotage.engine.selection.black_holes import Cause, cause_of
from pilotage.engine.selection.filters import Requirements, SiteDescription
from pilotage.engine.selection.sampling import Draws
from pilotage.engine.selection.selection import Selection
from pilotage.engine.selection.site_profile import LearnedState, Underway
from pilotage.engine.selection.status import Change, Drained, Hibernated, Woken
from pilotage.model.settings.engine import SelectionSettings

__all__ = [
    "Cause",
    "Change",
    "Drained",
    "Draws",
    "Hibernated",
    "LearnedState",
    "Requirements",
    "Selection",
    "SelectionSettings",
    "SiteDescription",
    "Underway",
    "Woken",
    "cause_of",
]
