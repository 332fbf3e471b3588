"""Builds jobs in Python, with all fields of a document and the same checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from pilotage.language.folder import DiskFolder, EarlierJobs, Folder
from pilotage.language.load import LoadedJob, load
from pilotage.language.parsing.document import read_document, write_document
from pilotage.language.parsing.python_types import JobFields, SoftwareFields, StageFields
from pilotage.language.text.emit import write_yaml
from pilotage.model.errors import DocumentError
from pilotage.model.jobs.definition import LANGUAGE_VERSION, Definition, Value, plain


class Job:
    """A job built in Python: `Job("sweep").stage(each={"seed": range(1, 1001)}, run="./simulate --seed {seed}", …)`.

    The fields are those of the document, including short forms. They are checked when `definition` or `load` is called;
    faults then point at lines of the document that `text` returns.
    """

    def __init__(self, name: str, **fields: Unpack[JobFields]) -> None:
        """Start a job with a name."""
        self._head: dict[str, Any] = {"pilotage": LANGUAGE_VERSION, "job": name, **fields}
        self._software: list[object] = list(self._head.pop("software", ()))
        self._stages: list[object] = []

    def __repr__(self) -> str:
        """The name of the job and the number of its stages."""
        count = len(self._stages)
        return f"<Job {self._head['job']}: {count} stage{'' if count == 1 else 's'}>"

    def software(self, **fields: Unpack[SoftwareFields]) -> Job:
        """Add a description of software; returns the job."""
        self._software.append(fields)
        return self

    def stage(self, **fields: Unpack[StageFields]) -> Job:
        """Add a stage; returns the job."""
        self._stages.append(fields)
        return self

    @property
    def text(self) -> str:
        """The job as a document, as it was written."""
        software = {"software": self._software} if self._software else {}
        return write_yaml(_plain({**self._head, **software, "stages": self._stages}))

    @property
    def canonical(self) -> str:
        """The job as a document in canonical form; raises `DocumentError` with all faults."""
        return write_document(self.definition())

    def definition(self, folder: Folder | str = ".") -> Definition:
        """The checked definition; raises `DocumentError` with all faults."""
        document, report = read_document(self.text.encode(), file=self._file, folder=_folder(folder))
        if document is None:
            raise DocumentError(report.errors)
        return document.definition

    def load(
        self,
        folder: Folder | str = ".",
        *,
        jobs: EarlierJobs | None = None,
        parameters: Mapping[str, str] | None = None,
        targets: Sequence[str] = (),
    ) -> LoadedJob:
        """Check and expand the job in a folder; raises `DocumentError` with all faults.

        `jobs` finds earlier jobs, for stages that iterate over their outputs; `parameters` sets the parameters of the job.
        With `targets`, packages that none of these files needs are left out.
        """
        return load(
            self.text.encode(),
            file=self._file,
            folder=_folder(folder),
            source_format="yaml",
            jobs=jobs,
            parameters=parameters,
            targets=targets,
        ).job()

    @property
    def _file(self) -> str:
        return f"Job({self._head['job']!r})"


def _folder(folder: Folder | str) -> Folder:
    return DiskFolder(folder) if isinstance(folder, str) else folder


def _plain(value: object) -> object:
    """Python values as plain data: ranges become texts, records take their canonical form."""
    if isinstance(value, Value):
        return plain(value)
    if isinstance(value, range):
        step = f"..{value.step}" if value.step != 1 else ""
        return f"{value.start}..{value[-1]}{step}" if len(value) else f"{value.start}..{value.start - 1}"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
