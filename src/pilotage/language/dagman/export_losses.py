"""What of a definition DAGMan has no word for; the fields are listed with their reasons, and looked for by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from pilotage.language.losses import Losses
from pilotage.model.definition import Binary, Container, Definition, InputFile, OutputFile, Package, Value

_TARGET = "DAGMan has no word for it"
_ESTIMATE = "DAGMan takes no estimates"
_MODEL = "submit descriptions say this in ClassAd expressions of the pool"

FIELD_LOSSES: dict[type[Value], dict[str, str]] = {
    Definition: {
        "id": _TARGET,
        "owner": "the owner is whoever submits",
        "created": _TARGET,
        "description": _TARGET,
        "priority": "give it to condor_submit_dag with -priority",
        "hold": _TARGET,
    },
    Package: {
        "node_restriction": _MODEL,
        "platform": _MODEL,
        "executor": "the pool that is submitted to runs everything",
        "job_type": "the command of this type is written out",
        "failure_patterns": _TARGET,
        "progress": _TARGET,
        "side_effects": "HTCondor never runs two copies of a job",
        "startup_parameters": "they are written out as arguments",
    },
    Binary: {
        "software": "its command is written out",
        "shell": "it is written out as a command of /bin/sh",
        "data_handling": _MODEL,
        "cpu_percent": _ESTIMATE,
        "work_bytes": _ESTIMATE,
        "run_time_seconds": _ESTIMATE,
    },
    InputFile: {"size_bytes": _ESTIMATE, "disposition": _TARGET},
    OutputFile: {"size_bytes": _ESTIMATE, "dispositions": _TARGET, "locator": _TARGET, "replicas": _TARGET},
    Container: {"engine": "the pool chooses what starts the image"},
}

OTHER_EXPORT_LOSSES: dict[str, str] = {
    "acquisition": "files are brought by HTCondor; `prefetch` has no counterpart",
    "activity": "a name that cannot stand in a DAG file",
    "binaries": "several binaries become one script",
    "category": "a name that cannot stand in a DAG file",
    "cores": "parts of a core are rounded up",
    "defer_seconds": "parts of a second are rounded up, a missing one of the two numbers means none",
    "early_start": "DAGMan starts a node when its parents are done",
    "each": "a stage whose list is not known yet, and the exact order behind it",
    "environment": "settings of pilotage for one package",
    "inputs": "a file that is not known yet, or whose name cannot stand in a list",
    "locator": "HTCondor names a file after its path or URL",
    "memory": "sizes are rounded up to kilobytes",
    "name": "a name that cannot stand in a DAG file",
    "outputs": "a pattern or an expression, a name that cannot stand in a list, or a file that is an input too",
    "retry": "rules other than one exit code that gives up, or without a number of attempts",
    "role": "a DAG has one FINAL and one PROVISIONER node; these and SERVICE nodes have no edges",
    "scratch": "sizes are rounded up to kilobytes",
    "scripts": "an argument with white space",
    "subjob": "only a DAG file can be a SUBDAG",
    "wall_time": "parts of a second are rounded up",
}

DOCUMENTED_EXPORT_LOSSES = frozenset(OTHER_EXPORT_LOSSES) | {
    name for fields in FIELD_LOSSES.values() for name in fields
}
_HARMLESS: Mapping[tuple[type[Value], str], frozenset[object]] = {
    (Container, "engine"): frozenset({"docker"}),
}


@cache
def _watched(kind: type[Value]) -> tuple[tuple[str, object, str], ...]:
    """The fields of one type that have no counterpart, with their defaults and reasons."""
    known = FIELD_LOSSES.get(kind, {})
    return tuple((f.name, f.default, known[f.name]) for f in msgspec.structs.fields(kind) if f.name in known)


def list_fields(value: Value, losses: Losses, *, place: str) -> None:
    """List every field of one value that is set and has no counterpart."""
    for name, default, reason in _watched(type(value)):
        found = getattr(value, name)
        if found != default and found not in _HARMLESS.get((type(value), name), ()):
            losses.add(name, reason, file=place)
