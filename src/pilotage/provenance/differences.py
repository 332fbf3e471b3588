"""What differs between two recorded jobs: definition, parameters, software, environment, timings, and outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, Literal

import msgspec

from pilotage.model.jobs.definition import Comparison
from pilotage.model.records import JobRecord, RecordNode
from pilotage.provenance.compare import compare, comparison_for
from pilotage.provenance.history import FileUse, History

OutputVerdict = Literal["identical", "equal", "different", "missing", "new", "unknown"]
"""`missing` and `new`: only one of the runs made it; `unknown`: its content cannot be compared."""
SAME: tuple[OutputVerdict, ...] = ("identical", "equal")
_VARIABLE = "variable "
NOT_KEPT = "the bytes differ, and the content of the {run} run is not there to compare as declared"

ReadOutput = Callable[[FileUse], bytes | None]
"""The content of an output; None if it is not there any longer."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same; what one side does not have is None."""

    what: str
    before: str | None = None
    after: str | None = None


class OutputCompared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An output of two runs."""

    name: str
    verdict: OutputVerdict
    package: str = ""  # dotted: that made it in the first run, or else in the second
    before: str | None = None  # sha256
    after: str | None = None
    difference: str = ""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the job took, or that the packages of an activity took on average."""

    what: str
    before: float | None = None
    after: float | None = None


class JobDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """All that differs between two jobs; `same` does not depend on timings."""

    jobs: tuple[str, str]
    same: bool
    definition: tuple[Difference, ...] = ()
    parameters: tuple[Difference, ...] = ()
    software: tuple[Difference, ...] = ()
    environment: tuple[Difference, ...] = ()
    timings: tuple[Timing, ...] = ()
    packages: tuple[Difference, ...] = ()  # that did not end in the same state
    outputs: tuple[OutputCompared, ...] = ()


def differences_of(
    before: History, after: History, *, read_before: ReadOutput, read_after: ReadOutput
) -> JobDifferences:
    """All that differs between two jobs. Outputs compare as the first job declares, else as the second does."""
    first, second = before.job.definition, after.job.definition
    declared = (first.compare if first is not None else ()) or (second.compare if second is not None else ())
    outputs = tuple(
        compare_outputs(outputs_of(before), outputs_of(after), declared, read_before=read_before, read_after=read_after)
    )
    definition = tuple(differing(_leaves(before), _leaves(after)))
    parameters = tuple(differing(before.job.parameters, after.job.parameters))
    software = tuple(software_differences(before, after))
    environment = tuple(differing(environment_of(before), environment_of(after)))
    packages = tuple(differing(states_of(before), states_of(after)))
    is_same = all(each.verdict in SAME for each in outputs)
    return JobDifferences(
        jobs=(before.job.id, after.job.id),
        same=is_same and not (definition or parameters or software or environment or packages),
        definition=definition,
        parameters=parameters,
        software=software,
        environment=environment,
        timings=tuple(_timings(before, after)),
        packages=packages,
        outputs=outputs,
    )


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Difference]:
    """The names whose values are not the same."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Difference(what=name, before=before.get(name), after=after.get(name))


def states_of(history: History) -> dict[str, str]:
    """How each package ended, by its place; outputs that were handed over make no difference."""
    return {package.id: _HANDED_OVER.get(package.state, package.state) for package in history.packages()}


_HANDED_OVER = {"CLEARED": "DONE"}


# --- outputs ----------------------------------------------------------------------------------------------------------


def outputs_of(history: History, *, packages: Container[str] | None = None) -> dict[str, tuple[str, FileUse]]:
    """The outputs that count by name, each with the package that made it; of some packages, or of all."""
    return {
        file.name: (package.id, file)
        for package in history.packages()
        if packages is None or package.id in packages
        for file in package.produced
    }


def compare_outputs(
    before: Mapping[str, tuple[str, FileUse]],
    after: Mapping[str, tuple[str, FileUse]],
    comparisons: Iterable[Comparison],
    *,
    read_before: ReadOutput,
    read_after: ReadOutput,
) -> Iterator[OutputCompared]:
    """Each output of two runs, by name: by its checksum, and where that differs by its content, if one is declared."""
    declared = tuple(comparisons)
    for name in sorted({*before, *after}):
        package, first = before.get(name, ("", None))
        other, second = after.get(name, ("", None))
        verdict, difference = _verdict(name, first, second, declared, read_before, read_after)
        yield OutputCompared(
            name=name,
            verdict=verdict,
            package=package or other,
            before=first.sha256 if first is not None else None,
            after=second.sha256 if second is not None else None,
            difference=difference,
        )


def _verdict(
    name: str,
    first: FileUse | None,
    second: FileUse | None,
    declared: tuple[Comparison, ...],
    read_before: ReadOutput,
    read_after: ReadOutput,
) -> tuple[OutputVerdict, str]:
    if second is None:
        return "missing", ""
    if first is None:
        return "new", ""
    if first.sha256 is not None and first.sha256 == second.sha256:
        return "identical", ""
    comparison = comparison_for(name, declared)
    if comparison is None or comparison.compared_as == "identical":
        sizes = first.size_bytes, second.size_bytes
        return "different", f"{sizes[1]:,} bytes instead of {sizes[0]:,}" if sizes[0] != sizes[1] else ""
    contents = []
    for run, file, read in (("first", first, read_before), ("second", second, read_after)):
        content = read(file)
        if content is None:
            return "unknown", NOT_KEPT.format(run=run)
        contents.append(content)
    found = compare(contents[0], contents[1], comparison)
    return found.verdict, found.difference


# --- software and environment -----------------------------------------------------------------------------------------


def software_differences(before: History, after: History) -> Iterator[Difference]:
    """The software that is not the same, among what the jobs used.

    Nodes may tell versions of software that other jobs used there, and a probe may have told nothing to one of the jobs: neither is
    a difference. The same holds for the digest of an image that only one of the runs told.
    """
    first, second = _Software(before), _Software(after)
    yield from differing(_joined(first.declared), _joined(second.declared))
    used = first.used | second.used
    for name in sorted(first.told.keys() & second.told.keys() & used):
        if first.told[name] != second.told[name]:
            told = _joined(first.told)[name], _joined(second.told)[name]
            yield Difference(what=name, before=told[0], after=told[1])
    for what in sorted(first.images.keys() & second.images.keys() & first.digests.keys() & second.digests.keys()):
        if first.images[what] == second.images[what] and first.digests[what] != second.digests[what]:
            told = _joined(first.digests)[what], _joined(second.digests)[what]
            yield Difference(what=what, before=told[0], after=told[1])


class _Software:
    """What software a job used: as its document describes it, and as nodes told of it."""

    def __init__(self, history: History) -> None:
        self.declared: dict[str, set[str]] = {}
        self.images: dict[str, set[str]] = {}
        self.digests: dict[str, set[str]] = {}
        self.told: dict[str, set[str]] = {}
        self.used = {_OF_THE_AGENT}
        for package in history.packages():
            for command in package.commands:
                if command.software:
                    name, _, version = command.software.partition("@")
                    self.used.add(command.software)
                    self.declared.setdefault(name, set()).add(version or "described without a version")
            if package.container:
                what = f"container of {package.activity or package.name}"
                self.images.setdefault(what, set()).add(package.container)
                digest = package.granted.container_digest if package.granted is not None else None
                if digest:
                    self.digests.setdefault(what, set()).add(f"{package.container} {digest}")
        self.declared |= self.images
        if history.record.made_by:
            self.declared["pilotage"] = {history.record.made_by}
        for node in history.nodes:
            for name, version in node.software.items():
                if not version.startswith(_UNKNOWN):
                    self.told.setdefault(name, set()).add(version)


_OF_THE_AGENT = "python"
"""What every agent tells of its node."""
_UNKNOWN = "unknown: its probe"


def environment_of(history: History) -> dict[str, str]:
    """The computers on which attempts ran: their names, their systems, and the variables that are kept of them."""
    found = _environment(history.nodes)
    for part in history.record.parts:
        if part.kind == "environment":  # of a site: its configuration, and the version of its batch system
            found[part.name] = {f"sha256 {part.sha256[:12]}"}
    return _joined(found)


def _environment(nodes: Iterable[RecordNode]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node in nodes:
        about = {
            "node": node.node,
            "site": node.site,
            "os": node.os_release or node.system,
            "kernel": node.kernel,
            "cpu": node.cpu_model,
            "libc": node.libc,
            "cores": str(node.cores or ""),
            "memory_bytes": str(node.memory_bytes or ""),
        }
        about.update((f"{_VARIABLE}{name}", value) for name, value in node.environment.items())
        for name, value in about.items():
            if value:
                found.setdefault(name, set()).add(value)
    return found


def expected_differences(
    record: JobRecord, nodes: Collection[RecordNode], *, unset: Container[str] = (), made_by: str
) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """What is known to be another software or environment before a run: each recorded value that none of these nodes has.

    What the nodes do not tell is not compared; `unset` are variables that are known to be unset there. `made_by` is the version of
    pilotage that would make the new record.
    """
    software = ({"pilotage": {record.made_by}} if record.made_by else {}, {"pilotage": {made_by}})
    for found, described in zip(software, (record.nodes, nodes), strict=True):
        for node in described:
            for name, version in node.software.items():
                found.setdefault(name, set()).add(version)
    before, after = _environment(record.nodes), _environment(nodes)
    missing = {name for name in before if name.startswith(_VARIABLE) and name.removeprefix(_VARIABLE) in unset}
    return (
        _not_among(*software, names=software[0].keys() & software[1].keys()),
        _not_among(before, after, names=(before.keys() & after.keys()) | missing),
    )


def _not_among(
    before: Mapping[str, set[str]], after: Mapping[str, set[str]], *, names: Iterable[str]
) -> tuple[Difference, ...]:
    """Differences of those names whose values were other ones than there are now."""
    joined = _joined(before), _joined(after)
    return tuple(
        Difference(what=name, before=joined[0][name], after=joined[1].get(name))
        for name in sorted(names)
        if not before[name] <= after.get(name, set())
    )


def _joined(found: Mapping[str, set[str]]) -> dict[str, str]:
    return {name: ", ".join(sorted(found[name])) for name in sorted(found)}


# --- definition and timings -------------------------------------------------------------------------------------------


def _leaves(history: History) -> dict[str, str]:
    """Each value of a definition by its path; chosen parameters are compared by themselves."""
    if not history.job.definition_text:
        return {}
    found: dict[str, str] = {}
    plain: dict[str, Any] = msgspec.json.decode(history.job.definition_text)
    for each in plain.get("parameters", {}).values():
        each.pop("value", None)
    for name in ("id", "owner", "created", "hold"):  # of one run
        plain.pop(name, None)
    _collect(plain, "", found)
    return found


def _collect(value: Any, path: str, found: dict[str, str]) -> None:
    if isinstance(value, dict):
        for name, each in value.items():
            _collect(each, f"{path}.{name}" if path else name, found)
    elif isinstance(value, list):
        for position, each in enumerate(value, 1):
            _collect(each, f"{path}[{position}]", found)
    else:
        found[path] = value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _timings(before: History, after: History) -> Iterator[Timing]:
    first, second = _seconds(before), _seconds(after)
    for what in dict.fromkeys((*first, *second)):
        yield Timing(what=what, before=first.get(what), after=second.get(what))


def _seconds(history: History) -> dict[str, float]:
    """How long the job took, and the packages of each activity on average."""
    found: dict[str, list[float]] = {}
    job = history.job
    if job.submitted_at is not None and job.finished_at is not None:
        found["job"] = [max(job.finished_at - job.submitted_at, 0.0)]
    for package in history.packages():
        granted = package.granted
        if granted is not None and granted.seconds is not None:
            found.setdefault(package.activity or package.name, []).append(granted.seconds)
    return {what: round(fmean(seconds), 3) for what, seconds in found.items()}
