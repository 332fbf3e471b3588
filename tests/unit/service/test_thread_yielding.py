"""Giving way: now and then among many things, and not where it lasts."""

from __future__ import annotations

import subprocess
import sys

from pilotage.service.process import AMONG, LONG_SECONDS, WITHOUT_FACTOR, ThreadYielding


class System:
    """A clock, and others that run for so long when they are let go first."""

    def __init__(self) -> None:
        self.now = 100.0
        self.others_seconds = 0.0
        self.yielded = 0

    def yields(self) -> None:
        self.yielded += 1
        self.now += self.others_seconds

    def clock(self) -> float:
        return self.now


def test_among_many_things_others_go_first_every_few() -> None:
    system = System()
    yielding = ThreadYielding(yields=system.yields, clock=system.clock)
    at = [system.yielded for _ in yielding.among(range(2 * AMONG + 1))]
    assert at == [1] * AMONG + [2] * AMONG + [3]
    assert list(yielding.among([])) == []
    assert list(yielding.among(range(20))) == list(range(20))


def test_who_runs_a_moment_is_let_go_first_every_time() -> None:
    system = System()
    system.others_seconds = LONG_SECONDS / 2
    yielding = ThreadYielding(yields=system.yields, clock=system.clock)
    for _ in range(100):
        yielding.yield_thread()
    assert system.yielded == 100


def test_where_somebody_computes_for_long_at_most_a_twentieth_is_lost() -> None:
    system = System()
    system.others_seconds = 0.004
    yielding = ThreadYielding(yields=system.yields, clock=system.clock)
    began, own_seconds = system.now, 0.0001
    while system.now < began + 10.0:
        yielding.yield_thread()
        system.now += own_seconds
    lost = system.yielded * system.others_seconds / (system.now - began)
    assert 0.9 / (WITHOUT_FACTOR + 1) < lost <= 1 / (WITHOUT_FACTOR + 1) + 0.001
    # And when that one is gone, others go first again.
    system.others_seconds = 0.0
    system.now += 1.0
    before = system.yielded
    for _ in range(10):
        yielding.yield_thread()
    assert system.yielded == before + 10


def test_a_system_that_can_let_others_run_does() -> None:
    program = (
        "import os; calls = []; os.sched_yield = lambda: calls.append(1)\n"
        "from pilotage.service.process import ThreadYielding\n"
        "ThreadYielding().yield_thread(); print(len(calls))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "1\n"
