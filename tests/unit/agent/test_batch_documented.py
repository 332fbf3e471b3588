"""Systems that are not at hand: the words that their documentation and sources show, and what they stand for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pilotage.agent.batch import (
    Answer,
    BatchJob,
    BatchRequest,
    Busy,
    Dialect,
    Limits,
    Queue,
    Refused,
    Unknown,
    dialects,
)

ONE = BatchRequest(key="lyon-1", command=["true"])
NAME = "pilotage.lyon-1"


def speaking(name: str) -> Dialect:
    """A dialect with the prefix of all these tests."""
    return dialects()[name]("pilotage")


def pbs_listing(**attributes: object) -> Answer:
    """A document as at https://pbspro.atlassian.net/wiki/display/PD/PP-483%3A+PP-484%3A+PP-485%3A+Enhance+output+of+qstat+to+make+it+more+admin+and+script+friendly"""
    told = {
        "Job_Name": "STDIN",
        "Job_Owner": "root@vbox",
        "queue": "workq",
        "server": "vbox",
        "Variable_List": {"PBS_O_HOME": "/root", "PILOTAGE_NAME": f"{NAME}+"},
        **attributes,
    }
    head = {"timestamp": 1479277336, "pbs_version": "14.1", "pbs_server": "vbox"}
    return Answer(0, json.dumps({**head, "Jobs": {"1.vbox": told}}))


@pytest.mark.parametrize(
    "attributes, told",
    [
        # Negative ones are JOB_EXEC_KILL_WALLTIME and its like: src/include/job.h of https://github.com/openpbs/openpbs
        ({"job_state": "Q"}, BatchJob("1.vbox", "queued", detail="Q")),
        ({"job_state": "H", "comment": "held by user"}, BatchJob("1.vbox", "queued", "held", detail="held by user")),
        ({"job_state": "R", "exec_host": "node1/0*4+node2/1"}, BatchJob("1.vbox", "running", node="node1", detail="R")),
        ({"job_state": "F", "Exit_status": 0}, BatchJob("1.vbox", "ended", "ended", exit_status=0)),
        ({"job_state": "F", "Exit_status": 3}, BatchJob("1.vbox", "ended", "failed", exit_status=3)),
        ({"job_state": "F", "Exit_status": 265}, BatchJob("1.vbox", "ended", "killed")),
        ({"job_state": "F", "Exit_status": 271, "substate": 91}, BatchJob("1.vbox", "ended", "cancelled")),
        ({"job_state": "F", "Exit_status": -29}, BatchJob("1.vbox", "ended", "wall-time")),
        ({"job_state": "F", "Exit_status": -27}, BatchJob("1.vbox", "ended", "out-of-memory")),
        ({"job_state": "F", "Exit_status": -3}, BatchJob("1.vbox", "ended", "platform-failure")),
        ({"job_state": "F"}, BatchJob("1.vbox", "ended", "cancelled")),
    ],
)
def test_pbs_states(attributes: dict[str, object], told: BatchJob) -> None:
    assert speaking("pbs").listed(pbs_listing(**attributes)) == {"lyon-1": told}


def test_pbs_shows_its_variables_as_one_text_too() -> None:
    text = f"PBS_O_HOME=/root,PILOTAGE_NAME={NAME}+,PBS_O_SHELL=/bin/bash"
    assert speaking("pbs").listed(pbs_listing(job_state="Q", Variable_List=text)).keys() == {"lyon-1"}
    assert speaking("pbs").listed(pbs_listing(job_state="Q", Variable_List="PBS_O_HOME=/root")) == {}


@pytest.mark.parametrize(
    "row, told",
    [
        # The fields: https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bjobs.o.1.html; what ends a job: bacct(1)
        ("7|0|PEND|-|-|-", BatchJob("7", "queued", detail="PEND")),
        ("7|0|PSUSP|-|-|-", BatchJob("7", "queued", "held", detail="PSUSP")),
        ("7|0|RUN|-|4*hostA|-", BatchJob("7", "running", node="hostA", detail="RUN")),
        ("7|0|UNKWN|-|hostA|-", BatchJob("7", "running", node="hostA", detail="UNKWN")),
        ("7|0|ZOMBI|-|hostA|-", BatchJob("7", "ended", "platform-failure", "hostA", None, "ZOMBI")),
        ("7|0|DONE|-|hostA|-", BatchJob("7", "ended", "ended", "hostA", 0, "DONE")),
        ("7|0|EXIT|3|hostA|-", BatchJob("7", "ended", "failed", "hostA", 3, "-")),
        ("7|0|EXIT|137|hostA|-", BatchJob("7", "ended", "killed", "hostA", None, "-")),
        (
            "7|0|EXIT|143|hostA|TERM_PREEMPT: a|b",
            BatchJob("7", "ended", "preempted", "hostA", None, "TERM_PREEMPT: a b"),
        ),
        (
            "7|0|EXIT|137|hostA|TERM_MEMLIMIT: x",
            BatchJob("7", "ended", "out-of-memory", "hostA", None, "TERM_MEMLIMIT: x"),
        ),
        ("7|0|EXIT|1|hostA|TERM_LOAD: x", BatchJob("7", "ended", "platform-failure", "hostA", None, "TERM_LOAD: x")),
    ],
)
def test_lsf_states(row: str, told: BatchJob) -> None:
    assert speaking("lsf").listed(Answer(0, f"{row}|{NAME}\n8|0|RUN|-|hostB|-|somebody's\n")) == {"lyon-1": told}


def test_lsf_names_its_open_queues() -> None:
    # https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bqueues.1.html
    listing = "normal 30 Open:Active - - - 8 1 0\nnight 20 Closed:Active - - - 4 1 0\ncut 10 Open:Active - - -\n"
    found = speaking("lsf").limited([Answer(0, listing), Answer(0, "MAX_JOB_ARRAY_SIZE = 1000\n")])
    assert found == Limits((Queue("normal", cores=8),), 1000)


@pytest.mark.parametrize("status", [0, 255])
def test_lsf_says_in_words_that_nothing_is_there(status: int) -> None:
    # https://www.ibm.com/support/knowledgecenter/SSWRJV_10.1.0/lsf_config_ref/lsf.conf.lsb_bjobs_consistent_exit_code.5.html
    assert speaking("lsf").listed(Answer(status, "", "No unfinished job found\n")) == {}
    with pytest.raises(Unknown):
        speaking("lsf").listed(Answer(255, "", "LSF is down. Please wait ...\n"))


@pytest.mark.parametrize(
    "attributes, told",
    [
        # https://htcondor.readthedocs.io/en/latest/classad-attributes/job-classad-attributes.html
        ({"JobStatus": 1}, BatchJob("4.0", "queued")),
        ({"JobStatus": 2, "RemoteHost": "slot1@node"}, BatchJob("4.0", "running", node="node")),
        (
            {"JobStatus": 5, "HoldReason": "Error from slot1"},
            BatchJob("4.0", "queued", "held", detail="Error from slot1"),
        ),
        ({"JobStatus": 6}, BatchJob("4.0", "running")),
        ({"JobStatus": 7}, BatchJob("4.0", "running")),
        ({"JobStatus": 4, "ExitBySignal": False, "ExitCode": 3}, BatchJob("4.0", "ended", "failed", exit_status=3)),
        ({"JobStatus": 4, "ExitBySignal": True, "ExitSignal": 9}, BatchJob("4.0", "ended", "killed")),
        (
            {"JobStatus": 3, "RemoveReason": "PeriodicRemove", "PilotageWall": 60, "RemoteWallClockTime": 61.0},
            BatchJob("4.0", "ended", "wall-time", detail="PeriodicRemove"),
        ),
        (
            {"JobStatus": 3, "RemoveReason": "PeriodicRemove", "PilotageWall": 60, "RemoteWallClockTime": 5.0},
            BatchJob("4.0", "ended", "preempted", detail="PeriodicRemove"),
        ),
    ],
)
def test_htcondor_states(attributes: dict[str, object], told: BatchJob) -> None:
    shown = json.dumps([{"ClusterId": 4, "ProcId": 0, "PilotageName": NAME, **attributes}])
    assert speaking("htcondor").listed(Answer(0, shown)) == {"lyon-1": told}


def test_htcondor_prints_nothing_where_nothing_is() -> None:
    assert speaking("htcondor").listed(Answer(0, "")) == {}
    assert speaking("htcondor").listed(Answer(0, "[]")) == {}
    with pytest.raises(Unknown):
        speaking("htcondor").listed(Answer(0, "[{"))


@pytest.mark.parametrize(
    "row, told",
    [
        # The columns of src/DIRAC/Interfaces/scripts/dstat.py, https://github.com/DIRACGrid/DIRAC
        ("Waiting,Pilot Agent Submission,ANY", BatchJob("11", "queued", detail="Pilot Agent Submission")),
        ("Running,Application,LCG.CERN.ch", BatchJob("11", "running", node="LCG.CERN.ch", detail="Application")),
        ("Stalled,Watchdog,LCG.CERN.ch", BatchJob("11", "running", node="LCG.CERN.ch", detail="Watchdog")),
        (
            "Done,Execution Complete,LCG.CERN.ch",
            BatchJob("11", "ended", "ended", "LCG.CERN.ch", 0, "Execution Complete"),
        ),
        ("Killed,Marked for termination,ANY", BatchJob("11", "ended", "cancelled", detail="Marked for termination")),
        (
            "Failed,Application Finished With Errors,ANY",
            BatchJob("11", "ended", "failed", detail="Application Finished With Errors"),
        ),
        (
            "Failed,Job stalled: pilot not running,ANY",
            BatchJob("11", "ended", "platform-failure", detail="Job stalled: pilot not running"),
        ),
    ],
)
def test_dirac_states(row: str, told: BatchJob) -> None:
    shown = f"JobID,JobName,Status,MinorStatus,Site\n11,{NAME},{row}\n12,else,Running,x,y\n"
    assert speaking("dirac").listed(Answer(0, shown)) == {"lyon-1": told}


def test_dirac_tells_numbers() -> None:
    # https://github.com/DIRACGrid/DIRAC, src/DIRAC/Interfaces/scripts/dirac_wms_job_submit.py: "JobID = 11"
    assert speaking("dirac").submitted(ONE, Answer(0, "JobID = 11\n")) == {"lyon-1": "11"}
    several = BatchRequest(key="lyon-1", command=["true"], count=2)
    told = speaking("dirac").submitted(several, Answer(0, "JobID = [11, 12]\n"))
    assert told == {"lyon-1": "11+0", "lyon-2": "12+1"}
    with pytest.raises(Unknown):
        speaking("dirac").submitted(several, Answer(0, "JobID = 11\n"))


@pytest.mark.parametrize(
    "name, answer, reason",
    [
        ("pbs", Answer(170, "", "qsub: Unknown queue\n"), "bad-queue"),
        ("pbs", Answer(159, "", "qsub: Unauthorized Request\n"), "not-allowed"),
        ("pbs", Answer(188, "", "qsub: Job violates queue and/or server resource limits\n"), "bad-resources"),
        ("lsf", Answer(255, "", "nope: No such queue. Job not submitted.\n"), "bad-queue"),
        ("lsf", Answer(255, "", "User permission denied. Job not submitted.\n"), "not-allowed"),
        ("htcondor", Answer(1, "", "ERROR: Failed to parse command file (line 3).\n"), "refused"),
        ("dirac", Answer(2, "ERROR a.jdl: Proxy has expired\n", ""), "not-allowed"),
        ("dirac", Answer(127, "", "sh: 9: dirac-wms-job-submit: not found\n"), "refused"),
    ],
)
def test_refusals(name: str, answer: Answer, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        speaking(name).submitted(ONE, answer)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "name, answer",
    [
        ("pbs", Answer(1, "", "qsub: Maximum number of jobs already in queue\n")),
        ("lsf", Answer(255, "", "Pending job threshold reached. Retrying in 60 seconds...\n")),
        ("htcondor", Answer(1, "", "ERROR: Number of submitted jobs would exceed MAX_JOBS_PER_OWNER\n")),
    ],
)
def test_limits_that_were_met(name: str, answer: Answer) -> None:
    with pytest.raises(Busy):
        speaking(name).submitted(ONE, answer)


@pytest.mark.parametrize("memory_bytes, size", [(1, "1MB"), (3 << 30, "3072MB"), ((3 << 30) + 1, "3073MB")])
def test_lsf_is_asked_for_memory_in_whole_megabytes_of_each_host(memory_bytes: int, size: str) -> None:
    # https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bsub.M.1.html
    words = speaking("lsf").submit(replace(ONE, memory_bytes=memory_bytes)).argv
    assert words[words.index("-M") + 1] == size
    assert f"rusage[mem={size}/host]" in words


def test_directives_are_lines_of_a_submit_description() -> None:
    wanted = BatchRequest(key="lyon-1", command=["true"], directives=['requirements = OpSysMajorVer == "9"'])
    lines = speaking("htcondor").submit(wanted).stdin.split("\n")
    assert lines[-3:] == ['requirements = OpSysMajorVer == "9"', "queue 1", ""]


def test_directives_are_lines_of_a_jdl_whatever_they_hold() -> None:
    wanted = BatchRequest(key="lyon-1", command=["true"], directives=['Tags = {"$HOME`x`"};'])
    assert 'Tags = {"\\$HOME\\`x\\`"};' in speaking("dirac").submit(wanted).stdin.split("\n")


@pytest.mark.parametrize(
    "name, demand, told",
    [
        ("htcondor", {"nodes": 4}, "on one node only, not on 4"),
        ("dirac", {"nodes": 4}, "4 nodes"),
        ("dirac", {"memory_bytes": 1 << 30, "gpus": 2}, "1073741824 bytes of memory and 2 GPUs"),
    ],
)
def test_what_a_system_is_not_asked_for_is_refused_and_not_left_out(
    name: str, demand: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        speaking(name).submit(replace(ONE, **demand))
