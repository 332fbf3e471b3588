"""What goes into a dialect and comes out of it: calls and answers, what is wanted, what is seen, and what can go wrong."""

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

    @property
    def consumables(self) -> dict[str, int]:
        """How many it takes of what is counted, such as GPUs, by the names of the fields; what it takes none of is not there."""
        counted = {kind.name: getattr(self, kind.name) for kind in KINDS if kind.is_counted}
        return {name: count for name, count in counted.items() if count}

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


# Reading what batch systems print: numbers, times and sizes, and what a failure stands for.

_MESSAGE_CHARACTERS_MAX = 500
_PARTS = {"*": ".*", "?": ".", ".": "[.]"}  # of patterns, as regular expressions have them
_ABSENT_STATUS = 127  # a shell's word for a command that it does not find


def answered(answer: Answer) -> str:
    """What a successful call printed. Raises `Unknown` for any other."""
    if answer.exit_status != 0:
        raise Unknown(message_of(answer))
    return answer.stdout


def message_of(answer: Answer) -> str:
    """What a call that failed said, in one line."""
    said = " ".join(f"{answer.stderr} {answer.stdout}".split())[-_MESSAGE_CHARACTERS_MAX:]
    if answer.exit_status is None:
        return f"no answer in time{': ' if said else ''}{said}"
    return said or f"exit status {answer.exit_status} and not a word"


def rejection(answer: Answer, verdicts: Sequence[tuple[str, Verdict]]) -> Refused | Busy | Unknown:
    """What a submission that did not succeed is to raise, by patterns and what each stands for.

    The first pattern that is found counts. Only words that are known say that nothing was queued.
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


def keep(found: dict[str, Seen], key: str | None, seen: Seen) -> None:
    """Note what is seen of a key. Of two under one key, what has not ended is told, else what is noted last."""
    if key is not None and (key not in found or found[key].state == "ended" or seen.state != "ended"):
        found[key] = seen


def number(text: str, default: int = 0) -> int:
    """The whole number that a text begins with."""
    match = re.match(r"\s*(-?[0-9]{1,18})", text)
    return int(match.group(1)) if match else default


def seconds(text: str) -> int:
    """The seconds of `1-02:03:04`, `02:03:04` or `03:04`; 0 where it is no such time, which is no limit."""
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
    """The bytes of `16G`, `512mb` or `100`; 0 where it is no such size, which is no limit."""
    match = re.fullmatch(r"\s*([0-9]{1,15})(?:\.[0-9]*)?\s*([kmgt]?)i?b?\s*", text, re.IGNORECASE)
    return int(match.group(1)) << 10 * " kmgt".index(match.group(2).lower() or " ") if match else 0


def fields(text: str) -> dict[str, str]:
    """The names that begin lines, and what follows them."""
    return dict(re.findall(r"^[ \t]*(\w+)[ \t]+(.*?)[ \t]*$", text, re.MULTILINE))


def common_start(names: Sequence[str]) -> str:
    """What all names begin with."""
    first, last = min(names), max(names)
    different = (place for place, char in enumerate(first) if last[place : place + 1] != char)
    return first[: next(different, len(first))]


def document(text: str) -> dict[str, Any]:
    """A document of JSON that is one object. Raises `Unknown`."""
    try:
        told = json.loads(text, strict=False)  # some systems do not escape what their users wrote
    except (ValueError, RecursionError) as error:
        raise Unknown(f"no whole document was printed: {error}") from error
    if not isinstance(told, dict):
        raise Unknown("a document was printed that is no object")
    return told


def documents(text: str) -> list[dict[str, Any]]:
    """A document of JSON that is a list of objects; nothing at all is an empty one. Raises `Unknown`."""
    told = document(f'{{"all": {text}}}')["all"] if text.strip() else []
    if not isinstance(told, list):
        raise Unknown("a document was printed that is no list")
    return [each for each in told if isinstance(each, dict)]


def expression(names: Sequence[str]) -> str:
    """Names or patterns of nodes as one extended regular expression; what follows the first dot of a name need not be there."""
    return "|".join(f"({_expression(each)})" for each in names)


def _expression(name: str) -> str:
    parts = re.findall(r"\[!?[^\]]+\]|.", name)
    made = [each.replace("[!", "[^") if len(each) > 1 else _PARTS.get(each, each) for each in parts]
    if "." in name and not re.search(r"[*?\[]", name):  # a node may be known by the first part of its name alone
        dot = made.index(_PARTS["."])
        return f"{''.join(made[:dot])}({''.join(made[dot:])})?"
    return f"{''.join(made)}([.].*)?"
