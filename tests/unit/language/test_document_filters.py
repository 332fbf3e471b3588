"""Whatever a document asks of a site is asked of every site: from its text through the plan to where a package goes."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.language import plan_of
from pilotage.model.exchange.operations import Accepted, Refused, SubmitAttempt
from pilotage.model.sites.entry import SiteEntry, site_of
from tests.kit.jobs import expanded
from tests.kit.small_engine import Small

SOFTWARE = """\
software:
  - {id: gate, version: '9.1', run: gate}
"""


def entry(name: str, **more: Any) -> SiteEntry:
    return SiteEntry(name=name, kind=more.pop("kind", "slurm"), mode="bound", **more)


def submitted(document: str, *entries: SiteEntry, owner: str = "ada") -> Accepted | Refused | str:
    """Where the one package of a document goes; or how it is refused."""
    with Small(*map(site_of, entries)) as small:
        answer = small.submit(plan_of(expanded(document)), owner=owner)
        sites = [each.site for each in small.take(SubmitAttempt)]
        assert bool(sites) == isinstance(answer, Accepted)
        return sites[0] if sites else answer


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # what the document says, and what is said of a site that cannot run it, and of one that can
    "executor-name": ("executor: good", {}, {}),
    "executor-kind": ("executor: gridengine", {}, {"kind": "gridengine"}),
    "node-restriction": ("node_restriction: [n17]", {"node_names": ("m*",)}, {"node_names": ("n*",)}),
    "platform": ("platform: arm64", {"platform": "x86_64"}, {"platform": "arm64"}),
    "job-type": ("job_type: mpi", {}, {"job_types": ("mpi",)}),
    "cores": ("cores: 4", {"slots": 2}, {"slots": 4}),
    "memory": ("memory: 8 GiB", {"memory_bytes": 2**32}, {"memory_bytes": 2**34}),
    "gpus": ("gpus: 1", {}, {"gpus": 1}),
    "wall-time": ("wall_time: 2 h", {"wall_time_seconds": 3600.0}, {"wall_time_seconds": 7200.0}),
    "work": ("work: 3 GiB", {"scratch_bytes": 2**31}, {"scratch_bytes": 2**32}),
    "inputs": (
        "inputs: [{name: in.dat, size: 3 GiB, acquisition: self}]",
        {"scratch_bytes": 2**31},
        {"scratch_bytes": 2**32},
    ),
    "outputs": ("outputs: [{name: out.dat, size: 3 GiB}]", {"scratch_bytes": 2**31}, {"scratch_bytes": 2**32}),
    "data-handling": ("data_handling: true", {}, {"data_handling": ("srm",)}),
    "reachable-data": (
        "inputs: [{name: in.dat, acquisition: self, locator: 'https://a.example/x/in.dat'}]",
        {"stores": ("https://b.example/", "https://a.example/y")},
        {"stores": ("https://a.example/x",)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_document_asks_for_decides_where_its_package_goes(name: str) -> None:
    said, bad, good = CASES[name]
    document = f"stages:\n  - run: work\n    {said}\n"
    assert submitted(document, entry("bad", **bad), entry("good", **good)) == "good"
    refused = submitted(document, entry("bad", **bad))
    assert isinstance(refused, Refused)


def test_work_inputs_and_outputs_must_fit_together_and_what_is_passed_on_counts_once() -> None:
    document = """\
stages:
  - binaries:
      - {run: one, work: 1 GiB, inputs: [{name: in, size: 1 GiB, acquisition: self}], outputs: [{name: mid, size: 1 GiB}]}
      - run: two
        inputs: [{name: mid, size: 1 GiB}, {name: in, size: 1 GiB, acquisition: self}]
        outputs: [{name: out, size: 1 GiB}]
"""
    assert submitted(document, entry("a", scratch_bytes=4 * 2**30)) == "a"
    refused = submitted(document, entry("a", scratch_bytes=4 * 2**30 - 1))
    assert isinstance(refused, Refused)
    assert "1,073,741,824 of work, 1,073,741,824 of inputs, 2,147,483,648 of outputs" in refused.message


def test_of_a_locator_that_differs_from_package_to_package_the_beginning_must_be_reached() -> None:
    document = """\
stages:
  - each: {n: 1..2}
    run: work {n}
    inputs: [{name: 'in-{n}', acquisition: self, locator: 'https://{job}.example/x/{n}.dat'}]
"""
    templates = plan_of(expanded(document)).templates
    assert [each.locators for each in templates] == [("https://j.example/x/*",)]
    assert (
        submitted(document, entry("a", stores=("https://k.example/",)), entry("b", stores=("https://j.example/x",)))
        == "b"
    )
    assert (
        submitted(document, entry("a", stores=("https://j.example/x/1.dat",))) == "a"
    )  # nobody can say that it is not
    assert isinstance(submitted(document, entry("a", stores=("https://j.example/y",))), Refused)


def test_software_must_be_there_in_its_version_where_a_site_says_what_is() -> None:
    document = f"{SOFTWARE}stages:\n  - {{software: gate, version: '9.1'}}\n"
    assert submitted(document, entry("old", software=("gate/8.0",)), entry("new", software=("gate/9.1",))) == "new"
    assert submitted(document, entry("silent")) == "silent"


def test_a_site_of_some_users_runs_their_packages_alone() -> None:
    document = "stages:\n  - run: work\n"
    sites = entry("hers", users=("eve", "ada")), entry("his", users=("bob",))
    assert submitted(document, *sites) == "hers"
    assert submitted(document, *sites, owner="bob") == "his"
    assert isinstance(submitted(document, *sites, owner="mallory"), Refused)
