"""The one error of the engines: a server that tests need cannot be had, and what to do about it."""

from __future__ import annotations


class EngineError(Exception):
    """A server that tests need could not be installed, started or stopped; the message says why."""
