"""DIRAC, by its command line: dirac-wms-job-submit, dstat, dirac-wms-job-kill. Never tested on a real one.

Jobs at DIRAC's sites share no file system with the submitter: only the key is known until the agent connects. A queue
is a site here; directives are lines of JDL.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Mapping, Sequence

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
    keep,
    number,
    rejection,
)

_VERDICTS: Sequence[tuple[str, Verdict]] = (
    (r"can't connect|cannot connect|connection|timed? ?out|can't get|no url|unreachable", "unknown"),
    (r"too many parameters|number of parameters|max.*parametric", "fewer"),
    (r"limit|quota|too many", "busy"),
    (r"site", "bad-queue"),
    (r"proxy|credential|not authori[sz]ed|unauthori[sz]ed|forbidden", "not-allowed"),
    (r"group|owner", "bad-account"),
    (r"cputime|processors|memory", "bad-resources"),
    (r"ERROR", "refused"),
)
_RUNNING = ("Running", "Stalled", "Completing", "Completed")
_ENDS: Sequence[tuple[str, Reason]] = (
    (r"(?i)wall|cpu limit|cpu time", "wall-time"),
    (r"(?i)memory", "out-of-memory"),
    (r"(?i)application.*error|exit(ed)? with", "failed"),
    (r"", "platform-failure"),
)
_SUBMIT = """\
folder=$(mktemp -d) || exit
cat > "$folder/run.sh" <<'END-OF-SCRIPT'
{script}END-OF-SCRIPT
cat > "$folder/job.jdl" <<END-OF-JDL
[
{jdl}
InputSandbox = {{"$folder/run.sh"}};
]
END-OF-JDL
dirac-wms-job-submit "$folder/job.jdl"
status=$?
rm -rf "$folder"
exit $status
"""
_CANCEL = """\
told=$(dstat -a -f csv -F JobName {id}) || failed=1
case $told in *{id},{name}) dirac-wms-job-kill {id} || failed=1;; esac
"""


class Dirac(Dialect):
    """The commands of DIRAC; see `Dialect`."""

    name = "dirac"
    version_words = ("dirac-version",)
    version_pattern = r"^v?([0-9]\S*)"
    harmless = r"(?i)killed|deleted|not found|non.?existing|no matching"

    def submit(self, wanted: BatchRequest) -> Call:
        """One JDL, with a parametric job for an array; the script is in the sandbox."""
        unsupported = [
            *([f"{wanted.nodes} nodes"] if wanted.nodes > 1 else []),
            *([f"{wanted.memory_bytes} bytes of memory"] if wanted.memory_bytes else []),
            *([f"{wanted.gpus} GPUs"] if wanted.gpus else []),
        ]
        if unsupported:
            cure = "request it with a directive, not in the entry"
            raise ValueError(f"pilotage cannot request {' and '.join(unsupported)} from DIRAC: {cure}")
        several = wanted.count > 1
        attributes = {
            "JobName": f'"{self.job_name(wanted.key)}{"+%n" if several else ""}"',
            "JobGroup": f'"{self.prefix}"',
            "Executable": '"run.sh"',
            "Arguments": '"%n"' if several else "",
            "Parameters": str(wanted.count) if several else "",
            "ParameterStart": "0" if several else "",
            "ParameterStep": "1" if several else "",
            "MinNumberOfProcessors": str(wanted.cores) if wanted.cores > 1 else "",
            "CPUTime": str(wanted.wall_seconds * wanted.cores) if wanted.wall_seconds else "",
            "Site": f'"{wanted.queue}"' if wanted.queue else "",
            "OwnerGroup": f'"{wanted.account}"' if wanted.account else "",
        }
        lines = [f"{name} = {value};" for name, value in attributes.items() if value] + list(wanted.directives)
        jdl = re.sub(r"([\\$`])", r"\\\1", "\n".join(lines))  # escaped for the here-document
        return Call(("sh",), _SUBMIT.format(script=self.script(wanted, index="$1", folder=wanted.folder), jdl=jdl))

    def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
        """The number of each job, in the order of its parameters."""
        match = re.search(r"JobID = \[?([0-9]+(?:, [0-9]+)*)\]?", answer.stdout)
        jobs = match.group(1).split(", ") if match else []
        if answer.exit_status != 0 or len(jobs) != wanted.count:
            raise rejection(answer, _VERDICTS)
        return self.ids(wanted, lambda index: f"{jobs[index]}+{index}" if wanted.count > 1 else jobs[index])

    def listing(self) -> Call:
        """One dstat of the job group that contains all our jobs."""
        return Call(
            ("dstat", "-a", "-g", self.prefix, "-D", "30", "-f", "csv", "-F", "JobName,Status,MinorStatus,Site")
        )

    def listed(self, answer: Answer) -> dict[str, BatchJob]:
        """All our jobs by key; ended ones too."""
        found: dict[str, BatchJob] = {}
        try:
            rows = sorted(csv.reader(io.StringIO(answered(answer))), key=lambda row: number(row[0] if row else ""))
        except csv.Error:
            rows = []
        for row in rows:
            if len(row) >= 5 and row[0].strip().isdigit():
                job, name, *cells = (cell.strip() for cell in row[:5])
                name, plus, element = name.partition("+")
                keep(
                    found,
                    self.key(name, number(element) if plus else None),
                    _batch_job(f"{job}{plus}{element}", *cells),
                )
        return found

    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        """One dirac-wms-job-kill per job, after checking its name."""
        lines = []
        for key, native_id in native_ids.items():
            job, plus, element = native_id.partition("+")
            name = self.array_name(key, number(element) if plus else None)
            lines.append(_CANCEL.format(id=shlex.quote(job), name=f"{name}{plus}{element}"))
        return Call(("sh",), "".join([*lines, "exit ${failed:-0}\n"]))

    def limits(self) -> list[Call]:
        """None: no command shows them."""
        return []

    def limited(self, answers: Sequence[Answer]) -> Limits:
        """Unknown."""
        return Limits()


def _batch_job(job: str, status: str, minor: str, site: str) -> BatchJob:
    node = "" if site in ("ANY", "Multiple") else site
    if status in ("Done", "Killed", "Deleted", "Failed"):
        reason: Reason = "ended" if status == "Done" else "cancelled"
        if status == "Failed":
            reason = next(reason for pattern, reason in _ENDS if re.search(pattern, minor))
        return BatchJob(job, "ended", reason, node, 0 if status == "Done" else None, minor)
    return BatchJob(job, "running" if status in _RUNNING else "queued", node=node, detail=minor or status)
