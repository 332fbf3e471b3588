"""Values of dialects: calls, answers, submissions, listed jobs and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pilotage.agent.errors import AgentError
from pilotage.agent.resources import KINDS

_HOST = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")
State = Literal["queued", "running", "ended"]
Reason = Literal[
    "",
    "ended",  # successfully, as far as the batch system can tell
    "failed",
    "killed",
    "cancelled",
    "wall-time",
    "out-of-memory",
    "preempted",
    "platform-failure",
    "held",  # it will not start by itself
    "error",  # it could not start, and never will: `Dialect.errors` asks why
]
Refusal = Literal["bad-queue", "bad-account", "bad-resources", "not-allowed", "refused"]
# The meaning of an error message of a submission; after "fewer" a smaller array may be accepted.
Verdict = Literal[Refusal, "busy", "fewer", "unknown"]


class BatchError(AgentError):
    """The batch system did not do what it was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Refused(BatchError):
    """The batch system refused the submission and queued nothing; it will refuse again."""

    def __init__(self, reason: Refusal, message: str) -> None:
        """Take our reason, and the system's message."""
        super().__init__(message)
        self.reason: Refusal = reason


class Busy(BatchError):
    """A limit was reached and nothing was queued: try later, or with a smaller array if `fewer`."""

    retryable = True

    def __init__(self, message: str, *, fewer: bool = False) -> None:
        super().__init__(message)
        self.fewer = fewer


class Unknown(BatchError):
    """It is unknown which jobs exist, or whether one was queued: look for the key, never submit again blindly."""

    retryable = True


class Call(NamedTuple):
    """A command to run: its words, and its input as text (UTF-8, undecodable bytes as surrogates)."""

    argv: tuple[str, ...]
    stdin: str = ""


class Answer(NamedTuple):
    """The answer to a call; `exit_status` is None if it timed out or could not be run."""

    exit_status: int | None
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class BatchRequest:
    """A submission. A `count` above 1 makes an array: element i has the key whose number is greater by i."""

    key: str
    command: Sequence[str]
    count: int = 1
    cores: int = 1  # of each node
    memory_bytes: int = 0  # of each node
    gpus: int = 0  # of each node
    nodes: int = 1
    hosts: Sequence[str] = ()  # only these nodes, by name or pattern (`*`, `?`, `[…]`); empty: any
    wall_seconds: int = 0
    queue: str = ""
    account: str = ""
    parallel: str = ""  # the parallel environment, if the system needs one
    directives: Sequence[str] = ()  # as in a script, without their prefix
    folder: str = ""  # working directory
    output: str = ""  # folder with an output file per element: see `output_of`
    agent: str = ""  # the agent's file, which the command starts
    agent_sha256: str = ""  # its required checksum; empty: any

    @property
    def consumables(self) -> dict[str, int]:
        """The counted resources that it requests, such as GPUs, by field name, without zeros."""
        counted = {kind.name: getattr(self, kind.name) for kind in KINDS if kind.is_counted}
        return {name: count for name, count in counted.items() if count}

    def __post_init__(self) -> None:
        """Refuse values that some system would misread."""
        if not self.command or self.count < 1 or self.cores < 1 or self.nodes < 1:
            raise ValueError("a command, and at least one element, core and node are required")
        for name in self.hosts:
            if not _HOST.fullmatch(name):
                raise ValueError(f"not a node name or pattern: {name!r}")
        for text in (self.queue, self.account, self.parallel, self.folder, self.output, self.agent, *self.directives):
            if any(char in text for char in "\0\n\r"):
                raise ValueError(f"must be one line: {text!r}")


class BatchJob(NamedTuple):
    """A batch job in a listing."""

    native_id: str
    state: State
    reason: Reason = ""  # why it ended, or `held` or `error`
    node: str = ""
    exit_status: int | None = None
    detail: str = ""  # the system's own state


class Queue(NamedTuple):
    """A queue or partition, with the resources of one node; 0 means no limit, or unknown."""

    name: str
    is_default: bool = False
    wall_seconds: int = 0
    cores: int = 0
    memory_bytes: int = 0
    nodes: int = 0
    core_memory_bytes: int = 0  # per core if all cores are used; the least of unlike nodes
    gpus: int = 0


class Limits(NamedTuple):
    """The limits of a site; 0 if unknown."""

    queues: tuple[Queue, ...] = ()
    array_max: int = 0  # elements of one array
    jobs_max: int = 0


# Parsing the output of batch systems: numbers, times, sizes, and the meaning of errors.

_MESSAGE_CHARACTERS_MAX = 500
_PARTS = {"*": ".*", "?": ".", ".": "[.]"}  # pattern characters as regular expressions
_ABSENT_STATUS = 127  # exit status of a shell for an unknown command


def answered(answer: Answer) -> str:
    """The output of a successful call. Raises `Unknown` for any other."""
    if answer.exit_status != 0:
        raise Unknown(message_of(answer))
    return answer.stdout


def message_of(answer: Answer) -> str:
    """The message of a failed call, in one line."""
    words = " ".join(f"{answer.stderr} {answer.stdout}".split())[-_MESSAGE_CHARACTERS_MAX:]
    if answer.exit_status is None:
        return f"no answer in time{': ' if words else ''}{words}"
    return words or f"exit status {answer.exit_status} without a message"


def rejection(answer: Answer, verdicts: Sequence[tuple[str, Verdict]]) -> Refused | Busy | Unknown:
    """The error for a failed submission, by a table of patterns and their meanings.

    The first match counts. Only a known message shows that nothing was queued.
    """
    message = message_of(answer)
    if answer.exit_status == _ABSENT_STATUS:
        return Refused("refused", message)
    if answer.exit_status in (None, 0):
        return Unknown(message)
    found = (verdict for pattern, verdict in verdicts if re.search(pattern, message, re.IGNORECASE))
    verdict: Verdict = next(found, "unknown")
    if verdict == "unknown":
        return Unknown(message)
    if verdict == "busy":
        return Busy(message)
    if verdict == "fewer":
        return Busy(message, fewer=True)
    return Refused(verdict, message)


def keep(found: dict[str, BatchJob], key: str | None, job: BatchJob) -> None:
    """Add a job to a listing. Of two with one key the unfinished one counts, else the last."""
    if key is not None and (key not in found or found[key].state == "ended" or job.state != "ended"):
        found[key] = job


def number(text: str, default: int = 0) -> int:
    """The whole number at the start of a text."""
    match = re.match(r"\s*(-?[0-9]{1,18})", text)
    return int(match.group(1)) if match else default


def seconds(text: str) -> int:
    """The seconds of `1-02:03:04`, `02:03:04` or `03:04`; 0 (no limit) for anything else."""
    match = re.fullmatch(r"\s*(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})\s*", text)
    if not match:
        return 0
    days, parts = int(match.group(1) or 0), [int(part) for part in match.group(2).split(":")]
    if match.group(1):
        parts += [0] * (3 - len(parts))  # `1-02` is a day and two hours
    total = 0
    for part in parts:
        total = total * 60 + part
    return total + days * 86_400


def size_bytes(text: str) -> int:
    """The bytes of `16G`, `512mb` or `100`; 0 (no limit) for anything else."""
    match = re.fullmatch(r"\s*([0-9]{1,15})(?:\.[0-9]*)?\s*([kmgt]?)i?b?\s*", text, re.IGNORECASE)
    return int(match.group(1)) << 10 * " kmgt".index(match.group(2).lower() or " ") if match else 0


def fields(text: str) -> dict[str, str]:
    """Lines of a name and a value as a dictionary."""
    return dict(re.findall(r"^[ \t]*(\w+)[ \t]+(.*?)[ \t]*$", text, re.MULTILINE))


def common_start(names: Sequence[str]) -> str:
    """The common prefix of names."""
    first, last = min(names), max(names)
    different = (place for place, char in enumerate(first) if last[place : place + 1] != char)
    return first[: next(different, len(first))]


def document(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `Unknown`."""
    try:
        parsed = json.loads(text, strict=False)  # some systems do not escape texts of users
    except (ValueError, RecursionError) as error:
        raise Unknown(f"an incomplete document was printed: {error}") from error
    if not isinstance(parsed, dict):
        raise Unknown("the printed document is not an object")
    return parsed


def documents(text: str) -> list[dict[str, Any]]:
    """Parse a JSON list of objects; an empty text is an empty list. Raises `Unknown`."""
    parsed = document(f'{{"all": {text}}}')["all"] if text.strip() else []
    if not isinstance(parsed, list):
        raise Unknown("the printed document is not a list")
    return [each for each in parsed if isinstance(each, dict)]


def expression(names: Sequence[str]) -> str:
    """Node names or patterns as one extended regular expression; the domain of a name is optional."""
    return "|".join(f"({_expression(each)})" for each in names)


def _expression(name: str) -> str:
    parts = re.findall(r"\[!?[^\]]+\]|.", name)
    made = [each.replace("[!", "[^") if len(each) > 1 else _PARTS.get(each, each) for each in parts]
    if "." in name and not re.search(r"[*?\[]", name):  # a node may be known by its short name
        dot = made.index(_PARTS["."])
        return f"{''.join(made[:dot])}({''.join(made[dot:])})?"
    return f"{''.join(made)}([.].*)?"
