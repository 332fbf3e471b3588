"""What is sent to have a job run, and what comes back: the answer, or the plan of a job that nobody has run yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pilotage.model.jobs.definition import Definition, plain
from pilotage.model.jobs.run_options import RunOptions

# What was read for a job when it was submitted, and what appeared while it ran: enough to expand it again for ever.

EXPANDER_VERSION = 1  # raised when the same definition and lists would give other packages


class ResolvedLists(msgspec.Struct, frozen=True, kw_only=True):
    """Every list of a job by a key that says what was asked, and the order in which late stages were laid out.

    The order matters: packages are numbered as their stages appear.
    """

    lists: Mapping[str, tuple[str, ...]] = {}
    growth: tuple[int, ...] = ()  # late stages, counted from 1
    expander_version: int = EXPANDER_VERSION

    def with_growth(self, stage: int, lists: Mapping[str, tuple[str, ...]]) -> ResolvedLists:
        """The lists after one more late stage was laid out over those given."""
        return ResolvedLists(
            lists={**self.lists, **lists}, growth=(*self.growth, stage), expander_version=self.expander_version
        )


SUPERSEDED = "superseded by"
"""How the message begins with which a job is killed because its document was run again."""
CHANGED = "with another content"
"""How a document is run again that has changed."""
DEFINITION, RESOLVED, CAPTURED, ORIGIN = "definition", "resolved", "captured", "origin"
TARGETS = "targets"
FILE = "file-"
"""What the contents of a registered job are called among its lists; `targets` are there where it is run for some files, `stage-N` is what a late stage was laid out over, and
`file-N` a file that it brought along."""
PLANNED_MAX = 1000
"""So many packages of a plan are told one by one; all are counted."""


class Sent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base: what has its default is left out."""


class Captured(Sent, frozen=True, kw_only=True):
    """A file that a job brings along, as it was at submission.

    Its bytes are kept with the book's content by their sha256, unless it is too large: then it stays in its folder, and
    must not have changed when it is used.
    """

    sha256: str
    size_bytes: int = 0
    executable: bool = False
    content: bool = True


class Submission(RunOptions, frozen=True, kw_only=True):
    """A job to be run: the body of `POST /v1/jobs` and of `POST /v1/plan`. `submission_of` makes one."""

    definition: dict[str, Any]  # canonical, as plain data
    lists: ResolvedLists
    folder: str  # absolute: the root of the job's tree
    document: str = ""  # the name of the file it was read from, for messages
    owner: str = ""
    id: str = ""  # empty: one is given
    only_if_needed: bool = False  # register nothing where everything is there already: the answer then names no job
    format: str = "yaml"
    captured: dict[str, Captured] = msgspec.field(
        default_factory=dict
    )  # by name in the tree; their content was sent before


class SubmissionAnswer(Sent, frozen=True, kw_only=True):
    """What became of a submission."""

    job: str  # empty: nothing was to be done, and none was registered
    packages: int
    adopted: int = 0
    resumed: bool = False  # the job was there already, and goes on
    superseded: tuple[str, ...] = ()  # unfinished jobs of the same document, whose place it takes: they were killed
    run_again: dict[str, str] = {}  # how the document of each of these is run again, in words: "with another content" …
    in_the_way: tuple[str, ...] = ()  # names of outputs under which something lies that is kept beside them
    remade: int = 0  # packages of a job that goes on which are run again: what they made is gone, and needed


class Origin(RunOptions, frozen=True, kw_only=True):
    """Where a job comes from, and what it brought along; kept with the book for as long as the job is."""

    folder: str
    document: str = ""
    format: str = "yaml"
    unknown_executors: tuple[str, ...] = ()  # that named nothing when the job came: what asks for them runs by default
    captured: dict[str, Captured] = msgspec.field(default_factory=dict)


class StagePlan(Sent, frozen=True, kw_only=True):
    """What a run would do in one stage."""

    stage: int
    name: str
    late: bool = False  # how many packages it has is known when the stages before it are done
    packages: int = 0
    would_run: int = 0
    there: int = 0  # made by an earlier run, and still in place
    core_hours: float | None = None  # of those that would run, as far as known


class PlannedPackage(Sent, frozen=True, kw_only=True):
    """A package that would run, and why: what changed since it was last made."""

    package: str  # dotted: 1.2.1
    name: str
    changed: str  # "argv", "input a.dat", "missing output b.dat", "waits for 1.2.1", "never made" …


class PlannedParameter(Sent, frozen=True, kw_only=True):
    """A parameter of the document, and what it would be."""

    name: str
    value: str
    chosen: bool = False  # or its default
    type: str = "text"
    default: str | None = None
    description: str = ""


class RunPlan(Sent, frozen=True, kw_only=True):
    """What a run would do; nothing of it is done."""

    job: str  # the short name
    description: str = ""  # as the document has it, and so has when it was made
    created: str = ""
    software: dict[str, str] = {}  # what each software that it uses is, as far as that is described
    parameters: tuple[PlannedParameter, ...] = ()
    packages: int
    would_run: int
    there: int
    left_out: int = 0  # packages that the files do not need for which it is run; they are not among the others
    stages: tuple[StagePlan, ...] = ()
    listed: tuple[PlannedPackage, ...] = ()  # the first PLANNED_MAX that would run
    changed: dict[str, int] = {}  # how many would run for which kind of change
    slots: int = 1
    core_hours: float | None = None  # None: nothing is known about any of them
    seconds: float | None = None  # until the end, with so many slots
    unknown: int = 0  # packages of which no run time is known; they count as nothing in both
    notes: tuple[str, ...] = ()  # what is worth knowing of where it would run: sites that are passed over, and why


def submission_of(
    definition: Definition,
    lists: ResolvedLists,
    *,
    folder: str,
    document: str = "",
    captured: dict[str, Captured] | None = None,
    **more: Any,
) -> Submission:
    """A submission of a checked definition with its lists; `more` are the other fields of a submission."""
    return Submission(
        definition=plain(definition),
        lists=lists,
        folder=folder,
        document=document,
        captured=captured or {},
        **more,
    )
