"""Names of files in a package's folder: relative, with `/`, and never outside of it."""

from __future__ import annotations

import os

from pilotage.agent.diagnosis import Failure

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
