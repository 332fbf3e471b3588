"""How sites and packages are thought to behave, for `pilotage simulate`: the table of `world.yaml`.

As for a job, the reader of the file is derived from these fields, types and descriptions. A world says nothing of what a
site is: that stands in `sites.yaml`, and the two meet by the site's name.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pilotage.model.jobs.definition import Positive, Seconds, Value
from pilotage.model.states import Reason

WORLD_VERSION = 1

Share = Annotated[float, Meta(ge=0, le=1)]
Above = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Form = Literal["fixed", "uniform", "exponential", "log-normal", "weibull", "empirical"]


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Times(Value, frozen=True, kw_only=True):
    """A distribution of times. A single time stands for a fixed one, a list for an empirical one."""

    distribution: Annotated[Form, _doc("Its form, which says what else is given.")] = "fixed"
    value_seconds: Annotated[Seconds | None, _doc("Of `fixed`: always this.")] = None
    low_seconds: Annotated[Seconds | None, _doc("Of `uniform`: the least.")] = None
    high_seconds: Annotated[Seconds | None, _doc("Of `uniform`: the most.")] = None
    mean_seconds: Annotated[Seconds | None, _doc("Of `exponential`.")] = None
    median_seconds: Annotated[Seconds | None, _doc("Of `log-normal`.")] = None
    sigma: Annotated[NotNegative | None, _doc("Of `log-normal`: the deviation of its logarithm.")] = None
    scale_seconds: Annotated[Seconds | None, _doc("Of `weibull`: 63 % are below.")] = None
    shape: Annotated[Above | None, _doc("Of `weibull`: below 1, the longer it lasted the longer it still will.")] = None
    values: Annotated[
        tuple[NotNegative, ...], _doc("Of `empirical`: what was seen, in seconds, each as likely as the others.")
    ] = ()


class Factors(Value, frozen=True, kw_only=True):
    """A distribution of factors. A single number stands for a fixed one, a list for an empirical one."""

    distribution: Annotated[Form, _doc("Its form, which says what else is given.")] = "fixed"
    value: Annotated[Above | None, _doc("Of `fixed`: always this.")] = None
    low: Annotated[Above | None, _doc("Of `uniform`: the least.")] = None
    high: Annotated[Above | None, _doc("Of `uniform`: the most.")] = None
    mean: Annotated[Above | None, _doc("Of `exponential`.")] = None
    median: Annotated[Above | None, _doc("Of `log-normal`.")] = None
    sigma: Annotated[NotNegative | None, _doc("Of `log-normal`: the deviation of its logarithm.")] = None
    scale: Annotated[Above | None, _doc("Of `weibull`: 63 % are below.")] = None
    shape: Annotated[Above | None, _doc("Of `weibull`.")] = None
    values: Annotated[tuple[Above, ...], _doc("Of `empirical`: what was seen, each as likely as the others.")] = ()


GIVEN: dict[str, tuple[str, ...]] = {
    "fixed": ("value",),
    "uniform": ("low", "high"),
    "exponential": ("mean",),
    "log-normal": ("median", "sigma"),
    "weibull": ("scale", "shape"),
    "empirical": ("values",),
}
"""What each form is given by, without the unit."""


class Spell(Value, frozen=True, kw_only=True):
    """A while in which something is the matter."""

    begins_seconds: Annotated[Seconds, _doc("When it begins, from the submission of the job.")] = 0.0
    lasts_seconds: Annotated[Seconds | None, _doc("How long; none: for ever.")] = None


class Change(Value, frozen=True, kw_only=True):
    """What is different at a site from some time on; of several changes the latest holds."""

    after_seconds: Annotated[Seconds, _doc("From when on, from the submission of the job.")]
    speed: Annotated[Above, _doc("Its hosts are so much faster than before any change.")] = 1.0
    queue: Annotated[Above, _doc("Its queue takes so much longer.")] = 1.0
    failure_probability: Annotated[Share | None, _doc("Of each attempt; none: as before.")] = None


class SiteWorld(Value, frozen=True, kw_only=True):
    """How a site behaves."""

    name: Annotated[str, _doc("The site, as `sites.yaml` calls it.")]
    queue: Annotated[Times, _doc("How long a pilot, or a bound attempt, waits in its queue.")] = Times(
        value_seconds=60.0
    )
    running_max: Annotated[Positive | None, _doc("Batch jobs of ours that it runs at once; none: all.")] = None
    speed: Annotated[Factors | None, _doc("How fast its hosts are; none: all of the speed of `sites.yaml`.")] = None
    failure_probability: Annotated[Share, _doc("Of each attempt: it fails at some time of its run.")] = 0.0
    failures_per_hour: Annotated[NotNegative, _doc("Failures of an attempt for each hour that it runs.")] = 0.0
    failure_reason: Annotated[Reason, _doc("Why they fail, as it is told.")] = "platform-failure"
    node_failures_per_hour: Annotated[
        NotNegative, _doc("How often a node goes down, with its pilot and all that runs in it.")
    ] = 0.0
    pilot_failure_probability: Annotated[Share, _doc("Of each pilot: it ends as soon as it starts.")] = 0.0
    straggler_probability: Annotated[Share, _doc("Of each attempt: it takes far longer than it should.")] = 0.0
    straggler_factor: Annotated[Factors, _doc("How much longer.")] = Factors(distribution="uniform", low=3.0, high=10.0)
    outages: Annotated[tuple[Spell, ...], _doc("When it is down: what runs is lost, and nothing starts.")] = ()
    outage_every: Annotated[Times | None, _doc("How long it is up between further outages; none: for ever.")] = None
    outage_lasts: Annotated[Times, _doc("How long each of these takes.")] = Times(
        distribution="exponential", mean_seconds=3600.0
    )
    black_holes: Annotated[tuple[Spell, ...], _doc("When everything that starts there fails within a second.")] = ()
    drift: Annotated[tuple[Change, ...], _doc("What becomes different while the job runs.")] = ()


class ActivityWorld(Value, frozen=True, kw_only=True):
    """How the packages of one activity behave, whatever the document estimates."""

    name: Annotated[str, _doc("The activity.")]
    run_time: Annotated[Times | None, _doc("How long it runs on the standard platform; none: as estimated.")] = None
    doomed_probability: Annotated[Share, _doc("The share of its packages that fail wherever they run.")] = 0.0


class PackagesWorld(Value, frozen=True, kw_only=True):
    """How packages behave."""

    run_time: Annotated[Times, _doc("Of packages without a `run_time`, on the standard platform.")] = Times(
        value_seconds=60.0
    )
    run_time_factor: Annotated[Factors, _doc("What really happens, beside the `run_time` of the document.")] = Factors(
        value=1.0
    )
    inputs: Annotated[Times, _doc("How long the inputs of an attempt take.")] = Times(value_seconds=0.0)
    outputs: Annotated[Times, _doc("How long its outputs take.")] = Times(value_seconds=0.0)
    doomed_probability: Annotated[Share, _doc("The share of packages that fail wherever they run.")] = 0.0
    activities: Annotated[tuple[ActivityWorld, ...], _doc("What is different for some activities.")] = ()


class WorldFile(Value, frozen=True, kw_only=True):
    """A world: how the sites and the packages of a simulation behave. A site that is not named behaves as usual."""

    pilotage: Annotated[int, _doc("The version of this file's language.")] = WORLD_VERSION
    sites: Annotated[tuple[SiteWorld, ...], _doc("The sites.")] = ()
    packages: Annotated[PackagesWorld, _doc("The packages.")] = PackagesWorld()


# What was really seen of sites and packages, from a book or from somebody's trace: what a world is fitted to.


class SiteObserved(msgspec.Struct, kw_only=True):
    """What was seen of one site; whatever is empty was not looked at there."""

    queue_seconds: list[float] = []  # of each pilot, or bound attempt, that left the queue
    run_seconds: list[float] = []  # of attempts that succeeded and belong to no activity that is known
    attempts: int = 0  # that ended, one way or the other
    failures: dict[str, int] = {}  # by reason: those that are the site's fault
    pilots: int = 0  # that were asked for and are over, or started
    dead_pilots: int = 0  # of these, that never started
    node_hours: float = 0.0  # for which nodes, or pilots, were up
    node_failures: int = 0


class Observed(msgspec.Struct, kw_only=True):
    """What was seen of some jobs."""

    sites: dict[str, SiteObserved] = {}
    run_seconds: dict[str, dict[str, list[float]]] = {}  # by activity and site, of attempts that succeeded
    inputs_seconds: list[float] = []
    outputs_seconds: list[float] = []
    packages: dict[str, int] = {}  # by activity, that are over
    doomed: dict[str, int] = {}  # of these, that failed in the end through their own fault
