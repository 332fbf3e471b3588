"""What people call a package: its name, what it was given to work on, and its command, instead of `1.37.1`."""

from __future__ import annotations

import msgspec

PARAMETERS_SHOWN_MAX = 8
VALUE_CHARACTERS_MAX = 60


class PackageWords(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A package in its owner's words."""

    name: str = ""
    parameters: dict[
        str, str
    ] = {}  # the values that its iterations give it, by the names that its document has for them
    command: str = ""  # on one line, cut where it is very long


def parameters_text(parameters: dict[str, str]) -> str:
    """Parameters on one line: `temp=0.8 field=16`; long values are cut, and of very many the first are told."""
    shown = [f"{name}={_cut(value)}" for name, value in list(parameters.items())[:PARAMETERS_SHOWN_MAX]]
    more = ["…"] if len(parameters) > PARAMETERS_SHOWN_MAX else []
    return " ".join([*shown, *more])


def _cut(value: str) -> str:
    value = " ".join(value.split())
    return value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[: VALUE_CHARACTERS_MAX - 1]}…"
