"""IBM Spectrum LSF: bsub, bjobs, bkill. Never tested on a real one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pilotage.agent.batch.dialect import Dialect, one_after_another
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
    keep,
    number,
    rejection,
)

_VERDICTS: Sequence[tuple[str, Verdict]] = (
    (r"lsf is down|not responding|library call|timed? ?out|communication|connection|cannot connect", "unknown"),
    (r"job array (index|size)|array elements", "fewer"),
    (r"threshold|limit has been reached|quota|too many", "busy"),
    (r"no such queue|queue", "bad-queue"),
    (r"project|user group", "bad-account"),
    (r"permission|not authorized", "not-allowed"),
    (r"resource|limit|processor|host", "bad-resources"),
    (r"not submitted", "refused"),
)
_COLUMNS = "jobid jobindex stat exit_code exec_host exit_reason job_name"
_WAITING = ("PEND", "PSUSP", "WAIT")
_REASONS: Sequence[tuple[str, Reason]] = (
    (r"TERM_RUNLIMIT|TERM_DEADLINE|TERM_CPULIMIT", "wall-time"),
    (r"TERM_MEMLIMIT|TERM_SWAP", "out-of-memory"),
    (r"TERM_PREEMPT", "preempted"),
    (r"TERM_OWNER|TERM_ADMIN|TERM_FORCE", "cancelled"),
    (r"TERM_EXTERNAL_SIGNAL", "killed"),
    (r"TERM_", "platform-failure"),
)
_SIGNALS_FROM = 128
_MEBIBYTE = 1024 * 1024


class Lsf(Dialect):
    """The commands of LSF; see `Dialect`."""

    name = "lsf"
    mark = "#BSUB"
    index_variable = "LSB_JOBINDEX"
    first_index = 1
    version_words = ("bsub", "-V")
    version_pattern = r"LSF[^\n]*?\s([0-9]+\.[0-9][0-9.]*)"
    harmless = r"(?i)no matching job|already finished|being terminated|not found|being signaled"

    def submit(self, wanted: BatchRequest) -> Call:
        """One bsub, of a job that is not rerun."""
        name = self.job_name(wanted.key) + (f"[1-{wanted.count}]" if wanted.count > 1 else "")
        words = [
            "bsub",
            "-J",
            name,
            "-rn",
            "-o",
            "/dev/null",
            "-e",
            "/dev/null",
            "-n",
            str(wanted.cores * wanted.nodes),
        ]
        words += ["-R", f"span[ptile={wanted.cores}]"]
        if wanted.memory_bytes:
            size = f"{-(-wanted.memory_bytes // _MEBIBYTE)}MB"
            words += ["-M", size, "-R", f"rusage[mem={size}/host]"]
        words += ["-gpu", f"num={wanted.gpus}"] if wanted.gpus else []
        words += ["-W", str(-(-wanted.wall_seconds // 60))] if wanted.wall_seconds else []
        words += ["-q", wanted.queue] if wanted.queue else []
        words += ["-P", wanted.account] if wanted.account else []
        words += ["-cwd", wanted.folder] if wanted.folder else []
        return Call(tuple(words), self.script(wanted))

    def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
        """The job number, with the array index."""
        match = re.search(r"Job <([0-9]+)> is submitted", answer.stdout)
        if not match or answer.exit_status is None:
            raise rejection(answer, _VERDICTS)
        job = match.group(1)
        return self.ids(wanted, lambda index: f"{job}[{index}]" if wanted.count > 1 else job)

    def listing(self) -> Call:
        """One bjobs, which lists ended jobs for an hour or so (CLEAN_PERIOD)."""
        return Call(("bjobs", "-a", "-noheader", "-o", f"{_COLUMNS} delimiter='|'"))

    def listed(self, answer: Answer) -> dict[str, BatchJob]:
        """All our jobs by key."""
        if answer.exit_status is not None and re.search(
            r"(?i)no (unfinished )?job found", answer.stderr + answer.stdout
        ):
            return {}
        found: dict[str, BatchJob] = {}
        for line in answered(answer).split("\n"):
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) < 7:
                continue
            job, index, state, status, node = cells[:5]
            # The columns in between may contain anything; the name of an array element ends with its index.
            name, why = re.sub(r"\[[0-9]+\]$", "", cells[-1]), " ".join(cells[5:-1])
            element = number(index) or None
            native_id = job if element is None else f"{number(job)}[{element}]"
            keep(found, self.key(name, element), _batch_job(native_id, state, status, node, why))
        return found

    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        """One bkill per job, by name: given a number it would ignore the name."""
        commands = []
        for key, native_id in native_ids.items():
            index = re.search(r"\[([0-9]{1,9})\]", native_id)
            name = self.array_name(key, int(index.group(1)) if index else None)
            commands.append(["bkill", "-J", f"{name}{index.group(0) if index else ''}", "0"])
        return one_after_another(commands)

    def limits(self) -> list[Call]:
        """One bqueues, and one bparams for the global limits."""
        return [Call(("bqueues", "-w")), Call(("bparams", "-a"))]

    def limited(self, answers: Sequence[Answer]) -> Limits:
        """The open queues with the most slots of a host, and the global limits."""
        lines = [line.split() for line in answered(answers[0]).split("\n")]
        queues = [Queue(cells[0], cores=number(cells[6])) for cells in lines if len(cells) > 6 and "Open" in cells[2]]
        limits = dict(re.findall(r"^\s*(MAX_\w+)\s*=\s*([0-9]{1,15})", answered(answers[1]), re.MULTILINE))
        return Limits(
            tuple(queues), number(limits.get("MAX_JOB_ARRAY_SIZE", "")), number(limits.get("MAX_PEND_JOBS", ""))
        )


def _batch_job(native_id: str, state: str, status: str, node: str, why: str) -> BatchJob:
    if state in _WAITING:
        return BatchJob(native_id, "queued", "held" if state == "PSUSP" else "", detail=state)
    node = "" if node == "-" else re.split(r"[:*]", node)[-1]
    if state == "DONE":
        return BatchJob(native_id, "ended", "ended", node, 0, state)
    if state == "ZOMBI":
        return BatchJob(native_id, "ended", "platform-failure", node, None, state)
    if state != "EXIT":  # also a job on an unreachable host
        return BatchJob(native_id, "running", node=node, detail=state)
    code = number(status)
    reasons = (reason for pattern, reason in _REASONS if re.search(pattern, why))
    reason: Reason = next(reasons, "killed" if code > _SIGNALS_FROM else "failed")
    return BatchJob(native_id, "ended", reason, node, code if reason == "failed" else None, why or state)
