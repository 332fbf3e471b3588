"""Names of files in a package's folder: relative, with `/`, and never outside of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pilotage.agent.diagnosis import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = (".pilotage", ".pilotage-staged")


def check_name(name: str) -> None:
    """Raise `Failure` where a name leads out of the folder: whoever sent it is not to be trusted with our files."""
    if not name or name[0] == "/" or "\0" in name or (".." in name and ".." in name.split("/")):
        raise Failure("platform-failure", f"{name!r} is no name of a file in the package's folder")


def check_output(name: str) -> None:
    """Raise `Failure` where a file cannot be published under a name: it is pilotage's own."""
    check_name(name)
    if name.startswith(_OWN) and name.partition("/")[0] in _OWN:
        raise Failure("missing-output", f"the output {name!r} cannot be: {name.partition('/')[0]} is pilotage's own")


def make_parents(root: str, name: str) -> None:
    """Make the folders that a name lies in. Raises `OSError`."""
    if "/" in name:
        os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)


def names_below(folder: str) -> Iterator[str]:
    """The names of everything below a folder that is no folder itself; no link is followed."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, prefix)) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue  # removed meanwhile, or locked by whoever made it: what is asked for there will be missed
        for name, is_folder in found:
            if is_folder:
                waiting.append(f"{prefix}{name}/")
            else:
                yield prefix + name
