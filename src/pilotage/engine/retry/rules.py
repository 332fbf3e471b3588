"""What is done after each kind of failure unless a package's own rules say otherwise: one table, a row for each reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from pilotage.model.states import AbortCause, Reason

Remedy = Literal["again", "elsewhere", "later", "more-memory", "more-time", "where-more-time"]
"""How a restart differs from what failed; `where-more-time` keeps the limit and asks for a place with more time left."""

Budget = Literal[
    "",
    "application_errors_max",
    "commands_not_found_max",
    "limit_doublings_max",
    "memory_doublings_max",
    "missing_inputs_max",
    "platform_failures_max",
    "preemptions_max",
]
"""The restart setting that bounds failures of a kind; rows with one budget share it; none: the common cap alone."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row: what is done, whether the attempt counts against the common cap, and what bounds it besides."""

    answer: Remedy
    counted: bool
    budget: Budget
    cause: AbortCause = "retries-exhausted"  # of giving up when the budget is used up
    changes: str  # what is different the next time
    why: str

    @property
    def doubles(self) -> bool:
        """Whether its budget bounds how often something is doubled; otherwise it bounds how many failures there are."""
        return self.answer in ("more-memory", "more-time")

    @property
    def pauses(self) -> bool:
        """Whether an attempt waits where every site was tried: what counts is over soon, what does not must not be a flood."""
        return self.answer == "elsewhere" and not self.counted


_PLATFORM = Row(
    answer="elsewhere",
    counted=False,
    budget="platform_failures_max",
    changes="sites where it happened are avoided",
    why="the place failed, not the package: another place may do",
)
_INPUT = Row(
    answer="later",
    counted=False,
    budget="missing_inputs_max",
    changes="it waits",
    why="without its input it fails everywhere: it waits until the file is back",
)
_APPLICATION = Row(
    answer="elsewhere",
    counted=True,
    budget="application_errors_max",
    changes="sites where it happened are avoided; the same failure at two sites is permanent",
    why="a crash may be the place's fault; one that repeats identically at another site is the program's",
)

RULES: Mapping[Reason, Row] = {
    "platform-failure": _PLATFORM,
    "disk-full": _PLATFORM,  # the node's own disk
    "preempted": Row(
        answer="again",
        counted=False,
        budget="preemptions_max",
        changes="nothing",
        why="somebody else needed the place: nothing is wrong with either",
    ),
    "wall-time": Row(
        answer="where-more-time",
        counted=True,
        budget="",
        changes="only where more time is left than it had; what its own limit ended is given up, unless it says how often to try",
        why="with as little time as before it would be ended again",
    ),
    "out-of-memory": Row(
        answer="more-memory",
        counted=True,
        budget="memory_doublings_max",
        changes="twice the memory it had",
        why="with the same memory it would die again; what grows without end is a leak",
    ),
    "missing-input": _INPUT,
    "input-checksum": _INPUT,
    "application-error": _APPLICATION,
    "segmentation-fault": _APPLICATION,
    "signal": _APPLICATION,
    "missing-output": _APPLICATION,
    "failure-pattern": _APPLICATION,
    "command-not-found": Row(
        answer="elsewhere",
        counted=True,
        budget="commands_not_found_max",
        cause="permanent-failure",
        changes="the site where it happened is avoided",
        why="one site may lack a program; when the next lacks it too, the command is wrong",
    ),
    "looping": Row(
        answer="more-time",
        counted=True,
        budget="limit_doublings_max",
        changes="twice the time limit it had; without a limit it is given up",
        why="never twice at one limit: it would loop until the same moment",
    ),
    "credential-expired": Row(
        answer="elsewhere",
        counted=False,
        budget="platform_failures_max",
        cause="credential-expired",
        changes="sites where it happened are avoided",
        why="the agent's token has ended, and nothing can be fetched or brought with it: one at another place has its own",
    ),
}
"""The default row of each reason."""

_BY_NAME: dict[str, Row] = {str(reason): row for reason, row in RULES.items()}
_UNKNOWN: Reason = "application-error"


def row_of(reason: str) -> tuple[str, Row]:
    """The row for a reason and its name; a reason that is not in the table is treated as an application error."""
    return (reason, _BY_NAME[reason]) if reason in _BY_NAME else (_UNKNOWN, RULES[_UNKNOWN])
