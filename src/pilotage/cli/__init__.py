"""The command line: parses arguments, calls `app`, prints results and returns exit codes."""

from __future__ import annotations

import sys

try:
    from pilotage.cli.program import main
except KeyboardInterrupt:  # Ctrl-C during the imports: the same message and exit code as later, no traceback
    sys.stderr.write("interrupted\n")
    sys.exit(130)

__all__ = ["main"]
