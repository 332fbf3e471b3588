"""ULM lines for tests: components that log events of one job, each counting its own and carrying the others' counters."""

from __future__ import annotations

from pilotage.book.ulm import SequenceCode, parse_code

JOB = "https://lb.example.org:9000/job"
COUNTERS = {
    "UserInterface": "ui",
    "NetworkServer": "ns",
    "WorkloadManager": "wm",
    "BigHelper": "bh",
    "JobController": "jss",
    "LogMonitor": "lm",
    "LRMS": "lrms",
    "Application": "app",
    "LBServer": "lbs",
}
START = SequenceCode(0, 0, 0, 0, 0, 0, 0, 0, 0)


def ulm_line(**fields: str) -> str:
    """One line; a dot in the name of a field is written as two underscores here."""
    values = (value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for value in fields.values())
    return " ".join(f'{name.replace("__", ".")}="{value}"' for name, value in zip(fields, values, strict=True))


class LoggedJob:
    """A job on its way through the components; each `log` adds the line that one of them writes."""

    def __init__(self, job: str = JOB) -> None:
        self.job = job
        self.code = START
        self.lines: list[str] = []

    def log(self, source: str, kind: str, **fields: str) -> SequenceCode:
        """Write an event of a component, which counts it; answer its code."""
        if source in COUNTERS:
            counter = COUNTERS[source]
            self.code = self.code._replace(**{counter: getattr(self.code, counter) + 1})
        return self.log_with(self.code, source, kind, **fields)

    def log_with(self, code: SequenceCode, source: str, kind: str, **fields: str) -> SequenceCode:
        """Write an event with a code of its own."""
        named = {f"DG__{kind.upper()}__{name}": value for name, value in fields.items()}
        self.lines.append(
            ulm_line(
                DATE=f"20080928{len(self.lines) // 3600:02}{len(self.lines) // 60 % 60:02}{len(self.lines) % 60:02}.000000",
                HOST="node.example.org",
                PROG="edg-wms",
                LVL="SYSTEM",
                DG__SOURCE=source,
                DG__EVNT=kind,
                DG__JOBID=self.job,
                DG__SEQCODE=str(code),
                **named,
            )
        )
        assert parse_code(str(code)) == code
        return code

    def register(self, *, kind: str = "SIMPLE", parent: str = "", subjobs: int = 0) -> None:
        """The user's registration."""
        self.log("UserInterface", "RegJob", JOBTYPE=kind, PARENT=parent, NSUBJOBS=str(subjobs))

    def match(self, destination: str) -> None:
        """The workload manager finds a destination and hands the job on, until its wrapper runs."""
        self.log("WorkloadManager", "HelperCall")
        self.log("WorkloadManager", "Match", DEST_ID=destination)
        self.log("WorkloadManager", "HelperReturn")
        self.log("WorkloadManager", "EnQueued", RESULT="OK")
        self.log("JobController", "DeQueued")
        self.log("JobController", "Transfer", RESULT="OK")
        self.log("LogMonitor", "Accepted")
        self.log("LogMonitor", "Transfer", RESULT="OK")
        self.log("LogMonitor", "Running", NODE="worker")

    def run(self, destination: str) -> None:
        """From the user to a running wrapper."""
        self.log("NetworkServer", "Accepted")
        self.log("NetworkServer", "EnQueued", RESULT="OK")
        self.log("WorkloadManager", "DeQueued")
        self.match(destination)

    def resubmit(self, destination: str, *, result: str) -> None:
        """The wrapper failed, and the job goes round once more."""
        self.log("LogMonitor", "Done", STATUS_CODE="FAILED", EXIT_CODE="141")
        self.log("LogMonitor", "Resubmission", RESULT="WILLRESUB")
        self.log("LogMonitor", "EnQueued", RESULT="OK")
        self.log("WorkloadManager", "DeQueued")
        self.log("WorkloadManager", "Resubmission", RESULT=result)
        self.match(destination)

    def text(self) -> str:
        """All lines."""
        return "".join(f"{line}\n" for line in self.lines)
