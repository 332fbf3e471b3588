"""OpenPBS, played. The shape of what it prints: https://pbspro.atlassian.net/wiki/display/PD/PP-483%3A+PP-484%3A+PP-485%3A+Enhance+output+of+qstat+to+make+it+more+admin+and+script+friendly
The words of its options: doc/man1/qstat.1B and doc/man1/qsub.1B of https://github.com/openpbs/openpbs
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conformance.batch.voices.stage import ARRAY_MAX, Answered, Element, Stage, options

READS = ("qsub",)
DOWN: Answered = (255, "", "Connection refused\nqstat: cannot connect to server pbs (errno=15010)\n")
_STATUS = {"cancelled": 271, "wall-time": -29}


def qsub(stage: Stage, words: list[str], text: str) -> Answered:
    said: dict[str, str] = {}
    resources = [words[place + 1] for place, word in enumerate(words) if word == "-l"]
    said, _ = options(words)
    if said.get("q", "workq") != "workq":
        return 170, "", "qsub: Unknown queue\n"
    first, last = map(int, said.get("J", "0-0").split("-"))
    if last - first >= ARRAY_MAX:
        return 190, "", "qsub: Array job exceeds server or queue size limit\n"
    wall = next((int(each.partition("=")[2]) for each in resources if each.startswith("walltime=")), 0)
    variables = dict(each.split("=", 1) for each in said["v"].split(","))
    script = stage.folder / "script"
    script.write_bytes(text.encode("utf-8", "surrogateescape"))
    kept = script.rename(stage.folder / f"script-{len(list(stage.folder.glob('*.job')))}")
    job = stage.submit(
        name=json.dumps({**variables, "PBS_O_WORKDIR": "/home"}),
        indices=range(first, last + 1),
        is_array="J" in said,
        start=lambda index: ([said["S"], str(kept)], {"PBS_ARRAY_INDEX": str(index), **variables}),
        wall_seconds=wall,
    )
    return 0, f"{job}[].pbs\n" if "J" in said else f"{job}.pbs\n", ""


def qselect(stage: Stage, words: list[str], text: str) -> Answered:
    jobs = {each.job: each.is_array for each in stage.elements()}
    return 0, "".join(f"{job}[].pbs\n" if is_array else f"{job}.pbs\n" for job, is_array in jobs.items()), ""


def _attributes(element: Element) -> dict[str, Any]:
    told: dict[str, Any] = {"Job_Name": "STDIN", "job_state": "R", "queue": "workq", "exec_host": "vbox/0"}
    if element.is_array:  # the rest is told of the whole array
        told["array_index"] = element.place
    else:
        told["Variable_List"] = json.loads(element.name)
    if element.state == "ended":
        told |= {"job_state": "X" if element.is_array else "F", "substate": 91 if element.how == "cancelled" else 92}
        told["Exit_status"] = _STATUS.get(element.how, element.status)
    return told


def qstat(stage: Stage, words: list[str], text: str) -> Answered:
    if words == ["--version"]:
        return 0, "pbs_version = 20.0.1\n", ""
    head = {"timestamp": 1479277336, "pbs_version": "14.1", "pbs_server": "vbox"}
    if "-Q" in words:
        queues = {"workq": {"queue_type": "Execution", "resources_max": {"walltime": "24:00:00", "ncpus": 8}}}
        return 0, json.dumps({**head, "Queue": queues}), ""
    if "-B" in words:
        return 0, json.dumps({**head, "Server": {"vbox": {"default_queue": "workq", "max_array_size": 100}}}), ""
    elements = {
        f"{each.job}[{each.place}].pbs" if each.is_array else f"{each.job}.pbs": each for each in stage.elements()
    }
    if "json" in words:
        jobs = {native_id: _attributes(each) for native_id, each in elements.items()}
        jobs |= {
            re.sub(r"\[.*\]", "[]", native_id): {"job_state": "B", "Variable_List": json.loads(each.name)}
            for native_id, each in elements.items()
            if each.is_array
        }
        return 0, json.dumps({**head, "Jobs": jobs}), ""
    native_id = words[-1]
    alive = [
        each.name
        for other, each in elements.items()
        if re.sub(r"\[.*\]", "[]", other) == native_id and each.state == "running"
    ]
    if not alive:
        return 153, "", f"qstat: Unknown Job Id {native_id}\n"
    variables = ",".join(f"{name}={value}" for name, value in json.loads(alive[0]).items())
    wrapped = f"    Variable_List = {variables}"
    lines = [wrapped[:60], *(f"\t{wrapped[place : place + 60]}" for place in range(60, len(wrapped), 60))]
    return 0, "\n".join([f"Job Id: {native_id}", "    Job_Name = STDIN", *lines, ""]), ""


def qdel(stage: Stage, words: list[str], text: str) -> Answered:
    job, _, index = words[0].partition(".")[0].rstrip("]").partition("[")
    if not stage.end(int(job), int(index or 0), how="cancelled"):
        return 35, "", f"qdel: Job has finished {words[0]}\n"
    return 0, "", ""


COMMANDS = {"qsub": qsub, "qselect": qselect, "qstat": qstat, "qdel": qdel}
