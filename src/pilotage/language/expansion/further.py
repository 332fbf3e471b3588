"""More faults of a document that is refused already: what can be said of its texts and lists all the same."""

from __future__ import annotations

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.reading.document import Document
from pilotage.language.reading.kinds import Place, Reading
from pilotage.language.text.tree import Mark, Report
from pilotage.model.errors import near_name

# Faults that stand for themselves: what is missing, or called by no known name, may be in a part that was not readable.
_SURE = frozenset(
    {
        "bad-table",
        "duplicate-name",
        "duplicate-variable",
        "empty-list",
        "empty-table",
        "list-in-text",
        "misplaced-placeholder",
        "missing-file",
        "not-utf8",
        "nul-character",
        "outside-tree",
        "too-many-items",
        "two-makers",
        "unequal-lengths",
        "unknown-column",
        "unknown-placeholder",
    }
)


# Of these, the ones that no unreadable field of the same record can have brought about.
_NEVER_FOLLOWS = frozenset({"bad-table", "not-utf8", "outside-tree", "too-many-items", "two-makers"})

# What could not be read below one of these has no part in how many packages there are, what they are called, and their files.
_HARMLESS = frozenset(
    {
        "abort_on",
        "activity",
        "category",
        "container",
        "cpu_percent",
        "created",
        "description",
        "dispositions",
        "environment",
        "executor",
        "failure_patterns",
        "hold",
        "limits",
        "node_restriction",
        "owner",
        "priority",
        "progress",
        "replicas",
        "resources",
        "retry",
        "run_time_seconds",
        "scripts",
        "side_effects",
        "size_bytes",
        "work_bytes",
    }
)
# A field that nobody knows may have been meant for one of these.
_OF_FILES = (
    *("stages", "lines", "packages", "binaries", "each", "variables", "name", "software", "catalogue"),
    *("run", "shell", "inputs", "outputs", "stdin", "stdout", "stderr", "arguments", "parameters", "after"),
)


class _Further(Report):
    """A report that remembers from which place each text at fault was looked for."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.file, report.lines)
        self._from: dict[Mark, Mark] = {}

    def found(self, mark: Mark, text: str) -> Mark:
        """The same, remembered."""
        found = super().found(mark, text)
        self._from[found] = mark
        return found

    def begun(self, mark: Mark) -> Mark:
        """The place from which a place was found."""
        return self._from.get(mark, mark)


def look_further(document: Document, reading: Reading) -> None:
    """Note the faults of a refused document's texts and lists as well, as far as they follow from no other fault."""
    spoilt: set[Mark] = set()
    unreadable: set[Mark] = set()

    def mark(place: Place) -> Mark:
        found = document.mark(place)
        moved = any(place[:end] in reading.moved for end in range(1, len(place) + 1))
        # A record takes all it holds with it, but the document as a whole and its levels do not.
        if moved or any(place[:end] in around for end in range(2, len(place) + 1)):
            spoilt.add(found)
        if moved or place in around:
            unreadable.add(found)
        return found

    losses = {place for place in reading.lost if not _HARMLESS.intersection(place)}
    losses |= {place for place in reading.unknown if near_name(str(place[-1]), _OF_FILES, cutoff=0.75)}
    around = {place[:end] for place in losses for end in range(len(place) + 1)}
    report = document.report
    further = _Further(report)
    expand(document.definition, RecordingLists(reading.folder), further, mark=mark)
    known = {Mark(problem.line, problem.column) for problem in report.errors}
    # A field that nobody knows may have been meant for `variables`, and variables may be what could not be read.
    unsure = bool({("variables",), ("parameters",)} & reading.faulty) or () in reading.with_unknown_fields
    for problem in further.errors:
        place = Mark(problem.line, problem.column)
        if losses and (problem.code not in _SURE or (unsure and problem.code == "unknown-placeholder")):
            continue
        begun = further.begun(place)
        follows = begun in unreadable or (begun in spoilt and problem.code not in _NEVER_FOLLOWS)
        if not follows and place not in known:
            report.errors.append(problem)
