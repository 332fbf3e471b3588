"""Which sites could do what is asked, and why the others could not."""

from __future__ import annotations

import pytest

from pilotage.engine.selection.filters import FILTERS, Requirements, SiteDescription, allows, refusals
from pilotage.model.resources import Capacity, Demand
from pilotage.model.site import Site

GIB = 2**30
SITE = SiteDescription(
    site=Site(
        name="lyon",
        kind="slurm",
        mode="bound",
        capacity=Capacity(cores_hundredths=800, memory_bytes=16 * GIB, gpus=1, scratch_bytes=50 * GIB),
        nodes=4,
        wall_seconds=3600.0,
    ),
    platform="linux-x86_64",
    job_types=("normal", "mpi"),
    node_names=("node[0-9][0-9]", "big"),
    scratch_bytes=10 * GIB,
    data_handling=("dcache",),
    stores=("s3://results", "https://data.example.org/sets/"),
    software=("fsl/6.0", "gate/9.1", "python"),
    users=("ada", "grace"),
)


SCRATCH = (
    "it needs 11,811,160,064 bytes of scratch (5,368,709,120 of work, 4,294,967,296 of inputs, 2,147,483,648 of outputs) "
    "and lyon has 10,737,418,240"
)


def refused(**requirements: object) -> dict[str, str]:
    wanted = Requirements(**{"owner": "ada", **requirements})  # type: ignore[arg-type]
    return {each.filter: each.message for each in refusals(SITE, wanted)}


@pytest.mark.parametrize(
    "requirements",
    [
        {},
        {"executor": "lyon"},
        {"executor": "slurm"},
        {"demand": Demand(node_restriction=("other", "node07"))},
        {"platform": "linux-x86_64"},
        {"job_type": "mpi", "demand": Demand(nodes=4)},
        {
            "demand": Demand(
                cores_hundredths=800, memory_bytes=16 * GIB, gpus=1, scratch_bytes=50 * GIB, wall_seconds=3600.0
            )
        },
        {"work_bytes": 4 * GIB, "input_bytes": 3 * GIB, "output_bytes": 3 * GIB},
        {"more_wall_than": 3599.0},
        {"data_handling": True},
        {"locators": ("s3://results", "s3://results/run/1", "https://data.example.org/sets/a")},
        {"software": ("fsl", "gate/9.1", "python")},
    ],
)
def test_what_the_site_has_passes(requirements: dict[str, object]) -> None:
    assert refused(**requirements) == {}


@pytest.mark.parametrize(
    "name, requirements, told",
    [
        ("executor", {"executor": "paris"}, "it may run at paris only"),
        (
            "node-restriction",
            {"demand": Demand(node_restriction=("node7",))},
            "it may run on node7 only, and lyon has no such node",
        ),
        ("platform", {"platform": "linux-arm64"}, "it runs on linux-arm64, and lyon is linux-x86_64"),
        ("job-type", {"job_type": "gpu-farm"}, "it is of type gpu-farm, and lyon runs normal, mpi"),
        ("capacity", {"demand": Demand(cores_hundredths=801)}, "it asks for 8.01 cores and lyon has 8"),
        ("capacity", {"demand": Demand(gpus=2)}, "it asks for 2 GPUs and lyon has 1"),
        ("capacity", {"demand": Demand(nodes=5)}, "it asks for 5 nodes and lyon has 4"),
        ("wall-time", {"demand": Demand(wall_seconds=3601.0)}, "it asks for 3601 s and lyon allows 3600 s"),
        ("wall-time", {"more_wall_than": 3600.0}, "it was cut off after 3600 s, and lyon allows no more"),
        (
            "scratch",
            {"work_bytes": 5 * GIB, "input_bytes": 4 * GIB, "output_bytes": 2 * GIB},
            SCRATCH,
        ),
        ("reachable-data", {"locators": ("s3://results2/x",)}, "lyon does not reach s3://results2/x"),
        ("software", {"software": ("fsl/5.0", "python")}, "lyon does not have fsl/5.0"),
        ("own-sites", {"owner": "eve"}, "lyon is not a site of eve"),
    ],
)
def test_what_it_lacks_is_refused_by_one_filter_with_a_reason(
    name: str, requirements: dict[str, object], told: str
) -> None:
    assert refused(**requirements) == {name: told}


def test_memory_is_told_in_full() -> None:
    told = refused(demand=Demand(memory_bytes=16 * GIB + 1))["capacity"]
    assert told == "it asks for 17,179,869,185 bytes of memory and lyon has 17,179,869,184"


def test_what_a_site_does_not_say_is_not_held_against_it() -> None:
    plain = SiteDescription(site=Site(name="here", capacity=Capacity(memory_bytes=GIB)))
    requirements = Requirements(
        platform="linux-x86_64", work_bytes=GIB, locators=("s3://results/x",), software=("fsl/6.0",), owner="eve"
    )
    assert allows(plain, requirements)


def test_what_must_be_there_is_refused_where_a_site_does_not_say_that_it_is() -> None:
    plain = SiteDescription(site=Site(name="here"))
    wanted = Requirements(demand=Demand(node_restriction=("node07",)), job_type="mpi", data_handling=True, owner="eve")
    assert [each.filter for each in refusals(plain, wanted)] == ["node-restriction", "job-type", "data-handling"]
    assert "does not name its nodes" in next(refusals(plain, wanted)).message


def test_a_pilot_leaves_less_time_than_its_site_gives() -> None:
    pilots = SiteDescription(site=Site(name="here", wall_seconds=3600.0))
    assert allows(pilots, Requirements(demand=Demand(wall_seconds=3540.0)))
    assert not allows(pilots, Requirements(demand=Demand(wall_seconds=3541.0)))
    assert not allows(pilots, Requirements(more_wall_than=3540.0))


def test_a_site_without_a_limit_gives_any_time() -> None:
    unlimited = SiteDescription(site=Site(name="here"))
    assert allows(unlimited, Requirements(demand=Demand(wall_seconds=1e9), more_wall_than=1e9))


def test_every_filter_says_what_it_is_about() -> None:
    assert all(refuses.__doc__ for refuses in FILTERS.values())
    assert len(FILTERS) == 13
