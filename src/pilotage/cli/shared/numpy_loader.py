"""Imports numpy without the threads of its linear algebra, which are not used here and cost 30 ms."""

from __future__ import annotations

import os
from importlib import import_module

_THREADS = "OPENBLAS_NUM_THREADS"


def import_numpy_quickly() -> None:
    """Import numpy with a single thread; the environment is restored for child processes."""
    if _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[_THREADS]
