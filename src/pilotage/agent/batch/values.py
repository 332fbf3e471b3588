"""What goes into a dialect and comes out of it: calls and answers, what is wanted, what is seen, and what can go wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pilotage.agent.errors import AgentError

_HOST = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")
State = Literal["queued", "running", "ended"]
Reason = Literal[
    "",
    "ended",  # well, as far as the batch system can tell
    "failed",
    "killed",
    "cancelled",
    "wall-time",
    "out-of-memory",
    "preempted",
    "platform-failure",
    "held",  # it will not begin by itself
    "error",  # it could not be started, and never will be: `Dialect.errors` asks why
]
Refusal = Literal["bad-queue", "bad-account", "bad-resources", "not-allowed", "refused"]
# What a text stands for that a submission was answered with; fewer at once may be taken where it is too many.
Verdict = Literal[Refusal, "busy", "fewer", "unknown"]


class BatchError(AgentError):
    """The batch system did not do or tell what it was asked."""

    def __init__(self, message: str) -> None:
        """Keep what the system said, or how it did not."""
        super().__init__(message)


class Refused(BatchError):
    """It answered, and nothing was queued; the same again will be refused again."""

    def __init__(self, reason: Refusal, message: str) -> None:
        """Say why, in a word of ours and in its own."""
        super().__init__(message)
        self.reason: Refusal = reason


class Busy(BatchError):
    """A limit was met and nothing was queued: try later, or with fewer at once where `fewer` says that this would help."""

    retryable = True

    def __init__(self, message: str, *, fewer: bool = False) -> None:
        """Say which limit, in the system's words."""
        super().__init__(message)
        self.fewer = fewer


class Unknown(BatchError):
    """It is not known what is there, or whether something was queued: look by key, and never repeat blindly."""

    retryable = True


class Call(NamedTuple):
    """A command to run: its words, and its input as text (UTF-8, undecodable bytes as surrogates)."""

    argv: tuple[str, ...]
    stdin: str = ""


class Answer(NamedTuple):
    """What came of a call; no exit status where it did not end in time or could not be reached."""

    exit_status: int | None
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Wanted:
    """What to start. More than one is one array: element i has the key whose number is greater by i."""

    key: str
    command: Sequence[str]
    count: int = 1
    cores: int = 1  # of each node
    memory_bytes: int = 0  # of each node
    gpus: int = 0  # of each node
    nodes: int = 1
    hosts: Sequence[str] = ()  # only on these, by name or pattern (`*`, `?`, `[…]`); none: on any
    wall_seconds: int = 0
    queue: str = ""
    account: str = ""
    parallel: str = ""  # the parallel environment, for systems that want one named
    directives: Sequence[str] = ()  # as they stand in a script, without the mark that begins their lines
    folder: str = ""  # where it is started
    output: str = ""  # a folder, in which each element has a file for what it prints: see `output_of`
    agent: str = ""  # the file of the agent that the command starts
    agent_sha256: str = ""  # what it must be for the command to be started; none: whatever it is

    def __post_init__(self) -> None:
        """Refuse what would be read as something else by some system."""
        if not self.command or self.count < 1 or self.cores < 1 or self.nodes < 1:
            raise ValueError("there must be a command, and at least one element, core and node")
        for name in self.hosts:
            if not _HOST.fullmatch(name):
                raise ValueError(f"this cannot name a node: {name!r}")
        for text in (self.queue, self.account, self.parallel, self.folder, self.output, self.agent, *self.directives):
            if any(char in text for char in "\0\n\r"):
                raise ValueError(f"this is to be one line: {text!r}")


class Seen(NamedTuple):
    """What is known of one key."""

    native_id: str
    state: State
    reason: Reason = ""  # why it ended, or `held` or `error`
    node: str = ""
    exit_status: int | None = None
    detail: str = ""  # the system's own word


class Queue(NamedTuple):
    """A queue or partition, with what one node of it has; 0 where there is no limit or none is told."""

    name: str
    is_default: bool = False
    wall_seconds: int = 0
    cores: int = 0
    memory_bytes: int = 0
    nodes: int = 0
    core_memory_bytes: int = 0  # what each core may have, where all are taken; of unlike nodes the least
    gpus: int = 0


class Limits(NamedTuple):
    """What a site allows; 0 where nothing is told."""

    queues: tuple[Queue, ...] = ()
    array_max: int = 0  # elements of one array
    jobs_max: int = 0
