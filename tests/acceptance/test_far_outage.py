"""Clusters lose their service for a minute in the middle of a job: one is reached over the network, one only over ssh, and at
both an ordinary account is all there is."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from pilotage.model.sites.entry import SiteEntry
from tests.engines.estates import USER, Estate
from tests.engines.slurm import SlurmCluster
from tests.engines.sshd import SshServer
from tests.kit.book_figures import Figures
from tests.kit.cluster_sites import SERVICE, ClusterSite, middle, submitted
from tests.kit.real_runs import wait_until
from tests.kit.site_service import SiteService, service_in

SITES = ("lyon", "nantes")
PACKAGES = 300
LEASES_MIN = 8
OUTAGE_SECONDS = 60.0
IDLE_SECONDS = 100.0  # a pilot is there when the service is back
SECONDS_MAX = 200.0
JOB = f"""\
pilotage: 1
job: away
stages:
  - each: {{n: 1..{PACKAGES}}}
    shell: sleep 1; echo {{n}} >> "$HOME/ran"; cat given.txt > out-{{n}}.txt; echo {{n}} >> out-{{n}}.txt
    inputs: [given.txt]
    outputs: ["out-{{n}}.txt"]
"""


class Away:
    """The two sites, and the service."""

    def __init__(self, service: SiteService, sites: dict[str, ClusterSite], clusters: dict[str, SlurmCluster]) -> None:
        self.service, self.sites, self.clusters = service, sites, clusters

    def book(self) -> Figures:
        return Figures(self.service.state)

    def ran(self, site: str) -> Counter[str]:
        """How often each package was run at a site, by its own word."""
        file = self.sites[site].estate.home / "ran"
        return Counter(file.read_text().split() if file.exists() else ())

    def logs(self) -> str:
        """The end of what agents and service said."""
        told = [*self.sites["nantes"].estate.home.glob(".pilotage-site/*/site-agent.log")]
        text = "\n".join(file.read_text()[-2000:] for file in told)
        return f"{self.sites['lyon'].log()[-2000:]}\n--- nantes\n{text}\n--- service\n{self.service.log()}"


def _ssh(root: Path, server: SshServer) -> str:
    """A search path on which `ssh` knows the key of the server, as that of its user does."""
    folder = root / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {server.configuration()} "$@"\n')
    (folder / "ssh").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@contextmanager
def away(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    """All of it, as long as the block runs."""
    with ExitStack() as stack:
        center = stack.enter_context(middle())
        estates = {name: Estate(name, hidden=[root]) for name in SITES}
        for estate in estates.values():
            stack.callback(estate.close)
        clusters = {
            name: stack.enter_context(SlurmCluster(name, nodes=2, cpus=4, network=True, estate=estates[name]))
            for name in SITES
        }
        sites = {
            name: ClusterSite(name, clusters[name], estates[name], center=center, number=number, way_out=name == "lyon")
            for number, name in enumerate(SITES)
        }
        nantes = sites["nantes"]
        server = stack.enter_context(
            SshServer(
                host=nantes.cable.there,
                user=USER,
                folder=estates["nantes"].share("sshd"),
                within=clusters["nantes"].head.within,
            )
        )
        monkeypatch.setenv("PATH", _ssh(root, server))
        told = " ".join(f"{name}={value}" for name, value in clusters["nantes"].environment().items())
        entry = SiteEntry(
            name="lyon", kind="slurm", started_by="agent", slots=4, pilots_max=2, idle_seconds=IDLE_SECONDS
        )
        over_ssh = replace(entry, name="nantes", address=server.address, setup=(f"export {told}",))
        service = stack.enter_context(
            service_in(root / "home", [entry, over_ssh], secure=True, host=SERVICE, within=center.networked)
        )
        stack.callback(sites["lyon"].end_agent)
        sites["lyon"].start_agent(service)
        yield Away(service, sites, clusters)


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS_MAX)
def test_a_minute_without_the_service_costs_nothing_over_the_network_and_over_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    with away(tmp_path, monkeypatch) as far:
        service, sites = far.service, far.sites
        assert sites["lyon"].reaches(service)
        assert not sites["nantes"].reaches(service)
        (service.folder / "given.txt").write_text("given\n")
        (service.folder / "pilotage.yaml").write_text(JOB)
        service.program("submit")

        def wait(holds: Callable[[], object], what: str) -> None:
            try:
                wait_until(holds, what, seconds=SECONDS_MAX)
            except AssertionError as error:
                pytest.fail(f"{error}\n{len(far.book().grants())} done\n{far.logs()}")

        def both_work() -> bool:
            book = far.book()
            return all(min(book.live(name), book.committed()[name]) >= LEASES_MIN for name in SITES)

        wait(both_work, "both sites work")
        for site in sites.values():
            site.cable.pull()
        pulled_at, before = time.monotonic(), {name: far.ran(name).total() for name in SITES}
        cut = far.book()
        assert PACKAGES - len(cut.grants()) >= PACKAGES // 2
        wait(lambda: all(far.ran(name).total() > before[name] for name in SITES), "pilots go on by themselves")

        def given_up() -> bool:
            ended = [each for each in far.book().of("PilotEnded") if each.data["reason"] == "unheard"]
            return len(ended) == sum(each.data["site"] in SITES for each in cut.of("PilotStarted"))

        wait(lambda: given_up() and time.monotonic() >= pulled_at + OUTAGE_SECONDS, "a minute passes")
        alone = far.book()
        assert {name: alone.live(name) for name in SITES} == dict.fromkeys(SITES, 0)
        for site in sites.values():
            site.cable.plug()
        wait(lambda: len(far.book().grants()) == PACKAGES, "all packages are granted")
        book, ran = far.book(), {name: far.ran(name) for name in SITES}
        names = {name: submitted(far.clusters[name]) for name in SITES}
        logs = far.logs()
    twice = sum(count > 1 for count in sum(ran.values(), Counter()).values())
    held = {(each.package, each.attempt) for each in cut.of("AttemptCreated")}
    late = sum(
        (each.package, each.attempt) in held for each in book.of("CommitGranted") if each.position > alone.position
    )
    tell(
        f"{len(cut.grants())} granted before, {len(alone.grants()) - len(cut.grants())} on the way; of what was held then"
        f" {late} won afterwards; committed {dict(book.committed())}, given up {dict(book.lost())}, run twice {twice}"
    )
    assert "Traceback" not in logs
    assert {*book.grants().values()} == {1}
    assert min(book.committed()[name] for name in SITES) >= PACKAGES // 10
    assert late > 0  # what was done meanwhile is not done again
    for number in range(1, PACKAGES + 1):
        assert (service.folder / f"out-{number}.txt").read_text() == f"given\n{number}\n"
    for name in SITES:
        assert names[name]
        assert len(names[name]) == len({*names[name]})  # no pilot was submitted twice
