"""Files that a document draws on for its software: catalogues, and Boutiques descriptors.

Both are read when the document is, and become part of the definition: a job must mean the same when they have changed.
"""

from __future__ import annotations

import msgspec

from pilotage.language.reading.kinds import MISSING, Anything, Place, Reading, Schema, Text, describe
from pilotage.language.text.tree import Node, Scalar, Table
from pilotage.language.text.yaml import read_tree
from pilotage.model.errors import Problem


def read_file(node: Scalar, reading: Reading, *, noun: str) -> tuple[Node, Reading] | None:
    """The tree of a file that a document names; its faults join the document's report."""
    data = reading.folder.read(node.text)
    if data is None:
        reading.fault("missing-file", node, f"the {noun} {node.text!r} cannot be read")
        return None
    tree, report = read_tree(data, file=node.text)
    inner = Reading(report, reading.folder)
    inner.report.errors, inner.report.warnings = (
        _joined(reading.report.errors, report.errors),
        _joined(reading.report.warnings, report.warnings),
    )
    return None if tree is None else (tree, inner)


def _joined(outer: list[Problem], inner: list[Problem]) -> list[Problem]:
    """Let the inner report write on into the outer one's list."""
    outer.extend(inner)
    return outer


class Descriptor(msgspec.Struct, frozen=True):
    """A Boutiques descriptor: the descriptor itself, or the name of its file."""

    def read(self, node: Node, place: Place, reading: Reading) -> object:
        """The descriptor as plain data, after every check that bosh makes."""
        if isinstance(node, Scalar):
            name = Text().read(node, place, reading)
            if name is MISSING:
                return MISSING
            found = read_file(node, reading, noun="Boutiques descriptor")
            if found is None:
                return MISSING
            node, reading = found
        if not isinstance(node, Table):
            return reading.fault("wrong-type", node, f"expected a Boutiques descriptor, got {describe(node)}")
        # Few documents hold a descriptor, and its reader takes a while to import.
        from pilotage.language.boutiques import read_descriptor

        if read_descriptor(node, reading.report) is None:
            return MISSING
        return Anything().read(node, place, reading)

    def schema(self) -> Schema:
        """A file name, or an object."""
        return {"type": ["string", "object"]}
