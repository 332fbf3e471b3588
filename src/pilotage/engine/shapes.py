"""What takes the same is one shape, by its number; those that nobody asks for any more are let go of now and then.

Every site counts what it has of each shape, and jobs come for months, each with what its author thought of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

SHAPES_MIN = 256
"""So many are kept without a look; then twice as many as were found to be asked for."""


def forget_unused_shapes(engine: Engine) -> None:
    """Let go of the shapes that neither a class of a job nor an attempt has."""
    jobs = engine.jobs.values()
    used = {queue.shape for job in jobs for queue in job.classes.values()}
    used.update(attempt.shape for job in jobs for _, attempt in job.attempts())
    gone = engine.demands.keys() - used
    for shape in gone:
        del engine.shapes[engine.demands.pop(shape)]
    for site in engine.sites.values():
        for counted in (site.slots, site.used, site.place.rooms):
            for shape in gone:
                counted.pop(shape, None)
    for pilot in engine.pilots.values():
        pilot.barred -= gone
    engine.reservations = {key: each for key, each in engine.reservations.items() if key[0] not in gone}
