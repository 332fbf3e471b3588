"""Which dialects there are: those of the modules that lie in this package, in a folder or in an archive."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from pilotage.agent.batch.dialect import Dialect


def dialects() -> dict[str, type[Dialect]]:
    """Every dialect by its name; a module that defines one need only be there."""
    package = import_module("pilotage.agent.batch")
    found = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(import_module(module.name)).values():
            if (
                isinstance(value, type)
                and issubclass(value, Dialect)
                and value.name
                and value.__module__ == module.name
            ):
                found[value.name] = value
    return dict(sorted(found.items()))
