"""The submission of a job and its answer, and the plan of a job that is not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pilotage.model.jobs.definition import Definition, plain
from pilotage.model.jobs.estimates import EarlierRunTime, PackageEstimate
from pilotage.model.jobs.run_options import RunOptions

# The lists read for a job at submission, and those that appeared while it ran: enough to expand it again at any time.

EXPANDER_VERSION = 1  # raised if the same definition and lists give other packages


class ResolvedLists(msgspec.Struct, frozen=True, kw_only=True):
    """Every list of a job by a key that identifies its source, and the order in which late stages were expanded.

    The order matters: packages are numbered in the order in which their stages appear.
    """

    lists: Mapping[str, tuple[str, ...]] = {}
    growth: tuple[int, ...] = ()  # late stages, counted from 1
    expander_version: int = EXPANDER_VERSION

    def with_growth(self, stage: int, lists: Mapping[str, tuple[str, ...]]) -> ResolvedLists:
        """The lists after one more late stage was expanded from those given."""
        return ResolvedLists(
            lists={**self.lists, **lists}, growth=(*self.growth, stage), expander_version=self.expander_version
        )


SUPERSEDED = "superseded by"
"""How the message begins when a job is killed because its document was run again."""
CHANGED = "with another content"
"""How a changed document is run again."""
DEFINITION, RESOLVED, CAPTURED, ORIGIN = "definition", "resolved", "captured", "origin"
TARGETS = "targets"
FILE = "file-"
CUSTOM = "custom-"
"""Names of the contents of a registered job among its lists; `targets` exists if the job is run for some files, `stage-N` is
the list of an expanded late stage, `file-N` a file that came with the job, and `custom-NAME` custom data of its user.
"""
PLANNED_MAX = 1000
"""How many packages of a plan are listed; all are counted."""


class Sent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base: fields with their default value are left out."""


class Captured(Sent, frozen=True, kw_only=True):
    """A file that comes with a job, as it was at submission.

    Its bytes are stored by their sha256 with the book's content, unless it is too large: then it stays in its folder, and must
    be unchanged when it is used. If the inputs of the job were sent, its bytes are in the content store of the service.
    """

    sha256: str
    size_bytes: int = 0
    executable: bool = False
    content: bool = True


class Submission(RunOptions, frozen=True, kw_only=True):
    """A job to run: the body of `POST /v1/jobs` and of `POST /v1/plan`. `submission_of` makes one."""

    definition: dict[str, Any]  # canonical, as plain data
    lists: ResolvedLists
    folder: str  # absolute: the root of the job's tree
    document: str = ""  # the name of the file it was read from, for messages
    owner: str = ""
    id: str = ""  # empty: one is given
    only_if_needed: bool = False  # register nothing if all results exist already: the answer then names no job
    format: str = "yaml"
    captured: dict[str, Captured] = msgspec.field(
        default_factory=dict
    )  # by name in the tree; their content was sent before
    annotations: dict[str, str] = msgspec.field(default_factory=dict)  # names and values, kept as tags
    sent_from: str = (
        ""  # the folder, if the service does not see it: all captured files were sent, and results stay there
    )
    custom: dict[str, str] = msgspec.field(
        default_factory=dict
    )  # names of custom data, and the sha256 of their content, which was sent before


class SubmissionAnswer(Sent, frozen=True, kw_only=True):
    """The result of a submission."""

    job: str  # empty: all results existed, and no job was registered
    packages: int
    adopted: int = 0
    resumed: bool = False  # the job existed already, and continues
    superseded: tuple[str, ...] = ()  # unfinished jobs of the same document that it replaces: they were killed
    run_again: dict[str, str] = {}  # how the document of each of these is run again, in words: "with another content" …
    in_the_way: tuple[str, ...] = ()  # output names occupied by files that are kept under other names
    remade: int = 0  # packages of a continued job that run again, because needed outputs are missing


class Origin(RunOptions, frozen=True, kw_only=True):
    """The origin of a job and its captured files; stored with the book as long as the job."""

    folder: str
    document: str = ""
    format: str = "yaml"
    unknown_executors: tuple[
        str, ...
    ] = ()  # unknown when the job was submitted: packages that name them run by default
    captured: dict[str, Captured] = msgspec.field(default_factory=dict)
    sent_from: str = (
        ""  # the folder on another computer from which the inputs were sent; `folder` is then the service's own
    )
    earlier_run_times: tuple[
        EarlierRunTime, ...
    ] = ()  # from earlier runs, where the document gives none; for forecasts only


class StagePlan(Sent, frozen=True, kw_only=True):
    """The plan for one stage."""

    stage: int
    name: str
    late: bool = False  # its number of packages is known when the stages before it are done
    packages: int = 0
    would_run: int = 0
    there: int = 0  # made by an earlier run, and still in place
    core_hours: float | None = None  # of those that would run, if known
    memory_bytes: int | None = None  # the most of any that would run, as the document says, or else as measured before
    scratch_bytes: int | None = None  # likewise
    output_bytes: int | None = None  # of all that would run


class PlannedPackage(Sent, frozen=True, kw_only=True):
    """A package that would run, and what changed since it was last made."""

    package: str  # dotted: 1.2.1
    name: str
    changed: str  # "argv", "input a.dat", "missing output b.dat", "waits for 1.2.1", "never made" …
    start_seconds: float | None = None  # expected, after the submission; None: some run time before it is unknown
    end_seconds: float | None = None  # the same; None: its own run time is unknown, too
    expected_start_at: float | None = None  # the same as a time, if it were submitted now
    expected_end_at: float | None = None
    estimate: PackageEstimate | None = None  # None: nothing is known


class PlannedParameter(Sent, frozen=True, kw_only=True):
    """A parameter of the document, and its value."""

    name: str
    value: str
    chosen: bool = False  # else its default
    type: str = "text"
    default: str | None = None
    description: str = ""


class RunPlan(Sent, frozen=True, kw_only=True):
    """The plan of a run; nothing is run."""

    job: str  # the short name
    description: str = ""  # from the document; likewise `created`
    created: str = ""
    software: dict[str, str] = {}  # descriptions of the software that it uses, where known
    parameters: tuple[PlannedParameter, ...] = ()
    packages: int
    would_run: int
    there: int
    left_out: int = 0  # packages that its targets do not need; not included in the other counts
    stages: tuple[StagePlan, ...] = ()
    listed: tuple[PlannedPackage, ...] = ()  # the first PLANNED_MAX that would run
    changed: dict[str, int] = {}  # kind of change → packages that would run for it
    slots: int = 1
    core_hours: float | None = None  # None: unknown for all of them
    seconds: float | None = None  # until the end, with this number of slots
    planned_at: float | None = None  # the time of the plan: expected times are those of a submission at that time
    expected_end_at: float | None = None
    unknown: int = 0  # packages without a known run time; they count as 0 in both
    notes: tuple[str, ...] = ()  # remarks on where it would run: sites that are not used, and why


def submission_of(
    definition: Definition,
    lists: ResolvedLists,
    *,
    folder: str,
    document: str = "",
    captured: dict[str, Captured] | None = None,
    **more: Any,
) -> Submission:
    """A submission of a checked definition with its lists; `more` are further fields of the submission."""
    return Submission(
        definition=plain(definition),
        lists=lists,
        folder=folder,
        document=document,
        captured=captured or {},
        **more,
    )
