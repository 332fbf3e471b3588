"""Reads a document: text → tree → checked definition, and reports all its faults at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from pilotage.language.folder import Folder
from pilotage.language.parsing.kinds import MISSING, DocumentParse, FieldPath, ListOf, describe, read_file
from pilotage.language.parsing.parameters import choose_parameters
from pilotage.language.parsing.records import Record
from pilotage.language.parsing.rules import check_rules, check_software
from pilotage.language.text.tree import Listing, Mark, Node, Report, Scalar, Table
from pilotage.language.text.yaml import read_tree
from pilotage.model.jobs.definition import LANGUAGE_VERSION, Definition, Software, plain


class Document(msgspec.Struct, frozen=True):
    """A definition with the positions of its parts, and its report."""

    definition: Definition
    marks: dict[FieldPath, Mark]
    report: Report

    def mark(self, place: FieldPath) -> Mark:
        """The position of a part, or of the nearest part around it."""
        return nearest_mark(self.marks, place)


def read_document(data: bytes, *, file: str, folder: Folder) -> tuple[Document | None, Report]:
    """Read a YAML document; the report has all faults, and the document is None if there are any."""
    tree, report = read_tree(data, file=file)
    return read_definition(tree, report, folder=folder) if tree is not None else (None, report)


def read_definition(tree: Node, report: Report, *, folder: Folder) -> tuple[Document | None, Report]:
    """Read the tree of a document; None if there are faults."""
    document, _ = read_what_can_be(tree, report, folder=folder)
    return (None if report.errors else document), report


def read_what_can_be(
    tree: Node, report: Report, *, folder: Folder, given: Mapping[str, str] | None = None
) -> tuple[Document | None, DocumentParse]:
    """Read as much of a tree as possible, despite faults; the `DocumentParse` knows where these are.

    `given` are values for its parameters.
    """
    reading = DocumentParse(report, folder)
    if not isinstance(tree, Table):
        reading.fault("wrong-type", tree, f"expected a document with the fields of a job, got {describe(tree)}")
        return None, reading
    if not _head_is_known(tree, reading):
        return None, reading
    catalogue = tree.get("catalogue")
    entries = tuple((key, node) for key, node in tree.entries if key.text != "catalogue")
    shared = _read_catalogues(catalogue, reading) if catalogue is not None else ()
    found = Record(Definition).read(Table(entries, tree.mark), (), reading)
    if not isinstance(found, Definition):
        return None, reading
    known = {(software.id, software.version) for software in found.software}
    added = tuple(software for software in shared if (software.id, software.version) not in known)
    definition = msgspec.structs.replace(found, software=found.software + added)
    if definition.parameters or given:
        definition = choose_parameters(definition, given or {}, reading, partial(nearest_mark, reading.marks))
    document = Document(definition, reading.marks, report)
    check_rules(
        definition,
        report,
        document.mark,
        is_faulty=reading.is_faulty,
        is_lost=lambda place: any(lost[: len(place)] == place for lost in reading.lost),
        own_software=len(found.software),
    )
    return document, reading


def write_document(definition: Definition) -> str:
    """The canonical text of a definition."""
    from pilotage.language.text.emit import write_yaml

    return write_yaml(plain(definition))


def _head_is_known(tree: Table, reading: DocumentParse) -> bool:
    """Whether the document has the field `pilotage` with our version of the language."""
    head = tree.get("pilotage")
    if head is None:
        message = "this is not a pilotage document: the field 'pilotage' is missing"
        hint = f"begin with the line  pilotage: {LANGUAGE_VERSION}"
        keys = {key.text for key, _ in tree.entries}
        if keys == {"software"}:
            message = "this is a catalogue of software, not a job"
            hint = f"a document names it in its field  catalogue: {reading.report.file}"
        elif "command-line" in keys and keys & {"tool-version", "schema-version"}:
            message = "this is a Boutiques descriptor, not a job"
            hint = f"a document uses it with  software: [{{id: NAME, boutiques: {reading.report.file}}}]"
        reading.fault("missing-head", tree, message, hint=hint)
        return False
    if not isinstance(head, Scalar) or head.text != str(LANGUAGE_VERSION):
        message = f"this program reads language version {LANGUAGE_VERSION}, the document has {describe(head)}"
        reading.fault("unknown-version", head, message)
        return False
    return True


def _read_catalogues(node: Node, reading: DocumentParse) -> tuple[Software, ...]:
    """The software of all catalogue files, in order."""
    found: list[Software] = []
    names = node.items if isinstance(node, Listing) else (node,)
    for name in names:
        if not isinstance(name, Scalar):
            reading.fault("wrong-type", name, f"expected the name of a catalogue file, got {describe(name)}")
            continue
        read = read_file(name, reading, noun="catalogue")
        if read is None:
            continue
        tree, inner = read
        listed = tree.get("software") if isinstance(tree, Table) else tree
        if listed is None:
            inner.fault("missing-field", tree, "a catalogue needs the field 'software'")
            continue
        software = ListOf(Record(Software)).read(listed, ("catalogue", name.text), inner)
        if software is not MISSING and isinstance(software, tuple):
            found.extend(software)
            for position, described in enumerate(software):
                at: FieldPath = ("catalogue", name.text, position)
                check_software(described, inner.report, partial(_mark_below, inner, at))
    return tuple(found)


def _mark_below(reading: DocumentParse, at: FieldPath, place: FieldPath) -> Mark:
    return nearest_mark(reading.marks, (*at, *place))


def nearest_mark(marks: Mapping[FieldPath, Mark], place: FieldPath) -> Mark:
    """The position of a part, or of the nearest part around it."""
    for end in range(len(place), -1, -1):
        found = marks.get(place[:end])
        if found is not None and found.line:
            return found
    return Mark()
