"""Slurm: sbatch, squeue, scancel, and sacct if there is accounting. Tested on 22.05."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pilotage.agent.batch.dialect import Dialect, one_after_another
from pilotage.agent.batch.values import (
    Answer,
    BatchJob,
    BatchRequest,
    Busy,
    Call,
    Limits,
    Queue,
    Reason,
    Verdict,
    answered,
    expression,
    keep,
    message_of,
    number,
    rejection,
    seconds,
)

# Fixed-width columns: a separator could be part of a job name.
_COLUMNS = {
    "JobID": 20, "ArrayJobID": 20, "ArrayTaskID": 20, "State": 20, "exit_code": 12, "Reason": 60, "NodeList": 100,
    "Name": 400,
}  # fmt: skip
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_ENDS: Mapping[str, Reason] = {
    "COMPLETED": "ended",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "OUT_OF_MEMORY": "out-of-memory",
    "PREEMPTED": "preempted",
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), "wall-time"),
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"), "platform-failure"),
}
# Pending for another reason than its turn, so that a person must act. Messages of limits on one job end like this.
_HELD = re.compile(
    r"JobHeld|DependencyNeverSatisfied|BadConstraints|PartitionTimeLimit|PartitionNodeLimit|PartitionConfig"
    r"|NotAllowed|Invalid(Account|QOS)|held|(PerJob|PerNode|WallDuration\w*)(Limit)?$"
)
_VERDICTS: Sequence[tuple[str, Verdict]] = (
    (r"unable to contact|timed out|zero bytes|connection re|communication|standby|protocol|transport end", "unknown"),
    (r"job array specification", "fewer"),
    (r"(wall|perjob|pernode)\w*limit", "bad-resources"),
    (r"temporarily una|submit limit|maxsubmit|submitjob|jobslimit|max jobs", "busy"),
    (r"partition name|invalid partition|partition not available", "bad-queue"),
    (r"invalid account|invalid qos", "bad-account"),
    (r"permission|not permitted to use|access denied", "not-allowed"),
    (r"node configuration|generic resource|time limit|memory|processors|node count|feature", "bad-resources"),
    (r"sbatch:", "refused"),
)
# --nodelist would give a job all of these nodes; excluding all others lets it run on some of them.
_WITHOUT_OTHERS = """\
all=$(sinfo --all --noheader --Node --format=%N </dev/null) || exit
others=$(printf '%s\\n' "$all" | sort -u | grep -vixE -e "$1" | paste -sd, -)
shift
exec "$@" ${others:+"--exclude=$others"}
"""
_GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:([0-9]{1,9})(?=[(,\s]|$)")  # `gpu:4`, `gpu:a100:4(S:0-1),gpu:3090:2`
_GRES = {"gpus": "gpu"}  # resources with another name there
_MEBIBYTE = 1024 * 1024
_JOBS_ASKED_MAX = 500


class _Line(NamedTuple):
    """One line of a listing."""

    job: str
    element: int | None
    state: str
    status: int  # as from `wait`
    why: str
    node: str
    name: str


class Slurm(Dialect):
    """The commands of Slurm; see `Dialect`."""

    name = "slurm"
    experimental = False
    mark = "#SBATCH"
    index_variable = "SLURM_ARRAY_TASK_ID"
    version_words = ("sbatch", "--version")  # does not ask the controller, which may be down
    version_pattern = r"^slurm(?:-wlm)?\s+(\S+)"
    places = True
    harmless = r"nvalid job id"

    def submit(self, wanted: BatchRequest) -> Call:
        """One sbatch. The job must not be requeued: a second start would be a second pilot with the same key."""
        name = self.job_name(wanted.key)
        if len(name) > _COLUMNS["Name"]:
            raise ValueError(f"the key {wanted.key!r} makes a job name longer than the column of squeue")
        words = ["sbatch", "--parsable", f"--job-name={name}", "--no-requeue", "--output=/dev/null"]
        # A program on several nodes has a process per core; anything else is one process.
        shape = ("--ntasks-per-node", "--cpus-per-task") if wanted.nodes > 1 else ("--cpus-per-task", "--ntasks")
        words += [f"--nodes={wanted.nodes}", f"{shape[0]}={wanted.cores}", f"{shape[1]}=1"]
        options = {
            "array": f"0-{wanted.count - 1}" if wanted.count > 1 else "",
            "mem": f"{-(-wanted.memory_bytes // _MEBIBYTE)}M" if wanted.memory_bytes else "",
            "gres": ",".join(f"{_GRES.get(name, name)}:{count}" for name, count in wanted.consumables.items()),
            "time": str(-(-wanted.wall_seconds // 60)) if wanted.wall_seconds else "",
            "partition": wanted.queue,
            "account": wanted.account,
            "chdir": wanted.folder,
        }
        words += [f"--{option}={value}" for option, value in options.items() if value]
        if wanted.hosts:
            words = ["sh", "-c", _WITHOUT_OTHERS, "sh", expression(wanted.hosts), *words]
        return Call(tuple(words), self.script(wanted))

    def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
        """The job number, with the array index."""
        numbers = re.findall(r"^([0-9]+)(?:;\S*)?$", answer.stdout, re.MULTILINE)
        if not numbers or answer.exit_status != 0:
            if answer.exit_status is None and "sleeping and retrying" in answer.stderr:
                raise Busy(message_of(answer))  # the time limit hit one of its pauses
            raise rejection(answer, _VERDICTS)
        job = numbers[-1]  # after the output of the site's own plugins
        return self.ids(wanted, lambda index: f"{job}_{index}" if wanted.count > 1 else job)

    def listing(self) -> Call:
        """One squeue, which lists ended jobs for some minutes (MinJobAge)."""
        columns = ",".join(f"{column}:{width}" for column, width in _COLUMNS.items())
        return Call(("squeue", "--noheader", "--array", "--states=all", "--me", f"--Format={columns}"))

    def listed(self, answer: Answer) -> dict[str, BatchJob]:
        """All our jobs by key."""
        found: dict[str, BatchJob] = {}
        lines = []
        for text in answered(answer).split("\n"):
            cells, start = [], 0
            for width in _COLUMNS.values():
                cells.append(text[start : start + width].strip())
                start += width
            element = int(cells[2]) if re.fullmatch("[0-9]{1,9}", cells[2]) else None
            lines.append((number(cells[0]), _Line(cells[1], element, cells[3], number(cells[4]), *cells[5:8])))
        for _, line in sorted(lines, key=lambda each: each[0]):
            keep(found, self.key(line.name, line.element), _batch_job(line))
        return found

    def history(self, native_ids: Mapping[str, str]) -> Call:
        """One sacct, restricted to these jobs if all numbers are known; it fails without accounting."""
        jobs = sorted({native_id.partition("_")[0] for native_id in native_ids.values()})
        since = "--starttime=now-3days" if "" in jobs or len(jobs) > _JOBS_ASKED_MAX else f"--jobs={','.join(jobs)}"
        columns = "JobID,State,ExitCode,Reason,NodeList,JobName%400"
        return Call(("sacct", "--noheader", "--parsable2", "--allocations", since, f"--format={columns}"))

    def remembered(self, answer: Answer) -> dict[str, BatchJob]:
        """Ended jobs by key; empty without accounting."""
        if answer.exit_status and ("disabled" in answer.stderr or "not found" in answer.stderr):
            return {}
        found: dict[str, BatchJob] = {}
        for text in answered(answer).split("\n"):
            cells = text.split("|", 5)
            match = re.fullmatch(r"([0-9]+)(?:_([0-9]{1,9}))?", cells[0])
            if len(cells) == 6 and match:
                status, _, signal = cells[2].partition(":")
                element = None if match.group(2) is None else int(match.group(2))
                line = _Line(match.group(1), element, cells[1], number(status) << 8 | number(signal), *cells[3:6])
                keep(found, self.key(line.name, element), _batch_job(line))
        return {key: batch_job for key, batch_job in found.items() if batch_job.state == "ended"}

    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        """One scancel per name; it checks name and id."""
        by_name: dict[str, list[str]] = {}
        for key, native_id in native_ids.items():
            element = native_id.partition("_")[2]
            by_name.setdefault(self.array_name(key, number(element) if element else None), []).append(native_id)
        return one_after_another([["scancel", f"--name={name}", *ids] for name, ids in by_name.items()])

    def limits(self) -> list[Call]:
        """One sinfo for the partitions, one scontrol for the global limits."""
        return [Call(("sinfo", "--noheader", "--format=%a|%l|%c|%m|%D|%G|%P")), Call(("scontrol", "show", "config"))]

    def limited(self, answers: Sequence[Answer]) -> Limits:
        """The partitions that are up, and the global limits."""
        settings = dict(re.findall(r"^(\w+)\s*=\s*(\S+)", answered(answers[1]), re.MULTILINE))
        core_mebibytes_max = number(settings.get("MaxMemPerCPU", ""))  # a job that asks for more memory gets more cores
        queues: dict[str, Queue] = {}
        for line in answered(answers[0]).split("\n"):
            cells = line.split("|", 6)
            if len(cells) == 7 and cells[0] == "up":
                name, cores, mebibytes = cells[6].strip(), number(cells[2]), number(cells[3])
                if mebibytes == 1:  # Slurm's default if the memory is not configured
                    mebibytes = 0
                known = queues.get(name.rstrip("*"), Queue(""))  # a partition has one line per kind of node
                shares = (mebibytes // cores if cores else 0, core_mebibytes_max, known.core_memory_bytes // _MEBIBYTE)
                queues[name.rstrip("*")] = Queue(
                    name.rstrip("*"),
                    is_default=name.endswith("*"),
                    wall_seconds=seconds(cells[1]),
                    cores=max(known.cores, cores),
                    memory_bytes=max(known.memory_bytes, mebibytes * _MEBIBYTE),
                    nodes=known.nodes + number(cells[4]),
                    core_memory_bytes=min(filter(None, shares), default=0) * _MEBIBYTE,
                    gpus=max(known.gpus, sum(number(each) for each in _GPUS.findall(cells[5]))),
                )
        return Limits(
            tuple(queues.values()), number(settings.get("MaxArraySize", "")), number(settings.get("MaxJobCount", ""))
        )


def _batch_job(line: _Line) -> BatchJob:
    native_id = line.job if line.element is None else f"{line.job}_{line.element}"
    state = re.split(r"[+ ]", line.state, maxsplit=1)[0]
    why = "" if line.why in ("None", "N/A") else line.why
    if state in _WAITING:
        return BatchJob(
            native_id, "queued", "held" if "HOLD" in state or _HELD.search(why) else "", detail=why or state
        )
    if state not in _ENDS:  # also unknown states: a listed job counts as alive
        return BatchJob(native_id, "running", node=line.node, detail=state)
    reason: Reason = _ENDS[state]
    signal, status = line.status & 127, line.status >> 8
    if reason == "failed":
        if signal:
            reason = "killed"
        elif why in ("JobLaunchFailure", "NodeDown", "BootFail", "SystemFailure"):
            reason = "platform-failure"
    exit_status = status if status or (reason == "ended" and not signal) else None
    return BatchJob(native_id, "ended", reason, line.node, exit_status, f"{state} {why}".strip())
