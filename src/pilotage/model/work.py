"""What an agent must know to run an attempt, and what it says beside its events: the texts that its programs wrote.

An assignment says that an attempt is to be run and with what; the work that comes with it says how. Names of files are
names in the job's tree: relative, with `/`, and never outside it. The agent runs a package in a folder of its own, in
which its inputs lie under their names, and takes its outputs from there.
"""

from __future__ import annotations

import msgspec

from pilotage.model.exchange import AttemptRef, Counter, Exchange, ExchangeReply
from pilotage.model.payloads import OutputFile


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base of what goes over the wire: what has its default is left out."""


class WorkInput(Wire, frozen=True, kw_only=True):
    """A file that must lie in the folder of the package before it starts."""

    name: str
    sha256: str = ""  # as it must be; empty: any content will do
    size_bytes: int | None = None
    made: bool = False  # by a package of this job: what is linked is ours, and no user's file
    content: bool = False  # kept by its sha256 in the book's content, and not in the job's tree
    executable: bool = False


class WorkOutput(Wire, frozen=True, kw_only=True):
    """What is taken out of the folder afterwards: a name, a pattern, or a regular expression with its folder."""

    name: str = ""
    expression: str = ""  # matched against whole names; what lies outside `folder` is put into it
    folder: str = ""
    pattern: bool = False  # `name` is one; it must match at least one file


class WorkBinary(Wire, frozen=True, kw_only=True):
    """One command: its words are given to the system as they are, and never to a shell."""

    argv: tuple[str, ...]
    name: str = ""  # of several, what the document calls it
    environment: dict[str, str] = {}
    stdin: str = ""
    stdout: str = ""  # a file of the package; empty: the log
    stderr: str = ""
    outputs: tuple[WorkOutput, ...] = ()
    error_codes: dict[str, str] = {}  # what its description says that exit codes mean, by the code


class WorkPattern(Wire, frozen=True, kw_only=True):
    """A text in a log that means failure."""

    pattern: str
    file: str = "stderr"
    reason: str = "failure-pattern"


class WorkContainer(Wire, frozen=True, kw_only=True):
    """The image that the commands run in."""

    image: str
    engine: str = "any"


class WorkScript(Wire, frozen=True, kw_only=True):
    """A command beside the package, run in the document's folder."""

    argv: tuple[str, ...]
    defer_exit_code: int | None = None
    defer_seconds: float = 0.0
    files: tuple[WorkInput, ...] = ()  # the file that it is, as it was at submission; it is not brought anywhere


class Work(Wire, frozen=True, kw_only=True):
    """How an attempt is run. It comes with the assignment of the same place in the list."""

    path: str  # of the package: reco001/001/002/001
    name: str
    index: int  # the number of the package in its job
    folder: str  # the document's folder, which is the root of the job's tree
    staged: str  # the folder that outputs are put into: DOTTED-ATTEMPT-K for the K-th of the manifest, from 0
    mark: str = ""  # a line of the file `mark` in `staged`: who reads it there sees the very folder; empty: nobody does
    folder_mark: str = ""  # a file below `folder` that says the same, where `staged` is not below it
    inputs: tuple[WorkInput, ...] = ()
    binaries: tuple[WorkBinary, ...] = ()
    startup: tuple[str, ...] = ()  # the startup script with its parameters, instead of the binaries one by one
    container: WorkContainer | None = None
    failure_patterns: tuple[WorkPattern, ...] = ()
    watched: tuple[str, ...] = ()  # files that must grow; none: the log and CPU time
    stalled_after_seconds: float = 0.0  # 0: nobody looks
    pre: WorkScript | None = None
    post: WorkScript | None = None
    pre_skip_exit_code: int | None = None
    kept: str = ""  # a folder of the agent's site for what finished binaries made; a later attempt begins behind them
    keep_failed: bool = False
    software: str = ""  # id@version of each description that it uses
    adopted: tuple[OutputFile, ...] | None = None  # it was made before, and lies in its place: nothing is run
    message: str = ""  # of what was adopted: where it comes from
    refused: str = ""  # the service cannot say how to run it, and why: it fails at once with this message


class LogText(Wire, frozen=True, kw_only=True):
    """What the programs of an attempt wrote to one stream: its beginning and its end where it is long."""

    ref: AttemptRef
    stream: str  # stdout or stderr
    head: str
    tail: str = ""
    dropped_bytes: Counter = 0  # between the two
    final: bool = True  # False: the attempt goes on, and so does its log


class AgentSays(Wire, frozen=True, kw_only=True):
    """One exchange on the wire: what the agent says, and its logs. It keeps both until the reply acknowledges the events."""

    exchange: Exchange
    logs: tuple[LogText, ...] = ()
    ended_token: str = ""  # the pilot's own, which is taken no longer, beside that of its site: it asks for another one


class AgentHears(Wire, frozen=True, kw_only=True):
    """The answer on the wire: the reply, and for each assignment the work."""

    reply: ExchangeReply
    work: tuple[Work, ...] = ()
    tokens: tuple[str, ...] = ()  # for what each of them runs: it may speak of its own package
