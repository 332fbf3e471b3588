"""`python -m tests.reproduction.healing`: figure 8 on real processes, a hundred times faster, with and without healing at once.

The short activity of the world *blocked*, at three local sites. How long each attempt takes is what the simulator draws for it; the
processes sleep. Stalls are a part of the application here, since nothing is transferred.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.plan import Template
from pilotage.model.sites.healing_experiment import SHORT, SITES, HealedActivity, world_of
from pilotage.simulator.runs.behaviour import JobBehaviour, SiteBehaviour
from pilotage.simulator.world.jobs import big_job, plan_of
from tests.kit.real_runs import Place, place_in

FASTER = 100.0
MODES = ("off", "predictive")
LOCAL_SITES, SLOTS = 3, 16
ATTEMPTS = 4  # of each package, whose times are drawn
SPEED_UP_MIN = 2.0
SETTINGS = """\
[engine]
healing = "{mode}"
interval_seconds = 0.1
lease_intervals = 200

[healing]
cycle_seconds = 0.6
"""
WORK = """\
#!/bin/sh
while read -r number attempt seconds; do
  if [ "$number $attempt" = "$1 $PILOTAGE_ATTEMPT" ]; then exec sleep "$seconds"; fi
done < {times}
exec sleep {usual}
"""
DOCUMENT = """\
pilotage: 1
job: healed
stages:
  - each: {{number: 1..{packages}}}
    run: sh {work} {{number}}
"""


class Healed(NamedTuple):
    """A job that was run: how long it took, and the share of slot time that healing cost."""

    makespan_seconds: float
    waste: float


def attempt_seconds(activity: HealedActivity, *, seed: int) -> dict[tuple[int, int], float]:
    """How long each attempt of each package takes in the simulated world, at a hundredth."""
    world = world_of("blocked", activity)
    template = Template(activity=activity.name, run_seconds=activity.run_seconds)
    plan = plan_of(big_job("experiment", packages=activity.packages, stages=1, template=template), seed=0)
    sites = {each.name: SiteBehaviour(each, speed=1.0) for each in world.sites}
    behaviour = JobBehaviour(seed, plan, packages=world.packages, sites=sites, elapsed_seconds=lambda: 0.0)
    found = {}
    for number in range(1, activity.packages + 1):
        for attempt in range(1, ATTEMPTS + 1):
            outcome = behaviour.outcome(AttemptRef("experiment", f"1.{number}.1", attempt), SITES[0])
            speed = behaviour.speed(f"{number}.{attempt}", SITES[0])
            seconds = outcome.setup_seconds + outcome.inputs_seconds + outcome.outputs_seconds
            found[number, attempt] = (seconds + outcome.application_seconds / speed) / FASTER
    return found


def begin(place: Place, mode: str, times: dict[tuple[int, int], float], *, packages: int) -> None:
    """Start a service with three local sites, and everything that the job needs."""
    folder = place.folder
    (folder / "pilotage.toml").write_text(SETTINGS.format(mode=mode))
    sites = (f"  - {{name: site{n}, kind: local, slots: {SLOTS}}}\n" for n in range(1, LOCAL_SITES + 1))
    (folder / "sites.yaml").write_text("".join(["pilotage: 1\nsites:\n", *sites]))
    lines = (f"{number} {attempt} {seconds:.2f}\n" for (number, attempt), seconds in times.items())
    (folder / "times").write_text("".join(lines))
    (folder / "work.sh").write_text(WORK.format(times=folder / "times", usual=SHORT.run_seconds / FASTER))
    place.document(DOCUMENT.format(packages=packages, work=folder / "work.sh"))
    place.run("serve", "--slots", "0", "--port", "0", "--background")


def run_all(places: Sequence[Place]) -> list[Healed]:
    """Run the jobs of all places side by side."""
    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(run_job, places))


def run_job(place: Place) -> Healed:
    """Run the job of a place to its end."""
    started_at = time.monotonic()
    process = place.begin("run")
    said = process.communicate()
    seconds = time.monotonic() - started_at
    if process.returncode != 0:
        raise SystemExit(f"the job failed: {said}\n{place.log()}")
    return Healed(seconds, float(place.told("healing").get("waste") or 0.0))


def main() -> int:
    """Run both, and print the makespans; 0 if healing made the job end in half the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the times (default %(default)s)")
    parser.add_argument("--packages", type=int, default=SHORT.packages, help="of the job (default %(default)s)")
    asked = parser.parse_args()
    activity = msgspec.structs.replace(SHORT, packages=asked.packages)
    times = attempt_seconds(activity, seed=asked.seed)
    with tempfile.TemporaryDirectory(prefix="pilotage-reproduce-") as name, ExitStack() as stack:
        places = []
        for mode in MODES:
            (folder := Path(name) / mode).mkdir()
            places.append(stack.enter_context(place_in(folder)))
            begin(places[-1], mode, times, packages=activity.packages)
        sys.stderr.write(f"{activity.packages} packages at {LOCAL_SITES} local sites with {SLOTS} slots each\n")
        found = run_all(places)
    for mode, each in zip(MODES, found, strict=True):
        sys.stdout.write(f"{mode:<12}{each.makespan_seconds:8.1f} s   waste {100 * each.waste:4.1f} %\n")
    speed_up = found[0].makespan_seconds / found[1].makespan_seconds
    sys.stdout.write(f"speed-up    {speed_up:8.2f}     at least {SPEED_UP_MIN:g}\n")
    return 0 if speed_up >= SPEED_UP_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
