"""Cables between networks that are set apart: what joins two of them, and can be pulled."""

from __future__ import annotations

import itertools
import subprocess

from tests.engines.capsule import Capsule
from tests.engines.errors import EngineError

_NUMBERS = itertools.count()


class Cable:
    """A cable from one capsule's network to another's, with an address at each end; it goes with either of them."""

    def __init__(self, first: Capsule, second: Capsule, *, here: str, there: str) -> None:
        """Lay it; `here` is the address at the first end, `there` the one at the second, and they see just each other."""
        self._first = first
        self.here, self.there = here, there
        self._name = f"cable{next(_NUMBERS)}"  # networks of the tests' own have no other
        _ip(first, "link", "add", self._name, "type", "veth", "peer", "name", self._name, "netns", str(second.pid))
        for capsule, address, other in ((first, here, there), (second, there, here)):
            _ip(capsule, "address", "add", address, "peer", f"{other}/32", "dev", self._name)
            _ip(capsule, "link", "set", self._name, "up")

    def pull(self) -> None:
        """Nothing gets through any more; whoever speaks is not told."""
        _ip(self._first, "link", "set", self._name, "down")

    def plug(self) -> None:
        """It is well again."""
        _ip(self._first, "link", "set", self._name, "up")


def add_address(capsule: Capsule, address: str) -> None:
    """Give a computer an address by which it is known on every cable."""
    _ip(capsule, "address", "add", f"{address}/32", "dev", "lo")


def add_route(capsule: Capsule, address: str, *, by: str) -> None:
    """Have an address be reached by way of a neighbour."""
    _ip(capsule, "route", "add", address, "via", by)


def _ip(capsule: Capsule, *words: str) -> None:
    """Call `ip` on the network of a capsule; from here, where the process numbers are ours."""
    done = subprocess.run([*capsule.networked, "ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError(f"ip {' '.join(words)} failed: {done.stderr.strip()}")
