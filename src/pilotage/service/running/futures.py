"""Answering those who wait for a future: one of whom nobody waits any more is left alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

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
