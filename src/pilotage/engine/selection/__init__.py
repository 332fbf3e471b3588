"""The choice of sites by how they behave: filter → status → score → room → pick. `Selection` is what the engine holds."""

from pilotage.engine.selection.causes import Cause, cause_of
from pilotage.engine.selection.draws import Draws
from pilotage.engine.selection.filters import Asked, SiteDescription
from pilotage.engine.selection.place import Standing, Underway
from pilotage.engine.selection.selection import Selection
from pilotage.engine.selection.settings import SelectionSettings
from pilotage.engine.selection.status import Change, Drained, Hibernated, Woken

__all__ = [
    "Asked",
    "Cause",
    "Change",
    "Drained",
    "Draws",
    "Hibernated",
    "Selection",
    "SelectionSettings",
    "SiteDescription",
    "Standing",
    "Underway",
    "Woken",
    "cause_of",
]
