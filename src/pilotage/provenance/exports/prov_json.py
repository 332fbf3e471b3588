"""Writes W3C PROV-JSON: attempts are activities, files are entities, the owner and pilotage are agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from pilotage.provenance.exports.shared import (
    PROGRAM,
    Section,
    command_line,
    fault_of,
    iso_time,
    job_fault,
    ran,
    run_uuid,
)
from pilotage.provenance.history import AttemptHistory, FileUse, History, PackageHistory

Values = dict[str, Any]

_SECTIONS = (
    "entity",
    "activity",
    "agent",
    "used",
    "wasGeneratedBy",
    "wasAssociatedWith",
    "wasInformedBy",
    "actedOnBehalfOf",
)
_JOB, _OWNER, _SOFTWARE, _PLAN = "run:job", "run:owner", "pilotage:program", "run:definition"
_encode = msgspec.json.Encoder().encode


def prov_json(history: History) -> Iterator[bytes]:
    """The document, in pieces."""
    sections = _Sections(history)
    sections.fill()
    job = history.job.id
    prefixes = {
        "pilotage": f"{PROGRAM}#",
        "file": f"arcp://uuid,{run_uuid(job)}/",
        "run": f"urn:uuid:{run_uuid(job)}#",
        "xsd": "http://www.w3.org/2001/XMLSchema#",
    }
    yield b'{"prefix":' + _encode(prefixes)
    for name in _SECTIONS:
        yield b',\n"%s":{' % name.encode()
        yield from sections.by_name[name].pieces()
        yield b"}"
    yield b"}\n"


class _Sections:
    """The members of one document."""

    def __init__(self, history: History) -> None:
        self.by_name = {name: Section() for name in _SECTIONS}
        self._history = history
        self._files: dict[tuple[str, str | None], str] = {}
        self._identifiers: set[str] = set()
        self._granted: dict[str, str] = {}  # package → its granted attempt
        self._later: list[tuple[str, str]] = []  # attempts, and packages before them that are not known yet

    def _add(self, section: str, identifier: str, values: Values) -> None:
        self.by_name[section].add(_encode(identifier) + b":" + _encode(values))

    def _relate(self, section: str, values: Values) -> None:
        self._add(section, f"_:{section}{self.by_name[section].count + 1}", values)

    def fill(self) -> None:
        """Add everything."""
        job = self._history.job
        self._add("agent", _OWNER, {"prov:type": _type("prov:Person"), "prov:label": job.owner})
        self._add("agent", _SOFTWARE, {"prov:type": _type("prov:SoftwareAgent"), "prov:label": "pilotage"})
        self._relate("actedOnBehalfOf", {"prov:delegate": _SOFTWARE, "prov:responsible": _OWNER})
        if job.definition is not None:
            plan = {"prov:type": _type("prov:Plan"), "prov:label": f"definition of {job.name}"}
            self._add("entity", _PLAN, plan | {"pilotage:format": job.dialect, "pilotage:document": job.document})
        activity: Values = {"prov:label": f"job {job.id}", **_times(job.started_at, job.finished_at)}
        activity |= {f"pilotage:tag.{name}": value for name, value in job.tags.items()}
        activity |= {f"pilotage:parameter.{name}": value for name, value in job.parameters.items()}
        activity |= {"pilotage:state": job.state, **({"pilotage:fault": fault} if (fault := job_fault(job)) else {})}
        self._add("activity", _JOB, activity)
        self._associate(_JOB)
        for package in self._history.packages():
            self._package(package)
        for attempt, before in self._later:
            if before in self._granted:
                self._relate("wasInformedBy", {"prov:informed": attempt, "prov:informant": self._granted[before]})

    def _package(self, package: PackageHistory) -> None:
        attempts = ran(package)
        for attempt in attempts:
            identifier = f"run:attempt-{package.id}-{attempt.number}"
            self._add("activity", identifier, self._activity(package, attempt))
            self._associate(identifier)
            for use in package.consumed:
                self._relate("used", {"prov:activity": identifier, "prov:entity": self._file(use)})
            if attempt.number == package.granted_attempt:
                self._granted[package.id] = identifier
                for use in package.produced:
                    generated: Values = {"prov:entity": self._file(use), "prov:activity": identifier}
                    if attempt.ended_at is not None:
                        generated["prov:time"] = iso_time(attempt.ended_at)
                    self._relate("wasGeneratedBy", generated)
            for before in package.after:
                if before in self._granted:
                    related = {"prov:informed": identifier, "prov:informant": self._granted[before]}
                    self._relate("wasInformedBy", related)
                else:
                    self._later.append((identifier, before))

    def _activity(self, package: PackageHistory, attempt: AttemptHistory) -> Values:
        measured = msgspec.to_builtins(attempt.measured)
        found: Values = {
            "prov:label": f"attempt {attempt.number} at {package.name or package.id}",
            **_times(attempt.started_at, attempt.ended_at),
            "pilotage:job": self._history.job.id,
            "pilotage:package": package.id,
            "pilotage:activity": package.activity,
            "pilotage:command": command_line(package.commands),
            "pilotage:site": attempt.site,
            "prov:location": attempt.node,
            "pilotage:granted": attempt.granted,
            "pilotage:fault": fault_of(attempt) or None,
            "pilotage:exit_status": attempt.exit_status,
            "pilotage:container": package.container,
            "pilotage:container_digest": attempt.container_digest,
            "pilotage:custom": attempt.custom,
        }
        found |= {f"pilotage:{name}": value for name, value in measured.items()}
        found |= {f"pilotage:parameter.{name}": value for name, value in package.parameters.items()}
        return {name: _value(value) for name, value in found.items() if value not in (None, "")}

    def _associate(self, activity: str) -> None:
        plan = {"prov:plan": _PLAN} if self._history.job.definition is not None else {}
        self._relate("wasAssociatedWith", {"prov:activity": activity, "prov:agent": _SOFTWARE, **plan})

    def _file(self, use: FileUse) -> str:
        """The identifier of a file, which is added once."""
        key = use.name, use.sha256
        identifier = self._files.get(key)
        if identifier is None:
            identifier = f"file:{quote(use.name)}"
            if identifier in self._identifiers:
                identifier += f"?sha256={use.sha256}"  # another content of the same name
            self._identifiers.add(identifier)
            self._files[key] = identifier
            found = {
                "prov:label": use.name,
                "pilotage:sha256": use.sha256,
                "pilotage:size_bytes": use.size_bytes,
                "pilotage:locator": use.locator or None,
            }
            self._add("entity", identifier, {name: _value(value) for name, value in found.items() if value is not None})
        return identifier


def _type(name: str) -> Values:
    return {"$": name, "type": "prov:QUALIFIED_NAME"}


def _value(value: Any) -> Any:
    """A literal with the datatype that JSON alone does not tell."""
    if isinstance(value, bool):
        return {"$": str(value).lower(), "type": "xsd:boolean"}
    if isinstance(value, int):
        return {"$": str(value), "type": "xsd:long"}
    if isinstance(value, float):
        return {"$": repr(value), "type": "xsd:double"}
    return list(value) if isinstance(value, tuple) else value


def _times(start: float | None, end: float | None) -> Values:
    found: Values = {}
    if start is not None:
        found["prov:startTime"] = iso_time(start)
    if end is not None:
        found["prov:endTime"] = iso_time(end)
    return found
