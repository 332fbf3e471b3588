"""Programs that span several nodes, started by the MPI execution of their software: real Slurm, real Open MPI."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.capsule import CannotIsolate
from tests.engines.debian import ensure_programs
from tests.engines.slurm import SlurmCluster
from tests.kit.cluster_runs import ClusterRun, cluster_run
from tests.kit.real_runs import processes_with, wait_until

NODES, RANKS = 2, 4
# It adds the numbers of its ranks up, turn by turn, until a file is there; every rank says where it is.
PROGRAM = """\
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size, length, sum = 0, over = 0;
    char node[MPI_MAX_PROCESSOR_NAME];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(node, &length);
    if (argc > 2) {
        char begun[4096];
        snprintf(begun, sizeof begun, "%s.%s.%d", argv[2], node, rank);
        fclose(fopen(begun, "w"));
    }
    while (!over) {
        int mine = rank + 1;
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0) over = argc < 2 || access(argv[1], F_OK) == 0;
        MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (!over) usleep(20000);
    }
    char folder[4096];
    printf("rank %d of %d on %s with %s threads in %s\\n", rank, size, node, getenv("OMP_NUM_THREADS"),
           getcwd(folder, sizeof folder));
    if (rank == 0) {
        FILE *file = fopen("sum.txt", "w");
        fprintf(file, "%d\\n", sum);
        fclose(file);
    }
    MPI_Finalize();
    return argc > 3 && rank == size - 1 ? atoi(argv[3]) : 0;
}
"""
DOCUMENT = """\
pilotage: 1
job: summing
software:
  - id: summing
    version: "1"
    environment: {{exported: {{{exported}}}}}
    infrastructures:
      - name: any
        executions:
          - {{job_type: normal, run: "false"}}
          - {{job_type: mpi, run: "mpirun {program} {arguments}"}}
stages:
  - software: summing
    job_type: mpi
    nodes: 2
    cores: 2
    retry: {{attempts_max: 1}}
    stdout: ranks.txt
    outputs: [sum.txt, ranks.txt]
"""
# The tests are root, and all nodes are on one computer: no user's document has these.
EXPORTED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Three nodes that know their names, so that one may be lost."""
    ensure_programs(["srun"], packages=["slurm-client"])
    try:
        found = SlurmCluster("m", nodes=3, cpus=4, hostnames=True, node_seconds=5)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    with found:
        yield found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled."""
    compiler = ensure_programs(["mpicc", "mpirun"], packages=["openmpi-bin", "libopenmpi-dev", "gcc"])["mpicc"]
    folder = tmp_path_factory.mktemp("program")
    (folder / "summing.c").write_text(PROGRAM)
    subprocess.run([compiler, "-o", "summing", "summing.c"], cwd=folder, check=True)
    return folder / "summing"


@pytest.fixture
def run(tmp_path: Path, cluster: SlurmCluster) -> Iterator[ClusterRun]:
    # Packages of one node go to pilots here: several nodes are bound all the same.
    entry = {
        "mode": "pilots",
        "nodes_max": NODES,
        "job_types": "[mpi]",
        "setup": f"['export TMPDIR={tmp_path}/$SLURMD_NODENAME', 'mkdir $TMPDIR']",
    }
    with cluster_run(tmp_path, cluster, entry) as found:
        yield found


def document(program: Path, *arguments: str) -> str:
    exported = ", ".join(f'{name}: "{value}"' for name, value in EXPORTED.items())
    words = " ".join(arguments)
    return DOCUMENT.format(exported=exported, program=program, arguments=words)


def check_result(run: ClusterRun) -> set[str]:
    """The sum is right, and each rank spoke once; the nodes they were on."""
    place = run.place
    lines = [line.split() for line in (place.folder / "ranks.txt").read_text().splitlines()]
    assert sorted(int(words[1]) for words in lines) == list(range(RANKS))
    assert {words[3] for words in lines} == {str(RANKS)}
    assert {words[7] for words in lines} == {"1"}  # a process for each core has one thread
    # In one folder, and not on the disk of one node: the nodes of the tests have the same disk, and cannot tell.
    (scratch,) = {Path(words[10]) for words in lines}
    assert scratch.is_relative_to(place.folder.parent / "shared")
    assert int((place.folder / "sum.txt").read_text()) == sum(range(1, RANKS + 1))
    assert place.told("status")["job"]["state"] == "DONE"
    assert len(run.events("CommitGranted")) == 1
    return {words[5] for words in lines}


def begin(run: ClusterRun, program: Path, folder: Path) -> str:
    """A job whose ranks are all under way, on two nodes; they end when the file `go` is there. The job."""
    run.place.document(document(program, str(folder / "go"), str(folder / "begun")))
    job = str(run.place.told("submit")["job"])
    wait_until(lambda: len([*folder.glob("begun.*")]) == RANKS, "all ranks run")
    return job


def nodes_of(folder: Path) -> set[str]:
    return {path.name.split(".")[1] for path in folder.glob("begun.*")}


def test_a_program_of_two_nodes_is_one_batch_job_whose_ranks_add_up(run: ClusterRun, program: Path) -> None:
    before = run.jobs_ever()
    run.place.document(document(program))
    run.place.run("run")
    assert len(check_result(run)) == NODES
    (created,) = run.events("AttemptCreated")
    assert (created["data"]["site"], created["data"].get("pilot")) == ("lyon", None)
    wait_until(lambda: not run.queued(), "its batch job is over")
    assert len(run.jobs_ever()) == len(before) + 1  # and no pilot was asked for


def test_a_rank_that_fails_is_a_failure_of_the_program(run: ClusterRun, program: Path, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run.place.document(document(program, str(tmp_path / "go"), str(tmp_path / "begun"), "3"))
    run.place.run("run", code=1)
    (ended,) = run.events("AttemptFinished")
    assert (ended["data"]["reason"], ended["data"]["exit_status"]) == ("application-error", 3)


def test_a_node_that_is_lost_is_no_fault_of_the_program_which_is_run_again(
    run: ClusterRun, program: Path, tmp_path: Path
) -> None:
    job = begin(run, program, tmp_path)
    (batch_job,) = run.cluster.command("squeue", "--noheader", "--format=%B %N").splitlines()
    first = batch_job.split()[0]
    (other,) = nodes_of(tmp_path) - {first}
    run.cluster.lose_node(other)
    wait_until(lambda: run.events("AttemptFinished"), "the attempt has failed")
    (tmp_path / "go").touch()
    run.cluster.start_node(other)
    run.place.run("attach", job)
    assert len(check_result(run)) == NODES
    ends = run.events("AttemptFinished")
    assert [each["data"].get("reason") for each in ends[:1]] == ["platform-failure"]
    assert f"on node {other}" in ends[0]["data"]["exit_message"]


@pytest.mark.slow
def test_the_first_node_is_lost_with_its_agent_and_the_program_is_run_again(
    run: ClusterRun, program: Path, tmp_path: Path
) -> None:
    job = begin(run, program, tmp_path)
    (batch_job,) = run.cluster.command("squeue", "--noheader", "--format=%B %N").splitlines()
    first = batch_job.split()[0]
    run.cluster.lose_node(first)
    (tmp_path / "go").touch()
    wait_until(lambda: run.events("AttemptLost"), "the attempt is given up")
    run.cluster.start_node(first)
    run.place.run("attach", job)
    assert len(check_result(run)) == NODES
    # Whoever notices first: the service, which hears nothing more, or the batch system.
    assert run.events("AttemptLost")[0]["data"]["reason"] in ("unheard", "platform-failure")


def test_a_package_that_is_killed_ends_on_all_its_nodes(run: ClusterRun, program: Path, tmp_path: Path) -> None:
    job = begin(run, program, tmp_path)
    assert len(nodes_of(tmp_path)) == NODES
    assert len(processes_with(str(tmp_path / "begun"))) >= RANKS
    run.place.run("kill", f"{job}/1.1.1")
    wait_until(lambda: not processes_with(str(tmp_path / "begun")), "no rank is left")
    wait_until(lambda: not run.queued(), "its batch job is over")
    assert run.place.told("status", f"{job}/1.1.1")["package"]["state"] == "CANCELLED"
    assert run.events("CommitGranted") == []
