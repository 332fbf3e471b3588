"""Why what was asked of those who run jobs was not done."""

from __future__ import annotations

from pilotage.model.errors import PilotageError
from pilotage.model.operations import Refused


class NotRunning(PilotageError):
    """The service has stopped, or is about to. Nothing was done; ask again when it is back."""

    retryable = True


class OperationRefused(PilotageError):
    """What was asked for is not done; the message says why, and `subject` what stands in its way."""

    def __init__(self, refused: Refused) -> None:
        """Say it as the engine said it."""
        super().__init__(refused.message, subject=refused.subject, next_step=refused.next_step)
        self.code = refused.code


class Superseded(PilotageError):
    """A later exchange of the same agent came before this one was answered."""


class UnknownSite(PilotageError):
    """No site of this name has an agent of its own here: its entry says `started_by: agent`."""
