"""Errors of event delivery, with the parts that every error of pilotage has.

The agent runs where the rest of pilotage is not installed, so these classes do not derive from `PilotageError`. They
have the same attributes, so one function can show both.
"""

from __future__ import annotations

import errno

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class AgentError(Exception):
    """The base class of the agent: what failed, on which object, expected against got, and what to do next."""

    retryable = False

    def __init__(self, what: str, *, subject: str = "", expected: str = "", got: str = "", next_step: str = "") -> None:
        """Keep the parts separate, so that a terminal and an API can format them differently."""
        super().__init__(what)
        self.what = what
        self.subject = subject
        self.expected = expected
        self.got = got
        self.next_step = next_step

    def __str__(self) -> str:
        """One or two lines of plain text."""
        text = f"{self.subject}: {self.what}" if self.subject else self.what
        if self.expected:
            text += f"; expected {self.expected}"
        if self.got:
            text += f", got {self.got}"
        if self.next_step:
            text += f"\n  {self.next_step}"
        return text


class BadEvent(AgentError):
    """The event violates the wire format and was not written. Correct the named part and log it again."""


class BadSetting(AgentError):
    """A server, token, folder or environment variable cannot be used. Correct the named one."""


class SpoolError(AgentError):
    """The spool cannot be read or written; what was logged before is still there."""


class SpoolFull(SpoolError):
    """No room for this event: it was not written, the spool is whole. Make room and log it again."""

    retryable = True


class NotDelivered(AgentError):
    """The server did not acknowledge in time. The event is kept in the spool and will be delivered later."""

    retryable = True


class TokenRefused(NotDelivered):
    """The server does not accept events with this token. They are kept, and delivered with the next valid token."""

    retryable = False


class EventRefused(AgentError):
    """The server refused this event and said why; it is kept in `refused.jsonl` of its queue."""

    def __init__(self, what: str, *, code: str, subject: str) -> None:
        """Carry the server's code, such as `unknown_type` or `conflict`."""
        super().__init__(what, subject=subject, next_step="the event is set aside, with this reason, in refused.jsonl")
        self.code = code


def spool_error(error: OSError, *, doing: str, subject: str) -> SpoolError:
    """The error for a failed disk operation of the spool."""
    why = error.strerror or type(error).__name__
    if error.errno in _FULL:
        return SpoolFull(
            f"no room while {doing}: {why}",
            subject=subject,
            next_step="make room and log the event again; everything logged before is kept",
        )
    if error.errno in {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}:
        return SpoolError(
            f"this file system has no file locks: {why}",
            subject=subject,
            next_step="choose a spool folder on a local disk with PILOTAGE_SPOOL",
        )
    return SpoolError(f"failed while {doing}: {why}", subject=subject)
