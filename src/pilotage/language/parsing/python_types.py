"""The fields of a document as Python types, for jobs that are built in code.

Each mapping has the fields of its record in `model.jobs.definition`, including short names and the fields of levels below
it that may be left out; a test compares the two. The records themselves can be used instead of mappings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pilotage.model.jobs import definition
from pilotage.model.jobs.definition import (
    Acquisition,
    ComparedAs,
    ContainerEngine,
    Disposition,
    ParameterType,
    Retention,
    Role,
)
from pilotage.model.states import Action, Reason

Size = int | str  # bytes, or a text with a unit
Duration = float | str  # seconds, or a text with a unit
Text = str | int | float


class EnvironmentFields(TypedDict, total=False):
    """Variables of both types."""

    exported: Mapping[str, Text]
    setting: Mapping[str, Text]


class InputFields(TypedDict, total=False):
    """An input file."""

    name: str
    locator: str
    size: Size
    size_bytes: Size
    sha256: str
    acquisition: Acquisition
    disposition: Retention


class OutputFields(TypedDict, total=False):
    """An output file."""

    name: str
    expression: str
    folder: str
    locator: str
    replicas: int
    size: Size
    size_bytes: Size
    dispositions: Sequence[Disposition] | Disposition


class ContainerFields(TypedDict, total=False):
    """A container image."""

    image: str
    engine: ContainerEngine


class RetryRuleFields(TypedDict, total=False):
    """A retry rule."""

    reason: Reason
    exit_code: int
    pattern: str
    action: Action
    times: int
    memory_factor: float
    time_factor: float


class RetryFields(TypedDict, total=False):
    """How failed attempts are retried."""

    attempts_max: int
    rules: Sequence[RetryRuleFields | definition.RetryRule]


class FailurePatternFields(TypedDict, total=False):
    """A text in a log that means failure."""

    pattern: str
    file: str
    reason: str


class ProgressFields(TypedDict, total=False):
    """How to detect that a package makes progress."""

    files: Sequence[str] | str
    stalled_after: Duration
    stalled_after_seconds: Duration


class ScriptFields(TypedDict, total=False):
    """A command beside a package."""

    run: str | Sequence[Text]
    defer_exit_code: int
    defer: Duration
    defer_seconds: Duration


class ScriptsFields(TypedDict, total=False):
    """The commands around a package."""

    pre: ScriptFields | str
    post: ScriptFields | str
    hold: ScriptFields | str
    skip_exit_code: int


class AbortOnFields(TypedDict, total=False):
    """An exit code that ends the job."""

    exit_code: int
    result: int


class ResourcesFields(TypedDict, total=False):
    """The resources of a package."""

    cores: float
    memory: Size
    memory_bytes: Size
    gpus: int
    nodes: int
    wall_time: Duration
    wall_time_seconds: Duration
    scratch: Size
    scratch_bytes: Size


class SourceFields(TypedDict, total=False):
    """A list to iterate over."""

    variable: str
    values: Sequence[Text]
    range: str
    files: str
    csv: str
    column: str
    lines: str
    stage: str
    job: str
    site: str
    group: int


IterationFields = (
    Mapping[str, Any] | SourceFields | definition.Source | definition.Combination
)  # {variable: values, range, text or SourceFields}, or {operator: operands}


class BinaryFields(TypedDict, total=False):
    """A binary."""

    name: str
    run: str | Sequence[Text]
    shell: str
    software: str
    version: Text
    invoking_script: str
    parameters: Mapping[str, Any]
    arguments: Sequence[Text] | Text
    inputs: Sequence[InputFields | definition.InputFile | str] | InputFields | definition.InputFile | str
    outputs: Sequence[OutputFields | definition.OutputFile | str] | OutputFields | definition.OutputFile | str
    stdin: str
    stdout: str
    stderr: str
    data_handling: bool
    cpu_percent: float
    work: Size
    work_bytes: Size
    run_time: Duration
    run_time_seconds: Duration
    environment: EnvironmentFields | definition.Environment | Mapping[str, Text]


class PackageFields(BinaryFields, ResourcesFields, total=False):
    """A package; without `binaries` it is its only binary too."""

    activity: str
    startup_script: str
    startup_parameters: Sequence[Text] | Text
    node_restriction: Sequence[str] | str
    platform: str
    executor: str
    job_type: str
    resources: ResourcesFields | definition.Resources
    container: ContainerFields | definition.Container | str
    retry: RetryFields | definition.Retry
    failure_patterns: Sequence[FailurePatternFields | definition.FailurePattern | str] | str
    progress: ProgressFields | definition.Progress | Duration
    side_effects: bool
    priority: int
    category: str
    role: Role
    scripts: ScriptsFields | definition.Scripts
    abort_on: AbortOnFields | definition.AbortOn | int
    noop: bool
    done: bool
    subjob: str
    after: Sequence[str] | str
    binaries: Sequence[BinaryFields | definition.Binary]


class LineFields(PackageFields, total=False):
    """A line; without `packages` it is its only package too."""

    each: IterationFields
    early_start: bool
    packages: Sequence[PackageFields | definition.Package]


class StageFields(LineFields, total=False):
    """A stage; without `lines` it is its only line too."""

    lines: Sequence[LineFields | definition.Line]


class ExecutionFields(TypedDict, total=False):
    """How a software is started for one type of job."""

    job_type: str
    run: str | Sequence[Text]
    shell: str
    invoking_script: str
    environment: EnvironmentFields | definition.Environment | Mapping[str, Text]


class InfrastructureFields(ExecutionFields, total=False):
    """How a software is started on one kind of computers; without `executions` it is its only one too."""

    name: str
    platform: str
    executions: Sequence[ExecutionFields]


class ArchiveFields(TypedDict, total=False):
    """A software as a file for one platform."""

    locator: str
    platform: str
    sha256: str
    size: Size
    size_bytes: Size
    folder: str


class SoftwareFields(InfrastructureFields, total=False):
    """A software; without `infrastructures` it is its only one too."""

    id: str
    version: Text
    description: str
    probe: str | Sequence[Text]
    archives: Sequence[ArchiveFields | str] | ArchiveFields | str
    infrastructures: Sequence[InfrastructureFields]
    boutiques: str | Mapping[str, Any]


class ParameterFields(TypedDict, total=False):
    """A value that is chosen for each run."""

    type: ParameterType
    default: Text
    description: str
    value: Text


class ProvenanceFields(TypedDict, total=False):
    """What is kept with the record of a job."""

    script: str | Sequence[Text]
    core: Size
    core_bytes: Size
    data: Mapping[str, Text]


class _ComparisonFields(TypedDict, total=False):
    files: Sequence[str] | str
    compared_as: ComparedAs
    tolerance: float
    absolute_tolerance: float
    ignore: Sequence[str] | str


_As = TypedDict("_As", {"as": ComparedAs}, total=False)  # a word of Python cannot name a field of a class


class ComparisonFields(_ComparisonFields, _As, total=False):
    """When outputs of two runs count as equal."""


class JobFields(TypedDict, total=False):
    """The head of a document."""

    id: str
    owner: str
    created: str
    description: str
    priority: int
    hold: bool
    parameters: Mapping[str, ParameterFields | definition.Parameter | Text]
    variables: Mapping[str, Text]
    limits: Mapping[str, int]
    environment: EnvironmentFields | definition.Environment | Mapping[str, Text]
    provenance: ProvenanceFields | definition.Provenance
    software: Sequence[SoftwareFields | definition.Software]
    catalogue: Sequence[str] | str
    compare: Sequence[ComparisonFields | definition.Comparison] | ComparisonFields | definition.Comparison
