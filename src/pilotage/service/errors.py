"""Errors of running jobs: what was asked for and not done, and results that could not be published."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.exchange.operations import Refused


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


# Answering those who wait for a future: one of whom nobody waits any more is left alone.

Told = TypeVar("Told")


def answer(future: Future[Told], question: Callable[..., Told], *arguments: object) -> None:
    """Answer by what a question comes to, be it a fault."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        told = question(*arguments)
    except Exception as fault:  # noqa: BLE001 # whoever asked is told
        future.set_exception(fault)
    else:
        future.set_result(told)


def fail(future: Future[Any], fault: Exception) -> None:
    """Answer by a fault."""
    if future.set_running_or_notify_cancel():
        future.set_exception(fault)


def for_many() -> Future[None]:
    """A future for which several may wait: none of them can cancel it for the others."""
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
