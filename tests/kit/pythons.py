"""The Pythons of this computer."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

_FOLDERS = (Path("/usr/bin"), Path("/usr/local/bin"))
# Tests have a home of their own; whose tests they are may have built some Pythons.
_BUILT = Path(pwd.getpwuid(os.getuid()).pw_dir, ".pyenv", "versions")


def pythons(minors: Iterable[int]) -> list[str]:
    """The paths of the interpreters that are there of these versions 3.x, each one once, the oldest first."""
    folders = [*_FOLDERS, *sorted(_BUILT.glob("3.*/bin"))]
    found: dict[Path, str] = {}
    for minor in minors:
        for folder in folders:
            file = folder / f"python3.{minor}"
            if file.exists():
                found.setdefault(file.resolve(), str(file))
    return list(found.values())
