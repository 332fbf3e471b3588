"""What a site with a real batch system does when something is wrong: with Slurm, and the way to it a test can cut."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.sites.commands import Caller, LocalCaller
from pilotage.agent.batch import Answer, Call, Unknown
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.resources import Demand
from pilotage.model.sites.entry import SiteEntry
from pilotage.ports import SiteBusy, SiteUnreachable, SubmissionRefused
from tests.engines.slurm import SlurmCluster
from tests.kit.batch_sites import OpenBatch, batch_site, slurm_here
from tests.kit.pilots import wait_for_end, wait_until


class Cut:
    """A way to a site whose answers to submissions get lost as often as it is told to."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.losing = 0
        self.calls: list[Call] = []

    def run(self, call: Call) -> Answer:
        self.calls.append(call)
        answer = self._caller.run(call)
        if call.argv[0] == "sbatch" and self.losing:
            self.losing -= 1
            raise Unknown("ssh: connection reset by peer")
        return answer

    def close(self) -> None:
        self._caller.close()


@pytest.fixture
def open_site(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[OpenBatch]:
    with batch_site(tmp_path, "slurm", lambda: slurm_here(slurm_cluster)) as opened:
        yield opened


def changed(open_site: OpenBatch, **fields: object) -> SiteEntry:
    """The usual entry with other fields."""
    return msgspec.structs.replace(open_site()._settings.entry, **fields)


def test_a_submission_whose_answer_was_lost_is_found_by_its_keys_and_queued_once(
    open_site: OpenBatch, slurm_cluster: SlurmCluster
) -> None:
    caller = Cut(slurm_here(slurm_cluster))
    site = open_site(caller, notes=Path(slurm_cluster.folder) / "notes")
    caller.losing = 1
    with pytest.raises(SiteUnreachable, match="connection reset by peer"):
        site.submit_pilots("here-5", count=3)
    # Whoever comes after a service that died just then looks before it submits, too.
    other = Cut(slurm_here(slurm_cluster))
    after = open_site(other, notes=Path(slurm_cluster.folder) / "notes")
    native_ids = after.submit_pilots("here-5", count=3)
    assert [*site.submit_pilots("here-5", count=3)] == [*native_ids]
    assert sum(call.argv[0] == "sbatch" for call in caller.calls + other.calls) == 1
    assert sorted(site.listing()) == ["here-5", "here-6", "here-7"]


def test_a_pilot_that_cannot_start_is_told_with_what_it_printed_itself(open_site: OpenBatch, tmp_path: Path) -> None:
    site = open_site(entry=changed(open_site, python="/nowhere/python3"))
    site.submit_pilots("here-1")
    seen = wait_for_end(site)
    assert seen.reason == "failed"
    assert "/nowhere/python3" in seen.stderr
    assert list(tmp_path.glob("site/*/output/*")) == []


def test_a_pilot_that_reaches_nobody_says_so_and_setup_and_output_are_its_own(
    open_site: OpenBatch, tmp_path: Path
) -> None:
    site = open_site(entry=changed(open_site, setup=("echo set up as $PILOTAGE_REQUEST", "cd /")))
    site.submit_pilots("here-8", count=2)
    files = {key: tmp_path / "site" / site._settings.prefix / "output" / f"{key}.out" for key in ("here-8", "here-9")}
    wait_until(lambda: all(file.exists() and "pilotage-agent" in file.read_text() for file in files.values()), 60.0)
    for key, file in files.items():
        assert f"set up as {key}" in file.read_text()
    site.cancel("here-8")
    seen = wait_for_end(site)
    assert seen.reason == "cancelled"
    assert "Connection refused" in seen.stderr or "cannot" in seen.stderr
    assert [file.exists() for file in files.values()] == [False, True]


def test_what_the_system_does_not_take_is_refused_with_its_words_and_what_to_do(open_site: OpenBatch) -> None:
    site = open_site(entry=changed(open_site, queue="no-such-queue"))
    with pytest.raises(SubmissionRefused, match="nvalid partition") as refused:
        site.submit_pilots("here-1", count=3)
    assert (refused.value.reason, "queue" in refused.value.next_step) == ("bad-queue", True)
    assert site.listing() == {}


def test_limits_are_no_errors_and_what_fits_is_taken(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(SlurmCluster("f", nodes=1, cpus=2, jobs_max=4))
        open_site = stack.enter_context(batch_site(tmp_path, "slurm", lambda: slurm_here(cluster)))
        # Its own command goes on trying for two minutes.
        site = open_site(LocalCaller(environment=cluster.environment(), seconds_max=3.0), array_max=2)
        taken = list(site.submit_pilots("here-1", count=10))
        assert 1 <= len(taken) < 10

        def fill() -> None:
            for number in range(len(taken) + 1, 20):
                taken.extend(site.submit_pilots(f"here-{number}"))

        with pytest.raises(SiteBusy) as busy:
            fill()
        assert (busy.value.retryable, busy.value.reason) == (True, "queue-full")
        assert sorted(each.native_id for each in site.listing().values()) == sorted(taken)


def test_a_system_that_is_down_is_unreachable_and_what_runs_goes_on(
    open_site: OpenBatch, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    site = open_site()
    native_ids = site.submit_pilots("here-1", count=2)
    # A job that its controller had not handed to a node yet is one that the next controller misses there, and ends.
    output = tmp_path / "site" / site._settings.prefix / "output"
    wait_until(lambda: all((output / f"{key}.out").exists() for key in ("here-1", "here-2")), 60.0)
    slurm_cluster.kill_controller()
    try:
        with pytest.raises(SiteUnreachable):
            site.listing(["here-1", "here-2"])
    finally:
        slurm_cluster.restart_controller()
    listed = site.listing(["here-1", "here-2"])
    assert [listed[key].native_id for key in ("here-1", "here-2")] == [*native_ids]
    assert not any(each.ended for each in listed.values())


def test_a_bound_attempt_gets_its_nodes_and_its_agent_runs_once(
    open_site: OpenBatch, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    site = open_site(entry=changed(open_site, setup=("echo begun on $SLURM_JOB_NUM_NODES",)))
    demand = Demand(nodes=2, cores_hundredths=250, wall_seconds=100.0)
    native_id = site.submit_attempt("job:1.2.3:4", ref=AttemptRef("job", "1.2.3", 4), demand=demand)
    told = slurm_cluster.command("scontrol", "show", "job", "-o", native_id)
    assert re.search(r" NumNodes=2[ -]", told)
    assert " NumCPUs=6 " in told
    assert "TimeLimit=00:04:00" in told
    assert "s3cret" not in told
    (output,) = [tmp_path / "site" / site._settings.prefix / "output" / "job_3A1.2.3_3A4.out"]
    wait_until(lambda: output.exists() and "pilotage-agent" in output.read_text(), 60.0)
    assert output.read_text().count("begun on 2") == 1
