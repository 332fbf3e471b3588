"""What of a node's submit description has no meaning here, and which values nothing uses."""

from __future__ import annotations

from pilotage.language.dagman.nodes import DagNode
from pilotage.language.dagman.submit import Origin, SubmitJob
from pilotage.language.dagman.vocabulary import (
    HARMLESS,
    LOST_FAMILIES,
    MEANT,
    OTHER_LOSSES,
    SEARCHED,
    SUBMIT_LOSSES,
    UNKNOWN,
    WRAPPED,
)
from pilotage.language.losses import Losses
from pilotage.language.text.tree import NOWHERE, Report

_OURS = frozenset({"pilotage_activity", "pilotage_name"})


class Reviewer:
    """Looks through the descriptions of all nodes; what several nodes share is told once."""

    def __init__(self, report: Report, losses: Losses) -> None:
        """Tell a report and a list of losses."""
        self._report = report
        self._losses = losses
        self._noted: set[tuple[str, str, Origin]] = set()

    def review(self, node: DagNode, job: SubmitJob) -> None:
        """List every command of a description that is not honoured, and warn of values that nothing uses."""
        for name, origin in job.origins.items():
            if name not in MEANT and name not in (SEARCHED, WRAPPED):
                self._command(node, job, name, origin)
        where = job.origin("executable")
        for keyword, written in job.notes.losses.items():
            self._lose(keyword, f"{written}: {OTHER_LOSSES.get(keyword, '')}", where)
        for fault in job.notes.faults:
            if self._is_new("bad-macro", fault, where):
                self._report.error("bad-macro", fault, where.mark, file=where.file)
        for name in job.notes.undefined:
            self._undefined(name, job.mentions.get(name.lower(), where))

    def _command(self, node: DagNode, job: SubmitJob, name: str, origin: Origin) -> None:
        if name.startswith("my."):
            self._lose("+ATTRIBUTE", f"{name[3:]}: {OTHER_LOSSES['+ATTRIBUTE']}", origin)
        elif name == "transfer_executable" and job.text("executable").startswith("/"):
            return
        elif name in SUBMIT_LOSSES:
            if job.text(name).lower() not in HARMLESS.get(name, ()):
                self._lose(name, SUBMIT_LOSSES[name], origin)
        elif name.startswith("request_"):
            self._lose("request_…", f"{name}: {SUBMIT_LOSSES['request_…']}", origin)
        elif name not in job.notes.used:
            self._unused(node, name, origin)

    def review_unread(self, node: DagNode) -> None:
        """List the values of a node that has no submit description which could use them."""
        for name, variable in node.variables.items():
            if name not in _OURS:
                reason = f"{name}: the node has no submit description that could use it"
                self._lose("VARS", reason, Origin(variable.file, variable.mark))

    def _unused(self, node: DagNode, name: str, origin: Origin) -> None:
        family = next((prefix for prefix in LOST_FAMILIES if name.startswith(prefix)), "")
        if family:
            self._lose(f"{family}…", f"{name}: {SUBMIT_LOSSES[f'{family}…']}", origin)
            return
        given = any(name == key.lower() and origin.mark == v.mark for key, v in node.variables.items())
        keyword = "VARS" if given else UNKNOWN
        self._lose(keyword, f"{name}: {OTHER_LOSSES[keyword]}", origin)
        message = f"nothing uses {name!r}; a misspelt command?"
        if self._is_new("unused-variable", message, origin):
            self._report.warn("unused-variable", message, origin.mark, file=origin.file)

    def _undefined(self, name: str, origin: Origin) -> None:
        message = f"$({name}) is set nowhere and counts as empty"
        if self._is_new("undefined-macro", message, Origin(origin.file, NOWHERE)):
            self._report.warn("undefined-macro", message, origin.mark, file=origin.file)

    def _lose(self, keyword: str, reason: str, origin: Origin) -> None:
        self._losses.add(keyword, reason, file=origin.file, mark=origin.mark)

    def _is_new(self, code: str, message: str, origin: Origin) -> bool:
        known = len(self._noted)
        self._noted.add((code, message, origin))
        return len(self._noted) > known
