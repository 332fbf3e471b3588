"""The command line: words in, words and exit codes out. Everything it does, it asks `app` to do."""

from __future__ import annotations

from pilotage.cli.program import main

__all__ = ["main"]
