"""What tests of the language share: short ways from a text to what became of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pilotage.language import (
    EarlierJobs,
    Expansion,
    Folder,
    LoadResult,
    MemoryFolder,
    RecordedLists,
    Report,
    expand,
    grow,
    load,
    read_definition,
)
from pilotage.language.folder import CachedFile, EarlierOutputs
from pilotage.language.text.patterns import matches
from pilotage.language.text.tree import tree_of
from pilotage.model.errors import Problem
from pilotage.model.jobs.definition import Definition
from pilotage.model.jobs.submission import ResolvedLists

SWEEP = """\
pilotage: 1
job: sweep
stages:
  - each: {seed: 1..1000}
    run: ./simulate --seed {seed} --out sim-{seed}.dat
    outputs: [sim-{seed}.dat]
  - run: ./merge {inputs} --out result.dat
    inputs: [sim-*.dat]
    outputs: [result.dat]
"""  # the example of the README, as it stands

HEAD = "pilotage: 1\njob: j\n"


class Untouchable:
    """A folder that fails the test when it is asked for anything but whether a file exists, or for that too."""

    def read(self, path: str) -> bytes | None:
        """Nobody should read."""
        raise AssertionError(f"the folder was asked for the file {path!r}")

    def is_folder(self, path: str) -> bool:
        return False

    def exists(self, path: str) -> bool:
        """Nobody should look."""
        raise AssertionError(f"the folder was asked whether {path!r} is there")

    def glob(self, pattern: str) -> list[str]:
        """Nobody should search."""
        raise AssertionError(f"the folder was searched for {pattern!r}")


class OneJob:
    """An earlier job with known outputs."""

    def __init__(self, name: str, outputs: Iterable[str]) -> None:
        """Know one job only, and remember what was asked."""
        self.name = name
        self.files = list(outputs)
        self.asked: list[tuple[str, str]] = []

    def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
        """Its outputs, all of them, where it is the one."""
        self.asked.append((job, pattern))
        return EarlierOutputs(f"{job}-id", self.files) if job == self.name else None

    def cached_files(self, site: str) -> list[CachedFile] | None:
        """No site has a cache."""
        return None


def loaded(
    stages: str, *, folder: Folder | None = None, jobs: EarlierJobs | None = None, head: str = HEAD
) -> LoadResult:
    """What becomes of a document: a common head and the text of its stages."""
    return load(
        (head + stages).encode(), file="job.yaml", folder=folder or MemoryFolder(), source_format="yaml", jobs=jobs
    )


def expanded(
    stages: str, *, folder: Folder | None = None, jobs: EarlierJobs | None = None, head: str = HEAD
) -> Expansion:
    """The expansion of a document that must be valid."""
    result = loaded(stages, folder=folder, jobs=jobs, head=head)
    assert not result.report.errors, result.report.errors
    assert result.expansion is not None
    return result.expansion


def refused(
    stages: str, *, folder: Folder | None = None, jobs: EarlierJobs | None = None, head: str = HEAD
) -> list[Problem]:
    """The faults of a document that must have some."""
    result = loaded(stages, folder=folder, jobs=jobs, head=head)
    assert result.report.errors
    assert result.expansion is None
    return result.report.errors


def only_fault(
    stages: str, *, folder: Folder | None = None, jobs: EarlierJobs | None = None, head: str = HEAD
) -> Problem:
    """The one fault of a document that must have exactly one."""
    faults = refused(stages, folder=folder, jobs=jobs, head=head)
    assert len(faults) == 1, faults
    return faults[0]


def warnings(stages: str, *, folder: Folder | None = None, head: str = HEAD) -> list[Problem]:
    """The warnings about a document that must be valid, but for `no-outputs`: few of these documents make anything."""
    result = loaded(stages, folder=folder, head=head)
    assert not result.report.errors, result.report.errors
    return [warning for warning in result.report.warnings if warning.code != "no-outputs"]


def definition_of(tree: object, *, folder: Folder | None = None) -> Definition:
    """The definition of a document given as plain data, which must be valid."""
    document, report = read_definition(tree_of(tree), Report("tree"), folder=folder or MemoryFolder())
    assert not report.errors, report.errors
    assert document is not None
    return document.definition


def made_by(expansion: Expansion, names: Iterable[str]) -> dict[int, list[str]]:
    """Names that appeared, each credited to the first package that may make it."""
    found: dict[int, list[str]] = {}
    for name in dict.fromkeys(names):
        for package in range(expansion.count):
            block = expansion.block(package)
            if any(is_open and matches(made, name) for made, is_open in block.made(block.position(package))):
                found.setdefault(package, []).append(name)
                break
    return found


def grown(expansion: Expansion, stage: int, produced: Iterable[str]) -> Expansion:
    """The expansion with a late stage laid out, without a fault."""
    report = Report("growth")
    after = grow(expansion, stage, made_by(expansion, produced), report)
    assert not report.errors, report.errors
    assert after is not None
    return after


def shuffled(resolved: ResolvedLists) -> ResolvedLists:
    """The same lists in another order, as a store may give them back."""
    return msgspec.structs.replace(resolved, lists=dict(sorted(resolved.lists.items(), reverse=True)))


def again(expansion: Expansion) -> Expansion:
    """The same job expanded once more, from its definition and its recorded lists alone."""
    report = Report("again")
    found = expand(expansion.definition, RecordedLists(shuffled(expansion.resolved)), report)
    assert not report.errors, report.errors
    assert found is not None
    return found


def edges(expansion: Expansion) -> set[tuple[str, str]]:
    """The edges as pairs of package names."""
    return {(expansion.name(source), expansion.name(target)) for source, target, _ in expansion.graph.edges()}


def commands(expansion: Expansion) -> list[tuple[str, ...]]:
    """What the first binary of every package runs."""
    return [package.binaries[0].argv for package in expansion.packages()]


def picture(expansion: Expansion) -> object:
    """Everything that can be seen of an expansion, to compare two."""
    return (
        [(p.number, p.path, p.name, p.activity, p.tag, p.startup, p.made, p.needed) for p in expansion.packages()],
        [(b.argv, b.inputs, b.outputs, b.environment) for p in expansion.packages() for b in p.binaries],
        sorted((source, target, int(kind)) for source, target, kind in expansion.graph.edges()),
        expansion.late,
        expansion.stage_names,
        dict(expansion.resolved.lists),
    )
