"""HTCondor, played. Its commands: https://htcondor.readthedocs.io/en/latest/man-pages/condor_submit.html
and condor_q.html, condor_history.html, condor_rm.html beside it; its attributes:
https://htcondor.readthedocs.io/en/latest/classad-attributes/job-classad-attributes.html
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conformance.batch.voices.stage import ARRAY_MAX, Answered, Element, Stage

READS = ("condor_submit",)
DOWN: Answered = (
    1,
    "",
    "-- Failed to fetch ads from: <127.0.0.1:9618> : vm\nERROR: Can't find address of local schedd\n",
)


def _arguments(text: str) -> list[str]:
    """The words of the newer syntax: in double quotes, which are doubled inside, single ones keep blanks together."""
    assert text[0] == text[-1] == '"'
    inner = text[1:-1].replace('""', '"')
    return [part.replace("''", "'") for part in re.findall(r"'((?:[^']|'')*)'|(\S+)", inner) for part in part if part]


def condor_submit(stage: Stage, words: list[str], text: str) -> Answered:
    lines = text.strip().split("\n")
    said = dict(line.split(" = ", 1) for line in lines[:-1])
    count = int(lines[-1].partition(" ")[2])
    if count > ARRAY_MAX:
        message = "Number of submitted jobs would exceed MAX_JOBS_PER_SUBMISSION"
        return 1, "", f"ERROR: Failed to create proc\n{message}\n"
    assert "$(" not in said["arguments"]
    job = stage.submit(
        name=json.dumps([json.loads(said["+PilotageName"]), int(said["+PilotageWall"])]),
        indices=range(count),
        is_array=True,
        start=lambda index: ([said["executable"], *_arguments(said["arguments"])], {"PILOTAGE_INDEX": str(index)}),
        wall_seconds=int(said["+PilotageWall"]),
        cwd=said.get("initialdir", ""),
    )
    return 0, f"{job}.0 - {job}.{count - 1}\n", ""


def _attributes(element: Element) -> dict[str, Any]:
    name, wall_seconds = json.loads(element.name)
    told = {"ClusterId": element.job, "ProcId": element.place, "PilotageName": name, "PilotageWall": wall_seconds}
    if element.state == "running":
        return {**told, "JobStatus": 2, "RemoteHost": "slot1_1@node.example.org"}
    told["LastRemoteHost"] = "slot1_1@node.example.org"
    if element.how == "cancelled":
        return {**told, "JobStatus": 3, "RemoveReason": "via condor_rm (by user alice)", "RemoteWallClockTime": 1.0}
    if element.how == "wall-time":
        why = "The job attribute PeriodicRemove expression '(JobStatus == 1)' evaluated to TRUE"
        return {**told, "JobStatus": 3, "RemoveReason": why, "RemoteWallClockTime": wall_seconds + 0.5}
    return {**told, "JobStatus": 4, "ExitBySignal": False, "ExitCode": element.status}


def _shown(stage: Stage, words: list[str], state: str) -> Answered:
    prefix = re.search(r'regexp\("\^(.*)\[\.\]", PilotageName\)', words[-1])
    assert prefix
    told = [_attributes(element) for element in stage.elements() if element.state == state]
    ours = [each for each in told if each["PilotageName"].startswith(f"{prefix.group(1)}.")]
    return 0, json.dumps(ours[::-1], indent=2) if ours else "", ""


def condor_q(stage: Stage, words: list[str], text: str) -> Answered:
    return _shown(stage, words, "running")


def condor_history(stage: Stage, words: list[str], text: str) -> Answered:
    return _shown(stage, words, "ended")


def condor_rm(stage: Stage, words: list[str], text: str) -> Answered:
    pattern = r'\(ClusterId == ([0-9]+) && ProcId == ([0-9]+) && PilotageName == "([^"]*)"\)'
    wanted = {(int(job), int(index), name) for job, index, name in re.findall(pattern, words[-1])}
    assert words[-1].count(" || ") == len(wanted) - 1
    ended = [
        stage.end(element.job, element.place, how="cancelled")
        for element in stage.elements()
        if (element.job, element.place, json.loads(element.name)[0]) in wanted and element.state == "running"
    ]
    if not any(ended):
        return 1, "", "Couldn't find/remove all jobs matching constraint\n"
    return 0, "Jobs matching constraint (...) have been marked for removal\n", ""


def condor_config_val(stage: Stage, words: list[str], text: str) -> Answered:
    return (0, f"{ARRAY_MAX}\n", "") if words == ["MAX_JOBS_PER_SUBMISSION"] else (1, f"Not defined: {words[0]}\n", "")


def condor_version(stage: Stage, words: list[str], text: str) -> Answered:
    return 0, "$CondorVersion: 23.4.0 2024-02-08 BuildID: Debian-23.4.0 $\n$CondorPlatform: X86_64-Ubuntu_ $\n", ""


COMMANDS = {
    "condor_submit": condor_submit,
    "condor_q": condor_q,
    "condor_history": condor_history,
    "condor_rm": condor_rm,
    "condor_config_val": condor_config_val,
    "condor_version": condor_version,
}
