"""Loads a document in any known format: reads, checks and expands it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from pilotage.language.expansion.advice import advise, advise_on_outputs, check_parameters
from pilotage.language.expansion.expand import expand, report_more_faults
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.file_checks import check_locators, check_schemes
from pilotage.language.folder import EarlierJobs, Folder, NotingFolder
from pilotage.language.losses import Loss, Losses
from pilotage.language.parsing.document import Document, read_what_can_be
from pilotage.language.text.locators import InstalledSchemes
from pilotage.language.text.names import tidy_name
from pilotage.language.text.tree import Report
from pilotage.language.text.yaml import read_tree
from pilotage.model.errors import DocumentError, Problem
from pilotage.model.jobs.definition import Definition

Format = Literal["yaml", "dagman", "wfformat"]
FORMATS: tuple[Format, ...] = get_args(Format)
EXECUTORS = ("local",)
GZIP_MAGIC = b"\x1f\x8b"


class LoadResult(msgspec.Struct, frozen=True):
    """The result of loading a document: what could be read, and its faults, warnings and losses."""

    format: Format
    document: Document | None
    expansion: Expansion | None  # None if there is an error
    report: Report
    losses: tuple[Loss, ...] = ()
    read: Document | None = None  # what could be read of a YAML document, even if there is an error
    files_read: tuple[str, ...] = ()  # other files that were read with it

    def job(self) -> LoadedJob:
        """The job; raises `DocumentError` with all faults if there are any."""
        if self.document is None or self.expansion is None:
            raise DocumentError(self.report.errors)
        warnings = tuple(self.report.warnings)
        return LoadedJob(self.document.definition, self.expansion, warnings, self.losses, self.format, self.files_read)


class LoadedJob(msgspec.Struct, frozen=True):
    """A valid job: its definition, its packages, and its warnings."""

    definition: Definition
    expansion: Expansion
    warnings: tuple[Problem, ...]
    losses: tuple[Loss, ...]
    format: Format
    files_read: tuple[str, ...] = ()  # other files that were read with it


def detect_format(data: bytes, *, file: str) -> Format:
    """The format of a document, from its name and its first words."""
    if file.endswith(".dag"):
        return "dagman"
    if data.startswith(GZIP_MAGIC):
        return "wfformat"  # only WfFormat instances are published gzipped
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
    schemes: InstalledSchemes | None = None,
    parameters: Mapping[str, str] | None = None,
    targets: Sequence[str] = (),
) -> LoadResult:
    """Read, check and expand a document; its faults are in the report of the result, nothing is raised.

    Without `source_format`, the format is detected. `schemes` are those of installed stores; None: the stores that count
    are those of a service elsewhere. `parameters` sets the parameters of the document. With `targets`,
    packages that none of these files needs are left out.
    """
    chosen = source_format or detect_format(data, file=file)
    folder = noting = NotingFolder(folder)
    if chosen == "yaml":
        document, report, losses = _read_yaml(data, file, folder, parameters)
    else:
        document, report, losses = _READERS[chosen](data, file, folder)
        for name in parameters or ():
            report.error("unknown-parameter", f"there is no parameter {name!r}: {chosen} documents have no parameters")
    unreadable = bool(report.errors)
    if document is not None and schemes is not None:
        check_schemes(document.definition, report, document.mark, installed=schemes)
    if document is None or unreadable:
        return LoadResult(chosen, None, None, report, losses, document)
    advise(document.definition, report, document.mark, executors=executors)
    if chosen == "yaml":  # other formats have their own rules for files
        advise_on_outputs(document.definition, report, document.mark)
    expansion = expand(
        document.definition, RecordingLists(folder, jobs, targets=tuple(targets)), report, mark=document.mark
    )
    if expansion is not None:
        check_parameters(expansion, report, document.mark)
        check_locators(expansion, report, document.mark)
    read = tuple(sorted(map(tidy_name, noting.names)))
    return LoadResult(chosen, document, None if report.errors else expansion, report, losses, document, read)


Read = tuple[Document | None, Report, tuple[Loss, ...]]


def _read_yaml(data: bytes, file: str, folder: Folder, given: Mapping[str, str] | None) -> Read:
    tree, report = read_tree(data, file=file)
    if tree is None:
        return None, report, ()
    document, reading = read_what_can_be(tree, report, folder=folder, given=given)
    if document is not None and report.errors:
        report_more_faults(document, reading)
    return document, report, ()


def _read_dagman(data: bytes, file: str, folder: Folder) -> Read:
    from pilotage.language.formats.dagman import read_dagman

    return _imported(*read_dagman(data, file=file, folder=folder))


def _read_wfformat(data: bytes, file: str, folder: Folder) -> Read:
    from pilotage.language.formats.wfformat import read_wfformat

    return _imported(*read_wfformat(data, file=file, folder=folder))


def _imported(definition: Definition | None, report: Report, losses: Losses) -> Read:
    """A definition imported from another format, without positions of its parts."""
    return (None if definition is None else Document(definition, {}, report)), report, tuple(losses)


_READERS: dict[str, Callable[[bytes, str, Folder], Read]] = {
    "dagman": _read_dagman,
    "wfformat": _read_wfformat,
}
