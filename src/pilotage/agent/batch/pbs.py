"""OpenPBS and PBS Professional: qsub, qstat, qdel. Never tested on a real one.

Old versions limit a job name to fifteen characters: our whole name is in a variable of the job, which the full listing
shows, with a `+` at its end. Torque, whose qstat has other options, is not supported.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pilotage.agent.batch.dialect import Dialect
from pilotage.agent.batch.values import (
    Answer,
    BatchJob,
    BatchRequest,
    Call,
    Limits,
    Queue,
    Reason,
    Verdict,
    answered,
    document,
    keep,
    number,
    rejection,
    seconds,
    size_bytes,
)

_VERDICTS: Sequence[tuple[str, Verdict]] = (
    (r"cannot connect|connection|timed out|end of file|communication|protocol", "unknown"),
    (r"array job exceeds", "fewer"),
    (r"maximum number of jobs|would exceed|limit has been reached", "busy"),
    (r"unknown queue|queue is not", "bad-queue"),
    (r"account|project", "bad-account"),
    (r"unauthorized|permission|access", "not-allowed"),
    (r"resource|limits|walltime", "bad-resources"),
    (r"qsub:", "refused"),
)
_ENDS: Mapping[int, Reason] = {
    -29: "wall-time",
    -28: "wall-time",
    -27: "out-of-memory",
    -26: "out-of-memory",
}  # limits that the server enforced
_CHUNKS = {"gpus": "ngpus"}  # resources with another name there
_SIGNALS_FROM, _TERMINATED, _DELETED = 128, 256 + 15, "91"
_LIST = """\
user=$(id -un)
ids=$(qselect -x -u "$user" 2>/dev/null) || ids=$(qselect -u "$user") || exit
[ -z "$ids" ] || exec qstat -x -t -f -F json $ids
"""
_CANCEL = """\
told=$(qstat -f {whole}) || failed=1
case $(printf %s "$told" | tr -d ' \\t\\n') in *PILOTAGE_NAME={name}+*) qdel {id} || failed=1;; esac
"""


class Pbs(Dialect):
    """The commands of PBS; see `Dialect`."""

    name = "pbs"
    mark = "#PBS"
    index_variable = "PBS_ARRAY_INDEX"
    version_words = ("qstat", "--version")
    version_pattern = r"pbs_version\s*=\s*([0-9]\S*)"
    harmless = r"(?i)unknown job|has finished|invalid state"

    def submit(self, wanted: BatchRequest) -> Call:
        """One qsub, of a job that is not rerun."""
        shape = f"select={wanted.nodes}:ncpus={wanted.cores}"
        shape += f":mpiprocs={wanted.cores}" if wanted.nodes > 1 else ""
        shape += f":mem={wanted.memory_bytes}b" if wanted.memory_bytes else ""
        shape += "".join(f":{_CHUNKS.get(name, name)}={count}" for name, count in wanted.consumables.items())
        words = ["qsub", "-N", self.prefix[:15], "-v", f"PILOTAGE_NAME={self.job_name(wanted.key)}+", "-S", "/bin/sh"]
        words += ["-j", "oe", "-o", "/dev/null", "-r", "n", "-l", shape]
        words += ["-J", f"0-{wanted.count - 1}"] if wanted.count > 1 else []
        words += ["-l", f"walltime={wanted.wall_seconds}"] if wanted.wall_seconds else []
        words += ["-q", wanted.queue] if wanted.queue else []
        words += ["-A", wanted.account] if wanted.account else []
        return Call(tuple(words), self.script(wanted, folder=wanted.folder))

    def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
        """The job identifier, with the array index."""
        match = re.fullmatch(r"([0-9]+)(\[\])?(\.\S+)?", answer.stdout.strip())
        if not match or answer.exit_status != 0:
            raise rejection(answer, _VERDICTS)
        job, server = match.group(1), match.group(3) or ""
        return self.ids(wanted, lambda index: f"{job}[{index}]{server}" if wanted.count > 1 else f"{job}{server}")

    def listing(self) -> Call:
        """The user's jobs by qselect, all in one qstat; finished ones if the server keeps them."""
        return Call(("sh",), _LIST)

    def listed(self, answer: Answer) -> dict[str, BatchJob]:
        """All our jobs by key."""
        text = answered(answer)
        jobs = _objects(document(text).get("Jobs")) if text.strip() else {}
        # A queued array element may show only its state.
        names = {number(job): name for job, job_fields in jobs.items() for name in [_name(job_fields)] if name}
        found: dict[str, BatchJob] = {}
        for job in sorted(jobs, key=number):
            place = re.match(r"[0-9]+(?:\[([0-9]{0,9})\])?", job)
            if place and place.group(1) != "":  # else it is the array itself
                element = None if place.group(1) is None else int(place.group(1))
                keep(found, self.key(names.get(number(job), ""), element), _batch_job(job, jobs[job]))
        return found

    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        """One qdel per job, after checking its name."""
        lines = []
        for key, native_id in native_ids.items():
            element = re.search(r"\[([0-9]{1,9})\]", native_id)
            name = self.array_name(key, int(element.group(1)) if element else None)
            whole = re.sub(r"\[.*?\]", "[]", native_id)  # the array: an element does not show all attributes
            lines.append(_CANCEL.format(id=shlex.quote(native_id), whole=shlex.quote(whole), name=name))
        return Call(("sh",), "".join([*lines, "exit ${failed:-0}\n"]))

    def limits(self) -> list[Call]:
        """One qstat for the queues, one for the server."""
        return [Call(("qstat", "-Q", "-f", "-F", "json")), Call(("qstat", "-B", "-f", "-F", "json"))]

    def limited(self, answers: Sequence[Answer]) -> Limits:
        """The queues with their largest jobs, and the limits of the server."""
        data, servers = (document(answered(answer)) for answer in answers[:2])
        server = next(iter(_objects(servers.get("Server")).values()), {})
        queues = []
        for name, queue in _objects(data.get("Queue")).items():
            most = _objects({"": queue.get("resources_max")}).get("", {})
            wall_seconds, memory_bytes = seconds(str(most.get("walltime", ""))), size_bytes(str(most.get("mem", "")))
            default = name == server.get("default_queue")
            queues.append(Queue(name, default, wall_seconds, number(str(most.get("ncpus", ""))), memory_bytes))
        return Limits(tuple(queues), number(str(server.get("max_array_size", ""))))


def _objects(data: object) -> dict[str, dict[str, Any]]:
    """The objects of a document by name."""
    return {name: each for name, each in data.items() if isinstance(each, dict)} if isinstance(data, dict) else {}


def _name(job_fields: Mapping[str, Any]) -> str:
    variables = job_fields.get("Variable_List")
    text = variables.get("PILOTAGE_NAME", "") if isinstance(variables, dict) else json.dumps(variables)
    match = re.search(r"(?:^|PILOTAGE_NAME=)([\w.-]+)\+", str(text))
    return match.group(1) if match else ""


def _batch_job(job: str, job_fields: Mapping[str, Any]) -> BatchJob:
    state, comment = str(job_fields.get("job_state", "")), str(job_fields.get("comment", ""))
    node = re.split(r"[/+(]", str(job_fields.get("exec_host", "")))[0]
    if state in ("Q", "H", "W", "T", "M"):
        return BatchJob(job, "queued", "held" if state == "H" else "", detail=comment or state)
    if state not in ("F", "X"):
        return BatchJob(job, "running", node=node, detail=state)
    status, deleted = job_fields.get("Exit_status"), str(job_fields.get("substate", "")) == _DELETED
    if not isinstance(status, int) or status == _TERMINATED:
        return BatchJob(job, "ended", "cancelled" if deleted or status is None else "killed", node, detail=comment)
    if status < 0:
        return BatchJob(job, "ended", _ENDS.get(status, "platform-failure"), node, detail=comment)
    reason: Reason = "killed" if status > _SIGNALS_FROM else "failed" if status else "ended"
    return BatchJob(job, "ended", reason, node, status if status <= _SIGNALS_FROM else None, comment)
