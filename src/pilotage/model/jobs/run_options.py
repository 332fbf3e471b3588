"""The options of a run: what a user can set for a job besides its document. Each is declared only here.

The command line, the keywords of `pilotage.run` and similar functions, the body of `POST /v1/jobs`, the record of the job,
and the reference page all follow from these two classes.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypedDict, get_type_hints

import msgspec

_meta = msgspec.Meta


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a run with their help texts; sent and stored with a job."""

    fresh: Annotated[bool, _meta(description="Run everything again, including results of earlier runs.")] = False
    keep_failed: Annotated[bool, _meta(description="Keep the scratch folders of failed attempts.")] = False
    max_failures: Annotated[
        int,
        _meta(
            ge=0,
            description="End the job when N packages have failed permanently: running packages are stopped, the rest is"
            " cancelled, and the exit code is 1.",
        ),
    ] = 0  # no limit
    replace: Annotated[
        bool,
        _meta(
            description="Replace files that pilotage did not make, or that were changed since; each is kept as NAME.~1~."
        ),
    ] = False


class RunKeywords(TypedDict, total=False):
    """The same options as keywords of Python functions, for type checkers and completion."""

    fresh: bool
    keep_failed: bool
    max_failures: int
    replace: bool


class RunOption(NamedTuple):
    """One option, as a function or a command declares it."""

    name: str
    kind: type[bool] | type[int]
    default: Any
    description: str


def declared_options() -> tuple[RunOption, ...]:
    """All options of a run."""
    hints = get_type_hints(RunOptions, include_extras=True)
    defaults = RunOptions()
    return tuple(
        RunOption(name, hints[name].__origin__, getattr(defaults, name), hints[name].__metadata__[0].description)
        for name in RunOptions.__struct_fields__
    )


def given_options(options: RunOptions) -> dict[str, Any]:
    """The options of an object by name, to pass on."""
    return {name: getattr(options, name) for name in RunOptions.__struct_fields__}
