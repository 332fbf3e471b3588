"""Two Slurm clusters and a Grid Engine are the sites of one job; they share nothing, and each is struck while it works."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from pilotage.model.sites.entry import SiteEntry
from tests.engines.estates import Estate
from tests.engines.gridengine import GridEngine
from tests.engines.slurm import SlurmCluster
from tests.kit.book_figures import Figures
from tests.kit.cluster_sites import SERVICE, ClusterSite, middle, submitted
from tests.kit.real_runs import wait_until
from tests.kit.site_service import SiteService, service_in

SITES = ("lyon", "nantes", "rennes")
PACKAGES = 500
LEASES_MIN = 10  # live at a site when it is struck
SHARE_MIN = 0.1
SECONDS_MAX = 200.0
INSIDE = "10.77.0.1"  # the head of nantes, as its nodes know it
JOB = f"""\
pilotage: 1
job: three
stages:
  - each: {{n: 1..{PACKAGES}}}
    shell: sleep 3; cat given.txt > out-{{n}}.txt; echo {{n}} >> out-{{n}}.txt
    inputs: [given.txt]
    outputs: ["out-{{n}}.txt"]
"""
LYON = SiteEntry(name="lyon", kind="slurm", started_by="agent", slots=4, pilots_max=4, idle_seconds=30.0)
NANTES = SiteEntry(name="nantes", kind="slurm", started_by="agent", slots=4, pilots_max=3, idle_seconds=30.0)
# Pilots there end after half a minute, so that a cluster that takes no more runs dry in the middle.
RENNES = SiteEntry(
    name="rennes",
    kind="gridengine",
    started_by="agent",
    slots=4,
    pilots_max=3,
    idle_seconds=30.0,
    wall_time_seconds=60.0,
)


class Struck(NamedTuple):
    """A fault, and how far the book was when it struck."""

    site: str
    fault: str
    position: int


class Sites:
    """The three of them, and the service."""

    def __init__(self, service: SiteService, sites: dict[str, ClusterSite], slurm: dict[str, SlurmCluster]) -> None:
        self.service, self.sites, self.slurm = service, sites, slurm
        self.struck: list[Struck] = []

    def book(self) -> Figures:
        return Figures(self.service.state)

    def done(self) -> int:
        return len(self.book().grants())

    def strike(self, site: str, fault: str, strike: Callable[[], None]) -> None:
        """Have something happen at a site when enough leases are live there, and enough is left to do."""
        self.wait(lambda: self.book().live(site) >= LEASES_MIN, f"{LEASES_MIN} leases at {site}")
        book = self.book()
        assert PACKAGES - len(book.grants()) >= PACKAGES // 10
        self.struck.append(Struck(site, fault, book.position))
        strike()

    def stand(self, site: str) -> dict[str, object]:
        told = json.loads(self.service.program("site", "list", "--json"))["sites"]
        return next(each for each in told if each["site"] == site)

    def wait(self, holds: Callable[[], object], what: str) -> None:
        try:
            wait_until(holds, what, seconds=SECONDS_MAX)
        except AssertionError as error:
            pytest.fail(f"{error}\n{self.done()} done\n{self.logs()}")

    def logs(self) -> str:
        """The end of what agents and service said."""
        told = [f"--- {name}\n{site.log()[-3000:]}" for name, site in self.sites.items()]
        return "\n".join([*told, f"--- service\n{self.service.log()}"])


@contextmanager
def three(root: Path) -> Iterator[Sites]:
    """All of it, as long as the block runs."""
    with ExitStack() as stack:
        center = stack.enter_context(middle())
        estates = {name: Estate(name, hidden=[root]) for name in SITES}
        for estate in estates.values():
            stack.callback(estate.close)
        slurm = {
            "lyon": stack.enter_context(
                SlurmCluster("lyon", nodes=2, cpus=8, network=True, node_seconds=5, estate=estates["lyon"])
            ),
            "nantes": stack.enter_context(
                SlurmCluster("nantes", nodes=2, cpus=8, network=True, routeless=True, estate=estates["nantes"])
            ),
        }
        cell = stack.enter_context(GridEngine(slots=12, estate=estates["rennes"]))
        clusters: dict[str, SlurmCluster | GridEngine] = {**slurm, "rennes": cell}
        sites = {
            name: ClusterSite(name, cluster, estates[name], center=center, number=number)
            for number, (name, cluster) in enumerate(clusters.items(), 1)
        }
        service = stack.enter_context(
            service_in(root / "home", [LYON, NANTES, RENNES], secure=True, host=SERVICE, within=center.networked)
        )
        for name, site in sites.items():
            stack.callback(site.end_agent)
            site.start_agent(service, *([f"--listen={INSIDE}:0"] if name == "nantes" else []))
        yield Sites(service, sites, slurm)


def check_apart(all_of: Sites) -> None:
    """Nothing of one site, nor of the service, is in sight of another, and the nodes of one have no way out."""
    folders = {name: site.folder for name, site in all_of.sites.items()}
    all_of.wait(lambda: all(site.sees(folders[name]) for name, site in all_of.sites.items()), "the agents begin")
    seen = {(a, b) for a, site in all_of.sites.items() for b, folder in folders.items() if site.sees(folder)}
    assert seen == {(name, name) for name in folders}
    assert not any(site.sees(all_of.service.state) for site in all_of.sites.values())
    for name, reached in (("lyon", True), ("nantes", False)):
        site, (_, *nodes) = all_of.sites[name], all_of.slurm[name].capsules
        assert site.reaches(all_of.service)
        assert {site.reaches(all_of.service, node) for node in nodes} == {reached}


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS_MAX)
def test_a_job_ends_on_three_clusters_that_share_nothing_while_each_of_them_fails(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    with three(tmp_path) as all_of:
        check_apart(all_of)
        service, lyon, nantes = all_of.service, all_of.slurm["lyon"], all_of.slurm["nantes"]
        rennes = all_of.sites["rennes"].cluster
        assert isinstance(rennes, GridEngine)
        (service.folder / "given.txt").write_text("given\n")
        (service.folder / "pilotage.yaml").write_text(JOB)
        service.program("submit")
        all_of.strike("rennes", "drained", rennes.drain)
        all_of.strike("lyon", "a node lost", lambda: lyon.lose_node("lyonn1"))
        all_of.strike("nantes", "its controller killed", nantes.kill_controller)
        all_of.wait(lambda: "not answer" in str(all_of.stand("nantes")["closed"]), "nantes is missed")
        nantes.restart_controller()
        all_of.wait(lambda: "not answer" not in str(all_of.stand("nantes")["closed"]), "nantes is back")
        all_of.wait(lambda: all_of.done() == PACKAGES, "all packages are granted")
        status = json.loads(service.program("status", "--json"))
        book = all_of.book()
        names = [*submitted(lyon), *submitted(nantes)]
        service.stop(kill=True)  # it would wait for the pilots to hang up
    tell(report(book, all_of.struck))
    check(book, all_of.struck)
    assert len(names) == len({*names})  # no pilot was submitted twice
    assert "Traceback" not in all_of.logs()
    assert (status["job"]["state"], status["job"]["counts"]["done"]) == ("DONE", PACKAGES)
    for number in range(1, PACKAGES + 1):
        assert (service.folder / f"out-{number}.txt").read_text() == f"given\n{number}\n"


def report(book: Figures, struck: list[Struck]) -> str:
    """What the book says of the run."""
    began = book.of("AttemptCreated")[0].time
    times = {each.position: each.time - began for each in book.events}
    created = Counter(each.data["site"] for each in book.of("AttemptCreated"))
    committed, suspected, lost = book.committed(), book.suspected(), book.lost()
    lines = [f"{len(book.of('CommitGranted'))} grants, {len(book.grants())} packages, {sum(created.values())} attempts"]
    lines += [
        f"{site}: {created[site]} attempts, {committed[site]} committed, {suspected[site]} suspected, {lost[site]} lost"
        for site in SITES
    ]
    lines += [
        f"{times[each.position]:.1f} s: {each.site}: {each.fault}; {book.live(each.site, position=each.position)} leases live"
        for each in struck
    ]
    lines += [
        f"{each.time - began:.1f} s: {each.site}: {each.type} ({each.data['reason']}) {each.data['message']}"
        for each in book.of("SiteHibernated", "SiteWoken")
    ]
    pilots = book.of("PilotStarted")
    lines += [f"{each.time - began:.1f} s: {each.pilot} started" for each in pilots]
    lines += [f"{each.time - began:.1f} s: {each.pilot} ended: {each.data['reason']}" for each in book.of("PilotEnded")]
    last = {site: max(each.time for each in book.of("CommitGranted") if book.site_of(each) == site) for site in SITES}
    lines += [f"{at - began:.1f} s: {site}: last commit" for site, at in last.items()]
    return "\n".join(["", *lines, ""])


def check(book: Figures, struck: list[Struck]) -> None:
    """One grant for each package, a share for each site, and each fault in the middle of work."""
    assert len(book.grants()) == PACKAGES
    assert {*book.grants().values()} == {1}
    assert min(book.committed()[site] for site in SITES) >= SHARE_MIN * PACKAGES
    assert min(book.live(each.site, position=each.position) for each in struck) >= LEASES_MIN
    assert "lyon" in {each.site for each in book.of("SiteHibernated")}
    assert "lyon" in {each.site for each in book.of("SiteWoken")}
    # The cluster that was drained took no more, and ended what it had.
    drained = next(each.position for each in struck if each.fault == "drained")
    assert not [each for each in book.of("PilotStarted") if each.data["site"] == "rennes" and each.position > drained]
