"""What can go wrong between a client and its server; to know these takes no HTTP."""

from __future__ import annotations

from pilotage.agent.errors import AgentError
from pilotage.model.errors import DocumentError, PilotageError
from pilotage.model.exit_codes import ExitCode

__all__ = [
    "AgentError",
    "BadDocument",
    "CertificateRefused",
    "NoServer",
    "NotOurServer",
    "ServerError",
    "ServerRefused",
    "ServerTroubled",
    "ServerUnreachable",
]

START_A_SERVER = "start one with `pilotage serve`, or `pilotage serve --book-only` for the book alone"
NAME_A_SERVER = "name one with --server URL or PILOTAGE_SERVER"


class ServerError(PilotageError):
    """A server was asked for something, and did not give it."""


class NoServer(ServerError):
    """Nobody said which server, and none is known in this folder or above it: start one, or name one."""

    def __init__(self) -> None:
        """Say how to come by one."""
        super().__init__(
            "no server is known in this folder or above it", next_step=f"{START_A_SERVER}, or {NAME_A_SERVER}"
        )


class ServerUnreachable(ServerError):
    """The server does not answer. Whether it did what was asked is not known; trying again can help."""

    exit_code = ExitCode.STOPPED
    retryable = True


class CertificateRefused(ServerError):
    """The certificate of the server is not believed, so nothing was said to it; the message says why, and what to do."""


class ServerRefused(ServerError):
    """The server understood and refused: `status` and `code` are what it said; mend what is named."""

    def __init__(self, what: str, *, subject: str, status: int, code: str, next_step: str = "") -> None:
        """Carry what programs look at beside what people read."""
        super().__init__(what, subject=subject, next_step=next_step)
        self.status = status
        self.code = code


class ServerTroubled(ServerError):
    """The server is there and cannot do it now; trying again can help."""

    exit_code = ExitCode.STOPPED
    retryable = True


class NotOurServer(ServerError):
    """Somebody answers at that address who is no server of ours."""


class BadDocument(DocumentError):
    """The server found faults in a document, or files in its way, and did not take it."""
