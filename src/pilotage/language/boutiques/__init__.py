"""Reads and checks Boutiques descriptors, and makes the same command lines from them as bosh.

`parse_descriptor` and `parse_invocation` read JSON text, `read_descriptor` and `read_invocation` nodes of any document.
"""

from __future__ import annotations

import msgspec

from pilotage.language.boutiques.checks import DescriptorPath, check_descriptor_shape
from pilotage.language.boutiques.command import (
    ConfigurationFile,
    OutputPath,
    command_line,
    configuration_files,
    environment,
    output_paths,
)
from pilotage.language.boutiques.descriptor import (
    Container,
    Descriptor,
    EnvironmentVariable,
    ErrorCode,
    Group,
    Input,
    Output,
    Resources,
)
from pilotage.language.boutiques.invocation import check_invocation, read_invocation
from pilotage.language.boutiques.lint import (
    check_container,
    check_descriptor,
    check_outputs,
    check_schema_limits,
    check_tests,
)
from pilotage.language.boutiques.values import Value, read_json, value_of
from pilotage.language.text.tree import Node, Report

__all__ = [
    "ConfigurationFile",
    "Container",
    "Descriptor",
    "EnvironmentVariable",
    "ErrorCode",
    "Group",
    "Input",
    "Output",
    "OutputPath",
    "Resources",
    "Value",
    "check_invocation",
    "command_line",
    "configuration_files",
    "environment",
    "output_paths",
    "parse_descriptor",
    "parse_invocation",
    "read_descriptor",
    "read_invocation",
    "read_json",
]


def read_descriptor(node: Node, report: Report) -> Descriptor | None:
    """The descriptor of a node, or None with all its faults in the report."""
    before = len(report.errors)
    value = value_of(node, report)
    place = DescriptorPath(node, report)
    check_descriptor_shape(value, place)
    if len(report.errors) > before:
        return None
    descriptor = msgspec.convert(value, Descriptor)
    check_descriptor(descriptor, place)
    check_outputs(descriptor, place)
    check_tests(descriptor, place)
    check_container(descriptor, place)
    if not descriptor.invocation_schema:
        check_schema_limits(descriptor, place)
    return descriptor if len(report.errors) == before else None


def parse_descriptor(text: str, report: Report) -> Descriptor | None:
    """The descriptor of a JSON text, or None with all its faults in the report."""
    before = len(report.errors)
    node = read_json(text, report)
    if node is None:
        return None
    descriptor = read_descriptor(node, report)
    return descriptor if len(report.errors) == before else None


def parse_invocation(text: str, report: Report) -> dict[str, Value]:
    """The values of an invocation by input id, read from JSON; faults go to the report."""
    node = read_json(text, report)
    return {} if node is None else read_invocation(node, report)
