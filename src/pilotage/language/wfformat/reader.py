"""Reading WfFormat 1.5: bytes → tree → instance → definition, with every fault of it at once."""

from __future__ import annotations

from pilotage.language.folder import Folder
from pilotage.language.losses import Losses
from pilotage.language.text.tree import Node, Report, Scalar, Table
from pilotage.language.text.yaml import read_tree
from pilotage.language.wfformat.files import Files
from pilotage.language.wfformat.instance import Instance, read_instance
from pilotage.language.wfformat.shape import LossTally, Shape
from pilotage.language.wfformat.translate import translate
from pilotage.language.wfformat.unpack import unpack
from pilotage.language.wfformat.vocabulary import INSTANCE, SCHEMA_VERSION
from pilotage.model.definition import Definition


def read_wfformat(data: bytes, *, file: str, folder: Folder) -> tuple[Definition | None, Report, Losses]:
    """Read an instance, gzip-ed or not; None where the report has an error. What has no meaning here is in the losses."""
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
    """Whether to look any further: another version has other words in other places."""
    said = tree.get("schemaVersion") if isinstance(tree, Table) else None
    if not isinstance(said, Scalar) or said.text == SCHEMA_VERSION:
        return True
    message = f"WfFormat {SCHEMA_VERSION} is read here; the instance says schemaVersion {said.text[:60]!r}"
    shape.fault("unknown-version", message, said, hint=f"convert it to {SCHEMA_VERSION} with the tools of WfCommons")
    return False


def _refuse_own_parents(instance: Instance, shape: Shape) -> None:
    """Longer cycles are for the expansion to find; a task that follows itself would not be seen there."""
    for task in instance.tasks:
        if task.id.text in task.parents:
            message = f"the task {task.id.text[:200]!r} is among its own parents or children"
            shape.fault("cycle", message, Scalar("", plain=False, mark=task.id.mark))
