"""From the bytes of a document in any known format to a checked, expanded job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from pilotage.language.expansion.advice import advise, advise_on_outputs, check_parameters
from pilotage.language.expansion.expand import expand, look_further
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import EarlierJobs, Folder, NotingFolder
from pilotage.language.losses import Loss, Losses
from pilotage.language.parsing.document import Document, read_what_can_be
from pilotage.language.text.names import tidy_name
from pilotage.language.text.tree import Report
from pilotage.language.text.yaml import read_tree
from pilotage.model.errors import DocumentError, Problem
from pilotage.model.jobs.definition import Definition

Format = Literal["yaml", "dagman", "wfformat"]
FORMATS: tuple[Format, ...] = get_args(Format)
EXECUTORS = ("local",)
GZIP_MAGIC = b"\x1f\x8b"


class Loaded(msgspec.Struct, frozen=True):
    """What came of a document: everything that could be read, and everything to be said about it."""

    format: Format
    document: Document | None
    expansion: Expansion | None  # None where there is an error
    report: Report
    losses: tuple[Loss, ...] = ()
    read: Document | None = None  # what of a document of our own could be read, also where there is an error
    files_read: tuple[str, ...] = ()  # files beside the document that were read with it

    def job(self) -> LoadedJob:
        """The job, if there is no fault; raises `DocumentError` with every one otherwise."""
        if self.document is None or self.expansion is None:
            raise DocumentError(self.report.errors)
        warnings = tuple(self.report.warnings)
        return LoadedJob(self.document.definition, self.expansion, warnings, self.losses, self.format, self.files_read)


class LoadedJob(msgspec.Struct, frozen=True):
    """A job without a fault: its definition, its packages, and what the writer should know about it."""

    definition: Definition
    expansion: Expansion
    warnings: tuple[Problem, ...]
    losses: tuple[Loss, ...]
    format: Format
    files_read: tuple[str, ...] = ()  # files beside the document that were read with it


def detect_format(data: bytes, *, file: str) -> Format:
    """Which format a document is written in, from its name and its first words."""
    if file.endswith(".dag"):
        return "dagman"
    if data.startswith(GZIP_MAGIC):
        return "wfformat"  # the instances of that format are published packed
    head = data[:65536].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"{"):
        return "wfformat" if b'"schemaVersion"' in data and b'"workflow"' in data else "yaml"
    for line in head.splitlines():
        words = line.strip().lower().split()
        if not words or words[0].startswith(b"#"):
            continue
        return "dagman" if words[0] in _DAG_WORDS and len(words) > 1 and not words[0].endswith(b":") else "yaml"
    return "yaml"


_DAG_WORDS = frozenset(
    b"job parent splice subdag include config vars final submit-description submit_description".split()
)


def load(
    data: bytes,
    *,
    file: str,
    folder: Folder,
    source_format: Format | None = None,
    jobs: EarlierJobs | None = None,
    executors: Collection[str] = EXECUTORS,
    parameters: Mapping[str, str] | None = None,
    targets: Sequence[str] = (),
) -> Loaded:
    """Read, check and expand a document; without `source_format` it is detected. Nothing is raised: the report has every fault.

    `parameters` are values for the parameters that it declares. What none of the files `targets` needs is left out.
    """
    chosen = source_format or detect_format(data, file=file)
    folder = noting = NotingFolder(folder)
    if chosen == "yaml":
        document, report, losses = _read_yaml(data, file, folder, parameters)
    else:
        document, report, losses = _READERS[chosen](data, file, folder)
        for name in parameters or ():
            report.error("unknown-parameter", f"there is no parameter {name!r}: a {chosen} document declares none")
    if document is None or report.errors:
        return Loaded(chosen, None, None, report, losses, document)
    advise(document.definition, report, document.mark, executors=executors)
    if chosen == "yaml":  # other formats have their own ways with files
        advise_on_outputs(document.definition, report, document.mark)
    expansion = expand(
        document.definition, RecordingLists(folder, jobs, targets=tuple(targets)), report, mark=document.mark
    )
    if expansion is not None:
        check_parameters(expansion, report, document.mark)
    read = tuple(sorted(map(tidy_name, noting.names)))
    return Loaded(chosen, document, None if report.errors else expansion, report, losses, document, read)


Read = tuple[Document | None, Report, tuple[Loss, ...]]


def _read_yaml(data: bytes, file: str, folder: Folder, given: Mapping[str, str] | None) -> Read:
    tree, report = read_tree(data, file=file)
    if tree is None:
        return None, report, ()
    document, reading = read_what_can_be(tree, report, folder=folder, given=given)
    if document is not None and report.errors:
        look_further(document, reading)
    return document, report, ()


def _read_dagman(data: bytes, file: str, folder: Folder) -> Read:
    from pilotage.language.formats.dagman import read_dagman

    return _imported(*read_dagman(data, file=file, folder=folder))


def _read_wfformat(data: bytes, file: str, folder: Folder) -> Read:
    from pilotage.language.formats.wfformat import read_wfformat

    return _imported(*read_wfformat(data, file=file, folder=folder))


def _imported(definition: Definition | None, report: Report, losses: Losses) -> Read:
    """A definition that came from elsewhere; its parts have no places of their own."""
    return (None if definition is None else Document(definition, {}, report)), report, tuple(losses)


_READERS: dict[str, Callable[[bytes, str, Folder], Read]] = {
    "dagman": _read_dagman,
    "wfformat": _read_wfformat,
}
