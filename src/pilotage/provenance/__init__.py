"""Makes the record of a job that is over, from which it can be understood and run again years later."""

from __future__ import annotations

__all__ = [
    "assembly",
    "differences",
    "exports",
    "history",
    "index",
    "reconstruction",
    "recorder",
    "script_results",
    "trace",
]
