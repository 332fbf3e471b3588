"""HTCondor: condor_submit, condor_q, condor_history, condor_rm. Never tested on a real one.

It has no queues; a directive, a line of the submit description, selects machines. The script is one base64 argument,
since a description allows neither line breaks nor `$(`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pilotage.agent.batch.dialect import Dialect
from pilotage.agent.batch.values import (
    Answer,
    BatchJob,
    BatchRequest,
    Call,
    Limits,
    Reason,
    Verdict,
    answered,
    documents,
    keep,
    number,
    rejection,
)

_VERDICTS: Sequence[tuple[str, Verdict]] = (
    (r"can't find address|failed to connect|unable to connect|timed? ?out|communication|can't contact", "unknown"),
    (r"MAX_JOBS_PER_SUBMISSION", "fewer"),
    (r"MAX_JOBS", "busy"),
    (r"accounting", "bad-account"),
    (r"permission|not authorized|denied", "not-allowed"),
    (r"request_|requirements", "bad-resources"),
    (r"ERROR", "refused"),
)
_ATTRIBUTES = (
    "ClusterId,ProcId,PilotageName,JobStatus,HoldReason,RemoteHost,LastRemoteHost,ExitCode,ExitBySignal,RemoveReason,"
    "RemoteWallClockTime,PilotageWall"
)
_REMOVED, _COMPLETED, _HELD = 3, 4, 5
_MEBIBYTE = 1024 * 1024


class HTCondor(Dialect):
    """The commands of HTCondor; see `Dialect`."""

    name = "htcondor"
    index_variable = "PILOTAGE_INDEX"
    version_words = ("condor_version",)
    version_pattern = r"\$CondorVersion:\s+([0-9]\S*)"
    harmless = r"(?i)couldn't find|marked for removal|no jobs|not found"

    def submit(self, wanted: BatchRequest) -> Call:
        """One condor_submit. Evicted jobs and jobs over their wall time are removed, not started again."""
        if wanted.queue:
            raise ValueError("HTCondor has no queues: select machines with a directive")
        if wanted.nodes > 1:
            raise ValueError(f"HTCondor starts such a job on one node only, not on {wanted.nodes}")
        script = base64.b64encode(self.script(wanted).encode("utf-8", "surrogateescape")).decode()
        overdue = f"(JobStatus == 2 && time() - EnteredCurrentStatus > {wanted.wall_seconds})"
        commands = {
            "universe": "vanilla",
            "executable": "/bin/sh",
            "transfer_executable": "false",
            "should_transfer_files": "IF_NEEDED",
            "arguments": f'"-c \'eval ""`echo {script} | base64 -d`""\'"',
            "environment": '"PILOTAGE_INDEX=$(Process)"',
            "initialdir": wanted.folder,
            "+PilotageName": f'"{self.job_name(wanted.key)}"',
            "+PilotageWall": str(wanted.wall_seconds),
            "request_cpus": str(wanted.cores),
            "request_memory": str(-(-wanted.memory_bytes // _MEBIBYTE)) if wanted.memory_bytes else "",
            **{f"request_{name}": str(count) for name, count in wanted.consumables.items()},
            "accounting_group": wanted.account,
            "periodic_remove": "(JobStatus == 1 && NumJobStarts > 0)"
            + (f" || {overdue}" if wanted.wall_seconds else ""),
        }
        lines = [f"{name} = {value}" for name, value in commands.items() if value]
        return Call(
            ("condor_submit", "-terse", "-"), "\n".join([*lines, *wanted.directives, f"queue {wanted.count}", ""])
        )

    def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
        """The cluster and process numbers."""
        match = re.search(r"^([0-9]+)\.[0-9]+ - [0-9]+\.[0-9]+$", answer.stdout, re.MULTILINE)
        if not match or answer.exit_status != 0:
            raise rejection(answer, _VERDICTS)
        cluster = match.group(1)
        return self.ids(wanted, lambda index: f"{cluster}.{index}")

    def listing(self) -> Call:
        """One condor_q."""
        return Call(("condor_q", "-json", "-attributes", _ATTRIBUTES, "-constraint", self._ours()))

    def listed(self, answer: Answer) -> dict[str, BatchJob]:
        """All our jobs by key; ended ones are not listed."""
        found: dict[str, BatchJob] = {}
        for ad in documents(answered(answer)):
            key = self.key(str(ad.get("PilotageName", "")), number(str(ad.get("ProcId", ""))))
            keep(found, key, _batch_job(ad))
        return found

    def history(self, native_ids: Mapping[str, str]) -> Call:
        """One condor_history, limited to the last ten thousand."""
        words = ("condor_history", "-json", "-attributes", _ATTRIBUTES, "-scanlimit", "10000")
        return Call((*words, "-constraint", self._ours()))

    def remembered(self, answer: Answer) -> dict[str, BatchJob]:
        """Ended jobs by key; the newest record comes first."""
        return {key: batch_job for key, batch_job in self.listed(answer).items() if batch_job.state == "ended"}

    def _ours(self) -> str:
        return f'regexp("^{self.prefix}[.]", PilotageName)'

    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        """One condor_rm with a constraint on name and number."""
        places = {key: [number(part) for part in native_id.split(".")] for key, native_id in native_ids.items()}
        each = [
            f'(ClusterId == {place[0]} && ProcId == {place[-1]} && PilotageName == "{self._name(key, place[-1])}")'
            for key, place in places.items()
        ]
        return Call(("condor_rm", "-constraint", " || ".join(each)))

    def _name(self, key: str, process: int) -> str:
        return self.array_name(key, process or None)

    def limits(self) -> list[Call]:
        """One condor_config_val per limit."""
        return [Call(("condor_config_val", f"MAX_JOBS_PER_{what}")) for what in ("SUBMISSION", "OWNER")]

    def limited(self, answers: Sequence[Answer]) -> Limits:
        """No queues; an undefined value means no limit."""
        array_max, jobs_max = (number(answer.stdout if answer.exit_status else answered(answer)) for answer in answers)
        return Limits((), array_max, jobs_max)


def _batch_job(ad: Mapping[str, Any]) -> BatchJob:
    native_id = f"{ad.get('ClusterId', '')}.{ad.get('ProcId', '')}"
    node = str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "").rpartition("@")[2]
    status, why = ad.get("JobStatus"), str(ad.get("HoldReason") or ad.get("RemoveReason") or "")
    if status in (1, _HELD):
        return BatchJob(native_id, "queued", "held" if status == _HELD else "", detail=why)
    if status == _COMPLETED:
        code = ad.get("ExitCode")
        if ad.get("ExitBySignal") is True or not isinstance(code, int):
            return BatchJob(native_id, "ended", "killed", node, detail=why)
        return BatchJob(native_id, "ended", "failed" if code else "ended", node, code, why)
    if status != _REMOVED:
        return BatchJob(native_id, "running", node=node)
    wall_seconds = number(str(ad.get("PilotageWall", "")))
    reason: Reason = "cancelled" if "condor_rm" in why else "preempted"
    if reason == "preempted" and 0 < wall_seconds <= number(str(ad.get("RemoteWallClockTime", ""))):
        reason = "wall-time"
    return BatchJob(native_id, "ended", reason, node, detail=why)
