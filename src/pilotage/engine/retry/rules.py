"""The default rules for failures: one table, a row for each reason; a package's own rules come first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from pilotage.model.states import AbortCause, Reason

Remedy = Literal["again", "elsewhere", "later", "more-memory", "more-time", "where-more-time"]
"""How a restart differs; `where-more-time` keeps the limit and requires a pilot with more time left."""

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
"""The restart setting that limits failures of a kind; rows with the same budget share it; none: only the common cap."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row: the remedy, whether the attempt counts against the common cap, and its further limit."""

    answer: Remedy
    counted: bool
    budget: Budget
    cause: AbortCause = "retries-exhausted"  # why it is given up when the budget is used up
    changes: str  # what differs next time
    why: str

    @property
    def doubles(self) -> bool:
        """Whether its budget limits the number of doublings; otherwise it limits the number of failures."""
        return self.answer in ("more-memory", "more-time")

    @property
    def pauses(self) -> bool:
        """Whether to pause once every site was tried: counted failures end soon, uncounted ones must not become a flood."""
        return self.answer == "elsewhere" and not self.counted


_PLATFORM = Row(
    answer="elsewhere",
    counted=False,
    budget="platform_failures_max",
    changes="sites where it happened are avoided",
    why="the site failed, not the package: another site may work",
)
_INPUT = Row(
    answer="later",
    counted=False,
    budget="missing_inputs_max",
    changes="it waits",
    why="without its input it fails everywhere: it waits until the file exists again",
)
_APPLICATION = Row(
    answer="elsewhere",
    counted=True,
    budget="application_errors_max",
    changes="sites where it happened are avoided; the same failure at two sites is permanent",
    why="a crash may be the site's fault; an identical one at another site is the program's",
)

RULES: Mapping[Reason, Row] = {
    "platform-failure": _PLATFORM,
    "disk-full": _PLATFORM,  # the node's own disk
    "preempted": Row(
        answer="again",
        counted=False,
        budget="preemptions_max",
        changes="nothing",
        why="another user needed the slot: nothing is wrong with site or package",
    ),
    "wall-time": Row(
        answer="where-more-time",
        counted=True,
        budget="",
        changes="only where more time is left than it had; if its own limit ended it, it is given up, unless it sets a number of attempts",
        why="with as little time as before it would be cut off again",
    ),
    "out-of-memory": Row(
        answer="more-memory",
        counted=True,
        budget="memory_doublings_max",
        changes="twice the memory it had",
        why="with the same memory it would die again; unlimited growth is a leak",
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
        why="never twice with the same limit: it would hang until then again",
    ),
    "credential-expired": Row(
        answer="elsewhere",
        counted=False,
        budget="platform_failures_max",
        cause="credential-expired",
        changes="sites where it happened are avoided",
        why="the agent's token has expired, so it can transfer nothing; an agent at another site has its own",
    ),
}
"""The default row of each reason."""

_BY_NAME: dict[str, Row] = {str(reason): row for reason, row in RULES.items()}
_UNKNOWN: Reason = "application-error"


def row_of(reason: str) -> tuple[str, Row]:
    """The row of a reason, and its name; a reason that is not in the table counts as an application error."""
    return (reason, _BY_NAME[reason]) if reason in _BY_NAME else (_UNKNOWN, RULES[_UNKNOWN])
