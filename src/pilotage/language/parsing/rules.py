"""Rules between the fields of a definition that do not depend on its lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import get_args

from pilotage.language.parsing.iterations import RESERVED, Each, variable_fault
from pilotage.language.parsing.kinds import FieldPath, ListOf, Text
from pilotage.language.parsing.records import Record, fields_of
from pilotage.language.text.locators import (
    LocatorFault,
    input_fault,
    is_folder,
    locator_fault,
    shown_locator,
    target_fault,
)
from pilotage.language.text.names import why_outside
from pilotage.language.text.patterns import is_pattern
from pilotage.language.text.quantities import parse_bytes, parse_seconds
from pilotage.language.text.templates import Style, literal_text, parse_template
from pilotage.language.text.tree import Mark, Report
from pilotage.model.errors import did_you_mean
from pilotage.model.jobs.definition import (
    Binary,
    Combination,
    Comparison,
    Definition,
    Environment,
    InputFile,
    OutputFile,
    Package,
    RetryRule,
    Software,
    Value,
)
from pilotage.model.settings.package_settings import PACKAGE_SETTINGS
from pilotage.model.site import NODE_NAME, NODE_NAME_FORM
from pilotage.model.states import Reason

MarkOf = Callable[[FieldPath], Mark]

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_JOB_NAME_FORM = "letters, digits, '.', '_', '+' and '-', starting with a letter or digit, at most 200"

_TAG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_TAG_NAME_FORM = "letters, digits, '_', '.' and '-', starting with a letter or '_', at most 128"


# These may follow from another fault: the description of the software was perhaps not readable.
_CONSEQUENCES = frozenset({"unknown-software", "unknown-software-version"})
# These are faults even if other parts were not readable.
_STANDS_BY_ITSELF = frozenset(
    {"bad-name", "bad-stream", "contradicting-dispositions", "reserved-name", "unknown-choice"}
)
_NAME_CHARACTERS_MAX = 4096  # no file system allows a longer path
_ACTIVITY_CHARACTERS_MAX = 256


def check_rules(
    definition: Definition,
    report: Report,
    mark: MarkOf,
    *,
    is_faulty: Callable[[FieldPath], bool] = lambda _: False,
    is_lost: Callable[[FieldPath], bool] = lambda _: False,
    own_software: int | None = None,
) -> None:
    """Report every broken rule, except in faulty records, whose missing fields may just have been unreadable.

    Only the first `own_software` descriptions are from this document; those of catalogues were checked there.
    """
    faulty = is_faulty(())
    if not _JOB_NAME.fullmatch(definition.job):
        message = f"{definition.job!r} cannot name a job: expected {_JOB_NAME_FORM}"
        report.error("bad-name", message, mark(("job",)))
    if not faulty:
        if not definition.stages:
            report.error("no-stages", "a job needs at least one stage", mark(("stages",)))
        _check_names(definition, report, mark)
        _check_limits(definition, report, mark)
    _check_variables(definition, report, mark)
    _check_data(definition, report, mark)
    for place, value in values_in(definition):
        if place and _stands_elsewhere(place, own_software):
            continue
        spoilt = bool(place) and is_faulty(place)
        for code, message, hint, inner in _faults(value, definition):
            if spoilt and (code not in _STANDS_BY_ITSELF or is_lost((*place, "failure_patterns"))):
                continue
            if code not in _CONSEQUENCES or not faulty:
                report.error(code, message, mark((*place, *inner)), hint=hint)
        for code, message, inner in _template_faults(value) if not spoilt else ():
            report.error(code, message, mark((*place, *inner)))


def _stands_elsewhere(place: FieldPath, own_software: int | None) -> bool:
    return own_software is not None and place[0] == "software" and len(place) > 1 and int(place[1]) >= own_software


def check_software(software: Software, report: Report, mark: MarkOf) -> None:
    """Report every broken rule in a description of software from a file of its own."""
    for place, value in values_in(software):
        for code, message, hint, inner in _faults(value, Definition(job="catalogue")):
            report.error(code, message, mark((*place, *inner)), hint=hint)
        for code, message, inner in _template_faults(value):
            report.error(code, message, mark((*place, *inner)))


_ANY_TEXT = frozenset(
    {"description", "job", "pattern", "expression", "boutiques", "files", "csv", "lines", "values", "range", "ignore"}
)


def _misplaced(value: Value) -> Iterator[tuple[str, str, FieldPath]]:
    """Placeholders in texts that are the same for all packages, where they are not filled in."""
    for field in fields_of(type(value)):
        found = getattr(value, field.name)
        if "template" in field.marks or field.name in _ANY_TEXT or not isinstance(field.kind, (Text, ListOf)):
            continue
        for text in (found,) if isinstance(found, str) else found:
            gaps = parse_template(text).placeholders if isinstance(text, str) else ()
            if gaps:
                yield (
                    "misplaced-placeholder",
                    f"{gaps[0]} is not allowed in {field.name!r}, which is the same for all packages",
                    (field.name,),
                )


def _template_faults(value: Value) -> Iterator[tuple[str, str, FieldPath]]:
    yield from _misplaced(value)
    activity = getattr(value, "activity", "")
    if len(activity) > _ACTIVITY_CHARACTERS_MAX:
        message = f"a name of {len(activity):,} characters; at most {_ACTIVITY_CHARACTERS_MAX} are possible"
        yield "name-too-long", message, ("activity",)
    for inner, text, style in templates_in(value):
        fault = parse_template(text, style).fault
        if inner[0] in ("name", "folder") and len(text) > _NAME_CHARACTERS_MAX:
            message = f"a name of {len(text):,} characters; at most {_NAME_CHARACTERS_MAX:,} are possible"
            yield "name-too-long", message, inner
        elif fault:
            yield "bad-template", f"in {text!r}: {fault}", inner


def _check_data(definition: Definition, report: Report, mark: MarkOf) -> None:
    for name in definition.provenance.data:
        if _TAG_NAME.fullmatch(name) is None:
            message = f"{name!r} cannot name data of a job: expected {_TAG_NAME_FORM}"
            report.error("bad-name", message, mark(("provenance", "data", name)))


def _check_limits(definition: Definition, report: Report, mark: MarkOf) -> None:
    """Warn about limits of categories without packages."""
    used = {p.category for _, p in values_in(definition) if isinstance(p, Package)}
    for category in definition.limits:
        if category not in used:
            report.warn("unused-limit", f"no package has the category {category!r}", mark(("limits", category)))


def values_in(value: Value, place: FieldPath = ()) -> Iterator[tuple[FieldPath, Value]]:
    """All records of a definition with their paths, outer ones first, without those that only have defaults."""
    yield place, value
    for name, default in _record_fields(type(value)):
        inner = getattr(value, name)
        if inner is default:
            continue
        if isinstance(inner, Value):
            yield from values_in(inner, (*place, name))
        elif isinstance(inner, tuple):
            for position, item in enumerate(inner):
                if isinstance(item, Value):
                    yield from values_in(item, (*place, name, position))


@cache
def _record_fields(kind: type[Value]) -> tuple[tuple[str, object], ...]:
    """The fields with records, or lists of them, and their defaults; cached, since imported jobs have many records."""
    if kind is Combination:
        return (("of", None),)
    of_lists = (field for field in fields_of(kind) if isinstance(field.kind, ListOf))
    lists = {field.name for field in of_lists if isinstance(field.kind, ListOf) and isinstance(field.kind.item, Record)}
    return tuple((f.name, f.default) for f in fields_of(kind) if f.name in lists or isinstance(f.kind, (Record, Each)))


def templates_in(value: Value) -> Iterator[tuple[FieldPath, str, Style]]:
    """All texts of one record, without inner records, that may contain placeholders."""
    for name in _template_fields(type(value)):
        found = getattr(value, name)
        if not found:
            continue
        style: Style = "shell" if name == "shell" else "strict"
        if isinstance(found, str):
            yield (name,), found, style
        elif isinstance(found, dict):
            for key, text in found.items():
                yield (name, key), text, style
        else:
            for position, text in enumerate(found):
                yield (name, position), text, style


@cache
def _template_fields(kind: type[Value]) -> tuple[str, ...]:
    return tuple(field.name for field in fields_of(kind) if "template" in field.marks)


Fault = tuple[str, str, str, FieldPath]


def _faults(value: Value, definition: Definition) -> Iterator[Fault]:
    """The rules of one record."""
    if isinstance(value, Package):
        yield from _package_faults(value)
    elif isinstance(value, Binary):
        yield from _binary_faults(value, definition)
    elif isinstance(value, InputFile):
        yield from _input_faults(value)
    elif isinstance(value, OutputFile):
        yield from _output_faults(value)
    elif isinstance(value, RetryRule):
        given = [n for n in ("reason", "exit_code", "pattern") if getattr(value, n) not in (None, "")]
        if len(given) != 1:
            message = f"a retry rule is for exactly one of reason, exit_code, pattern; got {', '.join(given) or 'none'}"
            yield "bad-rule", message, "", ()
    elif isinstance(value, Environment):
        yield from _environment_faults(value)
    elif isinstance(value, Comparison):
        yield from _comparison_faults(value)
    elif isinstance(value, Software):
        if not value.infrastructures and value.boutiques is None:
            yield (
                "no-command",
                f"the software {value.id!r} has no command",
                "add run: or boutiques:",
                (),
            )
        if value.infrastructures and value.boutiques is not None:
            yield "two-commands", f"the software {value.id!r} has both a Boutiques descriptor and commands", "", ()
        yield from _archive_faults(value)


def _package_faults(package: Package) -> Iterator[Fault]:
    if not package.binaries and not package.noop and not package.subjob and not package.startup_script:
        yield "no-command", "a package needs something to run", "add run:, shell: or software:", ()
    known = {*get_args(Reason), *(pattern.reason for pattern in package.failure_patterns)}
    for position, rule in enumerate(package.retry.rules):
        if rule.reason and rule.reason not in known:
            hint = did_you_mean(rule.reason, known)
            message = f"{rule.reason!r} is not a failure reason, and no failure pattern of the package names it"
            yield "unknown-choice", message, hint, ("retry", "rules", position, "reason")
    if package.startup_parameters and not package.startup_script:
        yield "no-startup-script", "startup_parameters require a startup_script", "", ("startup_parameters",)
    if package.scripts.skip_exit_code is not None and package.scripts.pre is None:
        yield "no-pre-script", "skip_exit_code requires a pre script", "", ("scripts",)
    for position, name in enumerate(package.node_restriction):
        if not NODE_NAME.fullmatch(name):
            message = f"{name!r} cannot name a node: expected {NODE_NAME_FORM}"
            yield "bad-name", message, "", ("node_restriction", position)
    located: dict[str, str] = {}
    for number, binary in enumerate(package.binaries):
        for position, given in enumerate(binary.inputs):
            if given.locator and given.brought and located.setdefault(given.name, given.locator) != given.locator:
                message = f"two inputs of the package are called {given.name!r} and have different locators"
                yield "two-files", message, "give them different names", ("binaries", number, "inputs", position)
    if package.subjob and package.binaries:
        yield "two-commands", "a package runs either a subjob or binaries, not both", "", ("subjob",)


def _binary_faults(binary: Binary, definition: Definition) -> Iterator[Fault]:
    ways = ("run", "shell", "software", "invoking_script")
    given = [way for way in ways if getattr(binary, way)]
    if not given:
        yield "no-command", f"a binary is started by one of {', '.join(ways)}; got none", "", ()
    if len(given) > 1:
        yield (
            "two-commands",
            f"a binary is started by one of {', '.join(ways)}; got {' and '.join(given)}",
            "",
            (given[1],),
        )
    if binary.version and not binary.software:
        yield "no-software", "version requires software", "", ("version",)
    if binary.software:
        yield from _software_faults(binary, definition)
    for stream in ("stdin", "stdout", "stderr"):
        if is_pattern(getattr(binary, stream)):
            yield "bad-stream", f"{stream} is one file, but {getattr(binary, stream)!r} is a pattern", "", (stream,)
    for name in sorted(RESERVED & binary.parameters.keys()):
        message = f"{{{name}}} is reserved: a parameter cannot have this name"
        yield "reserved-name", message, "", ("parameters", name)


def _software_faults(binary: Binary, definition: Definition) -> Iterator[Fault]:
    described = [software for software in definition.software if software.id == binary.software]
    if described and all(software.boutiques is None for software in described):
        for name, value in binary.parameters.items():
            if not _is_argument(value):
                message = (
                    f"the parameter {name!r} must be a text, a number, or a list of these, to be used in a command"
                )
                yield "wrong-type", message, "", ("parameters", name)
    versions = [software.version for software in described]
    if not versions:
        hint = did_you_mean(binary.software, [software.id for software in definition.software])
        yield "unknown-software", f"no software {binary.software!r} is described", hint, ("software",)
    elif binary.version and binary.version not in versions:
        hint = did_you_mean(binary.version, versions)
        message = f"the software {binary.software!r} is not described in version {binary.version!r}"
        yield "unknown-software-version", message, hint, ("version",)


def _is_argument(value: object) -> bool:
    """Whether a parameter can be used in a command."""
    if isinstance(value, list):
        return all(isinstance(item, (str, int, float)) for item in value)
    return isinstance(value, (str, int, float))


def _input_faults(given: InputFile) -> Iterator[Fault]:
    if not given.name:
        yield "bad-input", "an input needs a name", "", ()
    # What a binary fetches itself may be named in any way that it understands, but for secrets.
    faults = _locator_faults(given.locator, input_fault)
    yield from (each for each in faults if given.acquisition != "self" or each[0] == "secret-in-locator")
    yield from _checksum_faults(given.sha256)
    if given.sha256 and not given.locator:
        yield "bad-input", "sha256 is for an input with a locator", "", ("sha256",)
    if given.locator and (given.brought or given.present) and is_pattern(literal_text(parse_template(given.name))):
        message = f"{given.name!r} is a pattern, and a file that is brought from a locator has a name"
        yield "bad-input", message, "iterate over a list of the files", ("name",)


def _locator_faults(locator: str, check: Callable[[str], LocatorFault | None]) -> Iterator[Fault]:
    """What is wrong with a locator, as far as it is known before its placeholders are filled in."""
    template = parse_template(locator)
    if not template.parts or template.fault:
        return
    begins = template.parts[0]
    fixed = "".join(part if isinstance(part, str) else "x" for part in template.parts)
    if len(template.parts) == 1 and isinstance(begins, str):
        fault = check(fixed)
    else:  # a value may bring the scheme
        fault = locator_fault(fixed if isinstance(begins, str) else f"file:///{fixed}")
    if fault is not None:
        yield fault.code, fault.message, fault.hint, ("locator",)


def _checksum_faults(sha256: str) -> Iterator[Fault]:
    if sha256 and "{" not in sha256 and not _SHA256.fullmatch(sha256):
        yield "bad-checksum", f"{sha256!r} is not a sha256: expected 64 hexadecimal digits", "", ("sha256",)


def _archive_faults(software: Software) -> Iterator[Fault]:
    platforms = [each.platform for each in software.archives]
    for position, archive in enumerate(software.archives):
        place: FieldPath = ("archives", position)
        fault = input_fault(archive.locator)
        if fault is not None:
            yield fault.code, fault.message, fault.hint, (*place, "locator")
        elif is_folder(archive.locator):
            message = f"the archive {shown_locator(archive.locator)!r} of {software.id!r} is a folder"
            yield "bad-archive", message, "name the file", (*place, "locator")
        for code, message, hint, inner in _checksum_faults(archive.sha256):
            yield code, message, hint, (*place, *inner)
        if len(platforms) > 1 and (not archive.platform or archive.platform in platforms[:position]):
            what = f"two archives for {archive.platform!r}" if archive.platform else "an archive without a platform"
            message = f"the software {software.id!r} has {what} among {len(platforms)}"
            yield "bad-archive", message, "give each archive its own platform", (*place, "platform")
        if archive.folder and (why_outside(archive.folder) or is_pattern(archive.folder)):
            message = f"{archive.folder!r} cannot be the folder of unpacked software"
            yield "bad-archive", message, "name a folder, such as reco", (*place, "folder")


def _output_faults(output: OutputFile) -> Iterator[Fault]:
    yield from _locator_faults(output.locator, target_fault)
    many = output.expression or is_pattern(literal_text(parse_template(output.name)))
    if output.locator and many and not is_folder(output.locator):
        message = f"{output.name or output.expression!r} may be several files, and the locator names one"
        hint = "end it with / to name a folder: the names of the files are added"
        yield "bad-output", message, hint, ("locator",)
    if bool(output.name) == bool(output.expression):
        got = "both" if output.name else "neither"
        yield "bad-output", f"an output has either a name or an expression; got {got}", "", ()
    if output.folder and not output.expression:
        yield "bad-output", "folder is for files that match an expression", "put the folder into the name", ("folder",)
    kept = {"retain-indefinitely", "retain-temporarily", "deletable"} & set(output.dispositions)
    if len(kept) > 1:
        message = f"the dispositions {' and '.join(sorted(kept))} contradict each other"
        yield "contradicting-dispositions", message, "", ("dispositions",)


def _comparison_faults(comparison: Comparison) -> Iterator[Fault]:
    if not comparison.files or not all(comparison.files):
        yield "bad-comparison", "a comparison needs the names of files, or patterns", "", ("files",)
    for position, name in enumerate(comparison.files):
        if gaps := parse_template(name).placeholders:
            message = f"{gaps[0]} is not allowed in the files of a comparison, which is the same for all packages"
            yield "misplaced-placeholder", message, f"write * instead of {gaps[0]}", ("files", position)
    for field in ("tolerance", "absolute_tolerance"):
        if getattr(comparison, field) and comparison.compared_as != "numbers":
            yield "bad-comparison", f"{field} is for numbers", "write as: numbers", (field,)
    if comparison.ignore and comparison.compared_as == "identical":
        message = "ignored lines are for text and numbers: identical files have the same bytes"
        yield "bad-comparison", message, "write as: text", ("ignore",)


def _environment_faults(environment: Environment) -> Iterator[Fault]:
    for name in environment.exported:
        if not name or "=" in name or "\0" in name:
            yield "bad-name", f"{name!r} cannot name an environment variable", "", ("exported", name)
    for name, text in environment.setting.items():
        setting = PACKAGE_SETTINGS.get(name)
        place = ("setting", name)
        if setting is None:
            hint = did_you_mean(name, PACKAGE_SETTINGS)
            yield "unknown-setting", f"{name!r} is not a setting that a package may override", hint, place
        elif not _fits(setting.kind, text):
            yield "wrong-type", f"the setting {name!r} needs a value of kind {setting.kind}, got {text!r}", "", place


def _fits(kind: str, text: str) -> bool:
    if kind == "count":
        return re.fullmatch("[0-9]{1,18}", text) is not None
    if kind == "bytes":
        return parse_bytes(text) is not None
    if kind == "seconds":
        return parse_seconds(text) is not None
    return kind != "yes-no" or text in ("true", "false")


def _check_variables(definition: Definition, report: Report, mark: MarkOf) -> None:
    """Constants are used as placeholders, so their names must be valid and not reserved."""
    for name in definition.variables:
        fault = variable_fault(name)
        if fault:
            report.error("bad-name", fault, mark(("variables", name)))


def _check_names(definition: Definition, report: Report, mark: MarkOf) -> None:
    """Names of stages, and of software with its version, must be unique."""
    positions: dict[str, int] = {}
    for position, stage in enumerate(definition.stages):
        if stage.name and stage.name in positions:
            message = (
                f"two stages are called {stage.name!r}: number {positions[stage.name] + 1} and number {position + 1}"
            )
            report.error("duplicate-name", message, mark(("stages", position, "name")))
        positions.setdefault(stage.name, position)
        if not stage.lines:
            report.error("no-lines", "a stage needs at least one line", mark(("stages", position)))
        for number, line in enumerate(stage.lines):
            if not line.packages:
                report.error(
                    "no-packages", "a line needs at least one package", mark(("stages", position, "lines", number))
                )
    described: set[tuple[str, str]] = set()
    for position, software in enumerate(definition.software):
        key = (software.id, software.version)
        if key in described:
            message = f"the software {software.id!r} in version {software.version!r} is described twice"
            report.error("duplicate-name", message, mark(("software", position, "id")))
        described.add(key)
