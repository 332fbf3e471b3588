"""Answers questions about exports with public programs; it is run by the environment in which they are installed.

A question is a line of JSON on stdin, its answer a line of JSON on stdout:

- `crate`: validates a crate, a folder or an archive, or its metadata with a term removed, against the Provenance Run Crate profile
- `entities`: the types of the entities that the library of RO-Crate reads from a folder
- `prov`: the records of a PROV-JSON document by type, and whether it is the same when written and read again
- `openlineage`: events, made again from the classes of the OpenLineage client
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

PROFILE = "provenance-run-crate"


def crate(path: str, without: list[str] | None = None, severity: str = "REQUIRED") -> dict[str, Any]:
    """Whether a crate conforms, and why not."""
    services = importlib.import_module("rocrate_validator.services")
    settings = {"profile_identifier": PROFILE, "requirement_severity": severity, "offline": True}
    if without is None:
        found = services.validate({**settings, "rocrate_uri": path})
    else:
        metadata = json.loads(Path(path, "ro-crate-metadata.json").read_text(encoding="utf-8"))
        entity = next(each for each in metadata["@graph"] if each["@id"] == without[0])
        del entity[without[1]]
        found = services.validate_metadata_as_dict(metadata, {**settings, "package_root": path})
    return {"conforms": found.passed(), "issues": [issue.message for issue in found.get_issues()]}


def entities(path: str) -> dict[str, int]:
    """The types of entities."""
    library = importlib.import_module("rocrate.rocrate")
    found: collections.Counter[str] = collections.Counter()
    for entity in library.ROCrate(path).get_entities():
        found.update(entity.type if isinstance(entity.type, list) else [entity.type])
    return found


def prov(path: str) -> dict[str, Any]:
    """The records of a document, by type."""
    model = importlib.import_module("prov.model")
    document = model.ProvDocument.deserialize(path, format="json")
    again = model.ProvDocument.deserialize(content=document.serialize(format="json"), format="json")
    counts = collections.Counter(record.get_type().localpart for record in document.get_records())
    return {"counts": counts, "same": document == again}


def openlineage(path: str) -> list[dict[str, Any]]:
    """The events, made again by the client from what ours say."""
    base = importlib.import_module("openlineage.client.generated.base")
    facets = importlib.import_module("openlineage.client.facet_v2")
    serde = importlib.import_module("openlineage.client.serde")
    classes = {
        "parent": facets.parent_run.ParentRunFacet,
        "errorMessage": facets.error_message_run.ErrorMessageRunFacet,
        "tags": facets.tags_run.TagsRunFacet,
        "jobType": facets.job_type_job.JobTypeJobFacet,
        "documentation": facets.documentation_job.DocumentationJobFacet,
        "version": facets.dataset_version_dataset.DatasetVersionDatasetFacet,
        "inputStatistics": facets.input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
        "outputStatistics": facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    }
    inner = {
        "run": facets.parent_run.Run,
        "job": facets.parent_run.Job,
    }

    def facet(name: str, values: dict[str, Any]) -> Any:
        kind = classes.get(name, base.RunFacet)
        given = {key: value for key, value in values.items() if not key.startswith("_")}
        if name == "parent":
            given = {key: inner[key](**value) for key, value in given.items()}
        elif name == "tags":
            given = {"tags": [facets.tags_run.TagsRunFacetFields(**each) for each in given["tags"]]}
        made = kind(producer=values["_producer"], **(given if name in classes else {}))
        if name in classes:
            assert made._schemaURL == values["_schemaURL"], (name, made._schemaURL)
        return made

    def with_facets(values: dict[str, Any]) -> dict[str, Any]:
        names = ("facets", "inputFacets", "outputFacets")
        return {
            key: {name: facet(name, each) for name, each in value.items()} if key in names else value
            for key, value in values.items()
        }

    told = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        made = base.RunEvent(
            eventType=base.EventType[event["eventType"]],
            eventTime=event["eventTime"],
            run=base.Run(**with_facets(event["run"])),
            job=base.Job(**with_facets(event["job"])),
            inputs=[base.InputDataset(**with_facets(each)) for each in event["inputs"]],
            outputs=[base.OutputDataset(**with_facets(each)) for each in event["outputs"]],
            producer=event["producer"],
        )
        assert made.schemaURL == event["schemaURL"], made.schemaURL
        told.append(json.loads(serde.Serde.to_json(made)))
    return told


def main() -> None:
    """Answer everything on stdin."""
    questions = {"crate": crate, "entities": entities, "prov": prov, "openlineage": openlineage}
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.redirect_stdout(io.StringIO()):
            answer = questions[asked.pop("question")](**asked)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
