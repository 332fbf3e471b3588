"""LSF, played. Its fields: https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bjobs.o.1.html
What it says when there is nothing: https://www.ibm.com/support/knowledgecenter/SSWRJV_10.1.0/lsf_config_ref/lsf.conf.lsb_bjobs_consistent_exit_code.5.html
"""

from __future__ import annotations

import re

from tests.conformance.batch.voices.stage import ARRAY_MAX, Answered, Element, Stage, options

READS = ("bsub",)
DOWN: Answered = (255, "", "LSF is down. Please wait ...\n")
_REASONS = {
    "cancelled": (130, "TERM_OWNER: job killed by owner"),
    "wall-time": (140, "TERM_RUNLIMIT: job killed after reaching LSF run time limit"),
}


def bsub(stage: Stage, words: list[str], text: str) -> Answered:
    if words == ["-V"]:
        return (
            0,
            "",
            "IBM Spectrum LSF Standard 10.1.0.13, Apr 15 2022\nCopyright International Business Machines Corp.\n",
        )
    said, _ = options(words, flags=["-rn"])
    queue = said.get("q", "normal")
    if queue != "normal":
        return 255, "", f"{queue}: No such queue. Job not submitted.\n"
    array = re.fullmatch(r"(.*?)(?:\[1-([0-9]+)\])?", said["J"])
    assert array
    count = int(array.group(2) or 1)
    if count > ARRAY_MAX:
        return 255, "", "Job array index too large. Job not submitted.\n"
    script = stage.folder / f"script-{len(list(stage.folder.glob('*.job')))}"
    script.write_bytes(text.encode("utf-8", "surrogateescape"))
    job = stage.submit(
        name=array.group(1),
        indices=range(1, count + 1) if array.group(2) else [0],
        is_array=bool(array.group(2)),
        start=lambda index: (["/bin/sh", str(script)], {"LSB_JOBINDEX": str(index)}),
        wall_seconds=int(said.get("W", 0)),  # minutes, played as seconds
        cwd=said.get("cwd", ""),
    )
    return 0, f"Job <{job}> is submitted to queue <{queue}>.\n", ""


def _row(element: Element) -> str:
    name = f"{element.name}[{element.place}]" if element.is_array else element.name
    state, code, reason = "RUN", "-", "-"
    if element.state == "ended":
        status, reason = _REASONS.get(element.how, (element.status, "-"))
        state, code = ("EXIT", str(status)) if status else ("DONE", "-")
    return f"{element.job}|{element.place}|{state}|{code}|4*hostA|{reason}|{name}\n"


def bjobs(stage: Stage, words: list[str], text: str) -> Answered:
    rows = [_row(element) for element in stage.elements()]
    return (0, "".join(rows), "") if rows else (255, "", "No job found\n")


def bkill(stage: Stage, words: list[str], text: str) -> Answered:
    said, others = options(words)
    assert others == ["0"]
    wanted = re.fullmatch(r"(.*?)(?:\[([0-9]+)\])?", said["J"])
    assert wanted
    ended = [
        element
        for element in stage.elements()
        if element.name == wanted.group(1)
        and element.place == int(wanted.group(2) or 0)
        and stage.end(element.job, element.place, how="cancelled")
    ]
    return (0, f"Job <{ended[0].job}> is being terminated\n", "") if ended else (255, "", "No matching job found\n")


def bqueues(stage: Stage, words: list[str], text: str) -> Answered:
    head = "QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP  RSV\n"
    return 0, f"{head}normal           30  Open:Active       -    -    -   16     0     0     0     0    0\n", ""


def bparams(stage: Stage, words: list[str], text: str) -> Answered:
    return 0, f"    MAX_JOB_ARRAY_SIZE = {ARRAY_MAX}\n    CLEAN_PERIOD = 3600\n", ""


COMMANDS = {"bsub": bsub, "bjobs": bjobs, "bkill": bkill, "bqueues": bqueues, "bparams": bparams}
