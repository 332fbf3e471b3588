"""Software described by a Boutiques descriptor, as a binary of a job uses it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import cast

import msgspec

from pilotage.language.boutiques import Descriptor, Value, check_invocation, command_line, read_descriptor
from pilotage.language.expansion.software import typed
from pilotage.language.text.tree import Report, tree_of
from pilotage.model.errors import DocumentError


def boutiques_command(descriptor: Mapping[str, object], parameters: Mapping[str, object]) -> str:
    """The shell command of a descriptor for one set of parameters; raises `DocumentError` where bosh would refuse it."""
    parsed, report = _parsed(msgspec.json.encode(descriptor)), Report("parameters")
    values = boutiques_values(parsed, parameters)
    check_invocation(parsed, values, report)
    report.refuse_if_faulty()
    return command_line(parsed, values)


def check_parameters(descriptor: Mapping[str, object], parameters: Mapping[str, object]) -> list[str]:
    """What bosh would refuse about one set of parameters."""
    parsed, report = _parsed(msgspec.json.encode(descriptor)), Report("parameters")
    check_invocation(parsed, boutiques_values(parsed, parameters), report)
    return [problem.message for problem in report.errors]


def boutiques_values(descriptor: Descriptor, parameters: Mapping[str, object]) -> dict[str, Value]:
    """Parameters as an invocation: what a placeholder gave for a number is that number."""
    values = typed(parameters, {given.id for given in descriptor.inputs if given.type == "Number"})
    # Parameters are plain data already, and the type of an invocation's values contains itself: nothing to convert.
    return cast("dict[str, Value]", values)


@lru_cache(maxsize=64)
def _parsed(text: bytes) -> Descriptor:
    """A descriptor from its JSON text, kept: one description serves every package that uses it."""
    report = Report("descriptor")
    descriptor = read_descriptor(tree_of(msgspec.json.decode(text)), report)
    if descriptor is None:
        raise DocumentError(report.errors)
    return descriptor
