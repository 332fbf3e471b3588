"""Values that change often: structs whose fields are set as fast as those of a class with slots."""

from __future__ import annotations

from typing import TypeVar

import msgspec

Changing = TypeVar("Changing", bound=msgspec.Struct)


def changes_often(kind: type[Changing]) -> type[Changing]:
    """Have the fields of a struct set without asking each time whether the garbage collector is to look at it from then on.

    Asking takes five times as long as setting. It is in vain for a struct that the collector never looks at (`gc=False`), and
    for one that it looks at from the beginning, because it is made with something that may be part of a circle.
    """
    type.__setattr__(kind, "__setattr__", object.__setattr__)
    type.__setattr__(kind, "__delattr__", object.__delattr__)  # both, or Python takes the long way for either
    return kind
