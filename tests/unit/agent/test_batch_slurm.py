"""Slurm's words, as a real one (22.05.8) said them where nothing else is named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pilotage.agent.batch import Answer, BatchRequest, Busy, Dialect, Refused, Unknown, dialects
from pilotage.agent.batch.slurm import _COLUMNS

ONE = BatchRequest(key="lyon-1", command=["true"])
FAILED = "sbatch: error: Batch job submission failed: "


@pytest.fixture
def slurm() -> Dialect:
    return dialects()["slurm"]("pilotage")


def line(name: str, *, state: str, reason: str = "None", status: int = 0, job: int = 7, node: str = "an1") -> str:
    """A line of squeue, as it is asked for."""
    cells = [str(job), str(job), "N/A", state, str(status), reason, node, name]
    return "".join(cell.ljust(width) for cell, width in zip(cells, _COLUMNS.values(), strict=True)) + "\n"


@pytest.mark.parametrize(
    "state, reason, status, told",
    [
        ("COMPLETED", "None", 0, ("ended", "ended", 0)),
        ("FAILED", "NonZeroExitCode", 3 << 8, ("ended", "failed", 3)),
        ("FAILED", "JobLaunchFailure", 9, ("ended", "killed", None)),
        ("FAILED", "JobLaunchFailure", 1 << 8, ("ended", "platform-failure", 1)),
        ("CANCELLED", "None", 15, ("ended", "cancelled", None)),
        ("TIMEOUT", "TimeLimit", 15, ("ended", "wall-time", None)),
        ("DEADLINE", "None", 0, ("ended", "wall-time", None)),
        ("OUT_OF_MEMORY", "None", 125 << 8, ("ended", "out-of-memory", 125)),
        ("NODE_FAIL", "NodeDown", 0, ("ended", "platform-failure", None)),
        ("BOOT_FAIL", "None", 0, ("ended", "platform-failure", None)),
        ("PREEMPTED", "None", 0, ("ended", "preempted", None)),
        ("PENDING", "Resources", 0, ("queued", "", None)),
        ("PENDING", "Priority", 0, ("queued", "", None)),
        ("PENDING", "QOSMaxJobsPerUserLimit", 0, ("queued", "", None)),
        ("PENDING", "QOSMaxWallDurationPerJobLimit", 0, ("queued", "held", None)),
        ("PENDING", "JobHeldUser", 0, ("queued", "held", None)),
        ("PENDING", "PartitionTimeLimit", 0, ("queued", "held", None)),
        ("PENDING", "PartitionConfig", 0, ("queued", "held", None)),
        ("PENDING", "DependencyNeverSatisfied", 0, ("queued", "held", None)),
        ("REQUEUE_HOLD", "None", 0, ("queued", "held", None)),
        ("CONFIGURING", "None", 0, ("queued", "", None)),
        ("RUNNING", "None", 0, ("running", "", None)),
        ("COMPLETING", "None", 0, ("running", "", None)),
        ("SUSPENDED", "None", 0, ("running", "", None)),
        ("A_STATE_OF_TOMORROW", "None", 0, ("running", "", None)),
    ],
)
def test_states_and_reasons(slurm: Dialect, state: str, reason: str, status: int, told: tuple[object, ...]) -> None:
    name = slurm.job_name("lyon-1")
    (seen,) = slurm.listed(Answer(0, line(name, state=state, reason=reason, status=status))).values()
    assert (seen.state, seen.reason, seen.exit_status) == told


def test_of_two_under_one_key_the_one_that_lives_is_told(slurm: Dialect) -> None:
    name = slurm.job_name("lyon-1")
    # A submission that is refused leaves a failed job behind; the same key may be taken later.
    listing = line(name, state="FAILED", reason="BadConstraints", job=10) + line(name, state="RUNNING", job=9)
    assert slurm.listed(Answer(0, listing))["lyon-1"].native_id == "9"
    listing = line(name, state="FAILED", job=10) + line(name, state="COMPLETED", job=9)
    assert slurm.listed(Answer(0, listing))["lyon-1"].native_id == "10"


@pytest.mark.parametrize(
    "stderr, reason",
    [
        (f"sbatch: error: invalid partition specified: nope\n{FAILED}Invalid partition name specified\n", "bad-queue"),
        (f"{FAILED}Invalid account or account/partition combination specified\n", "bad-account"),
        (f"{FAILED}Invalid qos specification\n", "bad-account"),
        (
            f"sbatch: error: Memory specification can not be satisfied\n{FAILED}Requested node configuration is not available\n",
            "bad-resources",
        ),
        ("sbatch: error: Invalid generic resource (gres) specification\n", "bad-resources"),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)\n", "bad-resources"),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n", "bad-resources"),
        (f"{FAILED}User's group not permitted to use this partition\n", "not-allowed"),
        ("sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n", "refused"),
        ("sbatch: error: Batch script is empty!\n", "refused"),
    ],
)  # fmt: skip
def test_what_is_refused(slurm: Dialect, stderr: str, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        slurm.submitted(ONE, Answer(1, "", stderr))
    assert refused.value.reason == reason
    assert refused.value.what == " ".join(stderr.split())


@pytest.mark.parametrize(
    "stderr, fewer",
    [
        (f"{FAILED}Invalid job array specification\n", True),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n", False),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n", False),
        (f"{FAILED}Resource temporarily unavailable\n", False),
    ],
)  # fmt: skip
def test_what_comes_too_soon(slurm: Dialect, stderr: str, fewer: bool) -> None:  # noqa: FBT001
    with pytest.raises(Busy) as busy:
        slurm.submitted(ONE, Answer(1, "", stderr))
    assert busy.value.fewer is fewer


@pytest.mark.parametrize(
    "answer",
    [
        Answer(1, "", f"{FAILED}Unable to contact slurm controller (connect failure)\n"),
        Answer(1, "", f"{FAILED}Socket timed out on send/recv operation\n"),
        Answer(1, "", f"{FAILED}Zero Bytes were transmitted or received\n"),
        Answer(255, "", "ssh: connect to host lyon port 22: No route to host\n"),
        Answer(0, "", ""),
        Answer(0, "", "sbatch: error: invalid partition specified: nope\n"),
        Answer(None, "17\n", ""),
    ],
)
def test_what_may_have_been_queued(slurm: Dialect, answer: Answer) -> None:
    with pytest.raises(Unknown):
        slurm.submitted(ONE, answer)


def test_a_federation_tells_its_cluster_too(slurm: Dialect) -> None:
    assert slurm.submitted(ONE, Answer(0, "17;lyon\n")) == {"lyon-1": "17"}


def test_a_site_may_print_something_first(slurm: Dialect) -> None:
    assert slurm.submitted(ONE, Answer(0, "You have used 3 hours\n12\n17\n")) == {"lyon-1": "17"}


@pytest.mark.parametrize(
    "stderr",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
        "slurm_load_jobs error: Connection reset by peer\n",
    ],
)
def test_a_controller_that_is_down_knows_nothing(slurm: Dialect, stderr: str) -> None:
    with pytest.raises(Unknown):
        slurm.listed(Answer(1, "", stderr))
    with pytest.raises(Unknown):
        slurm.cancelled(Answer(1, "", stderr))
    assert slurm.listed(Answer(0, "")) == {}


def test_what_is_gone_need_not_be_cancelled(slurm: Dialect) -> None:
    slurm.cancelled(Answer(1, "", "scancel: error: Kill job error on job id 1_1: Invalid job id specified\n"))
    with pytest.raises(Unknown):
        slurm.cancelled(Answer(1, "", "scancel: error: Kill job error on job id 1_1: Access/permission denied\n"))


def test_elements_are_cancelled_by_the_name_of_their_array(slurm: Dialect) -> None:
    call = slurm.cancel({"lyon-9": "5_1", "lyon-10": "5_2", "x:y": "6"})
    assert call.stdin.split("\n")[:2] == [
        "scancel --name=pilotage.lyon-8 5_1 5_2 || failed=1",
        "scancel --name=pilotage.x_3Ay 6 || failed=1",
    ]


def test_the_history_is_asked_for_what_is_missing(slurm: Dialect) -> None:
    known = slurm.history({"lyon-1": "5_1", "lyon-2": "5_2", "lyon-7": "6"})
    assert known is not None
    assert "--jobs=5,6" in known.argv
    unknown = slurm.history({"lyon-1": ""})
    assert unknown is not None
    assert "--starttime=now-3days" in unknown.argv


def test_the_history_is_read(slurm: Dialect) -> None:
    # The columns of https://slurm.schedmd.com/sacct.html, with --parsable2.
    told = (
        "5_1|TIMEOUT|0:0|None|an1|pilotage.lyon-1\n"
        "5_2|CANCELLED by 1000|0:15|None|an1|pilotage.lyon-1\n"
        "5_3|RUNNING|0:0|None|an1|pilotage.lyon-1\n"
        "6|OUT_OF_MEMORY|0:125|OutOfMemory|an2|pilotage.other\n"
        "7|COMPLETED|0:0|None|an2|somebody|else's\n"
    )
    seen = slurm.remembered(Answer(0, told))
    assert {key: each.reason for key, each in seen.items()} == {
        "lyon-2": "wall-time",
        "lyon-3": "cancelled",
        "other": "out-of-memory",
    }


def test_without_accounting_nothing_is_remembered(slurm: Dialect) -> None:
    assert slurm.remembered(Answer(1, "", "Slurm accounting storage is disabled\n")) == {}
    with pytest.raises(Unknown):
        slurm.remembered(Answer(1, "", "sacct: error: Problem talking to the database: Connection refused\n"))


def test_unlike_nodes_of_a_partition_are_one_queue(slurm: Dialect) -> None:
    told = (
        "up|1-00:00:00|8|16000|2|(null)|main*\nup|1-00:00:00|64|256000|1|gpu:a100:4(S:0-1),gpu:3090:2|main*\n"
        "down|5:00|8|16000|2|(null)|old\n"
    )
    limits = slurm.limited([Answer(0, told), Answer(0, "MaxArraySize            = 1001\n")])
    (queue,) = limits.queues
    assert (queue.name, queue.cores, queue.nodes, queue.wall_seconds) == ("main", 64, 3, 86_400)
    assert queue.memory_bytes == 256_000 << 20
    assert (queue.core_memory_bytes, queue.gpus) == (2000 << 20, 6)


def test_what_a_core_may_have_is_no_more_than_the_site_gives_one(slurm: Dialect) -> None:
    told = "up|infinite|8|16000|2|gpu:2|main*\nup|infinite|0|16000|2|(null)|odd\n"
    limits = slurm.limited([Answer(0, told), Answer(0, "MaxMemPerCPU            = 1500\nMaxArraySize = 1001\n")])
    assert [(each.core_memory_bytes >> 20, each.gpus) for each in limits.queues] == [(1500, 2), (1500, 0)]
    free = slurm.limited([Answer(0, told), Answer(0, "MaxMemPerNode           = UNLIMITED\n")])
    assert [each.core_memory_bytes >> 20 for each in free.queues] == [2000, 0]


def test_the_one_mebibyte_of_nodes_whose_memory_nobody_wrote_down_is_not_taken_for_it(slurm: Dialect) -> None:
    limits = slurm.limited([Answer(0, "up|infinite|1|1|2|(null)|main*\n"), Answer(0, "MaxArraySize = 1001\n")])
    assert [(each.memory_bytes, each.core_memory_bytes) for each in limits.queues] == [(0, 0)]


def test_what_is_asked_for(slurm: Dialect) -> None:
    wanted = BatchRequest(
        key="lyon-1",
        command=["true"],
        count=3,
        cores=4,
        memory_bytes=1,
        gpus=2,
        wall_seconds=61,
        queue="q",
        account="a",
    )
    words = set(slurm.submit(wanted).argv)
    assert {"--array=0-2", "--cpus-per-task=4", "--ntasks=1", "--mem=1M", "--gres=gpu:2", "--time=2"} <= words
    assert {"--partition=q", "--account=a", "--no-requeue", "--job-name=pilotage.lyon-1", "--nodes=1"} <= words
    several = set(slurm.submit(BatchRequest(key="lyon-1", command=["true"], cores=4, nodes=2)).argv)
    assert {"--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=1"} <= several
    with pytest.raises(ValueError, match="longer than the column of squeue"):
        slurm.submit(BatchRequest(key="x" * 400, command=["true"]))


def test_some_nodes_are_meant_by_leaving_out_all_others(slurm: Dialect, tmp_path: Path) -> None:
    # Slurm's own --nodelist is all of the nodes that it names, not one of them.
    for name, said in (("sinfo", "n1\nn2\nN3\nbig1\nbig2\nn1\n"), ("sbatch", "")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\nprintf '%s' '{said}'\n" + ('printf "%s\\n" "$@"\ncat\n' if not said else ""))
        program.chmod(0o755)
    for hosts, others in (
        (["n2", "n3"], "big1,big2,n1"),
        (["n?.lyon.example", "n[12]", "big1.lyon.example"], "N3,big2"),
        (["n[!1]", "*2"], "big1,n1"),
        (["*"], ""),
    ):
        call = slurm.submit(BatchRequest(key="lyon-1", command=["true"], hosts=hosts))
        done = subprocess.run(
            call.argv,
            input=call.stdin,
            env={"PATH": f"{tmp_path}:{os.defpath}"},
            capture_output=True,
            text=True,
            check=True,
        )
        words = done.stdout.splitlines()
        assert [each for each in words if each.startswith("--exclude")] == ([f"--exclude={others}"] if others else [])
        assert "--nodes=1" in words
        assert done.stdout.endswith(call.stdin)
        assert done.stderr == ""


def test_a_controller_that_does_not_answer_when_it_is_asked_for_its_nodes_is_unknown(slurm: Dialect) -> None:
    down = Answer(1, "", "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(Unknown):
        slurm.submitted(ONE, down)
