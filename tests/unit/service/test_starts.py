"""Which release, infrastructure, platform and execution is taken: it is chosen by the site, once that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.engine.selection.filters import Requirements, described, execution
from pilotage.language import Expansion, MemoryFolder, load, plan_of
from pilotage.language.named_files import words_of
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Work
from pilotage.model.jobs.submission import Origin
from pilotage.model.site import Site, Start, fitting_start
from pilotage.service.works.reuse import fields_of, key_of
from pilotage.service.works.work_orders import compose, compose_every_way
from tests.kit.earlier_work import place

HERE = Site(name="here", kind="local", platform="x86_64-linux")
CLUSTER = Site(name="annex", kind="slurm", platform="aarch64-linux")

TEXT = """
pilotage: 1
job: reco
software:
  - id: reco
    version: p1
    environment: {A: release, B: release}
    infrastructures:
      - name: slurm
        environment: {B: slurm}
        executions: [{run: "srun ./for-slurm {x}"}]
      - name: local
        executions: [{run: "./for-local {x}"}]
stages:
  - {software: reco, parameters: {x: 1}, outputs: [out]}
"""


@pytest.mark.parametrize(
    "starts, site, taken",
    [
        ([("s", "slurm", ""), ("s", "local", "")], HERE, 1),
        ([("s", "slurm", ""), ("s", "local", "")], CLUSTER, 0),
        ([("s", "any", ""), ("s", "slurm", ""), ("s", "annex", "")], CLUSTER, 2),  # its name, before its kind
        ([("s", "any", ""), ("s", "slurm", "")], CLUSTER, 1),  # its kind, before any
        ([("s", "any", ""), ("s", "any", "x86_64-linux")], HERE, 1),  # its platform, before one for all
        ([("s", "any", "aarch64-linux")], HERE, None),
        ([("s", "any", "aarch64-linux"), ("s", "any", "")], Site(name="unsaid"), 1),
        ([("s", "any", "aarch64-linux")], Site(name="unsaid"), 0),  # what is not said is not held against it
        ([("s/1", "slurm", ""), ("s/2", "any", "")], HERE, 1),  # the first release that has a way there
        ([("s/1", "any", ""), ("s/2", "local", "")], HERE, 0),
        ([("s/1", "any", ""), ("s/2", "any", "")], Site(name="has", software=("s/2",)), 1),  # and is installed
        ([("s/1", "any", "")], Site(name="has", software=("s/2",)), None),
        ([("s/1", "any", "")], Site(name="has", software=("s",)), 0),
        ([("s", "grid", "")], HERE, None),
    ],
)
def test_the_way_that_fits_a_site(starts: list[tuple[str, str, str]], site: Site, taken: int | None) -> None:
    ways = [Start(software=name, infrastructure=on, platform=platform) for name, on, platform in starts]
    assert fitting_start(ways, site) == taken


def test_a_site_that_does_not_say_its_platform_has_the_one_that_is_asked_for() -> None:
    ways = [Start(software="s", platform="arm"), Start(software="s", platform="intel")]
    assert fitting_start(ways, Site(name="unsaid"), platform="intel") == 1


def expansion() -> Expansion:
    return load(TEXT.encode(), file="job.yaml", folder=MemoryFolder(())).job().expansion


def work_at(site: Site) -> Work:
    assignment = Assignment(ref=AttemptRef("j", "1.1.1", 1))
    return compose(expansion(), 0, assignment, Origin(folder="/d"), staged="/s", manifest_of=lambda _: None, site=site)


def test_a_package_is_started_as_its_site_has_it_with_the_variables_of_that_way() -> None:
    here, there = work_at(HERE).binaries[0], work_at(CLUSTER).binaries[0]
    assert (here.argv, here.environment) == (("./for-local", "1"), {"A": "release", "B": "release"})
    assert (there.argv, there.environment) == (("srun", "./for-slurm", "1"), {"A": "release", "B": "slurm"})


def test_the_programs_of_every_way_are_brought_along() -> None:
    laid_out = expansion()
    assert {"for-slurm", "for-local"} <= {*words_of(laid_out.blocks[0], laid_out.definition)}


def test_a_site_for_which_no_way_fits_is_passed_over_and_says_so() -> None:
    (template,) = plan_of(expansion()).templates
    requirements = Requirements(starts=template.starts)
    told = execution(described(Site(name="mesh", kind="condor")), requirements)
    assert told == "reco is described for slurm, local, and mesh is of the kind condor"
    assert (execution(described(HERE), requirements), execution(described(CLUSTER), requirements)) == ("", "")


def test_software_that_is_started_alike_everywhere_asks_nothing_of_a_site() -> None:
    text = TEXT.replace("slurm", "any").replace(
        '      - name: local\n        executions: [{run: "./for-local {x}"}]\n', ""
    )
    (template,) = plan_of(load(text.encode(), file="j.yaml", folder=MemoryFolder(())).job().expansion).templates
    assert template.starts == ()


def test_the_key_is_the_same_wherever_it_runs_and_changes_with_every_way() -> None:
    def key(text: str) -> str:
        laid_out = load(text.encode(), file="job.yaml", folder=MemoryFolder(())).job().expansion
        assignment = Assignment(ref=AttemptRef("j", "1.1.1", 1))
        works = compose_every_way(laid_out, 0, assignment, Origin(folder="/d"), manifest_of=lambda _: None)
        assert len(works) == 2
        return key_of(fields_of(*works))

    keys = {key(TEXT), key(TEXT.replace("srun ", "mpirun ")), key(TEXT.replace("B: slurm", "B: other"))}
    assert len(keys) == 3
    assert key(TEXT) in keys


def test_what_one_way_made_is_not_made_again_by_another(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        assert here.run(TEXT) == ["reco"]
        assert here.run(TEXT) == []
        assert here.run(TEXT.replace("./for-local", "./for-local --new")) == ["reco"]
