"""What can be compared: ways to set the engine, each with a name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, get_args

import msgspec

from pilotage.engine.selection.settings import Policy
from pilotage.engine.settings import EngineSettings, Order
from pilotage.model.errors import PilotageError, did_you_mean

SELECTION = "selection"
FAIRNESS = "fairness"
POLICIES: tuple[str, ...] = get_args(Policy)
ORDERS: tuple[str, ...] = get_args(Order)
VARIANTS_MAX = 24


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to set the engine."""

    name: str
    settings: EngineSettings


def with_policy(settings: EngineSettings, policy: str) -> EngineSettings:
    """The settings with another way of picking a site."""
    return msgspec.structs.replace(settings, selection=msgspec.structs.replace(settings.selection, policy=policy))


def variants_of(comparisons: Sequence[str], settings: EngineSettings) -> list[Variant]:
    """Every combination of `NAME=VALUE,VALUE…`; without any, the settings as they are."""
    axes = []
    for text in comparisons:
        name, _, listed = text.partition("=")
        values = [value.strip() for value in listed.split(",") if value.strip()]
        if not values:
            raise PilotageError(
                "nothing to compare", subject=text, expected="NAME=VALUE,VALUE such as selection=best,thompson"
            )
        if len(set(values)) < len(values):
            raise PilotageError("a value stands there twice", subject=text)
        axes.append([(name.strip(), value) for value in values])
    if len({axis[0][0] for axis in axes}) < len(axes):
        raise PilotageError("compare each name once", subject=" ".join(comparisons))
    combinations = list(product(*axes))
    if len(combinations) > VARIANTS_MAX:
        raise PilotageError(f"{len(combinations):,} variants; at most {VARIANTS_MAX} are compared")
    return [_variant(combination, settings) for combination in combinations]


def _variant(combination: Sequence[tuple[str, str]], settings: EngineSettings) -> Variant:
    for name, value in combination:
        settings = _set(settings, name, value)
    if len(combination) == 1:
        return Variant(
            name=combination[0][1] if combination[0][0] == SELECTION else "=".join(combination[0]), settings=settings
        )
    return Variant(name=" ".join(f"{name}={value}" for name, value in combination) or "as it is", settings=settings)


def _set(settings: EngineSettings, name: str, value: str) -> EngineSettings:
    if name == SELECTION:
        if value not in POLICIES:
            raise PilotageError(
                "is no way of choosing a site", subject=f"{name}={value}", next_step=did_you_mean(value, POLICIES)
            )
        return with_policy(settings, value)
    if name == FAIRNESS:
        if value not in ORDERS:
            raise PilotageError("is no order of jobs", subject=f"{name}={value}", next_step=did_you_mean(value, ORDERS))
        order: Any = {FAIRNESS: value}
        return msgspec.structs.replace(settings, **order)
    of_engine, of_selection = _numbers_of(settings), _numbers_of(settings.selection)
    numbers = {**of_selection, **of_engine}
    if name not in numbers:
        raise PilotageError(
            "is nothing that can be compared",
            subject=name,
            next_step=did_you_mean(name, [SELECTION, FAIRNESS, *numbers]),
        )
    try:
        number = numbers[name](value)
    except ValueError:
        raise PilotageError("is no number", subject=f"{name}={value}") from None
    if not 0 <= number < 1e12:
        raise PilotageError("is out of range", subject=f"{name}={value}", expected="a number from 0")
    changed: Any = {name: number}
    if name in of_engine:
        return msgspec.structs.replace(settings, **changed)
    try:
        return msgspec.structs.replace(settings, selection=msgspec.structs.replace(settings.selection, **changed))
    except ValueError as fault:
        raise PilotageError(str(fault), subject=f"{name}={value}") from None


def _numbers_of(settings: msgspec.Struct) -> dict[str, type]:
    """The settings that are numbers, by name, with their kind."""
    found = {field: getattr(settings, field) for field in settings.__struct_fields__}
    return {field: type(value) for field, value in found.items() if isinstance(value, int | float)}
