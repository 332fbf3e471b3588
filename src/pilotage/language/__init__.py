"""Reads documents: text → checked definition → resolved lists → packages and their dependency graph.

Hides YAML, templates, iteration and the formats of other systems. `load` does all of it for one document. `expand` and
`grow` are pure: the same definition and lists always give the same packages.
"""

from __future__ import annotations

from pilotage.language.expansion.expand import expand, grow
from pilotage.language.expansion.expansion import Expansion, LateStage
from pilotage.language.expansion.lists import RecordedLists, RecordingLists
from pilotage.language.expansion.packages import ConcreteBinary, ConcretePackage
from pilotage.language.expansion.targets import UnmadeTarget, stages_left_out, unmade_targets
from pilotage.language.folder import DiskFolder, EarlierJobs, Folder, MemoryFolder
from pilotage.language.job_plan import plan_of, shapes_of
from pilotage.language.load import FORMATS, Format, LoadedJob, LoadResult, detect_format, load
from pilotage.language.losses import Loss
from pilotage.language.parsing.document import Document, read_definition, read_document, write_document
from pilotage.language.text.tree import Report
from pilotage.model.jobs.definition import DOCUMENT_NAMES
from pilotage.model.jobs.submission import EXPANDER_VERSION, ResolvedLists

__all__ = [
    "DOCUMENT_NAMES",
    "EXPANDER_VERSION",
    "FORMATS",
    "ConcreteBinary",
    "ConcretePackage",
    "DiskFolder",
    "Document",
    "EarlierJobs",
    "Expansion",
    "Folder",
    "Format",
    "LateStage",
    "LoadResult",
    "LoadedJob",
    "Loss",
    "MemoryFolder",
    "RecordedLists",
    "RecordingLists",
    "Report",
    "ResolvedLists",
    "UnmadeTarget",
    "detect_format",
    "expand",
    "grow",
    "load",
    "plan_of",
    "read_definition",
    "read_document",
    "shapes_of",
    "stages_left_out",
    "unmade_targets",
    "write_document",
]
