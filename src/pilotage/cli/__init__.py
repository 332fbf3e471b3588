"""Speaks with people: words in, words and exit codes out; everything it does, it asks `app` to do."""

from __future__ import annotations

import sys

try:
    from pilotage.cli.program import main
except KeyboardInterrupt:  # Ctrl-C before anything could begin: no more is to be said of it than later
    sys.stderr.write("interrupted\n")
    sys.exit(130)

__all__ = ["main"]
