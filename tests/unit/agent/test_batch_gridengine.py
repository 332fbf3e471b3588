"""Grid Engine's words, as a real one (Son of Grid Engine 8.1.9) said them where nothing else is named."""

from __future__ import annotations

import pytest

from pilotage.agent.batch import Answer, BatchRequest, Busy, Call, Dialect, Refused, Unknown, dialects

ONE = BatchRequest(key="lyon-1", command=["true"])
RECORD = """\
==============================================================
qname        main.q
hostname     localhost
owner        root
jobname      {name}
jobnumber    {job}
taskid       {element}
granted_pe   NONE
slots        1
failed       {failed}
exit_status  {status}
ru_wallclock {wall}s
maxvmem      2.801MB
arid         undefined
category     {category}
"""


@pytest.fixture
def gridengine() -> Dialect:
    return dialects()["gridengine"]("pilotage")


def record(failed: str, status: str, *, wall: int = 0, category: str = "NONE", element: str = "undefined") -> str:
    """What qacct tells of one job."""
    name = "pilotage.lyon-1"
    return RECORD.format(name=name, job=5, element=element, failed=failed, status=status, wall=wall, category=category)


@pytest.mark.parametrize(
    "told, reason, status",
    [
        (record("0", "0"), "ended", 0),
        (record("0", "3"), "failed", 3),
        (record("100 : assumedly after job", "137                  (Killed)"), "killed", None),
        (record("0", "143"), "killed", None),
        (record("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", wall=3, category="-l h_rt=2"), "wall-time", None),
        (record("100 : assumedly after job", "137", wall=7200, category="-l h_rt=7200 -pe smp 2"), "wall-time", None),
        (record("100 : assumedly after job", "137", wall=71, category="-l h_rt=7200"), "killed", None),
        (record("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", wall=3, category="-l h_rt=200,h_vmem=1G"), "out-of-memory", None),
        (record("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", wall=7), "wall-time", None),
        (record("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", wall=7, category="-l h_vmem=1G"), "wall-time", None),
        (record("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", wall=7, category="-l h_vmem=3M"), "out-of-memory", None),
        (record("28  : changing into working directory", "0"), "platform-failure", None),
        (record("26  : opening input/output file", "0"), "platform-failure", None),
    ],
)  # fmt: skip
def test_ends(gridengine: Dialect, told: str, reason: str, status: int | None) -> None:
    seen = gridengine.remembered(Answer(0, told))["lyon-1"]
    assert (seen.state, seen.reason, seen.exit_status, seen.native_id) == ("ended", reason, status, "5")


JOB_LIST = "<job_list><JB_job_number>{job}</JB_job_number><JB_name>pilotage.lyon-{key}</JB_name><state>{state}</state>{task}</job_list>"
DETAILS = """\
==============================================================
job_number:                 3
owner:                      root
job_name:                   pilotage.lyon-3
error reason          1:      11/17/2026 17:26:04 [0:172]: error: can't chdir to /no/such/folder: No such file or directory
scheduling info:            Job is in error state
==============================================================
job_number:                 4
job_name:                   pilotage.lyon-7
job-array tasks:            1-2:1
error reason          2:      11/17/2026 17:26:05 [23456:180]: can't create directory active_jobs/4.2: No space left on device
"""


def test_what_could_not_be_started_is_asked_for_and_told_in_its_own_words(gridengine: Dialect) -> None:
    rows = [
        JOB_LIST.format(job=3, key=3, state="Eqw", task=""),
        JOB_LIST.format(job=4, key=7, state="Eqw", task="<tasks>2</tasks>"),
        JOB_LIST.format(job=5, key=5, state="hqw", task=""),
        JOB_LIST.format(job=6, key=6, state="dEqw", task=""),
    ]
    seen = gridengine.listed(Answer(0, f"<job_info>{''.join(rows)}</job_info>"))
    assert {key: (each.native_id, each.state, each.reason, each.detail) for key, each in seen.items()} == {
        "lyon-3": ("3", "queued", "error", "Eqw"),
        "lyon-8": ("4.2", "queued", "error", "Eqw"),
        "lyon-5": ("5", "queued", "held", "hqw"),
        "lyon-6": ("6", "queued", "", "dEqw"),
    }
    assert gridengine.errors(["4.2", "3", "4.1"]) == Call(("qstat", "-j", "3,4"))
    told = gridengine.errors_told(Answer(1, DETAILS, "Following jobs do not exist: 9\n"))
    assert told["3"].endswith("error: can't chdir to /no/such/folder: No such file or directory")
    assert told["4.2"].endswith("No space left on device")
    assert "4.1" not in told
    assert gridengine.errors_told(Answer(1, "", "commlib error")) == {}


def test_elements_have_their_own_records(gridengine: Dialect) -> None:
    told = record("0", "0", element="1") + record("0", "1", element="3")
    seen = gridengine.remembered(Answer(0, told))
    assert {key: (each.native_id, each.reason) for key, each in seen.items()} == {
        "lyon-1": ("5.1", "ended"),
        "lyon-3": ("5.3", "failed"),
    }


def test_nothing_is_remembered_of_what_nobody_kept(gridengine: Dialect) -> None:
    assert gridengine.remembered(Answer(1, "", "error: job name pilotage.* not found\n")) == {}
    absent = "/sge/default/common/accounting: No such file or directory\n"
    assert gridengine.remembered(Answer(1, "no jobs running since startup\n", absent)) == {}
    with pytest.raises(Unknown):
        gridengine.remembered(
            Answer(1, "", "/var/lib/gridengine/default/common/accounting: No such file or directory\n")
        )


def test_the_history_is_asked_by_the_names_of_arrays(gridengine: Dialect) -> None:
    def asked(native_ids: dict[str, str]) -> str:
        call = gridengine.history(native_ids)
        assert call is not None
        return call.argv[-1]

    assert asked({"lyon-3": "5.3"}) == "pilotage.lyon-1*"
    assert asked({"lyon-3": "5.3", "lyon-17": "6"}) == "pilotage.lyon-1*"
    assert asked({"lyon-3": "5.3", "x": "6"}) == "pilotage.*"
    assert asked({"lyon-3": ""}) == "pilotage.*"


@pytest.mark.parametrize(
    "message, reason",
    [
        ('Job was rejected because job requests unknown queue "nope.q"', "bad-queue"),
        ('job rejected: the requested project "nope" does not exist', "bad-account"),
        ('job rejected: the requested parallel environment "nope" does not exist', "bad-resources"),
        ('unknown resource "nope"', "bad-resources"),
        ('denied: "1x" is not a valid object name (cannot start with a digit)', "not-allowed"),
    ],
)
def test_what_is_refused(gridengine: Dialect, message: str, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        gridengine.submitted(ONE, Answer(1, "", f"Unable to run job: {message}\nExiting.\n"))
    assert refused.value.reason == reason


def test_what_comes_too_soon(gridengine: Dialect) -> None:
    message = "Unable to run job: job rejected: you tried to submit a job with more than 1000 tasks\nExiting.\n"
    with pytest.raises(Busy) as busy:
        gridengine.submitted(ONE, Answer(1, "", message))
    assert busy.value.fewer
    # MSG_JOB_ALLOWEDJOBSPERUSER_UU of Grid Engine's sources.
    message = "Unable to run job: job rejected: only 20 jobs are allowed per user (current job count: 20)\nExiting.\n"
    with pytest.raises(Busy) as busy:
        gridengine.submitted(ONE, Answer(1, "", message))
    assert not busy.value.fewer


@pytest.mark.parametrize(
    "stderr",
    [
        (
            "error: commlib error: got select error (Connection refused)\n"
            'Unable to run job: unable to send message to qmaster using port 6444 on host "localhost": got send error\nExiting.\n'
        ),
        "Unable to run job: failed receiving gdi request response for mid=1 (got syncron message receive timeout error).\n",
        "Unable to run job: nobody knows why.\nExiting.\n",
    ],
)
def test_what_may_have_been_queued(gridengine: Dialect, stderr: str) -> None:
    with pytest.raises(Unknown):
        gridengine.submitted(ONE, Answer(1, "", stderr))


def test_a_complaint_beside_a_number_is_a_submission(gridengine: Dialect) -> None:
    told = Answer(1, "17\n", "Unable to run job: warning: root your job is not allowed to run in any queue\n")
    assert gridengine.submitted(ONE, told) == {"lyon-1": "17"}
    several = BatchRequest(key="lyon-1", command=["true"], count=2)
    assert gridengine.submitted(several, Answer(0, "18.1-2:1\n")) == {"lyon-1": "18.1", "lyon-2": "18.2"}


def test_a_master_that_is_down_knows_nothing(gridengine: Dialect) -> None:
    stderr = (
        "error: commlib error: got select error (Connection refused)\n"
        'error: unable to send message to qmaster using port 6444 on host "localhost": got send error\n'
    )
    with pytest.raises(Unknown):
        gridengine.listed(Answer(1, "", stderr))
    with pytest.raises(Unknown):
        gridengine.cancelled(Answer(1, "", stderr))
    with pytest.raises(Unknown):
        gridengine.listed(Answer(0, "<?xml version='1.0'?>\n<job_info>"))  # only half of it came
    assert gridengine.listed(Answer(0, "<?xml version='1.0'?>\n<job_info><queue_info/></job_info>")) == {}


def test_what_is_gone_need_not_be_cancelled(gridengine: Dialect) -> None:
    gridengine.cancelled(Answer(1, "The job pilotage.lyon-1 of user(s) root does not exist\n", ""))
    gridengine.cancelled(Answer(1, 'job "pilotage.lyon-1" task "2" does not exist for user(s) root\n', ""))
    gridengine.cancelled(Answer(0, "root has registered the job-array task 1.2 for deletion\n", ""))
    with pytest.raises(Unknown):
        gridengine.cancelled(Answer(1, "root - you do not have the necessary privileges to delete the job\n", ""))


def test_elements_are_cancelled_by_the_name_of_their_array(gridengine: Dialect) -> None:
    call = gridengine.cancel({"lyon-9": "5.2", "x:y": "6"})
    assert call.stdin.split("\n")[:2] == [
        "qdel pilotage.lyon-8 -t 2 || failed=1",
        "qdel pilotage.x_3Ay || failed=1",
    ]


def test_queues_tell_the_most_that_one_host_gives(gridengine: Dialect) -> None:
    queues = (
        "qname                 main.q\nslots                 1,[node1=16], \\\n                      [node2=8]\n"
        "h_rt                  24:00:00\nh_vmem                2G\n\nqname                 long.q\nslots 4\nh_rt INFINITY\n"
    )
    rest = "max_aj_tasks                 75000\nmax_u_jobs                   0\nmax_jobs                     500\n"
    limits = gridengine.limited([Answer(0, queues), Answer(0, rest)])
    main, long = limits.queues
    assert (main.name, main.cores, main.wall_seconds, main.memory_bytes) == ("main.q", 16, 86_400, 32 << 30)
    assert (long.name, long.cores, long.wall_seconds, long.memory_bytes) == ("long.q", 4, 0, 0)
    assert (main.core_memory_bytes, long.core_memory_bytes) == (2 << 30, 0)
    assert (limits.array_max, limits.jobs_max) == (75_000, 500)


def test_what_is_asked_for(gridengine: Dialect) -> None:
    wanted = BatchRequest(
        key="lyon-1",
        command=["true"],
        count=3,
        cores=4,
        memory_bytes=4001,
        gpus=2,
        wall_seconds=61,
        queue="q",
        account="a",
    )
    text = " ".join(gridengine.submit(wanted).argv)
    for words in ("-N pilotage.lyon-1", "-t 1-3", "-pe smp 4", "-l h_rt=61,h_vmem=1001,gpu=2", "-q q", "-P a", "-r n"):
        assert words in text
    several = gridengine.submit(BatchRequest(key="lyon-1", command=["true"], cores=4, nodes=2, parallel="orte"))
    assert "-pe orte 8" in " ".join(several.argv)
