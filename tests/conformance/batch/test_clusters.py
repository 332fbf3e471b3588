"""The real systems when things go wrong: nodes are lost, daemons are killed, and nothing of one cluster shows in another."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.agent.batch import BatchJob, BatchRequest, Refused, dialects
from tests.conformance.batch.real import RealGridEngine, RealSlurm
from tests.conformance.batch.system import System, wait_until
from tests.engines.gridengine import GridEngine
from tests.engines.slurm import SlurmCluster


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster, tmp_path: Path) -> RealSlurm:
    return RealSlurm(slurm_cluster, dialects()["slurm"]("pilotage-t2"), tmp_path / "slurm")


@pytest.fixture
def gridengine(grid_engine: GridEngine, tmp_path: Path) -> RealGridEngine:
    return RealGridEngine(grid_engine, dialects()["gridengine"]("pilotage-t2"), tmp_path / "gridengine")


def sleeping(key: str, **options: object) -> BatchRequest:
    """Something that goes on until it is ended."""
    return BatchRequest(key=key, command=["sleep", "600"], **options)  # type: ignore[arg-type]


def listed(system: System) -> dict[str, BatchJob]:
    """All that is there."""
    return system.dialect.listed(system.run(system.dialect.listing()))


def test_two_clusters_and_a_cell_run_at_once_and_a_lost_node_is_told(
    slurm: RealSlurm, gridengine: RealGridEngine, tmp_path: Path
) -> None:
    with SlurmCluster("u", nodes=2, cpus=2, node_seconds=5) as cluster:
        other = RealSlurm(cluster, slurm.dialect, tmp_path / "other")
        systems: list[System] = [slurm, other, gridengine]
        # Until it has really begun, Slurm would start it anew elsewhere, whatever it was asked.
        begun = ["sh", "-c", "echo here; exec sleep 600"]
        ids = [
            system.submit(BatchRequest(key="here-1", command=begun, output=str(system.folder))) for system in systems
        ]
        seen = [system.wait("here-1", "running") for system in systems]
        assert [{"here-1": each.native_id} for each in seen] == ids
        assert seen[0].node != seen[1].node
        assert [system.printed("here-1") for system in systems] == ["here\n"] * 3

        there = next(node for node in cluster.nodes if node != seen[1].node)
        cluster.drain(there)
        held = other.submit(sleeping("here-2", cores=2))
        cluster.lose_node(seen[1].node)
        lost = other.wait("here-1", "ended")
        assert lost.reason == "platform-failure"
        assert lost.detail.startswith("NODE_FAIL")

        assert other.wait("here-2", "queued").native_id == held["here-2"]
        cluster.resume(there)
        assert other.wait("here-2", "running").node == there

        for system, native_ids in zip((slurm, gridengine), (ids[0], ids[2]), strict=True):
            assert [key for key, each in listed(system).items() if each.state != "ended"] == ["here-1"]
            system.cancel(native_ids)
        folder = cluster.folder
    assert not folder.exists()


def test_jobs_outlive_the_daemon_of_their_node(slurm: RealSlurm) -> None:
    ids = slurm.submit(sleeping("outlive-1"))
    node = slurm.wait("outlive-1", "running").node
    slurm.cluster.kill_node(node)
    slurm.cluster.start_node(node)
    assert slurm.wait("outlive-1", "running").native_id == ids["outlive-1"]
    slurm.cancel(ids)
    assert slurm.wait("outlive-1", "ended").reason == "cancelled"


def test_grid_engine_tells_of_a_lost_node_when_it_is_back(gridengine: RealGridEngine) -> None:
    (native_id,) = gridengine.submit(sleeping("power-1", folder=str(gridengine.folder))).values()
    gridengine.wait("power-1", "running")
    gridengine.cell.kill_node()
    gridengine.cell.start_node()
    assert gridengine.wait("power-1", "running").native_id == native_id
    gridengine.cell.lose_node()
    assert listed(gridengine)["power-1"].state == "running"  # so it would be told for ever
    gridengine.cell.start_node()
    assert gridengine.wait("power-1", "ended", native_id).reason == "platform-failure"


def test_what_is_killed_from_outside_is_told_from_what_fails(slurm: RealSlurm, gridengine: RealGridEngine) -> None:
    for system in (slurm, gridengine):
        ids = system.submit(BatchRequest(key="shot-1", command=["sh", "-c", "kill -9 $$"]))
        ended = system.wait("shot-1", "ended", ids["shot-1"])
        assert (ended.reason, ended.exit_status) == ("killed", None)


def test_what_will_never_begin_by_itself_is_held(slurm: RealSlurm, gridengine: RealGridEngine) -> None:
    # Slurm takes what is too long for its partition, and lets it wait for ever; Grid Engine what has nowhere to run.
    for system, wanted, reason in (
        (slurm, sleeping("stuck-1", queue="short", wall_seconds=36_000), "held"),
        (gridengine, sleeping("stuck-1", folder="/nowhere"), "error"),
    ):
        ids = system.submit(wanted)
        wait_until(lambda system=system, reason=reason: listed(system)["stuck-1"].reason == reason, lambda: "not stuck")  # type: ignore[misc]
        assert listed(system)["stuck-1"].state == "queued"
        call = system.dialect.errors(ids.values())
        if call is not None:
            (said,) = {*system.dialect.errors_told(system.run(call)).values()}
            assert "error: can't chdir to /nowhere: No such file or directory" in said
        system.cancel(ids)
        wait_until(
            lambda system=system: (listed(system).get("stuck-1") or BatchJob("", "ended")).state == "ended",  # type: ignore[misc]
            lambda: "it is still there",
        )


def test_the_limit_of_a_queue_is_told_as_such_where_memory_was_asked_for_and_time_was_not(
    gridengine: RealGridEngine,
) -> None:
    cell = gridengine.cell
    cell.command("qconf", "-rattr", "queue", "h_rt", "0:0:2", "main.q")
    try:
        ids = gridengine.submit(sleeping("long-1", memory_bytes=1 << 30))
        assert gridengine.wait("long-1", "ended", ids["long-1"]).reason == "wall-time"
    finally:
        cell.command("qconf", "-rattr", "queue", "h_rt", "INFINITY", "main.q")


def test_what_asks_for_more_than_there_is_is_refused(slurm: RealSlurm, gridengine: RealGridEngine) -> None:
    for system, options in (
        (slurm, {"memory_bytes": 1 << 40}),
        (slurm, {"gpus": 3}),
        (gridengine, {"cores": 2, "parallel": "no-such-environment"}),
        (gridengine, {"gpus": 1}),
    ):
        with pytest.raises(Refused) as refused:
            system.submit(sleeping("large-1", **options))
        assert refused.value.reason == "bad-resources"


def test_directives_reach_the_system(slurm: RealSlurm, gridengine: RealGridEngine) -> None:
    for system, directive in ((slurm, "--hold"), (gridengine, "-h")):
        ids = system.submit(sleeping("asked-1", directives=[directive]))
        assert listed(system)["asked-1"].reason == "held"
        system.cancel(ids)


def test_cores_are_taken_where_they_are_asked_for(slurm: RealSlurm, gridengine: RealGridEngine) -> None:
    tell = ["sh", "-c", "echo ${SLURM_CPUS_ON_NODE:-$NSLOTS}"]
    for system in (slurm, gridengine):
        ids = system.submit(
            BatchRequest(key="wide-1", command=tell, cores=4, memory_bytes=1 << 30, output=str(system.folder))
        )
        assert system.printed("wide-1") == "4\n"
        assert system.wait("wide-1", "ended", ids["wide-1"]).reason == "ended"


def test_what_names_its_nodes_runs_on_one_of_them(slurm: RealSlurm, gridengine: RealGridEngine) -> None:
    first, second = slurm.cluster.nodes
    tell = ["sh", "-c", "echo $SLURMD_NODENAME"]
    for number, (hosts, expected) in enumerate(
        (([first], {first}), ([f"*{second[-1]}", "elsewhere"], {second}), ([first, second], {first, second})), 1
    ):
        key = f"named-{number}"
        slurm.submit(BatchRequest(key=key, command=tell, hosts=hosts, output=str(slurm.folder)))
        assert slurm.printed(key).strip() in expected
        assert slurm.wait(key, "ended").reason == "ended"
    with pytest.raises(Refused) as refused:
        slurm.submit(sleeping("named-4", hosts=["elsewhere"]))
    assert refused.value.reason == "bad-resources"

    ids = gridengine.submit(sleeping("where-1"))
    node = gridengine.wait("where-1", "running").node
    ids |= gridengine.submit(sleeping("named-1", hosts=["elsewhere*"]))
    ids |= gridengine.submit(sleeping("named-2", hosts=["elsewhere", node]))
    assert gridengine.wait("named-2", "running").node == node
    assert listed(gridengine)["named-1"].state == "queued"
    gridengine.cancel(ids)


def test_several_nodes_are_one_job(slurm: RealSlurm) -> None:
    tell = ["sh", "-c", "echo $SLURM_JOB_NUM_NODES $SLURM_NTASKS"]
    slurm.submit(BatchRequest(key="mpi-1", command=tell, nodes=2, cores=3, output=str(slurm.folder)))
    assert slurm.printed("mpi-1") == "2 6\n"
    assert slurm.wait("mpi-1", "ended").reason == "ended"


def test_the_limits_are_those_of_the_set_up(slurm: RealSlurm, gridengine: RealGridEngine) -> None:
    told = slurm.dialect.limited([slurm.run(call) for call in slurm.dialect.limits()])
    main, short = (queue for queue in told.queues if queue.name in ("main", "short"))
    assert (main.is_default, main.wall_seconds, main.cores, main.nodes) == (True, 0, 8, 2)
    assert (main.memory_bytes, main.core_memory_bytes, main.gpus) == (16_000 << 20, 2000 << 20, 0)
    assert (short.is_default, short.wall_seconds) == (False, 300)
    assert (told.array_max, told.jobs_max) == (1001, 20_000)
    told = gridengine.dialect.limited([gridengine.run(call) for call in gridengine.dialect.limits()])
    assert [(queue.name, queue.cores, queue.wall_seconds) for queue in told.queues] == [("main.q", 8, 0)]
    assert told.array_max == 1000


def test_each_is_known_by_its_own_commands(slurm: RealSlurm, gridengine: RealGridEngine) -> None:
    for system in (slurm, gridengine):
        known = (dialect("pilotage") for dialect in dialects().values())
        here = {dialect.name for dialect in known if dialect.version(system.run(dialect.is_here()))}
        # The commands of both are installed on this machine, and those of no other.
        assert {system.dialect.name} <= here <= {"gridengine", "slurm"}


def test_a_cluster_with_a_network_of_its_own_has_no_way_out(slurm: RealSlurm, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, SlurmCluster("v", nodes=1, network=True) as cluster:
        lonely = RealSlurm(cluster, slurm.dialect, tmp_path / "lonely")
        program = f"import socket; print(socket.socket().connect_ex(('127.0.0.1', {server.getsockname()[1]})))"
        for system, told in ((slurm, 0), (lonely, errno.ECONNREFUSED)):
            system.submit(BatchRequest(key="out-1", command=[sys.executable, "-c", program], output=str(system.folder)))
            assert system.printed("out-1") == f"{told}\n"
            assert system.wait("out-1", "ended").reason == "ended"


def test_a_cluster_ends_with_whoever_started_it(root: Path) -> None:
    program = (
        "from tests.engines.slurm import SlurmCluster\n"
        "cluster = SlurmCluster('w', nodes=1)\n"
        "print(cluster.folder, *(capsule.pid for capsule in cluster.capsules), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder, *pids = process.stdout.readline().split()
        assert len(pids) == 2
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        process.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), lambda: "something goes on")
    wait_until(lambda: not Path(folder).exists(), lambda: "something is left")
