"""The exchange between an agent and the service: one message and its reply, which carry everything in both directions.

An exchange is complete in itself: the agent lists everything it holds, and the service replies with what is missing there
and what should not be. So a lost, repeated or late message does no harm: the next one corrects it. A reply counts only for
the exchange that is open, identified by `sequence`; of an exchange older than the last one only the events count.
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
    """An attempt: the id of its job, the address of its package, and its number."""

    job: str
    package: str
    attempt: AttemptNumber


class InputSource(msgspec.Struct, frozen=True, gc=False):
    """The source of inputs: the granted attempt of a package of the same job."""

    package: str
    attempt: AttemptNumber


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An attempt for an agent to run: it holds a lease from the moment the service recorded it."""

    ref: AttemptRef
    epoch: int = 1
    demand: Demand = Demand()
    inputs: tuple[InputSource, ...] = ()
    drop_revision: int = 0  # drops known at its creation: they determine its inputs, whatever happens later
    early: tuple[InputSource, ...] = ()  # attempts at its site that still make some of its inputs
    following: Counter = 0  # attempts that the same batch job runs after it


SETTLING = 2**40
"""Exchange numbers from here on are for processes that clean up after a dead pilot: above all of the pilot's own."""
SEQUENCE_JUMP_MAX = 2**20
"""How far the number of an exchange may be beyond the last one: months of polling. A larger one was forged, and would make
all later exchanges of the pilot look old.
"""


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The message of an agent. Its name is unique: a batch system that starts one request twice makes two agents.

    `held` lists every attempt it was given and whose end it has not reported; `events` are the unacknowledged events of its
    stream, which has the agent's name, in order.
    """

    pilot: str
    site: str
    sequence: Counter
    seen: Counter = 0  # the last position of the book that it knows
    time: float = 0.0  # its clock at sending; 0: not stated
    service_time: float | None = None  # a lower bound of the service's clock, from the last reply; 0: no reply yet
    serves: AttemptRef | None = None  # bound mode: the one attempt that it runs
    node: str = ""
    capacity: Capacity = Capacity()
    backlog: Counter = 0  # how many attempts it queues beyond its capacity, so that no slot idles
    remaining_seconds: float | None = None  # of its wall time
    leaving: str = ""  # a reason: it takes no more work, and ends when idle
    held: tuple[AttemptRef, ...] = ()
    events: tuple[Event, ...] = ()

    def is_beyond(self, last: int) -> bool:
        """Whether its number is too far beyond the last one; 0: none so far. A clean-up process starts its own range."""
        if self.sequence >= SETTLING and last < SETTLING:
            return self.leaving != "gone"
        return last > 0 and self.sequence - last > SEQUENCE_JUMP_MAX

    def is_skewed(self, *, received: float, tolerance_seconds: float) -> bool:
        """Whether the clock of the agent is wrong, by its own statement."""
        return bool(self.time) and is_wrong(
            self.time, service_time=self.service_time or 0.0, received=received, tolerance_seconds=tolerance_seconds
        )

    def is_doubtful(self, *, received: float, tolerance_seconds: float) -> bool:
        """Whether that is unknown until the agent has learned the service's clock, and it will say so."""
        if not self.time or self.service_time is None:
            return False
        return is_doubtful(
            self.time, service_time=self.service_time, received=received, tolerance_seconds=tolerance_seconds
        )


class ExchangeReply(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The reply of the service, sent when everything in it is durable."""

    pilot: str
    sequence: int
    position: int = 0  # of the book, for the clock of later events
    time: float = 0.0  # the service's clock; an agent checks its own by it
    acknowledged: int = 0  # events of the agent's stream up to this number need not be sent again
    assignments: tuple[Assignment, ...] = ()
    cancelled: tuple[AttemptRef, ...] = ()  # to be stopped and forgotten
    interval_seconds: float = 10.0
    leave: str = ""  # a reason: end at once, with all attempts


# What an agent needs to run an attempt, and its logs, which it sends beside its events.
#
# An assignment says that an attempt is to be run and with which resources; the work that comes with it says how. Names
# of files are names in the job's tree: relative, with `/`, and never outside it. The agent runs a package in a folder of
# its own, with its inputs under their names, and collects its outputs there.


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base of messages: fields with their default value are left out."""


class WorkInput(Wire, frozen=True, kw_only=True):
    """A file that must be in the folder of the package before it starts."""

    name: str
    sha256: str = ""  # the required content; empty: any
    size_bytes: int | None = None
    made: bool = False  # by a package of this job: a link to it is ours, and not a user's file
    content: bool = False  # stored by its sha256 in the book's content, and not in the job's tree
    executable: bool = False
    cached: str = ""  # its name in the cache of the site; empty: it is not there
    stored: bool = (
        False  # also stored by its sha256 at the service: who does not see the tree fetches it once, from there
    )
    path: str = ""  # where it must be on the node; empty: in the job's folder, the cache or the content store
    unpacked: bool = False  # the cached file is an archive of software, and `name` a folder with its files


class WorkEarlyInput(Wire, frozen=True, kw_only=True):
    """An input that a package in a line with `early_start` may read before it is complete: a file beside it says how far it is."""

    name: str
    source: str = ""  # the file in which the agent of the running attempt says where it grows; empty: it is complete


class WorkOutput(Wire, frozen=True, kw_only=True):
    """Outputs to collect from the folder: a name, a pattern, or a regular expression with its folder."""

    name: str = ""
    expression: str = ""  # matched against whole names; a match outside `folder` is put into it
    folder: str = ""
    pattern: bool = False  # `name` is one; it must match at least one file
    stored: str = ""  # how it is copied to stores, as declared; the agent has no part in that


class WorkBinary(Wire, frozen=True, kw_only=True):
    """One command; its arguments go to the system as they are, never to a shell."""

    argv: tuple[str, ...]
    name: str = ""  # of several, what the document calls it
    environment: dict[str, str] = {}
    stdin: str = ""
    stdout: str = ""  # a file of the package; empty: the log
    stderr: str = ""
    outputs: tuple[WorkOutput, ...] = ()
    error_codes: dict[str, str] = {}  # the meaning of its exit codes, from its description


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
    files: tuple[WorkInput, ...] = ()  # the script file as submitted; it is not transferred


class WorkProbe(Wire, frozen=True, kw_only=True):
    """A command that prints the version of a software."""

    argv: tuple[str, ...]
    environment: dict[str, str] = {}


class WorkProvenance(Wire, frozen=True, kw_only=True):
    """What is collected of an attempt besides its outputs."""

    script: tuple[str, ...] = ()  # run in its folder after its commands: the JSON object that it prints is kept
    files: tuple[WorkInput, ...] = ()  # the file of that script as submitted
    core_bytes: int = 0  # the largest core file that a crashing command may leave; 0: none
    probes: dict[str, WorkProbe] = {}  # by id@version of the software


class Work(Wire, frozen=True, kw_only=True):
    """How to run an attempt. It comes with the assignment at the same index."""

    path: str  # of the package: reco001/001/002/001
    name: str
    index: int  # the number of the package in its job
    folder: str  # the document's folder, which is the root of the job's tree
    staged: str  # the folder for outputs: DOTTED-ATTEMPT-K for the K-th of the manifest, from 0
    mark: str = (
        ""  # a line of the file `mark` in `staged`: an agent that reads it sees the same folder; empty: not checked
    )
    folder_mark: str = ""  # a file below `folder` with the same line, if `staged` is not below it
    inputs: tuple[WorkInput, ...] = ()
    early: tuple[WorkEarlyInput, ...] = ()
    shown: str = (
        ""  # the file, at its site, in which the agent says where its outputs grow; empty: nobody reads them early
    )
    binaries: tuple[WorkBinary, ...] = ()
    startup: tuple[str, ...] = ()  # the startup script with its parameters, instead of the binaries one by one
    container: WorkContainer | None = None
    failure_patterns: tuple[WorkPattern, ...] = ()
    watched: tuple[str, ...] = ()  # files that must grow; empty: the log and CPU time
    stalled_after_seconds: float = 0.0  # 0: not checked
    pre: WorkScript | None = None
    post: WorkScript | None = None
    pre_skip_exit_code: int | None = None
    kept: str = ""  # a folder of the agent's site for results of finished binaries; a later attempt resumes after them
    keep_failed: bool = False
    cache: str = ""  # the folder at its site that has the files that were brought there
    visible_seconds: float = 0.0  # how long a network file system may show inputs late that exist; 0: not waited for
    software: str = ""  # id@version of each description that it uses
    provenance: WorkProvenance | None = None
    adopted: tuple[OutputFile, ...] | None = None  # it was made before and is in place: nothing is run
    message: str = ""  # for adopted work: where it comes from
    refused: str = ""  # why the service cannot say how to run it: it fails at once with this message


CORE_STREAM = "core:"
"""The beginning of the `stream` of a core file, which is sent beside the logs: compressed by zlib, in base64."""


class LogText(Wire, frozen=True, kw_only=True):
    """What an attempt wrote to one stream: only beginning and end if it is long."""

    ref: AttemptRef
    stream: str  # stdout, stderr, those of scripts, or that of a core file
    head: str
    tail: str = ""
    dropped_bytes: Counter = 0  # between the two
    final: bool = True  # False: the attempt is running, and its log goes on


class AgentMessage(Wire, frozen=True, kw_only=True):
    """One exchange on the wire: the agent's message and its logs. It keeps both until the reply acknowledges the events."""

    exchange: Exchange
    logs: tuple[LogText, ...] = ()
    ended_token: str = ""  # the pilot's own token, now expired, beside that of its site: it asks for a new one
    damaged: tuple[str, ...] = ()  # names in the cache of its site: these files have another content than they should


class AgentReply(Wire, frozen=True, kw_only=True):
    """The reply on the wire, with the work of each assignment."""

    reply: ExchangeReply
    work: tuple[Work, ...] = ()
    variables: tuple[str, ...] = ()  # environment variables of its node that an agent reports
    tokens: tuple[str, ...] = ()  # for the programs of each assignment: each may report on its own package
