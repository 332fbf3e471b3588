"""Imports numpy without the threads that its linear algebra starts: nothing here uses them, and they cost 30 ms."""

from __future__ import annotations

import os
from importlib import import_module

_THREADS = "OPENBLAS_NUM_THREADS"


def import_numpy_quickly() -> None:
    """Import numpy for this process; what the process starts later sees the environment as it was."""
    if _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[_THREADS]
