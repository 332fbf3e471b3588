"""What a package was asked for, as a key: equal keys make equal files, so that nothing is run twice for nothing.

The key is made of fields, and each field is kept with it: of a package that must run, the field that changed is named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from zlib import crc32

import msgspec

from pilotage.model.work import Work, WorkBinary, WorkInput, WorkScript
from pilotage.ports import WorkFields

Checksum = Callable[[str], str | None]
"""The sha256 of a file by its name in the job's tree; None where there is none."""

INPUTS_MAX = 1000
"""Inputs beyond so many are told together: a changed one of them is not named."""

_canonical = msgspec.json.Encoder(order="deterministic").encode
_DIGITS = 32
_NAMED_DIGITS = 8  # of a program that is only to be named
_NAMED_MAX = 5  # of variables that changed


def fields_of(work: Work, *others: Work) -> WorkFields:
    """What a work asks for, field by field; an input whose checksum is not known yet has an empty one.

    A package whose software is started in another way at another site is all of these works: it asks for the same
    wherever it runs, and what one site made is not made again at another.
    """
    if others:
        return _together([_fields_of(each) for each in (work, *others)])
    return _fields_of(work)


def _together(ways: Sequence[WorkFields]) -> WorkFields:
    return WorkFields(
        argv=_digest([each.argv for each in ways]),
        software=_digest([each.software for each in ways]),
        environment=_digest([each.environment for each in ways]),
        variables=_digests_together(each.variables for each in ways),
        outputs=ways[0].outputs,
        inputs=ways[0].inputs,
        programs={name: digest for each in ways for name, digest in each.programs.items()},
    )


def _digests_together(ways: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The digests of variables by name; what tells that one changed in any of the ways."""
    found: dict[str, list[str]] = {}
    for at, each in enumerate(ways):
        for name, digest in each.items():
            found.setdefault(name, []).append(f"{at}={digest}")
    return {name: f"{crc32(chr(0).join(each).encode()):08x}" for name, each in found.items()}


def _fields_of(work: Work) -> WorkFields:
    commands, environment, makes = [], [], False
    for each in work.binaries:
        commands.append((each.argv, each.stdin, each.stdout, each.stderr))
        environment.append(each.environment)
        makes = makes or bool(each.outputs or each.stdout or each.stderr)
    programs: dict[str, str] = {}
    inputs: dict[str, str] = {}
    for given in (*work.inputs, *_files(work.pre), *_files(work.post)) if work.pre or work.post else work.inputs:
        (programs if given.executable else inputs)[given.name] = given.sha256
    container = (work.container.image, work.container.engine) if work.container is not None else ()
    known: dict[str, str] = {}
    if work.software or container or programs:
        known = {work.software: ""} if work.software else {}
        if work.container is not None:
            known[work.container.image] = work.container.engine
        known.update((name, sha256[:_NAMED_DIGITS]) for name, sha256 in programs.items())
    return WorkFields(
        argv=_digest((commands, work.startup, _argv(work.pre), _argv(work.post))),
        software=_digest((work.software, container, programs)) if known else _NONE,
        environment=_digest(environment) if len(environment) != 1 or environment[0] else _USUAL,
        variables=_variables(environment) if any(environment) else {},
        # What makes no file is asked for as often as it is written: two equal commands are two.
        outputs=_digest([_outputs(each) for each in work.binaries] if makes else work.path),
        inputs=_joined(inputs),
        programs=known,
    )


def completed(fields: WorkFields, checksum: Checksum) -> WorkFields | None:
    """The fields with the checksums of inputs that were not known; None where an input is not there."""
    if all(fields.inputs.values()):
        return fields
    inputs: dict[str, str] = {}
    for name, known in fields.inputs.items():
        sha256 = known or checksum(name)
        if not sha256:
            return None
        inputs[name] = sha256
    return msgspec.structs.replace(fields, inputs=_joined(inputs))


def key_of(fields: WorkFields) -> str:
    """The key of what was asked for."""
    if fields.programs or fields.variables:
        fields = msgspec.structs.replace(fields, programs={}, variables={})
    return hashlib.sha256(_canonical(fields)).hexdigest()


def is_complete(fields: WorkFields) -> bool:
    """Whether the checksum of every input is known: only then the key means something."""
    return all(fields.inputs.values())


def changed(before: WorkFields, now: WorkFields) -> str:
    """The first field that is not as it was: `argv`, `software a.sh`, `environment A`, `input a.dat`, `outputs`."""
    if before.argv != now.argv:
        return "argv"
    if before.software != now.software:
        return f"software {_changed_programs(before.programs, now.programs)}".rstrip()
    if before.environment != now.environment:
        return f"environment {_changed_variables(before, now)}".rstrip()
    for name, sha256 in now.inputs.items():
        if before.inputs.get(name) != sha256:
            return f"input {name}"
    for name in before.inputs:
        if name not in now.inputs:
            return f"input {name}"
    return "outputs" if before.outputs != now.outputs else ""


def _changed_programs(before: dict[str, str], now: dict[str, str]) -> str:
    """The names of what changed of the software; where it is not known what was there before, of all there is."""
    if not before:
        return " or ".join(now)
    other = [name for name, digest in now.items() if before.get(name) != digest]
    return ", ".join(other or [name for name in before if name not in now])


def _variables(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The variables of all binaries, each with what tells whether it changed in any of them."""
    values: dict[str, list[str]] = {}
    for at, environment in enumerate(environments):
        for name, value in environment.items():
            values.setdefault(name, []).append(f"{at}={value}")
    # Only to be named: whether anything changed at all is said by the sha256 of all of them.
    return {name: f"{crc32(chr(0).join(each).encode('utf-8', 'surrogateescape')):08x}" for name, each in values.items()}


def _changed_variables(before: WorkFields, now: WorkFields) -> str:
    """The variables that are new, gone or of another value; nothing where it was not kept what they were."""
    if not before.variables and before.environment != _USUAL:
        return ""
    names = sorted({*before.variables, *now.variables})
    other = [name for name in names if before.variables.get(name) != now.variables.get(name)]
    more = f" and {len(other) - _NAMED_MAX:,} more" if len(other) > _NAMED_MAX else ""
    return ", ".join(other[:_NAMED_MAX]) + more


def _joined(inputs: dict[str, str]) -> dict[str, str]:
    """Inputs as they are kept: very many are one entry, as soon as all of them are known."""
    if len(inputs) <= INPUTS_MAX or not all(inputs.values()):
        return inputs
    return {f"(one of {len(inputs):,})": _digest(inputs)}


def _outputs(binary: WorkBinary) -> list[tuple[str, str, str, bool]]:
    return [(each.name, each.expression, each.folder, each.pattern) for each in binary.outputs]


def _argv(script: WorkScript | None) -> tuple[str, ...]:
    return script.argv if script is not None else ()


def _files(script: WorkScript | None) -> tuple[WorkInput, ...]:
    return script.files if script is not None else ()


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()[:_DIGITS]


_NONE = _digest(("", (), {}))
_USUAL = _digest([{}])
