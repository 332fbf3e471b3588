"""Errors between a client and its server; importing them imports no HTTP."""

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
    """The server did not do what it was asked."""


class NoServer(ServerError):
    """No server is named, and none is known in this folder or above: start one, or name one."""

    def __init__(self) -> None:
        """Say how to start or name one."""
        super().__init__(
            "no server is known in this folder or above it", next_step=f"{START_A_SERVER}, or {NAME_A_SERVER}"
        )


class ServerUnreachable(ServerError):
    """The server does not answer. Whether it carried out the request is unknown; trying again can help."""

    exit_code = ExitCode.STOPPED
    retryable = True


class CertificateRefused(ServerError):
    """The server's certificate was rejected, so nothing was sent; the message says why, and what to do."""


class ServerRefused(ServerError):
    """The server refused the request, with `status` and `code`; correct what the message names."""

    def __init__(self, what: str, *, subject: str, status: int, code: str, next_step: str = "") -> None:
        """Keep status and code, for programs, beside the message."""
        super().__init__(what, subject=subject, next_step=next_step)
        self.status = status
        self.code = code


class ServerTroubled(ServerError):
    """The server runs but cannot do it now; trying again can help."""

    exit_code = ExitCode.STOPPED
    retryable = True


class NotOurServer(ServerError):
    """The program at that address is not a pilotage server."""


class BadDocument(DocumentError):
    """The server rejected a document: it has faults, or files are in its way."""
