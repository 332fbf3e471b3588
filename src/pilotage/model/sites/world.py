"""The assumed behaviour of sites and packages for `pilotage simulate`: the table of `world.yaml`.

As for a job, the reader of the file is derived from these fields, types and descriptions. A world does not describe a site
itself: `sites.yaml` does, and the two are matched by the site's name.
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
    """A distribution of times. A single time means a fixed one, a list an empirical one."""

    distribution: Annotated[Form, _doc("Its form, which determines the other fields.")] = "fixed"
    value_seconds: Annotated[Seconds | None, _doc("Of `fixed`: always this.")] = None
    low_seconds: Annotated[Seconds | None, _doc("Of `uniform`: the least.")] = None
    high_seconds: Annotated[Seconds | None, _doc("Of `uniform`: the most.")] = None
    mean_seconds: Annotated[Seconds | None, _doc("Of `exponential`.")] = None
    median_seconds: Annotated[Seconds | None, _doc("Of `log-normal`.")] = None
    sigma: Annotated[NotNegative | None, _doc("Of `log-normal`: the deviation of its logarithm.")] = None
    scale_seconds: Annotated[Seconds | None, _doc("Of `weibull`: 63 % are below.")] = None
    shape: Annotated[
        Above | None, _doc("Of `weibull`: below 1, the longer it lasted, the longer it will still last.")
    ] = None
    values: Annotated[
        tuple[NotNegative, ...], _doc("Of `empirical`: observed values in seconds, all equally likely.")
    ] = ()
    offset_seconds: Annotated[
        Seconds | None, _doc("Of `exponential`, `log-normal` and `weibull`: added to each, the least that it takes.")
    ] = None


class Factors(Value, frozen=True, kw_only=True):
    """A distribution of factors. A single number means a fixed one, a list an empirical one."""

    distribution: Annotated[Form, _doc("Its form, which determines the other fields.")] = "fixed"
    value: Annotated[Above | None, _doc("Of `fixed`: always this.")] = None
    low: Annotated[Above | None, _doc("Of `uniform`: the least.")] = None
    high: Annotated[Above | None, _doc("Of `uniform`: the most.")] = None
    mean: Annotated[Above | None, _doc("Of `exponential`.")] = None
    median: Annotated[Above | None, _doc("Of `log-normal`.")] = None
    sigma: Annotated[NotNegative | None, _doc("Of `log-normal`: the deviation of its logarithm.")] = None
    scale: Annotated[Above | None, _doc("Of `weibull`: 63 % are below.")] = None
    shape: Annotated[Above | None, _doc("Of `weibull`.")] = None
    values: Annotated[tuple[Above, ...], _doc("Of `empirical`: observed values, all equally likely.")] = ()


GIVEN: dict[str, tuple[str, ...]] = {
    "fixed": ("value",),
    "uniform": ("low", "high"),
    "exponential": ("mean",),
    "log-normal": ("median", "sigma"),
    "weibull": ("scale", "shape"),
    "empirical": ("values",),
}
"""The parameters of each form, without the unit."""

OFFSET_FORMS = ("exponential", "log-normal", "weibull")
"""The forms of times that may have an offset."""


class Spell(Value, frozen=True, kw_only=True):
    """A period of trouble."""

    begins_seconds: Annotated[Seconds, _doc("When it begins, from the submission of the job.")] = 0.0
    lasts_seconds: Annotated[Seconds | None, _doc("How long; none: for ever.")] = None


class FaultBurst(Value, frozen=True, kw_only=True):
    """A period in which more pilots fail."""

    begins_seconds: Annotated[Seconds, _doc("When it begins, from the submission of the job.")] = 0.0
    lasts_seconds: Annotated[Seconds | None, _doc("How long; none: for ever.")] = None
    probability: Annotated[Share, _doc("Probability that a pilot that starts in it ends at once.")] = 1.0


class Change(Value, frozen=True, kw_only=True):
    """What changes at a site from a time on; the latest of several changes holds."""

    after_seconds: Annotated[Seconds, _doc("The time of the change, from the submission of the job.")]
    speed: Annotated[Above, _doc("Factor on the speed of its hosts before any change.")] = 1.0
    queue: Annotated[Above, _doc("Factor on its queue times.")] = 1.0
    failure_probability: Annotated[Share | None, _doc("Of each attempt; none: as before.")] = None


class SiteWorld(Value, frozen=True, kw_only=True):
    """How a site behaves."""

    name: Annotated[str, _doc("The name of the site in `sites.yaml`.")]
    submission: Annotated[
        Times, _doc("Time that its batch system takes to accept a batch job; it accepts one after the other.")
    ] = Times(value_seconds=0.0)
    queue: Annotated[Times, _doc("Queue time of a pilot, or of a bound attempt.")] = Times(value_seconds=60.0)
    running_max: Annotated[Positive | None, _doc("How many of our batch jobs it runs at once; none: all.")] = None
    speed: Annotated[Factors | None, _doc("Speed of its hosts; none: all as in `sites.yaml`.")] = None
    failure_probability: Annotated[Share, _doc("Probability that an attempt fails at some time of its run.")] = 0.0
    failures_per_hour: Annotated[NotNegative, _doc("Failures of an attempt per hour of run time.")] = 0.0
    failure_reason: Annotated[Reason, _doc("The reason of these failures.")] = "platform-failure"
    node_failures_per_hour: Annotated[
        NotNegative, _doc("Failures of a node per hour, with its pilot and all its attempts.")
    ] = 0.0
    pilot_failure_probability: Annotated[Share, _doc("Probability that a pilot ends as soon as it starts.")] = 0.0
    fault_bursts: Annotated[tuple[FaultBurst, ...], _doc("When more pilots end as soon as they start.")] = ()
    stuck_probability: Annotated[Share, _doc("Probability that a batch job never leaves the queue.")] = 0.0
    straggler_probability: Annotated[Share, _doc("Probability that an attempt takes far longer than expected.")] = 0.0
    straggler_factor: Annotated[Factors, _doc("How much longer.")] = Factors(distribution="uniform", low=3.0, high=10.0)
    stall_probability: Annotated[Share, _doc("Probability that an attempt stalls while it fetches its inputs.")] = 0.0
    stall_factor: Annotated[
        Factors, _doc("How long it stalls: as many times as a usual attempt of its activity takes.")
    ] = Factors(distribution="uniform", low=10.0, high=30.0)
    outages: Annotated[tuple[Spell, ...], _doc("When it is down: running attempts are lost, and nothing starts.")] = ()
    outage_every: Annotated[Times | None, _doc("Time between further outages; none: no further ones.")] = None
    outage_lasts: Annotated[Times, _doc("Duration of each of these.")] = Times(
        distribution="exponential", mean_seconds=3600.0
    )
    black_holes: Annotated[tuple[Spell, ...], _doc("When every attempt there fails within a second.")] = ()
    drift: Annotated[tuple[Change, ...], _doc("What changes while the job runs.")] = ()
    bytes_per_second: Annotated[
        NotNegative, _doc("Speed of the transfer of a file to its cache; 0: that of the store.")
    ] = 0.0


class StoreWorld(Value, frozen=True, kw_only=True):
    """How a store behaves that files are fetched from and copied to."""

    url: Annotated[str, Meta(min_length=1), _doc("Its locators begin with this; the longest that fits counts.")]
    latency_seconds: Annotated[Seconds, _doc("Time that each transfer takes in addition.")] = 0.0
    bytes_per_second: Annotated[NotNegative, _doc("Speed of each transfer; 0: no limit.")] = 0.0
    failure_probability: Annotated[Share, _doc("Probability that a transfer fails.")] = 0.0
    outages: Annotated[tuple[Spell, ...], _doc("When it does not answer: transfers that end then fail.")] = ()


class ActivityWorld(Value, frozen=True, kw_only=True):
    """The behaviour of the packages of one activity, whatever the document estimates."""

    name: Annotated[str, _doc("The activity.")]
    run_time: Annotated[Times | None, _doc("Run time on the standard platform; none: as estimated.")] = None
    doomed_probability: Annotated[Share, _doc("Share of its packages that fail at every site.")] = 0.0


class PackagesWorld(Value, frozen=True, kw_only=True):
    """How packages behave."""

    run_time: Annotated[Times, _doc("Run time of packages without a `run_time`, on the standard platform.")] = Times(
        value_seconds=60.0
    )
    run_time_factor: Annotated[Factors, _doc("Real run time relative to the `run_time` of the document.")] = Factors(
        value=1.0
    )
    setup: Annotated[Times, _doc("Time that an attempt takes to prepare its environment.")] = Times(value_seconds=0.0)
    inputs: Annotated[Times, _doc("Transfer time of the inputs of an attempt.")] = Times(value_seconds=0.0)
    outputs: Annotated[Times, _doc("Transfer time of its outputs.")] = Times(value_seconds=0.0)
    doomed_probability: Annotated[Share, _doc("Share of packages that fail at every site.")] = 0.0
    activities: Annotated[tuple[ActivityWorld, ...], _doc("Deviations of some activities.")] = ()


class WorldFile(Value, frozen=True, kw_only=True):
    """A world: the behaviour of sites and packages in a simulation. A site that is not named has the default behaviour."""

    pilotage: Annotated[int, _doc("The version of this file's language.")] = WORLD_VERSION
    sites: Annotated[tuple[SiteWorld, ...], _doc("The sites.")] = ()
    packages: Annotated[PackagesWorld, _doc("The packages.")] = PackagesWorld()
    stores: Annotated[
        tuple[StoreWorld, ...], _doc("The stores; transfers with any other take no time and never fail.")
    ] = ()


# Observations of sites and packages, from a book or a trace, to which a world is fitted.


class SiteObserved(msgspec.Struct, kw_only=True):
    """Observations of one site; empty fields were not observed."""

    queue_seconds: list[float] = []  # of each pilot, or bound attempt, that left the queue
    run_seconds: list[float] = []  # of successful attempts without a known activity
    attempts: int = 0  # that ended, successfully or not
    failures: dict[str, int] = {}  # by reason: those that are the site's fault
    pilots: int = 0  # that ended or started after a request
    dead_pilots: int = 0  # of these, that never started
    node_hours: float = 0.0  # uptime of nodes or pilots
    node_failures: int = 0


class Observed(msgspec.Struct, kw_only=True):
    """Observations of some jobs."""

    sites: dict[str, SiteObserved] = {}
    run_seconds: dict[str, dict[str, list[float]]] = {}  # by activity and site, of successful attempts
    setup_seconds: list[float] = []
    inputs_seconds: list[float] = []
    outputs_seconds: list[float] = []
    packages: dict[str, int] = {}  # by activity, that are over
    doomed: dict[str, int] = {}  # of these, that failed permanently through their own fault
