"""Imports WfFormat 1.5: bytes → tree → instance → definition, and reports all faults at once."""

from __future__ import annotations

import gzip
import io
import zlib

from pilotage.language.folder import Folder
from pilotage.language.formats.wfformat.instance import Files, Instance, read_instance
from pilotage.language.formats.wfformat.schema import INSTANCE, SCHEMA_VERSION, LossTally, Shape
from pilotage.language.formats.wfformat.translate import translate
from pilotage.language.losses import Losses
from pilotage.language.text.tree import Node, Report, Scalar, Table
from pilotage.language.text.yaml import SIZE_BYTES_MAX, read_tree
from pilotage.model.jobs.definition import Definition

# Unpacks gzip within a limit: a kilobyte can unpack to a gigabyte.

GZIP_MAGIC = b"\x1f\x8b"


def unpack(data: bytes, *, file: str) -> tuple[bytes | None, Report]:
    """The bytes, unpacked if they are gzipped; None, with a fault in the report, if that fails."""
    report = Report(file)
    if not data.startswith(GZIP_MAGIC):
        return data, report
    if len(data) > SIZE_BYTES_MAX:
        message = f"the packed document has {len(data):,} bytes; at most {SIZE_BYTES_MAX:,} are read"
        report.error("too-large", message)
        return None, report
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            text = packed.read(SIZE_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as fault:
        message = f"the file begins like gzip but cannot be unpacked: {fault}"
        report.error("bad-gzip", message, hint="it is damaged or cut off; fetch it again")
        return None, report
    if len(text) > SIZE_BYTES_MAX:
        message = f"the unpacked document has more than {SIZE_BYTES_MAX:,} bytes, which is the limit"
        report.error("too-large", message, hint=f"packed it has only {len(data):,} bytes; is this really an instance?")
        return None, report
    if not text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        # Only WfFormat instances are published packed; other formats are read unpacked.
        message = "this gzip file contains no WfFormat instance, and no other format is read packed"
        report.error("not-an-instance", message, hint="unpack it first")
        return None, report
    return text, report


def read_wfformat(data: bytes, *, file: str, folder: Folder) -> tuple[Definition | None, Report, Losses]:
    """Read an instance, gzipped or not; None if the report has an error. The losses list what cannot be imported."""
    text, report = unpack(data, file=file)
    if text is None:
        return None, report, Losses()
    tree, report = read_tree(text, file=file)
    if tree is None or report.errors:
        return None, report, Losses()
    tally = LossTally()
    shape = Shape(report, tally)
    definition = _definition(tree, shape, folder=folder, report=report, tally=tally)
    return definition, report, Losses() if definition is None else tally.listed(file)


def _definition(tree: Node, shape: Shape, *, folder: Folder, report: Report, tally: LossTally) -> Definition | None:
    if not _version_is_known(tree, shape):
        return None
    shape.check(tree, INSTANCE, "")
    if report.errors or not isinstance(tree, Table):
        return None
    instance = read_instance(tree, shape)
    files = Files(instance, shape, tally)
    _refuse_own_parents(instance, shape)
    if report.errors:
        return None
    return translate(instance, files, folder=folder, report=report, tally=tally)


def _version_is_known(tree: Node, shape: Shape) -> bool:
    """Whether the version is supported; other versions have other fields."""
    version = tree.get("schemaVersion") if isinstance(tree, Table) else None
    if not isinstance(version, Scalar) or version.text == SCHEMA_VERSION:
        return True
    message = f"only WfFormat {SCHEMA_VERSION} is supported; the instance has schemaVersion {version.text[:60]!r}"
    shape.fault("unknown-version", message, version, hint=f"convert it to {SCHEMA_VERSION} with the tools of WfCommons")
    return False


def _refuse_own_parents(instance: Instance, shape: Shape) -> None:
    """Report tasks that follow themselves; the expansion finds only longer cycles."""
    for task in instance.tasks:
        if task.id.text in task.parents:
            message = f"the task {task.id.text[:200]!r} is among its own parents or children"
            shape.fault("cycle", message, Scalar("", plain=False, mark=task.id.mark))
