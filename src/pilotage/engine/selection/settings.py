"""What can be set about the choice of sites; the table is with the other settings of the program, in the model."""

from pilotage.model.selection_settings import Policy, SelectionSettings

__all__ = ["Policy", "SelectionSettings"]
