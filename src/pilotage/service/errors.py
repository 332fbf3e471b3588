"""Errors of running jobs: refused operations, and results that could not be published."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.exchange.operations import Refused


class NotRunning(PilotageError):
    """The service has stopped or is stopping. Nothing was done; try again when it is back."""

    retryable = True


class OperationRefused(PilotageError):
    """The operation was refused; the message says why, and `subject` names what prevents it."""

    def __init__(self, refused: Refused) -> None:
        """Repeat what the engine answered."""
        super().__init__(refused.message, subject=refused.subject, next_step=refused.next_step)
        self.code = refused.code


class Superseded(PilotageError):
    """A later exchange of the same agent arrived before this one was answered."""


class UnknownSite(PilotageError):
    """No site of this name has a site agent: its entry must say `started_by: agent`."""


# Completes futures; a cancelled one is left alone.

Result = TypeVar("Result")


def answer(future: Future[Result], question: Callable[..., Result], *arguments: object) -> None:
    """Complete a future with the result of a call, or with the error it raises."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = question(*arguments)
    except Exception as fault:  # noqa: BLE001 # the caller gets it
        future.set_exception(fault)
    else:
        future.set_result(result)


def fail(future: Future[Any], fault: Exception) -> None:
    """Complete a future with an error."""
    if future.set_running_or_notify_cancel():
        future.set_exception(fault)


def for_many() -> Future[None]:
    """A future that several callers wait for: none of them can cancel it for the others."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


class Unpublished(msgspec.Struct, frozen=True, kw_only=True):
    """A package whose outputs could not be published: the reason, and what to do before its job is released."""

    package: str  # dotted
    attempt: int
    what: str
    next_step: str = ""
    count: int = 1  # packages of the job that this reason stops
