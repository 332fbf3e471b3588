"""Grid Engine: qsub, qstat, qdel, qacct. Tested on Son of Grid Engine 8.1.9; its relatives are much alike.

Its accounting does not distinguish deleted from killed jobs: both count as killed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from xml.etree import ElementTree as ET

from pilotage.agent.batch.dialect import Dialect, one_after_another
from pilotage.agent.batch.values import (
    Answer,
    BatchJob,
    BatchRequest,
    Call,
    Limits,
    Queue,
    Reason,
    Unknown,
    Verdict,
    answered,
    common_start,
    fields,
    keep,
    number,
    rejection,
    seconds,
    size_bytes,
)

# With any other message, even "Unable to run job", the job may be queued.
_VERDICTS: Sequence[tuple[str, Verdict]] = (
    (r"commlib|unable to (send|contact)|got send error|timeout|failed receiving", "unknown"),
    (r"more than [0-9]+ tasks", "fewer"),
    (r"jobs are allowed|too many jobs|maximum number", "busy"),
    (r"queue", "bad-queue"),
    (r"project", "bad-account"),
    (r"parallel environment|unknown resource", "bad-resources"),
    (r"denied|not allowed", "not-allowed"),
    (r"rejected|invalid option|not a valid", "refused"),
)
_ENFORCED, _AFTERWARDS = 37, 100  # codes of `failed`: a limit was enforced; it failed after the job had run
_COMPLEXES = {"gpus": "gpu"}  # resources with another name there
_SIGNALS_FROM = 128
_NOTHING_THERE = ("not found", "no jobs running since startup")  # messages of qacct; the latter on a new system
_NEARLY = 0.9  # of the limit, since usage is sampled, and sizes are rounded


class GridEngine(Dialect):
    """The commands of Grid Engine; see `Dialect`."""

    name = "gridengine"
    experimental = False
    mark = "#$"
    index_variable = "SGE_TASK_ID"
    first_index = 1
    version_words = ("qstat", "-help")  # other systems have a qstat too, with another help
    version_pattern = r"^(?:SGE|UGE|AGE|OCS|OGS/GE|GE)\s+([0-9]\S*)"
    places = True
    harmless = r"does not exist|registered|deleted"

    def submit(self, wanted: BatchRequest) -> Call:
        """One qsub. The job must not be rerun: a second start would be a second pilot with the same key."""
        words = [
            "qsub",
            "-terse",
            "-N",
            self.job_name(wanted.key),
            "-S",
            "/bin/sh",
            "-j",
            "y",
            "-o",
            "/dev/null",
            "-r",
            "n",
        ]
        slots = wanted.cores * wanted.nodes
        if wanted.count > 1:
            words += ["-t", f"1-{wanted.count}"]
        if slots > 1:
            words += ["-pe", wanted.parallel or ("smp" if wanted.nodes == 1 else "mpi"), str(slots)]
        resources = [f"h_rt={wanted.wall_seconds}"] if wanted.wall_seconds else []
        # The memory request applies to each slot.
        resources += [f"h_vmem={-(-wanted.memory_bytes // wanted.cores)}"] if wanted.memory_bytes else []
        resources += [f"{_COMPLEXES.get(name, name)}={count}" for name, count in wanted.consumables.items()]
        resources += [f"hostname={'|'.join(wanted.hosts)}"] if wanted.hosts else []
        words += ["-l", ",".join(resources)] if resources else []
        words += ["-q", wanted.queue] if wanted.queue else []
        words += ["-P", wanted.account] if wanted.account else []
        words += ["-wd", wanted.folder] if wanted.folder else []
        return Call(tuple(words), self.script(wanted))

    def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
        """The job number, with the array index; warnings are ignored."""
        match = re.search(r"^([0-9]+)(\.[0-9]+-[0-9]+:[0-9]+)?$", answer.stdout, re.MULTILINE)
        if not match or answer.exit_status is None:
            raise rejection(answer, _VERDICTS)
        job = match.group(1)
        return self.ids(wanted, lambda index: f"{job}.{index}" if wanted.count > 1 else job)

    def listing(self) -> Call:
        """One qstat, with a line per array element."""
        return Call(("qstat", "-xml", "-g", "d"))

    def listed(self, answer: Answer) -> dict[str, BatchJob]:
        """All our jobs by key; ended ones are not listed."""
        try:
            root = ET.fromstring(answered(answer))
        except (ET.ParseError, ValueError) as error:
            raise Unknown(f"qstat printed an incomplete document: {error}") from error
        found: dict[str, BatchJob] = {}
        for job in root.iter("job_list"):
            values = {each.tag: (each.text or "").strip() for each in job}
            element = number(values.get("tasks", ""), -1)
            native_id, state = values.get("JB_job_number", ""), values.get("state", "")
            waits = "E" in state or "q" in state
            reason: Reason = "held" if waits and "h" in state else ""
            batch_job = BatchJob(
                native_id if element < 0 else f"{native_id}.{element}",
                "queued" if waits else "running",
                "error" if "E" in state and "d" not in state else reason,
                values.get("queue_name", "").partition("@")[2],
                detail=state,
            )
            keep(found, self.key(values.get("JB_name", ""), None if element < 0 else element), batch_job)
        return found

    def errors(self, native_ids: Collection[str]) -> Call:
        """One qstat for all these jobs."""
        return Call(("qstat", "-j", ",".join(sorted({each.partition(".")[0] for each in native_ids}))))

    def errors_told(self, answer: Answer) -> dict[str, str]:
        """The error reason of each element; elements that are gone are skipped."""
        found: dict[str, str] = {}
        for record in re.split(r"^=+$", answer.stdout, flags=re.MULTILINE):
            job = re.search(r"^job_number:\s+([0-9]+)", record, re.MULTILINE)
            for element, message in re.findall(r"^error reason\s+([0-9]+):\s+(.*?)\s*$", record, re.MULTILINE):
                if job:
                    found[f"{job.group(1)}.{element}"] = message
                    if element == "1":
                        found[job.group(1)] = message
        return found

    def history(self, native_ids: Mapping[str, str]) -> Call:
        """One qacct for the common prefix of the names; it reads the whole accounting file, which is written late."""
        start = f"{self.prefix}."
        if all(native_ids.values()):  # else an element may belong to an earlier array with another name
            names = [self.array_name(key, _element(native_id)) for key, native_id in native_ids.items()]
            start = common_start(names)
        return Call(("qacct", "-j", f"{start}*"))

    def remembered(self, answer: Answer) -> dict[str, BatchJob]:
        """Ended jobs by key."""
        if answer.exit_status == 1 and any(each in answer.stderr + answer.stdout for each in _NOTHING_THERE):
            return {}
        found: dict[str, BatchJob] = {}
        for record in re.split(r"^=+$", answered(answer), flags=re.MULTILINE):
            entry = fields(record)
            native_id, element = entry.get("jobnumber", ""), number(entry.get("taskid", ""), -1)
            if not native_id or "failed" not in entry:
                continue
            reason, status = _end(entry)
            native_id = native_id if element < 0 else f"{native_id}.{element}"
            detail = (
                entry["failed"] if number(entry["failed"]) else f"exit status {entry.get('exit_status', 'unknown')}"
            )
            batch_job = BatchJob(native_id, "ended", reason, entry.get("hostname", ""), status, detail)
            keep(found, self.key(entry.get("jobname", ""), None if element < 0 else element), batch_job)
        return found

    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        """One qdel per job, by name: safer than the number, which may have been reused."""
        elements = [(key, _element(native_id)) for key, native_id in native_ids.items()]
        return one_after_another(
            [
                ["qdel", self.array_name(key, element), *([] if element is None else ["-t", str(element)])]
                for key, element in elements
            ]
        )

    def limits(self) -> list[Call]:
        """One qconf for the queues, one for the global limits."""
        return [Call(("qconf", "-sq", "*")), Call(("qconf", "-sconf"))]

    def limited(self, answers: Sequence[Answer]) -> Limits:
        """The queues with the limits of one host each, and the global limits."""
        queues = []
        for record in re.split(r"^(?=qname\s)", answered(answers[0]), flags=re.MULTILINE):
            queue = fields(record.replace("\\\n", ""))
            if queue.get("qname"):
                slots = max(
                    [number(each) for each in re.findall(r"(?:^|[=,])([0-9]{1,18})", queue.get("slots", ""))] or [0]
                )
                slot_bytes = size_bytes(queue.get("h_vmem", ""))
                queues.append(
                    Queue(
                        queue["qname"],
                        wall_seconds=seconds(queue.get("h_rt", "")),
                        cores=slots,
                        memory_bytes=slots * slot_bytes,
                        core_memory_bytes=slot_bytes,
                    )
                )
        settings = fields(answered(answers[1]))
        jobs = [number(settings.get(name, "")) for name in ("max_u_jobs", "max_jobs")]
        return Limits(tuple(queues), number(settings.get("max_aj_tasks", "")), min(filter(None, jobs), default=0))


def _element(native_id: str) -> int | None:
    element = native_id.partition(".")[2]
    return number(element) if element else None


def _measured_bytes(text: str) -> float:
    """The bytes of `2.801MB`, as measured."""
    match = re.match(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kmgt]?)", text.lower())
    return float(match.group(1)) * 1024.0 ** " kmgt".index(match.group(2) or " ") if match else 0.0


def _end(record: Mapping[str, str]) -> tuple[Reason, int | None]:
    """Why a job ended, and its exit status, from its accounting record."""
    failed, status = number(record["failed"]), number(record.get("exit_status", ""))
    limits = dict(re.findall(r"\b(h_\w+)=([\w.]+)", record.get("category", "")))
    if failed not in (0, _ENFORCED, _AFTERWARDS):
        return "platform-failure", None
    if failed == 0 and status <= _SIGNALS_FROM:
        return ("failed", status) if status else ("ended", 0)
    ran_seconds = number(record.get("ru_wallclock", ""))
    if "h_rt" in limits and ran_seconds >= number(limits["h_rt"]):
        return "wall-time", None
    if failed == _ENFORCED:
        # The record does not say which limit. Without a time request it may be that of the queue.
        most_bytes = size_bytes(limits.get("h_vmem", "")) * max(1, number(record.get("slots", "")))
        is_full = "h_rt" in limits or _measured_bytes(record.get("maxvmem", "")) >= _NEARLY * most_bytes
        return ("out-of-memory" if most_bytes and is_full else "wall-time"), None
    return "killed", None
