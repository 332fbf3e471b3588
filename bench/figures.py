"""Figures beside their bounds, and which of them were missed."""

from __future__ import annotations

import json
import subprocess
import sys


class Figures:
    """Prints figures beside their bounds, and remembers which were missed."""

    def __init__(self) -> None:
        """None missed yet."""
        self.missed: list[str] = []

    def show(
        self, name: str, value: float, unit: str, *, bound: float | None = None, at_least: float | None = None
    ) -> None:
        """Print one figure with what it may be at most, or must be at least."""
        missed = (bound is not None and value > bound) or (at_least is not None and value < at_least)
        if missed:
            self.missed.append(name)
        said = f"at most {bound:g}" if bound is not None else f"at least {at_least:g}"
        print(f"  {name:<36}{value:10.2f} {unit:<18} {said}{'   MISSED' if missed else ''}")

    def done(self) -> None:
        """End with exit code 1 if a bound was missed."""
        if self.missed:
            raise SystemExit(f"missed: {', '.join(self.missed)}")


def child(module: str, name: str, count: int) -> dict[str, float]:
    """One measurement of a bench, in a process of its own."""
    command = [sys.executable, "-m", module, "--one", name, "--count", str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found
