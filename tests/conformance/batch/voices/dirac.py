"""DIRAC, played. Its commands: https://github.com/DIRACGrid/DIRAC/wiki/Quick-DIRAC-Tutorial and, in that repository,
src/DIRAC/Interfaces/scripts/dirac_wms_job_submit.py (what it prints) and dstat.py (its options and columns).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.conformance.batch.voices.stage import ARRAY_MAX, Answered, Element, Stage, options

READS = ()
DOWN: Answered = (
    2,
    "ERROR job.jdl: Can't connect to dips://dirac.example.org:9132/WorkloadManagement/JobManager\n",
    "",
)
_ENDS = {
    "cancelled": ("Killed", "Marked for termination"),
    "wall-time": ("Failed", "Job has exceeded maximum wall clock time"),
}


def dirac_wms_job_submit(stage: Stage, words: list[str], text: str) -> Answered:
    jdl = Path(words[0]).read_text()
    said = dict(re.findall(r"^(\w+) = (.*);$", jdl, re.MULTILINE))
    if said.get("Site", '"LCG.CERN.ch"') != '"LCG.CERN.ch"':
        return 2, f"ERROR {words[0]}: Unknown site {said['Site']}\n", ""
    count = int(said.get("Parameters", 1))
    if count > ARRAY_MAX:
        return 2, f"ERROR {words[0]}: Number of parameters exceeds the limit of {ARRAY_MAX}\n", ""
    script = stage.folder / f"script-{len(list(stage.folder.glob('*.job')))}"
    shutil.copy(said["InputSandbox"].strip('{"}'), script)
    name, jobs = said["JobName"].strip('"'), []
    for index in range(count):
        arguments = [said["Arguments"].strip('"').replace("%n", str(index))] if "Arguments" in said else []

        def start(_: int, arguments: list[str] = arguments) -> tuple[list[str], dict[str, str]]:
            return ["/bin/sh", str(script), *arguments], {}

        wall = int(said.get("CPUTime", 0))
        own = name.replace("%n", str(index))
        jobs.append(stage.submit(name=own, indices=[0], is_array=False, start=start, wall_seconds=wall))
    return 0, f"JobID = {jobs if count > 1 else jobs[0]}\n", ""


def _row(element: Element) -> tuple[str, str, str]:
    if element.state == "running":
        return "Running", "Application", "LCG.CERN.ch"
    if element.how:
        return (*_ENDS[element.how], "LCG.CERN.ch")
    failed = ("Failed", "Application Finished With Errors", "LCG.CERN.ch")
    return failed if element.status else ("Done", "Execution Complete", "LCG.CERN.ch")


def dstat(stage: Stage, words: list[str], text: str) -> Answered:
    said, jobs = options(words, flags=["-a"])
    fields = said["F"].split(",")
    rows = [",".join(["JobID", *fields])]
    for element in stage.elements():
        if element.name.startswith(f"{said.get('g', '')}.") or (jobs and str(element.job) in jobs):
            status, minor, site = _row(element)
            told = {"JobName": element.name, "Status": status, "MinorStatus": minor, "Site": site}
            rows.append(",".join([str(element.job), *(told[field] for field in fields)]))
    return 0, "\n".join([*rows, ""]), ""


def dirac_wms_job_kill(stage: Stage, words: list[str], text: str) -> Answered:
    stage.end(int(words[0]), 0, how="cancelled")
    return 0, f"Killed jobs {words[0]}\n", ""


def dirac_version(stage: Stage, words: list[str], text: str) -> Answered:
    return 0, "8.0.42\n", ""


COMMANDS = {
    "dirac-wms-job-submit": dirac_wms_job_submit,
    "dstat": dstat,
    "dirac-wms-job-kill": dirac_wms_job_kill,
    "dirac-version": dirac_version,
}
