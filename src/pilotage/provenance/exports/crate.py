"""Writes a Workflow Run RO-Crate: the Provenance Run Crate profile 0.5, on RO-Crate 1.1, with its context inline.

The definition of the job is the workflow, a package of the definition a step, a package of the job a ControlAction, and an
attempt a CreateAction. The crate carries the record and its parts, so that `import` puts them back into a storage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from pilotage.model.jobs.definition import LANGUAGE_VERSION, ParameterType
from pilotage.model.jobs.graph import depths, followers
from pilotage.model.records import Annotation, PartKind, RecordNode, RecordPart, encoded_record
from pilotage.provenance.exports.shared import (
    PROGRAM,
    NotExportable,
    Section,
    command_line,
    fault_of,
    file_uri,
    is_below,
    iso_time,
    job_fault,
    ran,
    stated_properties,
)
from pilotage.provenance.history import AttemptHistory, FileUse, History, PackageHistory, ReadPart

METADATA = "ro-crate-metadata.json"
WORKFLOW = "pilotage.json"
RECORD = "record/record.json"
ANNOTATIONS = "record/annotations.jsonl"
PARTS = "record/parts/"
FILES = "files/"
RECORD_FORMAT = f"{PROGRAM}#record-1"
"""What the file of the record conforms to: by this `import` finds it."""
LICENSE_TAG = "license"
"""A tag of the job that names the licence of its crate."""

_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/provenance/0.5": ("Provenance Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_SCHEMA_TERMS = (
    "ComputerLanguage ControlAction CreateAction CreativeWork Dataset HowTo HowToStep OrganizeAction Person Place "
    "PropertyValue SoftwareApplication SoftwareSourceCode about actionStatus additionalProperty additionalType agent "
    "alternateName author contentSize datePublished defaultValue description encodingFormat endTime error exampleOfWork "
    "hasPart instrument license location mainEntity mentions name object position programmingLanguage propertyID result "
    "softwareRequirements softwareVersion startTime step unitCode value version workExample"
)
_WORKFLOW_RUN_TERMS = "ContainerImage containerImage environment resourceUsage sha256"
CONTEXT: dict[str, str] = {
    **{term: f"http://schema.org/{term}" for term in _SCHEMA_TERMS.split()},
    **{term: f"https://w3id.org/ro/terms/workflow-run#{term}" for term in _WORKFLOW_RUN_TERMS.split()},
    "File": "http://schema.org/MediaObject",
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
}
"""The terms of a crate, so that nothing must be fetched to read it."""
_TYPES: dict[ParameterType, str] = {"text": "Text", "integer": "Integer", "number": "Number", "yes-no": "Boolean"}
_USAGES = (
    ("cpu_seconds", "SEC"),
    ("cpu_user_seconds", "SEC"),
    ("cpu_system_seconds", "SEC"),
    ("peak_memory_bytes", "BYTE"),
    ("read_bytes", "BYTE"),
    ("written_bytes", "BYTE"),
)

_FORMATS: dict[PartKind, str] = {
    "life-log": "application/x-ndjson",
    "log": "application/x-ndjson",
    "definition": "application/json",
    "list": "application/json",
}

Entity = dict[str, Any]
Reference = dict[str, str]

_encode = msgspec.json.Encoder().encode


class CrateFolder(Protocol):
    """Where a crate is written: a folder, or an archive."""

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file; each path is written once."""
        ...


CopyFile = Callable[[FileUse, str], bool]
"""Copies a file of the job that is not in the record into the crate, under a path; false if it is not there as recorded."""


def write_crate(
    history: History,
    folder: CrateFolder,
    *,
    read_part: ReadPart,
    annotations: Sequence[Annotation] = (),
    copy_file: CopyFile | None = None,
) -> None:
    """Write the crate of a job, with the files that its record has; with `copy_file` also the others, as far as they are there.

    Raises `NotExportable`, and what `read_part` does.
    """
    if history.job.definition is None:
        raise NotExportable(
            "the job has no definition, which a crate needs as its workflow",
            subject=f"job {history.job.id}",
            next_step="it was run by another scheduler; export it as prov-json or openlineage",
        )
    # Where it stands in a book says nothing elsewhere.
    record = encoded_record(msgspec.structs.replace(history.record, book_position=0))
    extra = [each.part for each in annotations if each.part is not None]
    kept = {part.sha256: part for part in (*history.record.parts, *extra)}
    for sha256 in kept:
        folder.write(f"{PARTS}{sha256}", [read_part(sha256)])
    folder.write(RECORD, [record])
    folder.write(WORKFLOW, [history.job.definition_text.encode()])
    if annotations:
        folder.write(ANNOTATIONS, (_encode(each) + b"\n" for each in annotations))

    def put_file(use: FileUse, path: str) -> bool:
        if use.sha256 in kept:
            folder.write(path, [read_part(use.sha256)])
            return True
        return copy_file is not None and copy_file(use, path)

    graph = _Graph(history, kept, record, annotations=annotations, put_file=put_file)
    entities = Section()  # an archive takes one file after the other, and files are copied meanwhile
    for entity in graph.entities():
        entities.add(_encode(entity))
    folder.write(METADATA, _document(entities))


def _document(entities: Section) -> Iterator[bytes]:
    """The metadata as JSON, an entity on each line."""
    yield b'{"@context":' + _encode(CONTEXT) + b',\n"@graph":['
    yield from entities.pieces()
    yield b"\n]}\n"


def _to(identifier: str) -> Reference:
    return {"@id": identifier}


def _all(**properties: Iterable[str]) -> Entity:
    """References to several entities: one alone is no list, and none is left out."""
    found: Entity = {}
    for name, identifiers in properties.items():
        references = [_to(each) for each in identifiers]
        if references:
            found[name] = references if len(references) > 1 else references[0]
    return found


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """A package of the definition: what packages of an iteration share."""

    number: int
    name: str
    program: str
    software: tuple[str, ...]
    parameters: tuple[str, ...]


class _Graph:
    """The entities of one crate; each is made once, and what refers to all comes last."""

    def __init__(
        self,
        history: History,
        kept: dict[str, RecordPart],
        record: bytes,
        *,
        annotations: Sequence[Annotation],
        put_file: CopyFile,
    ) -> None:
        self._history = history
        self._kept = kept
        self._record = record
        self._annotations = annotations
        self._put_file = put_file
        self._files: dict[tuple[str, str | None], str] = {}  # name and checksum → identifier
        self._identifiers: set[str] = set()
        self._parts: list[str] = [WORKFLOW, RECORD, *(f"{PARTS}{sha256}" for sha256 in kept)]
        self._steps: dict[str, _Step] = {}
        self._step_edges: set[tuple[int, int]] = set()
        self._step_of: dict[str, int] = {}  # by package
        self._attempts: list[str] = []
        self._packages: list[str] = []
        self._images: set[tuple[str, str]] = set()
        self._outside: dict[str, None] = {}
        self._made: dict[str, None] = {}
        self._read: set[str] = set()

    def entities(self) -> Iterator[Entity]:
        """Every entity, the descriptor first."""
        yield {
            "@id": METADATA,
            "@type": "CreativeWork",
            "about": _to("./"),
            "conformsTo": [
                _to("https://w3id.org/ro/crate/1.1"),
                _to("https://w3id.org/workflowhub/workflow-ro-crate/1.0"),
            ],
        }
        for identifier, (name, version) in _PROFILES.items():
            yield {"@id": identifier, "@type": "CreativeWork", "name": name, "version": version}
        yield {"@id": "#owner", "@type": "Person", "name": self._history.job.owner}
        yield {"@id": PROGRAM, "@type": "SoftwareApplication", "name": "pilotage"}
        for node in self._history.nodes:
            yield from _node(node)
        for package in self._history.packages():
            yield from self._package(package)
        if not self._attempts:
            raise NotExportable(
                "nothing of the job ran: a crate describes what ran",
                subject=f"job {self._history.job.id}",
                next_step="export it as prov-json",
            )
        yield from self._workflow()
        yield from self._record_files()
        yield from self._runs()
        yield self._root()

    # --- packages and their attempts

    def _package(self, package: PackageHistory) -> Iterator[Entity]:
        attempts = ran(package)
        if not attempts:
            return
        step = self._step(package)
        parameters = [f"#parameter-{package.id}-{quote(name)}" for name in package.parameters]
        for identifier, (name, value) in zip(parameters, package.parameters.items(), strict=True):
            yield {
                "@id": identifier,
                "@type": "PropertyValue",
                "name": name,
                "value": value if isinstance(value, str) else list(value),
                "exampleOfWork": _to(f"#formal-{step.number}-{quote(name)}"),
            }
        consumed: list[str] = []
        for use in package.consumed:
            yield from self._file(use)
            consumed.append(self._files[use.name, use.sha256])
            if use.source != "package":
                self._outside[consumed[-1]] = None
        self._read.update(consumed)
        produced: list[str] = []
        for use in package.produced:
            yield from self._file(use)
            produced.append(self._files[use.name, use.sha256])
        self._made.update(dict.fromkeys(produced))
        given = (*consumed, *parameters)
        yield from self._environment(package)
        for attempt in attempts:
            yield from self._attempt(package, attempt, step, given, produced)
        action: Entity = {
            "@id": f"#package-{package.id}",
            "@type": "ControlAction",
            "name": f"{package.name} ({package.id})",
            "instrument": _to(f"#step-{step.number}"),
            **_all(object=(f"#attempt-{package.id}-{attempt.number}" for attempt in attempts)),
            **_status(package.state if package.granted is None else ""),
        }
        self._packages.append(action["@id"])
        yield action

    def _step(self, package: PackageHistory) -> _Step:
        step = self._steps.get(package.step)
        if step is None:
            program = package.commands[0].argv[0] if package.commands and package.commands[0].argv else package.activity
            step = self._steps[package.step] = _Step(
                number=len(self._steps) + 1,
                name=package.activity or package.stage,
                program=program,
                software=tuple(dict.fromkeys(each.software for each in package.commands if each.software)),
                parameters=tuple(package.parameters),
            )
        self._step_of[package.id] = step.number - 1
        for before in package.after:
            if before in self._step_of and self._step_of[before] != step.number - 1:
                self._step_edges.add((self._step_of[before], step.number - 1))
        return step

    def _attempt(
        self,
        package: PackageHistory,
        attempt: AttemptHistory,
        step: _Step,
        given: Sequence[str],
        produced: Sequence[str],
    ) -> Iterator[Entity]:
        identifier = f"#attempt-{package.id}-{attempt.number}"
        self._attempts.append(identifier)
        usages = []
        for name, unit in _USAGES:
            value = getattr(attempt.measured, name)
            if value is not None:
                usages.append(f"{identifier}-{name}")
                yield {
                    "@id": f"{identifier}-{name}",
                    "@type": "PropertyValue",
                    "name": name,
                    "propertyID": f"{PROGRAM}#{name}",
                    "unitCode": f"https://qudt.org/vocab/unit/{unit}",
                    "value": str(value),
                }
        found: Entity = {
            "@id": identifier,
            "@type": "CreateAction",
            "name": f"Attempt {attempt.number} at {package.name} ({package.id})",
            "description": command_line(package.commands) or attempt.message or package.activity,
            "instrument": _to(f"#tool-{step.number}"),
            "agent": _to("#owner"),
            **_all(object=given, result=produced if attempt.number == package.granted_attempt else ()),
            **_times(attempt.started_at, attempt.ended_at),
            **_status(fault_of(attempt)),
        }
        found |= _all(resourceUsage=usages)
        if attempt.node is not None and any(node.node == attempt.node for node in self._history.nodes):
            found["location"] = _to(_node_id(attempt.node))
        if package.container:
            image = package.container, attempt.container_digest or ""
            yield from self._image(*image)
            found["containerImage"] = _to(_image_id(*image))
        if attempt.custom is not None:
            found["additionalProperty"] = _to(f"{identifier}-custom")
            yield {
                "@id": f"{identifier}-custom",
                "@type": "PropertyValue",
                "name": "what the provenance script of the document printed",
                "value": attempt.custom,
            }
        exported = sorted({name for command in package.commands for name in command.environment})
        yield found | _all(environment=(f"#variable-{package.id}-{quote(name)}" for name in exported))

    def _environment(self, package: PackageHistory) -> Iterator[Entity]:
        variables = {name: value for command in package.commands for name, value in command.environment.items()}
        for name, value in sorted(variables.items()):
            identifier = f"#variable-{package.id}-{quote(name)}"
            yield {"@id": identifier, "@type": "PropertyValue", "name": name, "value": value}

    def _image(self, image: str, digest: str) -> Iterator[Entity]:
        if (image, digest) in self._images:
            return
        self._images.add((image, digest))
        kind = "SIFImage" if image.endswith(".sif") else "DockerImage"
        found: Entity = {
            "@id": _image_id(image, digest),
            "@type": "ContainerImage",
            "name": image,
            "additionalType": _to(f"https://w3id.org/ro/terms/workflow-run#{kind}"),
        }
        if digest.startswith("sha256:"):
            found["sha256"] = digest.removeprefix("sha256:")
        yield found

    # --- files

    def _file(self, use: FileUse) -> Iterator[Entity]:
        """The entity of a file, unless it is there already."""
        key = use.name, use.sha256
        if key in self._files:
            return
        identifier = file_uri(self._history, use)
        path = f"{FILES}{use.name}"
        if path not in self._identifiers and is_below(use.name) and self._put_file(use, path):
            self._identifiers.add(path)
            identifier = quote(path)
        elif identifier in self._identifiers:
            identifier = f"{identifier}#{use.sha256 or 'unknown'}"  # another content of the same name
        self._identifiers.add(identifier)
        self._files[key] = identifier
        self._parts.append(identifier)
        yield _file(identifier, use.name, size_bytes=use.size_bytes, sha256=use.sha256)

    def _record_files(self) -> Iterator[Entity]:
        """The record and its parts."""
        history = self._history
        yield {"@id": RECORD_FORMAT, "@type": "CreativeWork", "name": "Record of a job of pilotage", "version": "1"}
        yield {
            **_file(RECORD, "record", size_bytes=len(self._record), sha256=hashlib.sha256(self._record).hexdigest()),
            "encodingFormat": "application/json",
            "conformsTo": _to(RECORD_FORMAT),
            "about": _to("#run"),
        }
        names: dict[str, list[str]] = {}
        for name, captured in history.job.captured.items():
            names.setdefault(captured.sha256, []).append(name)
        for sha256, part in self._kept.items():
            name, *others = names.get(sha256) or [part.name]
            found = _file(f"{PARTS}{sha256}", name, size_bytes=part.size_bytes, sha256=sha256)
            found["description"] = f"part of the record: {part.kind}"
            if part.kind in _FORMATS:
                found["encodingFormat"] = _FORMATS[part.kind]
            if others:
                found["alternateName"] = others
            if part.kind in ("life-log", "log"):
                found["about"] = _to("#run")
            yield found
        if self._annotations:
            self._parts.append(ANNOTATIONS)
            yield {"@id": ANNOTATIONS, "@type": "File", "name": "annotations", "about": _to("#run")}

    # --- the workflow, its runs, and the crate itself

    def _workflow(self) -> Iterator[Entity]:
        job, definition = self._history.job, self._history.job.definition
        assert definition is not None
        steps = list(self._steps.values())
        positions = depths(followers(len(steps), sorted(self._step_edges)))
        yield {
            "@id": WORKFLOW,
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
            "name": job.name,
            "description": job.description or f"the definition of the job {job.name}",
            "encodingFormat": "application/json",
            "contentSize": str(len(job.definition_text.encode())),
            "sha256": hashlib.sha256(job.definition_text.encode()).hexdigest(),
            "programmingLanguage": _to(f"{PROGRAM}#document"),
            **_all(
                hasPart=(f"#tool-{step.number}" for step in steps),
                step=(f"#step-{step.number}" for step in steps),
                input=(f"#formal-{quote(name)}" for name in job.parameters),
            ),
        }
        yield {
            "@id": f"{PROGRAM}#document",
            "@type": "ComputerLanguage",
            "name": "pilotage document",
            "version": str(LANGUAGE_VERSION),
        }
        for name, value in job.parameters.items():
            declared = definition.parameters[name]
            formal: Entity = {
                "@id": f"#formal-{quote(name)}",
                "@type": "FormalParameter",
                "name": name,
                "additionalType": _TYPES[declared.type],
                "workExample": _to(f"#parameter-{quote(name)}"),
            }
            if declared.default is not None:
                formal["defaultValue"] = declared.default
            if declared.description:
                formal["description"] = declared.description
            yield formal
            yield {
                "@id": f"#parameter-{quote(name)}",
                "@type": "PropertyValue",
                "name": name,
                "value": value,
                "exampleOfWork": _to(f"#formal-{quote(name)}"),
            }
        software: dict[str, None] = {}
        for step, position in zip(steps, positions, strict=True):
            software.update(dict.fromkeys(step.software))
            yield {
                "@id": f"#step-{step.number}",
                "@type": "HowToStep",
                "name": step.name,
                "position": str(position + 1),
                "workExample": _to(f"#tool-{step.number}"),
            }
            yield {
                "@id": f"#tool-{step.number}",
                "@type": "SoftwareApplication",
                "name": step.name,
                "description": f"runs {step.program}",
                **_all(
                    input=(f"#formal-{step.number}-{quote(name)}" for name in step.parameters),
                    softwareRequirements=map(_software_id, step.software),
                ),
            }
            for name in step.parameters:
                yield {
                    "@id": f"#formal-{step.number}-{quote(name)}",
                    "@type": "FormalParameter",
                    "name": name,
                    "additionalType": "Text",
                }
        for each in software:
            name, _, version = each.partition("@")
            found = {"@id": _software_id(each), "@type": "SoftwareApplication", "name": name}
            yield found | ({"softwareVersion": version} if version else {})

    def _runs(self) -> Iterator[Entity]:
        job = self._history.job
        status, stated = _status(job_fault(job)), stated_properties(job, self._annotations)
        outputs = [each for each in self._made if each not in self._read] or list(self._made)
        yield {
            "@id": "#run",
            "@type": "CreateAction",
            "name": f"Job {job.id}",
            "description": job.description or f"a run of {job.name}",
            "instrument": _to(WORKFLOW),
            "agent": _to("#owner"),
            **_all(object=(*self._outside, *(f"#parameter-{quote(name)}" for name in job.parameters)), result=outputs),
            **_all(additionalProperty=(f"#tag-{quote(name)}" for name in stated)),
            **_times(job.started_at, job.finished_at or job.ended_at),
            **status,
        }
        for name, value in stated.items():
            yield {"@id": f"#tag-{quote(name)}", "@type": "PropertyValue", "name": name, "value": value}
        yield {
            "@id": "#engine-run",
            "@type": "OrganizeAction",
            "name": f"Run of pilotage for job {job.id}",
            "instrument": _to(PROGRAM),
            "agent": _to("#owner"),
            **_all(object=self._packages, result=["#run"]),
            **_times(job.submitted_at, job.ended_at),
            **status,
        }

    def _root(self) -> Entity:
        job, record = self._history.job, self._history.record
        licence = stated_properties(job, self._annotations).get(LICENSE_TAG)
        return {
            "@id": "./",
            "@type": "Dataset",
            "name": f"{job.name}, job {job.id}",
            "description": job.description or f"A run of {job.name} by {job.owner}",
            "datePublished": iso_time(record.made_at),
            "license": licence or f"No licence is stated: ask {job.owner} before using it.",
            "author": _to("#owner"),
            "mainEntity": _to(WORKFLOW),
            **_all(
                conformsTo=_PROFILES,
                hasPart=self._parts,
                mentions=("#run", "#engine-run", *self._attempts),
            ),
        }


def _file(identifier: str, name: str, *, size_bytes: int | None, sha256: str | None) -> Entity:
    found: Entity = {"@id": identifier, "@type": "File", "name": name}
    if size_bytes is not None:
        found["contentSize"] = str(size_bytes)
    if sha256 is not None:
        found["sha256"] = sha256
    return found


def _node_id(node: str) -> str:
    return f"#node-{quote(node)}"


def _image_id(image: str, digest: str) -> str:
    return f"#image-{quote(image, safe='')}" + (f"-{quote(digest, safe='')}" if digest else "")


def _software_id(software: str) -> str:
    return f"#software-{quote(software, safe='')}"


def _node(node: RecordNode) -> Iterator[Entity]:
    stated: dict[str, str] = {}
    for name, value in msgspec.to_builtins(node).items():
        if isinstance(value, dict):
            stated |= {f"{name}.{inner}": str(each) for inner, each in value.items()}
        elif name != "node":
            stated[name] = str(value)
    identifier = _node_id(node.node)
    yield {
        "@id": identifier,
        "@type": "Place",
        "name": node.node,
        **_all(additionalProperty=(f"{identifier}-{quote(name)}" for name in stated)),
    }
    for name, value in stated.items():
        yield {"@id": f"{identifier}-{quote(name)}", "@type": "PropertyValue", "name": name, "value": value}


def _times(start: float | None, end: float | None) -> Entity:
    found: Entity = {}
    if start is not None:
        found["startTime"] = iso_time(start)
    if end is not None:
        found["endTime"] = iso_time(end)
    return found


def _status(fault: str) -> Entity:
    if not fault:
        return {"actionStatus": "http://schema.org/CompletedActionStatus"}
    return {"actionStatus": "http://schema.org/FailedActionStatus", "error": fault}
