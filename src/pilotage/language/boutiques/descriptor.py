"""A Boutiques descriptor as a value: the inputs, outputs and command line of a tool."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Input(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """One parameter of the tool; `value_key` is the text in the command line that its value replaces."""

    id: str
    name: str
    type: Literal["String", "File", "Flag", "Number"]
    description: str = ""
    value_key: str | None = None
    is_list: bool = msgspec.field(name="list", default=False)
    list_separator: str = " "
    optional: bool = False
    command_line_flag: str | None = None
    command_line_flag_separator: str = " "
    requires_inputs: tuple[str, ...] | None = None
    disables_inputs: tuple[str, ...] | None = None
    default_value: Any = None
    value_choices: tuple[Any, ...] | None = None
    value_requires: dict[str, tuple[str, ...]] | None = None
    value_disables: dict[str, tuple[str, ...]] | None = None
    integer: bool = False
    minimum: Any = None
    maximum: Any = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    min_list_entries: Any = None
    max_list_entries: Any = None
    uses_absolute_path: bool = False


class Output(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """One file the tool makes; its path is a template, or the first of several whose condition holds."""

    id: str
    name: str
    description: str = ""
    value_key: str | None = None
    path_template: str | None = None
    conditional_path_template: tuple[dict[str, str], ...] = ()
    path_template_stripped_extensions: tuple[str, ...] = ()
    is_list: bool = msgspec.field(name="list", default=False)
    optional: bool = False
    command_line_flag: str | None = None
    command_line_flag_separator: str = " "
    uses_absolute_path: bool = False
    file_template: tuple[str, ...] | None = None


class Group(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """Inputs with a common rule; None means that the descriptor does not state the rule."""

    id: str
    name: str
    members: tuple[str, ...]
    description: str = ""
    mutually_exclusive: bool | None = None
    one_is_required: bool | None = None
    all_or_none: bool | None = None


class Container(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """The image that holds the tool."""

    type: Literal["docker", "singularity", "rootfs"]
    image: str = ""
    url: str = ""
    index: str | None = None
    entrypoint: bool = False
    container_opts: tuple[str, ...] = ()
    working_directory: str = ""
    container_hash: str = ""


class EnvironmentVariable(msgspec.Struct, frozen=True):
    """A variable set for the tool; a value that is an input's value key stands for that input's value."""

    name: str
    value: str
    description: str = ""


class ErrorCode(msgspec.Struct, frozen=True):
    """What an exit code of the tool means."""

    code: int
    description: str


class Resources(msgspec.Struct, frozen=True, rename="kebab"):
    """Resources that the author suggests for one run; memory and disk in GB, as in Boutiques."""

    cpu_cores: int | None = None
    ram: float | None = None
    disk_space: float | None = None
    nodes: int | None = None
    walltime_seconds: float | None = msgspec.field(name="walltime-estimate", default=None)


class Descriptor(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """A whole descriptor, checked; the names are those of the Boutiques schema, with `version` for `tool-version`."""

    name: str
    version: str = msgspec.field(name="tool-version")
    description: str
    schema_version: str
    command_line: str
    inputs: tuple[Input, ...]
    groups: tuple[Group, ...] = ()
    outputs: tuple[Output, ...] = msgspec.field(name="output-files", default=())
    container_image: Container | None = None
    environment_variables: tuple[EnvironmentVariable, ...] = ()
    suggested_resources: Resources = Resources()
    error_codes: tuple[ErrorCode, ...] = ()
    shell: str = "/bin/sh"
    author: str = ""
    url: str = ""
    descriptor_url: str = ""
    doi: str = ""
    tool_doi: str = ""
    deprecated_by_doi: str | bool = False
    tags: dict[str, Any] = {}
    online_platform_urls: tuple[str, ...] = ()
    invocation_schema: dict[str, Any] | None = None
    tests: tuple[dict[str, Any], ...] = ()
    custom: dict[str, Any] = {}
