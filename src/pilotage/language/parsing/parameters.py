"""Checks the parameters that are set for a run against those that the document declares."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from pilotage.language.parsing.iterations import variable_fault
from pilotage.language.parsing.kinds import DocumentParse
from pilotage.language.parsing.rules import MarkOf
from pilotage.model.errors import did_you_mean
from pilotage.model.jobs.definition import Definition, Parameter, ParameterType

_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_FORMS: dict[ParameterType, str] = {"integer": "a whole number", "number": "a number", "yes-no": "true or false"}


def choose_parameters(
    definition: Definition, given: Mapping[str, str], reading: DocumentParse, mark: MarkOf
) -> Definition:
    """The definition with its parameters set; all faults of declarations and values are reported."""
    report = reading.report
    for name in given:
        if name not in definition.parameters:
            message = f"the document has no parameter {name!r}"
            hint = did_you_mean(name, definition.parameters) or "declare it in the document, under  parameters:"
            report.error("unknown-parameter", message, mark(("parameters",)), hint=hint)
    chosen: dict[str, Parameter] = {}
    for name, declared in definition.parameters.items():
        place = ("parameters", name)
        fault = variable_fault(name)
        if fault:
            report.error("bad-name", fault, mark(place))
        elif name in definition.variables:
            report.error("duplicate-name", f"{name!r} is both a parameter and a variable", mark(place))
        parameter = msgspec.structs.replace(declared, value=given[name]) if name in given else declared
        chosen[name] = parameter
        if parameter.chosen is None:
            reading.spoil(("parameters",))
            reading.lost.add(place)
            message = f"the parameter {name!r} has no default and was not set"
            report.error("missing-parameter", message, mark(place), hint=f"use  --set {name}=VALUE")
        for text in dict.fromkeys((parameter.default, parameter.value)):
            if text is not None and not fits(parameter.type, text):
                message = f"the parameter {name!r} must be {_FORMS[parameter.type]}, got {text!r}"
                reading.lost.add(place)
                report.error("wrong-type", message, mark(place))
    return msgspec.structs.replace(definition, parameters=chosen)


def fits(kind: ParameterType, text: str) -> bool:
    """Whether a text is valid for a type."""
    if kind == "integer":
        return re.fullmatch("[-+]?[0-9]{1,18}", text) is not None
    if kind == "number":
        return _NUMBER.fullmatch(text) is not None
    return kind == "text" or text in ("true", "false")
