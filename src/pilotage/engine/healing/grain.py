"""The grain of work at sites where packages get batch jobs of their own: how many short ones share a batch job.

A batch job waits in a queue before it runs. If that takes longer than its one package, the grain is too fine, and several
packages share a batch job. If slots elsewhere are idle while packages of a group wait for their turn, it is too coarse, and
some of them leave the group.
"""

from __future__ import annotations

import math
from typing import NamedTuple

FINE_DEGREE = 0.3
"""From this degree on packages are grouped: the queue takes 1.4 times as long as a package."""
COARSE_DEGREE = 0.3
"""From this degree on packages leave a group: they would wait in it 1.4 times as long as in a queue."""
QUEUES_MAX = 20.0
"""A group takes at most as long as so many waits in the queue: five per cent of its time, and longer ones gain little."""

SPARE_SLOTS = 2.0
"""With so many batch jobs for each that runs, those in the queue hide its time."""


class Grain(NamedTuple):
    """What the size of a group at a site follows from."""

    run_seconds: float  # the median of a package, with its files
    queue_seconds: float  # the median wait of a batch job there
    unfinished: int  # packages of the job that are ready, wait in groups, or run
    slots: float  # batch jobs that may be there and at other sites at once, after the success of these packages
    slots_now: float  # the same at present
    running: int = 0  # the most of its packages that have run at once


def too_fine(run_seconds: float, queue_seconds: float) -> float:
    """How much too short the packages are for batch jobs of their own: 0 if they take as long as the queue."""
    if queue_seconds <= 0.0:
        return 0.0
    return max(0.0, 1.0 - run_seconds / queue_seconds)  # vip-execution-service, section 3.2, without shared inputs


def too_coarse(left_seconds: float, queue_seconds: float) -> float:
    """The share of a group's time, as far as it is left, in which an idle slot elsewhere could run packages that wait in it.

    A new batch job elsewhere waits in its queue first.
    """
    if left_seconds <= 0.0:
        return 0.0
    return max(0.0, 1.0 - queue_seconds / left_seconds)


def group_size(grain: Grain, *, most: int, wall_seconds: float = 0.0, longest_seconds: float = 0.0) -> int:
    """How many packages share a batch job, at most so many; 1: each has its own.

    Every slot gets an equal share of the work, so that all end at once. If far more batch jobs may be there than have ever run at
    once, they wait in the queue while others run: then a group is only so long that its slot works half of the time, which
    evens out better. `wall_seconds` is what each package may take, and
    `longest_seconds` what a batch job may: the sum of the former fits into the latter.
    """
    run, queue = grain.run_seconds, grain.queue_seconds
    if most <= 1 or run <= 0.0 or too_fine(run, queue) < FINE_DEGREE:
        return 1
    share = math.ceil(grain.unfinished / max(1.0, grain.slots))
    now = math.ceil(grain.unfinished / max(1.0, grain.slots_now))
    half = math.ceil(queue / run)
    usual = min(now, half) if grain.slots >= SPARE_SLOTS * grain.running else max(share, min(now, half))
    size = min(usual, math.floor(QUEUES_MAX * queue / run), most)
    each_seconds = max(wall_seconds, run)
    if longest_seconds > 0.0:
        size = min(size, math.floor(longest_seconds / each_seconds))
    return max(1, size)


def moved(waiting: int, *, run_seconds: float, queue_seconds: float, slots: int) -> int:
    """How many of the packages that wait in a group should go to so many idle slots elsewhere, so that all end at once.

    Those that go wait in a queue again, so the others stay for at least as long.
    """
    if slots < 1 or waiting < 1 or run_seconds <= 0.0:
        return 0
    going = math.floor((waiting - queue_seconds / run_seconds) * slots / (slots + 1))
    return min(waiting, max(0, going))
