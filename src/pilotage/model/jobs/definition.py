"""The definition of a job, in its one canonical form.

job → stages → lines → packages → binaries, as in the DØ job definition, with the fields that GASW's input adds. These
classes are the table of the language: the reader, the JSON Schema and the reference page are all derived from their
fields, types and descriptions. Run-time facts (status, failure history, chosen node) are not here; they live in the book.

A text marked `TEMPLATE` may hold placeholders such as `{seed}`. Quantities end in their unit: a field `memory_bytes`
may be written `memory: 2 GiB` in a document, a field `wall_time_seconds` as `wall_time: 2h`.
"""

from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pilotage.model.states import Action

LANGUAGE_VERSION = 1

TEMPLATE = Meta(extra={"template": True})
PATH = Meta(extra={"path": True})
EXPRESSION = Meta(extra={"expression": True})


def _doc(text: str) -> Meta:
    return Meta(description=text)


Acquisition = Literal["", "none", "self", "prefetch"]
Retention = Literal["", "retain-indefinitely", "retain-temporarily", "deletable", "release"]
Disposition = Literal["forward", "store", "retain-indefinitely", "retain-temporarily", "deletable"]
Operator = Literal["dot", "cross", "flat-cross", "match"]
ContainerEngine = Literal["any", "apptainer", "podman", "docker"]
ParameterType = Literal["text", "integer", "number", "yes-no"]
Role = Literal["work", "final", "provisioner", "service"]
ComparedAs = Literal["identical", "numbers", "text"]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of every part of a definition: frozen, and written without default values."""


class Environment(Value, frozen=True, kw_only=True):
    """Variables of two types: those the application sees, and settings of pilotage for one package."""

    exported: Annotated[dict[str, Annotated[str, TEMPLATE]], _doc("Set for the application; an inner level wins.")] = {}
    setting: Annotated[dict[str, str], _doc("Override a documented setting of pilotage for this package.")] = {}


class InputFile(Value, frozen=True, kw_only=True):
    """A file, or a pattern of files, that a binary needs."""

    name: Annotated[str, TEMPLATE, PATH, _doc("The file's name in the job's tree, or a pattern with `*`, `?`, `[…]`.")]
    locator: Annotated[
        str,
        TEMPLATE,
        _doc(
            "The URL of the file, or its absolute path; one that ends in `/` is a folder, to which the name is added."
        ),
    ] = ""
    size_bytes: Annotated[Count | None, _doc("Its size, estimated if need be.")] = None
    sha256: Annotated[
        str,
        TEMPLATE,
        _doc("With a locator: the checksum that its content must have; none: the one found in the store."),
    ] = ""
    acquisition: Annotated[
        Acquisition,
        _doc(
            "`none`: it must be there, in the job's tree or, with a locator, at that path on the node or in the cache of the"
            " site; `self`: the binary fetches it; `prefetch`: it is brought before the start, with a locator to the cache of"
            " the site. Default: `prefetch` with a locator, else `none`."
        ),
    ] = ""
    disposition: Annotated[
        Retention,
        _doc(
            "With a locator, how long the cache of the site keeps it: `retain-indefinitely`, `retain-temporarily` (until space"
            " is needed; the default), `deletable` (until no package needs it), or `release`: earlier wishes of this owner"
            " end, and it is deletable. The longest wish of all jobs holds. `release` works without a locator, too, on files listed"
            " by `{files: PATTERN, job: NAME}`: they leave the tree of that job."
        ),
    ] = ""

    @property
    def brought(self) -> bool:
        """Whether it is brought to the cache of the site before the package starts."""
        return self.acquisition == "prefetch" or (bool(self.locator) and not self.acquisition)

    @property
    def present(self) -> bool:
        """Whether it must be at its locator already: at that path, or in the cache of the site."""
        return self.acquisition == "none" and bool(self.locator)


class OutputFile(Value, frozen=True, kw_only=True):
    """A file, a pattern, or a regular expression of files, that a binary makes."""

    name: Annotated[str, TEMPLATE, PATH, _doc("The file's name in the job's tree, or a pattern of names.")] = ""
    expression: Annotated[str, EXPRESSION, _doc("Instead of a name: a regular expression matched against names.")] = ""
    folder: Annotated[str, TEMPLATE, PATH, _doc("With an expression: the folder that matching files are put into.")] = (
        ""
    )
    locator: Annotated[
        str,
        TEMPLATE,
        _doc(
            "The URL or path of its copy in a store; one that ends in `/` is a folder, to which the name is added. `store:`:"
            " the service keeps it by its content."
        ),
    ] = ""
    replicas: Annotated[
        Positive, _doc("Copies of it in different stores: the one of `locator`, then in the stores of `files.archive`.")
    ] = 1
    size_bytes: Annotated[Count | None, _doc("Its estimated size.")] = None
    dispositions: Annotated[
        tuple[Disposition, ...],
        _doc(
            "What is done with it, in any combination: `forward` (to later packages), `store` (copied to stores, and verified,"
            " before the package counts as done), and one of `retain-indefinitely` (also kept in the cache of the site where it"
            " is made, until its owner releases it), `retain-temporarily` (the same, until space is needed) and `deletable`"
            " (removed after its last consumer). Default: forwarded, and kept in the job's tree."
        ),
    ] = ()

    @property
    def stored(self) -> bool:
        """Whether copies of it are made in stores."""
        return bool(self.locator) or self.replicas > 1 or "store" in self.dispositions

    @property
    def stored_as(self) -> str:
        """How it is stored, as the document says; empty: not at all. An earlier result counts only if it was stored so."""
        return f"{self.replicas} {self.locator}" if self.stored else ""


class Binary(Value, frozen=True, kw_only=True):
    """One executable with its arguments. Exactly one of `run`, `shell`, `software` and `invoking_script` starts it."""

    name: Annotated[str, _doc("What to call it.")] = ""
    run: Annotated[tuple[Annotated[str, TEMPLATE], ...], _doc("The command as arguments; never given to a shell.")] = ()
    shell: Annotated[str, TEMPLATE, _doc("A script for `/bin/sh`, for pipes and redirection.")] = ""
    software: Annotated[str, _doc("The id of a software description.")] = ""
    version: Annotated[str, _doc("The version of that software; none: the first one that its site has.")] = ""
    invoking_script: Annotated[str, TEMPLATE, PATH, _doc("A script file that starts the binary.")] = ""
    parameters: Annotated[dict[str, Any], _doc("Named values for the software's command line.")] = {}
    arguments: Annotated[
        tuple[Annotated[str, TEMPLATE], ...], _doc("Arguments put at `{arguments}`, or at the end of the command.")
    ] = ()
    inputs: Annotated[tuple[InputFile, ...], _doc("The files it needs.")] = ()
    outputs: Annotated[tuple[OutputFile, ...], _doc("The files it makes.")] = ()
    stdin: Annotated[str, TEMPLATE, PATH, _doc("A file read as standard input.")] = ""
    stdout: Annotated[str, TEMPLATE, PATH, _doc("A file that gets the standard output.")] = ""
    stderr: Annotated[str, TEMPLATE, PATH, _doc("A file that gets the standard error.")] = ""
    data_handling: Annotated[bool, _doc("Needs a data-handling service at its site.")] = False
    cpu_percent: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        _doc("CPU usage of its cores in percent; packages may share a core."),
    ] = None
    work_bytes: Annotated[Count | None, _doc("Estimated size of its work files.")] = None
    run_time_seconds: Annotated[Seconds | None, _doc("Estimated run time on the standard platform.")] = None
    environment: Annotated[Environment, _doc("Variables of this binary alone.")] = Environment()


class Resources(Value, frozen=True, kw_only=True):
    """The resources of a node that a package uses."""

    cores: Annotated[Annotated[float, Meta(gt=0)], _doc("Cores; hundredths are possible.")] = 1
    memory_bytes: Annotated[Count | None, _doc("Memory.")] = None
    gpus: Annotated[Count, _doc("Graphics processors.")] = 0
    nodes: Annotated[Positive, _doc("Nodes; more than one is an MPI job.")] = 1
    wall_time_seconds: Annotated[Seconds | None, _doc("The time after which it is stopped.")] = None
    scratch_bytes: Annotated[Count | None, _doc("Scratch space.")] = None


class Container(Value, frozen=True, kw_only=True):
    """The image a package runs in."""

    image: Annotated[str, TEMPLATE, _doc("The image's name or file.")]
    engine: Annotated[ContainerEngine, _doc("The container engine; `any`: the one that the site has.")] = "any"


class RetryRule(Value, frozen=True, kw_only=True):
    """The action after one kind of failure, which one of `reason`, `exit_code` and `pattern` selects."""

    reason: Annotated[str, _doc("A failure reason, or one that a failure pattern of the package names.")] = ""
    exit_code: Annotated[int | None, _doc("An exit code of the application.")] = None
    pattern: Annotated[str, EXPRESSION, _doc("A regular expression found in the log.")] = ""
    action: Annotated[Action, _doc("The action.")]
    times: Annotated[Positive | None, _doc("How often at most; none: the common cap.")] = None
    memory_factor: Annotated[
        Annotated[float, Meta(gt=1)] | None, _doc("With `more-memory`: factor on the memory it had.")
    ] = None
    time_factor: Annotated[
        Annotated[float, Meta(gt=1)] | None, _doc("With `more-time`: factor on the time it had.")
    ] = None


class Retry(Value, frozen=True, kw_only=True):
    """How failures of a package are handled; rules are tried in order, then the defaults."""

    attempts_max: Annotated[Positive | None, _doc("The cap on counted attempts; none: the setting.")] = None
    rules: Annotated[tuple[RetryRule, ...], _doc("The rules.")] = ()


class FailurePattern(Value, frozen=True, kw_only=True):
    """A text in a log that means failure, even if the exit code is 0."""

    pattern: Annotated[str, EXPRESSION, _doc("A regular expression, matched line by line.")]
    file: Annotated[str, TEMPLATE, _doc("`stdout`, `stderr`, or a file of the package.")] = "stderr"
    reason: Annotated[str, _doc("What to call the failure.")] = "failure-pattern"


class Progress(Value, frozen=True, kw_only=True):
    """How to check that a package makes progress."""

    files: Annotated[
        tuple[Annotated[str, TEMPLATE], ...], _doc("Files that must grow; none: its log and CPU time.")
    ] = ()
    stalled_after_seconds: Annotated[Seconds, _doc("After this time without growth it counts as looping.")]


class Script(Value, frozen=True, kw_only=True):
    """A command that runs beside a package, on the service's side."""

    run: Annotated[tuple[Annotated[str, TEMPLATE], ...], _doc("The command as arguments.")]
    defer_exit_code: Annotated[int | None, _doc("With this exit code it is run again later.")] = None
    defer_seconds: Annotated[Seconds | None, _doc("How much later.")] = None


class Scripts(Value, frozen=True, kw_only=True):
    """The scripts around a package."""

    pre: Annotated[Script | None, _doc("Before it; a failure fails the package.")] = None
    post: Annotated[Script | None, _doc("After it; its exit code decides.")] = None
    hold: Annotated[Script | None, _doc("When it is held.")] = None
    skip_exit_code: Annotated[int | None, _doc("When `pre` ends with this code, the package counts as done.")] = None


class AbortOn(Value, frozen=True, kw_only=True):
    """An exit code of a package that ends the whole job."""

    exit_code: Annotated[int, _doc("The exit code.")]
    result: Annotated[Count | None, _doc("The exit code of the job then; none: the same.")] = None


class Package(Value, frozen=True, kw_only=True):
    """The indivisible unit of scheduling: binaries run one after the other in one place."""

    name: Annotated[str, TEMPLATE, _doc("What to call each one; must come out different for each.")] = ""
    activity: Annotated[
        str,
        _doc("Packages of one activity are compared with each other; none: its software, or its program or script."),
    ] = ""
    startup_script: Annotated[str, TEMPLATE, PATH, _doc("A script that runs the binaries, instead of one by one.")] = ""
    startup_parameters: Annotated[tuple[Annotated[str, TEMPLATE], ...], _doc("The arguments of that script.")] = ()
    node_restriction: Annotated[tuple[str, ...], _doc("Only on one of these nodes, by name or pattern.")] = ()
    platform: Annotated[str, _doc("Only on this platform.")] = ""
    executor: Annotated[
        str,
        _doc("The only site, or kind of site, to run on; none: anywhere; an unknown one: anywhere, with a warning."),
    ] = ""
    job_type: Annotated[str, _doc("Which execution of the software, such as `normal` or `mpi`.")] = "normal"
    resources: Annotated[Resources, _doc("The resources of a node that it uses.")] = Resources()
    container: Annotated[Container | None, _doc("The image it runs in.")] = None
    retry: Annotated[Retry, _doc("How failures are handled.")] = Retry()
    failure_patterns: Annotated[tuple[FailurePattern, ...], _doc("Texts in logs that mean failure.")] = ()
    progress: Annotated[Progress | None, _doc("How to check that it makes progress.")] = None
    side_effects: Annotated[bool, _doc("It has side effects outside its folder: never run twice at once.")] = False
    priority: Annotated[int | None, _doc("Higher runs first within the job; none: the job's.")] = None
    category: Annotated[str, _doc("A group with a limit in the job's `limits`.")] = ""
    role: Annotated[Role, _doc("`final` runs last in any case, `provisioner` first, `service` beside the others.")] = (
        "work"
    )
    scripts: Annotated[Scripts, _doc("Commands around it.")] = Scripts()
    abort_on: Annotated[AbortOn | None, _doc("An exit code that ends the whole job.")] = None
    noop: Annotated[bool, _doc("Counts as done without being run.")] = False
    done: Annotated[bool, _doc("Was done before.")] = False
    subjob: Annotated[str, TEMPLATE, PATH, _doc("A document of its own that this package runs.")] = ""
    after: Annotated[
        tuple[Annotated[str, TEMPLATE], ...], _doc("Names of packages to wait for without a file; for imported jobs.")
    ] = ()
    environment: Annotated[Environment, _doc("Variables of the package.")] = Environment()
    binaries: Annotated[tuple[Binary, ...], _doc("What it runs, in order.")] = ()


class Source(Value, frozen=True, kw_only=True):
    """A list to iterate over. Exactly one of `values`, `range`, `files`, `csv`, `lines` defines it."""

    variable: Annotated[str, _doc("The variable for its values; none with `csv`: each column under its own name.")] = ""
    values: Annotated[tuple[str, ...] | None, _doc("The values themselves.")] = None
    range: Annotated[str, _doc("Integers, `1..1000` or `1..1000..10`; `001..100` keeps the zeros.")] = ""
    files: Annotated[str, _doc("A pattern: outputs of earlier stages where any match, else files on disk.")] = ""
    csv: Annotated[str, _doc("A CSV file with a header.")] = ""
    column: Annotated[str, _doc("With `csv`: the one column to take.")] = ""
    lines: Annotated[str, _doc("A file whose lines are the values.")] = ""
    stage: Annotated[str, _doc("With `files`: only outputs of this stage.")] = ""
    job: Annotated[
        str, _doc("With `files`: outputs of this earlier job, by its id, or the newest finished one of this name.")
    ] = ""
    site: Annotated[
        str,
        _doc(
            "With `files`: files in the cache of this site, by a pattern of their names, or of their locators if it has a `/`;"
            " `{x.name}` and `{x.size}` are the name and the size in bytes of a value."
        ),
    ] = ""
    group: Annotated[Positive | None, _doc("How many values to take at a time; the variable is then a list.")] = None


class Combination(Value, frozen=True, kw_only=True):
    """Iterations combined into one, nested freely."""

    operator: Operator
    of: "tuple[Iteration, ...]"


Iteration = Source | Combination


class Line(Value, frozen=True, kw_only=True):
    """A sequence of packages; with `each`, one line per item."""

    name: Annotated[str, _doc("What to call it.")] = ""
    each: Annotated[Iteration | None, _doc("What it is repeated over.")] = None
    early_start: Annotated[
        bool, _doc("Its first package may start while the packages that make its inputs still run, at their site.")
    ] = False
    packages: Annotated[tuple[Package, ...], _doc("What it runs, in sequence.")] = ()


class Stage(Value, frozen=True, kw_only=True):
    """A stretch of equal parallelism; with `each`, its lines are repeated for every item."""

    name: Annotated[str, _doc("What to call it; none: the program of its first package.")] = ""
    each: Annotated[Iteration | None, _doc("What its lines are repeated over.")] = None
    lines: Annotated[tuple[Line, ...], _doc("Its lines, side by side.")] = ()


class Execution(Value, frozen=True, kw_only=True):
    """How a software is started for one type of job."""

    job_type: Annotated[str, _doc("Such as `normal`, `mpi`.")] = "normal"
    run: Annotated[tuple[Annotated[str, TEMPLATE], ...], _doc("The command as arguments.")] = ()
    shell: Annotated[str, TEMPLATE, _doc("A script for `/bin/sh`.")] = ""
    invoking_script: Annotated[str, TEMPLATE, PATH, _doc("A script file that starts it.")] = ""
    environment: Annotated[Environment, _doc("Variables of this execution; they win over the outer ones.")] = (
        Environment()
    )


class Infrastructure(Value, frozen=True, kw_only=True):
    """How a software is started on one kind of computers."""

    name: Annotated[
        str,
        _doc(
            "The name of a site, or a kind of sites; `any` fits all. The most specific one is used, once the site is known."
        ),
    ] = "any"
    platform: Annotated[str, _doc("Only for this platform.")] = ""
    environment: Annotated[Environment, _doc("Variables shared by its executions.")] = Environment()
    executions: Annotated[tuple[Execution, ...], _doc("One per type of job.")] = ()


class Archive(Value, frozen=True, kw_only=True):
    """A software as a file for one platform, which is brought to sites and unpacked there."""

    locator: Annotated[
        str, _doc("The URL of the archive (`.tar`, `.tar.gz`, `.tar.xz`, `.zip`), or its absolute path.")
    ]
    platform: Annotated[str, _doc("The platform it is for; none: any.")] = ""
    sha256: Annotated[str, _doc("The checksum that it must have; none: the one found in the store.")] = ""
    size_bytes: Annotated[Count | None, _doc("Its size.")] = None
    folder: Annotated[
        str,
        PATH,
        _doc("The name of the folder of unpacked files beside the inputs of a package; none: the software's id."),
    ] = ""


class Software(Value, frozen=True, kw_only=True):
    """A software described once: id, version, and how to start it where (GASW's release)."""

    id: Annotated[str, _doc("Its id.")]
    version: Annotated[str, _doc("Its version.")] = ""
    description: Annotated[str, _doc("What it is.")] = ""
    probe: Annotated[
        tuple[str, ...],
        _doc(
            "The command that prints its version, as arguments; run once per node, after the first package that uses it."
        ),
    ] = ()
    environment: Annotated[Environment, _doc("Variables shared by all its infrastructures.")] = Environment()
    archives: Annotated[
        tuple[Archive, ...],
        _doc(
            "The software itself, one per platform: brought to a site before its first package that uses it starts there."
        ),
    ] = ()
    infrastructures: Annotated[tuple[Infrastructure, ...], _doc("How it is started where.")] = ()
    boutiques: Annotated[dict[str, Any] | None, _doc("A Boutiques descriptor, or the file that holds it.")] = None


class Parameter(Value, frozen=True, kw_only=True):
    """A value chosen for each run, by `--set NAME=VALUE` or `--parameters FILE`."""

    type: Annotated[ParameterType, _doc("What it may be.")] = "text"
    default: Annotated[str | None, _doc("The value if none is chosen; without a default, one must be.")] = None
    description: Annotated[str, _doc("What it is for.")] = ""
    value: Annotated[str | None, _doc("The chosen value; it is stored with the job.")] = None

    @property
    def chosen(self) -> str | None:
        """The chosen value, else the default; None without either."""
        return self.default if self.value is None else self.value


class Provenance(Value, frozen=True, kw_only=True):
    """What is kept with the record of the job, besides what it runs, reads and makes."""

    script: Annotated[
        tuple[str, ...],
        _doc(
            "A command run after each package, in its folder: the JSON object that it prints, at most 64 KiB, is kept."
            " Its failure fails nothing."
        ),
    ] = ()
    core_bytes: Annotated[
        Count, _doc("Keep core files of crashed programs up to this size, at most 4 MiB when compressed; 0: none.")
    ] = 0
    data: Annotated[dict[str, str], _doc("Names and values, kept as tags of the job.")] = {}


class Comparison(Value, frozen=True, kw_only=True):
    """When outputs of two runs count as equal; the first one whose `files` match a name is used, else bytes must be identical."""

    files: Annotated[tuple[str, ...], _doc("Names of outputs, or patterns; one without `/` fits in any folder.")]
    compared_as: Annotated[
        ComparedAs,
        _doc(
            "`identical`: the same bytes; `numbers`: the same words, and numbers within the tolerances; `text`: the same lines."
        ),
    ]
    tolerance: Annotated[
        Annotated[float, Meta(ge=0)],
        _doc("With `numbers`, relative: numbers may differ by this part of the larger one."),
    ] = 0
    absolute_tolerance: Annotated[
        Annotated[float, Meta(ge=0)], _doc("With `numbers`: numbers may differ by this, however small they are.")
    ] = 0
    ignore: Annotated[
        tuple[Annotated[str, EXPRESSION], ...],
        _doc("Regular expressions: lines in which one is found do not count; not with `identical`."),
    ] = ()


class Definition(Value, frozen=True, kw_only=True):
    """A whole job."""

    pilotage: Annotated[int, _doc("The version of the language.")] = LANGUAGE_VERSION
    job: Annotated[str, _doc("Its short name.")]
    id: Annotated[str, _doc("Its unique id; none: given at submission.")] = ""
    owner: Annotated[str, _doc("The owner; none: the user who submits it.")] = ""
    created: Annotated[str, _doc("When it was made: an ISO 8601 time with its zone.")] = ""
    description: Annotated[str, _doc("What it is for.")] = ""
    priority: Annotated[int, _doc("Higher goes first.")] = 0
    hold: Annotated[bool, _doc("Submit it without starting it.")] = False
    parameters: Annotated[dict[str, Parameter], _doc("Values to choose for each run, used as placeholders.")] = {}
    variables: Annotated[dict[str, str], _doc("Constants, used as placeholders everywhere.")] = {}
    limits: Annotated[dict[str, Positive], _doc("Category → how many of its packages may run at once.")] = {}
    environment: Annotated[Environment, _doc("Variables of every package.")] = Environment()
    provenance: Annotated[Provenance, _doc("What is kept with the record of the job.")] = Provenance()
    software: Annotated[tuple[Software, ...], _doc("Descriptions of software.")] = ()
    compare: Annotated[
        tuple[Comparison, ...], _doc("When outputs of a later run count as equal; results do not depend on it.")
    ] = ()
    stages: Annotated[tuple[Stage, ...], _doc("What is to be done.")] = ()

    @property
    def constants(self) -> dict[str, str]:
        """The names that every package can use: variables, parameters, and the name of the job."""
        chosen = {name: each.chosen for name, each in self.parameters.items()}
        return {**self.variables, **{name: text for name, text in chosen.items() if text is not None}, "job": self.job}


@cache
def _defaults(kind: type[Value]) -> tuple[tuple[str, object], ...]:
    """The fields of a record with their defaults; a required field has a default that equals nothing."""
    return tuple(
        (f.name, f.default_factory() if f.default_factory is not msgspec.NODEFAULT else f.default)
        for f in msgspec.structs.fields(kind)
    )


def plain(value: object) -> Any:
    """The canonical form as plain data for YAML or JSON, without default values."""
    if isinstance(value, Combination):
        return {value.operator: [plain(item) for item in value.of]}
    if isinstance(value, Value):
        found = {}
        for name, default in _defaults(type(value)):
            item = getattr(value, name)
            if item != default or name == "pilotage":
                found[name] = plain(item)
        return found
    if isinstance(value, float) and value.is_integer():
        return int(value)  # written the same in either case
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


# The name of a document in its folder; separate from the language, since a run looks for one before it reads any.

DOCUMENT_NAMES = ("pilotage.yaml", "pilotage.yml", "pilotage.json")
