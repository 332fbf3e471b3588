"""What an agent and the service say to each other: one exchange, which carries everything in both directions.

An exchange is complete in itself: the agent tells everything it holds, the service answers with what is missing there
and what should not be. So a lost, repeated or late message does no harm: the next one mends it. A reply counts only
as the answer to the exchange that is open, which `sequence` tells; an exchange older than one that was seen brings its
events, and nothing else.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pilotage.model.events.events import ATTEMPT_MAX, COUNTER_MAX, Event, is_doubtful, is_wrong
from pilotage.model.events.payloads import OutputFile
from pilotage.model.resources import Capacity, Demand

AttemptNumber = Annotated[int, Meta(ge=1, le=ATTEMPT_MAX)]
Counter = Annotated[int, Meta(ge=0, le=COUNTER_MAX)]


class AttemptRef(msgspec.Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """Which attempt: the id of the job, the dotted place of the package, and the number of the attempt."""

    job: str
    package: str
    attempt: AttemptNumber


class InputSource(msgspec.Struct, frozen=True, gc=False):
    """Where inputs come from: the granted attempt of a package of the same job."""

    package: str
    attempt: AttemptNumber


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An attempt that an agent shall run: it holds a lease from the moment the service wrote it down."""

    ref: AttemptRef
    epoch: int = 1
    demand: Demand = Demand()
    inputs: tuple[InputSource, ...] = ()
    drop_revision: int = 0  # what was dropped when it was created: it sees its inputs so, whatever happens later


SETTLING = 2**40
"""From here on whoever settles what a dead pilot left counts its exchanges: behind all of the pilot's own."""
SEQUENCE_JUMP_MAX = 2**20
"""How far beyond the last that was heard the number of a pilot's exchange may be: months of asking in vain. Whatever is
further was made up, and would make all that the pilot says later old."""


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What an agent says. Its name is its own: a batch system that starts one request twice makes two agents.

    `held` names every attempt it was given of which it has not told the end; `events` are those of its stream, whose
    name is its own too, that were not acknowledged yet, in order.
    """

    pilot: str
    site: str
    sequence: Counter
    seen: Counter = 0  # the position of the book that it was told last
    time: float = 0.0  # what its clock shows as it says this; 0: it does not say
    service_time: float | None = None  # what the service's clock shows at least, by the last reply; 0: it has had none
    serves: AttemptRef | None = None  # bound mode: the one attempt it was started for
    node: str = ""
    capacity: Capacity = Capacity()
    backlog: Counter = 0  # how many attempts beyond its capacity it keeps waiting, so that no slot idles
    remaining_seconds: float | None = None  # of its wall time
    leaving: str = ""  # a reason: it takes nothing more, and ends when it holds nothing
    held: tuple[AttemptRef, ...] = ()
    events: tuple[Event, ...] = ()

    def is_beyond(self, last: int) -> bool:
        """Whether its number is out of all reach of the last one that was heard; 0: none was. Who settles begins anew."""
        if self.sequence >= SETTLING and last < SETTLING:
            return self.leaving != "gone"
        return last > 0 and self.sequence - last > SEQUENCE_JUMP_MAX

    def is_skewed(self, *, received: float, tolerance_seconds: float) -> bool:
        """Whether the clock of the agent is wrong, by its own word."""
        return bool(self.time) and is_wrong(
            self.time, service_time=self.service_time or 0.0, received=received, tolerance_seconds=tolerance_seconds
        )

    def is_doubtful(self, *, received: float, tolerance_seconds: float) -> bool:
        """Whether that cannot be told before the agent has heard what the clock of the service shows, and it will say so."""
        if not self.time or self.service_time is None:
            return False
        return is_doubtful(
            self.time, service_time=self.service_time, received=received, tolerance_seconds=tolerance_seconds
        )


class ExchangeReply(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the service answers, once everything it says is durable."""

    pilot: str
    sequence: int
    position: int = 0  # of the book, for the clock of the events that follow
    time: float = 0.0  # what the clock of the service showed; an agent finds out from it whether its own is wrong
    acknowledged: int = 0  # events of the agent's stream up to this one need not be sent again
    assignments: tuple[Assignment, ...] = ()
    cancelled: tuple[AttemptRef, ...] = ()  # to be stopped and forgotten: nobody waits for them
    interval_seconds: float = 10.0
    leave: str = ""  # a reason: end, whatever you hold


# What an agent must know to run an attempt, and what it says beside its events: the texts that its programs wrote.
#
# An assignment says that an attempt is to be run and with what; the work that comes with it says how. Names of
# files are names in the job's tree: relative, with `/`, and never outside it. The agent runs a package in a folder
# of its own, in which its inputs lie under their names, and takes its outputs from there.


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
